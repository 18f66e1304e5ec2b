"""The sites of a model: latents, and what comes from simulators."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpyro.distributions as dist

from numpyro_kme._core import checks
from numpyro_kme.kernels.ragged import lengths
from numpyro_kme.models.simulator import Simulator


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
        checks.require(
            not self.simulator.ragged or bool(lengths(seen.reshape(-1, *self.simulator.event_shape)).all()),
            f"The observation at {name!r} has no row: NaN at its end says that it ends there (ragged=True), and its "
            "first row is NaN. Leave it out by numpyro.handlers.mask, or give at least one row.",
        )
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


def require_known(name: str, simulator: Simulator) -> None:
    """Raise where an argument of the simulator at a site has NaN, of those that are not traced."""
    for number, param in enumerate(simulator.params):
        lost = np.argwhere(np.isnan(np.asarray(param))).tolist() if checks.is_concrete(param) else []
        checks.require(
            not lost,
            f"Argument {number} of the simulator at {name!r}, counted from 0, has {len(lost)} NaN among its "
            f"{np.size(param)} numbers, the first at {tuple(lost[0]) if lost else ()}: covariates have to be known. "
            "Leave these trials out, or give what is missing a prior; in an observation NaN means not observed.",
        )


def require_whole_calls(name: str, simulator: Simulator, site: Mapping[str, Any]) -> None:
    """Raise where a mask has entries that belong to no call of the simulator at an observed site of a trace: it counts
    the one observation several times."""
    shape, seen = site["fn"].shape(), np.shape(site["value"])
    batch, lead = (one[: len(one) - simulator.event_dim] for one in (shape, seen))
    known = {-i for of in (lead, simulator.groups) for i in range(1, len(of) + 1) if of[-i] > 1}
    known |= {frame.dim for frame in site["cond_indep_stack"]}
    checks.require(
        all(size == 1 or -i in known for i, size in enumerate(batch[::-1], start=1)),
        f"A mask or `expand` at {name!r} makes the observation of shape {seen} count as shape {shape}. Masks leave out "
        "whole calls of a simulator under plates: for entries that were not observed write NaN in the observation.",
    )
