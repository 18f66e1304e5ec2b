"""The sites of a model: latents, simulator sites, other likelihoods; how they are read, and what depends on what."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.infer.inspect import get_model_relations

from numpyro_kme._core import checks, compat
from numpyro_kme.kernels.ragged import beyond_end, lengths
from numpyro_kme.models import tracing
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.site_checks import check_sites


@dataclass(frozen=True)
class Latent:
    """A site that is neither observed nor simulated.

    Attributes:
        fn: Its prior; where it has parents, the prior at one draw of them.
        value: One prior draw.
        parents: The latents that `fn` depends on.
    """

    fn: dist.Distribution
    value: np.ndarray
    parents: tuple[str, ...]

    @property
    def discrete(self) -> bool:
        """Whether it takes whole numbers or truth values."""
        return bool(self.fn.support.is_discrete)


@dataclass(frozen=True)
class SimulatorSite:
    """A site that comes from a simulator.

    Attributes:
        simulator: The `Simulator` at the arguments of one prior draw; its batch shape has one element for
            each call.
        fn: Distribution of the site: the simulator, perhaps masked or with its batch dimensions made event
            dimensions.
        plates: Sizes of the plates around the site.
        observed: The observation, or None.
        parents: The latents that the simulator's arguments depend on.
        mask: Which calls count, of the simulator's batch shape: those that `numpyro.handlers.mask` leaves, and of which
            something was observed. Simulations have all of them.
        unmasked: Those that `numpyro.handlers.mask` leaves.
        missing: How many entries of the calls that are not masked are NaN, not observed.
        censored: How many of these are known to lie in an interval (`Simulator.within`).
        scale: Powers that the likelihoods of the calls are raised to, `()` or broadcast to the batch shape of `fn`; see
            `numpyro.handlers.scale`.
    """

    simulator: Simulator
    fn: dist.Distribution
    plates: Mapping[str, int]
    observed: np.ndarray | None
    parents: tuple[str, ...]
    mask: np.ndarray
    unmasked: np.ndarray
    missing: int
    censored: int
    scale: np.ndarray

    @property
    def single(self) -> bool:
        """Whether there is one observation, neither masked nor scaled, of entries that are known or not."""
        return not (self.plates or self.weighted or self.censored)

    @property
    def weighted(self) -> bool:
        """Whether calls are masked, or their likelihoods raised to a power other than 1."""
        return not self.mask.all() or bool(np.any(self.scale != 1.0))

    @property
    def alike(self) -> bool:
        """Whether all calls that count have the same parameters, and the same of their entries were observed."""
        if self.observed is None or self.censored or prod(self.simulator.groups) > 1:
            return False
        seen = ~np.isnan(self.counted(self.observed).reshape(-1, *self.simulator.event_shape))
        return len(seen) > 0 and bool(seen[0].any() and (seen == seen[:1]).all())

    def counted(self, x: np.ndarray, lead: int = 0) -> np.ndarray:
        """Outputs `(*lead, *batch, *event)` without the masked ones: as they are if there are none, else
        `(*lead, calls, *event)`."""
        return x if self.mask.all() else x[(slice(None),) * lead + (self.mask,)]

    def check_observed(self, name: str) -> None:
        """That an observation is one that the simulator could give, where it is not NaN: finite, and whole where its
        outputs are."""
        seen = self.counted(np.asarray(self.observed))
        self._check_ends(name, seen)
        checks.require(
            not self.missing or bool(self.mask.any()),
            f"Nothing was observed at {name!r}: all {self.missing} entries that count are NaN. The posterior is the "
            "prior; leave the observation out of the model, or give the entries that were observed.",
        )
        seen = seen[~np.isnan(seen)]
        checks.finite(f"observation at {name!r}", seen)
        numbers = seen if self.simulator.dtype.kind in "biu" else np.zeros(0)
        broken = numbers[numbers != np.round(numbers)]
        checks.require(
            not broken.size,
            f"The observation at {name!r} holds {', '.join(f'{number:g}' for number in broken[:3])}, and its simulator "
            f"`{self.simulator.name}` gives whole numbers ({self.simulator.dtype}). Observe whole numbers, or let the "
            "simulator return what was averaged.",
        )

    def _check_ends(self, name: str, seen: np.ndarray) -> None:
        """That outputs of any length have a row at least."""
        if not self.simulator.ragged:
            return
        event = self.simulator.event_shape
        checks.require(
            bool(lengths(seen.reshape(-1, *event)).all()),
            f"The observation at {name!r} has no row: NaN at its end says that it ends there (ragged=True), and its "
            "first row is NaN. Leave it out by numpyro.handlers.mask, or give at least one row.",
        )

    def require_no_gaps(self, name: str, which: str) -> None:
        """Raise where `which` cannot serve outputs of any length that have NaN before their end."""
        checks.require(
            not (self.simulator.ragged and self.missing),
            f"The observation at {name!r} has {self.missing} entries that are NaN before its end (ragged=True), which "
            f"{which} cannot leave out of simulations, too; KELFI does for a single output. Where rows have no order "
            "(EmpiricalMeasure) or hold their times (GaussianProcessPath) leave them out by hand; otherwise fill them "
            "in, as by interpolation, in the observation and in what the simulator returns.",
        )

    def rows(self, arguments: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Simulations as a table, with a row for each argument that was simulated.

        Args:
            arguments: `(m, *groups, p)`.
            x: `(m, *batch, *event)`.
        Returns:
            `(rows, p)` and `(rows, *rest, *event)`. Without groups these are the arguments given, and `rest` is
            the batch shape: draws that share an argument stay together. Groups, the batch dimensions along
            which the parameters vary, become rows: there are `m * prod(groups)` of them.
        """
        groups, batch = self.simulator.groups, self.simulator.batch_shape
        padded = (1,) * (len(batch) - len(groups)) + groups
        varying = [1 + i for i, size in enumerate(padded) if size > 1]
        moved = np.moveaxis(x, varying, range(1, 1 + len(varying)))
        kept = tuple(size for size, own in zip(batch, padded) if own == 1)
        shape = (-1, *kept, *self.simulator.event_shape)
        return arguments.reshape(-1, arguments.shape[-1]), moved.reshape(shape)


