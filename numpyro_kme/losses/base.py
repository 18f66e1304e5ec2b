"""What a posterior bootstrap minimises: losses, and the objective that one makes of data and a simulator."""

import abc
from dataclasses import field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen, shown
from numpyro_kme.kernels.base import register
from numpyro_kme.losses import mixing
from numpyro_kme.losses.generator import Generator, QuadratureNodes, check_data, check_points, join


@shown
class TaylorExpansion(NamedTuple):
    """Second-order expansion of an objective: value, gradient `(p,)`, exact or approximate Hessian `(p, p)`."""

    value: Any
    gradient: Any
    hessian: Any


class WeightedObjective(abc.ABC):
    """A loss between data and a family of distributions: a function of parameters `u` for each weighting of the data.

    `reduce` computes once the terms that depend on the weights alone; the other methods take these reduced data terms
    and the quadrature nodes of the noise. All are traceable.
    """

    generator: Generator
    data: Any
    has_cheap_hessian: ClassVar[bool] = False
    """Whether `expand` costs little more than `slope`; if not, solvers update an approximate Hessian."""
    hessian_by_slopes: ClassVar[bool] = False
    """Whether Hessians are differences of slopes: sooner compiled than their derivatives, but wrong where a loss has
    kinks."""
    by_numpy: ClassVar[bool] = False
    """Whether `grid_rows` evaluates many reweightings at once on the host."""
    is_smooth: ClassVar[bool] = True
    """Whether derivatives are those of the value; if not, solvers keep the Hessian and look at gradients alone."""

    def reduce(self, weights: jax.Array, extra: Any = None) -> Any:
        """Reduced data terms for weights `(n,)` or `(n + T,)` with `extra` points `(T, ...)`; here both as they are."""
        return join(self.data, extra), weights

    @abc.abstractmethod
    def value(self, reduced: Any, u: jax.Array, nodes: QuadratureNodes) -> jax.Array:
        """Loss at `u`."""

    def slope(self, reduced: Any, u: jax.Array, nodes: QuadratureNodes) -> tuple[jax.Array, jax.Array]:
        """Loss and gradient at `u`."""
        return jax.value_and_grad(lambda t: self.value(reduced, t, nodes))(u)

    def expand(self, reduced: Any, u: jax.Array, nodes: QuadratureNodes) -> TaylorExpansion:
        """Loss, gradient and Hessian at `u`."""

        def gradient(t):
            value, slope = self.slope(reduced, t, nodes)
            return slope, (value, slope)

        hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(u)
        return TaylorExpansion(value, slope, 0.5 * (hessian + hessian.T))

    def report(self, reduced: Any, u: jax.Array, nodes: QuadratureNodes) -> dict[str, jax.Array]:
        """Further numbers for people about the fit at `u`, by name."""
        return {}

    def offsets(self, weights: jax.Array, extra: Any = None) -> jax.Array:
        """What `value` leaves out because parameters do not change it, `(R,)`.

        For weights `(R, n)`, or `(R, n + T)` with extra points `(R, T, ...)`.
        """
        return jnp.zeros(weights.shape[0], weights.dtype)

    def nodes_of(self, nodes: QuadratureNodes, sets: np.ndarray, weights: np.ndarray) -> QuadratureNodes:
        """Nodes of reweightings, `(R, M, ...)`, by the numbers of their sets `(R,)`, and their weights `(R, n)`."""
        return nodes.of_sets(sets)

    def adapt_nodes(self, u: np.ndarray, least: int) -> QuadratureNodes | None:
        """At least `least` quadrature nodes adapted to the model at `u`; None where there are no better ones."""
        return None

    def smoothed(self) -> "WeightedObjective":
        """A smoother objective with about the same minimum, for starts far from it; itself where there is none."""
        return self

    def refined(self) -> "WeightedObjective":
        """The same objective with its own discretisation halved, where it has one."""
        return self


WIDER = 8.0
"""A smoothed loss has a kernel this many times as wide."""


def widened(kernel: Any, times: float = WIDER) -> Any:
    """The same stationary kernel, so many times as wide."""
    return replace(kernel, length_scale=times * np.asarray(kernel.length_scale))


