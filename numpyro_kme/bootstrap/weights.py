"""Draws from the Dirichlet-process posterior: random weights on the data and on draws of a centering
measure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.losses.base import num_points
from numpyro_kme.losses.generator import BLOCK


@dataclass(frozen=True)
class DirichletProcess:
    r"""A Dirichlet-process prior `DP(alpha, F)` on the law of the data, and its posterior by a truncated
    bootstrap.

    A posterior draw is `sum_i w_i delta(x_i) + sum_k w~_k delta(x~_k)` with `x~_1..T ~ F` and
    `(w, w~) ~ Dirichlet(1, .., 1, alpha/T, .., alpha/T)`; with `concentration = 0`, `Dirichlet(1, .., 1)`
    on the data alone.

    Args:
        concentration: `alpha >= 0`, how many data points the prior is worth.
        centering: `(rng_key, num) -> (num, ...)` draws from `F`; needed when `concentration` is positive.
        truncation: `T`, draws of `F` in each replicate.

    References: Lyddon, Walker and Holmes (2018); Fong, Lyddon and Holmes (2019), ICML; Dellaporta et al.
        (2022), AISTATS.
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
            f"`centering` must be given when `concentration` is positive; got concentration "
            f"{self.concentration}. Pass the measure "
            "that the Dirichlet process is centred on, or set concentration to 0.",
        )
        checks.whole("truncation", self.truncation, 1)

    def weights(self, rng_key: jax.Array, replicates: jax.Array, n: int) -> jax.Array:
        """Draw weights on `n` data points, `(R, n)` or `(R, n + T)`; replicate `b` depends on the key and
        `b` alone."""
        shape = jnp.ones(n)
        if self.concentration:
            shape = jnp.concatenate([shape, jnp.full(self.truncation, self.concentration / self.truncation)])

        def one(replicate):
            key = jax.random.fold_in(rng_key, replicate)
            if not self.concentration:
                mass = jax.random.exponential(key, (n,))
                return mass / jnp.sum(mass)
            return jax.nn.softmax(jax.random.loggamma(key, shape))

        return jax.lax.map(one, replicates)

    def points(self, rng_key: jax.Array, replicates: np.ndarray, data: Any) -> Any:
        """Draw centering points `(R, T, ...)` in float64; nothing when `concentration` is 0. Shapes are
        checked."""
        if not self.concentration:
            return None
        drawn = on_host(_points)(self, rng_key, replicates)
        have = [leaf.shape[1:] for leaf in jax.tree.leaves(drawn)]
        want = [(self.truncation, *leaf.shape[1:]) for leaf in jax.tree.leaves(data)]
        checks.require(
            have == want,
            f"`centering` drew points of shape {have} for {self.truncation} draws; the data ask for "
            f"{want}. Give a measure on single "
            "data points.",
        )
        return jax.tree.map(lambda leaf: leaf.astype(np.float64), drawn)


@on_host
def draw_weights(process: DirichletProcess, rng_key: jax.Array, replicates: np.ndarray, data: Any) -> np.ndarray:
    """Weights of the given replicates as a float64 array on the host."""
    padded = np.pad(replicates, (0, -len(replicates) % BLOCK), mode="edge").reshape(-1, BLOCK)
    drawn = [np.asarray(_weights(process, rng_key, block, num_points(data))) for block in padded]
    return np.concatenate(drawn)[: len(replicates)]


@partial(jax.jit, static_argnums=(0, 3))
def _weights(process, rng_key, replicates, n):
    return process.weights(rng_key, replicates, n)


@partial(jax.jit, static_argnums=0)
def _points(process, rng_key, replicates):
    return jax.lax.map(lambda b: process.centering(jax.random.fold_in(rng_key, b), process.truncation), replicates)