class Parts(NamedTuple):
    """What a model consists of; `Problem` has the same attributes."""

    latents: Mapping[str, Latent]
    simulators: Mapping[str, SimulatorSite]
    likelihoods: tuple[str, ...]
    deterministics: tuple[str, ...]


@tracing.one_model_at_a_time()
def read(model: Callable, args: tuple, kwargs: Mapping) -> Parts:
    """Read the parts of `model(*args, **kwargs)`; see `Problem.read`."""
    tracing.refuse_seeded(model)
    run = partial(tracing.run, model, args, kwargs, None, {})
    functions: dict[str, Callable] = {}

    def run_again():
        functions.update({name: found.fn for name, found in run()[1].items()})

    with _explained(model, args, kwargs):
        trace, simulators = run()
    tracing.check_plates(trace)
    with _explained(model, args, kwargs), tracing.as_numpyro_does():
        jax.eval_shape(run_again)
        upstream = get_model_relations(tracing.PresentPrecision(model), args, dict(kwargs))["sample_sample"]
    parents = {name: _behind(name, upstream, trace) for name in upstream}
    check_sites(trace, simulators, parents)
    for name, simulator in simulators.items():
        if functions[name] != simulator.fn:
            checks.warn(
                f"The simulator `{simulator.name}` of site {name!r} is a new function each time the model runs, a "
                "lambda or a function defined inside the model, so JAX compiles it again each time. Define it outside."
            )
    parts = _parts_of(trace, simulators, parents)
    _check_weights(parts, model, args, kwargs)
    return parts


def read_again(before: Any, args: tuple, kwargs: Mapping) -> Parts:
    """As `read`, for other data of a model that was read: dependence is read again only where the sites are others."""
    try:
        trace, simulators = tracing.run(before.model, args, kwargs, None, {})
    except Exception:  # which `read` explains
        return read(before.model, args, kwargs)
    parents: dict[str, tuple[str, ...]] = dict.fromkeys((*before.deterministics, *before.likelihoods), ())
    for known in (before.latents, before.simulators):
        parents |= {name: site.parents for name, site in known.items()}
    if {name for name, site in trace.items() if site["type"] != "plate"} != set(parents):
        return read(before.model, args, kwargs)
    found = _parts_of(trace, simulators, parents)
    if _outline(found) != _outline(before):
        return read(before.model, args, kwargs)
    check_sites(trace, simulators, parents)
    return found


