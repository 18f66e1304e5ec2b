"""Probability measures on `R^D` whose kernel embeddings are known: priors in coordinates.

For a Gaussian kernel `k` with `B = diag(length_scale^2)` and a normal measure `N(m, S)`

    int k(a, t) N(t | m, S) dt = |B|^(1/2) |B + S|^(-1/2) exp(-1/2 (a - m)' (B + S)^(-1) (a - m)),

a product of two Gaussian kernels is a Gaussian kernel times a constant, and a mixture is a sum. Everything else goes
by weighted points: a quasi-random set drawn from the measure stands in for it.
"""

from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from scipy import special

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import full_precision, numpy_rng
from numpyro_kme.embeddings.weighted_points import Measure, Points
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.gram import one_per_dimension, squared_distances
from numpyro_kme.kernels.stationary import Gaussian

__all__ = ["Normal", "NormalMixture", "Points", "Tilted", "standard_normal"]


@shown
class Tilted(NamedTuple):
    """The unnormalised measures `k(a_i, t) p(dt)`, each a mixture of `K` normals.

    Attributes:
        log_masses: `(m, K)`; the log mean embedding at `a_i` is the log-sum-exp of row `i`.
        means: `(m, K, D)`.
        covariances: `(K, D, D)`, the same for every `a_i`.
    """

    log_masses: jax.Array
    means: jax.Array
    covariances: jax.Array


