"""Where the noise of a simulator comes from when a loss compares its draws with data inside MCMC: a named choice."""

import abc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import field, replace
from functools import partial
from typing import Any, cast
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.primitives import Messenger, apply_stack

from numpyro_kme._core import checks, frozen
from numpyro_kme.losses.base import Nodes
from numpyro_kme.models.low_discrepancy import accepts, node_keys
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise
from numpyro_kme.models.sites import Call

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
            with _known_now(self.rng_key):
                fold = partial(jax.random.fold_in, data=crc32(msg["site"].encode()))
                many = checks.is_key(self.rng_key) and self.rng_key.ndim == 1
                msg["value"] = (jax.vmap(fold) if many else fold)(self.rng_key)


@frozen
class NoisePolicy(abc.ABC):
    """Base of the choices.

    Args:
        num_simulations: Simulated points `M`.
    """

    num_simulations: int

    def __post_init__(self):
        checks.whole("num_simulations", self.num_simulations, 2)

    @abc.abstractmethod
    def nodes(self, site: str, simulator: Simulator, covariates: Any) -> Nodes | None:
        """Sets of noise `(sets, M, ...)`; None where a kernel has to bring the key."""

    def call(self, simulator: Simulator) -> Call:
        """One call of the simulator as a function of its arguments and such noise."""
        return Call.of(simulator)


