"""Samples of the Dirichlet-process posterior: random weights on the data and on points of a centering measure."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks, data_of, fold_in, frozen, jitted, programs, split
from numpyro_kme.kernels.base import num_points, register

PILOT = 2**30
"""Replicates numbered from here on say where to look for the others."""


@register
class Reweightings:
    """Reweightings of the data, one a row.

    Attributes:
        weights: Data weights, `(R, n)` or `(R, n + T)`.
        extra: Centering points, `(R, T, ...)`, or nothing.
    """

    weights: np.ndarray
    extra: Any

    def rows(self, index: np.ndarray) -> "Reweightings":
        """Select rows."""
        return jax.tree.map(lambda leaf: leaf[index], self)


@frozen
class DirichletProcess:
    r"""A Dirichlet-process prior `DP(alpha, F)` on the distribution of the data, and its posterior by a truncated
    bootstrap.

    A posterior sample is `sum_i w_i delta(x_i) + sum_k w~_k delta(x~_k)` with `x~_1..T ~ F` and
    `(w, w~) ~ Dirichlet(1, .., 1, alpha/T, .., alpha/T)`; with `concentration = 0`, `Dirichlet(1, .., 1)` on the data
    alone.

    Args:
        concentration: `alpha >= 0`, how many data points the prior is worth.
        centering: `(rng_key, num) -> (num, ...)` samples of `F`; needed when `concentration` is positive.
        truncation: `T`, samples of `F` in each replicate.

    References: Lyddon, Walker and Holmes (2018); Fong, Lyddon and Holmes (2019), ICML; Dellaporta, Knoblauch,
        Damoulas and Briol (2022), AISTATS.
    """

    concentration: float = 0.0
    centering: Callable[[jax.Array, int], Any] | None = None
    truncation: int = 100

    def __post_init__(self):
        checks.non_negative("concentration", self.concentration)
        checks.require(
            self.concentration == 0.0 or self.centering is not None,
            f"`centering` must be given when `concentration` is positive; got concentration {self.concentration}. Pass "
            "the measure that the Dirichlet process is centred on, or set concentration to 0.",
        )
        checks.whole("truncation", self.truncation, 1)

    def weights(self, rng_key: jax.Array, replicates: np.ndarray, n: int) -> np.ndarray:
        """Sample data weights, `(R, n)` or `(R, n + T)`; those of replicate `b` depend on the key and `b` alone."""
        rngs = [np.random.default_rng(words) for words in fold_in(data_of(rng_key), replicates)]
        found = np.stack([rng.standard_exponential(n) for rng in rngs])
        if self.concentration:
            shape = self.concentration / self.truncation
            further = np.stack([rng.standard_gamma(shape, self.truncation) for rng in rngs])
            found = np.concatenate([found, further], axis=1)
        return found / found.sum(axis=1, keepdims=True)

    def points(self, rng_key: jax.Array, replicates: np.ndarray, data: Any) -> Any:
        """Sample centering points `(R, T, ...)`; nothing when `concentration` is 0. Shapes are checked."""
        if not self.concentration:
            return None
        drawn = programs.in_blocks(partial(_points, self, rng_key), replicates)
        have = [leaf.shape[1:] for leaf in jax.tree.leaves(drawn)]
        want = [(self.truncation, *leaf.shape[1:]) for leaf in jax.tree.leaves(data)]
        checks.require(
            have == want,
            f"`centering` drew points of shape {have} for {self.truncation} draws; the data ask for {want}. Give a "
            "measure on single data points.",
        )
        return jax.tree.map(lambda leaf: leaf.astype(np.float64), drawn)


def draw_reweightings(rng_key: jax.Array, data: Any, process: DirichletProcess, ids: np.ndarray) -> Reweightings:
    """Sample the weights and centering points of replicates by number."""
    weights_key, points_key = split(rng_key)
    return Reweightings(process.weights(weights_key, ids, num_points(data)), process.points(points_key, ids, data))


def with_full_data(reweightings: Reweightings, n: int) -> Reweightings:
    """The `n` data as they are in front, equally weighted, then the reweightings."""
    first = np.where(np.arange(reweightings.weights.shape[1]) < n, 1.0 / n, 0.0)
    extra = jax.tree.map(lambda leaf: np.concatenate([leaf[:1], leaf]), reweightings.extra)
    return Reweightings(np.concatenate([first[None], reweightings.weights]), extra)


@partial(jitted, static_argnums=0)
def _points(process, rng_key, replicates):
    return jax.lax.map(lambda b: process.centering(jax.random.fold_in(rng_key, b), process.truncation), replicates)
