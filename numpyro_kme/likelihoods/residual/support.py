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
from itertools import chain
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

TOGETHER = 5
"""Statistics that one processor looks at, with one linear programme for all of them."""

FEWEST, LOOKED_AT = 20, 500
"""Simulations for each coefficient of a line; so many at least, if there are, tell whether there may be a bound. With
200 one bound of exponential gaps in six was overlooked."""

NEAR, CROWDED, LOOKS_CROWDED = 0.1, 0.03, 0.067
"""At a bound more than a fraction `CROWDED` of the gaps is below `NEAR` of their median, of exponential gaps
`LOOKS_CROWDED`, which at first sight may be missed by 1.5 standard errors; at the end of a normal tail 1 % are, where
scales vary up to 5 %, and as large a fraction more as the line has coefficients where it was fitted to them."""

TOUCHING = 1e-9
"""A gap below this, in standard deviations of the statistic, touches the line."""

AT_FIRST = 5
"""Constraints for each coefficient of a line that a linear programme begins with."""

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
    Cost: four linear programmes for each statistic, and one for each coefficient of a line that is used.
    """
    n, found = s.shape[1], np.array(s)
    support = SupportBounds(np.zeros(n), np.zeros((n, 2 * at.dim)), np.ones(n), np.zeros(n))
    if not bounds:
        return support, found
    columns = np.concatenate([np.ones((len(at), 1)), at.features], axis=1)
    groups = np.array_split(np.arange(n), -(-n // TOGETHER))
    lines = in_parallel(partial(_best_lines, at, columns, rows), [s[:, group] for group in groups])
    for i, line in enumerate(chain.from_iterable(lines)):
        if line is not None:
            support.offset[i], support.linear[i] = line.coefficients[0], line.coefficients[1:]
            support.width[i], support.side[i] = line.width, line.side
            found[:, i] = line.statistic
    return support, found


def _best_lines(at, columns, rows, s) -> list[_Line | None]:
    """For each of some statistics `(m, k)` the line that is worth it, of the bounds that it looks to have and one in
    the middle."""
    return [
        _best_line(at, columns, rows, column, looks)
        for column, looks in zip(s.T, _looking_crowded(columns, s, rows), strict=True)
    ]


def _best_line(at, columns, rows, column, looks) -> _Line | None:
    """Of a statistic, given by which columns and on which sides there may be bounds."""
    lines = [line for look in looks if (line := _bound(columns, column, rows, *look)) is not None]
    lines += _middles(at, columns, column, rows)
    # what a bound has to add to the held-out log density, in nats a simulation; a line in the middle little
    scores = [line.score(at, rows) - (0.03 if line.side == AROUND else 0.1) for line in lines]
    return lines[int(np.argmax(scores))] if lines and max(scores) > _score(at, column, rows) else None


def _looking_crowded(columns, s, rows) -> list[list[tuple[np.ndarray, float]]]:
    """For each statistic, by which columns, and on which side, a line looks like a bound on some of `rows`."""
    dim, n = columns.shape[1] // 2, s.shape[1]
    both = np.concatenate([s.T, -s.T])
    found: list[list[tuple[np.ndarray, float]]] = [[] for _ in range(n)]
    for chosen in (np.arange(dim + 1), np.r_[0, dim + 1 : 2 * dim + 1]):
        if len(rows) < FEWEST * len(chosen):
            continue
        few, some = columns[:, chosen], rows[: max(LOOKED_AT, FEWEST * len(chosen))]
        least = LOOKS_CROWDED - 1.5 * np.sqrt(LOOKS_CROWDED / len(some)) + len(chosen) / len(some)
        for i, line in enumerate(linear_lower_bounds(few[some], both[:, some]) @ few[some].T):
            gaps = both[i, some] - line
            # A line that moves by a smaller fraction of the median gap than this is an end of the statistic, which a
            # marginal transformation serves
            if np.std(line) >= 0.1 * np.median(gaps) and _crowded(gaps, least):
                found[i % n].append((chosen, 1.0 if i < n else -1.0))
    return found


def _bound(columns, column, rows, chosen, side) -> _Line | None:
    """The bound of a statistic by lines in some columns, if simulations crowd at it."""
    found, gaps = held_out_lower_bound(columns[:, chosen], side * column)
    if not _crowded(gaps[rows]):
        return None
    coefficients, width = np.zeros(columns.shape[1]), max(np.median(-gaps[gaps < 0.0]), NARROWEST)
    coefficients[chosen] = side * found
    coefficients[0] += side * width
    return _Line(coefficients, width, side, np.arcsinh(side * (gaps - width) / width))


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


def _crowded(gaps, least=CROWDED):
    inside = gaps[gaps > TOUCHING]
    return len(inside) > len(gaps) // 2 and np.mean(inside < NEAR * np.median(inside)) > least


def linear_lower_bounds(columns: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Coefficients `(k, p)` of the closest lines `columns @ c <= s_i` for each of `k` rows `s_i` `(m,)`.

    NaN where there is none. A simulation of infinite value is left out.

    By one linear programme of separate blocks, each with the constraints that are nearest to a regression, to which
    those that are violated are added until none is.
    """
    here, found = np.isfinite(s), np.full((len(s), columns.shape[1]), np.nan)
    costs = -(here @ columns) / here.sum(axis=1, keepdims=True)
    regressed = np.linalg.lstsq(columns, np.where(here, s, 0.0).T, rcond=None)[0]
    nearest = np.argsort(s - (columns @ regressed).T)[:, : AT_FIRST * columns.shape[1]]
    active = [some[finite[some]] for some, finite in zip(nearest, here, strict=True)]
    missing = np.arange(len(s))
    while len(missing):
        found[missing] = _programmes(columns, s[missing], costs[missing], [active[i] for i in missing])
        gaps = s[missing] - found[missing] @ columns.T
        for i, gap in zip(missing, gaps, strict=True):
            worst = np.setdiff1d(np.argsort(gap)[:100], active[i])
            active[i] = np.concatenate([active[i], worst[gap[worst] < -TOUCHING]])
        missing = missing[np.any(gaps < -TOUCHING, axis=1)]
    return found


