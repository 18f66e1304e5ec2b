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

    def nodes_of(self, nodes, sets, weights):
        """Of each row, with the mean of a correction that covariates have each."""
        if nodes.correction.ndim == 3:
            return super().nodes_of(nodes, sets, weights)
        means = [_mean(row, nodes.correction[number]) for row, number in zip(weights, sets)]
        return nodes._replace(correction=None).of_sets(sets)._replace(correction=np.stack(means))

    def reduce(self, weights, extra=None):
        """Features of the weighted data, and the weights."""
        of_data = jnp.asarray(self.of_data)
        return weights @ join(of_data, None if extra is None else self._features(vectors(extra))), weights

    def value(self, reduced, u, nodes):
        """Squared MMD at `u`, without its constant."""
        energies = self._energies(reduced, nodes, *self._measured(reduced, u, nodes))
        return mixing.discrepancy(*energies, self.inner.fit_proportion)

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

    def expansion(self, nodes: QuadratureNodes, each: int) -> jax.Array:
        """Sums of `k(P, .)` over the model at the anchor, and their derivatives, by every `each` nodes in a row,
        `(M / each, r, 1 + p)`."""

        def sums(u):
            y = vectors(self.generator.points(u, nodes))
            values = nodes.weights[:, None] * self.inner.kernel.gram(y, self.pivots)
            return jnp.sum(values.reshape(-1, each, values.shape[1]), axis=1)

        return jnp.concatenate([sums(self.anchor)[..., None], jax.jacfwd(sums)(self.anchor)], axis=-1)

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

        n, num = num_points(self.data), nodes.weights.shape[1]
        # those of a covariate lie next to each other, a power of two
        each = CHUNK if self.generator.covariates is None else num // n

        def of_set(number):
            own = jax.tree.map(itemgetter(0), nodes._replace(correction=None).of_sets(np.array([number])))
            parts = []
            for first in range(0, num, max(CHUNK, each)):
                index = np.arange(first, first + max(CHUNK, each))
                chunk = jax.tree.map(itemgetter(np.minimum(index, num - 1)), own)
                parts.append(to_host(_expansion(self, chunk._replace(weights=chunk.weights * (index < num)), each)))
            sums = np.concatenate(parts)
            mean = sums.sum(axis=0) if self.generator.covariates is None else n * sums[:n]
            return np.swapaxes(np.swapaxes(mean, -2, -1) @ self.inverse.T, -2, -1)

        return np.stack([of_set(number) for number in range(len(nodes.weights))])

    def _features(self, points):
        return self.inner.kernel.gram(points, self.pivots) @ self.inverse.T

    def _measured(self, reduced, u, nodes) -> tuple[jax.Array, jax.Array]:
        """Corrected features `(r,)` of the model, and the energy of its simulated points alone."""
        y, v = vectors(self.generator.points(u, nodes)), self.generator.weights(nodes, reduced[1])
        correction = nodes.correction if nodes.correction.ndim == 2 else _mean(reduced[1], nodes.correction)
        measured = self.inverse @ (v @ self.inner.kernel.gram(y, self.pivots))
        own = measured + correction @ jnp.concatenate([jnp.ones(1), u - self.anchor])
        return own, jnp.square(v) @ self.inner.kernel.diagonal(y)

    def _energies(self, reduced, nodes, own, coincident):
        """`|mu_u|^2` and `<mu_w, mu_u>`."""
        v = self.generator.weights(nodes, reduced[1])
        return self.inner.energy(own @ own, coincident / self.times, v / jnp.sqrt(self.times)), own @ reduced[0]


def _mean(weights: Any, of_each: Any) -> Any:
    """Of what each datum has, `(n, r, c)`, under weights of the data; those of further points do not count."""
    n = len(of_each)
    of_data = weights[:n] / weights[:n].sum()
    return (of_data @ of_each.reshape(n, -1)).reshape(of_each.shape[1:])


_expansion = jitted(LocalMMD.expansion, static_argnums=2)


@on_host
def pivots_of(kernel: Kernel, points: Any, most: int, tolerance: float = 1e-8) -> Any:
    """At most so many of the points, in an order in which each is the one that those before it explain worst; none
    that they explain but for the tolerance, relative to `k(t, t)`."""
    gram = by_numpy.gram(kernel, points)
    order = blocked(gram, tolerance * float(gram.diagonal().max()), most)[1]
    return jax.tree.map(lambda leaf: leaf[order], points)
