"""An MCMC kernel for densities that are only estimated: it never estimates the current point again."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer.initialization import init_to_median
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import initialize_model
from numpyro.util import is_prng_key

from numpyro_kme._core import checks
from numpyro_kme._core.display import Card, brief, shown
from numpyro_kme.mcmc.noise import simulation_keys


class Adapted(NamedTuple):
    """Moments of the chain, unconstrained, and the log scale of proposals."""

    mean: jax.Array
    covariance: jax.Array
    log_scale: jax.Array


class PseudoMarginalState(NamedTuple):
    """What the next step needs.

    Attributes:
        z: Latents, unconstrained.
        potential_energy: The estimate at `z`, from `noise_key`; kept as long as the chain stays.
        noise_key: The key of that estimate, or `(blocks,)` keys.
        i: Steps taken.
        accept_prob: Of the last proposal.
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


@shown
class PseudoMarginal(MCMCKernel):
    r"""Metropolis for a model whose likelihood is estimated from fresh noise, exact where the estimate is unbiased.

    The state holds the estimate of the current point and the key that made it, and a proposal is accepted with
    probability `min(1, estimate(proposal) / estimate(kept))`: the marginal distribution of the parameters is prior x
    `E[estimate]`. Estimating the current point again, or holding the noise still, samples something else.

    Proposals are normal steps whose covariance and scale adapt during warmup; no gradients, so simulators on the host
    and whole-number outputs work. For models from `generalized_bayes(..., noise=FreshNoise(...))`, and for any model
    that asks for `simulation_key(site)`.

    Args:
        model: The model.
        blocks: Into how many parts the noise is split. Each proposal brings new noise for one of them, chosen at
            random, so that the two estimates are alike and the chain sticks less where they are noisy, but forgets the
            noise more slowly. Models of your own get `(blocks,)` keys; `num_simulated` must be a multiple.
        target_accept_prob: Acceptance that the scale adapts to. Noisy estimates want less than the 0.234 of exact ones.
        init_strategy: Where chains start, as in NumPyro.
    Raises:
        ValueError: If `target_accept_prob` is not between 0 and 1, or `blocks` is not a positive whole number.
    Cost: one evaluation of the model a step. Acceptance far below the target at every scale means that the estimate is
    too
        noisy (`log_estimate_sd`): more `num_simulated`, `repeats` or `blocks`.
    References: Andrieu and Roberts (2009), Annals of Statistics 37; Haario, Saksman and Tamminen (2001), Bernoulli 7;
    Tran,
        Kohn, Quiroz and Villani (2016), arXiv:1603.02485.
    """

    def __init__(
        self,
        model: Callable,
        *,
        blocks: int = 1,
        target_accept_prob: float = 0.2,
        init_strategy: Callable = init_to_median,
    ):
        checks.whole("blocks", blocks, 1)
        checks.require(
            0.0 < target_accept_prob < 1.0,
            f"`target_accept_prob` must be between 0 and 1; got {target_accept_prob}.",
        )
        self._model, self._target, self._init_strategy = model, target_accept_prob, init_strategy
        self._blocks, self._num_warmup = blocks, 0
        self._programs: tuple[Callable, Callable] | None = None  # potential energy, and the map to constrained latents

    def _card(self) -> Card:
        rows = {"model": brief(self.model), "blocks": f"{self._blocks} of the noise", "target acceptance": self._target}
        return Card("Pseudo-marginal Metropolis-Hastings kernel", rows, "MCMC(kernel, num_warmup=..., num_samples=...)")

    @property
    def model(self):
        """The model, without a key for its noise."""
        return self._model

    @property
    def sample_field(self):
        """The latents."""
        return "z"

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """The first state; for a batch of keys, one for each chain."""
        checks.key(rng_key if is_prng_key(rng_key) or not np.ndim(rng_key) else rng_key[0])
        self._num_warmup = num_warmup
        single = is_prng_key(rng_key)
        split = jax.random.split if single else jax.vmap(jax.random.split)
        rng_key, start_key = jnp.moveaxis(split(rng_key), int(not single), 0)
        kwargs = {"simulation_rng_key": self._first_keys(jax.random.key(0)), **(model_kwargs or {})}
        info, potential, postprocess, _ = initialize_model(
            start_key,
            _with_key(self._model),
            init_strategy=self._init_strategy,
            dynamic_args=True,
            model_args=model_args,
            model_kwargs=kwargs,
            validate_grad=False,
        )
        self._programs = potential, postprocess
        start = info.z if init_params is None else init_params

        def first(z, key):
            key, noise_key = jax.random.split(key)
            noise_key = self._first_keys(noise_key)
            flat, _ = ravel_pytree(z)
            dim, dtype = len(flat), flat.dtype
            adapted = Adapted(flat, jnp.eye(dim, dtype=dtype), jnp.asarray(jnp.log(2.4 / jnp.sqrt(dim)), dtype))
            energy = self._energy(z, noise_key, model_args, model_kwargs)
            zero = jnp.zeros((), dtype)
            return PseudoMarginalState(z, energy, noise_key, jnp.array(0), zero, zero, adapted, key)

        return jax.jit(first if single else jax.vmap(first))(start, rng_key)

    def sample(self, state, model_args, model_kwargs):
        """One step."""
        step = self._step if is_prng_key(state.rng_key) else jax.vmap(self._step, in_axes=(0, None, None))
        return step(state, model_args, model_kwargs)

    def postprocess_fn(self, model_args, model_kwargs):
        """The map to constrained latents and deterministic sites."""
        key = self._first_keys(jax.random.key(0))
        return self._read[1](*model_args, simulation_rng_key=key, **(model_kwargs or {}))

    def refresh(self, state, model_args, model_kwargs):
        """Estimate again with the key that is kept, after what the model is conditioned on has changed."""
        energy = self._energy(state.z, state.noise_key, model_args, model_kwargs)
        return state._replace(potential_energy=energy)

    def wrap_model(self, wrapper):
        """The same kernel for `wrapper(model)`."""
        new = copy.copy(self)
        new._model, new._programs = wrapper(self._model), None
        return new

    def get_diagnostics_str(self, state):
        """For the progress bar."""
        return f"acc. prob={jnp.mean(state.mean_accept_prob):.2f}"

    def __getstate__(self):
        return {**self.__dict__, "_programs": None}

    def _energy(self, z, noise_key, model_args, model_kwargs):
        energy = self._read[0](*model_args, simulation_rng_key=noise_key, **(model_kwargs or {}))(z)
        return jnp.where(jnp.isnan(energy), jnp.inf, energy)

    @property
    def _read(self):
        """The potential and the map to constrained latents, of the model that `init` read."""
        if self._programs is None:
            raise checks.explained(
                "The kernel has read no model yet, or was pickled since. Call MCMC.run first; after pickling, with the "
                "last positions as `init_params`.",
                RuntimeError,
            )
        return self._programs

    def _first_keys(self, key):
        key = checks.typed_key(key)
        return key if self._blocks == 1 else jax.random.split(key, self._blocks)

    def _renewed(self, kept, key):
        """The noise of a proposal: all of it new, or that of one block."""
        key = checks.typed_key(key)
        if self._blocks == 1:
            return key
        place_key, new_key = jax.random.split(key)
        return kept.at[jax.random.randint(place_key, (), 0, self._blocks)].set(new_key)

    def _step(self, state, model_args, model_kwargs):
        rng_key, step_key, noise_key, accept_key = jax.random.split(state.rng_key, 4)
        noise_key = self._renewed(state.noise_key, noise_key)
        flat, unflatten = ravel_pytree(state.z)
        factor = jnp.linalg.cholesky(state.adapted.covariance)
        moved = flat + jnp.exp(state.adapted.log_scale) * factor @ jax.random.normal(step_key, flat.shape, flat.dtype)
        energy = self._energy(unflatten(moved), noise_key, model_args, model_kwargs)
        ratio = jnp.where(jnp.isinf(energy), -jnp.inf, state.potential_energy - energy)
        probability = jnp.exp(jnp.minimum(ratio, 0.0))
        accepted = jax.random.uniform(accept_key) < probability
        z, energy, noise_key = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old),
            (unflatten(moved), energy, noise_key),
            (state.z, state.potential_energy, state.noise_key),
        )
        warming = state.i < self._num_warmup
        adapted = _adapt(state.adapted, ravel_pytree(z)[0], probability - self._target, state.i)
        adapted = jax.tree.map(lambda new, old: jnp.where(warming, new, old), adapted, state.adapted)
        count = jnp.where(warming, state.i + 1, state.i + 1 - self._num_warmup)
        mean = state.mean_accept_prob + (probability - state.mean_accept_prob) / count
        return PseudoMarginalState(z, energy, noise_key, state.i + 1, probability, mean, adapted, rng_key)


def _adapt(adapted: Adapted, point: jax.Array, excess: jax.Array, i: jax.Array) -> Adapted:
    """Steps towards the chain's moments, with ten starting values as prior, and towards the target acceptance.

    The scale stays above a twentieth of that for a normal distribution: where the estimate is so noisy that the chain
    sticks, smaller steps would not help.
    """
    rate = 1.0 / (i + 10.0)
    offset = point - adapted.mean
    covariance = adapted.covariance + rate * (jnp.outer(offset, offset) - adapted.covariance)
    log_scale = adapted.log_scale + (i + 2.0) ** -0.6 * excess
    least = jnp.log(2.4 / np.sqrt(len(point))) - 3.0
    return Adapted(adapted.mean + rate * offset, covariance, jnp.maximum(log_scale, least.astype(log_scale.dtype)))


def _with_key(model: Callable) -> Callable:
    def keyed(*args, simulation_rng_key, **kwargs):
        return simulation_keys(model, rng_key=simulation_rng_key, common=False)(*args, **kwargs)

    return keyed
