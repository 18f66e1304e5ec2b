"""Estimators of the squared maximum mean discrepancy with different costs, as small objects."""

import abc
from dataclasses import field

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.embeddings.squared_mmd import squared_mmd
from numpyro_kme.kernels import blocks
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.stationary import Gaussian


class Estimator(abc.ABC):
    """`estimator(x, y)` estimates `MMD^2` between the laws of two samples `(n, dim)` and `(m, dim)`; traceable."""

    @abc.abstractmethod
    def __call__(self, x: ArrayLike, y: ArrayLike) -> jax.Array:
        """The estimate, a scalar; unbiased ones may be negative."""

    @abc.abstractmethod
    def similarity(self, x: ArrayLike, y: ArrayLike) -> jax.Array:
        """Its part `E k(X, Y)`, a scalar: near 0 where the samples have nothing in common, at whatever distance. Both may be one sample."""


@register
class Quadratic(Estimator):
    """The U-statistic (or V-statistic) over all pairs; `(n^2 + m^2) / 2 + n m` kernel evaluations."""

    kernel: Kernel
    unbiased: bool = field(default=True, metadata=dict(static=True))

    def __call__(self, x, y):
        """As `squared_mmd`."""
        return squared_mmd(self.kernel, x, y, unbiased=self.unbiased)

    def similarity(self, x, y):
        """The mean over all pairs."""
        w, v = blocks.uniform_weights(x), blocks.uniform_weights(y)
        return blocks.weighted_sum(self.kernel, jnp.asarray(x), w, jnp.asarray(y), v)


@register
class LinearTime(Estimator):
    r"""The mean over disjoint pairs, $\frac{1}{n_2} \sum_i h\big((x_{2i-1}, y_{2i-1}), (x_{2i}, y_{2i})\big)$, $n_2 = \lfloor n / 2 \rfloor$.

    $h = k(x, x') + k(y, y') - k(x, y') - k(x', y)$. Unbiased for independent draws, `2 n` kernel evaluations, and far noisier than
    `Quadratic`. Both samples are cut to the shorter one's even part; the order of the rows matters, not only their values.

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
        """The mean over as many pairs as the shorter sample has points: each with the one before it, for `x` with itself too."""
        shorter = min(len(x), len(y))
        before = jnp.roll(jnp.asarray(y)[:shorter], 1, axis=0)
        return jnp.mean(jax.vmap(self.kernel.pair)(jnp.asarray(x)[:shorter], before))


@register
class Fourier(Estimator):
    r"""Random Fourier features of a Gaussian kernel, $\phi(x) = \sqrt{2 / F} \cos(\omega_f^\top x + b_f)$: `F (n + m)` operations.

    The U-statistic within each sample of the features' kernel, which is unbiased for the Gaussian's over the frequencies; at fixed
    frequencies it is the MMD of another, nearby kernel.

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
        checks.require(
            jnp.shape(kernel.length_scale) in ((), (1,), (dim,)),
            f"`length_scale` must be a scalar or have shape ({dim},); got {jnp.shape(kernel.length_scale)}.",
        )
        of_frequency, of_phase = jax.random.split(rng_key)
        scale = jnp.broadcast_to(jnp.asarray(kernel.length_scale), (1, dim))
        frequencies = jax.random.normal(of_frequency, (num_features, dim)) / scale
        return cls(frequencies, jax.random.uniform(of_phase, (num_features,), maxval=2.0 * jnp.pi))

    def features(self, x: ArrayLike) -> jax.Array:
        """Features `(n, F)`."""
        size = jnp.shape(self.frequencies)[0]
        return jnp.sqrt(2.0 / size) * jnp.cos(
            jnp.asarray(x) @ jnp.asarray(self.frequencies).T + jnp.asarray(self.phases)[None]
        )

    def __call__(self, x, y):
        """The estimate."""
        _check_samples(x, y, jnp.shape(self.frequencies)[1])
        of_x, of_y = self.features(x), self.features(y)
        return _between_pairs(of_x) + _between_pairs(of_y) - 2.0 * jnp.mean(of_x, axis=0) @ jnp.mean(of_y, axis=0)

    def similarity(self, x, y):
        """The inner product of mean features, with the error of random features, about `F^-1/2`."""
        return jnp.mean(self.features(x), axis=0) @ jnp.mean(self.features(y), axis=0)


def _check_samples(x, y, columns=None):
    for name, value in {"x": x, "y": y}.items():
        checks.sound(name, value)
        checks.matrix(name, value, columns=columns, min_rows=2)
    checks.same_columns("x", x, "y", y)


def _between_pairs(features):
    n = features.shape[0]
    total = jnp.sum(features, axis=0)
    return (total @ total - jnp.sum(features * features)) / (n * (n - 1.0))
