"""Rules that make a kernel on whole outputs from simulations, with scales in the units of these."""

import abc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import on_host
from numpyro_kme._core.saving import saveable
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic
from numpyro_kme.kernels.ragged import lengths
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.kernels.structured import EmpiricalMeasure

SETS = 100
"""Data sets whose distances give the length scale."""


class KernelRule(abc.ABC):
    """A way to choose a kernel on outputs of a simulator: `rule(x)` or `rule(x, targets)`.

    Where an engine or a form takes a kernel on outputs it takes such a rule, too, which sees the simulations.
    """

    @abc.abstractmethod
    def __call__(self, x: Any, targets: ArrayLike | None = None) -> Kernel:
        """A kernel for outputs `(m, *event)`, with rows of NaN where they end; `targets` `(m, p)` are the parameters of
        each, for rules that need them."""

    def candidates(self, x: Any, targets: ArrayLike | None = None) -> list[Kernel]:
        """Kernels of which the best is chosen, where something is learnt that has a held-out error; here the one."""
        return [self(x, targets)]


@shown
@saveable
@dataclass(frozen=True)
class EmpiricalMeasureRule(KernelRule):
    """`EmpiricalMeasure` on data sets `(longest, dim)` or `(longest,)`, with a Gaussian kernel inside.

    Args:
        length_scale: Rule for the length scale of the kernel inside, from rows of `SETS` data sets.
        multiple: `eps` in units of the median distance between the embeddings of `SETS` data sets. Weights of both
            signs need a narrow kernel: those of a wide one are a regression on all simulations, which knows the mean
            and not the variance. For statistics a wide one is better: candidates are this, and eight times this.
    """

    length_scale: LengthScaleRule = field(default_factory=MedianHeuristic)
    multiple: float = 0.5

    def __post_init__(self):
        checks.instance("length_scale", self.length_scale, LengthScaleRule, "a rule such as MedianHeuristic()")
        checks.positive_number("multiple", self.multiple)

    def __call__(self, x, targets=None):
        """The kernel."""
        few = np.asarray(x, np.float64)[:SETS]
        few = few.reshape(*few.shape[:2], -1)
        size = lengths(few)
        rows = np.concatenate([one[:n] for one, n in zip(few, size)])
        inner = Gaussian(self.length_scale(rows, None if targets is None else np.repeat(targets[:SETS], size, axis=0)))
        bare = EmpiricalMeasure(inner, 1.0)
        squared = on_host(EmpiricalMeasure.squared_mmd)(bare, bare.points(few))
        median = np.sqrt(np.median(squared[np.triu_indices(len(few), 1)]))
        checks.require(bool(median > 0), "At least half of the data sets are the same: give a kernel by hand.")
        return EmpiricalMeasure(inner, float(self.multiple * median))

    def candidates(self, x, targets=None):
        """With `eps`, and with eight times that."""
        kernel = self(x, targets)
        return [kernel, EmpiricalMeasure(kernel.inner, 8.0 * kernel.length_scale)]