@contextmanager
def _explained(model: Callable, args: tuple, kwargs: Mapping):
    """Say which model failed, and how it was run."""
    try:
        yield
    except Exception as error:
        raise checks.explained(
            f"The model `{getattr(model, '__name__', model)}` failed while its sites were read: {error} "
            f"({type(error).__name__}). It was run with {len(args)} positional arguments and the keyword arguments "
            f"{sorted(kwargs)}; observations and covariates are passed the way the model takes them."
        ) from error


def _outline(parts: Parts) -> tuple:
    """What does not change with the data."""
    latents = [(name, type(compat.innermost(latent.fn)), latent.value.shape) for name, latent in parts.latents.items()]
    simulators = [
        (name, site.simulator.fn, site.plates, site.observed is None, site.weighted)
        for name, site in parts.simulators.items()
    ]
    return latents, simulators, parts.likelihoods, parts.deterministics


def _parts_of(trace, simulators, parents) -> Parts:
    """The parts of a traced model, given its simulators and the parents of each site."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    rest = {name: site for name, site in sites.items() if name not in simulators}
    return Parts(
        latents={
            name: Latent(site["fn"], np.asarray(site["value"]), parents[name])
            for name, site in rest.items()
            if not site["is_observed"]
        },
        simulators={
            name: SimulatorSite(
                simulator,
                sites[name]["fn"],
                {frame.name: frame.size for frame in sites[name]["cond_indep_stack"]},
                np.asarray(sites[name]["value"]) if sites[name]["is_observed"] else None,
                parents[name],
                *_counted(simulator, sites[name]),
                np.asarray(compat.scale(sites[name])),
            )
            for name, simulator in simulators.items()
        },
        likelihoods=tuple(name for name, site in rest.items() if site["is_observed"]),
        deterministics=tuple(
            name
            for name, site in trace.items()
            if site["type"] == "deterministic" and not set(parents[name]) & set(simulators)
        ),
    )


def _counted(simulator: Simulator, site: dict) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Which calls count, which are not masked, how many entries of these are NaN, and are in intervals."""
    mask = np.broadcast_to(compat.mask(site["fn"]), simulator.batch_shape)
    missing = np.isnan(value := np.asarray(site["value"])) & np.expand_dims(mask, tuple(range(-simulator.event_dim, 0)))
    if simulator.ragged:  # NaN at the end of an output is its end
        return mask, mask, int((missing & ~behind(simulator, value)).sum()), 0
    ends = np.zeros((0, *missing.shape)) if simulator.bounds is None else simulator.bounds
    inside = missing & np.any([np.isfinite(np.broadcast_to(end, missing.shape)) for end in ends], axis=0)
    nothing = (missing & ~inside).all(axis=tuple(range(-simulator.event_dim, 0)))
    return mask & ~nothing, mask, int(missing.sum()), int(inside.sum())


def behind(simulator: Simulator, x: np.ndarray) -> np.ndarray:
    """Which entries of outputs `(*lead, *event)` stand behind their ends."""
    return beyond_end(x.reshape(-1, *simulator.event_shape)).reshape(x.shape)


def _behind(name: str, upstream: Mapping[str, list[str]], trace) -> tuple[str, ...]:
    """The sample sites that a site depends on, directly or through deterministic sites."""
    found: set[str] = set()
    pending = list(upstream[name])
    while pending:
        parent = pending.pop()
        if trace[parent]["type"] == "deterministic":
            pending.extend(upstream[parent])
        else:
            found.add(parent)
    return tuple(site for site in trace if site in found)


def _check_weights(parts: Parts, model, args, kwargs) -> None:
    """Masks and scales are known before anything is inferred."""

    def weights(name, latents):
        site = tracing.run(model, args, kwargs, None, latents)[0][name]
        return compat.mask(site["fn"]), compat.scale(site)

    known = {name: jnp.asarray(latent.value) for name, latent in parts.latents.items()}
    for name, site in parts.simulators.items():
        behind = compat.depends_on(partial(weights, name), known) if site.weighted else ()
        checks.require(
            not behind,
            f"The mask or scale of site {name!r} depends on the latents {list(behind)}. Make it depend on data alone.",
        )
