"""Latents as vectors: simulations that a regression moves, and draws that follow weights of any sign."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import Program
from numpyro_kme.abc.weighting import RegressionAdjustment
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.engines._weighers import ReferenceTable
from numpyro_kme.kernels import Gaussian, Polynomial
from numpyro_kme.models.coordinates import Coordinates, Unconstrained
from numpyro_kme.models.problem import Problem

QUADRATIC = 0.01
"""Weight of a quadratic kernel in herding, beside a Gaussian and a linear one."""

LEAST_DEVIATION = 0.2
"""Of the standard deviations under the positive part of signed weights, which can give a variance of any sign."""


@dataclass(frozen=True)
class LatentVectors:
    """All latents as vectors without constraints, standardised: where the coordinates of arguments do not determine
    the latents.

    Attributes:
        target: The map to vectors, site by site.
        centre, scale: Means and standard deviations of the draws that it was read from, `(D,)`.
    """

    target: Unconstrained
    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def read(cls, problem: Problem, draws: Mapping[str, Any]) -> "LatentVectors":
        """From draws `{site: (m, *shape)}`."""
        checks.require(
            not problem.discrete,
            f"The mode of the embedding is a point between simulations, and {list(problem.discrete)} are discrete. Use "
            "`get_weights` or the draws.",
        )
        first = {name: latent.value for name, latent in problem.latents.items()}
        target = Unconstrained.read(problem.model, problem.args, problem.kwargs, first)
        u = cls(target, np.zeros(target.dim), np.ones(target.dim)).table(draws)
        return cls(target, u.mean(axis=0), np.maximum(u.std(axis=0), 1e-8))

    @classmethod
    def of(cls, problem: Problem, table: ReferenceTable) -> tuple[np.ndarray, "Coordinates | LatentVectors"]:
        """Vectors `(m, D)` that determine the latents of a table, and the map back: coordinates, where they do."""
        if table.coordinates.one_to_one:
            return table.z, table.coordinates
        vectors = cls.read(problem, table.latents)
        return vectors.table(table.latents), vectors

    @on_host
    def table(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Vectors `(m, D)` of latents `{site: (m, *shape)}`."""
        points = {name: np.asarray(latents[name], np.float64) for name in self.target.shapes}
        return (np.asarray(Program(jax.vmap(self.target.flatten))(points)) - self.centre) / self.scale

    @on_host
    def latents_table(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """Latents `{site: (m, *shape)}` at vectors `(m, D)`."""
        return Program(jax.vmap(self.target.constrain))(self.centre + self.scale * z)


def adjusted(
    problem: Problem, table: ReferenceTable, weights: np.ndarray, y: np.ndarray
) -> tuple[ReferenceTable, np.ndarray]:
    """The table with the latents of simulations that have a weight where `RegressionAdjustment` moves them, and by how
    many standard deviations it moves each mean."""
    vectors, back = LatentVectors.of(problem, table)
    given = table.simulated_statistics, weights, table.statistics(y[None])[0]
    found = RegressionAdjustment.fit(vectors, *given)
    counts = np.abs(weights) > 1e-9 * np.abs(weights).max()
    moved = back.latents_table(np.where(counts[:, None], found.adjusted, vectors))
    latents = {name: np.asarray(moved[name], value.dtype) for name, value in table.latents.items()}
    drawn = problem.evaluate(latents)
    deterministics = {name: np.asarray(value) for name, value in drawn.deterministics.items()}
    z = table.coordinates_of(drawn.arguments[problem.site()])
    return replace(table, latents=latents, deterministics=deterministics, z=z), found.shift / found.scale


def herded(z: np.ndarray, weights: np.ndarray, num_samples: int) -> np.ndarray:
    """Rows that follow weights of any sign: means by a linear kernel, the rest by a Gaussian and a bit of a quadratic.

    By a Gaussian kernel alone draws would follow the positive part of signed weights in more than two dimensions. With
    more of a quadratic one they would have the covariance of the weights, noise and all, at the expense of their shape
    (`python -m benchmarks verdict`). A covariance that no distribution has is replaced by the nearest one that is
    positive definite.
    """
    u = (z - weights @ z) / deviation(z, weights)
    values, axes = np.linalg.eigh(u.T @ (weights[:, None] * u))
    second = 1.0 + np.square(u @ axes) @ np.maximum(values, LEAST_DEVIATION**2)
    gaussian = Gaussian(1.0 / 3.0)
    targets = MeanEmbedding(gaussian, u, weights).on_host(u) + 1.0 + QUADRATIC * second
    kernel = gaussian + Polynomial(1) + QUADRATIC * Polynomial(2)
    return np.asarray(herd(targets, kernel, u, num_samples))


def deviation(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standard deviations under weights, or the least for their positive part."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    least = LEAST_DEVIATION**2 * positive @ np.square(z - positive @ z)
    return np.sqrt(np.maximum(weights @ np.square(z - weights @ z), np.maximum(least, 1e-16)))
