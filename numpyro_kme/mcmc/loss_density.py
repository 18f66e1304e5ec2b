"""A loss between data and simulated draws as a density of the data: `exp(-weight n loss)`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution

from numpyro_kme._core import checks, compat
from numpyro_kme._core.host import full_precision, in_present_precision, on_host
from numpyro_kme._core.programs import pieces
from numpyro_kme.losses.base import Loss, WeightedObjective
from numpyro_kme.losses.generator import Generator, QuadratureNodes
from numpyro_kme.mcmc.noise import NoiseForm
from numpyro_kme.models.simulator import Simulator

_no_key = compat.valueless("fresh_noise_log_prob")


def declared(simulator: Simulator) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype that a black-box simulator declares; None for one in JAX."""
    return (simulator.event_shape, str(simulator.dtype)) if simulator.black_box else None


def one_point(fn: Callable, params, noise, black_box: tuple[tuple[int, ...], str] | None) -> jax.Array:
    """One point of a simulator from its noise, `fn(noise, *params)`; `black_box` is what `declared` says."""
    if black_box is not None:
        shape, dtype = black_box
        drawn = Simulator(fn, *params, shape=shape, dtype=dtype).sample(noise)
    else:
        with compat.shielded():
            drawn = fn(noise, *params)
    return jnp.asarray(drawn, jnp.result_type(float))


@dataclass(frozen=True)
class Call:
    """One call of a simulator as a function of its flattened arguments and the noise."""

    fn: Callable
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    black_box: tuple[tuple[int, ...], str] | None
    groups: tuple[int, ...]

    @classmethod
    def of(cls, simulator: Simulator, form: NoiseForm, grouped: bool) -> "Call":
        """A call of a simulator with such noise, for one of its groups of arguments where it is `grouped`."""
        dtypes = tuple(str(param.dtype) for param in simulator.params)
        groups = simulator.groups if grouped else ()
        return cls(form.applied(simulator.fn), simulator.call_shapes, dtypes, declared(simulator), groups)

    @property
    def dim(self) -> int:
        """Number of arguments, of all groups."""
        return int(np.prod(self.groups)) * sum(int(np.prod(shape)) for shape in self.shapes)

    def __call__(self, arguments, noise, row=None):
        """Simulate one point, with the arguments of group `row`."""
        arguments = arguments if row is None else arguments.reshape(*self.groups, -1)[row]
        params = [block.astype(dtype) for block, dtype in zip(pieces(arguments, self.shapes), self.dtypes)]
        return one_point(self.fn, params, noise, self.black_box)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bound:
    """A loss bound to data, with what does not depend on the parameters computed once.

    Attributes:
        objective: The loss as a function of the simulator's arguments.
        reduced: The reduced data terms.
        offset: What the objective leaves out because parameters do not change it.
        size: Number of data points.
    """

    objective: WeightedObjective
    reduced: Any
    offset: Any
    size: int = field(metadata=dict(static=True))

    @classmethod
    @on_host
    def make(cls, loss: Loss, value: np.ndarray, generator: Generator) -> "Bound":
        """Bind to data `(n, *event)`, in float64."""
        data = value if generator.covariates is None else (generator.covariates, value)
        objective, weights = loss.objective(data, generator), jnp.full(len(value), 1.0 / len(value))
        return cls(objective, objective.reduce(weights), objective.offsets(weights[None])[0], len(value))

    @full_precision
    def values(self, arguments: jax.Array, nodes: QuadratureNodes) -> jax.Array:
        """Losses at one point, `(sets,)`."""
        return self.offset + jax.vmap(lambda one: self.objective.value(self.reduced, arguments, one))(nodes)


@jax.custom_jvp
def smooth_values(bound: Bound, nodes: QuadratureNodes, arguments: jax.Array) -> jax.Array:
    """`bound.values(arguments, nodes)` with the loss's own derivative in the arguments."""
    return bound.values(arguments, nodes)


@smooth_values.defjvp
@full_precision
def _(primals, tangents):
    bound, nodes, arguments = primals
    value, slope = jax.vmap(lambda one: bound.objective.slope(bound.reduced, arguments, one))(nodes)
    return value + bound.offset, slope @ tangents[2]


