"""Whether a posterior by weights is coarse: what a regression on the weighted simulations would change."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.abc.weighting import RegressionAdjustment, deviations, effective_sample_size
from numpyro_kme.engines._vectors import LatentVectors
from numpyro_kme.engines._weighers import ReferenceTable
from numpyro_kme.models.matching import entry_names
from numpyro_kme.models.problem import Problem

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
    varies = _varies(numbers[:number])
    names = _names(table.latents)[varies]
    left, error = at_no_distance(numbers[:, varies], near, number)  # all that are as far as the last are accepted
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


def _varies(numbers: np.ndarray) -> np.ndarray:
    """Which columns of `(r, k)` are not constant, `(k,)`."""
    return np.ptp(numbers, axis=0) > 1e-6 * np.abs(numbers).max(axis=0)


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
    varies = _varies(before)
    before, after, names = before[:, varies], after[:, varies], _names(table.latents)[varies]
    scale = deviations(before, w)
    # each point is left out of the regression that moves it
    held_out = np.max(found.residual / np.maximum(deviations(moved, positive), 1e-300))
    left = held_out * deviations(after, positive) / scale
    error = left * np.max(found.error / np.maximum(found.residual, 1e-300))
    return Change(names.tolist(), np.abs(w @ after - w @ before) / scale, error, left)


def _columns(latents: Mapping[str, Any]) -> np.ndarray:
    """All numbers of latents `{site: (m, *shape)}`, `(m, k)`."""
    return np.concatenate([np.asarray(value, np.float64).reshape(len(value), -1) for value in latents.values()], axis=1)
