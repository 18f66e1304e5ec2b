"""Where the noise of a simulator comes from when a loss compares its draws with data inside MCMC: a named choice."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import field
from functools import partial
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger, apply_stack

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme.losses.base import Nodes
from numpyro_kme.models.low_discrepancy import accepts, node_keys
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise
from numpyro_kme.models.sites import Call


@frozen
class CommonNoise:
    """Noise that is the same at every point of the chain: a smooth density, for any kernel.

    A simulator in JAX runs on keys of low discrepancy (`models.node_keys`), a Latin hypercube over its noise. Others,
    and those that take no such keys, have independent noise: the posterior is then that of one simulated sample, close
    to the one with infinitely many only if the sample is much larger than the data. `noise_sensitivity` rescores draws
    under other keys.

    Args:
        num_simulations: Simulated points `M`, a power of two where keys are of low discrepancy (rounded up); ten times
            the data is a start.
        rng_key: Makes the noise.
    """

    num_simulations: int
    rng_key: jax.Array = field(default_factory=lambda: jax.random.key(0))

    def __post_init__(self):
        checks.whole("num_simulations", self.num_simulations, 2)
        checks.key(self.rng_key, several=True)


@frozen
class LatentNoise:
    """The noise of every simulated point as a latent `<site>_noise` of the model, `(M, *noise)`, beside the parameters.

    Exact for any `M`, for the posterior prior x `E exp(-weight n loss)`, where the loss compares with `M` simulated
    points; with simulators in JAX whose noise is declared (`FromNoise`), for NUTS, and for `PseudoMarginal` where draws
    have no derivative.

    Args:
        num_simulations: Simulated points `M`.
    """

    num_simulations: int

    def __post_init__(self):
        checks.whole("num_simulations", self.num_simulations, 2)


@frozen
class FreshNoise:
    """New noise at each proposal, for the kernel `PseudoMarginal`, which keeps the estimate of the current point.

    Exact for any `M`, for the posterior prior x `E exp(-weight n loss)`, where the loss compares with `M` simulated
    points; for any simulator.

    Args:
        num_simulations: Simulated points `M`.
        repeats: Independent simulated samples whose `exp(-weight n loss)` are averaged: the same posterior, and a
            chain that sticks less.
    """

    num_simulations: int
    repeats: int = 1

    def __post_init__(self):
        checks.whole("num_simulations", self.num_simulations, 2)
        checks.whole("repeats", self.repeats, 1)


NoisePolicy = CommonNoise | LatentNoise | FreshNoise

NOISE = "simulator_noise"
"""In `infer` of a latent: it is the noise of a simulator."""


def simulation_key(site: str, *, common: bool = False) -> jax.Array | None:
    """The key that a surrounding `simulation_keys` gives to a site; None without one.

    A density that a model estimates with this key, `numpyro.factor("x", log_estimate(simulation_key("x"), theta))`,
    can be sampled by `PseudoMarginal`. It differs from `numpyro.prng_key()`, which is the same in every step of NUTS.

    Args:
        site: Name of the site.
        common: Whether the noise is meant to stay: then kernels that bring new keys do not answer.
    """
    message = dict(type="simulation_key", fn=lambda: None, args=(), kwargs={}, value=None, site=site, common=common)
    return apply_stack(message)["value"]


class simulation_keys(Messenger):
    """A model with a key for each site that asks `simulation_key(site)`: `fold_in(rng_key, crc32(site))`.

    Args:
        model: The model.
        rng_key: A JAX key, or `(blocks,)` of them, which the sites then get.
        common: Whether sites whose noise is meant to stay get one too.
    """

    def __init__(self, model: Callable | None = None, rng_key: jax.Array | None = None, *, common: bool = True):
        checks.key(rng_key, several=True)
        self.rng_key, self.common = rng_key, common
        super().__init__(model)

    def process_message(self, msg):
        """Answer, unless a closer handler has."""
        if msg["type"] == "simulation_key" and msg["value"] is None and (self.common or not msg["common"]):
            concrete = checks.is_concrete(self.rng_key)
            with jax.ensure_compile_time_eval() if concrete else nullcontext():
                fold = partial(jax.random.fold_in, data=crc32(msg["site"].encode()))
                many = checks.is_key(self.rng_key) and self.rng_key.ndim == 1
                msg["value"] = (jax.vmap(fold) if many else fold)(self.rng_key)


def declared_noise(simulator: Simulator) -> dist.Distribution:
    """The distribution of the noise of one call.

    Raises:
        ValueError: If the simulator does not declare it.
    """
    fn: Any = simulator.fn
    checks.require(
        isinstance(fn, FromNoise),
        f"The noise of simulator `{simulator.name}` is needed as numbers, for a latent of the model. Declare it: write "
        "`fn(noise, *params)` and Simulator(FromNoise(fn, dist.Normal(0, 1)), *params), with the distribution of the "
        "noise of one call; or use FreshNoise with PseudoMarginal.",
    )
    return fn.noise


def takes_even_noise(simulator: Simulator) -> bool:
    """Tell whether a simulator runs on keys of low discrepancy."""
    call = Call.of(simulator)
    return not simulator.black_box and accepts(call.fn, *call.zeros)


def common_nodes(simulator: Simulator, key: jax.Array, num: int, covariates: np.ndarray | None) -> Nodes:
    """Nodes that stay; with covariates a share for each data point, an even number of nodes."""
    rows = None if covariates is None else len(covariates)
    each = 2 ** int(np.ceil(np.log2(num if rows is None else max(num / rows, 2.0))))
    call = Call.of(simulator)

    def keys(key, count):
        if not takes_even_noise(simulator):
            return jax.random.split(key, count)
        return node_keys(call.fn, key, count, *call.zeros)

    if rows is None:
        return Nodes(keys(key, each if takes_even_noise(simulator) else num))
    return Nodes(
        jnp.concatenate([keys(one, each) for one in jax.random.split(key, rows)]), np.repeat(np.arange(rows), each)
    )


def fresh_nodes(key: jax.Array, noise: FreshNoise) -> Nodes:
    """Independent sets of nodes `(repeats, M)`; with keys `(blocks,)` each makes an equal part of every set."""
    num, sets = noise.num_simulations, noise.repeats
    if not checks.is_key(key) or key.ndim == 0:
        return Nodes(jax.random.split(key, (sets, num)))
    checks.require(
        num % len(key) == 0,
        f"`num_simulations` must be a multiple of the number of blocks; got {num} points and {len(key)} blocks.",
    )
    parts = jax.vmap(lambda one: jax.random.split(one, (sets, num // len(key))))(key)
    return Nodes(jnp.moveaxis(parts, 0, 1).reshape(sets, num))
