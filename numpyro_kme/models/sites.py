"""What a model with simulators consists of, site by site."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpyro.distributions as dist

from numpyro_kme._core import checks
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
        mask: Which calls count, of the simulator's batch shape; see `numpyro.handlers.mask`. Simulations have all of
            them.
        scale: Powers that the likelihoods of the calls are raised to, `()` or broadcast to the batch shape of `fn`; see
            `numpyro.handlers.scale`.
    """

    simulator: Simulator
    fn: dist.Distribution
    plates: Mapping[str, int]
    observed: np.ndarray | None
    parents: tuple[str, ...]
    mask: np.ndarray
    scale: np.ndarray

    @property
    def weighted(self) -> bool:
        """Whether calls are masked, or their likelihoods raised to a power other than 1."""
        return not self.mask.all() or bool(np.any(self.scale != 1.0))

    def counted(self, x: np.ndarray, lead: int = 0) -> np.ndarray:
        """Outputs `(*lead, *batch, *event)` without the masked ones: as they are if there are none, else
        `(*lead, calls, *event)`."""
        return x if self.mask.all() else x[(slice(None),) * lead + (self.mask,)]

    def check_observed(self, name: str) -> None:
        """That an observation is one that the simulator could give: finite, and whole where its outputs are."""
        seen = self.counted(np.asarray(self.observed))
        checks.finite(f"observation at {name!r}", seen)
        numbers = np.ravel(seen) if self.simulator.dtype.kind in "biu" else np.zeros(0)
        broken = numbers[numbers != np.round(numbers)]
        checks.require(
            not broken.size,
            f"The observation at {name!r} holds {', '.join(f'{number:g}' for number in broken[:3])}, and its simulator "
            f"`{self.simulator.name}` gives whole numbers ({self.simulator.dtype}). Observe whole numbers, or let the "
            "simulator return what was averaged.",
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
