r"""Kernel ridge regression on coordinates: a straight line in two scales plus a Gaussian kernel, learnt without refits.

$k(z, z') = b^2 + \sum_f a_f^2 \phi_f(z) \phi_f(z') + c^2 \exp(-\tfrac12 \sum_d (z_d - z'_d)^2 / l_d^2)$ with the features
$\phi(z) = (z, \sqrt{12} (\Phi(z) - 1/2))$: a function that is linear in a normal, or in a uniform, parameter costs one amplitude.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jax.typing import ArrayLike

from numpyro_kme.kernel_means import adjoint
from numpyro_kme.kernels.base import register, squared_distances

INTERCEPT = 10.0
"""Prior standard deviation `b` of the intercept, in standard deviations of the target."""

JITTER = 1e-6
"""Least noise variance, in variances of the target."""


@register
class Smoothness:
    """Logarithms of the hyperparameters of one regression.

    Attributes:
        linear: `a`, `(2 D,)`.
        bump: `c`, a scalar.
        length: `l`, `(D,)`.
        noise: Standard deviation of the noise, a scalar.
    """

    linear: ArrayLike
    bump: ArrayLike
    length: ArrayLike
    noise: ArrayLike

    @classmethod
    def start(
        cls, dim: int, linear: float = 0.3, bump: float = 0.3, length: float = 1.5, noise: float = 1.0
    ) -> "Smoothness":
        """The same values everywhere; `length` is multiplied by `sqrt(D)`."""
        length = np.full(dim, np.log(length * np.sqrt(dim)))
        return cls(np.full(2 * dim, np.log(linear)), np.log(bump), length, np.log(noise))

    @classmethod
    def bounds(cls, dim: int) -> tuple["Smoothness", "Smoothness"]:
        """Box of the search."""
        pairs = [(np.full(2 * dim, -9.0), np.full(2 * dim, 3.0)), (-6.0, 3.0)]
        pairs += [(np.full(dim, np.log(0.2)), np.full(dim, 6.0)), (-7.0, 1.5)]
        return cls(*[low for low, _ in pairs]), cls(*[high for _, high in pairs])

    def penalty(self) -> jax.Array:
        """Minus the log prior: exponential priors on `a` (rate `sqrt(2 D)`), `c` (rate 2) and `1 / l` (rate `sqrt(2 D)`).

        A function that does not depend on a coordinate, or is straight, is the simplest, and costs nothing; the expected
        total variance does not depend on the number of coordinates.
        """
        rate = jnp.sqrt(2.0 * jnp.shape(self.length)[0])
        size = jnp.sum(jnp.exp(self.linear)) + jnp.sum(jnp.exp(-self.length))
        return rate * size + 2.0 * jnp.exp(self.bump)

    def signal(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Kernel matrix `(r, s)` between points `(r, D)` and `(s, D)`."""
        weights, length = jnp.exp(2.0 * self.linear)[None, :], jnp.exp(self.length)[None, :]
        bump = jnp.exp(2.0 * self.bump - 0.5 * squared_distances(a / length, b / length))
        return INTERCEPT**2 + (features(a) * weights) @ features(b).T + bump

    def regularised(self, z: jax.Array, noise: jax.Array) -> jax.Array:
        """Kernel matrix plus the noise variance, `noise` `(m,)` in units of `exp(2 self.noise)`."""
        return self.signal(z, z) + jnp.diag(jnp.exp(2.0 * self.noise) * noise + JITTER)


def features(z: jax.Array) -> jax.Array:
    """`(..., D)` to `(..., 2 D)`: normal and uniform versions of each coordinate, each of variance 1."""
    return jnp.concatenate([z, jnp.sqrt(12.0) * (ndtr(z) - 0.5)], axis=-1)


@jax.custom_vjp
def held_out(matrix: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Weights `alpha = A^{-1} t` and `diag(A^{-1})`, each `(m,)`.

    The held-out residual of ridge regression is `alpha_j / (A^{-1})_jj` and its variance `1 / (A^{-1})_jj`, as a refit without
    simulation `j` gives. The adjoint takes one matrix product, and no derivative of a factorisation.
    """
    return _held_out(matrix, target)[0]


def _held_out(matrix, target):
    inverse = adjoint.inverse(matrix)
    alpha = inverse @ target
    return (alpha, jnp.diagonal(inverse)), (inverse, alpha)


def _held_out_backward(saved, cotangents):
    inverse, alpha = saved
    of_alpha, of_diagonal = cotangents
    of_target = inverse @ of_alpha
    of_matrix = -jnp.outer(of_target, alpha) - (inverse * of_diagonal[None, :]) @ inverse
    return 0.5 * (of_matrix + of_matrix.T), of_target


held_out.defvjp(_held_out, _held_out_backward)


@register
class RidgeFunctions:
    """Fitted functions of the coordinates, `n` at once: `z (D,) -> (n,)`.

    Attributes:
        points: Simulations, `(m, D)`.
        offset: `(n,)`.
        linear: Weights of the features, `(n, 2 D)`.
        bump: Weights of the Gaussian kernels, `(n, m)`.
        length: Their length scales, `(n, D)`.
    """

    points: ArrayLike
    offset: ArrayLike
    linear: ArrayLike
    bump: ArrayLike
    length: ArrayLike

    @classmethod
    def stack(cls, z: ArrayLike, fits: list[tuple[Smoothness, np.ndarray, float]]) -> "RidgeFunctions":
        """From hyperparameters, weights `alpha` `(m,)` and an offset for each function."""
        shape = np.asarray(features(jnp.asarray(z)))
        offset = [INTERCEPT**2 * alpha.sum() + shift for _, alpha, shift in fits]
        linear = [np.exp(2.0 * hyper.linear) * (alpha @ shape) for hyper, alpha, _ in fits]
        bump = [np.exp(2.0 * hyper.bump) * alpha for hyper, alpha, _ in fits]
        length = [np.exp(hyper.length) for hyper, _, _ in fits]
        return cls(z, np.array(offset), np.array(linear), np.array(bump), np.array(length))

    def __call__(self, z: jax.Array) -> jax.Array:
        """Values `(n,)` at one point `(D,)`. Cost: `n m` exponentials."""
        squares = jnp.square(z[None, :] - jnp.asarray(self.points))
        near = jnp.exp(-0.5 * squares @ jnp.square(1.0 / jnp.asarray(self.length)).T)
        return self.offset + jnp.asarray(self.linear) @ features(z) + jnp.sum(near * jnp.asarray(self.bump).T, axis=0)
