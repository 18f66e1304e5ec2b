"""Where the noise of a simulator comes from when a loss compares its draws with data inside MCMC: a named choice."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import field, replace
from functools import lru_cache, partial
from typing import NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy
from numpyro.primitives import Messenger, apply_stack

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme.losses.generator import DrawnNoise, Noise, NormalNoise, QuadratureNodes
from numpyro_kme.models import normalise
from numpyro_kme.models.lifting import LiftedNoise, NoiseNotLifted, lift_noise
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise


@frozen
class CommonNoise:
    """The same noise at every point of the chain: a smooth density, for any kernel.

    Where the noise of the simulator is declared (`FromNoise`) or lifted out of it (`lift_noise`), `num_simulations` are
    nodes of a quadrature, for one number, or low-discrepancy points, for several. Otherwise the posterior is that of
    one simulated sample, close to the one with infinitely many only if the sample is much larger than the data.
    `noise_sensitivity` rescores draws under other keys.

    Args:
        num_simulations: Simulated points `M`; ten times the data is a start.
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
    points; with simulators in JAX whose noise is declared (`FromNoise`) or can be lifted (`lift_noise`), for NUTS, and
    for `PseudoMarginal` where draws have no derivative.

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
    """The same model with a key for each site that asks `simulation_key(site)`: `fold_in(rng_key, crc32(site))`.

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


class NoiseForm(NamedTuple):
    """The noise of a simulator, as a rule that makes it and what it is in words.

    Attributes:
        rule: Makes noise values.
        lifted: The simulator as a function of normals, where its noise was lifted out of it.
        note: What the noise is.
    """

    rule: Noise
    lifted: LiftedNoise | None
    note: str

    def applied(self, fn: Callable) -> Callable:
        """A simulator's function, `fn` as it is now, as a function of a noise value and its parameters."""
        if self.lifted is not None:
            return replace(self.lifted, fn=fn)
        return fn.fn if isinstance(fn, FromNoise) else fn

    def distribution(self, simulator: Simulator) -> dist.Distribution:
        """The distribution of a noise value.

        Raises:
            ValueError: If the noise is keys.
        """
        if self.lifted is not None:
            return dist.Normal(0.0, 1.0).expand([self.lifted.dim]).to_event(1)
        if isinstance(simulator.fn, FromNoise):
            return simulator.fn.noise
        raise checks.explained(
            f"The noise of simulator `{simulator.name}` is needed as numbers, for a latent of the model, and it is "
            f"{self.note}. Declare it, Simulator(FromNoise(fn, noise), ...), or use FreshNoise with PseudoMarginal."
        )


def independent_noise(simulator: Simulator) -> NoiseForm:
    """Independent draws of a simulator's noise: of its declared distribution, or keys."""
    fn = simulator.fn
    if isinstance(fn, FromNoise):
        return NoiseForm(DrawnNoise(fn.noise.sample), None, "declared, drawn independently")
    return NoiseForm(DrawnNoise(), None, "drawn independently from random keys")


def latent_noise(simulator: Simulator) -> NoiseForm:
    """Noise that is a latent of the model: values that are independent under their distribution."""
    form = even_noise(simulator)
    return form._replace(rule=DrawnNoise(form.distribution(simulator).sample))


def even_noise(simulator: Simulator) -> NoiseForm:
    """Quadrature or low-discrepancy points where the noise is declared, or can be lifted out of the simulator, and
    follows from normals; else independent draws."""
    rule = _declared(simulator.fn) if isinstance(simulator.fn, FromNoise) else None
    if rule is not None:
        return NoiseForm(rule, None, "declared")
    drawn = independent_noise(simulator)
    if simulator.black_box:
        return drawn._replace(note=f"{drawn.note}: `{simulator.name}` runs in NumPy")
    lifted = _lifted(simulator.fn, simulator.call_shapes, tuple(str(param.dtype) for param in simulator.params))
    if isinstance(lifted, str):
        return drawn._replace(note=f"{drawn.note}, not lifted: {lifted}")
    # largest number of normals for which there are low-discrepancy points
    if not 1 <= lifted.dim <= scipy.stats.qmc.Sobol.MAXDIM:
        return drawn._replace(note=f"{drawn.note}: one draw takes {lifted.dim} numbers")
    return NoiseForm(NormalNoise(lifted.dim), lifted, str(lifted))


def _lifted(fn: Callable, shapes: tuple, dtypes: tuple) -> LiftedNoise | str:
    """A simulator as it is now with its noise lifted, or why it cannot be."""
    try:
        return lift_noise(fn, *(np.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes)))
    except NoiseNotLifted as error:
        return str(error)


@lru_cache(maxsize=256)
def _declared(fn: FromNoise) -> NormalNoise | None:
    """A declared noise as a function of normals; None where it is not known as one."""
    try:
        normalise.check(fn.noise)
    except normalise.NoNormalMap:
        return None
    return NormalNoise(int(np.prod(fn.noise.shape())), partial(_of_normals, fn.noise))


def _of_normals(noise, z):
    return normalise.from_normal(noise, z.reshape(noise.shape()))


def fresh_nodes(drawn: Noise, key: jax.Array, noise: FreshNoise) -> QuadratureNodes:
    """Independent sets of nodes `(repeats, M, ...)`; with keys `(blocks,)` each makes an equal part of every set."""
    num, sets = noise.num_simulations, noise.repeats
    if not checks.is_key(key) or key.ndim == 0:
        return drawn.nodes(key, num, sets)
    checks.require(
        num % len(key) == 0,
        f"`num_simulations` must be a multiple of the number of blocks; got {num} points and {len(key)} blocks.",
    )
    parts = jax.vmap(lambda one: drawn.nodes(one, num // len(key), sets))(key)
    values = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(sets, num, *leaf.shape[3:]), parts.values)
    return QuadratureNodes(values, jnp.full((sets, num), 1.0 / num))
