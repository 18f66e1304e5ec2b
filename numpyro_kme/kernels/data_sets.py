"""A kernel on data sets, whose rows have no order, by their mean embeddings; and the rule that makes one."""

from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import full_precision
from numpyro_kme.kernels import gram
from numpyro_kme.kernels.base import Batched, Kernel, PointSet, check_fields, num_points, register
from numpyro_kme.kernels.length_scales import SETS, LengthScaleRule, MedianHeuristic, RuleOfDistances, median_of_pairs
from numpyro_kme.kernels.ragged import filled_up, lengths, may_end
from numpyro_kme.kernels.stationary import Gaussian


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
        check_fields(self, checks.positive, "length_scale")
        checks.require(
            jnp.ndim(self.length_scale) == 0,
            f"`length_scale` of EmpiricalMeasure must be a scalar; got {jnp.shape(self.length_scale)}.",
        )

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
        x = _measures("x", x)
        y = x if y is None else _measures("y", y)
        x_own, y_own = (_self_terms(self.inner, *batch) for batch in (x, y))
        return jnp.maximum(x_own[:, None] + y_own[None, :] - 2.0 * _cross_terms(self.inner, *x, *y), 0.0)

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between two batches of data sets."""
        return -0.5 * self.squared_mmd(x, y) / self.length_scale / self.length_scale

    def diagonal(self, x):
        """Ones."""
        rows, _ = _measures("x", x)
        return jnp.ones(num_points(rows), rows.dtype)


def _measures(name, batch):
    rows, weights = batch if isinstance(batch, tuple) else (batch, None)
    rows = jnp.asarray(rows, jnp.result_type(rows, float))
    checks.require(
        rows.ndim == 3 and rows.shape[1] > 0,
        f"`{name}` must be a batch of data sets with shape (count, size, dim); got {rows.shape}. Rows of "
        "scalars need a last axis of length 1.",
    )
    if weights is None:
        return rows, jnp.full(rows.shape[:2], 1.0 / rows.shape[1], rows.dtype)
    checks.shaped(f"weights of {name}", weights, rows.shape[:2], "per row")
    checks.sums_to_one(f"weights of {name}", weights)
    return rows, jnp.asarray(weights)


@jax.jit
def _self_terms(inner, rows, weights):
    return jax.lax.map(jax.checkpoint(lambda one: sum(gram.weighted_sum_and_rest(inner, *one))), (rows, weights))


@jax.jit
@full_precision
def _cross_terms(inner, x_rows, x_weights, y_rows, y_weights):
    """`sum_kl v_ik w_jl h(x_ik, y_jl)`, one set of `x` at a time against all rows of `y`."""
    flat = y_rows.reshape(-1, y_rows.shape[-1])

    @jax.checkpoint
    def against(one):
        return jnp.sum(y_weights * gram.matvec(inner, flat, *one).reshape(y_weights.shape), axis=1)

    return jax.lax.map(against, (x_rows, x_weights))


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

    def __call__(self, x, targets=None):
        """The kernel."""
        few = self.some(x)
        size = lengths(few)
        rows = np.concatenate([one[:n] for one, n in zip(few, size)])
        inner = Gaussian(self.length_scale(rows, None if targets is None else np.repeat(targets[:SETS], size, axis=0)))
        bare = EmpiricalMeasure(inner, 1.0)
        squared = np.asarray(bare.squared_mmd(bare.points(few)))
        return EmpiricalMeasure(inner, self.multiple * median_of_pairs(squared, "data sets"))
