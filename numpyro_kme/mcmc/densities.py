"""Densities for models: a normal one with the moments of simulations, a kernel around one simulation whose noise is a
latent, ABC without rejection, and the pseudo-likelihood of a length scale."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.primitives import Messenger

from numpyro_kme._core import checks, compat, door, full_precision
from numpyro_kme.kernels import median_heuristic
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.kernel_learning import log_pseudo_likelihood
from numpyro_kme.likelihoods.distribution import RealValued
from numpyro_kme.mcmc.noise import latent_noise, several_keys
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.sites import observed_simulator, require_shape


class SyntheticLikelihood(RealValued):
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
        rng_key: Key of the simulations; always the same key when left out. With several keys `(blocks,)`, as
            `PseudoMarginal(blocks=...)` gives them, each makes an equal part of the simulations.
        shape, dtype: Of one event of a black-box simulator, whose density has no gradient.
    Raises:
        numpy.linalg.LinAlgError: If the covariance of the simulations is singular, outside compiled code; inside, the
            density is not a number.
    Cost: `num_simulations` simulations an evaluation.
    References: Wood (2010), Nature; Price et al. (2018), JCGS.
    """

    paper = "wood2010statistical"

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
        whole = tuple(map(jnp.ndim, params))  # also under plates
        self.simulator = Simulator(fn, *params, event_dims=whole, shape=shape, dtype=dtype)
        least = prod(self.simulator.event_shape) + 3
        checks.whole("num_simulations", num_simulations, least, " It must exceed the numbers of the event plus two.")
        self.num_simulations = num_simulations
        self.rng_key = rng_key
        if rng_key is not None:
            several_keys(checks.key(rng_key, several=True), num_simulations)
        super().__init__((), self.simulator.event_shape)

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Simulations themselves, not draws of the normal distribution."""
        return self.simulator.sample(key, sample_shape)

    @full_precision
    def log_prob(self, value: ArrayLike, intermediates=None) -> jax.Array:
        """Log density of the normal distribution with the moments of the simulations, over the leading axes."""
        checks.sound("value", value)
        fits = jnp.shape(value)[jnp.ndim(value) - self.event_dim :] == self.event_shape
        checks.require(fits, f"`value` must be (..., *{self.event_shape}), as simulated; got {jnp.shape(value)}.")
        drawn = self._simulated()
        mean = jnp.mean(drawn, axis=0)
        centred = drawn - mean[None]
        covariance = centred.T @ centred / (len(drawn) - 1)
        factor = jnp.linalg.cholesky(covariance)
        _check_rank(mean, covariance)
        value = jnp.asarray(value)
        rows = value.reshape(-1, len(mean))
        found = dist.MultivariateNormal(mean[None], scale_tril=factor).log_prob(rows)
        return found.reshape(value.shape[: value.ndim - self.event_dim])

    def _simulated(self) -> jax.Array:
        """Independent simulations, `(M, numbers)`."""
        keys = several_keys(jax.random.key(0) if self.rng_key is None else self.rng_key, self.num_simulations)
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


class soft_abc(Messenger):
    r"""A model with a kernel around the output of each observed simulator, and its noise as a latent.

    $p_\epsilon(\theta, z \mid y) \propto p(\theta)\, p(z)\, k_\epsilon(y, f(z, \theta))$, where `f(z, theta)` is
    the simulator as a function of the noise that it declares (`FromNoise`). Its
    marginal in $\theta$ is the soft ABC posterior, $p(\theta)\, E[k_\epsilon(y, x) \mid \theta]$, exactly: no
    simulation is rejected or weighted, and NUTS follows the derivatives of the simulator. Where draws have none, since
    they are whole numbers or jump, `PseudoMarginal` moves parameters and noise without. The smaller $\epsilon$, the
    closer it is to the posterior, and the narrower the ridge along which $(\theta, z)$ moves.

    The result is an ordinary NumPyro model with a latent `<site>_noise` more for each simulator, of shape
    `batch_shape + (dim,)`. Masks and plates of the simulator's site apply to the kernel. Simulators that are not
    observed stay in place, so that `Predictive` still simulates.

    Args:
        model: A model with observed `Simulator` sites, written in JAX; for NUTS differentiable in parameters and noise.
        kernel: On outputs of one call, with a logarithm: `Gaussian(epsilon)`, where `epsilon` is a number, or one for
            each number of the output, in its units.
    Raises:
        ValueError: When the model runs: if the noise of a simulator cannot be had as numbers, or if its site is scaled.
        NotImplementedError: When a kernel asks for the derivative of whole numbers.
    Cost: one simulation and its derivative a step of the sampler; best with at most some hundred dimensions of noise.
    References: Graham and Storkey (2017), Electron. J. Stat. 11; Hsu and Ramos (2019), AISTATS, for `p_epsilon`.
    Example:
        >>> mcmc = MCMC(NUTS(soft_abc(model, Gaussian(0.1))), num_warmup=500, num_samples=1000)
    """

    @door
    def __init__(self, model: Callable | None = None, kernel: Kernel | None = None):
        checks.instance("kernel", kernel, Kernel, "a kernel on outputs, such as Gaussian(epsilon)")
        self.kernel = kernel
        super().__init__(model)

    def process_message(self, msg):
        """Put the kernel in place at an observed simulator site, around one simulation with noise of its own."""
        simulator = observed_simulator(msg)
        if simulator is None:
            return
        batch, scale = simulator.batch_shape, compat.scale(msg)
        checks.require(
            not checks.is_concrete(scale) or bool(np.all(np.asarray(scale) == 1.0)),
            f"The site {msg['name']!r} is scaled by {scale}, which has no meaning for soft_abc: a kernel to a power is "
            "another kernel. Give that one, or use handlers.surrogate.",
        )
        _check_known(msg, simulator)
        with compat.outside(self):
            noise = latent_noise(msg["name"], simulator, batch)
        inputs = [noise, *simulator.broadcast_params(batch)]
        rows = [jnp.reshape(value, (prod(batch), *value.shape[len(batch) :])) for value in inputs]
        if not simulator.has_rsample:
            error = NotImplementedError(
                f"Simulator `{simulator.name}` returns {simulator.dtype}, whose draws have no derivative, which NUTS, "
                "HMC and SVI need. PseudoMarginal samples this model without: MCMC(PseudoMarginal(model), ...)."
            )
            rows = compat.without_derivative(rows, error)
        with compat.shielded():
            simulated = jax.vmap(simulator.fn.fn)(*rows).reshape(batch + simulator.event_shape)
        msg["fn"] = compat.rewrapped(msg["fn"], lambda _: AroundSimulation(self.kernel, simulated, simulator.event_dim))


def _check_known(msg, simulator: Simulator) -> None:
    """Require that nothing is missing of outputs that count."""
    value, mask = msg["value"], compat.mask(msg["fn"])
    if not simulator.ragged:
        require_shape(msg["name"], simulator, msg, enumerated=True)
    if simulator.ragged or not checks.is_concrete((value, mask)):
        return
    value = np.asarray(value, float)
    lacking = np.isnan(value).any(axis=tuple(range(value.ndim - simulator.event_dim, value.ndim))) & mask
    checks.require(
        not lacking.any(),
        f"The observation at {msg['name']!r} has NaN in {int(lacking.sum())} outputs of `{simulator.name}`, and a "
        "kernel compares whole ones. Leave these out by numpyro.handlers.mask, or use KELFI, which takes them.",
    )


class AroundSimulation(RealValued):
    """`k(y, x)` around one simulation `x` for each call, as an unnormalised density of `y`; made by `soft_abc`.

    Args:
        kernel: On outputs of one call.
        simulated: `batch_shape + event_shape`.
        event_dim: Number of dimensions of one output.
    """

    pytree_data_fields = ("kernel", "simulated")

    def __init__(self, kernel: Kernel, simulated: jax.Array, event_dim: int):
        self.kernel, self.simulated = kernel, simulated
        split = simulated.ndim - event_dim
        super().__init__(simulated.shape[:split], simulated.shape[split:])

    def log_prob(self, value, intermediates=None):
        """`log k(y, x)` of each call, `(*batch_shape)`."""
        value = jnp.asarray(value, jnp.result_type(float, self.simulated))
        shape = jnp.broadcast_shapes(value.shape, self.simulated.shape)
        calls = shape[: len(shape) - self.event_dim]
        rows = (jnp.broadcast_to(a, shape).reshape(prod(calls), -1) for a in (value, self.simulated))
        return jax.vmap(self.kernel.log_pair)(*map(self.kernel.points, rows)).reshape(calls)


def length_scale_model(x: ArrayLike, landmarks: ArrayLike) -> None:
    r"""The pseudo-likelihood of Bayesian kernel learning with priors on length scale and noise: a model for NUTS.

    $\log s \sim U(\log 10^{-3} m, \log m)$ with `m` the median heuristic, $\log \tau \sim N(\log 0.3, 1)$.
    Deterministic sites `length_scale` and `noise` hold `s` and `tau`; `eta` is the root mean squared distance of the
    data from their mean.

    Args:
        x: Data `(n, D)`; centred here.
        landmarks: `(q, D)`, such as `farthest_point_design(key, x, 50)`, in the units of `x`.
    References: Flaxman et al. (2016), UAI.
    """
    checks.table("x", x, min_rows=2)
    checks.table("landmarks", landmarks, columns=np.shape(x)[1])
    table = np.asarray(x, np.float64)
    centre, median = table.mean(axis=0), float(median_heuristic(table))
    reach = float(np.sqrt(np.mean(np.sum(np.square(table - centre), axis=1))))
    # least length scale, in median heuristics
    log_scale = numpyro.sample("log_length_scale", dist.Uniform(np.log(1e-3 * median), np.log(median)))
    log_noise = numpyro.sample("log_noise", dist.Normal(np.log(0.3), 1.0))
    scale = numpyro.deterministic("length_scale", jnp.exp(log_scale))
    noise = numpyro.deterministic("noise", jnp.exp(log_noise))
    at = jnp.asarray(table - centre), jnp.asarray(np.asarray(landmarks, np.float64) - centre)
    numpyro.factor("pseudo_likelihood", log_pseudo_likelihood(*at, scale, noise, reach))
