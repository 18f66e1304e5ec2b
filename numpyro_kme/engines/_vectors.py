"""Latents as vectors without constraints, and simulations that a regression moves there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import Program
from numpyro_kme.abc.adjustment import RegressionAdjustment
from numpyro_kme.engines._weighers import ReferenceTable
from numpyro_kme.models.coordinates import Coordinates, Unconstrained
from numpyro_kme.models.problem import Problem

SHIFT, ERRORS, NARROWER = 0.3, 3.0, 0.6
"""A posterior is coarse where the regression moves a mean by more than `SHIFT` of its standard deviations and `ERRORS`
of those of the shift, or where it leaves less than `NARROWER` of the standard deviation."""

FEW = 100
"""Statistics with which it is looked at unasked."""


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
    given = table.statistics(table.x), weights, table.statistics(y[None])[0]
    found = RegressionAdjustment.fit(vectors, *given)
    counts = np.abs(weights) > 1e-9 * np.abs(weights).max()
    moved = back.latents_table(np.where(counts[:, None], found.adjusted, vectors))
    latents = {name: np.asarray(moved[name], value.dtype) for name, value in table.latents.items()}
    drawn = problem.evaluate(latents)
    deterministics = {name: np.asarray(value) for name, value in drawn.deterministics.items()}
    z = table.coordinates_of(drawn.arguments[problem.site()])
    return replace(table, latents=latents, deterministics=deterministics, z=z), found.shift / found.scale


def warn_if_coarse(name: str, table: ReferenceTable, weights: np.ndarray, y: np.ndarray) -> None:
    """Weights by a discrepancy or a kernel may see less than the data say, and nothing in them shows it."""
    statistics = table.statistics(table.x)
    if statistics.shape[1] > FEW:
        return
    found = RegressionAdjustment.fit(table.z, statistics, weights, table.statistics(y[None])[0])
    shift = np.abs(found.shift) / np.maximum(found.scale, 1e-300)
    left = found.residual / np.maximum(found.scale, 1e-300)
    coarse = (shift > SHIFT) & (np.abs(found.shift) > ERRORS * found.error) | (left < NARROWER)
    if coarse.any():
        worst = int(np.argmax(np.where(coarse, np.maximum(shift, 1.0 - left), 0.0)))
        what = "means and standard deviations of the draws" if table.data_sets else "outputs"
        checks.warn(
            f"{name}: the posterior is coarse. Among the simulations near the observation, a regression of "
            f"{table.coordinates.names[worst]} on the {what} moves its mean by {shift[worst]:.2g} of its standard "
            f"deviation, and leaves {left[worst]:.2g} of that. Use `regression_adjustment=True`, or more simulations."
        )