class EmbeddingObjective(WeightedObjective):
    """A squared distance between embeddings, which knows the inner products of embeddings of any simulated points."""

    hessian_by_slopes: ClassVar[bool] = True
    fit_proportion: bool

    def energy(self, q: jax.Array, coincident: jax.Array, weights: jax.Array) -> jax.Array:
        """`|mu_u|^2` from its sum `q` over all pairs of nodes; where these are sampled independently, without the pairs
        of a node with itself: `(q - coincident) / (1 - sum v^2)`.

        A fitted mixing proportion divides by it. It is then kept above `coincident`, the energy of simulated points of
        which no two are near each other: that many points cannot tell a smaller energy from nothing, and points
        scattered without end would seem to fit best.
        """
        if not self.generator.noise.independent:
            return q
        energy = (q - coincident) / (1.0 - jnp.sum(jnp.square(weights)))
        return jnp.maximum(energy, coincident) if self.fit_proportion else energy

    @abc.abstractmethod
    def witnesses(self, reduced: Any, u: jax.Array, nodes: QuadratureNodes) -> tuple[jax.Array, ...]:
        """`mu_u` and `mu_w` at the simulated points `y_m`, the weights `v` of these, and `sum_m v_m^2 k(y_m, y_m)`."""

    def report(self, reduced, u, nodes):
        """The standard error of the loss, and the mixing proportion if it is fitted; see `mixing.report`."""
        own, cross, weights, coincident = self.witnesses(reduced, u, nodes)
        q, s = self.energy(weights @ own, coincident, weights), weights @ cross
        kinds = self.generator.noise.independent, self.fit_proportion
        return mixing.report(q, s, (own, cross), weights, coincident, *kinds)

    @abc.abstractmethod
    def gram(self, reduced: Any, points: Any, nodes: QuadratureNodes) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Inner products of the embeddings of `R` sets of simulated points `(R, M, ...)`.

        Returns:
            With one another `(R, R)`, with the data `(R,)`, and the constant that `value` adds.
        """


class Loss:
    """A discrepancy between weighted data and weighted simulations.

    To write a loss, implement `value`. A loss that needs more than simulations (densities, a faster algorithm)
    overrides `objective` instead.
    """

    takes_covariates: ClassVar[bool] = False
    """Whether `value` or `objective` takes data with covariates, as pairs (covariates, responses)."""

    def value(self, x: Any, w: jax.Array, y: Any, v: jax.Array) -> jax.Array:
        """Discrepancy of data `x (n, ...)`, weights `w (n,)`, and simulations `y (M, ...)`, weights `v (M,)`.

        With covariates, where the loss `takes_covariates`, `x` is a pair `(covariates, responses)`, and so is `y`.
        Traceable and differentiable in `y`. Weights sum to one. Solvers take Newton steps, so the loss should be
        smooth in `y`: where it has kinks, as absolute differences do, replicates of the bootstrap may not converge.
        """
        raise checks.explained(
            f"{type(self).__name__} must implement `value(x, w, y, v)` or `objective(...)`.", NotImplementedError
        )

    def of_model(self, data: Any, weights: jax.Array, generator: Generator, u: jax.Array, nodes: Any) -> jax.Array:
        """Discrepancy of weighted data and the model at `u`; here `value` with its simulations at the nodes."""
        return self.value(data, weights, generator.points(u, nodes), generator.weights(nodes, weights))

    def objective(self, data: Any, generator: Generator, extra: Any = None) -> WeightedObjective:
        """Bind to data `(n, ...)` and a simulator; `extra` are points that replicates will add."""
        checks.require(
            self.takes_covariates or generator.covariates is None,
            f"{type(self).__name__} takes no covariates. Use MMD(), or a loss of your own with `takes_covariates = "
            "True`, whose `value` then gets pairs (covariates, responses).",
        )
        check_points(data, generator)
        return TwoSampleObjective(generator, jax.tree.map(np.asarray, data), self)


@register
class TwoSampleObjective(WeightedObjective):
    """A loss between weighted data and a model; derivatives by automatic differentiation."""

    generator: Generator
    data: Any
    loss: Loss = field(metadata=dict(static=True))

    def value(self, reduced, u, nodes):
        """Loss at `u`."""
        data, weights = reduced
        return self.loss.of_model(data, weights, self.generator, u, nodes)


@frozen
class NegativeLogLikelihood(Loss):
    """Weighted negative log likelihood `-sum_i w_i log p(x_i | u)`, for models that have a density.

    Efficient where the model is right, and not robust: one far point moves the estimate without bound.

    References: Newton and Raftery (1994), JRSS B 56; Lyddon, Walker and Holmes (2018), NeurIPS.
    """

    takes_covariates = True

    def objective(self, data: Any, generator: Generator, extra: Any = None) -> WeightedObjective:
        """Bind to data `(n, ...)`; raises an error if the model has no density."""
        checks.require(
            generator.log_density is not None,
            "NegativeLogLikelihood needs a model with a density; this one can only simulate. Use MMD or Wasserstein.",
        )
        check_data(data)
        return TwoSampleObjective(generator, jax.tree.map(np.asarray, data), self)

    def of_model(self, data, weights, generator, u, nodes):
        """Weighted negative log likelihood at `u`; the nodes play no part."""
        return -jnp.vdot(weights, generator.log_density(u, data))


@register
class Differenced(WeightedObjective):
    r"""An objective whose derivatives are central differences with the same noise at every point.

    Where simulated points jump from one regime to another, or are counts, the derivative of a point is not that of the
    distribution; a difference over a step in which many points jump is. For embeddings, the derivative
    `J_a = (mu_{u + s_a} - mu_{u - s_a}) / (2 s_a)` lies in the kernel's space, and the Hessian is that of Gauss and
    Newton, `2 <J_a, J_b>`, plus the second differences on its diagonal. Other losses are differenced themselves.

    Args:
        inner: What to differentiate.
        steps: `(p,)`, of the order of a posterior standard deviation.

    Cost: `2 p + 1` simulations of all nodes a gradient.
    """

    is_smooth: ClassVar[bool] = False
    inner: WeightedObjective
    steps: Any

    @property
    def generator(self) -> Generator:  # type: ignore[override]
        """The simulator of the inner objective."""
        return self.inner.generator

    @property
    def data(self):
        """The data of the inner objective."""
        return self.inner.data

    def reduce(self, weights, extra=None):
        """As the inner objective."""
        return self.inner.reduce(weights, extra)

    def value(self, reduced, u, nodes):
        """As the inner objective."""
        return self.inner.value(reduced, u, nodes)

    def report(self, reduced, u, nodes):
        """As the inner objective."""
        return self.inner.report(reduced, u, nodes)

    def offsets(self, weights, extra=None):
        """As the inner objective."""
        return self.inner.offsets(weights, extra)

    def adapt_nodes(self, u, least):
        """As the inner objective."""
        return self.inner.adapt_nodes(u, least)

    def smoothed(self):
        """The inner objective smoothed, with the same steps."""
        return Differenced(self.inner.smoothed(), self.steps)

    def refined(self):
        """The inner objective refined, with the same steps."""
        return Differenced(self.inner.refined(), self.steps)

    def slope(self, reduced, u, nodes):
        """Loss, and its central differences."""
        values = jax.lax.map(lambda t: self.inner.value(reduced, t, nodes), self._around(u))
        dim = len(self.steps)
        return values[0], (values[1 : 1 + dim] - values[1 + dim :]) / (2.0 * self.steps)

    def expand(self, reduced, u, nodes):
        """Loss, central differences, and an approximate Hessian."""
        if not isinstance(self.inner, EmbeddingObjective):
            return self._second_differences(reduced, u, nodes)
        points = jax.lax.map(lambda t: self.generator.points(t, nodes), self._around(u))
        own, cross, norm = self.inner.gram(reduced, points, nodes)
        dim = len(self.steps)
        pick = jnp.concatenate([jnp.zeros((dim, 1)), jnp.eye(dim), -jnp.eye(dim)], axis=1)
        first = pick / (2.0 * self.steps[:, None])
        second = jnp.abs(pick).at[:, 0].set(-2.0) / jnp.square(self.steps[:, None])
        value, by, by_by = mixing.derivatives(own[0, 0], cross[0], self.inner.fit_proportion)
        steps = jnp.stack([2.0 * first @ own[:, 0], first @ cross])
        curved = second @ (2.0 * by[0] * own[:, 0] + by[1] * cross)
        hessian = 2.0 * by[0] * first @ own @ first.T + steps.T @ by_by @ steps + jnp.diag(curved)
        return TaylorExpansion(value + norm, self.slope(reduced, u, nodes)[1], hessian)

    def _around(self, u):
        """Rows `u`, `u + s_a e_a`, `u - s_a e_a`."""
        return u[None] + jnp.concatenate([jnp.zeros((1, len(u))), jnp.diag(self.steps), -jnp.diag(self.steps)])

    def _second_differences(self, reduced, u, nodes):
        value, gradient = self.slope(reduced, u, nodes)
        sides = jax.lax.map(lambda t: self.slope(reduced, t, nodes)[1], self._around(u)[1:])
        dim = len(self.steps)
        hessian = (sides[:dim] - sides[dim:]) / (2.0 * self.steps[:, None])
        return TaylorExpansion(value, gradient, 0.5 * (hessian + hessian.T))
