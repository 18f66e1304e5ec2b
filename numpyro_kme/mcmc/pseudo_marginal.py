"""An MCMC kernel for densities that are only estimated: it never estimates the current point again."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.infer.initialization import init_to_median
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import initialize_model
from numpyro.util import is_prng_key

from numpyro_kme._core import checks, compat, door
from numpyro_kme.mcmc.noise import NOISE, simulation_keys

OF_NOISE = 0.35
"""Acceptance that the steps of noise alone adapt to. Less makes steps of parameters and noise together rarely accepted,
more makes the noise slow."""


class Adapted(NamedTuple):
    """Moments of the parameters, unconstrained, the log scale of their proposals, and the log of the noise's step."""

    mean: jax.Array
    covariance: jax.Array
    log_scale: jax.Array
    log_step: jax.Array


class PseudoMarginalState(NamedTuple):
    """State that the next step needs.

    Attributes:
        z: Latents, unconstrained.
        potential_energy: The estimate at `z`, from `noise_key`; kept as long as the chain stays.
        noise_key: The key of that estimate, or `(blocks,)` keys.
        i: Steps taken.
        accept_prob: Of the last proposal of parameters.
        mean_accept_prob: Mean since warmup began, or ended.
        adapted: The proposal.
        rng_key: Key of the next step.
    """

    z: Any
    potential_energy: jax.Array
    noise_key: jax.Array
    i: jax.Array
    accept_prob: jax.Array
    mean_accept_prob: jax.Array
    adapted: Adapted
    rng_key: jax.Array


