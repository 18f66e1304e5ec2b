"""The squared MMD near one parameter: in a few features, with errors of the nodes taken out by control variates."""

from dataclasses import replace
from operator import itemgetter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host, to_host
from numpyro_kme._core.programs import jitted
from numpyro_kme.kernels import by_numpy
from numpyro_kme.kernels.base import Kernel, num_points, register
from numpyro_kme.kernels.low_rank import blocked
from numpyro_kme.losses import mixing
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import QuadratureNodes, join, vectors
from numpyro_kme.losses.mmd import DirectMMD

CHUNK = 512
"""Nodes of a correction that are simulated together."""


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
        pivots: Points `P`, `(r, ...)`.
        inverse: `W`, `(r, r)`, the inverse of a Cholesky factor of `k(P, P)`: `phi(t) = W k(P, t)`.
        of_data: Features of the data, `(n, r)`.
        anchor: `u_0`, `(p,)`.
        times: How many times as many nodes stand behind the correction.

    Cost: `M r` kernel values an evaluation, in place of `M (n + M)`.
    References: Fine and Scheinberg (2001), JMLR 2; Glasserman (2003), Monte Carlo Methods in Financial Engineering, 4.1
        (control variates).
    """

    hessian_by_slopes: ClassVar[bool] = True
    inner: DirectMMD
    pivots: Any
    inverse: Any
    of_data: Any
    anchor: Any
    times: Any

    @classmethod
    @on_host
    def of(cls, inner: DirectMMD, pivots: Any, anchor: np.ndarray, size: int) -> "LocalMMD":
        """The loss without a correction yet, in features of some pivots; zeros fill them up to `size`."""
        used = num_points(pivots)
        inverse = np.zeros((size, size))
        inverse[:used, :used] = np.linalg.solve(np.linalg.cholesky(by_numpy.gram(inner.kernel, pivots)), np.eye(used))
        pivots = jax.tree.map(lambda leaf: leaf[np.arange(size) % used], pivots)
        of_data = by_numpy.gram(inner.kernel, vectors(inner.data), pivots) @ inverse.T
        return cls(inner, pivots, inverse, of_data, anchor, np.ones(()))

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
        return self._loss(reduced, nodes, *self._measured(reduced, u, nodes))

    def report(self, reduced, u, nodes):
        """As by direct sums; the standard error is that of the many nodes."""
        own, coincident = self._measured(reduced, u, nodes)
        q, s = self._energies(reduced, nodes, own, coincident)
        y, v = vectors(self.generator.points(u, nodes)), self.generator.weights(nodes, reduced[1])
        at_pivots = self.inner.kernel.gram(y, self.pivots)
        own_witness, cross = (at_pivots @ (self.inverse.T @ jnp.stack([own, reduced[0]], axis=1))).T
        kinds = self.generator.noise.independent, self.inner.fit_proportion
        found = mixing.report(q, s, (own_witness, cross), v, coincident, *kinds)
        return found | {"loss_error": found["loss_error"] / jnp.sqrt(self.times)}

    def expansion(self, nodes: QuadratureNodes) -> jax.Array:
        """Mean of `k(P, .)` over the model at the anchor by some nodes, and its derivatives, `([n,] r, 1 + p)`."""

        def mean(u):
            y = vectors(self.generator.points(u, nodes))
            values = nodes.weights[:, None] * self.inner.kernel.gram(y, self.pivots)
            if self.generator.covariates is None:
                return jnp.sum(values, axis=0)
            n = num_points(self.generator.covariates)
            return n * jax.ops.segment_sum(values, nodes.values[0], n)

        value, jacobian = mean(self.anchor), jax.jacfwd(mean)(self.anchor)
        return jnp.concatenate([value[..., None], jacobian], axis=-1)

    def corrected(self, few: QuadratureNodes, many: np.ndarray, times: float) -> tuple["LocalMMD", QuadratureNodes]:
        """Correct sets of few nodes by the `expansions` of sets of many, and say how many times as many these are."""
        correction = many.mean(axis=0) - self.expansions(few)
        return replace(self, times=np.asarray(float(times))), few._replace(correction=correction)

    def uncorrected(self, nodes: QuadratureNodes) -> QuadratureNodes:
        """Sets of nodes with a correction of nothing."""
        covariates = self.generator.covariates
        each = () if covariates is None else (num_points(covariates),)
        return nodes._replace(correction=np.zeros((len(nodes.weights), *each, len(self.inverse), 1 + len(self.anchor))))

    @on_host
    def expansions(self, nodes: QuadratureNodes) -> np.ndarray:
        """Features of the model at the anchor and their derivatives, by each of several sets of nodes."""

        def of_set(number):
            values, weights, _ = jax.tree.map(lambda leaf: leaf[number], nodes)
            total: Any = 0.0
            for first in range(0, len(weights), CHUNK):
                index = np.arange(first, first + CHUNK)
                chosen = np.minimum(index, len(weights) - 1)
                chunk = jax.tree.map(itemgetter(chosen), QuadratureNodes(values, weights))
                chunk = chunk._replace(weights=chunk.weights * (index < len(weights)))
                total = total + to_host(_expansion(self, chunk))
            return self.inverse @ total

        return np.stack([of_set(number) for number in range(len(nodes.weights))])

    def _features(self, points):
        return self.inner.kernel.gram(points, self.pivots) @ self.inverse.T

    def _measured(self, reduced, u, nodes) -> tuple[jax.Array, jax.Array]:
        """Corrected features `(r,)` of the model, and the energy of its simulated points alone."""
        weights, correction = reduced[1], nodes.correction
        y, v = vectors(self.generator.points(u, nodes)), self.generator.weights(nodes, weights)
        own = self.inverse @ (self.inner.kernel.gram(self.pivots, y) @ v)
        if self.generator.covariates is not None:
            of_data = weights[: len(correction)]
            correction = jnp.tensordot(of_data / jnp.sum(of_data), correction, 1)
        own += correction @ jnp.concatenate([jnp.ones(1), u - self.anchor])
        return own, jnp.square(v) @ self.inner.kernel.diagonal(y)

    def _energies(self, reduced, nodes, own, coincident):
        """`|mu_u|^2` and `<mu_w, mu_u>`."""
        v = self.generator.weights(nodes, reduced[1])
        return self.inner.energy(own @ own, coincident / self.times, v / jnp.sqrt(self.times)), own @ reduced[0]

    def _loss(self, reduced, nodes, own, coincident):
        energies = jnp.stack(self._energies(reduced, nodes, own, coincident))
        return mixing.discrepancy(energies, self.inner.fit_proportion)


_expansion = jitted(LocalMMD.expansion)


@on_host
def pivots_of(kernel: Kernel, points: Any, most: int, tolerance: float = 1e-8) -> Any:
    """At most so many of the points, in an order in which each is the one that those before it explain worst; none
    that they explain but for the tolerance, relative to `k(t, t)`."""
    gram = by_numpy.gram(kernel, points)
    order = blocked(gram, tolerance * float(gram.diagonal().max()), most)[1]
    return jax.tree.map(lambda leaf: leaf[order], points)
