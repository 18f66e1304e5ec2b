"""Data sets and series of any length in one table, and kernels on them: by mean embeddings, and by their lengths."""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, door, frozen, full_precision
from numpyro_kme.kernels import gram
from numpyro_kme.kernels.base import Batched, Kernel, PairProduct, PointSet, check_fields, namespace, register
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic, RuleOfDistances
from numpyro_kme.kernels.stationary import Gaussian


def pad(rows: Any, longest: int) -> Any:
    """Rows `(n, *shape)` with rows of NaN behind them, `(longest, *shape)`: an output of a simulator of any length.

    Args:
        rows: NumPy or JAX; whole numbers become floats.
        longest: How many rows the longest output has.
    Raises:
        ValueError: If there are more rows than `longest`, or no axis of rows.
    """
    checks.whole("longest", longest, 0)
    checks.require(not np.ma.is_masked(rows), "`rows` has masked entries: leave these rows out.")
    xp = namespace(rows)
    rows = xp.asarray(rows)
    fits = rows.ndim >= 1 and rows.shape[0] <= longest
    checks.require(fits, f"`rows` must have a first axis of at most `longest` = {longest} rows; got {rows.shape}.")
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


@door
def cut(rows: ArrayLike, length: ArrayLike) -> jax.Array:
    """Rows `(longest, *shape)` with NaN from row `length` on, for simulators in JAX, whose shapes are fixed.

    Args:
        rows: As many as the longest output has.
        length: How many of them count, a whole number, which may be drawn in the simulator.
    Raises:
        ValueError: If there is no axis of rows.
    """
    checks.require(np.ndim(rows) >= 1, f"`rows` must have a first axis; got {checks.line(rows)}.")
    checks.require(not np.ma.is_masked(rows), "`rows` has masked entries: leave these rows out.")
    rows = jnp.asarray(rows, jnp.result_type(rows, float))
    number = jnp.arange(rows.shape[0]).reshape(-1, *(1,) * (rows.ndim - 1))
    return jnp.where(number < length, rows, jnp.nan)


def lengths(x: Any) -> Any:
    """Count the rows of each array of a table, 1 + the last row that is not all NaN, `(n,)`; 0 for one without any.

    Args:
        x: `(n, longest, *shape)`, NumPy or JAX.
    Raises:
        ValueError: If there is no axis of arrays and of rows.
    """
    checks.require(np.ndim(x) >= 2, f"`x` must have shape (n, longest, ...); got {checks.line(x)}.")
    xp = namespace(x)
    some = ~xp.isnan(x).reshape(*x.shape[:2], -1).all(axis=2)
    return xp.max(some * (xp.arange(x.shape[1]) + 1)[None], axis=1, initial=0)


def beyond_end(x: np.ndarray) -> np.ndarray:
    """Mark the entries of arrays `(n, longest, *shape)` that stand behind their last row."""
    return np.broadcast_to(~own_rows(x).reshape(*x.shape[:2], *(1,) * (x.ndim - 2)), x.shape)


def own_rows(x: Any) -> Any:
    """Mark the rows of arrays `(n, longest, *shape)` up to their last, `(n, longest)`."""
    return namespace(x).arange(x.shape[1])[None] < lengths(x)[:, None]


def may_end(x: Any) -> bool:
    """Tell whether some array of a table may end before its last row: it has NaN, or is not known yet."""
    return not checks.is_concrete(x) or (np.asarray(x).dtype.kind == "f" and bool(np.isnan(np.asarray(x)).any()))


def filled_up(x: Any, first: bool) -> tuple[Any, Any]:
    """Arrays `(n, longest, *shape)` with their first or their last row behind their ends, and which rows are theirs,
    `(n, longest)`."""
    xp, size, own = namespace(x), lengths(x), own_rows(x)
    row = xp.zeros_like(size) if first else xp.maximum(size - 1, 0)
    behind = xp.take_along_axis(x, row.reshape(-1, *(1,) * (x.ndim - 1)), axis=1)
    return xp.where(own.reshape(*own.shape, *(1,) * (x.ndim - 2)), x, behind), own


def log_lengths(x: Any) -> Any:
    """Logarithms of `lengths`, `(n,)`."""
    xp = namespace(x)
    return xp.log(xp.maximum(lengths(x), 1))


def require_any_length(kernel: Kernel) -> None:
    """Require a kernel that takes arrays of different lengths."""
    checks.instance("kernel", kernel, Kernel, "a kernel, such as EmpiricalMeasure(Gaussian(1.0), 1.0)")
    checks.require(
        kernel.any_length,
        f"{type(kernel).__name__} compares arrays of one length, and these are of any length. Use EmpiricalMeasure for "
        "data sets, GaussianProcessPath or Signature for series, or a kernel of your own with the class attribute "
        "`any_length = True`, whose `points` reads rows of NaN as rows behind the end.",
    )


