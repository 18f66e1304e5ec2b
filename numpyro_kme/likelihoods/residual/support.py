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

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from numpyro_kme._core.solves import Array
from numpyro_kme._core.threads import in_parallel
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.length_scales import robust_standard_deviation
from numpyro_kme.likelihoods.residual.location_scale import explained, start_locations
from numpyro_kme.likelihoods.residual.smoothness import Inputs, features
from numpyro_kme.likelihoods.statistics import log_cosh

FEWEST, LOOKED_AT = 20, 500
"""Simulations for each coefficient of a line, at least; this many tell whether there may be a bound. With 200 one bound
of exponential gaps in six was overlooked."""

NEAR, CROWDED = 0.1, 0.067
"""At a bound the fraction `CROWDED` of exponential gaps is below `NEAR` of their median, which chance may lower by 1.5
standard errors; at the end of a normal tail 1 % are, where scales vary up to 5 %, and as large a fraction more as the
line has coefficients."""

TOUCHING = 1e-9
"""A gap below this, in standard deviations of the statistic, touches the line."""

FAR, HEAVY, UNEVEN, TURNS = 4.0, 0.02, 0.02, 20
"""Tails are heavy if a larger fraction than `HEAVY` is beyond `FAR` robust standard deviations, and not because their
location or scale follow the coordinates, which would explain more than `UNEVEN`; turns in which the line is found."""

