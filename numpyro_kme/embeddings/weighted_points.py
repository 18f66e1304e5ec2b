"""What every probability measure answers, and weighted points as a measure."""

import abc

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import full_precision, numpy_rng
from numpyro_kme.kernels.base import Kernel, register


class Measure(abc.ABC):
    """A probability measure `p` on `R^D`."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Dimension `D`."""

    @abc.abstractmethod
    def mean_embedding(self, kernel: Kernel, a: ArrayLike) -> jax.Array:
        """Values `int k(a_i, t) p(dt)` at the points `a` of shape `(m, D)`, `(m,)`."""

    @abc.abstractmethod
    def product_embedding(self, kernel_a: Kernel, a: ArrayLike, kernel_b: Kernel, b: ArrayLike) -> jax.Array:
        """Matrix `int k_a(a_i, t) k_b(t, b_j) p(dt)` for points `(m, D)` and `(r, D)`, `(m, r)`."""

    @abc.abstractmethod
    def as_points(self) -> "Points":
        """Weighted points that stand for the measure."""

    @abc.abstractmethod
    def moments(self) -> tuple[jax.Array, jax.Array]:
        """Mean `(D,)` and covariance `(D, D)`."""

    @abc.abstractmethod
    def sample(self, rng_key: jax.Array, n: int) -> np.ndarray:
        """`n` independent draws, `(n, D)`, by NumPy."""

    @abc.abstractmethod
    def log_density(self, t: ArrayLike) -> jax.Array:
        """Log density at one point `(D,)`; raises where the measure has none."""

    @abc.abstractmethod
    def log_densities(self, points: np.ndarray) -> np.ndarray:
        """Log densities at points `(n, D)`, `(n,)`, by NumPy in float64; raises where the measure has none."""


@register
class Points(Measure):
    """The measure `sum_t weights_t delta(points_t)`: prior draws where no closed form is known.

    Args:
        points: `(T, D)`.
        weights: `(T,)`, non-negative, with sum one; equal when left out.
    Embeddings cost `T` kernel evaluations a point.
    """

    points: ArrayLike
    weights: ArrayLike | None = None

    def __post_init__(self):
        if checks.is_concrete((self.points, self.weights)):
            checks.table("points", self.points)
            if self.weights is not None:
                weights = np.asarray(self.weights)
                checks.require(
                    weights.shape == np.shape(self.points)[:1]
                    and bool(np.all(weights >= 0))
                    and abs(float(np.sum(weights)) - 1.0) < 1e-4,
                    f"`weights` must be non-negative and sum to 1, one for each of the {len(self.points)} points; "
                    f"got shape {weights.shape}, smallest {np.min(weights)}, sum {np.sum(weights)}.",
                )

    @property
    def dim(self):
        """Dimension `D`."""
        return jnp.shape(self.points)[1]

    @property
    def probabilities(self) -> jax.Array:
        """The weights, `(T,)`."""
        size = jnp.shape(self.points)[0]
        return jnp.full((size,), 1.0 / size) if self.weights is None else jnp.asarray(self.weights)

    def as_points(self) -> "Points":
        """Itself."""
        return self

    @full_precision
    def mean_embedding(self, kernel, a):
        """`sum_t weights_t k(a_i, points_t)`."""
        checks.sound("a", a)
        return kernel.gram(jnp.asarray(a), jnp.asarray(self.points)) @ self.probabilities

    @full_precision
    def product_embedding(self, kernel_a, a, kernel_b, b):
        """`sum_t weights_t k_a(a_i, points_t) k_b(points_t, b_j)`."""
        points = jnp.asarray(self.points)
        return (kernel_a.gram(jnp.asarray(a), points) * self.probabilities[None, :]) @ kernel_b.gram(
            points, jnp.asarray(b)
        )

    @full_precision
    def moments(self):
        """Weighted mean and covariance."""
        points = jnp.asarray(self.points)
        mean = self.probabilities @ points
        centred = points - mean[None, :]
        return mean, (centred * self.probabilities[:, None]).T @ centred

    def sample(self, rng_key, n):
        """Points drawn with replacement."""
        checks.key(rng_key)
        probabilities = np.asarray(self.probabilities, np.float64)
        return numpy_rng(rng_key).choice(np.asarray(self.points), n, p=probabilities / probabilities.sum())

    def log_density(self, t):
        """A set of points has no density."""
        raise checks.explained(
            "`Points` has no density: it stands for a measure known by draws alone. Use its draws with "
            "importance weights, or give a Normal or NormalMixture."
        )

    log_densities = log_density
