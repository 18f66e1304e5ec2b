"""Latents as vectors: simulations that a regression moves, whether it would change much where it does not, and draws
that follow weights of any sign."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.abc.weighting import RegressionAdjustment, deviations, effective_sample_size
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.engines._rounds import varies
from numpyro_kme.engines._weighers import ReferenceTable
from numpyro_kme.kernels import Gaussian, Polynomial
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.matching import entry_names
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.unconstrained import Unconstrained

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
        return (self.target.flatten_rows(points) - self.centre) / self.scale

    @on_host
    def latents_table(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """Latents `{site: (m, *shape)}` at vectors `(m, D)`."""
        return self.target.constrain_rows(self.centre + self.scale * z)


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
    return np.asarray(herd(kernel, targets, u, num_samples))


def deviation(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standard deviations under weights, or the least for their positive part."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    least = LEAST_DEVIATION**2 * positive @ np.square(z - positive @ z)
    return np.sqrt(np.maximum(weights @ np.square(z - weights @ z), np.maximum(least, 1e-16)))


SHIFT, ERRORS, LEFT, MOST = 0.25, 2.0, 0.78, 1.7
"""A posterior is coarse where the regression moves a mean by more than `SHIFT` of its standard deviations and `ERRORS`
of those of the shift, or leaves less than `LEFT` of the standard deviation, so moves its logarithm by as much; too
narrow, by signed weights whose variances are noisy, where it leaves `MOST` times that."""

MORE = 4
"""Times as many simulations as are accepted, from which what a distance blurs is told."""

FEW = 100
"""Statistics with which it is looked at unasked."""

PER_STATISTIC = 10
"""Effective number of simulations for each, with which it is known on what side of the observation they are."""


class Change(NamedTuple):
    """What the regression changes, in standard deviations: `p` means, their standard errors, and what it leaves of the
    standard deviations."""

    names: list[str]
    shift: np.ndarray
    error: np.ndarray
    left: np.ndarray

    @property
    def coarse(self) -> np.ndarray:
        """Of which numbers the posterior is coarse, `(p,)`."""
        return (self.shift > SHIFT) & (self.shift > ERRORS * self.error) | (self.left < LEFT)


def warn_if_coarse(
    name: str, problem: Problem, table: ReferenceTable, weights: np.ndarray, y: np.ndarray, distances: np.ndarray
) -> None:
    """Weights by a discrepancy or a kernel may see less than the data say, and nothing in them shows it."""
    if table.simulated_statistics.shape[1] > FEW:
        return
    given = table.simulated_statistics, weights, table.statistics(y[None])[0]
    found = RegressionAdjustment.fit(table.z, *given)
    _warn_if_on_one_side(name, table, weights, found)
    by_coordinate, by_latent = _of_coordinates(table, found), _of_latents(problem, table, weights, given, found)
    what = "means and standard deviations of the draws" if table.data_sets else "outputs"
    near = f"Among the simulations near the observation, a regression on the {what}"
    advice = "Use `regression_adjustment=True`, or more simulations."
    told = next((change for change in (by_coordinate, by_latent) if change.coarse.any()), None)
    if told:
        d = int(np.argmax(np.where(told.coarse, np.maximum(told.shift, 1.0 - told.left), 0.0)))
        checks.warn(
            f"{name}: the posterior is coarse. {near} moves the mean of {told.names[d]} by {told.shift[d]:.2g} of its "
            f"standard deviation, and leaves {told.left[d]:.2g} of that. {advice}"
        )
    elif _numbers(table):
        _warn_if_wider_with_distance(name, table, weights, distances)
    if by_coordinate.left.max() > MOST:
        d = int(np.argmax(by_coordinate.left))
        checks.warn(
            f"{name}: the signed weights give {by_coordinate.names[d]} too narrow a posterior. {near} leaves "
            f"{by_coordinate.left[d]:.2g} times its standard deviation. {advice}"
        )


def _warn_if_on_one_side(name: str, table: ReferenceTable, weights: np.ndarray, found: RegressionAdjustment) -> None:
    q, numbers = table.simulated_statistics.shape[1], _numbers(table)
    enough = effective_sample_size(np.maximum(weights, 0.0)) > PER_STATISTIC * q
    if numbers and enough and found.distance > q + 2.0:
        checks.warn(
            f"{name}: the observation lies outside the simulations that are near it, {np.sqrt(found.distance):.2g} "
            "standard deviations from their mean, so that they are of one side only. The posterior may be shifted and "
            "too wide. Simulate more, leave out numbers that say nothing of the parameters, or use `KELFI`, which does "
            "not compare with the nearest."
        )


def _numbers(table: ReferenceTable) -> bool:
    """Whether outputs are compared number by number."""
    return table.x.ndim == 2 and not table.ragged


def _warn_if_wider_with_distance(name: str, table: ReferenceTable, weights: np.ndarray, distances: np.ndarray) -> None:
    """Where outputs are no straight lines in the latents a regression sees little of what a distance blurs."""
    number = int(np.count_nonzero(weights))
    if weights.min() < 0.0 or np.ptp(weights[weights != 0.0]) > 0.0 or MORE * number > len(weights) / 2:
        return
    nearest = np.argsort(distances, kind="stable")[: MORE * number]
    near, numbers = distances[nearest], _columns({name: value[nearest] for name, value in table.latents.items()})
    varying = varies(numbers[:number])
    names = _names(table.latents)[varying]
    left, error = at_no_distance(numbers[:, varying], near, number)  # all that are as far as the last are accepted
    coarse = (left < LEFT) & (1.0 - left**2 > ERRORS * error)
    if coarse.any():
        d = int(np.argmin(np.where(coarse, left, np.inf)))
        checks.warn(
            f"{name}: the posterior is coarse. The standard deviation of {names[d]} falls with the distance from the "
            f"observation: from the {number} nearest simulations and the {MORE * number} nearest, about {left[d]:.0%} "
            "of it would be left at distance 0. Use more simulations, or `KELFI`, which compares with all of them."
        )


def at_no_distance(numbers: np.ndarray, distances: np.ndarray, nearest: int) -> tuple[np.ndarray, np.ndarray]:
    r"""What is left of standard deviations as a distance goes to 0, and standard errors of the squares, `(p,)` each.

    To first order variances grow with the mean squared distance $e$ of those that are accepted. From the nearest and
    from all, $v_0 = v_1 - (v_2 - v_1) e_1 / (e_2 - e_1)$, Richardson's extrapolation; the errors are those of the
    influence functions.

    Args:
        numbers: `(m, p)`, the nearest first, none constant among those that are accepted.
        distances: `(m,)`, in this order, not all the same.
        nearest: How many of them are accepted.
    """
    centred = [part - part.mean(axis=0) for part in (numbers[:nearest], numbers)]
    accepted, every = (np.square(part).mean(axis=0) for part in centred)
    near, far = np.square(distances[:nearest]).mean(), np.square(distances).mean()
    factor = near / (far - near)
    left = 1.0 - (every / accepted - 1.0) * factor
    influence = -factor * (np.square(centred[1]) - every) / len(numbers)
    influence[:nearest] += (1.0 + factor - left) * (np.square(centred[0]) - accepted) / nearest
    return np.sqrt(np.maximum(left, 0.0)), np.sqrt(np.square(influence).sum(axis=0)) / accepted


def _names(latents: Mapping[str, np.ndarray]) -> np.ndarray:
    """Names of the numbers of `_columns`, `(k,)`."""
    return np.array([entry for name, value in latents.items() for entry in entry_names(name, value.shape[1:])])


def _of_coordinates(table: ReferenceTable, found: RegressionAdjustment) -> Change:
    scale = np.maximum(found.scale, 1e-300)
    shift = np.abs(found.shift) / scale
    return Change(list(table.coordinates.names), shift, found.error / scale, found.residual / scale)


def _of_latents(
    problem: Problem, table: ReferenceTable, weights: np.ndarray, given: tuple[Any, ...], found: RegressionAdjustment
) -> Change:
    """Of latents as they are reported, moved without their constraints: near a bound, and where the simulator takes a
    function of them, their means and standard deviations may change much where those of coordinates do not."""
    vectors, back = LatentVectors.of(problem, table)
    found = found if vectors is table.z else RegressionAdjustment.fit(vectors, *given)
    near = np.abs(weights) > 1e-9 * np.abs(weights).max()
    w = weights[near] / weights[near].sum()
    positive = np.maximum(w, 0.0) / np.maximum(w, 0.0).sum()
    before, moved = _columns({name: value[near] for name, value in table.latents.items()}), found.adjusted[near]
    found_there = back.latents_table(moved)
    after = _columns({name: found_there[name] for name in table.latents})
    own = varies(before)
    before, after, names = before[:, own], after[:, own], _names(table.latents)[own]
    scale = deviations(before, w)
    # each point is left out of the regression that moves it
    held_out = np.max(found.residual / np.maximum(deviations(moved, positive), 1e-300))
    left = held_out * deviations(after, positive) / scale
    error = left * np.max(found.error / np.maximum(found.residual, 1e-300))
    return Change(names.tolist(), np.abs(w @ after - w @ before) / scale, error, left)


def _columns(latents: Mapping[str, Any]) -> np.ndarray:
    """All numbers of latents `{site: (m, *shape)}`, `(m, k)`."""
    return np.concatenate([np.asarray(value, np.float64).reshape(len(value), -1) for value in latents.values()], axis=1)
