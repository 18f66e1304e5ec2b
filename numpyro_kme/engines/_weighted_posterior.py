"""The posterior of engines that weight simulations: weights of either sign, and draws that follow them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.embeddings.means import MeanEmbedding, embedding_mode
from numpyro_kme.engines._reference_table import LatentVectors, ReferenceTable
from numpyro_kme.engines.posterior import ORDERED, Posterior
from numpyro_kme.kernels import Gaussian
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.samplers.resampling import systematic_shuffled


@dataclass(frozen=True, kw_only=True)
class WeightedPosterior(Posterior):
    """A posterior that is a weighting of simulations from the prior.

    Attributes:
        table: The simulations.
        weights: `(m,)`, with a sum of one; some methods give weights of both signs.
    """

    table: ReferenceTable = field(repr=False)
    weights: np.ndarray = field(repr=False)

    def get_weights(self) -> dict[str, np.ndarray]:
        """The weighted set: every simulation's latents `{site: (m, *shape)}`, and under `"weight"` weights that sum to
        one.

        Some methods give weights of both signs.
        """
        return {name: value[0] for name, value in self.groups["weighted_posterior"].items()}

    def expectation(self, function: Callable[[Mapping[str, np.ndarray]], Any]) -> np.ndarray:
        """Posterior expectation by the weights, `sum_i w_i f(theta_i)`; more exact than an average of `get_samples`.

        Args:
            function: Maps `{site: (m, *shape)}`, all simulations at once, to `(m, *event)`.
        Returns:
            `(*event)`.
        """
        values = np.asarray(function({name: value for name, value in self.get_weights().items() if name != "weight"}))
        checks.require(
            values.shape[:1] == self.weights.shape,
            f"`function` must give {len(self.weights)} rows, one for each simulation; it gave shape {values.shape}.",
        )
        return np.tensordot(self.weights, values, axes=1)

    def mode(self) -> dict[str, np.ndarray]:
        """Point estimate, `{site: (*shape)}`: the mode of the posterior embedding (its pre-image), the weights
        smoothed by a
        Gaussian kernel in coordinates.

        The kernel is as wide as the posterior in each coordinate, from its largest weights. Where the simulator's
        arguments do not determine the latents, as under a Dirichlet or a hierarchical prior, the coordinates are those
        of all latents, mapped to vectors without constraints.
        """
        table, weights, problem = self.table, self.weights, self.problem
        assert problem is not None
        one_to_one = table.coordinates.one_to_one
        vectors = None if one_to_one else LatentVectors.read(problem, table.latents)
        z = table.z if vectors is None else vectors.table(table.latents)
        found = embedding_mode(MeanEmbedding(_kernel(z, weights, 1.0), z, weights))
        if vectors is None:
            return on_host(Coordinates.latents)(table.coordinates, found)
        return {name: np.asarray(value[0]) for name, value in vectors.latents(found[None]).items()}

    def herd(self, rng_key: jax.Array, num_samples: int) -> Posterior:
        """Super-samples: simulations chosen by kernel herding of the embedded posterior, in the order in which it
        finds them.

        The key decides nothing: candidates are the simulations.
        """
        checks.key(rng_key)
        checks.whole("num_samples", num_samples, 1)
        chosen = _herded(self.table.z, self.weights, num_samples)
        sites = {name: np.asarray(value)[chosen] for name, value in self.get_weights().items() if name != "weight"}
        return Posterior(
            engine=self.engine,
            samples=sites,
            groups={"observed_data": self.groups["observed_data"]},
            info={"draws": ORDERED},
            problem=self.problem,
            simulations=self.simulations,
        )


def choose(rng_key: jax.Array, z: np.ndarray, weights: np.ndarray, num_samples: int) -> np.ndarray:
    """Indices of equally weighted simulations: systematic resampling, or herding where weights are signed."""
    if (weights >= 0).all():
        return systematic_shuffled(rng_key, weights, num_samples)
    return _herded(z, weights, num_samples)


def _herded(z: np.ndarray, weights: np.ndarray, num_samples: int) -> np.ndarray:
    kernel = _kernel(z, weights, 1.0 / 3.0)
    values = MeanEmbedding(kernel, z, weights).on_host(z)
    return np.asarray(herd(values, kernel, z, num_samples))


def _kernel(z: np.ndarray, weights: np.ndarray, share: float) -> Gaussian:
    """As wide as a share of the standard deviations of the positive part of the weights."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    deviation = np.sqrt(positive @ np.square(z - positive @ z))
    return Gaussian(share * np.maximum(deviation, 1e-8))
