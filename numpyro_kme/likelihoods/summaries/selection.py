r"""Statistics chosen among many: those that depend on the parameters, or on one that is chosen.

What is left out is independent of parameters and chosen statistics together, so that nothing is lost:
$p(x_S, x_R \mid \theta) = p(x_S \mid \theta) \, p(x_R)$.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from scipy.special import gammaincc

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen, listed
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.summaries.base import Learnt, LearntStatistics, Statistics

WAVES = 3
"""Functions of each number whose correlations are tested."""


@frozen
class SelectedStatistics(Statistics):
    r"""Statistics chosen among many that depend on the parameters, each as it is.

    A statistic is kept if a test of independence rejects that it says nothing about the parameters, or then that it has
    nothing to do with those that are kept: noise that is shared is worth knowing. The test is that of the
    Hilbert-Schmidt independence criterion with kernels of finite rank on ranks: with orthonormal $\phi_k(x)$ and
    $\psi_l(z)$, three cosines of the rank of each number and products of the first of two coordinates,
    $m \sum_{kl} \widehat{\mathrm{corr}}(\phi_k, \psi_l)^2$ is about chi-squared if they are independent.

    Args:
        level: Probability of keeping any statistic that depends on nothing, before those that have to do with it.
    References:
        Gretton et al. (2008), NIPS; Blum et al. (2013), Statistical Science 28, on selection and projection.
    """

    paper = "blum2013comparative"

    level: float = 0.01

    def __post_init__(self):
        checks.number("level", self.level)
        checks.require(0.0 < self.level < 1.0, f"`level` must lie between 0 and 1; got {self.level}.")

    def _fit(self, z, x, names):
        x = x.reshape(len(x), -1)
        waves = [orthonormal(cosines_of_ranks(column)) for column in x.T]
        of_parameters = [cosines_of_ranks(column) for column in z.T]
        products = [(a[:, :1] * b[:, :1]) for a, b in combinations(of_parameters, 2)]
        known, level = orthonormal(np.concatenate([*of_parameters, *products], axis=1)), self.level / x.shape[1]
        p_values = np.array([independence_p_value(own, known) for own in waves])
        kept = p_values < level
        checks.require(
            bool(kept.any()),
            f"None of the {x.shape[1]} statistics depends on the parameters, as far as {len(x)} simulations show: the "
            f"least p-value is {p_values.min():.2g}, and {level:.2g} is asked for. Simulate more, or look at the "
            "simulator.",
        )
        shared, further = kept, kept
        while further.any():
            known = orthonormal(np.concatenate([waves[i] for i in np.flatnonzero(shared)], axis=1))
            further = ~shared & np.array([independence_p_value(own, known) < level for own in waves])
            shared = shared | further
        chosen = tuple(np.flatnonzero(shared).tolist())
        statistics = Selected(p_values, chosen, tuple(map(str, chosen)), int(kept.sum()))
        return Learnt(statistics, statistics(x))


def cosines_of_ranks(column: np.ndarray) -> np.ndarray:
    """`cos(k pi u)` of the ranks `u` of numbers `(m,)`, between 0 and 1 and equal where these are, `(m, k)`."""
    _, which, counts = np.unique(column, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - 0.5 * counts)[which] / len(column)
    return np.cos(np.pi * np.outer(rank, np.arange(1, WAVES + 1)))


def orthonormal(columns: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span those of `(m, k)` less their means; fewer where these are not independent."""
    left, values, _ = np.linalg.svd(columns - columns.mean(axis=0), full_matrices=False)
    return left[:, values > 1e-8 * max(values[0], 1e-8)] if len(values) else left


def independence_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Test two sets of orthonormal functions of the same draws, `(m, k)` and `(m, l)`."""
    size = a.shape[1] * b.shape[1]
    return float(gammaincc(0.5 * size, 0.5 * len(a) * np.sum(np.square(a.T @ b)))) if size else 1.0


@register
class Selected(LearntStatistics):
    """Some of the statistics.

    Attributes:
        p_values: Of the test that a statistic is independent of the parameters, `(n_raw,)`.
        kept: Numbers of those that are kept (static).
        names: The same as text, or their names (static).
        dependent: How many of them depend on the parameters; the others do on these (static).
    """

    p_values: ArrayLike
    kept: tuple[int, ...] = field(metadata=dict(static=True))
    names: tuple[str, ...] = field(metadata=dict(static=True))
    dependent: int = field(metadata=dict(static=True))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Implement `LearntStatistics.__call__`."""
        return rows[:, list(self.kept)]

    def named(self, names: Sequence[str]) -> "Selected":
        """Implement `LearntStatistics.named`."""
        return replace(self, names=tuple(names[i] for i in self.kept)) if names else self

    def seen(self, entries: np.ndarray) -> np.ndarray:
        """Implement `LearntStatistics.seen`."""
        return entries[list(self.kept)]

    def describe(self) -> Mapping[str, Any]:
        """Implement `LearntStatistics.describe`."""
        total, shared = len(np.asarray(self.p_values)), len(self.kept) - self.dependent
        also = f", {shared} of which only depend on the others" if shared else ""
        return {"statistics": f"{len(self.kept)} of {total} kept: {listed(self.names)}{also}"}
