"""The sites of a model: latents, what comes from simulators, and one call of a simulator as a function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from numpyro_kme._core import checks, compat, pieces
from numpyro_kme.kernels.data_sets import beyond_end, lengths
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import call_back


def dimensions(name: str, site: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the dimensions of a site of a trace: of plates along it, and `infer={"event_dims": names}` of its event,
    else `<name>_dim_<i>`, as ArviZ has them."""
    shape, plates = np.shape(site["value"]), site["cond_indep_stack"]
    depth = max((-frame.dim for frame in plates), default=0)  # of a deterministic site, whose event is not known
    batch = len(shape) - site["fn"].event_dim if "fn" in site else depth
    found = [f"{name}_dim_{i}" for i in range(len(shape))]
    events = tuple(site.get("infer", {}).get("event_dims", ()))
    if len(events) == len(shape) - batch:
        found[batch:] = events
    for frame in plates:
        own = batch + frame.dim
        if 0 <= own < len(shape) and shape[own] == frame.size and frame.name not in ("chain", "draw"):
            found[own] = frame.name
    return tuple(found)


@dataclass(frozen=True)
class Latent:
    """A site that is neither observed nor simulated.

    Attributes:
        fn: Its prior; where it has parents, the prior at one draw of them.
        value: One prior draw.
        parents: The latents that `fn` depends on; itself where it is drawn inside `scan`.
        dims: Names of the dimensions of its value (`dimensions`).
    """

    fn: dist.Distribution
    value: np.ndarray
    parents: tuple[str, ...]
    dims: tuple[str, ...]

    @property
    def discrete(self) -> bool:
        """Tell whether it takes whole numbers or truth values."""
        return bool(self.fn.support.is_discrete)


