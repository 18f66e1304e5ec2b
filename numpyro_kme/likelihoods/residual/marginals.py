r"""Learnt monotone transformations of single statistics, and the jittering of tied values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register

GOLDEN = 0.6180339887498949


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

    def __call__(self, x: Array) -> jax.Array:
        """Raw statistics `(..., n)` to transformed ones."""
        return (jnp.arcsinh((x - self.centre) / self.width) - self.shift) / self.scale

    @property
    def middle(self) -> np.ndarray:
        """Raw statistics that are transformed to 0, `(n,)`."""
        return np.asarray(self.centre) + np.asarray(self.width) * np.sinh(np.asarray(self.shift))

    def log_slope(self, x: Array) -> jax.Array:
        """`log dt/dx`, `(..., n)`."""
        return -log_cosh(jnp.arcsinh((x - self.centre) / self.width)) - jnp.log(self.width) - jnp.log(self.scale)


def log_cosh(v: Any, xp: Any = jnp) -> Any:
    """`log cosh v = log sqrt(1 + sinh(v)^2)` without overflow."""
    return xp.logaddexp(v, -v) - np.log(2.0)


def lattice_step(column: np.ndarray) -> float:
    """Step of the lattice on which the values `(m,)` lie, as counts and proportions do; 0 where there is none.

    A lattice is recognised by values that repeat and are whole multiples of their smallest gap.
    """
    values = np.unique(column)
    if len(values) == len(column) or len(values) < 2:
        return 0.0
    step = np.diff(values).min()
    whole = (values - values[0]) / step
    near = np.max(np.abs(whole - np.round(whole))) < 1e-6 * max(1.0, whole[-1] * 1e-6)
    return float(step) if near and whole[-1] < 1e9 else 0.0


def jitter_width(column: np.ndarray) -> np.ndarray:
    """Width over which each of the values `(m,)` is jittered: the lattice's step, a little for other atoms, or 0.

    A value that more than 2 % of the simulations have in common, off a lattice, is an atom of a distribution that is
    continuous elsewhere. It has no density; it gets the width of a twentieth of the middle half of the other values.
    """
    step = lattice_step(column)
    if step > 0.0:
        return np.full(len(column), step)
    values, which, counts = np.unique(column, return_inverse=True, return_counts=True)
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
        jittered[:, i] += width * ((np.arange(size) * GOLDEN + 0.5) % 1.0 - 0.5)[order]
    return jittered
