"""The squared MMD near one parameter: in a few features, with errors of the nodes taken out by control variates."""

from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host, to_host
from numpyro_kme.kernels.base import num_points, register
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.losses import mixing
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import QuadratureNodes, join, vectors
from numpyro_kme.losses.mmd import DirectMMD

CHUNK = 512
"""Nodes of a correction that are simulated together."""


class CorrectedNodes(NamedTuple):
    """Quadrature nodes, and what the embedding of many more has beyond theirs to first order about the anchor.

    `correction` is `(r, 1 + p)`, a value and its derivatives; with covariates, for each of them, `(n, r, 1 + p)`.
    """

    values: Any
    weights: jax.Array
    correction: jax.Array


@register
class LocalMMD(WeightedObjective):
    r"""Squared MMD between weighted data and simulated points for parameters near an anchor `u_0`.

    The kernel's features `phi` are those of a pivoted Cholesky factor, `k(a, b) ~ phi(a)' phi(b)`, so that a model is a
    short vector, its embedding `m(u)`. That is measured with few nodes, and corrected by what many nodes say at the
    anchor:

        m(u) = m_few(u) + [m_many(u_0) - m_few(u_0)] + [m_many'(u_0) - m_few'(u_0)] (u - u_0).

    The correction is the same for all weights of the data and all steps of a minimisation. What is left of the error of
    the few nodes is of second order in `u - u_0`.

    Args:
        inner: The same loss by direct sums.
        features: `phi`.
        of_data: Features of the data, `(n, r)`.
        anchor: `u_0`, `(p,)`.
        times: How many times as many nodes stand behind the correction.

    Cost: `M r` kernel values an evaluation, in place of `M (n + M)`.
    References: Fine and Scheinberg (2001), JMLR 2; Glasserman (2003), Monte Carlo Methods in Financial Engineering, 4.1
        (control variates).
    """

    inner: DirectMMD
    features: LowRank
    of_data: Any
    anchor: Any
    times: Any

    @classmethod
    @on_host
    def of(cls, inner: DirectMMD, features: LowRank, anchor: np.ndarray, rank: int, size: int) -> "LocalMMD":
        """The loss without a correction yet, in the first `rank` features; zeros fill them up to `size`."""
        used = min(rank, features.rank)
        pivots = jax.tree.map(lambda leaf: leaf[np.arange(size) % used], features.pivots)
        inverse = np.zeros((size, size))
        factor = np.linalg.cholesky(features.at_pivots(pivots)[:used, :used])
        inverse[:used, :used] = np.linalg.solve(factor, np.eye(used))
        features = LowRank(features.kernel, pivots, inverse, np.zeros((0, size)), features.residual)
        return cls(inner, features, features.features(vectors(inner.data)), anchor, np.ones(()))

    @property
    def generator(self):
        """The simulator."""
        return self.inner.generator

    @property
    def data(self):
        """The data."""
        return self.inner.data

    def offsets(self, weights, extra=None):
        """As by direct sums."""
        return self.inner.offsets(weights, extra)

    def reduce(self, weights, extra=None):
        """Features of the weighted data, and the weights."""
        of_data = jnp.asarray(self.of_data)
        return weights @ join(of_data, None if extra is None else self._features(vectors(extra))), weights

    def value(self, reduced, u, nodes):
        """Squared MMD at `u`, without its constant."""
        q, s, *_ = self._energies(reduced, u, nodes)
        return mixing.discrepancy(jnp.stack([q, s]), self.inner.fit_proportion)

    def report(self, reduced, u, nodes):
        """As by direct sums; the standard error is that of the many nodes."""
        q, s, y, v, own = self._energies(reduced, u, nodes)
        own_witness, cross = (self._features(y) @ jnp.stack([own, reduced[0]], axis=1)).T
        kinds = self.generator.noise.independent, self.inner.fit_proportion
        coincident = jnp.square(v) @ self.inner.kernel.diagonal(y)
        found = mixing.report(q, s, (own_witness, cross), v, coincident, *kinds)
        return found | {"loss_error": found["loss_error"] / jnp.sqrt(self.times)}

    def embedding(self, reduced, u, nodes) -> tuple[Any, jax.Array, jax.Array]:
        """Simulated points, their weights, and the corrected features `(r,)` of the model."""
        weights = reduced[1]
        y, v = vectors(self.generator.points(u, nodes)), self.generator.weights(nodes, weights)
        own, correction = (
            self.features.inverse @ (self.inner.kernel.gram(self.features.pivots, y) @ v),
            nodes.correction,
        )
        if self.generator.covariates is not None:
            of_data = weights[: len(correction)]
            correction = jnp.tensordot(of_data / jnp.sum(of_data), correction, 1)
        return y, v, own + correction @ jnp.concatenate([jnp.ones(1), u - self.anchor])

    def expansion(self, nodes: QuadratureNodes) -> jax.Array:
        """Features of the model at the anchor by some nodes, and their derivatives, as `CorrectedNodes.correction`."""

        def mean(u):
            values = nodes.weights[:, None] * self._features(vectors(self.generator.points(u, nodes)))
            if self.generator.covariates is None:
                return jnp.sum(values, axis=0)
            n = num_points(self.generator.covariates)
            return n * jax.ops.segment_sum(values, nodes.values[0], n)

        value, jacobian = mean(self.anchor), jax.jacfwd(mean)(self.anchor)
        return jnp.concatenate([value[..., None], jacobian], axis=-1)

    def corrected(self, few: QuadratureNodes, many: np.ndarray, times: float) -> tuple["LocalMMD", CorrectedNodes]:
        """Correct sets of few nodes by the `expansions` of sets of many, and say how many times as many these are."""
        correction = many.mean(axis=0) - self.expansions(few)
        return replace(self, times=np.asarray(float(times))), CorrectedNodes(*few, correction)

    @on_host
    def expansions(self, nodes: QuadratureNodes) -> np.ndarray:
        """`expansion` for each of several sets of nodes, in chunks."""

        def of_set(number):
            values, weights = jax.tree.map(lambda leaf: leaf[number], nodes)
            total: Any = 0.0
            for first in range(0, len(weights), CHUNK):
                index = np.arange(first, first + CHUNK)
                chosen = np.minimum(index, len(weights) - 1)
                chunk = jax.tree.map(itemgetter(chosen), QuadratureNodes(values, weights))
                chunk = chunk._replace(weights=chunk.weights * (index < len(weights)))
                total = total + to_host(_expansion(self, chunk))
            return total

        return np.stack([of_set(number) for number in range(len(nodes.weights))])

    def _features(self, points):
        return self.inner.kernel.gram(points, self.features.pivots) @ self.features.inverse.T

    def _energies(self, reduced, u, nodes):
        y, v, own = self.embedding(reduced, u, nodes)
        coincident = jnp.square(v) @ self.inner.kernel.diagonal(y) / self.times
        return self.inner.energy(own @ own, coincident, v / jnp.sqrt(self.times)), own @ reduced[0], y, v, own


_expansion = jax.jit(LocalMMD.expansion)
