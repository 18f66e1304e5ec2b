"""The Gaussian synthetic likelihood of a simulator as a NumPyro distribution."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution

from numpyro_kme._core import checks
from numpyro_kme._core.display import Card, shown
from numpyro_kme._core.host import full_precision
from numpyro_kme.models.simulator import Simulator


@shown
class SyntheticLikelihood(Distribution):
    r"""Gaussian synthetic likelihood, $N(y;\, \hat\mu_\theta, \hat\Sigma_\theta)$.

    Mean and covariance are those of simulations at each `theta`.

    An ordinary distribution: `numpyro.sample("x", SyntheticLikelihood(fn, theta), obs=x)` runs under NUTS where `fn` is
    a JAX function that is differentiable in its parameters. It is the likelihood of the simulator if its outputs are
    normal and `num_simulations` is large: they should be summaries, averages of much data.

    Simulations at every `theta` share their noise, which makes the density a smooth, fixed function. With
    `rng_key=simulation_key("x")` and the kernel `PseudoMarginal` simulations are fresh at every
    proposal instead.

    Args:
        fn: The simulator, as in `Simulator`.
        *params: The arguments of one call.
        num_simulations: Simulations at each `theta`; more than the event has numbers, plus two.
        rng_key: Makes independent simulations, always with the same key when left out. Of several keys
            `(blocks,)`, as `PseudoMarginal(blocks=...)` gives them, each makes an equal part of the simulations.
        shape, dtype: Of one event of a black-box simulator, whose density has no gradient.
    Raises:
        numpy.linalg.LinAlgError: If the covariance of the simulations is singular, outside compiled code; inside, the
            density is not a number.
    Cost: `num_simulations` simulations an evaluation.
    References: Wood (2010), Nature; Price et al. (2018), JCGS.
    """

    paper = "wood2010statistical"

    arg_constraints: dict[str, Any] = {}
    pytree_data_fields = ("simulator", "rng_key")
    pytree_aux_fields = ("num_simulations",)

    def __init__(
        self,
        fn: Callable[..., ArrayLike],
        *params: ArrayLike,
        num_simulations: int = 256,
        rng_key: jax.Array | None = None,
        shape: int | tuple[int, ...] | None = None,
        dtype: Any = None,
    ):
        self.simulator = Simulator(fn, *params, shape=shape, dtype=dtype)
        checks.whole("num_simulations", num_simulations, 1)
        numbers = math.prod(self.simulator.event_shape)
        checks.require(
            num_simulations > numbers + 2,
            f"`num_simulations` must exceed {numbers + 2}, the numbers of the event plus two; got {num_simulations}.",
        )
        self.num_simulations = num_simulations
        self.rng_key = rng_key
        if rng_key is not None:
            checks.key(rng_key, several=True)
            blocks = len(_keys(rng_key))
            checks.require(
                num_simulations % blocks == 0,
                f"`num_simulations` must be a multiple of the number of blocks; got {num_simulations} simulations and "
                f"{blocks} blocks.",
            )
        super().__init__((), self.simulator.event_shape)

    def _card(self) -> Card:
        return Card(
            "Synthetic likelihood, a distribution of NumPyro",
            {
                "simulator": self.simulator.name,
                "event": str(self.event_shape),
                "simulations": f"{self.num_simulations:,} an evaluation",
                "noise": "the same at all parameters" if self.rng_key is None else "of its key",
            },
            'numpyro.sample("x", likelihood, obs=x), or log_prob(x)',
        )

    @property
    def support(self) -> constraints.Constraint:
        """All real numbers."""
        return constraints.independent(constraints.real, self.event_dim)

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Simulations themselves, not draws of the normal distribution."""
        return self.simulator.sample(key, sample_shape)

    @full_precision
    def log_prob(self, value: ArrayLike, intermediates=None) -> jax.Array:
        """Log density of the normal distribution with the moments of the simulations, over the leading axes."""
        checks.sound("value", value)
        checks.require(
            jnp.shape(value)[jnp.ndim(value) - self.event_dim :] == self.event_shape,
            f"`value` must have shape (..., *{self.event_shape}), as the simulator gives; got {jnp.shape(value)}.",
        )
        drawn = self._simulated()
        mean = jnp.mean(drawn, axis=0)
        centred = drawn - mean[None]
        covariance = centred.T @ centred / (len(drawn) - 1)
        factor = jnp.linalg.cholesky(covariance)
        _check_rank(mean, covariance)
        value = jnp.asarray(value)
        lead = value.shape[: value.ndim - self.event_dim]
        rows = value.reshape(-1, len(mean)) - mean[None]
        white = jax.scipy.linalg.solve_triangular(factor, rows.T, lower=True)
        constant = 0.5 * len(mean) * jnp.log(2.0 * jnp.pi) + jnp.sum(jnp.log(jnp.diagonal(factor)))
        return (-0.5 * jnp.sum(jnp.square(white), axis=0) - constant).reshape(lead)

    def _simulated(self) -> jax.Array:
        """Independent simulations, `(M, numbers)`."""
        keys = _keys(jax.random.key(0) if self.rng_key is None else self.rng_key)
        each = self.num_simulations // len(keys)
        drawn = jax.lax.map(lambda key: self.simulator.sample(key, (each,)), keys)
        drawn = drawn.reshape(self.num_simulations, -1)
        return drawn.astype(jnp.result_type(float, drawn))


def _check_rank(mean, covariance) -> None:
    """Require variances above the rounding of the numbers, and correlations that can be inverted."""
    if not checks.is_concrete(covariance):
        return
    eps = 8.0 * float(jnp.finfo(covariance.dtype).eps)
    mean, covariance = np.asarray(mean, np.float64), np.asarray(covariance, np.float64)
    variance = np.diagonal(covariance)
    varies = bool(np.all(variance > np.square(eps * mean)))
    checks.require(
        varies and np.linalg.eigvalsh(covariance / np.sqrt(np.outer(variance, variance))).min() > eps,
        "Over the simulations, numbers of the event are constant, follow from one another, or are not finite: the "
        "normal density does not exist. Leave them out.",
        np.linalg.LinAlgError,
    )


def _keys(key: jax.Array) -> jax.Array:
    """One key, of either kind, or several, as `(blocks,)` of them."""
    return key if checks.is_key(key) and key.ndim == 1 else key[None]