@register
class NormalMixture(Measure):
    """The mixture `sum_k weights_k N(means_k, covariances_k)`.

    Args:
        weights: `(K,)`, positive, with sum one.
        means: `(K, D)`.
        covariances: `(K, D, D)`, positive definite.
        num_points: How many quasi-random draws stand in where no closed form is known (static).
    """

    weights: ArrayLike
    means: ArrayLike
    covariances: ArrayLike
    num_points: int = field(default=2048, metadata=dict(static=True))

    def __post_init__(self):
        if checks.is_concrete((self.weights, self.means, self.covariances)):
            shapes = np.shape(self.weights), np.shape(self.means), np.shape(self.covariances)
            checks.require(
                len(shapes[1]) == 2 and shapes[0] == shapes[1][:1] and shapes[2] == (*shapes[1], shapes[1][1]),
                "`weights`, `means` and `covariances` must have shapes (K,), (K, D) and (K, D, D); "
                f"got {shapes[0]}, {shapes[1]} and {shapes[2]}.",
            )
            checks.sound("means", self.means)
            _require_covariances(self.covariances)
            checks.positive("weights", self.weights)
            total = float(np.sum(np.asarray(self.weights)))
            checks.require(abs(total - 1.0) < 1e-4, f"`weights` must sum to 1; they sum to {total}.")

    @property
    def dim(self):
        """Dimension `D`."""
        return jnp.shape(self.means)[1]

    def components(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log weights `(K,)`, means `(K, D)` and covariances `(K, D, D)`."""
        return jnp.log(jnp.asarray(self.weights)), jnp.asarray(self.means), jnp.asarray(self.covariances)

    @full_precision
    def as_points(self) -> Points:
        """`num_points` quasi-random draws (scrambled Sobol points, always the same), stratified by component."""
        log_weights, means, covariances = self.components()
        each = max(self.num_points // len(means), 1)
        noise = jnp.asarray(_quasi_normals(each, self.dim), dtype=means.dtype)
        draws = means[:, None, :] + jnp.einsum("tj,kij->kti", noise, jnp.linalg.cholesky(covariances))
        return Points(draws.reshape(-1, self.dim), jnp.repeat(jnp.exp(log_weights) / each, each))

    @full_precision
    def tilt(self, kernel: Kernel, a: ArrayLike) -> Tilted:
        """The measures `k(a_i, t) p(dt)` for a Gaussian kernel, by completing the square in each component."""
        if not isinstance(kernel, Gaussian):
            raise checks.explained(f"`kernel` must be Gaussian for a closed form; got {type(kernel).__name__}.")
        a = jnp.asarray(a)
        length_scale = one_per_dimension(kernel.length_scale, self.dim).ravel()

        def component(log_weight, mean, covariance):
            unit, scaled, factor, log_mass = _widened(covariance, length_scale)
            half = solve_triangular(factor, scaled, lower=True)
            white = solve_triangular(factor, ((a - mean[None, :]) / unit[None, :]).T, lower=True)
            log_masses = log_weight + log_mass - 0.5 * jnp.sum(white * white, axis=0)
            moved, left = (white.T @ half) * unit[None, :], (scaled - half.T @ half) * unit[None, :] * unit[:, None]
            return log_masses, mean[None, :] + moved, left

        log_masses, tilted_means, tilted_covariances = jax.vmap(component)(*self.components())
        return Tilted(log_masses.T, jnp.swapaxes(tilted_means, 0, 1), tilted_covariances)

    def mean_embedding(self, kernel, a):
        """Closed form for a Gaussian kernel, otherwise a sum over `as_points()`."""
        checks.table("a", a, columns=self.dim)
        if not isinstance(kernel, Gaussian):
            return self.as_points().mean_embedding(kernel, a)
        return jnp.sum(jnp.exp(self.tilt(kernel, a).log_masses), axis=1)

    def product_embedding(self, kernel_a, a, kernel_b, b):
        """Closed form for two Gaussian kernels, of equal or different length scales, otherwise by `as_points()`.

        `k_a(a, t) k_b(t, b) = exp(-1/2 (a - b)' (A + B)^(-1) (a - b)) exp(-1/2 (t - c)' C^(-1) (t - c))` with
        `C = (A^(-1) + B^(-1))^(-1)` and `c = C (A^(-1) a + B^(-1) b)`.
        """
        if not (isinstance(kernel_a, Gaussian) and isinstance(kernel_b, Gaussian)):
            return self.as_points().product_embedding(kernel_a, a, kernel_b, b)
        a, b = jnp.asarray(a), jnp.asarray(b)
        of_a = one_per_dimension(kernel_a.length_scale, self.dim).ravel()
        of_b = one_per_dimension(kernel_b.length_scale, self.dim).ravel()
        total = jnp.hypot(of_a, of_b)
        log_between = Gaussian(total).log_gram(a, b)
        from_a, from_b = a * jnp.square(of_b / total)[None, :], b * jnp.square(of_a / total)[None, :]

        def component(log_weight, mean, covariance):
            unit, _, factor, log_mass = _widened(covariance, of_a * (of_b / total))
            white_a = solve_triangular(factor, ((from_a - mean[None, :]) / unit[None, :]).T, lower=True).T
            white_b = solve_triangular(factor, -(from_b / unit[None, :]).T, lower=True).T
            return log_weight + log_mass - 0.5 * squared_distances(white_a, white_b)

        log_tilts = jax.vmap(component)(*self.components())
        return jnp.exp(log_between + logsumexp(log_tilts, axis=0))

    @full_precision
    def moments(self):
        """Mean and covariance of the mixture."""
        log_weights, means, covariances = self.components()
        weights = jnp.exp(log_weights)
        mean = weights @ means
        centred = means - mean[None, :]
        within = jnp.einsum("k,kij->ij", weights, covariances)
        return mean, within + (centred * weights[:, None]).T @ centred

    def sample(self, rng_key, n):
        """Independent draws."""
        checks.key(rng_key)
        rng, (weights, means, covariances) = numpy_rng(rng_key), self._on_host()
        which = rng.choice(len(weights), n, p=weights)
        noise = rng.standard_normal((n, self.dim))
        return means[which] + np.einsum("nij,nj->ni", np.linalg.cholesky(covariances)[which], noise)

    def log_densities(self, points):
        """As `Measure.log_densities`."""
        weights, means, covariances = self._on_host()
        centre = weights @ means
        points, means, precisions = np.asarray(points, np.float64) - centre, means - centre, np.linalg.inv(covariances)
        linear = np.einsum("kij,kj->ki", precisions, means)
        constants = np.log(weights) - 0.5 * (
            self.dim * np.log(2.0 * np.pi) + np.linalg.slogdet(covariances)[1] + np.sum(linear * means, axis=1)
        )
        squares = np.einsum("ni,nj->nij", points, points).reshape(len(points), -1)
        logs = squares @ (-0.5 * precisions.reshape(len(means), -1).T) + points @ linear.T + constants
        peak = logs.max(axis=1, keepdims=True)
        return peak[:, 0] + np.log(np.exp(logs - peak).sum(axis=1))

    def _on_host(self):
        weights, means, covariances = (np.asarray(a, np.float64) for a in (self.weights, self.means, self.covariances))
        return weights / weights.sum(), means, covariances

    @full_precision
    def log_density(self, t):
        """`log sum_k w_k N(t | m_k, S_k)`."""
        log_weights, means, covariances = self.components()

        def component(mean, covariance):
            factor = jnp.linalg.cholesky(covariance)
            # of the identity, once for all t: a solve for each point would cost far more than the density
            inverse = solve_triangular(factor, jnp.eye(self.dim, dtype=factor.dtype), lower=True)
            white = inverse @ (jnp.asarray(t) - mean)
            log_norm = 0.5 * self.dim * jnp.log(2.0 * jnp.pi) + jnp.sum(jnp.log(jnp.diagonal(factor)))
            return -0.5 * jnp.sum(white * white) - log_norm

        return logsumexp(log_weights + jax.vmap(component)(means, covariances))


def Normal(mean: ArrayLike, covariance: ArrayLike, num_points: int = 2048) -> NormalMixture:
    """The normal measure `N(mean, covariance)`: a mixture of one component.

    Args:
        mean: `(D,)`.
        covariance: `(D, D)`, positive definite.
        num_points: As of `NormalMixture`.
    """
    mean, covariance = (a if isinstance(a, jax.Array) else np.asarray(a) for a in (mean, covariance))
    checks.require(
        mean.shape == (mean.size,) and covariance.shape == (mean.size, mean.size),
        f"`mean` must have shape (D,) and `covariance` (D, D); got {mean.shape} and {covariance.shape}.",
    )
    return NormalMixture(np.ones(1, mean.dtype), mean[None], covariance[None], num_points)


def standard_normal(dim: int) -> NormalMixture:
    """`N(0, I)` on `R^dim`: the prior in normal coordinates."""
    return Normal(np.zeros(dim), np.eye(dim))


def _widened(covariance: jax.Array, length_scale: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """A unit for each dimension, the larger of standard deviation and length scale, so that nothing overflows; in these
    units `S` and the Cholesky factor of `B + S`; and `log(|B|^(1/2) |B + S|^(-1/2))`."""
    unit = jax.lax.stop_gradient(jnp.maximum(jnp.sqrt(jnp.diagonal(covariance)), length_scale))
    scaled, ratio = covariance / unit[None, :] / unit[:, None], length_scale / unit
    factor = jnp.linalg.cholesky(scaled + jnp.diag(jnp.square(ratio)))
    return unit, scaled, factor, jnp.sum(jnp.log(ratio)) - jnp.sum(jnp.log(jnp.diagonal(factor)))


@lru_cache(maxsize=8)
def _quasi_normals(n: int, dim: int) -> np.ndarray:
    points = scipy.stats.qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(0)).random_base2(
        int(np.ceil(np.log2(n)))
    )
    return special.ndtri(np.clip(points[:n], 1e-12, 1.0 - 1e-12))


def _require_covariances(value: ArrayLike) -> None:
    """Require symmetric positive definite matrices `(..., D, D)`."""
    checks.sound("covariance", value)
    matrices = np.asarray(value, np.float64)
    smallest = np.linalg.eigvalsh(matrices).min(initial=np.inf)
    checks.require(
        bool(smallest > 0) and np.allclose(matrices, np.swapaxes(matrices, -1, -2), rtol=1e-5),
        f"`covariance` must be symmetric and positive definite; its smallest eigenvalue is {smallest:.3g}.",
    )
