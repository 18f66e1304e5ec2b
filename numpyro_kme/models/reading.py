"""How a model is read: which sites it has, what depends on what, and errors for what no engine takes."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.inspect import get_model_relations

from numpyro_kme._core import checks, compat
from numpyro_kme.kernels.ragged import beyond_end
from numpyro_kme.models import tracing
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.sites import Latent, SimulatorSite, require_known, require_whole_calls


class Parts(NamedTuple):
    """Parts of a model; `Problem` has the same attributes."""

    latents: Mapping[str, Latent]
    simulators: Mapping[str, SimulatorSite]
    likelihoods: tuple[str, ...]
    deterministics: tuple[str, ...]


@tracing.one_model_at_a_time()
def read(model: Callable, args: tuple, kwargs: Mapping, before: Any = None) -> Parts:
    """Read the parts of `model(*args, **kwargs)`; see `Problem.read`. The dependence of sites is that of the same model
    with other data, `before`, where the sites are the same."""
    tracing.refuse_seeded(model)
    with explained(model, args, kwargs):
        trace, simulators = tracing.run(model, args, kwargs, None, {})
    tracing.check_plates(trace)
    known = {} if before is None else _known_parents(before)
    fresh = {name for name, site in trace.items() if site["type"] != "plate"} != set(known)
    parents = _parents(model, args, kwargs, trace) if fresh else known
    _check_sites(trace, simulators, parents)
    parts = _parts_of(trace, simulators, parents)
    if not fresh and _outline(parts) != _outline(before):
        return read(model, args, kwargs)
    if fresh:
        _warn_of_new_functions(model, args, kwargs, simulators)
        _check_weights(parts, model, args, kwargs)
    return parts


def _known_parents(before: Any) -> dict[str, tuple[str, ...]]:
    parents: dict[str, tuple[str, ...]] = dict.fromkeys((*before.deterministics, *before.likelihoods), ())
    return parents | {
        name: site.parents for known in (before.latents, before.simulators) for name, site in known.items()
    }


def _parents(model: Callable, args: tuple, kwargs: Mapping, trace) -> dict[str, tuple[str, ...]]:
    """The sample sites that each site depends on."""
    with explained(model, args, kwargs), tracing.as_numpyro_does(), handlers.block():
        upstream = get_model_relations(tracing.PresentPrecision(model), args, dict(kwargs))["sample_sample"]
    return {name: _behind(name, upstream, trace) for name in upstream}


def _warn_of_new_functions(model: Callable, args: tuple, kwargs: Mapping, simulators: Mapping[str, Simulator]) -> None:
    """Warn where a simulator's function is made anew each time the model runs."""
    functions: dict[str, Callable] = {}

    def run_again():
        again = tracing.run(model, args, kwargs, None, {})[1]
        functions.update({name: found.fn for name, found in again.items()})

    jax.eval_shape(run_again)
    for name, simulator in simulators.items():
        if functions[name] != simulator.fn:
            checks.warn(
                f"The simulator `{simulator.name}` of site {name!r} is a new function each time the model runs, a "
                "lambda or a function defined inside the model, so JAX compiles it again each time. Define it outside."
            )


@contextmanager
def explained(model: Callable, args: tuple, kwargs: Mapping):
    """Say which model failed, and how it was run."""
    try:
        yield
    except Exception as error:
        hints = {
            "broadcast": " Do the batch shapes of its sites fit its plates (`event_dims` of a Simulator)?",
            "size of plate": " Without data there is nothing to observe: pass at least one number along each plate.",
        }
        raise checks.explained(
            f"The model `{getattr(model, '__name__', model)}` failed while its sites were read: {error} "
            f"({type(error).__name__}). It was run with {len(args)} positional arguments and the keyword arguments "
            f"{sorted(kwargs)}; observations and covariates are passed the way the model takes them."
            f"{''.join(hint for words, hint in hints.items() if words in str(error))}"
        ) from error


