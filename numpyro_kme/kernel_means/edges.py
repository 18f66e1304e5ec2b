r"""Edges: where the support of a statistic ends, a straight line in the features of the coordinates.

A smallest or largest value often bounds a parameter: $x_i \ge e_i(z)$ in every simulation. The closest such line,

$$ e_i = \arg\max_e \sum_j e(z_j) \quad \text{with} \quad e(z_j) \le x_{ij} \text{ for all } j, $$

is a linear programme. It is used where the gap $x_i - e_i(z)$ is easier to predict than $x_i$, by the held-out density; a new simulation
crosses it with probability of at most `p / (m + 1)` for `p` coefficients (those that hold the line are so many). An upper edge
is a lower one of $-x_i$.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linprog

from numpyro_kme._linalg import Array
from numpyro_kme.kernel_means.location import start_locations
from numpyro_kme.kernel_means.smoothness import Inputs, features
from numpyro_kme.kernel_means.statistics import robust_scale
from numpyro_kme.kernels.base import register

FEWEST = 20
"""Simulations for each coefficient of a line."""

NEAR, CROWDED = 0.1, 0.03
"""At an edge more than a share `CROWDED` of the gaps is below `NEAR` of their median; at the end of a normal tail 1 % are."""

GAIN = 0.1
"""Nats a simulation that an edge has to add to the held-out log density."""

TOUCHING = 1e-9
"""A gap below this, in standard deviations of the statistic, touches the line."""


STEEPEST = 1e3
"""Largest coefficient of a line."""


@register
class Edges:
    """The lines, in robust standard deviations of the statistics.

    Attributes:
        offset: `(n,)`.
        linear: Weights of the features, `(n, 2 D)`.
        side: 1 where the statistic stays above its line, -1 below, 0 where it has none, which is the line 0, `(n,)`.
    """

    offset: Array
    linear: Array
    side: Array

    @classmethod
    def none(cls, n: int, dim: int) -> "Edges":
        """No statistic has an edge."""
        return cls(np.zeros(n), np.zeros((n, 2 * dim)), np.zeros(n))

    def gaps(self, s: Array, z: jax.Array) -> jax.Array:
        """`s - e(z)` at one point `(D,)`."""
        return s - (self.offset + features(z, jnp, jax.lax.erf) @ jnp.asarray(self.linear).T).astype(z.dtype)

    def crossed(self, s: Array, z: jax.Array) -> jax.Array:
        """Whether a statistic is beyond its edge at one point `(D,)`."""
        return jnp.any(self.gaps(s, z) * self.side < 0.0)


@dataclass(frozen=True)
class _Line:
    """One line: its coefficients of 1 and the features, on which side the statistic `(m,)` is, and held-out gaps."""

    coefficients: np.ndarray
    side: float
    gaps: np.ndarray


def fit_edges(at: Inputs, s: np.ndarray, rows: np.ndarray, warp: bool) -> tuple[Edges, np.ndarray]:
    """Find the edges of statistics `(m, n)`, and the gaps, `(m, n)`: held out, so that those that hold a line are beyond it.

    Args:
        at: Coordinates.
        s: Statistics in robust standard deviations.
        rows: Simulations that are scored.
        warp: Whether statistics may be warped; without, none has an edge.
    Cost: four linear programmes for each statistic, and one for each coefficient of a line that is used.
    """
    edges, gaps = Edges.none(s.shape[1], at.dim), np.array(s)
    if not warp:
        return edges, gaps
    columns = np.concatenate([np.ones((len(at), 1)), at.features], axis=1)
    for i, column in enumerate(s.T):
        lines = [line for line in _lines(columns, column, rows) if _crowded(line.side * line.gaps[rows])]
        scores = [_score(at, column, rows), *(_score(at, line.gaps, rows) for line in lines)] if lines else [0.0]
        best = int(np.argmax(scores)) - 1
        if best >= 0 and scores[best + 1] > scores[0] + GAIN:
            line = lines[best]
            edges.offset[i], edges.linear[i], edges.side[i] = line.coefficients[0], line.coefficients[1:], line.side
            gaps[:, i] = line.gaps
    return edges, gaps


def _lines(columns, s, rows):
    """Lower and upper lines by normal and by uniform features that look like edges on `rows`."""
    dim = columns.shape[1] // 2
    for chosen in (np.arange(dim + 1), np.r_[0, dim + 1 : 2 * dim + 1]):
        if len(rows) < FEWEST * len(chosen):
            continue
        few = columns[:, chosen]
        for side in (1.0, -1.0):
            found = below(few[rows], side * s[rows])
            if not _crowded(side * s[rows] - few[rows] @ found):
                continue
            found, gaps = held_out_below(few, side * s)
            coefficients = np.zeros(columns.shape[1])
            coefficients[chosen] = side * found
            yield _Line(coefficients, side, side * gaps)


def _crowded(gaps):
    inside = gaps[gaps > TOUCHING]
    return len(inside) > len(gaps) // 2 and np.mean(inside < NEAR * np.median(inside)) > CROWDED


def below(columns: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Coefficients `(p,)` of the closest line `columns @ c <= s`; constraints that are violated are added until none is; NaN where there is none."""
    cost, active = -columns.mean(axis=0), np.arange(min(len(s), 200))
    while True:
        found = linprog(cost, A_ub=columns[active], b_ub=s[active], bounds=(-STEEPEST, STEEPEST)).x
        if found is None:
            return np.full(len(cost), np.nan)
        gaps = s - columns @ found
        worst = np.setdiff1d(np.argsort(gaps)[:100], active)
        worst = worst[gaps[worst] < -TOUCHING]
        if not len(worst):
            return found
        active = np.concatenate([active, worst])


def held_out_below(columns: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The closest line, and the gaps of all simulations `(m,)` from lines without them: others than those that touch do not hold it."""
    found = below(columns, s)
    gaps = s - columns @ found
    for j in np.flatnonzero(gaps < TOUCHING):
        rest = np.arange(len(s)) != j
        gaps[j] = s[j] - columns[j] @ below(columns[rest], s[rest])
    return found, gaps


def _score(at, s, rows):
    """Mean held-out log density of a statistic `(m,)` on `rows`, after the best warp."""
    centre, scale = np.median(s), robust_scale(s)
    column = np.clip((s[rows] - centre) / scale, -20.0, 20.0)
    _, scores = start_locations(at.coarse[rows], column[None], np.array([-centre / scale]), True)
    return scores[0] - np.log(scale)
