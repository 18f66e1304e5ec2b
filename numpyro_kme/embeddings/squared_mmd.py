"""Distances between distributions, from samples."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels import Gaussian, blocks
from numpyro_kme.kernels.base import Kernel, Points, num_points
from numpyro_kme.kernels.exponents import ExpProduct, factors


def squared_mmd(
    kernel: Kernel,
    x: Points,
    y: Points,
    *,
    x_weights: ArrayLike | None = None,
    y_weights: ArrayLike | None = None,
    unbiased: bool = True,
) -> jax.Array:
    r"""Estimate the squared maximum mean discrepancy `MMD^2(P, Q) = E k(X, X') + E k(Y, Y') - 2 E k(X, Y)`.

    With weights `v` on `x` and `w` on `y`, each summing to one (uniform when left out):

    - U-statistic (`unbiased=True`): `sum_{i != j} v_i v_j k(x_i, x_j) / (1 - sum v_i^2)`, the same for `y`,
      minus `2 sum_ij v_i w_j k(x_i, y_j)`. Unbiased for independent draws; negative about half of the time
      when P = Q, and never clipped.
    - V-statistic (`unbiased=False`): every pair counts. It is the exact squared distance between the two
      weighted empirical measures, so not negative beyond round-off; for P = Q its mean is
      `(1/n + 1/m) (E k(X, X) - E k(X, X'))`.

    Differentiable in the points, the weights and the kernel; works under `jit` and `vmap`.

    Args:
        kernel: Symmetric; compares two points of shape `(dim,)`, or two slices of any pytree along its
            leading axis. Conditionally positive definite kernels serve too: with `Energy` this is the energy
            distance.
        x: `(n, dim)` draws from P.
        y: `(m, dim)` draws from Q.
        x_weights: `(n,)`, summing to one; signed weights are allowed.
        y_weights: `(m,)`, summing to one; signed weights are allowed.
        unbiased: Leave out the terms that compare a point with itself, and rescale.
    Returns:
        A scalar, in squared units of the embedding.
    Raises:
        ValueError: If the samples differ in `dim`, have fewer than two points for the U-statistic, or weights
            have a wrong shape or sum; the sentence shows both values.
        RuntimeError: If the V-statistic is negative by more than rounding: the kernel is not positive definite.
    Cost: `(n^2 + m^2) / 2 + n m` kernel evaluations, in tiles that stay in cache; the gradient about twice
        that, with no `(n, m)` matrix held. A Gaussian kernel on vectors costs one matrix product and one
        exponential a pair, unless points so far away would lose digits by it.
    References: Gretton et al. (2012), JMLR 13, lemma 6.
    """
    checks.sound("x", x)
    checks.sound("y", y)
    v, w = _weights("x", x, x_weights, unbiased), _weights("y", y, y_weights, unbiased)
    if not isinstance(x, tuple) and jnp.ndim(x) == jnp.ndim(y) == 2:
        checks.same_columns("x", x, "y", y)
    value, size = _squared_mmd(kernel, x, y, v, w, unbiased)
    if not unbiased:
        checks.v_statistic("The squared MMD", value, size)
    return value


@jax.jit(static_argnames="unbiased")
def _squared_mmd(kernel, x, y, v, w, unbiased):
    scalars = jnp.shape(x)[1:] == (1,)  # their differences are cheaper than a product
    if scalars or not isinstance(kernel, Gaussian):
        return _sums(kernel, x, y, v, w, unbiased)
    x, y = jnp.asarray(x), jnp.asarray(y)
    left, right, precise = factors(kernel, x, y)
    return jax.lax.cond(
        precise,
        lambda: _sums(ExpProduct(), left, right, v, w, unbiased),
        lambda: _sums(kernel, x, y, v, w, unbiased),
    )


def _sums(kernel, x, y, v, w, unbiased):
    within = _unbiased_mean if unbiased else blocks.weighted_self_sum
    of_x, of_y, cross = within(kernel, x, v), within(kernel, y, w), 2.0 * blocks.weighted_sum(kernel, x, v, y, w)
    return of_x + of_y - cross, jnp.abs(of_x) + jnp.abs(of_y) + jnp.abs(cross)


def _unbiased_mean(kernel, x, w):
    """`sum_{i != j} w_i w_j k(x_i, x_j) / (1 - sum w_i^2)`."""
    own = jnp.square(w)
    pairs = blocks.weighted_self_sum(kernel, x, w) - jnp.sum(own * kernel.diagonal(x))
    return pairs / (1.0 - jnp.sum(own))


def _weights(name, points, weights, unbiased):
    n, least = num_points(points), 2 if unbiased else 1
    checks.require(
        n >= least,
        f"`{name}` must have at least {least} points for {'an unbiased' if unbiased else 'a biased'} "
        f"estimate; got {n}.",
    )
    if weights is None:
        return blocks.uniform_weights(points)
    weights = weights if isinstance(weights, jax.Array) else np.asarray(weights)
    checks.require(
        jnp.shape(weights) == (n,),
        f"`{name}_weights` must have shape ({n},), one per point of `{name}`; got {jnp.shape(weights)}.",
    )
    checks.real(f"{name}_weights", weights)
    checks.sums_to_one(f"{name}_weights", weights)
    if unbiased and checks.is_concrete(weights):
        concentration = float(np.sum(np.square(np.asarray(weights, dtype=np.float64))))
        checks.require(
            abs(1.0 - concentration) > 1e-6,
            f"`{name}_weights` have a sum of squares of {concentration:.6g}, so the unbiased estimate "
            "divides by zero; spread the weights over more points, or use unbiased=False.",
        )
    return jnp.asarray(weights)