class PseudoMarginal(MCMCKernel):
    r"""Metropolis for a model whose likelihood is estimated from fresh noise, exact where the estimate is unbiased.

    The state holds the estimate of the current point and the key that made it, and a proposal is accepted with
    probability `min(1, estimate(proposal) / estimate(kept))`: the marginal distribution of the parameters is prior x
    `E[estimate]`. Estimating the current point again, or holding the noise still, samples something else.

    Proposals are normal steps whose covariance and scale adapt during warmup; no gradients, so simulators on the host
    and whole-number outputs work. For models from `generalized_bayes(..., noise=FreshNoise(...))`, and for any model
    that asks for `simulation_key(site)`.

    Noise `z` that is a latent of the model, of `generalized_bayes(..., noise=LatentNoise(...))` and `soft_abc`, moves
    by correlated steps instead, `z' = sqrt(1 - s^2) z + s xi` with `xi ~ N(0, I)`, which leave its distribution as it
    is: the density of the parameters with this noise is known exactly, and what the noise does to it changes little
    from one step to the next. Each step of the chain moves parameters and noise together, then the noise alone, to
    whose acceptance `s` adapts. That needs no derivative, which NUTS over the noise does.

    Args:
        model: The model.
        blocks: Into how many parts the noise is split. Each proposal brings new noise for one of them, chosen at
            random, so that the two estimates are alike and the chain sticks less where they are noisy, but forgets the
            noise more slowly. Models of your own get `(blocks,)` keys; `num_simulations` must be a multiple.
        target_accept_prob: Acceptance that the scale adapts to. Noisy estimates want less than the 0.234 of exact ones.
        init_strategy: Where chains start, as in NumPyro.
    Raises:
        ValueError: If `target_accept_prob` is not between 0 and 1, or `blocks` is not a positive whole number; from
            `MCMC.run` if noise is a latent that is not standard normal.
    Cost: one evaluation of the model a step, two where noise is a latent. Acceptance far below the target at every
        scale means that the estimate is too noisy (`log_estimate_sd`): more `num_simulations`, `repeats` or `blocks`,
        or correlated steps.
    References: Andrieu and Roberts (2009), Annals of Statistics 37; Haario, Saksman and Tamminen (2001), Bernoulli 7;
        Tran, Kohn, Quiroz and Villani (2016), arXiv:1603.02485; Deligiannidis, Doucet and Pitt (2018), JRSS B 80, for
        correlated steps.
    """

    @door
    def __init__(
        self, model: Callable, *, blocks: int = 1, target_accept_prob: float = 0.2, init_strategy=init_to_median
    ):
        checks.whole("blocks", blocks, 1)
        checks.instance("model", model, Callable, "a model of NumPyro")
        checks.fraction("target_accept_prob", target_accept_prob)
        self._model, self._target, self._init_strategy = model, target_accept_prob, init_strategy
        self._blocks, self._num_warmup = blocks, 0
        self._noise_sites: tuple[str, ...] = ()
        # potential energy, and the map to constrained latents, of the model that `init` read
        self._programs: Any = None

    @property
    def model(self):
        """The model, without a key for its noise."""
        return self._model

    @property
    def sample_field(self):
        """Name of the field of the state that has the latents."""
        return "z"

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """The first state; for a batch of keys, one for each chain."""
        checks.key(rng_key if is_prng_key(rng_key) or not np.ndim(rng_key) else rng_key[0])
        self._num_warmup = num_warmup
        single = is_prng_key(rng_key)
        split = jax.random.split if single else jax.vmap(jax.random.split)
        rng_key, start_key = jnp.moveaxis(split(rng_key), int(not single), 0)
        kwargs = {"simulation_rng_key": self._first_keys(jax.random.key(0)), **(model_kwargs or {})}
        given = {"model_args": model_args, "model_kwargs": kwargs, "init_strategy": self._init_strategy}
        how = given | {"dynamic_args": True, "validate_grad": False}
        info, potential, postprocess, trace = initialize_model(start_key, _with_key(self._model), **how)
        self._programs, self._noise_sites = (potential, postprocess), _noise_sites(trace)
        start = info.z if init_params is None else init_params

        def first(z, key):
            key, noise_key = jax.random.split(key)
            noise_key = self._first_keys(noise_key)
            flat, _ = ravel_pytree(self._parted(z)[0])
            dim, dtype = len(flat), flat.dtype
            zero = jnp.zeros((), dtype)
            adapted = Adapted(flat, jnp.eye(dim, dtype=dtype), jnp.asarray(jnp.log(2.4 / jnp.sqrt(dim)), dtype), zero)
            energy = self._energy(z, noise_key, model_args, model_kwargs)
            return PseudoMarginalState(z, energy, noise_key, jnp.array(0), zero, zero, adapted, key)

        return jax.jit(first if single else jax.vmap(first))(start, rng_key)

    def sample(self, state, model_args, model_kwargs):
        """Take one step of the chain."""
        step = self._step if is_prng_key(state.rng_key) else jax.vmap(self._step, in_axes=(0, None, None))
        return step(state, model_args, model_kwargs)

    def postprocess_fn(self, model_args, model_kwargs):
        """The map to constrained latents and deterministic sites."""
        key = self._first_keys(jax.random.key(0))
        return self._programs[1](*model_args, simulation_rng_key=key, **(model_kwargs or {}))

    def refresh(self, state, model_args, model_kwargs):
        """Estimate again with the key that is kept, after what the model is conditioned on has changed."""
        energy = self._energy(state.z, state.noise_key, model_args, model_kwargs)
        return state._replace(potential_energy=energy)

    def wrap_model(self, wrapper):
        """A copy of the kernel for `wrapper(model)`."""
        new = copy.copy(self)
        new._model, new._programs = wrapper(self._model), None
        return new

    def get_diagnostics_str(self, state):
        """Text of the progress bar."""
        return f"acc. prob={jnp.mean(state.mean_accept_prob):.2f}"

    def __getstate__(self):
        return {**self.__dict__, "_programs": None}

    def _energy(self, z, noise_key, model_args, model_kwargs):
        energy = self._programs[0](*model_args, simulation_rng_key=noise_key, **(model_kwargs or {}))(z)
        return jnp.where(jnp.isnan(energy), jnp.inf, energy)

    def _first_keys(self, key):
        key = checks.key(key)
        return key if self._blocks == 1 else jax.random.split(key, self._blocks)

    def _renewed(self, kept, key):
        """The noise of a proposal: all of it new, or that of one block."""
        key = checks.key(key)
        if self._blocks == 1:
            return key
        place_key, new_key = jax.random.split(key)
        return kept.at[jax.random.randint(place_key, (), 0, self._blocks)].set(new_key)

    def _parted(self, z):
        """Parameters, and noise that is a latent."""
        parameters = {name: value for name, value in z.items() if name not in self._noise_sites}
        return parameters, {name: z[name] for name in self._noise_sites}

    def _step(self, state, model_args, model_kwargs):
        rng_key, step_key, noise_key, together_key, alone_key = jax.random.split(state.rng_key, 5)
        noise_key, kept = self._renewed(state.noise_key, noise_key), state.adapted
        now = state.z, state.potential_energy, state.noise_key

        def moved(key, now, parameters, noise_key):
            """State of the chain after a proposal of parameters, of a correlated step of noise that is a latent, and
            of other noise."""
            step_key, accept_key = jax.random.split(key)
            noise, log_ratio = _correlated(step_key, self._parted(now[0])[1], kept.log_step)
            proposal = {**parameters, **noise}
            energy = self._energy(proposal, noise_key, model_args, model_kwargs)
            return _chosen(accept_key, (proposal, energy, noise_key), now, now[1] - energy + log_ratio)

        flat, unflatten = ravel_pytree(self._parted(state.z)[0])
        factor = jnp.linalg.cholesky(kept.covariance)
        there = flat + jnp.exp(kept.log_scale) * factor @ jax.random.normal(step_key, flat.shape, flat.dtype)
        now, probability = moved(together_key, now, unflatten(there), noise_key)
        parameters, _ = self._parted(now[0])
        adapted = _adapt(kept, ravel_pytree(parameters)[0], probability - self._target, state.i)
        if self._noise_sites:
            now, of_step = moved(alone_key, now, parameters, now[2])
            log_step = jnp.minimum(kept.log_step + _rate(state.i) * (of_step - OF_NOISE), 0.0)
            adapted = adapted._replace(log_step=log_step)
        warming = state.i < self._num_warmup
        adapted = jax.tree.map(lambda new, old: jnp.where(warming, new, old), adapted, kept)
        count = jnp.where(warming, state.i + 1, state.i + 1 - self._num_warmup)
        mean = state.mean_accept_prob + (probability - state.mean_accept_prob) / count
        return PseudoMarginalState(*now, state.i + 1, probability, mean, adapted, rng_key)