class LossDensity(Distribution):
    """`exp(-weight n loss)`, shared out evenly over the data plate; made by `generalized_bayes`.

    Attributes:
        bound: The loss.
        nodes: Sets of noise; `None` where a kernel has to bring the key.
        weight: Learning rate.
        arguments: The simulator's arguments, flattened.
    """

    arg_constraints: dict[str, Any] = {}
    pytree_data_fields = ("bound", "nodes", "weight", "arguments")
    pytree_aux_fields = ("_common", "_name", "_smooth", "_black_box")

    def __init__(self, simulator: Simulator, bound: Bound, nodes: QuadratureNodes | None, weight, common: bool):
        self.bound, self.nodes, self.weight = bound, nodes, weight
        self.arguments = simulator.arguments.reshape(-1)
        self._common = common
        self._name, self._smooth, self._black_box = simulator.name, simulator.has_rsample, simulator.black_box
        super().__init__((bound.size,), simulator.event_shape)

    @property
    def support(self) -> constraints.Constraint:
        """All real numbers."""
        return constraints.independent(constraints.real, self.event_dim)

    def mask(self, mask):
        """All or nothing: a joint loss has no terms of single points."""
        checks.require(
            not np.shape(mask),
            f"A mask of shape {np.shape(mask)} around handlers.generalized_bayes: the loss compares the data of "
            f"simulator `{self._name}` as a whole, so that no points can be taken out of it. Leave them out of the "
            "data.",
        )
        return super().mask(mask)

    def sample(self, key, sample_shape=()):
        """Raises: draws come from the simulator itself."""
        raise checks.explained(
            "A loss has no draws. To simulate, leave the site unobserved under `handlers.generalized_bayes`.",
            NotImplementedError,
        )

    def log_prob(self, value, intermediates=None):
        """`-weight loss` for each data point."""
        if self.nodes is None:
            message = (
                "FreshNoise has a new estimate of the density each time, which only the kernel "
                "`numpyro_kme.PseudoMarginal` samples correctly: MCMC(PseudoMarginal(model), ...). For NUTS use "
                "CommonNoise or LatentNoise."
            )
            settings = dict(shape=self.batch_shape, dtype=jnp.result_type(float), message=message)
            return _no_key(jnp.asarray(value), self.arguments, **settings)
        bound, nodes = in_present_precision((self.bound, self.nodes))
        arguments = self.arguments if self._smooth else compat.without_derivative(self.arguments, self._no_derivative)
        smooth = self._smooth and self._common
        losses = smooth_values(bound, nodes, arguments) if smooth else bound.values(arguments, nodes)
        total = logsumexp(-self.weight * bound.size * losses) - np.log(len(losses))
        return jnp.broadcast_to(total / bound.size, self.batch_shape)

    @property
    def _no_derivative(self) -> NotImplementedError:
        why = "runs on the host" if self._black_box else "returns whole numbers"
        return NotImplementedError(
            f"Simulator `{self._name}` {why} and has no derivative, which NUTS, HMC and SVI need. Kernels that work: "
            "PseudoMarginal with FreshNoise, or LatentNoise for simulators in JAX; AIES and ESS of numpyro.infer with "
            "CommonNoise; any kernel on a surrogate (handlers.surrogate)."
        )


def check_site(msg, simulator: Simulator, covariates) -> None:
    """Require a site whose data one joint loss can compare: one plate, no masks or scales, covariates where needed."""
    name, frames = msg["name"], msg["cond_indep_stack"]
    weights = compat.mask(msg["fn"]), compat.scale(msg)
    checks.real(f"observation at {name!r}", msg["value"])
    checks.require(
        len(frames) == 1 and len(simulator.batch_shape) == 1 and simulator.batch_shape[0] >= 2,
        f"Site {name!r} must stand in one plate, the data plate, with one event for each of at least two data points; "
        f"it has the plates {[(frame.name, frame.size) for frame in frames]} and batch shape {simulator.batch_shape}.",
    )
    checks.require(
        checks.is_concrete(weights) and all(np.all(np.asarray(weight) == 1) for weight in weights),
        f"Site {name!r} is masked or scaled, which a joint loss cannot be entry by entry. Leave those data out, or "
        "change `weight`.",
    )
    checks.require(
        (simulator.groups not in ((), (1,))) == (covariates is not None),
        f"The parameters of simulator `{simulator.name}` at site {name!r} have batch shape {simulator.groups} and "
        f"covariates are {'missing' if covariates is None else 'given'}. Where parameters vary along the data plate, "
        f"say with what: covariates={{{name!r}: array}}; otherwise leave them out.",
    )
    checks.require(
        checks.is_concrete(msg["value"]),
        f"The observation at {name!r} is traced by JAX; a loss is bound to data that are known. Pass them to the model "
        "as they are (MCMC(..., jit_model_args=False)).",
    )
