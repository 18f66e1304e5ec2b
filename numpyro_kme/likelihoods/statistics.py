"""What values statistics have, and monotone maps of single ones: the recorded, robust one, and learnt ones; jitter of
ties."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, robust_standard_deviation
from numpyro_kme.kernels.base import namespace, register

FEW, MOST_CATEGORIES, MOST_ENTRIES = 20, 50, 3
"""A category has so many values at most; of more joint categories, and more other entries, outputs are no trials but
statistics."""

OFTEN = 10
"""Trials that have the same value where it is a category; of whole numbers all, or they are counts."""

RARE = 100
"""Trials of a category from which its numbers are learnt by themselves; those of rarer ones are learnt together."""

COUNTS = 100
"""Values of a count that are told apart; nine in ten are among so many, or it is a number."""

ROUNDING = 1e-5
"""What values are the same to, relative to them: some are float32, others float64."""


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
        names: Names of all statistics, `(n_raw,)`; `x[0]`, `x[1]`, ... without (static).
    """

    centre: ArrayLike
    scale: ArrayLike
    reference: ArrayLike
    kept: tuple[int, ...] = field(metadata=dict(static=True))
    names: tuple[str, ...] = field(default=(), metadata=dict(static=True))

    def label(self, number: int) -> str:
        """Name of a statistic by its number among all."""
        return self.names[number] if self.names else f"x[{number}]"

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

    def inverse(self, t: np.ndarray) -> Any:
        """Transformed statistics `(..., n)` to raw ones."""
        return self.centre + self.width * sinh(self.shift + self.scale * t)

    def log_slope(self, x: Any, xp: Any = jnp) -> Any:
        """`log dt/dx`, `(..., n)`."""
        return -log_cosh(xp.arcsinh((x - self.centre) / self.width), xp) - xp.log(self.width) - xp.log(self.scale)


def sinh(v: Any) -> np.ndarray:
    """`sinh v` for `|v|` up to 300, beyond which it stays finite."""
    return np.sinh(np.clip(v, -300.0, 300.0))


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

    A value that more than 2% of the simulations have in common, off a lattice, is an atom of a distribution that is
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


@register
class Entries:
    """The kinds of values that the entries of a trial have.

    Attributes:
        atoms: Values of each entry that are categories, ascending.
        categories: Which of these, counted from 1, or none, 0, each joint category has, `(C, n)`.
        members: Categories whose counts and numbers are learnt together, those with any: one that is common by itself,
            and rare ones with all that have the same entries (static).
        fewest: Trials of the fewest of these (static).
        counts: Entries whose other values are counts (static).
        numbers: Entries whose other values are numbers (static).
    """

    atoms: tuple[Array, ...]
    categories: Array
    counts: tuple[int, ...] = field(metadata=dict(static=True))
    numbers: tuple[int, ...] = field(metadata=dict(static=True))
    members: tuple[tuple[int, ...], ...] = field(default=(), metadata=dict(static=True))
    fewest: int = field(default=0, metadata=dict(static=True))

    @classmethod
    def of(cls, x: np.ndarray) -> "Entries":
        """Tell the entries of simulated trials `(m, n)` apart; NaN, nothing recorded, is a category."""
        x, atoms = np.asarray(x, np.float64), []  # of booleans too
        counts: list[int] = []
        numbers: list[int] = []
        for entry, column in enumerate(x.T):
            lost, column = np.full(min(1, np.isnan(column).sum()), np.nan), column[~np.isnan(column)]
            values, repeats = np.unique(column, return_counts=True)
            lattice = len(values) < len(column) and is_lattice(values)
            near = lattice and np.quantile(column, 0.9) <= values[0] + COUNTS * np.diff(values).min()
            if len(values) <= FEW and repeats.min(initial=OFTEN) >= np.clip(len(column) // FEW, 2, OFTEN):
                atoms.append(np.append(values, lost))
                continue
            rare = repeats[repeats < OFTEN]  # of the logarithm of a count most are as rare, and none is an atom
            atoms.append(np.append(values[(repeats >= OFTEN) & (2 * len(rare) > rare.sum()) & (not lattice)], lost))
            (counts if near else numbers).append(entry)
        found = cls(tuple(atoms), np.zeros((0, x.shape[1])), tuple(counts), tuple(numbers))
        categories, shares = np.unique(found.codes(x, np), axis=0, return_counts=True)
        found, members = replace(found, categories=categories), {}
        free = categories[:, sorted(counts + numbers)] == 0.0
        alike = np.unique(free, axis=0, return_inverse=True)[1].ravel()
        for number in np.flatnonzero(free.any(axis=1)):
            some = np.array([number]) if shares[number] >= RARE else np.flatnonzero(alike == alike[number])
            members[tuple(some.tolist())] = int(shares[some].sum())
        return replace(found, members=tuple(members), fewest=min(members.values(), default=len(x)))

    def are_trials(self, repeated: bool) -> bool:
        """Tell whether outputs are trials, with categories, counts or one `repeated` number, and not statistics."""
        others = len(self.counts) + len(self.numbers)
        some = bool(self.counts) or len(self.categories) > 1 or (repeated and others == 1)
        return some and len(self.categories) <= MOST_CATEGORIES and others <= MOST_ENTRIES

    def codes(self, y: Any, xp: Any = jnp) -> Any:
        """The atom that each entry of trials `(..., n)` has, its number, counted from 1; 0 for none."""
        found = []
        for entry, atoms in enumerate(self.atoms):
            value = y[..., entry, None]
            same = xp.abs(value - atoms) <= ROUNDING * xp.maximum(1.0, xp.abs(atoms))
            same = same | (xp.isnan(value) & xp.isnan(atoms))
            found.append(xp.sum(same * np.arange(1, len(atoms) + 1), axis=-1))
        return xp.stack(found, axis=-1)

    def agree(self, y: Any, xp: Any = jnp) -> Any:
        """Tell which joint categories trials `(..., n)` may have, `(..., C)`: one, none that a simulation has, or all
        that agree with what was observed, where NaN is what was not."""
        unknown = xp.isnan(y) & ~xp.stack([xp.isnan(xp.asarray(atoms)).any() for atoms in self.atoms])
        return xp.all((self.codes(y, xp)[..., None, :] == self.categories) | unknown[..., None, :], axis=-1)

    def listed(self) -> str:
        """Values of the joint categories in words; `any` stands for counts and numbers."""
        named = [[f"{own[int(c) - 1]:g}" if c else "any" for own, c in zip(self.atoms, row)] for row in self.categories]
        return ", ".join("[" + ", ".join(row) + "]" for row in named)

    def others(self, category: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Counts and numbers that are left of a category."""
        free = np.asarray(self.categories)[category] == 0
        return tuple(i for i in self.counts if free[i]), tuple(i for i in self.numbers if free[i])