def _outline(parts: Parts) -> tuple:
    """Parts that do not change with the data."""
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
    """Tell which calls count, which are not masked, how many entries of these are NaN, and are in intervals."""
    mask = np.broadcast_to(compat.mask(site["fn"]), simulator.batch_shape)
    missing = np.isnan(value := np.asarray(site["value"])) & np.expand_dims(mask, tuple(range(-simulator.event_dim, 0)))
    if simulator.ragged:  # NaN at the end of an output is its end
        return mask, mask, int((missing & ~behind(simulator, value)).sum()), 0
    ends = np.zeros((0, *missing.shape)) if simulator.bounds is None else simulator.bounds
    inside = missing & np.any([np.isfinite(np.broadcast_to(end, missing.shape)) for end in ends], axis=0)
    nothing = (missing & ~inside).all(axis=tuple(range(-simulator.event_dim, 0)))
    return mask & ~nothing, mask, int(missing.sum()), int(inside.sum())


def behind(simulator: Simulator, x: np.ndarray) -> np.ndarray:
    """Tell which entries of outputs `(*lead, *event)` stand behind their ends."""
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


def _check_sites(trace, simulators, parents) -> None:
    """Raise an error for the sites of a traced model that nothing can be inferred with."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    params = [name for name, site in trace.items() if site["type"] == "param"]
    checks.require(
        not params,
        f"The model has the `param` sites {params}, which have no prior. Give them one with numpyro.sample "
        "(or the handler numpyro.handlers.lift), or pass their values as arguments of the model.",
    )
    checks.require(
        len(simulators) > 0,
        f"The model has no simulator site; its sites are {list(sites)}. Add one: numpyro.sample('x', "
        "numpyro_kme.Simulator(fn, *params), obs=x).",
    )
    for name, site in sites.items():
        fed = [parent for parent in parents[name] if parent in simulators]
        checks.require(
            not fed,
            f"Site {name!r} depends on the output of the simulator at {fed and fed[0]!r}, whose density is not known. "
            "Put that step inside the simulator's function, so that its output is what is observed.",
        )
        if name in simulators:
            dtype = site["value"].dtype
            checks.require(
                dtype.kind in "bfiu",
                f"The observation at {name!r} has dtype {dtype}; it must hold real numbers. Give real and imaginary "
                "parts as numbers of their own, and let the simulator return them so.",
                TypeError,
            )
            if site["is_observed"]:
                require_whole_calls(name, simulators[name], site)
            found, expected = np.shape(site["value"]), simulators[name].shape()
            checks.require(
                found == expected,
                f"The observation at {name!r} has shape {found}; the simulator `{simulators[name].name}` gives "
                f"shape {expected}{', or fewer rows' if simulators[name].ragged else ''}."
                if site["is_observed"]
                else f"Site {name!r} has shape {found} where its simulator gives shape {expected}. A simulator "
                "inside `scan` is not supported: make the whole series one call of a simulator.",
            )
            require_known(name, simulators[name])
        elif site["is_observed"] and not isinstance(site["fn"], dist.Unit):
            shapes = np.shape(site["value"]), site["fn"].shape()
            checks.require(
                checks.expands(*shapes) or checks.expands(*shapes[::-1]),
                f"The observation at {name!r} has shape {shapes[0]} and its distribution {shapes[1]}, of which neither "
                "expands to the other: numbers would be counted several times, or not at all. Give the observation "
                "the shape of its plates.",
            )
    latents = [name for name, site in sites.items() if not site["is_observed"] and name not in simulators]
    checks.require(len(latents) > 0, f"The model has no latent site to infer; its sites are {list(sites)}.")
    for name in latents:
        fn, scale = sites[name]["fn"], sites[name]["scale"]
        masked = not np.all(compat.mask(fn))
        checks.require(
            not masked and (scale is None or bool(np.all(np.asarray(scale) == 1.0))),
            f"The prior of {name!r} is {'masked' if masked else f'scaled, by {scale}'}, so that its density is not "
            "that of draws from it. Put numpyro.handlers.mask and numpyro.handlers.scale around observed sites only.",
        )
        checks.require(
            not isinstance(compat.innermost(fn), dist.Delta),
            f"The prior of {name!r} is one value (Delta). A fixed value belongs in numpyro.deterministic.",
        )
