r"""Where the support of a statistic ends: a bound that is linear in the features of the coordinates.

A smallest or largest value often bounds a parameter: $x_i \ge e_i(z)$ in every simulation. The closest such line,

$$ e_i = \arg\max_e \sum_j e(z_j) \quad \text{with} \quad e(z_j) \le x_{ij} \text{ for all } j, $$

is a linear programme, and a new simulation crosses it with probability of at most `p / (m + 1)` for `p` coefficients.
An upper bound is a lower one of $-x_i$. Where it raises the held-out density,
$\operatorname{arcsinh}((x_i - e_i(z)) / w_i)$ takes the place of $x_i$, about the logarithm of the gap: the bound is
far out in its tail. The width $w_i$ is how far the simulations that hold the line are beyond the line without them.

A line in the middle of a statistic serves where its tails are heavy, as of Cauchy noise around a location: the
transformation is then one of the noise. Of the statistic it would move outliers as far as all other simulations.
"""

from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from numpyro_kme._core import Array, host, robust_standard_deviation
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.location_scale import explained, start_locations
from numpyro_kme.likelihoods.residual.ridge import features
from numpyro_kme.likelihoods.residual.smoothness import Inputs, Smoothness
from numpyro_kme.likelihoods.statistics import log_cosh, sinh

FEWEST = 20
"""Simulations for each coefficient of a line, at least."""

NEAR, CROWDED = 0.1, 0.067
"""At a bound the fraction `CROWDED` of exponential gaps is below `NEAR` of their median, which chance may lower by 1.5
standard errors; at the end of a normal tail 1% are, where scales vary up to 5%, and as large a fraction more as the
line has coefficients."""

WORTH = 0.1
"""What a bound has to add to the held-out log density of a simulation. Where extremes of many trials are known it is
nothing: drift diffusions, where it adds .08 to each trial, are .3 to .9 sd off without."""

TOUCHING = 1e-9
"""A gap below this, in standard deviations of the statistic, touches the line."""

UNEVEN, TURNS = 0.02, 20
"""Tails around a line are those of the noise if their location and scale do not follow the coordinates, which would
explain more than `UNEVEN`; turns in which the line is found."""

LIGHT = 6.0
"""Tails that end within so many robust standard deviations of a line in the middle are not heavy."""

AROUND = 2.0
"""Side of a line in the middle."""

STEEPEST, NARROWEST = 1e3, 1e-6
"""Largest coefficient of a line, and least width, in standard deviations of the statistic."""