@register
class EmpiricalMeasure(Batched):
    r"""Double kernel `k(Y, X) = exp(-|mu_Y - mu_X|^2 / (2 eps^2))`; the distance is the biased squared MMD.

    A point is a data set whose rows have no order: an array `(size, dim)`, or a tuple `(rows, weights)` with weights
    `(size,)` that sum to one. Sets of different sizes compare; a batch `(count, size, dim)` has one size, and weights
    of 0 fill shorter sets up. In arrays that a simulator gives, rows of NaN stand behind the end of a shorter set
    (`kernels.pad`).

    Args:
        inner: `h`, the positive definite kernel that embeds rows: `mu_X = sum_i w_i h(x_i, .)`.
        length_scale: `eps`, a scalar, in units of the embedding, where distances are at most `2 sqrt(sup h)`.
    Cost: a Gram matrix between batches takes `count * count * size * size` inner evaluations in blocks; the terms of
        one set alone are computed once. `squared_mmd` does not depend on `eps`.
    References: Christmann & Steinwart (2010), NIPS; Muandet et al. (2017), section 3.
    """

    any_length = True

    inner: Kernel
    length_scale: ArrayLike

    def __post_init__(self):
        checks.instance("inner", self.inner, Kernel, "a kernel on rows, such as Gaussian(1.0)")
        check_fields(self, checks.positive_number, "length_scale")

    def points(self, x):
        """Read arrays `(n, size, dim)` or `(n, size)` as data sets of up to `size` rows, with weights where some end
        before."""
        x = x.reshape(*x.shape[:2], -1)
        if not may_end(x):
            return x
        rows, own = filled_up(x, first=True)
        return rows, own / own.sum(axis=1, keepdims=True)

    def squared_mmd(self, x: PointSet, y: PointSet | None = None) -> jax.Array:
        """Matrix `|mu_{x_i} - mu_{y_j}|^2`, `(n, m)`, between batches of data sets; never negative."""
        return _squared_mmd(self.inner, _measures("x", x), None if y is None else _measures("y", y))

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between two batches of data sets."""
        return -0.5 * self.squared_mmd(x, y) / self.length_scale / self.length_scale

    def diagonal(self, x):
        """Values of each point with itself, ones, `(n,)`."""
        rows, _ = _measures("x", x)
        return jnp.ones(len(rows), rows.dtype)


def _measures(name, batch):
    rows, weights = batch if isinstance(batch, tuple) else (batch, None)
    rows = jnp.asarray(rows, jnp.result_type(rows, float))
    checks.require(
        rows.ndim == 3 and rows.shape[1] > 0,
        f"`{name}` must be a batch of data sets with shape (count, size, dim); got {rows.shape}. Use x[..., None].",
    )
    if weights is None:
        return rows, jnp.full(rows.shape[:2], 1.0 / rows.shape[1], rows.dtype)
    checks.shaped(f"weights of {name}", weights, rows.shape[:2], "per row")
    checks.sums_to_one(f"weights of {name}", weights)
    return rows, jnp.asarray(weights)


@jax.jit
@full_precision
def _squared_mmd(inner, x, y):
    """Squared distances of the embeddings of weighted sets, of one batch or of two, `(n, m)`: one set of `x` at a time
    against all of `y`."""

    def self_terms(batch):
        return jax.lax.map(jax.checkpoint(lambda one: sum(gram.weighted_sum_and_rest(inner, *one))), batch)

    x_own = self_terms(x)
    y_own, (rows, weights) = (x_own, x) if y is None else (self_terms(y), y)
    flat = rows.reshape(-1, rows.shape[-1])

    @jax.checkpoint
    def cross_terms(one):
        return jnp.sum(weights * gram.matvec(inner, flat, *one).reshape(weights.shape), axis=1)

    return jnp.maximum(x_own[:, None] + y_own[None, :] - 2.0 * jax.lax.map(cross_terms, x), 0.0)


@register
class WithLength(PairProduct):
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
    def kernels(self) -> tuple[Kernel, ...]:  # type: ignore[override]
        """The kernel `k`, and a Gaussian on log lengths."""
        return self.kernel, Gaussian(self.length_scale)

    def points(self, x):
        """Read arrays `(n, longest, *shape)`, NaN behind their ends, as `k` does, with their log lengths, `(n, 1)`."""
        return self.kernel.points(x), log_lengths(x)[:, None]


@frozen
class EmpiricalMeasureRule(RuleOfDistances):
    """`EmpiricalMeasure` on data sets `(longest, dim)` or `(longest,)`, with a Gaussian kernel inside.

    Args:
        length_scale: Rule for the length scale of the kernel inside, from rows of `SETS` data sets.
        multiple: `eps` in units of the median distance between the embeddings of `SETS` data sets. Weights of both
            signs need a narrow kernel: those of a wide one are a regression on all simulations, which knows the mean
            and not the variance. For statistics a wide one is better: candidates are this, and eight times this.
    """

    length_scale: LengthScaleRule = field(default_factory=MedianHeuristic)
    multiple: float = 0.5

    def __post_init__(self):
        checks.instance("length_scale", self.length_scale, LengthScaleRule, "a rule such as MedianHeuristic()")
        checks.positive_number("multiple", self.multiple)

    def unscaled(self, few, targets):
        """The kernel, with a length scale inside by the rule."""
        size = lengths(few)
        rows = np.concatenate([one[:n] for one, n in zip(few, size)])
        own = None if targets is None else np.repeat(targets[: len(few)], size, axis=0)
        return EmpiricalMeasure(Gaussian(self.length_scale(rows, own)), 1.0)
