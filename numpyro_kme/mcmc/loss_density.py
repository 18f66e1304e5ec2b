"""A loss between data and simulated draws as a density of the data: `exp(-weight n loss)`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution

from numpyro_kme._core import checks, compat
from numpyro_kme._core.host import full_precision
from numpyro_kme.losses.base import Family, Loss, Nodes
from numpyro_kme.models.simulator import Simulator

_no_key = compat.valueless("fresh_noise_log_prob")


@dataclass(frozen=True, eq=False)
class Bound:
    """A loss bound to data.

    Attributes:
        loss: The loss.
        data: `(n, *event)`, or a pair (covariates, data).
        family: The model, as a function of the simulator's arguments.
        offset: The part of the loss that no parameter changes.
    """

    loss: Loss
    data: Any
    family: Family
    offset: np.ndarray

    @classmethod
    def make(cls, loss: Loss, value: np.ndarray, family: Family, independent: bool) -> "Bound":
        """Bind to data `(n, *event)`; simulations are `independent`, or spread evenly."""
        given = value if family.covariates is None else (family.covariates, value)
        with jax.ensure_compile_time_eval():
            bound = loss.for_data(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), given))
            bound = bound.for_independent() if independent else bound
            data = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.result_type(float)), given)
            return cls(bound, data, family, np.asarray(bound.offset(data, _equal(len(value)))))

    @property
    def size(self) -> int:
        """Number of data points."""
        return len(jax.tree.leaves(self.data)[0])

    @full_precision
    def values(self, arguments: jax.Array, nodes: Nodes) -> Any:
        """Losses at one point, `(sets,)`."""
        one = partial(self.loss.of_model, self.data, _equal(self.size), self.family, arguments)
        return self.offset + jax.vmap(one)(nodes)


def _equal(size: int) -> Any:
    return np.full(size, 1.0 / size, jnp.result_type(float))


class LossDensity(Distribution):
    """`exp(-weight n loss)`, shared out evenly over the data plate; made by `generalized_bayes`.

    Attributes:
        bound: The loss.
        nodes: Sets of noise; `None` where a kernel has to bring the key.
        weight: Learning rate.
        arguments: The simulator's arguments, flattened.
    """

    arg_constraints: dict[str, Any] = {}
    pytree_data_fields = ("nodes", "weight", "arguments")
    pytree_aux_fields = ("bound", "_name", "_smooth", "_black_box")

    def __init__(self, simulator: Simulator, bound: Bound, nodes: Nodes | None, weight):
        self.bound, self.nodes, self.weight = bound, nodes, weight
        self.arguments = simulator.arguments.reshape(-1)
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
        bound = self.bound
        arguments = self.arguments if self._smooth else compat.without_derivative(self.arguments, self._no_derivative)
        losses = bound.values(arguments, self.nodes)
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
        np.shape(msg["value"])[1:] == simulator.event_shape,
        f"One data point at site {name!r} has shape {np.shape(msg['value'])[1:]} and one simulated point "
        f"{simulator.event_shape}; they must agree.",
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