def _correlated(key: jax.Array, noise: dict, log_step: jax.Array):
    """Noise after a correlated step, reversible under its distribution, and the log of the densities' ratio."""
    if not noise:
        return noise, 0.0
    flat, unflatten = ravel_pytree(noise)
    step = jnp.exp(log_step)
    moved = jnp.sqrt(1.0 - step**2) * flat + step * jax.random.normal(key, flat.shape, flat.dtype)
    return unflatten(moved), 0.5 * jnp.sum((moved - flat) * (moved + flat))


def _chosen(key: jax.Array, proposed: tuple, now: tuple, log_ratio: jax.Array):
    """State of the chain after a proposal `(z, energy, noise key)`, and the probability of its acceptance."""
    probability = jnp.exp(jnp.minimum(jnp.where(jnp.isinf(proposed[1]), -jnp.inf, log_ratio), 0.0))
    accepted = jax.random.uniform(key) < probability
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposed, now), probability


def _rate(i: jax.Array) -> jax.Array:
    """By which scales of proposals adapt in step `i`."""
    return (i + 2.0) ** -0.6


def _noise_sites(trace: dict) -> tuple[str, ...]:
    """Latents that are the noise of simulators, in standard normals."""
    names = tuple(name for name, site in trace.items() if site["type"] == "sample" and site["infer"].get(NOISE))
    for name in names:
        fn = compat.innermost(trace[name]["fn"])
        checks.require(
            isinstance(fn, dist.Normal) and bool(np.all(fn.loc == 0.0) and np.all(fn.scale == 1.0)),
            f"PseudoMarginal moves noise in standard normals, and the noise {name!r} is declared as "
            f"{type(fn).__name__}. Declare standard normals, FromNoise(fn, dist.Normal(0, 1)), or use FreshNoise.",
        )
    return names


def _adapt(adapted: Adapted, point: jax.Array, excess: jax.Array, i: jax.Array) -> Adapted:
    """Steps towards the chain's moments, with ten starting values as prior, and towards the target acceptance.

    The scale stays above a twentieth of that for a normal distribution: where the estimate is so noisy that the chain
    sticks, smaller steps would not help.
    """
    rate = 1.0 / (i + 10.0)
    offset = point - adapted.mean
    covariance = adapted.covariance + rate * (jnp.outer(offset, offset) - adapted.covariance)
    log_scale = adapted.log_scale + _rate(i) * excess
    least = jnp.log(2.4 / np.sqrt(len(point))) - 3.0
    log_scale = jnp.maximum(log_scale, least.astype(log_scale.dtype))
    return adapted._replace(mean=adapted.mean + rate * offset, covariance=covariance, log_scale=log_scale)


def _with_key(model: Callable) -> Callable:
    def keyed(*args, simulation_rng_key, **kwargs):
        return simulation_keys(model, rng_key=simulation_rng_key, common=False)(*args, **kwargs)

    return keyed
