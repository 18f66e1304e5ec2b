"""The interface of probability measures, and weighted points as a measure."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import full_precision, numpy_rng
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.gram import matvec, uniform_weights


class Measure(abc.ABC):
    """A probability measure `p` on `R^D`: NumPy float64 for arrays of NumPy, traceable for those of JAX."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Dimension `D`."""

    @abc.abstractmethod
    def mean_embedding(self, kernel: Kernel, a: ArrayLike) -> Any:
        """Values `int k(a_i, t) p(dt)` at the points `a` of shape `(m, D)`, `(m,)`."""

    @abc.abstractmethod
    def product_embedding(self, kernel_a: Kernel, a: ArrayLike, kernel_b: Kernel, b: ArrayLike) -> Any:
        """Matrix `int k_a(a_i, t) k_b(t, b_j) p(dt)` for points `(m, D)` and `(r, D)`, `(m, r)`."""

    @abc.abstractmethod
    def as_points(self) -> "Points":
        """Weighted points that stand for the measure."""

    @abc.abstractmethod
    def moments(self) -> tuple[Any, Any]:
        """Mean `(D,)` and covariance `(D, D)`."""

    @abc.abstractmethod
    def sample(self, rng_key: jax.Array, n: int) -> np.ndarray:
        """`n` independent draws, `(n, D)`, by NumPy."""

    @abc.abstractmethod
    def log_densities(self, points: Any) -> Any:
        """Log densities at points `(n, D)`, `(n,)`; raises where the measure has none."""


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
    def probabilities(self) -> Any:
        """The weights, `(T,)`."""
        return uniform_weights(self.points) if self.weights is None else self.weights

    def as_points(self) -> "Points":
        """Itself."""
        return self

    @full_precision
    def mean_embedding(self, kernel, a):
        """`sum_t weights_t k(a_i, points_t)`."""
        checks.sound("a", a)
        return matvec(kernel, a, self.points, self.probabilities)

    @full_precision
    def product_embedding(self, kernel_a, a, kernel_b, b):
        """`sum_t weights_t k_a(a_i, points_t) k_b(points_t, b_j)`."""
        return (kernel_a.gram(a, self.points) * self.probabilities[None, :]) @ kernel_b.gram(self.points, b)

    @full_precision
    def moments(self):
        """Weighted mean and covariance."""
        mean = self.probabilities @ self.points
        centred = self.points - mean[None, :]
        return mean, (centred * self.probabilities[:, None]).T @ centred

    def sample(self, rng_key, n):
        """Points drawn with replacement."""
        checks.key(rng_key)
        probabilities = np.asarray(self.probabilities, np.float64)
        return numpy_rng(rng_key).choice(np.asarray(self.points), n, p=probabilities / probabilities.sum())

    def log_densities(self, points):
        """A set of points has no density."""
        raise checks.explained(
            "`Points` has no density: it stands for a measure known by draws alone. Use its draws with "
            "importance weights, or give a Normal or NormalMixture."
        )
