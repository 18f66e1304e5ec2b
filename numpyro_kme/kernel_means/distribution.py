"""Where the two columns meet: a learnt likelihood as a NumPyro distribution."""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution

from numpyro_kme import _checks
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.kernel_means.base import Surrogate


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FittedLikelihood:
    """A learnt likelihood together with the map from a simulator's arguments to its coordinates.

    Call it with the arguments of a simulator to get a distribution of its output:
    `numpyro.sample("x", fitted(theta), obs=x)`, or hand it to `handlers.surrogate`.

    Attributes:
        surrogate: The learnt `q(y | z)` of flattened outputs `y`.
        coordinates: The map `z = coordinates.forward(arguments)`.
        event_shape: Shape of one output of the simulator.
    """

    surrogate: Surrogate
    coordinates: Coordinates
    event_shape: tuple[int, ...] = field(metadata=dict(static=True))

    def __call__(self, *params: ArrayLike, event_dims: int | tuple[int, ...] | None = None) -> "KernelMeansLikelihood":
        """The distribution of the output at `params`, with the shape conventions of `Simulator`."""
        return KernelMeansLikelihood(self, *params, event_dims=event_dims)


class KernelMeansLikelihood(Distribution):
    r"""The kernel means likelihood $q(y \mid \theta)$, learnt from simulations $\{(\theta_j, x_j)\}$.

    It stands for a density of the simulator's output that is smoothed by the learnt bandwidth. A finite number of
    simulations can make $q$ negative; `log_prob` is the logarithm of the positive version that the form of the
    surrogate documents, so that gradient-based samplers can follow it.

    Args:
        fitted: From `fit_likelihood`, or from an engine (`KELFI.likelihoods[site]`).
        *params: The simulator's arguments; joined, they have as many numbers as the table that `fitted` learnt from.
        event_dims: How many trailing dimensions of each parameter belong to one call, as in `Simulator`; all of
            them when left out.
    Raises:
        ValueError: If the parameters do not have as many numbers as `fitted` was learnt from.
    Reference: Hsu and Ramos (2019), AISTATS.
    """

    arg_constraints: dict = {}
    pytree_data_fields = ("fitted", "arguments")

    def __init__(
        self, fitted: FittedLikelihood, *params: ArrayLike, event_dims: int | tuple[int, ...] | None = None
    ):
        self.fitted = fitted
        self.arguments = join_arguments(params, event_dims)
        expected = fitted.coordinates.num_arguments
        _checks.require(
            self.arguments.shape[-1] == expected,
            f"The likelihood was learnt from {expected} arguments a simulation, and its parameters have shapes "
            f"{[jnp.shape(p) for p in params]} with event_dims={event_dims}, which makes {self.arguments.shape[-1]}. "
            "Pass the arguments of the simulator in the same order.",
        )
        super().__init__(self.arguments.shape[:-1], fitted.event_shape)

    @property
    def support(self) -> constraints.Constraint:
        """All real numbers: the learnt density lives on the simulator's output without its constraints."""
        return constraints.independent(constraints.real, self.event_dim)

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Raises: draws come from the simulator itself."""
        raise NotImplementedError(
            "A kernel means likelihood has a density and no draws of its own. To simulate, leave the site unobserved "
            "under `handlers.surrogate`, which then keeps the simulator."
        )

    def log_prob(self, value: ArrayLike, intermediates=None) -> jax.Array:
        """Logarithm of the positive version of `q(value | params)`, of the broadcast batch shape.

        A concrete `value` is prepared once, on the host and in float64; a traced one costs two triangular solves.
        """
        concrete = _checks.is_concrete(value)
        xp = np if concrete else jnp
        value = xp.asarray(value)
        lead = value.shape[: value.ndim - self.event_dim]
        rows = value.reshape(-1, math.prod(self.event_shape))
        if concrete:
            prepared = [self.fitted.surrogate.at(row) for row in rows]
            likelihoods = jax.tree.map(lambda *leaves: np.stack(leaves), *prepared)
        else:
            likelihoods = jax.vmap(self.fitted.surrogate.at)(rows)
        batch = jnp.broadcast_shapes(lead, self.batch_shape)
        which = np.broadcast_to(np.arange(len(rows)).reshape(lead), batch)
        arguments = jnp.broadcast_to(self.arguments, (*batch, self.arguments.shape[-1]))
        flat = jax.vmap(self._one)(
            jax.tree.map(lambda leaf: jnp.asarray(leaf)[which.ravel()], likelihoods),
            arguments.reshape(-1, arguments.shape[-1]),
        )
        return flat.reshape(batch)

    def _one(self, likelihood, arguments):
        return likelihood.log_density(self.fitted.coordinates.forward(arguments))


def join_arguments(params: tuple[ArrayLike, ...], event_dims: int | tuple[int, ...] | None) -> jax.Array:
    """All numbers that one call takes, flattened and joined, `batch_shape + (p,)`."""
    arrays = [jnp.asarray(p) for p in params]
    if event_dims is None:
        event_dims = tuple(a.ndim for a in arrays)
    dims = (event_dims,) * len(arrays) if isinstance(event_dims, int) else tuple(event_dims)
    leads = [a.shape[: a.ndim - d] for a, d in zip(arrays, dims, strict=True)]
    batch = jnp.broadcast_shapes(*leads)
    dtype = jnp.result_type(float, *arrays)
    columns = [
        jnp.broadcast_to(a.reshape((1,) * (len(batch) - len(lead)) + a.shape), batch + a.shape[a.ndim - d :])
        .reshape(*batch, -1)
        .astype(dtype)
        for a, d, lead in zip(arrays, dims, leads, strict=True)
    ]
    return jnp.concatenate(columns, axis=-1)


def fit_likelihood(
    theta: ArrayLike,
    x: ArrayLike,
    *,
    form: Form | None = None,
    coordinates: Coordinates | None = None,
    measure: Measure | None = None,
    y: ArrayLike | None = None,
) -> FittedLikelihood:
    """Learn a simulator's likelihood from any table of its arguments and outputs.

    Args:
        theta: `(m, p)` arguments, from any proposal: they need not be draws from the prior.
        x: `(m, *event)` outputs.
        form: Form and settings of the surrogate; `KernelMeans()` when left out.
        coordinates: Map of the arguments to about standard normal; `Coordinates.standardise(theta)` when left out.
        measure: The prior in coordinates, for objectives and reports that need one.
        y: The observation `(*event)`, for objectives that need it.
    Raises:
        ValueError: If the tables disagree in length, hold values that are not finite, or are too short.
    """
    theta, x = np.asarray(theta), np.asarray(x)
    _checks.matrix("theta", theta, min_rows=2)
    _checks.require(
        x.shape[:1] == theta.shape[:1],
        f"`theta` and `x` must have one row for each simulation; got shapes {theta.shape} and {x.shape}.",
    )
    _checks.finite("theta", theta)
    coordinates = coordinates or Coordinates.standardise(theta)
    with _linalg.float64():
        z = _linalg.to_host(jax.vmap(coordinates.forward)(theta.astype(np.float64)))
    flat = None if y is None else np.asarray(y).reshape(-1)
    surrogate = (form or KernelMeans()).fit(z, x.reshape(len(x), -1), measure=measure, y=flat)
    return FittedLikelihood(surrogate, coordinates, x.shape[1:])
