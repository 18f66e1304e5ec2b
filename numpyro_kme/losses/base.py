"""What a posterior bootstrap minimises: losses, and the objective that one makes of data and a simulator."""

import abc
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.losses import mixing
from numpyro_kme.losses.generator import Generator, QuadratureNodes


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

    def adapt_nodes(self, u: np.ndarray, least: int) -> QuadratureNodes | None:
        """At least `least` quadrature nodes adapted to the model at `u`; None where there are no better ones."""
        return None

    def smoothed(self) -> "WeightedObjective":
        """A smoother objective with about the same minimum, for starts far from it; itself where there is none."""
        return self

    def refined(self) -> "WeightedObjective":
        """The same objective with its own discretisation halved, where it has one."""
        return self


class EmbeddingObjective(WeightedObjective):
    """A squared distance between embeddings, which knows the inner products of embeddings of any simulated points."""

    fit_proportion: bool

    def energy(self, q: jax.Array, coincident: jax.Array, weights: jax.Array) -> jax.Array:
        """`|mu_u|^2` from its sum `q` over all pairs of nodes: unbiased where these are sampled independently."""
        if not self.generator.noise.independent:
            return q
        return mixing.unbiased_energy(q, coincident, weights, self.fit_proportion)

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
        raise NotImplementedError(f"{type(self).__name__} must implement `value(x, w, y, v)` or `objective(...)`.")

    def objective(self, data: Any, generator: Generator, extra: Any = None) -> WeightedObjective:
        """Bind to data `(n, ...)` and a simulator; `extra` are points that replicates will add."""
        checks.require(
            self.takes_covariates or generator.covariates is None,
            f"{type(self).__name__} takes no covariates. Use MMD(), or a loss of your own with `takes_covariates = "
            "True`, whose `value` then gets pairs (covariates, responses).",
        )
        check_points(data, generator)
        return TwoSampleObjective(generator, self, jax.tree.map(np.asarray, data))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TwoSampleObjective(WeightedObjective):
    """A loss between two weighted samples, data and simulations; derivatives by automatic differentiation."""

    generator: Generator
    loss: Loss = field(metadata=dict(static=True))
    data: Any

    def value(self, reduced, u, nodes):
        """Loss at `u`."""
        data, weights = reduced
        return self.loss.value(data, weights, self.generator.points(u, nodes), self.generator.weights(nodes, weights))


def join(data: Any, extra: Any) -> Any:
    """Append extra points to the data, leaf by leaf."""
    return data if extra is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), data, extra)


def num_points(data: Any) -> int:
    """Number of data points `n`."""
    return jax.tree.leaves(data)[0].shape[0]


def vectors(points: Any) -> Any:
    """Make points of scalars `(n,)` into vectors `(n, 1)`, leaf by leaf."""
    return jax.tree.map(lambda leaf: leaf[:, None] if leaf.ndim == 1 else leaf, points)


def check_points(data: Any, generator: Generator) -> None:
    """Require at least two finite data points whose shape is that of the simulator's output."""
    leaves = jax.tree.leaves(data)
    checks.require(
        bool(leaves) and all(leaf.ndim >= 1 and leaf.shape[0] >= 2 for leaf in leaves),
        f"`data` must hold at least two points along its first axis; got shapes {[leaf.shape for leaf in leaves]}.",
    )
    for leaf in leaves:
        checks.finite("data", leaf)
    simulated = _two_points(generator)
    have = [leaf.shape[1:] for leaf in leaves]
    want = [leaf.shape[1:] for leaf in jax.tree.leaves(simulated)]
    checks.require(
        have == want,
        f"one data point has shape {have} and one simulated point {want}; they must agree. Change the "
        "simulator's output, or the axis of the data that the plate runs over.",
    )


@on_host
def _two_points(generator: Generator) -> Any:
    """Shapes and types of two simulated points."""
    u = jax.ShapeDtypeStruct((generator.dim,), np.float64)
    return jax.eval_shape(generator.points, u, generator.draw_nodes(jax.random.key(0), 2))


@dataclass(frozen=True)
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
        checks.require(num_points(data) >= 2, f"`data` must hold at least two points; got {num_points(data)}.")
        for leaf in jax.tree.leaves(data):
            checks.finite("data", leaf)
        return LikelihoodObjective(generator, jax.tree.map(np.asarray, data))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LikelihoodObjective(WeightedObjective):
    """A weighted negative log likelihood, bound to data."""

    generator: Generator
    data: Any

    def value(self, reduced, u, nodes):
        """Weighted negative log likelihood at `u`; the nodes play no part."""
        data, weights = reduced
        assert self.generator.log_density is not None
        return -jnp.vdot(weights, self.generator.log_density(u, data))
