"""What a posterior bootstrap minimises: a loss, and the loss bound to data and a simulator."""

import abc
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.losses.generator import Generator, Nodes


class Expansion(NamedTuple):
    """A loss about one parameter vector: value, gradient `(p,)`, Hessian `(p, p)` (exact or approximate)."""

    value: Any
    gradient: Any
    hessian: Any


class Objective(abc.ABC):
    """A loss bound to data and a family of laws: a function of parameters `u` for each weighting of the data.

    `reduce` does once what depends on the weights alone; the other methods take its result and the noise
    nodes. All are traceable.
    """

    generator: Generator
    data: Any
    has_cheap_hessian: ClassVar[bool] = False
    """Whether `expand` costs little more than `slope`; if not, solvers update an approximate Hessian."""

    @abc.abstractmethod
    def reduce(self, weights: jax.Array, extra: Any = None) -> Any:
        """Reduce data weights `(n,)` to what the loss needs; with `extra` points `(T, ...)`, `(n + T,)`."""

    @abc.abstractmethod
    def value(self, facts: Any, u: jax.Array, nodes: Nodes) -> jax.Array:
        """Loss at `u` for the reduced weights."""

    def slope(self, facts: Any, u: jax.Array, nodes: Nodes) -> tuple[jax.Array, jax.Array]:
        """Loss and gradient at `u`."""
        return jax.value_and_grad(lambda t: self.value(facts, t, nodes))(u)

    def expand(self, facts: Any, u: jax.Array, nodes: Nodes) -> Expansion:
        """Loss, gradient and Hessian at `u`."""

        def gradient(t):
            value, slope = self.slope(facts, t, nodes)
            return slope, (value, slope)

        hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(u)
        return Expansion(value, slope, 0.5 * (hessian + hessian.T))

    def report(self, facts: Any, u: jax.Array, nodes: Nodes) -> dict[str, jax.Array]:
        """Further numbers for people about the fit at `u`, by name."""
        return {}

    def offsets(self, weights: jax.Array, extra: Any = None) -> jax.Array:
        """What `value` leaves out because parameters do not change it, `(R,)`.

        For weights `(R, n)`, or `(R, n + T)` with extra points `(R, T, ...)`.
        """
        return jnp.zeros(weights.shape[0], weights.dtype)

    def place(self, u: np.ndarray, least: int) -> Nodes | None:
        """Return better nodes than the noise's own near `u`, at least `least` of them, if there are any."""
        return None

    def smoothed(self) -> "Objective":
        """Return a smoother objective with about the same minimum, to be led by from afar, if there is one."""
        return self

    def refined(self) -> "Objective":
        """Return the same objective with its own discretisation halved, where it has one."""
        return self


class EmbeddingObjective(Objective):
    """A squared distance between embeddings, which knows the inner products of any embeddings of draws."""

    free_mass: bool

    @abc.abstractmethod
    def gram(self, facts: Any, points: Any, nodes: Nodes) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Inner products of the embeddings of `R` sets of simulated points `(R, M, ...)`.

        Returns:
            With one another `(R, R)`, with the data `(R,)`, and the constant that `value` adds.
        """


class Loss:
    """A discrepancy between weighted data and weighted draws of the model.

    To write a loss, implement `value`. A loss that wants more than draws (densities, a faster algorithm)
    overrides `objective` instead.
    """

    def value(self, x: Any, w: jax.Array, y: Any, v: jax.Array) -> jax.Array:
        """Discrepancy of data `x (n, ...)`, weights `w (n,)`, and draws `y (M, ...)`, weights `v (M,)`.

        Traceable and differentiable in `y`. Weights sum to one.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `value(x, w, y, v)` or `objective(...)`.")

    def objective(self, data: Any, generator: Generator, extra: Any = None) -> Objective:
        """Bind to data `(n, ...)` and a simulator; `extra` are points that replicates will add."""
        check_points(data, generator)
        return DrawsObjective(generator, self, jax.tree.map(np.asarray, data))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DrawsObjective(Objective):
    """A loss that looks at data and draws only; derivatives by automatic differentiation."""

    generator: Generator
    loss: Loss = field(metadata=dict(static=True))
    data: Any

    def reduce(self, weights, extra=None):
        """Join the points and keep the weights."""
        return join(self.data, extra), weights

    def value(self, facts, u, nodes):
        """Loss at `u`."""
        data, weights = facts
        return self.loss.value(data, weights, self.generator.points(u, nodes), self.generator.weights(nodes, weights))


def join(data: Any, extra: Any) -> Any:
    """Append extra points to the data, leaf by leaf."""
    return data if extra is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), data, extra)


def num_points(data: Any) -> int:
    """Number of data points `n`."""
    return jax.tree.leaves(data)[0].shape[0]


def check_points(data: Any, generator: Generator) -> None:
    """Require at least two finite data points whose shape is that of the simulator's output."""
    leaves = jax.tree.leaves(data)
    checks.require(
        bool(leaves) and all(leaf.ndim >= 1 and leaf.shape[0] >= 2 for leaf in leaves),
        f"`data` must hold at least two points along its first axis; got shapes {[leaf.shape for leaf in leaves]}.",
    )
    for leaf in leaves:
        checks.finite("data", leaf)
    drawn = _two_draws(generator)
    have = [leaf.shape[1:] for leaf in leaves]
    want = [leaf.shape[1:] for leaf in jax.tree.leaves(drawn)]
    checks.require(
        have == want,
        f"one data point has shape {have} and one simulated point {want}; they must agree. Change the "
        "simulator's output, or the axis of the data that the plate runs over.",
    )


@on_host
def _two_draws(generator: Generator) -> Any:
    """Shapes and types of two simulated points."""
    u = jax.ShapeDtypeStruct((generator.dim,), np.float64)
    return jax.eval_shape(generator.points, u, generator.draw_nodes(jax.random.key(0), 2))