@register
class SupportBounds:
    """The lines, in robust standard deviations of the statistics.

    Attributes:
        offset: Intercepts, `(n,)`.
        linear: Weights of the features, `(n, 2 D)`.
        width: `w`, `(n,)`; 1 where there is no line.
        side: 1 where the statistic stays above its line, -1 below, 2 where the line is in its middle, 0 where it has
            none, which is the line 0, `(n,)`.
    """

    offset: Array
    linear: Array
    width: Array
    side: Array

    def __call__(self, s: Any, z: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """Transform statistics `(..., n)` at points `(..., D)`; return logs of the slopes too, `(..., n)`. By NumPy the
        statistics themselves and 0 where there is no line."""
        if xp is np and not np.any(self.side):
            return s, 0.0
        line = self.offset + features(z, xp) @ xp.asarray(self.linear).T
        gaps, bounded = s - line.astype(z.dtype), xp.asarray(self.side) != 0.0
        found = xp.arcsinh(gaps / self.width)
        return xp.where(bounded, found, gaps), xp.where(bounded, -log_cosh(found, xp) - xp.log(self.width), 0.0)

    def inverse(self, bounded: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The statistics `(..., n)` whose transforms at points `(..., D)` these are."""
        if not np.any(self.side):
            return bounded
        gaps = np.where(np.asarray(self.side) != 0.0, self.width * sinh(bounded), bounded)
        return self.offset + features(z) @ np.asarray(self.linear).T + gaps

    def outside_support(self, s: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Tell whether one of the statistics `(..., n)` is beyond its bound at `(..., D)`, or nearer than its width."""
        gaps = (s - self.offset - features(z) @ np.asarray(self.linear).T) * self.side
        return np.any((gaps < self.width) & (np.abs(self.side) == 1.0), axis=-1)


class _Line(NamedTuple):
    """A candidate: coefficients of 1 and of the features, `(1 + 2 D,)`, `w`, the side, what takes the place of the
    statistic in the simulations, held out, `(m,)`, and its score, above what it has to add."""

    coefficients: np.ndarray
    width: float
    side: float
    statistic: np.ndarray
    score: float


class Extremes(NamedTuple):
    """The lowest and highest statistics, `(d, n)` both, of the simulations at each of the coordinates `z`, `(d, D)`."""

    z: np.ndarray
    low: np.ndarray
    high: np.ndarray


def fit_support_bounds(
    at: Inputs, s: np.ndarray, rows: np.ndarray, bounds: bool, extremes: Extremes | None = None
) -> tuple[SupportBounds, np.ndarray]:
    """Find the bounds of statistics `(m, n)`, and what takes the place of these, `(m, n)`.

    That is held out, so that simulations that hold a line are beyond it.

    Args:
        at: Coordinates.
        s: Statistics in robust standard deviations.
        rows: Simulations that lines are found from, and that are scored.
        bounds: Whether these, and lines in the middle, are looked for.
        extremes: Of more simulations, which hold the lines where there are so many that the score alone decides.
    Cost: four linear programmes for each statistic, and one for each coefficient of a line that may be a bound.
    """
    n = s.shape[1]
    if not bounds or len(rows) < FEWEST * (at.dim + 1):
        return SupportBounds(np.zeros(n), np.zeros((n, 2 * at.dim)), np.ones(n), np.zeros(n)), s
    single = [Extremes(extremes.z, *ends) for ends in zip(extremes.low.T, extremes.high.T)] if extremes else [None] * n
    found = host.in_parallel(partial(_best_line, at, rows), zip(s.T, single, strict=True))
    coefficients, width, side, statistics, _ = zip(*found)
    lines = np.array(coefficients)
    return SupportBounds(lines[:, 0], lines[:, 1:], np.array(width), np.array(side)), np.stack(statistics, axis=1)


def _best_line(at: Inputs, rows: np.ndarray, pair: tuple[np.ndarray, Extremes | None]) -> _Line:
    """The line that is worth it, of none, the bounds of a statistic and one in its middle."""
    (s, extremes), columns = pair, _columns(at.features)
    kinds = np.split(np.arange(1, columns.shape[1]), 2)  # normal, uniform
    lines = [_bound(at, columns, s, rows, extremes, np.append(0, some), end) for some in kinds for end in (1.0, -1.0)]
    none = _Line(np.zeros(columns.shape[1]), 1.0, 0.0, s, _score(at, s, rows))
    return max(filter(None, [none, *lines, _middle(at, columns, s, rows)]), key=attrgetter("score"))


def _columns(some: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ones((len(some), 1)), some], axis=1)


def _line(at, rows, coefficients, width, side, gaps, worth):
    """The candidate with these gaps, which has to add so much to the held-out log density, in nats a simulation."""
    statistic = np.arcsinh(gaps / width)
    score = _score(at, statistic, rows) - np.mean(log_cosh(statistic[rows], np)) - np.log(width)
    return _Line(coefficients, width, side, statistic, score - worth)


def _bound(at, columns, column, rows, extremes, some, side) -> _Line | None:
    """The bound of a statistic by a line in some columns, if simulations crowd at it, or its extremes are known."""
    used, s = columns[np.ix_(rows, some)], side * column[rows]
    if extremes:
        used, s = _columns(features(extremes.z))[:, some], extremes.low if side > 0.0 else -extremes.high
    found = lower_line(used, s)
    gaps = s - used @ found
    # A line that moves by a smaller fraction of the median gap than this is an end of the statistic, which a marginal
    # transformation serves; there is none to NaN
    if not np.std(used @ found) >= 0.1 * np.median(gaps) or not (extremes or _crowded(gaps, len(some))):
        return None
    held = np.flatnonzero(gaps < TOUCHING)  # only these hold the line
    beyond = [s[i] - used[i] @ lower_line(np.delete(used, i, axis=0), np.delete(s, i)) for i in held]
    width = max(-np.median(beyond), NARROWEST)
    gaps = side * column - columns[:, some] @ found
    if not extremes:
        gaps[rows[held]] = beyond
    coefficients = np.zeros(columns.shape[1])
    coefficients[some] = side * found
    coefficients[0] += side * width
    worth = 0.0 if extremes else WORTH
    return _line(at, rows, coefficients, width, side, side * (gaps - width), worth) if np.isfinite(width) else None


def lower_line(columns: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Coefficients `(p,)` of the closest line `columns @ c <= s`, by a linear programme; NaN where there is none."""
    # there is nothing to leave out, and looking takes longer
    how: dict[str, Any] = {"bounds": (-STEEPEST, STEEPEST), "options": {"presolve": False}}
    found = scipy.optimize.linprog(-columns.mean(axis=0), A_ub=columns, b_ub=s, **how).x
    return np.full(columns.shape[1], np.nan) if found is None else found


def _crowded(gaps: np.ndarray, coefficients: int) -> bool:
    """Tell whether a larger fraction of gaps than chance allows is near a line with so many coefficients."""
    inside = gaps[gaps > TOUCHING]
    least = CROWDED - 1.5 * np.sqrt(CROWDED / len(gaps)) + coefficients / len(gaps)
    return len(inside) > len(gaps) // 2 and np.mean(inside < NEAR * np.median(inside)) > least


def _middle(at, columns, s, rows) -> _Line | None:
    """The line in the middle of a statistic with heavy tails around it, where location and scale of these tails do not
    follow the coordinates."""
    if len(rows) < FEWEST * columns.shape[1]:
        columns = columns * (np.arange(columns.shape[1]) <= at.dim)
    found, gaps = robust_line(columns, s)
    width = max(robust_standard_deviation(gaps), NARROWEST)
    smoothness = Smoothness.start(at.dim, linear=0.1, length=1.0)
    if np.max(np.abs(gaps)) < LIGHT * width or explained(at.coarse[rows], gaps[rows] / width, smoothness) >= UNEVEN:
        return None
    return _line(at, rows, found, width, AROUND, gaps, 0.03)


def robust_line(columns: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients `(p,)` of the line `columns @ c` that maximises a Cauchy likelihood of `s`, and the gaps of all
    simulations `(m,)` from lines without them."""
    gaps = s - np.median(s)
    for _ in range(TURNS):
        scale = max(robust_standard_deviation(gaps), NARROWEST)
        weights = 1.0 / (1.0 + np.square(gaps / scale))
        weighted = columns * weights[:, None]
        inverse = np.linalg.pinv(weighted.T @ columns, hermitian=True)
        found = inverse @ (weighted.T @ s)
        gaps = s - columns @ found
    return found, gaps / (1.0 - np.sum((columns @ inverse) * weighted, axis=1))


def _score(at, s, rows):
    """Mean held-out log density of a statistic `(m,)` on `rows`, after the best marginal transformation."""
    centre, scale = np.median(s), robust_standard_deviation(s)
    column = np.clip((s[rows] - centre) / scale, -20.0, 20.0)
    _, scores = start_locations(at.coarse[rows], column[None], np.array([-centre / scale]))
    return scores[0] - np.log(scale)
