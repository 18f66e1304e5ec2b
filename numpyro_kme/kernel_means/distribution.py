"""Where the two columns meet: a learnt likelihood as a NumPyro distribution."""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution

from numpyro_kme import _checks, _linalg
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.kernel_means.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.kernel_means.published import KernelMeans
from numpyro_kme.measures import Measure


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

    def at(self, y: ArrayLike) -> LikelihoodAt:
        """The likelihood of one output `(*event)`, as a function of coordinates."""
        return self.surrogate.at(self.surrogate.point(y))

    def __call__(self, *params: ArrayLike) -> "KernelMeansLikelihood":
        """The distribution of the output at `params`."""
        return KernelMeansLikelihood(self, *params)


class KernelMeansLikelihood(Distribution):
    r"""The kernel means likelihood $q(y \mid \theta)$, learnt from simulations $\{(\theta_j, x_j)\}$.

    It stands for a density of the simulator's output that is smoothed by the learnt bandwidth. A finite number of
    simulations can make $q$ negative; `log_prob` is the logarithm of the positive version that the form of the
    surrogate documents, so that gradient-based samplers can follow it.

    Args:
        fitted: From `fit_likelihood`, or from an engine (`KELFI.likelihoods[site]`).
        *params: The simulator's arguments, in its order. Leading dimensions beyond those of one call are batch
            dimensions, the same for every parameter.
    Raises:
        ValueError: If the parameters do not have as many numbers a call as `fitted` was learnt from.
    Reference: Hsu and Ramos (2019), AISTATS.
    """

    arg_constraints: dict = {}
    pytree_data_fields = ("fitted", "arguments")

    def __init__(self, fitted: FittedLikelihood, *params: ArrayLike):
        self.fitted = fitted
        self.arguments = _join(params, len(fitted.coordinates.columns))
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
        concrete = _checks.is_concrete((value, self.fitted))
        xp = np if concrete else jnp
        data: Any = xp.asarray(value)
        lead = data.shape[: data.ndim - self.event_dim]
        rows = data.reshape(-1, *self.event_shape)
        if concrete:
            prepared = [self.fitted.at(row) for row in rows]
            likelihoods = jax.tree.map(lambda *leaves: np.stack(leaves), *prepared)
        else:
            likelihoods = jax.vmap(self.fitted.at)(rows)
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


def _join(params: tuple[ArrayLike, ...], expected: int) -> jax.Array:
    """All numbers that one call takes, flattened and joined, `batch_shape + (expected,)`."""
    arrays = [jnp.asarray(p) for p in params]
    shapes = [a.shape for a in arrays]
    for k in range(min((a.ndim for a in arrays), default=0) + 1):
        if len({shape[:k] for shape in shapes}) == 1 and sum(math.prod(shape[k:]) for shape in shapes) == expected:
            dtype = jnp.result_type(float, *arrays)
            return jnp.concatenate([a.reshape(*a.shape[:k], -1).astype(dtype) for a in arrays], axis=-1)
    raise ValueError(
        f"The likelihood was learnt from {expected} arguments for each simulation, and parameters of the shapes {shapes} do "
        "not hold that many after common leading batch dimensions. Pass the arguments of the simulator in its order, "
        "broadcast against each other."
    )


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
        z = np.asarray(jax.jit(jax.vmap(coordinates.forward))(theta.astype(np.float64)))
    form = form or KernelMeans()
    point = None if y is None else form.point(np.asarray(y))
    surrogate = form.fit(z, form.points(x), measure=measure, y=point)
    return FittedLikelihood(surrogate, coordinates, x.shape[1:])
