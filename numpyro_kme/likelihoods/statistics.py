"""Monotone maps of single statistics: the recorded, robust one to standardised ones, learnt ones; jitter of ties."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, robust_standard_deviation
from numpyro_kme.kernels.base import namespace, register


@register
class StatisticsTransform:
    r"""`s_i = arcsinh((x_i - centre_i) / scale_i)` for every statistic that varies.

    The centre is the median and the scale a robust standard deviation, so that a single simulation of `1e30` changes
    nothing for the others and is itself brought within reach. Statistics that are constant over the simulations say
    nothing about parameters and are left out.

    Args:
        centre: Medians of the kept statistics, `(n,)`, raw units.
        scale: Robust standard deviations of the kept statistics, `(n,)`, raw units.
        reference: One simulation, `(n_raw,)`: the values of the statistics that are constant.
        kept: Indices of the statistics that vary (static).
        names: Names of all statistics, `(n_raw,)`; none where they have only numbers (static).
    """

    centre: ArrayLike
    scale: ArrayLike
    reference: ArrayLike
    kept: tuple[int, ...] = field(metadata=dict(static=True))
    names: tuple[str, ...] = field(default=(), metadata=dict(static=True))

    def label(self, number: int) -> str:
        """Name of a statistic by its number among all, or that."""
        return self.names[number] if self.names else str(number)

    def named(self, names: Sequence[str]) -> "StatisticsTransform":
        """Name the statistics, if there are as many names."""
        return replace(self, names=tuple(names)) if len(names) == self.num_raw else self

    @classmethod
    def fit(cls, x: ArrayLike) -> "StatisticsTransform":
        """Fit to simulated statistics `(m, n_raw)`.

        The scale is `1.4826 median |x - median|`; where that is 0, the interquartile range over `1.349`; where that is
        0 too, the median of the deviations that are not 0.

        Raises:
            ValueError: If entries are not finite, or no statistic varies.
        """
        checks.table("x", x, advice="Leave out the simulations that failed.")
        x = np.asarray(x, dtype=np.float64)
        lowest, highest = x.min(axis=0), x.max(axis=0)
        varies = highest / 2 - lowest / 2 > 1e-13 * np.maximum(np.abs(lowest), np.abs(highest))
        kept, constant = tuple(np.flatnonzero(varies).tolist()), np.flatnonzero(~varies).tolist()
        checks.require(
            bool(kept), f"All {x.shape[1]} statistics are constant over the {len(x)} simulations: check the simulator."
        )
        if constant:
            checks.warn(f"Statistics {constant} are constant over the simulations and are left out.")
        columns = x[:, varies]
        return cls(np.median(columns, axis=0), np.apply_along_axis(robust_standard_deviation, 0, columns), x[0], kept)

    def lacks(self, y: ArrayLike) -> bool:
        """Tell whether an observation `(n_raw,)` is NaN, not observed, in one of the kept statistics."""
        checks.real("y", y)
        return np.shape(y) == (self.num_raw,) and bool(np.isnan(np.asarray(y)[list(self.kept)]).any())

    def numbers(self, seen: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Numbers of the kept statistics that are marked, `(n_raw,)`, in their order but for some that come last.

        Raises:
            ValueError: If none of them varies.
        """
        kept = np.array(self.kept)
        chosen = np.flatnonzero(seen[kept])
        vary, number = len(chosen) > 0, int(np.sum(seen))
        checks.require(vary, f"Of {self.num_raw} statistics {number} are observed, and none of these varies there.")
        return chosen[np.argsort(last[kept[chosen]], kind="stable")]

    def some(self, chosen: np.ndarray) -> "StatisticsTransform":
        """Keep some of the kept statistics, by their numbers among these."""
        kept = tuple(self.kept[i] for i in chosen)
        return replace(self, centre=np.asarray(self.centre)[chosen], scale=np.asarray(self.scale)[chosen], kept=kept)

    @property
    def num_raw(self) -> int:
        """Number of raw statistics."""
        return jnp.shape(self.reference)[0]

    def forward(self, x: Any) -> Any:
        """Raw statistics `(..., n_raw)` to standardised ones `(..., n)`; by NumPy where they are NumPy's."""
        fits = jnp.shape(x)[-1:] == (self.num_raw,)
        checks.require(fits, f"`x` must have shape (..., {self.num_raw}), one for each statistic; got {jnp.shape(x)}.")
        columns, xp = x[..., np.array(self.kept)], namespace(self, x)
        checks.sound("x", columns)
        row = (1,) * (np.ndim(x) - 1) + (len(self.kept),)
        return xp.arcsinh((columns - xp.reshape(self.centre, row)) / xp.reshape(self.scale, row))

    def log_abs_det_jacobian(self, x: Any) -> Any:
        """`sum_i log |ds_i / dx_i|` over the kept statistics, `(...)`; by NumPy where they are NumPy's."""
        xp = namespace(self, x)
        return -xp.sum(log_cosh(self.forward(x), xp), axis=-1) - xp.sum(xp.log(self.scale))

    def check(self, y: ArrayLike) -> None:
        """Raise unless a concrete observation has the right shape, is finite, and agrees with constant statistics.

        NaN, not observed, may stand where no kept statistic does.
        """
        checks.real("y", y)
        y = np.asarray(y, dtype=np.float64)
        checks.shaped("y", y, (self.num_raw,), "entry for each simulated statistic")
        reference, missing = np.asarray(self.reference), np.isnan(y)
        missing[list(self.kept)] = False
        checks.sound("y", np.where(missing, 0.0, y))
        agrees = missing | np.isclose(y, reference, rtol=1e-6, atol=0.0)
        agrees[list(self.kept)] = True
        i = int(np.argmin(agrees))
        checks.require(
            bool(agrees.all()),
            f"Statistic {self.label(i)} is {reference[i]} in every simulation but {y[i]} as observed: leave it out.",
        )


