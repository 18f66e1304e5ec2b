"""ABC without rejection: the noise of a simulator as a latent, and a kernel around what it simulates."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution
from numpyro.primitives import Messenger

from numpyro_kme._core import checks, compat
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.mcmc.noise import NOISE, declared_noise
from numpyro_kme.models.simulator import Simulator


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

    def __init__(self, model: Callable | None = None, kernel: Kernel | None = None):
        checks.instance("kernel", kernel, Kernel, "a kernel on outputs, such as Gaussian(epsilon)")
        self.kernel = kernel
        super().__init__(model)

    def process_message(self, msg):
        """Put the kernel in place at an observed simulator site, around one simulation with noise of its own."""
        if msg["type"] != "sample" or not msg["is_observed"]:
            return
        simulator = compat.innermost(msg["fn"])
        if not isinstance(simulator, Simulator):
            return
        one, batch = declared_noise(simulator), simulator.batch_shape
        scale = compat.scale(msg)
        checks.require(
            not checks.is_concrete(scale) or bool(np.all(np.asarray(scale) == 1.0)),
            f"The site {msg['name']!r} is scaled by {scale}, which has no meaning for soft_abc: a kernel to a power is "
            "another kernel. Give that one, or use handlers.surrogate.",
        )
        _check_known(msg, simulator)
        whole = one.expand(batch + one.batch_shape).to_event(len(batch + one.batch_shape))
        with compat.outside(self):
            noise = numpyro.sample(f"{msg['name']}_noise", whole, infer={NOISE: True})
        inputs = [noise, *simulator.broadcast_params(batch)]
        rows = [jnp.reshape(value, (prod(batch), *value.shape[len(batch) :])) for value in inputs]
        if not simulator.has_rsample:
            rows = compat.without_derivative(rows, _no_derivative(simulator))
        with compat.shielded():
            simulated = jax.vmap(simulator.fn.fn)(*rows).reshape(batch + simulator.event_shape)
        msg["fn"] = compat.rewrapped(msg["fn"], lambda _: AroundSimulation(self.kernel, simulated, simulator.event_dim))


def _no_derivative(simulator: Simulator) -> NotImplementedError:
    return NotImplementedError(
        f"Simulator `{simulator.name}` returns {simulator.dtype}, whose draws have no derivative, which NUTS, HMC and "
        "SVI need. PseudoMarginal samples this model without: MCMC(PseudoMarginal(model), ...). Or use an engine, such "
        "as RejectionABC or KELFI."
    )


def _check_known(msg, simulator: Simulator) -> None:
    """Require that nothing is missing of outputs that count."""
    value, mask = msg["value"], compat.mask(msg["fn"])
    if simulator.ragged or not checks.is_concrete((value, mask)):
        return
    value = np.asarray(value, float)
    lacking = np.isnan(value).any(axis=tuple(range(value.ndim - simulator.event_dim, value.ndim))) & mask
    checks.require(
        not lacking.any(),
        f"The observation at {msg['name']!r} has NaN in {int(lacking.sum())} outputs of `{simulator.name}`, and a "
        "kernel compares whole ones. Leave these out by numpyro.handlers.mask, or use KELFI, which takes outputs that "
        "were observed in part.",
    )


class AroundSimulation(Distribution):
    """`k(y, x)` around one simulation `x` for each call, as an unnormalised density of `y`; made by `soft_abc`.

    Args:
        kernel: On outputs of one call.
        simulated: `batch_shape + event_shape`.
        event_dim: Number of dimensions of one output.
    """

    arg_constraints: dict[str, Any] = {}
    pytree_data_fields = ("kernel", "simulated")

    def __init__(self, kernel: Kernel, simulated: jax.Array, event_dim: int):
        self.kernel, self.simulated = kernel, simulated
        split = simulated.ndim - event_dim
        super().__init__(simulated.shape[:split], simulated.shape[split:])

    @property
    def support(self) -> constraints.Constraint:
        """All real numbers."""
        return constraints.independent(constraints.real, self.event_dim)

    def log_prob(self, value, intermediates=None):
        """`log k(y, x)` of each call, `(*batch_shape)`."""
        value = jnp.asarray(value, jnp.result_type(float, self.simulated))
        shape = jnp.broadcast_shapes(value.shape, self.simulated.shape)
        calls = shape[: len(shape) - self.event_dim]
        pairs = (
            self.kernel.points(jnp.broadcast_to(a, shape).reshape(prod(calls), -1)) for a in (value, self.simulated)
        )
        return jax.vmap(self.kernel.log_pair)(*pairs).reshape(calls)