def _programmes(columns, s, costs, active):
    """Lines below the active constraints, all at once; one by one where one of them has none."""
    blocks = scipy.sparse.block_diag([scipy.sparse.coo_array(columns[some]) for some in active], format="csc")
    ends = np.concatenate([row[some] for row, some in zip(s, active, strict=True)])
    bounds, how = (-STEEPEST, STEEPEST), {"presolve": False}  # there is nothing to leave out, and looking takes longer
    at_once = scipy.optimize.linprog(costs.ravel(), A_ub=blocks, b_ub=ends, bounds=bounds, options=how).x
    if at_once is not None:
        return at_once.reshape(costs.shape)
    if len(s) == 1:
        return np.full(costs.shape, np.nan)
    return np.concatenate([_programmes(columns, s[[i]], costs[[i]], [some]) for i, some in enumerate(active)])


def held_out_lower_bound(columns: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The closest line, and the gaps of all simulations `(m,)` from lines without them.

    Only the simulations that touch the line hold it.
    """
    found = linear_lower_bounds(columns, s[None])[0]
    gaps = s - columns @ found
    held = np.flatnonzero(gaps < TOUCHING)
    without = np.tile(s, (len(held), 1))
    without[np.arange(len(held)), held] = np.inf
    if len(held):
        gaps[held] = s[held] - np.sum(columns[held] * linear_lower_bounds(columns, without), axis=1)
    return found, gaps


def _score(at, s, rows):
    """Mean held-out log density of a statistic `(m,)` on `rows`, after the best marginal transformation."""
    centre, scale = np.median(s), robust_standard_deviation(s)
    column = np.clip((s[rows] - centre) / scale, -20.0, 20.0)
    _, scores = start_locations(at.coarse[rows], column[None], np.array([-centre / scale]), True)
    return scores[0] - np.log(scale)
