"""Samples of the Dirichlet-process posterior: random weights on the data and on points of a centering measure."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, programs
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import on_host
from numpyro_kme._core.keys import data_of, fold_in, known, split, uniform
from numpyro_kme._core.programs import jitted
from numpyro_kme.kernels.base import num_points, register
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import BLOCK

PILOT = 2**30
"""Replicates numbered from here on set the scale of the others: it must not depend on how many there are."""

FEW = 1000
"""Data up to this many are weighted by NumPy: as fast as a compiled program, and nothing is compiled."""


@register
class Reweightings:
    """Reweightings of the data, one a row: each makes a problem for the batched optimisation.

    Attributes:
        weights: Data weights, `(R, n)` or `(R, n + T)`.
        extra: Centering points, `(R, T, ...)`, or nothing.
        sets: Number of the set of quadrature nodes that each uses, `(R,)`.
    """

    weights: np.ndarray
    extra: Any
    sets: np.ndarray

    def __len__(self) -> int:
        return len(self.sets)

    def rows(self, index: np.ndarray) -> "Reweightings":
        """Select rows."""
        return jax.tree.map(lambda leaf: leaf[index], self)

    def of_some_data(self, chosen: np.ndarray, n: int) -> "Reweightings":
        """The same of some of the `n` data, by number, with the first node set."""
        weights = self.weights[:, np.concatenate([chosen, np.arange(n, self.weights.shape[1])])]
        return Reweightings(weights / weights.sum(axis=1, keepdims=True), self.extra, np.zeros(len(self), int))


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
        checks.require(
            0.0 <= self.concentration < np.inf,
            f"`concentration` must be finite and not negative; got {self.concentration}. Use 0 for no prior.",
        )
        checks.require(
            self.concentration == 0.0 or self.centering is not None,
            f"`centering` must be given when `concentration` is positive; got concentration {self.concentration}. Pass "
            "the measure that the Dirichlet process is centred on, or set concentration to 0.",
        )
        checks.whole("truncation", self.truncation, 1)

    def weights(self, rng_key: jax.Array, replicates: jax.Array, n: int) -> jax.Array:
        """Sample data weights, `(R, n)` or `(R, n + T)`; those of replicate `b` depend on the key and `b` alone."""
        shape = jnp.ones(n)
        if self.concentration:
            shape = jnp.concatenate([shape, jnp.full(self.truncation, self.concentration / self.truncation)])

        def one(replicate):
            key = jax.random.fold_in(rng_key, replicate)
            if not self.concentration:
                unnormalised = jax.random.exponential(key, (n,))
                return unnormalised / jnp.sum(unnormalised)
            return jax.nn.softmax(jax.random.loggamma(key, shape))

        return jax.lax.map(one, replicates)

    def points(self, rng_key: jax.Array, replicates: np.ndarray, data: Any) -> Any:
        """Sample centering points `(R, T, ...)` in float64; nothing when `concentration` is 0. Shapes are checked."""
        if not self.concentration:
            return None
        drawn = on_host(_points)(self, rng_key, replicates)
        have = [leaf.shape[1:] for leaf in jax.tree.leaves(drawn)]
        want = [(self.truncation, *leaf.shape[1:]) for leaf in jax.tree.leaves(data)]
        checks.require(
            have == want,
            f"`centering` drew points of shape {have} for {self.truncation} draws; the data ask for {want}. Give a "
            "measure on single data points.",
        )
        return jax.tree.map(lambda leaf: leaf.astype(np.float64), drawn)


def draw_reweightings(
    rng_key: jax.Array, objective: WeightedObjective, process: DirichletProcess, ids: np.ndarray, sets: int
) -> Reweightings:
    """Sample the weights and centering points of replicates `ids`, with the node set of each, at most `sets - 1`."""
    weights_key, points_key = split(rng_key)
    extra = process.points(points_key, ids, objective.data)
    weights = draw_weights(process, weights_key, ids, objective.data)
    return Reweightings(weights, extra, np.minimum(1 + ids // BLOCK, sets - 1))


@on_host
def draw_weights(process: DirichletProcess, rng_key: jax.Array, replicates: np.ndarray, data: Any) -> np.ndarray:
    """Weights of the given replicates as a float64 array on the host; those of few data need no program."""
    words, n = fold_in(data_of(rng_key), replicates), num_points(data)
    if known(words) and n <= FEW and not process.concentration:
        return programs.in_blocks(lambda block: _exponential(block, n), words, BLOCK)
    return programs.in_blocks(lambda block: _weights(process, rng_key, block, n), replicates, BLOCK)


def _exponential(words, n):
    """As `DirichletProcess.weights`, by NumPy."""
    unnormalised = -np.log1p(-uniform(words, n))
    return unnormalised / unnormalised.sum(axis=1, keepdims=True)


_weights = jitted(DirichletProcess.weights, static_argnums=(0, 3))


@partial(jitted, static_argnums=0)
def _points(process, rng_key, replicates):
    return jax.lax.map(lambda b: process.centering(jax.random.fold_in(rng_key, b), process.truncation), replicates)
