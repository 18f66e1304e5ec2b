"""What every probability measure answers: its embeddings, moments, draws and density."""

import abc
from typing import TYPE_CHECKING

import jax
from jax.typing import ArrayLike

from numpyro_kme.kernels.base import Kernel

if TYPE_CHECKING:
    from numpyro_kme.embeddings.measures.points import Points


class Measure(abc.ABC):
    """A probability measure `p` on `R^D`."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Dimension `D`."""

    @abc.abstractmethod
    def closed_form(self, *kernels: Kernel) -> bool:
        """Whether embeddings with these kernels are exact."""

    @abc.abstractmethod
    def mean_embedding(self, kernel: Kernel, a: ArrayLike) -> jax.Array:
        """Values `int k(a_i, t) p(dt)` at the points `a` of shape `(m, D)`, `(m,)`."""

    @abc.abstractmethod
    def product_embedding(self, kernel_a: Kernel, a: ArrayLike, kernel_b: Kernel, b: ArrayLike) -> jax.Array:
        """Matrix `int k_a(a_i, t) k_b(t, b_j) p(dt)` for points `(m, D)` and `(r, D)`, `(m, r)`."""

    @abc.abstractmethod
    def squared_norm(self, kernel: Kernel) -> jax.Array:
        """`int int k(s, t) p(ds) p(dt)`, the squared length of the mean embedding."""

    @abc.abstractmethod
    def as_points(self) -> "Points":
        """Weighted points that stand for the measure."""

    @abc.abstractmethod
    def moments(self) -> tuple[jax.Array, jax.Array]:
        """Mean `(D,)` and covariance `(D, D)`."""

    @abc.abstractmethod
    def sample(self, rng_key: jax.Array, n: int) -> jax.Array:
        """`n` independent draws, `(n, D)`."""

    @abc.abstractmethod
    def log_density(self, t: ArrayLike) -> jax.Array:
        """Log density at one point `(D,)`; raises where the measure has none."""