@dataclass(frozen=True)
class SimulatorSite:
    """A site that comes from a simulator.

    Attributes:
        simulator: The `Simulator` at the arguments of one prior draw; its batch shape has one element for
            each call.
        fn: Distribution of the site: the simulator, perhaps masked or with its batch dimensions made event
            dimensions.
        dims: Names of the dimensions of its value (`dimensions`).
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
    dims: tuple[str, ...]
    observed: np.ndarray | None
    parents: tuple[str, ...]
    mask: np.ndarray
    unmasked: np.ndarray
    missing: int
    censored: int
    scale: np.ndarray

    @classmethod
    def of(cls, name: str, simulator: Simulator, site: Mapping[str, Any], parents: tuple[str, ...]) -> "SimulatorSite":
        """Take a simulator's site of a trace apart.

        Raises:
            TypeError: If the observation holds no real numbers.
            ValueError: If it has not the shape of what the simulator gives, or an argument has NaN.
        """
        value, observed = np.asarray(site["value"]), bool(site["is_observed"])
        checks.require(
            value.dtype.kind in "bfiu",
            f"The observation at {name!r} has dtype {value.dtype}; it must hold real numbers. Give real and imaginary "
            "parts as numbers of their own, and let the simulator return them so.",
            TypeError,
        )
        require_whole_calls(name, simulator, site)
        require_shape(name, simulator, site)
        event = tuple(range(-simulator.event_dim, 0))
        unmasked = np.broadcast_to(compat.mask(site["fn"]), simulator.batch_shape)
        lost = np.isnan(value) & np.expand_dims(unmasked, event)
        inside = np.zeros(value.shape, bool)
        if simulator.ragged:  # NaN at the end of an output is its end
            lost &= ~beyond_end(value.reshape(-1, *simulator.event_shape)).reshape(value.shape)
        elif simulator.bounds is not None:
            low, high = simulator.bounds
            checks.require(
                checks.expands(low.shape, value.shape) and checks.expands(high.shape, value.shape),
                f"The ends of `within` at {name!r} have the shapes {low.shape} and {high.shape}, which must broadcast "
                f"to that of the observation, {value.shape}.",
            )
            inside = lost & np.broadcast_to(np.isfinite(low) | np.isfinite(high), value.shape)
            rounded, *ends = (np.asarray(one, np.float32) for one in (value, low, high))
            same = np.any([rounded == end for end in ends], axis=0) & np.expand_dims(unmasked, event)
            at_an_end = int(same.sum()) if simulator.dtype.kind == "f" else 0
            if observed and at_an_end:
                checks.warn(
                    f"The observation at {name!r} has {at_an_end} values that are exactly an end of `within`. They are "
                    "taken as measured. If they only say that the value lies beyond the end, pass NaN for them."
                )
        mask = unmasked if simulator.ragged else unmasked & ~(lost & ~inside).all(axis=event)
        dims = dimensions(name, site)
        scale, numbers = np.asarray(compat.scale(site)), (int(lost.sum()), int(inside.sum()))
        return cls(simulator, site["fn"], dims, value if observed else None, parents, mask, unmasked, *numbers, scale)

    @property
    def single(self) -> bool:
        """Tell whether there is one observation, neither masked nor scaled, of entries that are known or not."""
        return not (self.simulator.batch_shape or self.weighted or self.censored)

    @property
    def weighted(self) -> bool:
        """Tell whether calls are masked, or their likelihoods raised to a power other than 1."""
        return not self.mask.all() or bool(np.any(self.scale != 1.0))

    @property
    def alike(self) -> bool:
        """Tell whether all calls that count have the same parameters, and the same of their entries were observed."""
        if self.observed is None or self.censored or prod(self.simulator.groups) > 1:
            return False
        known = ~np.isnan(self.counted(self.observed).reshape(-1, *self.simulator.event_shape))
        return len(known) > 0 and bool(known[0].any() and (known == known[:1]).all())

    def counted(self, x: np.ndarray, lead: int = 0) -> np.ndarray:
        """Outputs `(*lead, *batch, *event)` without the masked ones: as they are if there are none, else
        `(*lead, calls, *event)`."""
        return x if self.mask.all() else x[(slice(None),) * lead + (self.mask,)]

    def check_observed(self, name: str) -> None:
        """That an observation is one that the simulator could give, where it is not NaN: finite, and whole where its
        outputs are."""
        observed = self.counted(np.asarray(self.observed))
        checks.require(
            not self.simulator.ragged or bool(lengths(observed.reshape(-1, *self.simulator.event_shape)).all()),
            f"The observation at {name!r} has no row: NaN at its end says that it ends there (ragged=True), and its "
            "first row is NaN. Leave it out by numpyro.handlers.mask, or give at least one row.",
        )
        checks.require(
            not self.missing or bool(self.mask.any()),
            f"Nothing was observed at {name!r}: all {self.missing} entries that count are NaN. The posterior is the "
            "prior; leave the observation out of the model, or give the entries that were observed.",
        )
        observed = observed[~np.isnan(observed)]
        checks.sound(f"observation at {name!r}", observed)
        numbers = observed if self.simulator.dtype.kind in "biu" else np.zeros(0)
        broken = numbers[numbers != np.round(numbers)]
        checks.require(
            not broken.size,
            f"The observation at {name!r} holds {', '.join(map('{:g}'.format, broken[:3]))}, and its simulator "
            f"`{self.simulator.name}` gives whole numbers ({self.simulator.dtype}). Observe such or simulate averages.",
        )

    def require_no_gaps(self, name: str, which: str) -> None:
        """Raise where `which` cannot serve outputs of any length that have NaN before their end."""
        checks.require(
            not (self.simulator.ragged and self.missing),
            f"The observation at {name!r} has {self.missing} entries that are NaN before its end (ragged=True), which "
            f"{which} cannot leave out of simulations, too; KELFI does for a single output. Where rows have no order "
            "or hold their times leave them out by hand; otherwise interpolate, in the simulator, too.",
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
        varying = np.array((1,) * (len(batch) - len(groups)) + groups, int) > 1
        axes = 1 + np.flatnonzero(varying)
        moved = np.moveaxis(x, axes, range(1, 1 + len(axes)))
        shape = (-1, *np.array(batch, int)[~varying], *self.simulator.event_shape)
        return arguments.reshape(-1, arguments.shape[-1]), moved.reshape(shape)


def observed_simulator(msg: Mapping[str, Any]) -> Simulator | None:
    """The simulator of a message of NumPyro, where that is of an observed site which has one."""
    simulator = compat.innermost(msg["fn"]) if msg["type"] == "sample" and msg["is_observed"] else None
    return simulator if isinstance(simulator, Simulator) else None


def require_shape(name: str, simulator: Simulator, site: Mapping[str, Any], enumerated: bool = False) -> None:
    """Raise where the value of a site of a trace has not the shape of what its simulator gives; values of latents that
    are enumerated may stand along dimensions in front of the plates."""
    expected, shape = simulator.shape(), np.shape(site["value"])
    plates = max((-frame.dim for frame in site["cond_indep_stack"]), default=0) + simulator.event_dim
    if shape == expected or (enumerated and shape == expected[max(len(expected) - plates, 0) :]):
        return
    if prod(shape) == prod(expected):
        advice = f"Observe it as .reshape({expected})."
    elif simulator.batch_shape and shape == simulator.event_shape != ():
        advice = "Under a plate each call makes one of its elements: return that, or take the plate away."
    elif shape[len(shape) - len(expected) :] == expected:
        advice = "Independent draws belong under a plate; a series inside `scan` has to be one call of a simulator."
    else:
        advice = "Let the simulator return what is observed, in its shape."
    what = "The observation at" if site["is_observed"] else "Site"
    raise checks.explained(
        f"{what} {name!r} has shape {shape}; the simulator `{simulator.name}` gives shape {expected}"
        f"{', or fewer rows' if simulator.ragged else ''}. {advice}"
    )


def require_whole_calls(name: str, simulator: Simulator, site: Mapping[str, Any]) -> None:
    """Raise where an argument of the simulator at a site of a trace has NaN, of those that are not traced, and where a
    mask has entries that belong to no call: it counts the one observation several times."""
    for parameter, param in zip(simulator.parameters, simulator.params):
        lost = np.argwhere(np.isnan(np.asarray(param))).tolist() if checks.is_concrete(param) else []
        checks.require(
            not lost,
            f"Argument `{parameter}` of the simulator at {name!r} has {len(lost)} NaN, the first at "
            f"{tuple(lost[0]) if lost else ()}: covariates have to be known. Leave trials out, or give it a prior.",
        )
    if not site["is_observed"]:
        return
    shape, seen, event = site["fn"].shape(), np.shape(site["value"]), simulator.event_dim
    known = {frame.dim for frame in site["cond_indep_stack"]}
    for lead in (seen[: len(seen) - event], simulator.groups):
        known |= {axis for axis in range(-len(lead), 0) if lead[axis] > 1}
    batch = shape[: len(shape) - event]
    checks.require(
        {axis for axis in range(-len(batch), 0) if batch[axis] != 1} <= known,
        f"A mask or `expand` at {name!r} makes the observation of shape {seen} count as shape {shape}. Masks leave out "
        "whole calls of a simulator under plates: for entries that were not observed write NaN in the observation.",
    )


@dataclass(frozen=True)
class Call:
    """One call of a simulator.

    Attributes:
        fn: `(noise, *params) -> one event`; noise is a key, or a value of a declared distribution.
        shapes, dtypes: Of its parameters.
        declared: Shape and type of the output of a black box; None for a function in JAX.
    """

    fn: Callable
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    declared: tuple[tuple[int, ...], np.dtype] | None = None

    @classmethod
    def of(cls, simulator: Simulator) -> "Call":
        """A call of a simulator."""
        declared = (simulator.event_shape, simulator.dtype) if simulator.black_box else None
        dtypes = tuple(str(param.dtype) for param in simulator.params)
        return cls(simulator.fn, simulator.call_shapes, dtypes, declared)

    def params(self, arguments: Any) -> list[Any]:
        """Parameters, from flattened arguments `(A,)`."""
        return [block.astype(dtype) for block, dtype in zip(pieces(arguments, self.shapes), self.dtypes)]

    @property
    def zeros(self) -> list[np.ndarray]:
        """Parameters of the right shapes and types."""
        return [np.zeros(shape, dtype) for shape, dtype in zip(self.shapes, self.dtypes)]

    def __call__(self, arguments: Any, noise: Any) -> jax.Array:
        """Simulate one point."""
        params = self.params(arguments)
        if self.declared is not None:
            point = call_back(self.fn, *self.declared, jax.random.key_data(noise), params)
        else:
            with compat.shielded():
                point = self.fn(noise, *params)
        return jnp.asarray(point, jnp.result_type(float))
