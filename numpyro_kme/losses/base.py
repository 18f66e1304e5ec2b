"""Discrepancies between weighted data and a model, which a posterior bootstrap or a generalised posterior minimises;
the model of one data point as a family of distributions, and the nodes that stand for the noise of its simulator."""

import abc
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, frozen, shown
from numpyro_kme.kernels.base import register


@shown
class Nodes(NamedTuple):
    """Noise values of simulated points, all with the same weight.

    Attributes:
        noise: Keys or noise values, `(M, ...)`.
        rows: With covariates, the data point whose covariates each node has, `(M,)`.
    """

    noise: Any
    rows: Any = None


@register
class Family:
    """The distributions `P_u` of one data point.

    Args:
        simulate: `(u, noise) -> one data point`, or with covariates `(u, noise, i) -> one response`, `i` the number of
            the data point whose covariates are used; traceable. `u` is a vector `(dim,)`.
        dim: Number of parameters.
        log_density: `(u, data points (m, ...)) -> log p(x_i | u), (m,)`, for `NegativeLogLikelihood`.
        covariates: Given values `(n, ...)`, one for each data point, or nothing. With covariates data points and
            simulated points are pairs `(covariate, response)`.
    """

    simulate: Callable = field(metadata=dict(static=True))
    dim: int = field(metadata=dict(static=True))
    log_density: Callable | None = field(default=None, metadata=dict(static=True))
    covariates: Any = None

    def __post_init__(self):
        checks.instance("simulate", self.simulate, Callable, "a function (u, noise) -> one data point")
        checks.whole("dim", self.dim, 0)
        checks.instance("log_density", self.log_density, Callable | None, "a function or None")

    def points(self, u: Any, nodes: Nodes) -> Any:
        """Simulate `(M, ...)` points at the nodes; with covariates, pairs of a covariate and a response."""
        if self.covariates is None:
            return jax.vmap(lambda noise: self.simulate(u, noise))(nodes.noise)
        given = jax.tree.map(lambda leaf: jnp.asarray(leaf)[nodes.rows], self.covariates)
        return given, jax.vmap(lambda noise, row: self.simulate(u, noise, row))(nodes.noise, nodes.rows)

    def weights(self, nodes: Nodes, data_weights: Any) -> jax.Array:
        """Weights `(M,)` of the simulated points; with covariates, those of the data, divided among nodes."""
        num = len(jax.tree.leaves(nodes.noise)[0])
        if nodes.rows is None:
            return jnp.full(num, 1.0 / num, jnp.result_type(float))
        weights = jnp.asarray(data_weights)[nodes.rows]
        return weights / jnp.sum(weights)


def vectors(points: Any) -> Any:
    """Make points of scalars `(n,)` into vectors `(n, 1)`, leaf by leaf."""
    return jax.tree.map(lambda leaf: leaf[:, None] if leaf.ndim == 1 else leaf, points)


class Embedding(abc.ABC):
    """Vectors whose squared distance is a loss: one for each weighting of the data, one for each simulated sample."""

    @abc.abstractmethod
    def data(self, weights: np.ndarray, extra: Any = None) -> np.ndarray:
        """Embed the data under weights `(R, n)`, or `(R, n + T)` with extra points `(R, T, ...)`: `(R, r)`."""

    @abc.abstractmethod
    def model(self, points: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Embed simulated samples.

        Args:
            points: `(D, M, *event)`: `D` samples of `M` points; with covariates `(D, n, M, *event)`, `M` for each
                data point.
            weights: With covariates, weights of the data points, `(R, n)`.
        Returns:
            `(D, 1, r)`; with covariates `(D, R, r)`.
        """


class Loss:
    """A discrepancy between weighted data and weighted simulations; implement `value` to write one."""

    takes_covariates: ClassVar[bool] = False
    """Whether `value` takes data with covariates, as pairs (covariates, responses)."""

    def value(self, x: Any, w: ArrayLike, y: Any, v: ArrayLike) -> jax.Array:
        """Discrepancy of data `x (n, ...)`, weights `w (n,)`, and simulations `y (M, ...)`, weights `v (M,)`.

        With covariates, where the loss `takes_covariates`, `x` is a pair `(covariates, responses)`, and so is `y`.
        Traceable and differentiable in `y`. Weights sum to one.
        """
        raise checks.explained(f"{type(self).__name__} must implement `value(x, w, y, v)`.", NotImplementedError)

    def between(self, x: Any, y: Any) -> jax.Array:
        """Discrepancy of samples whose points have equal weights."""
        return self.value(x, jnp.full(len(x), 1.0 / len(x)), y, jnp.full(len(y), 1.0 / len(y)))

    def of_model(self, x: Any, w: ArrayLike, family: Family, u: ArrayLike, nodes: Nodes) -> jax.Array:
        """Discrepancy of weighted data and the model at `u`, without `offset`; traceable."""
        return self.value(x, w, family.points(u, nodes), family.weights(nodes, w))

    def offset(self, x: Any, w: ArrayLike) -> jax.Array:
        """The part of the discrepancy that no model changes, for data `x` and weights `w`."""
        return jnp.zeros(())

    def for_data(self, data: Any) -> Self:
        """Complete the loss with all that it takes from the data, such as length scales."""
        return self

    def for_independent(self) -> Self:
        """Loss for independent simulations, whose expectation has no error of `1 / M` where it can be had."""
        return self

    def is_squared_distance(self, data: Any) -> bool:
        """Tell whether the loss of such data has an `embedding`."""
        return False

    def embedding(self, data: Any, simulated: Any, max_rank: int) -> Embedding:
        """Embed data and simulations such that the loss is their squared distance.

        Args:
            data: `(n, ...)`, or a pair (covariates, responses).
            simulated: Simulated points of the region that matters, `(m, ...)`, or such a pair.
            max_rank: Largest length of a vector.
        """
        raise checks.explained(f"{type(self).__name__} has no `embedding`, as squares have.", NotImplementedError)


@frozen
class NegativeLogLikelihood(Loss):
    """Weighted negative log likelihood `-sum_i w_i log p(x_i | u)`, for models that have a density.

    Efficient where the model is right, and not robust: one far point moves the estimate without bound.

    References: Newton and Raftery (1994), JRSS B 56; Lyddon, Walker and Holmes (2018), NeurIPS.
    """

    takes_covariates = True

    def of_model(self, x, w, family, u, nodes):
        """Weighted negative log likelihood at `u`; the nodes play no part."""
        needs = "NegativeLogLikelihood needs a model with a density. Use MMD or Wasserstein."
        return -jnp.vdot(w, checks.given(family.log_density, needs)(u, x))