@register
class MarginalTransform:
    r"""`t = (arcsinh((x - centre) / width) - shift) / scale`, for `n` statistics at once.

    One family for what statistics need: a straight line for a large `width`, a logarithm for a small one (counts and
    positive statistics with `centre` near 0, left-skewed ones with it above), both tails shortened in between.
    Monotone, onto the real line, defined for every value.

    Args:
        centre, width: Raw units, `(n,)`.
        shift, scale: Units of the arcsinh, `(n,)`.
    """

    centre: Array
    width: Array
    shift: Array
    scale: Array

    def __call__(self, x: Any, xp: Any = jnp) -> Any:
        """Raw statistics `(..., n)` to transformed ones, by JAX or NumPy."""
        return (xp.arcsinh((x - self.centre) / self.width) - self.shift) / self.scale

    def log_slope(self, x: Any, xp: Any = jnp) -> Any:
        """`log dt/dx`, `(..., n)`."""
        return -log_cosh(xp.arcsinh((x - self.centre) / self.width), xp) - xp.log(self.width) - xp.log(self.scale)


def log_cosh(v: Any, xp: Any = jnp) -> Any:
    """`log cosh v = log sqrt(1 + sinh(v)^2)` without overflow."""
    return xp.logaddexp(v, -v) - np.log(2.0)


def is_lattice(values: np.ndarray) -> bool:
    """Tell whether ascending values, as of counts and proportions, are whole multiples of their smallest gap, a million
    at most: all numbers in float32 are multiples of some."""
    if len(values) < 2:
        return False
    whole = (values - values[0]) / np.diff(values).min()
    return bool(whole[-1] < 1e6 and np.max(np.abs(whole - np.round(whole))) < 1e-3)  # of float32, too


def jitter_width(column: np.ndarray) -> np.ndarray:
    """Width over which each of the values `(m,)` is jittered: the lattice's step, a little for other atoms, or 0.

    A value that more than 2 % of the simulations have in common, off a lattice, is an atom of a distribution that is
    continuous elsewhere. It has no density; it gets the width of a twentieth of the middle half of the other values.
    """
    values, which, counts = np.unique(column, return_inverse=True, return_counts=True)
    if len(values) < len(column) and is_lattice(values):
        return np.full(len(column), np.diff(values).min())
    atoms = (counts > 1) & (counts > 0.02 * len(column))
    rest = column[~atoms[which]]
    middle = np.subtract(*np.quantile(rest, [0.75, 0.25])) if len(rest) > 3 else np.ptp(values)
    return np.where(atoms[which], 0.05 * middle, 0.0)


def jitter_ties(x: np.ndarray) -> np.ndarray:
    """Jitter tied values evenly over the cell around them, `(m, n)`, so that a density can describe them.

    `x + w (u - 1/2)` with `u` even over `[0, 1]` in an order fixed for each column. On a lattice the density at a value
    times its cell is its probability.
    """
    size = len(x)
    jittered = np.array(x, np.float64)
    for i, column in enumerate(x.T):
        width = jitter_width(column)
        order = np.random.default_rng(i).permutation(size)
        # multiples of the golden ratio fill the unit interval evenly
        jittered[:, i] += width * ((np.arange(size) * 0.6180339887498949 + 0.5) % 1.0 - 0.5)[order]
    return jittered
