"""A posterior that is a weighting of simulations, and draws that follow weights of any sign."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.saving import saveable
from numpyro_kme.embeddings.means import MeanEmbedding, herd
from numpyro_kme.engines.posterior import Posterior, columns, problem_of
from numpyro_kme.kernels import Gaussian, Polynomial
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.unconstrained import Unconstrained

LEAST_DEVIATION = 0.2
"""Least standard deviation, relative to the positive part of signed weights, whose variances may have any sign."""

QUADRATIC = 0.01
"""Weight of a quadratic kernel in herding: with more of it draws follow the noise of a covariance under signed weights
(`python -m benchmarks verdict`)."""


@shown
@saveable
@dataclass(frozen=True, kw_only=True)
class WeightedPosterior(Posterior):
    """A posterior that is a weighting of simulations from the prior.

    Attributes:
        sites: Latents and deterministics of the simulations, `{site: (m, *shape)}`; where a regression adjusted them,
            as it moved them.
        weights: `(m,)`, with a sum of one; some methods give weights of both signs.
        z: Coordinates of the simulations, `(m, D)`.
        coordinates: Coordinates of the simulator's arguments.
    """

    problem: Problem
    sites: Mapping[str, np.ndarray]
    weights: np.ndarray
    z: np.ndarray
    coordinates: Coordinates

    def get_weights(self) -> dict[str, np.ndarray]:
        """The weighted set: every simulation's latents `{site: (m, *shape)}`, and under `"weight"` weights that sum to
        one.

        Some methods give weights of both signs.
        """
        return {**self.sites, "weight": self.weights}

    def expectation(self, function: Callable[[Mapping[str, np.ndarray]], Any]) -> np.ndarray:
        """Posterior expectation by the weights, `sum_i w_i f(theta_i)`; more exact than an average of `get_samples`.

        Args:
            function: Maps `{site: (m, *shape)}`, all simulations at once, to `(m, *event)`.
        Returns:
            `(*event)`.
        """
        values = np.asarray(function(self.sites))
        checks.require(
            values.shape[:1] == self.weights.shape,
            f"`function` must give {len(self.weights)} rows, one for each simulation; it gave shape {values.shape}.",
        )
        return np.tensordot(self.weights, values, axes=1)

    def mode(self) -> dict[str, np.ndarray]:
        """Point estimate, `{site: (*shape)}`: the mode of the posterior embedding (its pre-image), the weights smoothed
        by a Gaussian kernel in coordinates.

        The kernel is as wide as the posterior in each coordinate. Where the simulator's
        arguments do not determine the latents, as under a Dirichlet or a hierarchical prior, the coordinates are those
        of all latents, mapped to vectors without constraints. Where all latents are discrete it is the value that has
        the largest weight.
        """
        problem = problem_of(self)
        latents = {name: self.sites[name] for name in problem.latents}
        checks.require(
            len(problem.discrete) in (0, len(latents)),
            f"The mode of the embedding is a point between simulations, and {list(problem.discrete)} are discrete. Use "
            "`get_weights` or the draws.",
        )
        if problem.discrete:
            _, first, group = np.unique(columns(latents), axis=0, return_index=True, return_inverse=True)
            best = first[np.argmax(np.bincount(group.ravel(), self.weights))]
            return {name: np.asarray(value[best]) for name, value in latents.items()}
        to_vectors, latents_at = vector_maps(problem, self.coordinates)
        z = to_vectors(self.z, latents)
        found = MeanEmbedding(Gaussian(deviation(z, self.weights)), z, self.weights).mode()
        return {name: np.asarray(value[0]) for name, value in latents_at(found[None]).items()}

    def herd(self, rng_key: jax.Array, num_samples: int) -> Posterior:
        """Super-samples: simulations chosen by kernel herding of the embedded posterior, in the order in which it
        finds them.

        The key decides nothing: candidates are the simulations.
        """
        checks.key(rng_key)
        checks.whole("num_samples", num_samples, 1)
        chosen = herded(self.z, self.weights, num_samples)
        return self._super_samples({name: value[chosen] for name, value in self.sites.items()})


def herded(z: np.ndarray, weights: np.ndarray, num_samples: int) -> np.ndarray:
    """Rows that follow weights of any sign: means by a linear kernel, the rest by a Gaussian and a bit of a quadratic.

    By a Gaussian kernel alone draws would follow the positive part of signed weights in more than two dimensions. A
    covariance that no distribution has is replaced by the nearest one that is positive definite.
    """
    u = (z - weights @ z) / deviation(z, weights)
    values, axes = np.linalg.eigh(u.T @ (weights[:, None] * u))
    second = 1.0 + np.square(u @ axes) @ np.maximum(values, LEAST_DEVIATION**2)
    gaussian = Gaussian(1.0 / 3.0)
    targets = MeanEmbedding(gaussian, u, weights)(u) + 1.0 + QUADRATIC * second
    kernel = gaussian + Polynomial(1) + QUADRATIC * Polynomial(2)
    return np.asarray(herd(kernel, targets, u, num_samples))


def deviation(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standard deviations under weights, or the least for their positive part."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    least = LEAST_DEVIATION**2 * positive @ np.square(z - positive @ z)
    return np.sqrt(np.maximum(weights @ np.square(z - weights @ z), np.maximum(least, 1e-16)))


def vector_maps(problem: Problem, coordinates: Coordinates) -> tuple[Callable, Callable]:
    """Maps of coordinates and latents `{site: (m, *shape)}` to vectors `(m, D)` without constraints that determine the
    latents, and back from vectors to latents: coordinates are such vectors, or all latents without constraints."""
    if coordinates.one_to_one:
        return (lambda z, latents: z), coordinates.latents
    first = {name: latent.value for name, latent in problem.latents.items()}
    target = Unconstrained.read(problem.model, problem.args, problem.kwargs, first)
    return numpy_function(lambda z, latents: target.flatten_rows(latents)), numpy_function(target.constrain_rows)