@frozen
class CommonNoise(NoisePolicy):
    """Noise that is the same at every point of the chain: a smooth density, for any kernel.

    A simulator in JAX runs on keys of low discrepancy (`models.node_keys`), a Latin hypercube over its noise. Black
    boxes, and simulators that take no such keys, have independent noise: the posterior is then that of one simulated
    sample, close to that of infinitely many points only if the sample is much larger than the data.
    `noise_sensitivity` evaluates draws again under other keys.

    Args:
        num_simulations: Simulated points `M`, a power of two where keys are of low discrepancy (rounded up); ten times
            the data is a start.
        rng_key: Makes the noise.
    """

    rng_key: jax.Array = field(default_factory=lambda: jax.random.key(0))

    def __post_init__(self):
        super().__post_init__()
        checks.key(self.rng_key, several=True)

    def nodes(self, site, simulator, covariates):
        """One set that stays; with covariates a share for each data point."""
        key = simulation_key(site, common=True)
        key = self.rng_key if key is None else key
        rows = None if covariates is None else len(covariates)
        number = self.num_simulations if rows is None else max(-(-self.num_simulations // rows), 2)
        with _known_now(key):
            number = 2 ** int(np.ceil(np.log2(number))) if is_even(simulator) else number
            return jax.tree.map(lambda leaf: leaf[None], even_nodes(simulator, key, number, rows))


@frozen
class LatentNoise(NoisePolicy):
    """The noise of every simulated point as a latent `<site>_noise` of the model, `(M, *noise)`, beside the parameters.

    Exact for any `M`, for the posterior prior x `E exp(-weight n loss)`, where the loss compares with `M` simulated
    points; with simulators in JAX whose noise is declared (`FromNoise`), for NUTS, and for `PseudoMarginal` where draws
    have no derivative.

    Args:
        num_simulations: Simulated points `M`.
    """

    def call(self, simulator):
        """One call as a function of the declared noise."""
        declared_noise(simulator)  # which raises an error where there is none
        return replace(Call.of(simulator), fn=cast(Any, simulator.fn).fn)

    def nodes(self, site, simulator, covariates):
        """One set, a site of the model."""
        return Nodes(latent_noise(site, simulator, (self.num_simulations,))[None])


@frozen
class FreshNoise(NoisePolicy):
    """New noise at each proposal, for the kernel `PseudoMarginal`, which keeps the estimate of the current point.

    Exact for any `M`, for the posterior prior x `E exp(-weight n loss)`, where the loss compares with `M` simulated
    points; for any simulator.

    Args:
        num_simulations: Simulated points `M`.
        repeats: Independent simulated samples whose `exp(-weight n loss)` are averaged: the same posterior, and a
            chain that sticks less.
    """

    repeats: int = 1

    def __post_init__(self):
        super().__post_init__()
        checks.whole("repeats", self.repeats, 1)

    def nodes(self, site, simulator, covariates):
        """Independent sets; of keys `(blocks,)` each makes an equal part of every set."""
        key = simulation_key(site)
        if key is None:
            return None
        keys = several_keys(key, self.num_simulations)
        shape = self.repeats, self.num_simulations // len(keys)
        parts = jax.vmap(lambda one: jax.random.split(one, shape))(keys)
        return Nodes(jnp.moveaxis(parts, 0, 1).reshape(self.repeats, self.num_simulations, *parts.shape[3:]))


def check_data_points(site: str, data: Any, simulator: Simulator, covariates: Any, how: str) -> None:
    """Require data `(n, *event)` that one call each could give, and covariates where these have parameters of their
    own; `how` says how covariates are given."""
    have, want = np.shape(data)[1:], simulator.event_shape
    checks.require(
        have == want,
        f"One data point at site {site!r} has shape {have} and one simulated point {want}; they must agree. Change the "
        "simulator's output, or the axis of the data that the plate runs over.",
    )
    checks.require(
        (simulator.groups not in ((), (1,))) == (covariates is not None),
        f"The parameters of simulator `{simulator.name}` at site {site!r} have batch shape {simulator.groups} and "
        f"covariates are {'missing' if covariates is None else 'given'}. Give what they vary with, {how}, or none.",
    )


def declared_noise(simulator: Simulator) -> dist.Distribution:
    """The distribution of the noise of one call.

    Raises:
        ValueError: If the simulator does not declare it.
    """
    fn: Any = simulator.fn
    checks.require(
        isinstance(fn, FromNoise),
        f"The noise of simulator `{simulator.name}` is needed as numbers. Declare it, that of one call, with "
        "fn(noise, *params): Simulator(FromNoise(fn, dist.Normal(0, 1)), *params); or use FreshNoise.",
    )
    return fn.noise


def latent_noise(site: str, simulator: Simulator, calls: tuple[int, ...]) -> jax.Array:
    """Sample the declared noise of many calls as a latent `<site>_noise` of the model, `(*calls, *noise)`."""
    one = declared_noise(simulator)
    whole = one.expand((*calls, *one.batch_shape)).to_event(len(calls) + len(one.batch_shape))
    return numpyro.sample(f"{site}_noise", whole, infer={NOISE: True})


def is_even(simulator: Simulator) -> bool:
    """Tell whether a simulator runs on keys of low discrepancy."""
    call = Call.of(simulator)
    return not simulator.black_box and accepts(call.fn, *call.zeros)


def even_nodes(simulator: Simulator, key: jax.Array, number: int, rows: int | None = None) -> Nodes:
    """Noise of `number` simulated points, or of each of so many `rows` of covariates: of low discrepancy where the
    simulator takes such keys, for which the number is a power of two, and independent elsewhere."""
    call, even = Call.of(simulator), is_even(simulator)

    def keys(key):
        return node_keys(call.fn, key, number, *call.zeros) if even else jax.random.split(key, number)

    if rows is None:
        return Nodes(keys(key))
    noise = jnp.concatenate([keys(one) for one in jax.random.split(key, rows)])
    return Nodes(noise, np.repeat(np.arange(rows), number))


def several_keys(key: jax.Array, number: int) -> jax.Array:
    """One key, of either kind, or several, as `(blocks,)` of them, each of which makes an equal part of so many
    simulations."""
    keys = key if checks.is_key(key) and key.ndim == 1 else key[None]
    even = number % len(keys) == 0
    checks.require(even, f"`num_simulations` must be a multiple of the number of blocks; got {number} and {len(keys)}.")
    return keys


def _known_now(key: jax.Array) -> Any:
    """While a key makes others: outside of what JAX traces, unless it traces the key."""
    return jax.ensure_compile_time_eval() if checks.is_concrete(key) else nullcontext()
