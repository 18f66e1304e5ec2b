"""The squared MMD by direct sums of kernel values, for data of any kind."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme.kernels import Kernel
from numpyro_kme.kernels.gram import split, squared_distances
from numpyro_kme.kernels.stationary import Stationary
from numpyro_kme.losses import mixing
from numpyro_kme.losses.base import EmbeddingObjective, join, num_points, vectors
from numpyro_kme.losses.generator import Generator

SOURCES = 512
"""Kernel values are formed for this many sources at a time."""

WIDER = 8.0
"""A smoothed loss has a kernel this many times as wide."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DirectMMD(EmbeddingObjective):
    r"""Squared MMD between weighted data and simulated points, up to the constant `|mu_w|^2` (see `offsets`).

    With `q = |mu_u|^2`, `s = <mu_w, mu_u>` and `L(q, s)` of `mixing.py`, the gradient pulls the derivative
    `v_m (2 L_q grad mu_u(y_m) + L_s grad mu_w(y_m))` by each simulated point back to `u`.
    """

    generator: Generator
    kernel: Kernel
    data: Any
    fit_proportion: bool = field(metadata=dict(static=True))

    def smoothed(self):
        """Widen a stationary kernel."""
        return replace(self, kernel=widened(self.kernel)) if isinstance(self.kernel, Stationary) else self

    def offsets(self, weights, extra=None):
        """The constants `|mu_w|^2`: `n^2` kernel values for all weights, with extra points `(n + T)^2` for each."""
        if extra is None:
            points = vectors(self.data)
            return jnp.sum(weights.T * potential(self.kernel, points, points, weights.T), axis=0)

        def one(row):
            points = vectors(join(self.data, row[1]))
            return row[0] @ potential(self.kernel, points, points, row[0])

        return jax.lax.map(one, (weights, extra))

    def value(self, reduced, u, nodes):
        """Squared MMD at `u`, without its constant."""
        data, weights = reduced
        y, v = vectors(self.generator.points(u, nodes)), self.generator.weights(nodes, weights)
        q = v @ potential(self.kernel, y, y, v)
        s = v @ potential(self.kernel, y, vectors(data), weights)
        return mixing.discrepancy(jnp.stack([self._energy(q, y, v), s]), self.fit_proportion)

    def slope(self, reduced, u, nodes):
        """Squared MMD and gradient."""
        data, weights = reduced
        v = self.generator.weights(nodes, weights)
        y, pull = jax.vjp(lambda t: vectors(self.generator.points(t, nodes)), u)
        own, own_force = field_at(self.kernel, y, y, v)
        cross, cross_force = field_at(self.kernel, y, vectors(data), weights)
        q, from_energy = jax.vjp(lambda raw, points: self._energy(raw, points, v), v @ own, y)
        value, (by_q, by_s), _ = mixing.derivatives(q, v @ cross, self.fit_proportion)
        by_raw, direct = from_energy(by_q)

        def total(own_part, cross_part, direct_part):
            scaled = v.reshape(-1, *[1] * (own_part.ndim - 1))
            return scaled * (2.0 * by_raw * own_part + by_s * cross_part) + direct_part

        return value, pull(jax.tree.map(total, own_force, cross_force, direct))[0]

    def gram(self, reduced, points, nodes):
        """Inner products of several embeddings with one another and with the data, from points `(R, M, ...)`."""
        data, weights = reduced
        v = self.generator.weights(nodes, weights)
        points = jax.vmap(vectors)(points)

        def row(y):
            return jax.lax.map(lambda z: v @ potential(self.kernel, y, z, v), points)

        s = jax.lax.map(lambda y: v @ potential(self.kernel, y, vectors(data), weights), points)
        return jax.lax.map(row, points), s, jnp.zeros(())

    def report(self, reduced, u, nodes):
        """Standard errors, and the mixing proportion if it is fitted; see `mixing.report`."""
        data, weights = reduced
        y, v = vectors(self.generator.points(u, nodes)), self.generator.weights(nodes, weights)
        own, cross = potential(self.kernel, y, y, v), potential(self.kernel, y, vectors(data), weights)
        q, coincident = self._energy(v @ own, y, v), self._coincident(y, v)
        kinds = dict(independent=self.generator.noise.independent, fit_proportion=self.fit_proportion)
        return mixing.report(q, v @ cross, (own, cross), v, coincident, num_points(self.data), **kinds)

    def _energy(self, q, y, v):
        return self.energy(q, self._coincident(y, v), v)

    def _coincident(self, y, v):
        return jnp.square(v) @ self.kernel.diagonal(y)


def widened(kernel: Any, times: float = WIDER) -> Any:
    """The same stationary kernel, so many times as wide."""
    return replace(kernel, length_scale=times * np.asarray(kernel.length_scale))


def potential(kernel: Kernel, y: Any, z: Any, c: jax.Array) -> jax.Array:
    """Witness values `sum_j c_j k(y_i, z_j)`, `(m,)` or `(m, R)` for `c (n,)` or `(n, R)`, in blocks of sources."""
    return _over_sources(lambda z, c: kernel.gram(y, z) @ c, z, c)


def field_at(kernel: Kernel, y: Any, z: Any, c: jax.Array) -> tuple[jax.Array, Any]:
    """Witness values `sum_j c_j k(y_i, z_j)` and their gradients in `y_i`, with the sources held still.

    For a stationary kernel `exp(g(s))`, `s = |(y - z) / l|^2`, gradients are two moments of `c_j k g'(s)`
    over the sources, so one matrix of exponentials serves both.
    """
    if isinstance(kernel, Stationary):
        return _over_sources(lambda z, c: _stationary_field(kernel, y, z, c), z, c)

    def block(z, c):
        values, pull = jax.vjp(lambda points: kernel.gram(points, z) @ c, y)
        return values, pull(jnp.ones_like(values))[0]

    return _over_sources(block, z, c)


def _stationary_field(kernel: Stationary, y: jax.Array, z: jax.Array, c: jax.Array):
    scale = jnp.broadcast_to(jnp.asarray(kernel.length_scale), (1, y.shape[1]))
    y, z = y / scale, z / scale
    log_k, slope = jax.jvp(kernel.log_profile, (s := squared_distances(y, z),), (jnp.ones_like(s),))
    k = jnp.exp(log_k)
    weighted = k * slope
    toward = (weighted @ c)[:, None] * y - weighted @ (c[:, None] * z)
    return k @ c, 2.0 * toward / scale


def _over_sources(block, z: Any, c: jax.Array):
    """Sum `block(z, c)` over blocks of the sources; the last one is padded with sources of weight zero."""
    n = num_points(z)
    if n <= SOURCES:
        return block(z, c)
    c = jnp.pad(c, ((0, -n % SOURCES), *[(0, 0)] * (c.ndim - 1))).reshape(-1, SOURCES, *c.shape[1:])
    z = split(z, SOURCES)
    start = jax.tree.map(
        lambda out: jnp.zeros(out.shape, out.dtype),
        jax.eval_shape(block, *jax.tree.map(lambda a: a[0], (z, c))),
    )
    return jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, block(*part)), None), start, (z, c))[0]
