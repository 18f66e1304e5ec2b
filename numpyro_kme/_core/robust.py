"""Robust scales: the median absolute deviation, and a robust standard deviation of anything that varies."""

import numpy as np
from numpy.typing import ArrayLike

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution in median absolute deviations."""
NORMAL_IQR = 1.349
"""Interquartile range of a normal distribution in standard deviations."""


def median_absolute_deviation(x: np.ndarray, centre: ArrayLike | None = None) -> np.ndarray:
    """`median_i |x_i - centre|` over the first axis, `(...)`, in the units of `x`; 0 where half of a column agrees.

    Args:
        x: `(m, ...)`.
        centre: `(...)`; the median when left out.
    """
    return np.median(np.abs(x - (np.median(x, axis=0) if centre is None else centre)), axis=0)


def mad_or_sd(x: np.ndarray) -> np.ndarray:
    """The median absolute deviation over the first axis, or where that is 0 the standard deviation, `(...)`."""
    mad = median_absolute_deviation(x)
    return np.where(mad > 0, mad, np.std(x, axis=0))


def robust_standard_deviation(column: np.ndarray) -> float:
    """A robust standard deviation of `(m,)` numbers, consistent for a normal distribution; positive unless all agree.

    `1.4826 median |x - median|`; where that is 0, the interquartile range over `1.349`; where that is 0 too, the median
    of the deviations that are not 0. Deviations below 1e-13 of the median are rounding, and count as 0.
    """
    centre = np.median(column)
    low, high = np.quantile(column, [0.25, 0.75])
    rounding = 1e-13 * abs(centre)
    for scale in (NORMAL_MAD * median_absolute_deviation(column, centre), (high - low) / NORMAL_IQR):
        if scale > rounding:
            return float(scale)
    deviations = np.abs(column - centre)
    return float(np.median(deviations[deviations > rounding]))