STILL = 0.01
"""A line in the middle is found when it moves by less, in robust standard deviations around it, at any simulation."""

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
        """What takes the place of statistics `(..., n)` at points `(..., D)`, and logs of the slopes, `(..., n)`; the
        statistics themselves and 0 by NumPy where there is no line."""
        if xp is np and not np.any(self.side):
            return s, 0.0
        line = self.offset + features(z, xp) @ xp.asarray(self.linear).T
        gaps, bounded = s - line.astype(z.dtype), xp.asarray(self.side) != 0.0
        found = xp.arcsinh(gaps / self.width)
        return xp.where(bounded, found, gaps), xp.where(bounded, -log_cosh(found, xp) - xp.log(self.width), 0.0)

    def outside_support(self, s: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Whether one of the statistics `(..., n)` is beyond its bound, or nearer than its width, at points `(..., D)`.

        On the host.
        """
        gaps = (s - self.offset - features(z) @ np.asarray(self.linear).T) * self.side
        return np.any((gaps < self.width) & (np.abs(self.side) == 1.0), axis=-1)


class _Line(NamedTuple):
    """A candidate for a bound.

    Attributes:
        coefficients: Coefficients of 1 and of the features, `(1 + 2 D,)`.
        width: `w`.
        side: 1 where the statistic stays above the line, -1 below.
        statistic: What takes the place of the statistic in the simulations, held out, `(m,)`.
    """

    coefficients: np.ndarray
    width: float
    side: float
    statistic: np.ndarray

    def score(self, at: Inputs, rows: np.ndarray) -> float:
        """Mean held-out log density of the statistic."""
        log_slope = -np.mean(log_cosh(self.statistic[rows], np)) - np.log(self.width)
        return _score(at, self.statistic, rows) + log_slope


def fit_support_bounds(at: Inputs, s: np.ndarray, rows: np.ndarray, bounds: bool) -> tuple[SupportBounds, np.ndarray]:
    """Find the bounds of statistics `(m, n)`, and what takes the place of these, `(m, n)`.

    That is held out, so that simulations that hold a line are beyond it.

    Args:
        at: Coordinates.
        s: Statistics in robust standard deviations.
        rows: Simulations that are scored.
        bounds: Whether these, and lines in the middle, are looked for.
    Cost: eight linear programmes for each statistic at most, and one for each coefficient of a line that is used.
    """
    n, found = s.shape[1], np.array(s)
    support = SupportBounds(np.zeros(n), np.zeros((n, 2 * at.dim)), np.ones(n), np.zeros(n))
    if not bounds:
        return support, found
    for i, line in enumerate(in_parallel(partial(_best_line, at, rows), s.T)):
        if line is not None:
            support.offset[i], support.linear[i] = line.coefficients[0], line.coefficients[1:]
            support.width[i], support.side[i] = line.width, line.side
            found[:, i] = line.statistic
    return support, found


def _best_line(at: Inputs, rows: np.ndarray, column: np.ndarray) -> _Line | None:
    """The line that is worth it, if there is one, of the bounds of a statistic and one in its middle."""
    columns = np.concatenate([np.ones((len(at), 1)), at.features], axis=1)
    few = np.arange(at.dim + 1), np.r_[0, at.dim + 1 : 2 * at.dim + 1]
    lines = [line for side in (1.0, -1.0) for some in few for line in _bounds(columns, column, rows, some, side)]
    lines += _middles(at, columns, column, rows)
    # what a bound has to add to the held-out log density, in nats a simulation; a line in the middle little
    scores = [line.score(at, rows) - (0.03 if line.side == AROUND else 0.1) for line in lines]
    return lines[int(np.argmax(scores))] if lines and max(scores) > _score(at, column, rows) else None


def _bounds(columns, column, rows, chosen, side) -> Iterator[_Line]:
    """The bound of a statistic by lines in some columns, if simulations crowd at it: on some rows, and on all."""
    for subset in (rows[:LOOKED_AT], np.arange(len(columns))):
        if len(subset) < FEWEST * len(chosen):
            return
        used, s = columns[np.ix_(subset, chosen)], side * column[subset]
        found = lower_line(used, s)
        gaps = s - used @ found
        # A line that moves by a smaller fraction of the median gap than this is an end of the statistic, which a
        # marginal transformation serves; there is none to NaN
        if not np.std(used @ found) >= 0.1 * np.median(gaps) or not _crowded(gaps, len(chosen)):
            return
    held = np.flatnonzero(gaps < TOUCHING)  # only these hold the line
    for i in held:
        gaps[i] = s[i] - used[i] @ lower_line(np.delete(used, i, axis=0), np.delete(s, i))
    width, coefficients = max(np.median(-gaps[held]), NARROWEST), np.zeros(columns.shape[1])
    coefficients[chosen] = side * found
    coefficients[0] += side * width
    if np.isfinite(width):
        yield _Line(coefficients, width, side, np.arcsinh(side * (gaps - width) / width))


def lower_line(columns: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Coefficients `(p,)` of the closest line `columns @ c <= s`, by a linear programme; NaN where there is none."""
    # there is nothing to leave out, and looking takes longer
    how: dict[str, Any] = {"bounds": (-STEEPEST, STEEPEST), "options": {"presolve": False}}
    found = scipy.optimize.linprog(-columns.mean(axis=0), A_ub=columns, b_ub=s, **how).x
    return np.full(columns.shape[1], np.nan) if found is None else found


def _crowded(gaps: np.ndarray, coefficients: int) -> bool:
    """Whether a larger fraction of gaps than chance allows is near a line with so many coefficients."""
    inside = gaps[gaps > TOUCHING]
    least = CROWDED - 1.5 * np.sqrt(CROWDED / len(gaps)) + coefficients / len(gaps)
    return len(inside) > len(gaps) // 2 and np.mean(inside < NEAR * np.median(inside)) > least


def _middles(at, columns, s, rows):
    """The line in the middle of a statistic with heavy tails around it, where location and scale of these tails do not
    follow the coordinates."""
    dim = columns.shape[1] // 2
    some = np.arange(2 * dim + 1 if len(rows) >= FEWEST * (2 * dim + 1) else dim + 1)
    if len(rows) < FEWEST * len(some):
        return
    found, gaps = robust_line(columns[:, some], s, TURNS)
    width = max(robust_standard_deviation(gaps), NARROWEST)
    if np.mean(np.abs(gaps) > FAR * width) <= HEAVY:
        return
    if explained(at.z[rows], at.coarse.inducing_points, gaps[rows] / width) < UNEVEN:
        coefficients = np.zeros(columns.shape[1])
        coefficients[some] = found
        yield _Line(coefficients, width, AROUND, np.arcsinh(gaps / width))


def robust_line(columns: np.ndarray, s: np.ndarray, turns: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients `(p,)` of the line `columns @ c` that maximises a Cauchy likelihood of `s`, and the gaps of all
    simulations `(m,)` from lines without them."""
    gaps = s - np.median(s)
    for _ in range(turns):
        scale, before = max(robust_standard_deviation(gaps), NARROWEST), gaps
        weights = 1.0 / (1.0 + np.square(gaps / scale))
        weighted = columns * weights[:, None]
        inverse = np.linalg.pinv(weighted.T @ columns, hermitian=True)
        found = inverse @ (weighted.T @ s)
        gaps = s - columns @ found
        if np.max(np.abs(gaps - before)) < STILL * scale:
            break
    return found, gaps / (1.0 - np.sum((columns @ inverse) * weighted, axis=1))


def _score(at, s, rows):
    """Mean held-out log density of a statistic `(m,)` on `rows`, after the best marginal transformation."""
    centre, scale = np.median(s), robust_standard_deviation(s)
    column = np.clip((s[rows] - centre) / scale, -20.0, 20.0)
    _, scores = start_locations(at.coarse[rows], column[None], np.array([-centre / scale]), True)
    return scores[0] - np.log(scale)
