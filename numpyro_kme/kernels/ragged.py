"""Arrays of any length in one table: rows of NaN behind the last row of each, and a kernel on how long they are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import Batched, Kernel, check_fields, namespace, register


def pad(rows: Any, longest: int) -> Any:
    """Rows `(n, *shape)` with rows of NaN behind them, `(longest, *shape)`: an output of a simulator of any length.

    Args:
        rows: NumPy or JAX; whole numbers become floats.
        longest: How many rows the longest output has.
    Raises:
        ValueError: If there are more rows than `longest`, or no axis of rows.
    """
    xp: Any = jnp if isinstance(rows, jax.Array) else np
    rows = xp.asarray(rows)
    checks.require(
        rows.ndim >= 1 and rows.shape[0] <= longest,
        f"`rows` must have a first axis of at most `longest` = {longest} rows; got shape {rows.shape}.",
    )
    rows = rows if rows.dtype.kind == "f" else rows.astype(float)
    behind = xp.full((longest - rows.shape[0], *rows.shape[1:]), xp.nan, rows.dtype)
    return xp.concatenate([rows, behind])


def padded_together(arrays: Any) -> Any:
    """A list of arrays of any length as one table `(m, longest, *shape)`; a table as it is."""
    if not isinstance(arrays, list | tuple):
        return arrays
    arrays = [np.asarray(one) for one in arrays]
    checks.require(
        len({one.shape[1:] for one in arrays}) == 1 and min(one.ndim for one in arrays) > 0,
        f"Arrays of any length must have alike rows; got the shapes {sorted({one.shape for one in arrays})[:4]}.",
    )
    longest = max(len(one) for one in arrays)
    return np.stack([pad(one, longest) for one in arrays])


def cut(rows: ArrayLike, length: ArrayLike) -> jax.Array:
    """Rows `(longest, *shape)` with NaN from row `length` on, for simulators in JAX, whose shapes are fixed.

    Args:
        rows: As many as the longest output has.
        length: How many of them count, a whole number, which may be drawn in the simulator.
    """
    rows = jnp.asarray(rows, jnp.result_type(rows, float))
    number = jnp.arange(rows.shape[0]).reshape(-1, *(1,) * (rows.ndim - 1))
    return jnp.where(number < length, rows, jnp.nan)


def lengths(x: Any) -> Any:
    """Count the rows of each array of a table, 1 + the last row that is not all NaN, `(n,)`; 0 for one without any.

    Args:
        x: `(n, longest, *shape)`, NumPy or JAX.
    """
    xp: Any = jnp if isinstance(x, jax.Array) else np
    some = ~xp.isnan(x).reshape(*x.shape[:2], -1).all(axis=2)
    return xp.max(some * (xp.arange(x.shape[1]) + 1)[None], axis=1, initial=0)


def beyond_end(x: np.ndarray) -> np.ndarray:
    """Mark the entries of arrays `(n, longest, *shape)` that stand behind their last row."""
    number = np.arange(x.shape[1]).reshape(1, -1, *(1,) * (x.ndim - 2))
    return np.broadcast_to(number >= lengths(x).reshape(-1, *(1,) * (x.ndim - 1)), x.shape)


def may_end(x: Any) -> bool:
    """Tell whether some array of a table may end before its last row: it has NaN, or is not known yet."""
    return not checks.is_concrete(x) or (np.asarray(x).dtype.kind == "f" and bool(np.isnan(np.asarray(x)).any()))


def filled_up(x: Any, first: bool) -> tuple[Any, Any]:
    """Arrays `(n, longest, *shape)` with their first or their last row behind their ends, and which rows are theirs,
    `(n, longest)`."""
    xp: Any = jnp if isinstance(x, jax.Array) else np
    size = xp.asarray(lengths(x))
    own = xp.arange(x.shape[1])[None] < size[:, None]
    row = xp.zeros_like(size) if first else xp.maximum(size - 1, 0)
    behind = xp.take_along_axis(x, row.reshape(-1, *(1,) * (x.ndim - 1)), axis=1)
    return xp.where(own.reshape(*own.shape, *(1,) * (x.ndim - 2)), x, behind), own


@register
class WithLength(Batched):
    r"""A kernel on arrays times one on how long they are, `k(a, b) exp(-(log n_a - log n_b)^2 / (2 l^2))`.

    Kernels on data sets compare distributions, and see nothing of how many rows say so: what is learnt with one alone
    is an average over lengths. A point is a pair of a point of `k` and the logarithm of a length.

    Args:
        kernel: `k`, one that takes arrays of any length, such as `EmpiricalMeasure`.
        length_scale: `l`; 0.5 takes lengths that differ by a factor of 1.6 for alike.
    """

    any_length = True

    kernel: Kernel
    length_scale: ArrayLike

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")
        require_any_length(self.kernel)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Tell whether `k` is symmetric."""
        return self.kernel.symmetric

    def points(self, x):
        """Read arrays `(n, longest, *shape)`, NaN behind their ends, as `k` does, with their log lengths, `(n,)`."""
        return self.kernel.points(x), log_lengths(x)

    def log_gram(self, x, y=None):
        """Matrix of logarithms."""
        return self.kernel.log_gram(x[0], None if y is None else y[0]) + self._of_lengths(x, y)

    def gram(self, x, y=None):
        """Matrix of kernel values; `k` may take negative ones."""
        alike = self._of_lengths(x, y)
        return self.kernel.gram(x[0], None if y is None else y[0]) * namespace(alike).exp(alike)

    def _of_lengths(self, x, y):
        apart = (x[1][:, None] - (x if y is None else y)[1][None]) / self.length_scale
        return -0.5 * apart * apart

    def diagonal(self, x):
        """The diagonal of `k`."""
        return self.kernel.diagonal(x[0])


def log_lengths(x: Any) -> Any:
    """Logarithms of `lengths`, `(n,)`."""
    if isinstance(x, jax.Array):
        return jnp.log(jnp.maximum(lengths(x), 1).astype(jnp.result_type(x, float)))
    return np.log(np.maximum(lengths(x), 1).astype(np.float64))


def require_any_length(kernel: Kernel) -> None:
    """Require a kernel that takes arrays of different lengths."""
    checks.instance("kernel", kernel, Kernel, "a kernel, such as EmpiricalMeasure(Gaussian(1.0), 1.0)")
    checks.require(
        kernel.any_length,
        f"{type(kernel).__name__} compares arrays of one length, and these are of any length. Use EmpiricalMeasure for "
        "data sets, GaussianProcessPath or Signature for series, or a kernel of your own with the class attribute "
        "`any_length = True`, whose `points` reads rows of NaN as rows behind the end.",
    )
