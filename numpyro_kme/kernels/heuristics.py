"""Length scales from the data alone."""

import jax
import numpy as np
from scipy.spatial.distance import pdist

from numpyro_kme._core import checks

Array = jax.Array | np.ndarray
MAX_POINTS = 2048


def median_heuristic(x: Array, *, max_points: int | None = MAX_POINTS, ties: bool = True) -> np.ndarray:
    r"""Median distance between the points, `l = sqrt(median_{i<j} |x_i - x_j|_2^2)`.

    A first guess in the units of the data; it says nothing about which differences matter.

    Args:
        x: `(n, dim)` concrete points, `n >= 2`.
        max_points: Above this many points, the median is over the pairs of this many of them, picked at
            random by a NumPy generator with seed 0: the answer is deterministic, and for 2048 points its
            standard error is one to three per cent. `None` uses every pair.
        ties: Whether pairs that coincide count. Leave them out for counts and other numbers that often agree.
    Returns:
        A float64 scalar.
    Raises:
        ValueError: If the median is 0, because half of the pairs coincide; without ties, if all do.
    Cost: `min(n, max_points)^2 / 2` distances, in time and memory, on the host.
    """
    return _median_distance("x", _subset("x", x, max_points), ties)


def median_heuristic_per_dimension(x: Array, *, max_points: int | None = MAX_POINTS, ties: bool = True) -> np.ndarray:
    r"""One length scale per dimension, `l_d = c m_d`, with `m_d` the median distance along dimension `d`.

    The factor `c` is the median heuristic of `x / m`: the median of `|(x_i - x_j) / l|_2` is 1, as it is for
    `median_heuristic`, and with columns that are alike both give about the same kernel.

    Args:
        x: `(n, dim)` concrete points, `n >= 2`.
        max_points, ties: As in `median_heuristic`.
    Returns:
        `(dim,)` in float64.
    Raises:
        ValueError: If a column's median is 0, because half of its pairs coincide (without ties, all of them); the
            error names the column.
    Cost: `dim + 1` times that of `median_heuristic`.
    """
    subset = _subset("x", x, max_points)
    columns = [_median_distance(f"x[:, {d}]", subset[:, d : d + 1], ties) for d in range(subset.shape[1])]
    return np.stack(columns) * _median_distance("x", subset / np.stack(columns), ties)


def _subset(name, x, max_points):
    checks.require(
        checks.is_concrete(x),
        f"`{name}` is traced: the median heuristic runs on the host; call it outside `jax.jit`.",
        TypeError,
    )
    checks.matrix(name, x, min_rows=2)
    checks.sound(name, x)
    x = np.asarray(x, dtype=np.float64)
    if max_points is None or len(x) <= max_points:
        return x
    checks.require(max_points >= 2, f"`max_points` must be at least 2; got {max_points}.")
    return x[np.random.default_rng(0).choice(len(x), max_points, replace=False)]


def _median_distance(name, x, ties):
    squares = pdist(x, "sqeuclidean")
    squares = squares if ties else squares[squares > 0.0]
    median = np.sqrt(np.median(squares)) if len(squares) else 0.0
    checks.require(
        bool(median > 0),
        f"The median distance between the points of `{name}` is 0: {'at least half' if ties else 'all'} of the pairs "
        "coincide. Pass a length scale by hand, or remove repeated points first.",
    )
    return median
