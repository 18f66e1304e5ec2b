"""The kernel means posterior: density, embedding, moments and predictions, in closed form where there is one."""

from functools import cached_property
from typing import Any

import jax
import numpy as np
import scipy
from jax.typing import ArrayLike

from numpyro_kme._core import checks, door, frozen
from numpyro_kme.embeddings.measures import Measure, Normal, NormalMixture
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.gram import matvec
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.base import LikelihoodAt, SignedLog, Surrogate, log_positive_part, to_signed_log
from numpyro_kme.samplers.importance import WeightedParticles, adaptive_importance_sampling, signed_logs, signed_moments


@frozen
class KernelMeansPosterior:
    r"""Posterior `q(z | y) = q(y | z) p(z) / q(y)` of the coordinates under a learnt likelihood and a prior.

    It integrates to one and may be negative somewhere, as the likelihood may. With the published form, a normal or
    normal-mixture measure and Gaussian kernels, all is in closed form: the posterior is a signed sum of normals.
    Otherwise weighted particles (`weighted_particles` with a fixed key) stand in for it. Results are
    NumPy float64.

    Args:
        surrogate: The learnt likelihood.
        y: The observation, raw.
        measure: The prior in coordinates.
        num_particles: How many weighted particles stand in for it.
    References:
        Hsu & Ramos (2019), AISTATS.
    """

    surrogate: Surrogate
    y: Any
    measure: Measure
    num_particles: int = 4096

    def __post_init__(self):
        own, dim = self.measure.dim, len(self.surrogate.region.low)
        checks.require(own == dim, f"`measure` has {own} dimensions and `surrogate` {dim}: use its coordinates.")
        checks.whole("num_particles", self.num_particles, 2)

    @cached_property
    def likelihood(self) -> LikelihoodAt:
        """The learnt likelihood at the observation."""
        return self.surrogate.at(self.y)

    @cached_property
    def _log_normaliser(self) -> SignedLog:
        """Sign and log of the normaliser `int q(y | z) p(dz)`, on the scale of the likelihood.

        By the weighted particles where there is no closed form.
        """
        terms = self.likelihood.expansion()
        if terms is None:
            return np.ones(()), self._particles.log_evidence
        embedded = self.measure.mean_embedding(terms.kernel, terms.points)
        return to_signed_log(terms.weights @ embedded, terms.log_scale)

    def _positive_log_normaliser(self) -> np.ndarray:
        sign, log_normaliser = self._log_normaliser
        checks.require(bool(sign > 0), "The learnt likelihood is negative on average over the prior: simulate more.")
        return np.asarray(log_normaliser)

    def log_marginal(self) -> SignedLog:
        """Sign and log absolute value of the marginal likelihood `q(y)`.

        Raises:
            ValueError: If the data kernel is not a density in the observation.
        """
        self.surrogate.require_density()
        return self._log_normaliser

    def signed_log_density(self, z: ArrayLike) -> SignedLog:
        """Sign and log absolute value of `q(y | z) / q(y)`, posterior density relative to the prior, at `(n, D)`."""
        log_normaliser = self._positive_log_normaliser()
        signs, log_sizes = self.signed_log_likelihood(z)
        return signs, log_sizes - log_normaliser

    def signed_log_likelihood(self, z: ArrayLike) -> SignedLog:
        """Sign and log absolute value of `q(y | z)`, on the scale of the likelihood, at `(n, D)`."""
        checks.table("z", z, columns=self.measure.dim)
        return signed_logs(self.likelihood, np.asarray(z, np.float64))

    @door
    def embedding(self, kernel: Kernel, t: ArrayLike) -> np.ndarray:
        """Posterior embedding `mu(t) = int k(z, t) q(dz | y)` at points `(n, D)`, `(n,)`.

        Exact for Gaussian kernels of any length scale where moments are in closed form. Cost: `m n` kernel evaluations.
        """
        checks.table("t", t, columns=self.measure.dim)
        terms, t = self.likelihood.expansion(), np.asarray(t, np.float64)
        if terms is None:
            particles = self._particles
            return matvec(kernel, t, particles.particles, particles.weights)
        products = self.measure.product_embedding(terms.kernel, terms.points, kernel, t)
        return terms.weights @ products * np.exp(terms.log_scale - self._positive_log_normaliser())

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean `(D,)` and covariance `(D, D)` of the signed posterior.

        With negative parts the covariance need not be positive definite; `weighted_particles` has the positive part.
        """
        terms, measure = self.likelihood.expansion(), self.measure
        if terms is None or not isinstance(measure, NormalMixture):
            return signed_moments(np.asarray(self._particles.particles), np.asarray(self._particles.weights))
        tilted = measure.tilt(terms.kernel, terms.points)
        weights = np.exp(tilted.log_masses + terms.log_scale - self._positive_log_normaliser())
        weights = weights * terms.weights[:, None]
        dim = measure.dim
        mean, between = signed_moments(np.asarray(tilted.means).reshape(-1, dim), weights.ravel())
        return mean, between + np.einsum("jk,kde->de", weights, tilted.covariances)

    def weighted_particles(self, rng_key: jax.Array, n: int) -> WeightedParticles:
        """Particles that cover the posterior, with signed weights, by adaptive importance sampling."""
        return adaptive_importance_sampling(rng_key, self.likelihood, self.measure, n)

    @cached_property
    def _particles(self) -> WeightedParticles:
        return self.weighted_particles(jax.random.key(0), self.num_particles)

    def herding_kernel(self) -> Gaussian:
        """A Gaussian kernel for herding: per dimension, a third of the standard deviation of the positive part.

        Herding in the space of `l` itself cannot see anything finer than `beta`, which is often wider than the
        posterior.
        """
        points, weights = self._particles.particles, self._particles.positive_weights
        mean = weights @ points
        return Gaussian(np.sqrt(weights @ (points - mean) ** 2) / 3.0)

    def mode(self) -> np.ndarray:
        """Maximum of the posterior density in coordinates, `(D,)`, by L-BFGS from the best weighted particles.

        Raises:
            ValueError: If the measure has no density (`Points`).
        """
        points = np.asarray(self._particles.particles)

        def losses(z):
            sign, log_size = signed_logs(self.likelihood, z)
            return np.where(sign > 0, -log_size - self.measure.log_densities(z), 1e10)

        starts = points[np.argsort(losses(points))[:5]]
        loss = lambda z: losses(z[None])[0]  # noqa: E731
        found = [scipy.optimize.minimize(loss, start, jac="3-point", method="L-BFGS-B") for start in starts]
        return min(found, key=lambda result: result.fun).x

    def predictive_log_density(self, y_new: ArrayLike) -> SignedLog:
        """Sign and log absolute value of `q(y* | y) = int q(y* | z) q(dz | y)` at observations `(k, n)`, each `(k,)`.

        `sum_j v_j(y*) mu(z_j)` for the published form.

        Raises:
            ValueError: If the data kernel is not a density in the observation.
        """
        self.surrogate.require_density()
        likelihoods = [self.surrogate.at(y) for y in np.asarray(y_new)]
        expansions = [terms for likelihood in likelihoods if (terms := likelihood.expansion())]
        if expansions:  # of the same kernels
            embedded = self.embedding(expansions[0].kernel, expansions[0].points)
            values, log_scales = zip(*((terms.weights @ embedded, terms.log_scale) for terms in expansions))
            return to_signed_log(np.array(values), np.array(log_scales))
        points, weights = np.asarray(self._particles.particles), self._particles.weights
        signs, log_sizes = np.array([signed_logs(likelihood, points) for likelihood in likelihoods]).swapaxes(0, 1)
        logs, signs = scipy.special.logsumexp(log_sizes, 1, b=signs * weights, return_sign=True)
        return signs, logs


def learn_normal(likelihood: LikelihoodAt) -> NormalMixture:
    r"""Maximise the marginal likelihood `log q(y) = log int q(y | z) N(z | m, diag(sd^2)) dz` over `m` and `sd`, from
    the standard normal prior.

    The surrogate stays as it is: simulations may come from any proposal, so a prior is learnt without simulating again.
    With one observation the best prior is narrow and sits on the likelihood's maximum; a lognormal prior of scale 1 on
    each `sd`, centred at 1, holds it back. Means stay within the simulated region.

    Args:
        likelihood: `surrogate.at(y)` of the published form.
    Returns:
        The learnt measure.
    Raises:
        ValueError: If the likelihood is not a sum of kernels.
    """
    why = "A prior is learnt from the published form of the likelihood alone (`KernelMeans`)."
    terms = checks.given(likelihood.expansion(), why)
    points, squared_length = np.asarray(terms.points), np.square(terms.kernel.length_scale)

    def loss(at):
        mean, log_factors = np.split(at, 2)
        widened = squared_length + np.exp(2.0 * log_factors)
        logs = np.square(points - mean) @ (-0.5 / widened) + 0.5 * np.sum(np.log(squared_length / widened))
        return 0.5 * np.sum(np.square(log_factors)) - log_positive_part(terms.weights @ np.exp(logs), -30.0)

    low, high = points.min(axis=0), points.max(axis=0)
    bounds = [*zip(low, high), *[(None, None)] * len(low)]
    begin = np.concatenate([np.clip(0.0, low, high), np.zeros(len(low))])
    found = scipy.optimize.minimize(loss, begin, method="L-BFGS-B", bounds=bounds).x
    return Normal(found[: len(low)], np.diag(np.exp(2.0 * found[len(low) :])))
