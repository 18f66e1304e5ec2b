"""Every estimator of the squared maximum mean discrepancy: over all pairs, over disjoint pairs, by random features."""

import abc
from dataclasses import field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, door, full_precision, in_jax_types
from numpyro_kme.kernels import gram
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, register, take
from numpyro_kme.kernels.stationary import Gaussian


@door
def squared_mmd(
    kernel: Kernel,
    x: PointSet,
    y: PointSet,
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
            have a wrong shape or sum; the message shows both values.
        RuntimeError: If the V-statistic is negative by more than rounding: the kernel is not positive definite.
    Cost: `(n^2 + m^2) / 2 + n m` kernel evaluations, in tiles that stay in cache; the gradient about twice
        that, with no `(n, m)` matrix held.
    References: Gretton et al. (2012), JMLR 13, lemma 6.
    """
    x, y = jax.tree.map(in_jax_types, (x, y))
    checks.sound("x", x)
    checks.sound("y", y)
    v, w = _weights("x", x, x_weights, unbiased), _weights("y", y, y_weights, unbiased)
    if not isinstance(x, tuple) and jnp.ndim(x) == jnp.ndim(y) == 2:
        checks.table("y", y, columns=np.shape(x)[1])
    value, size = _squared_mmd(kernel, x, y, v, w, unbiased)
    if not unbiased:
        checks.v_statistic("The squared MMD", value, size)
    return value


@jax.jit(static_argnames="unbiased")
@full_precision
def _squared_mmd(kernel, x, y, v, w, unbiased):
    """The estimate and the size of its terms, added so that what is rounded off the terms stays in it. Of the kernel a
    constant is taken off, which leaves the estimate as it is and terms that are rounded less."""
    some = take(x, slice(gram.TILE)), take(y, slice(gram.TILE))
    constant = jax.lax.stop_gradient(jnp.mean(kernel.gram(*some)))
    of_pairs = partial(gram.weighted_sum_and_rest, kernel, constant=constant)
    sums = [of_pairs(*given) for given in ((x, v), (y, w), (x, v, y, w))]
    (of_x, x_rest), (of_y, y_rest), (cross, cross_rest) = sums
    value = (of_x - cross) + (of_y - cross) + (x_rest + y_rest - 2.0 * cross_rest)
    if unbiased:
        diagonals = kernel.diagonal(x) - constant, kernel.diagonal(y) - constant
        value = value + _without_own(v, of_x, diagonals[0]) + _without_own(w, of_y, diagonals[1])
    return value, jnp.abs(of_x) + jnp.abs(of_y) + 2.0 * jnp.abs(cross) + 4.0 * jnp.abs(constant)


def _without_own(w, total, diagonal):
    """The difference of `sum_{i != j} w_i w_j k(x_i, x_j) / (1 - sum w_i^2)` from the sum over all pairs."""
    own = jnp.square(w)
    return (total * jnp.sum(own) - jnp.sum(own * diagonal)) / (1.0 - jnp.sum(own))


def _weights(name, points, weights, unbiased):
    n, least = num_points(points), 2 if unbiased else 1
    kind = "an unbiased" if unbiased else "a biased"
    checks.require(n >= least, f"`{name}` must have at least {least} points for {kind} estimate; got {n}.")
    if weights is None:
        return gram.uniform_weights(points)
    weights = in_jax_types(weights)
    checks.shaped(f"{name}_weights", weights, (n,), f"per point of `{name}`")
    checks.real(f"{name}_weights", weights)
    checks.sums_to_one(f"{name}_weights", weights)
    if unbiased and checks.is_concrete(weights):
        concentration = float(np.sum(np.square(np.asarray(weights, dtype=np.float64))))
        checks.require(
            abs(1.0 - concentration) > 1e-6,
            f"`{name}_weights` have a sum of squares of {concentration:.6g}, so the unbiased estimate "
            "divides by zero; give weight to more points, or use unbiased=False.",
        )
    return jnp.asarray(weights)


class Estimator(abc.ABC):
    """`estimator(x, y)` estimates the squared MMD between the distributions of two samples; traceable.

    The samples are `(n, dim)` and `(m, dim)`.
    """

    @abc.abstractmethod
    def __call__(self, x: ArrayLike, y: ArrayLike) -> jax.Array:
        """The estimate, a scalar; unbiased ones may be negative."""

    @abc.abstractmethod
    def similarity(self, x: ArrayLike, y: ArrayLike) -> jax.Array:
        """Its part `E k(X, Y)`, a scalar: near 0 where the samples have nothing in common, at whatever distance.

        Both may be one sample.
        """


@register
class Quadratic(Estimator):
    """The U-statistic (or V-statistic) over all pairs; `(n^2 + m^2) / 2 + n m` kernel evaluations."""

    kernel: Kernel
    unbiased: bool = field(default=True, metadata=dict(static=True))

    def __call__(self, x, y):
        """The estimate of `squared_mmd`."""
        return squared_mmd(self.kernel, x, y, unbiased=self.unbiased)

    def similarity(self, x, y):
        """The mean over all pairs."""
        w, v = gram.uniform_weights(x), gram.uniform_weights(y)
        return sum(gram.weighted_sum_and_rest(self.kernel, jnp.asarray(x), w, jnp.asarray(y), v))


@register
class LinearTime(Estimator):
    r"""The mean of $h = k(x, x') + k(y, y') - k(x, y') - k(x', y)$ over disjoint pairs.

    $$ \frac{1}{n_2} \sum_i h\big((x_{2i-1}, y_{2i-1}), (x_{2i}, y_{2i})\big), \qquad n_2 = \lfloor n / 2 \rfloor. $$

    Unbiased for independent draws, `2 n` kernel evaluations, and far noisier than `Quadratic`. Both samples are cut to
    the shorter one's even part; the order of the rows matters, not only their values.

    References: Gretton et al. (2012), JMLR 13, lemma 14.
    """

    kernel: Kernel

    def __call__(self, x, y):
        """The estimate."""
        _check_samples(x, y)
        half = min(len(x), len(y)) // 2
        checks.require(half >= 1, f"`x` and `y` must have at least 2 points each; got {len(x)} and {len(y)}.")
        (x1, x2), (y1, y2) = ((a[: 2 * half : 2], a[1 : 2 * half : 2]) for a in map(jnp.asarray, (x, y)))
        k = jax.vmap(self.kernel.pair)
        return jnp.mean(k(x1, x2) + k(y1, y2) - k(x1, y2) - k(x2, y1))

    def similarity(self, x, y):
        """The mean over as many pairs as the shorter sample has points: each with the one before it.

        So too where both are one sample: no point meets itself.
        """
        shorter = min(len(x), len(y))
        before = jnp.roll(jnp.asarray(y)[:shorter], 1, axis=0)
        return jnp.mean(jax.vmap(self.kernel.pair)(jnp.asarray(x)[:shorter], before))


@register
class Fourier(Estimator):
    r"""By random Fourier features of a Gaussian kernel, $\phi(x) = \sqrt{2 / F} \cos(\omega_f^\top x + b_f)$.

    The U-statistic within each sample of the features' kernel, which is unbiased for the Gaussian's over the
    frequencies; at fixed frequencies it is the MMD of another, nearby kernel. `F (n + m)` operations.

    Args:
        frequencies: `(F, dim)`.
        phases: `(F,)`.
    References: Rahimi & Recht (2007), NIPS; Park, Jitkrittum & Sejdinovic (2016), AISTATS.
    """

    frequencies: ArrayLike
    phases: ArrayLike

    @classmethod
    def draw(cls, rng_key: jax.Array, kernel: Gaussian, dim: int, num_features: int = 512) -> "Fourier":
        """Draw frequencies `N(0, 1 / l^2)` and phases `U(0, 2 pi)`."""
        checks.key(rng_key)
        checks.require(isinstance(kernel, Gaussian), f"`kernel` must be Gaussian; got {type(kernel).__name__}.")
        checks.whole("num_features", num_features, 1)
        of_frequency, of_phase = jax.random.split(rng_key)
        noise = jax.random.normal(of_frequency, (num_features, dim))
        frequencies = noise / gram.one_per_dimension(kernel.length_scale, dim)
        return cls(frequencies, jax.random.uniform(of_phase, (num_features,), maxval=2.0 * jnp.pi))

    @full_precision
    def features(self, x: ArrayLike) -> jax.Array:
        """Features `(n, F)`."""
        frequencies, phases = jnp.asarray(self.frequencies), jnp.asarray(self.phases)
        return jnp.sqrt(2.0 / len(phases)) * jnp.cos(jnp.asarray(x) @ frequencies.T + phases[None])

    @full_precision
    def __call__(self, x, y):
        """The estimate."""
        _check_samples(x, y, jnp.shape(self.frequencies)[1])
        of_x, of_y = self.features(x), self.features(y)
        return _between_pairs(of_x) + _between_pairs(of_y) - 2.0 * jnp.mean(of_x, axis=0) @ jnp.mean(of_y, axis=0)

    @full_precision
    def similarity(self, x, y):
        """The inner product of mean features, with the error of random features, about `F^-1/2`."""
        return jnp.mean(self.features(x), axis=0) @ jnp.mean(self.features(y), axis=0)


def _check_samples(x, y, columns=None):
    checks.table("x", x, columns=columns, min_rows=2)
    checks.table("y", y, columns=np.shape(x)[1], min_rows=2)


def _between_pairs(features):
    n = features.shape[0]
    total = jnp.sum(features, axis=0)
    return (total @ total - jnp.sum(features * features)) / (n * (n - 1.0))
