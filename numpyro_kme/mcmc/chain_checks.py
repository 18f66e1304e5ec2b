"""Checks of chains: draws beyond what a surrogate learnt, what they may be off by, and how much of a posterior or a
density is noise."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import log_likelihood
from numpyro.infer.util import log_density

from numpyro_kme._core import Card, checks, compat, door, frozen, host, in_present_precision, numbers
from numpyro_kme.likelihoods.descent import ravel
from numpyro_kme.likelihoods.distribution import KernelMeansLikelihood
from numpyro_kme.likelihoods.extrapolation import NEGLIGIBLE, extrapolation_message
from numpyro_kme.likelihoods.prepared import prepare
from numpyro_kme.mcmc.noise import simulation_keys
from numpyro_kme.models.problem import Arrays
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.tracing import one_model_at_a_time, trace_of
from numpyro_kme.samplers.importance import StandardErrors, deviations, effective_size, unsure_message
from numpyro_kme.simulations.simulations import of_rows

AGAIN = "Simulate more, best at these draws (`refine`), and sample again."
"""The remedy for a likelihood that is little known where a chain goes."""


@frozen
class SurrogateCheck:
    """Findings of a chain at one simulator site.

    Attributes:
        beyond: Fraction of the evaluations, without masked ones, that lie beyond the simulated parameters
            (`FittedLikelihood.beyond`).
        negative: Fraction of the evaluations where the signed surrogate is negative, so that its positive version was
            sampled; more than 0.05 is worth a warning.
        error_of_mean: Standard error of the mean of each latent, in its units, `{site: (*shape)}`: what other
            simulations of this site, or a further chain, would change (`StandardErrors`). Of several sites the squares
            add up. Empty where the likelihood was learnt without (`fit_likelihood(standard_errors=False)`).
        error_of_sd: That of each standard deviation, relative to it.
        off: Largest of these over what is warned of: half a posterior standard deviation, or a third of one.
        told: The warning that the chain has not converged, else that of the largest of these errors; empty where
            neither is due.
    """

    beyond: float
    negative: float
    error_of_mean: Mapping[str, np.ndarray] = field(default_factory=dict)
    error_of_sd: Mapping[str, np.ndarray] = field(default_factory=dict)
    off: float = 0.0
    told: str = ""

    def _card(self) -> Card:
        errors = {"error of mean, at most, in its units": self.error_of_mean, "of sd, relative": self.error_of_sd}
        rows = {
            "beyond the simulations": f"{self.beyond:.2%} of the evaluations",
            "negative": f"{self.negative:.2%} of the evaluations" if self.negative else "",
            **{label: ", ".join(f"{k} {np.max(v):.2g}" for k, v in found.items()) for label, found in errors.items()},
            "warned of": self.told,
        }
        hint, trouble = "attributes `error_of_mean`, ... have all", "warned of" * bool(self.told)
        return Card("Draws of a chain under a learnt likelihood", rows, hint, trouble=trouble)

    def findings(self, site: str) -> list[str]:
        """Warnings at a site, and what to do next."""
        found = (
            (bool(self.told), self.told),
            (self.beyond > NEGLIGIBLE, extrapolation_message(site, self.beyond, AGAIN)),
            (self.negative > 0.05, _negative_message(site, self.negative)),
        )
        return [sentence for wrong, sentence in found if wrong]


def _negative_message(site: str, negative: float) -> str:
    """The warning that a signed surrogate is negative at draws of a chain."""
    return f"The surrogate at site {site!r} is negative at {negative:.0%} of the draws. Simulate more."


def _stuck_message(name: str, split: float, size: float, number: int) -> str:
    """The warning that a chain has not converged."""
    return (
        f"The chain has not converged: split R-hat of {name} is {split:.2f}, and {number} draws count as {size:.0f}. "
        "Before you simulate more, run several chains, longer, or write groups in the non-centred form "
        "(LocScaleReparam)."
    )


def _stuck(draws: Mapping[str, np.ndarray]) -> str:
    """The warning that draws in the order of their chain have not converged; empty where they have."""
    every = numbers(draws)
    size = len(next(iter(every.values()), ()))
    if size > 3 and not any(np.ptp(column) for column in every.values()):
        return (
            f"The chain has not moved: {size} draws are the same. Start it elsewhere (`init_to_value`), with smaller "
            "steps, or look at the density where it stands: it may be infinite or undefined next to it."
        )
    columns = {name: column for name, column in every.items() if deviations(column[:, None])[0] > 0.0}
    if not columns or size < 4:  # of fewer NumPyro knows neither number
        return ""
    chain = np.stack(list(columns.values()), axis=1)[None]
    splits, sizes = split_gelman_rubin(chain), effective_sample_size(chain)
    worst, number = int(np.argmax(splits)), chain.shape[1]
    # the halves of few independent draws differ by as much
    stuck = splits[worst] > 1.05 and sizes[worst] < 0.1 * number
    return _stuck_message(list(columns)[worst], splits[worst], sizes[worst], number) if stuck else ""


@door
def check_surrogate(
    model: Callable, samples: Arrays, *args, max_draws: int = 1000, **kwargs
) -> dict[str, SurrogateCheck]:
    """Look up draws of a `handlers.surrogate` model: beyond the simulations, or where the surrogate is negative.

    Args:
        model: The surrogate model, observed as when it was sampled.
        samples: Its draws, `{site: (draws, *event)}`.
        *args: Positional arguments of the model.
        max_draws: How many draws to look at, evenly spaced.
        **kwargs: Keyword arguments of the model.
    Returns:
        A dictionary with a `SurrogateCheck` for each site with a learnt likelihood.
    Raises:
        ValueError: If no observed site has a learnt likelihood.
    Warns:
        UserWarning: If the chain has not moved, or not converged, with a split R-hat above 1.05, and fewer than a tenth
            of its draws count; more evaluations at a site are beyond the simulations than 5%, more than 5% negative,
            or a standard error of a mean is above half a posterior standard deviation, of a standard deviation above a
            third of it.
    """
    _check_shapes(model, samples, args, kwargs)
    draws = _evenly_spaced(samples, max_draws)
    observed: dict[str, tuple[KernelMeansLikelihood, Any, int]] = {}

    def one(latents):
        found = {}
        for name, site in trace_of(model, args, kwargs, handlers.substitute(data=latents)).items():
            fn = compat.innermost(site["fn"]) if site["type"] == "sample" and site["is_observed"] else None
            if isinstance(fn, KernelMeansLikelihood):
                mask = compat.mask(site["fn"])
                observed[name] = fn, site["value"], len(site["fn"].batch_shape)
                scale = jnp.asarray(compat.scale(site))
                found[name] = fn.arguments, jnp.asarray(mask), scale, _negative(fn, site["value"], mask)
        return found

    found = jax.jit(jax.vmap(one))(in_present_precision(draws))
    no = "No observed site of the model has a learnt likelihood: pass the model from `handlers.surrogate` and its data."
    checks.require(bool(found), no)
    reports, stuck, told = {}, _stuck(draws), dict[str, None]()
    for name, (arguments, masks, scales, negative) in found.items():
        (fn, value, plates), mask = observed[name], np.asarray(masks)[0]
        fitted, z = fn.fitted, fn.fitted.coordinates.table(arguments)
        beyond = fitted.beyond(value, z, mask)
        counts = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, beyond.shape[1:]))
        number = np.sum(counts.any(axis=tuple(range(counts.ndim - beyond.ndim + 1))))
        proportion = beyond.sum() / max(1, len(beyond) * int(number))
        errors = _errors(fn, value, z, mask, np.asarray(scales)[0], plates, draws, stuck)
        reports[name] = SurrogateCheck(float(proportion), float(np.mean(negative)), *errors)
        told |= dict.fromkeys(reports[name].findings(name))
    for sentence in told:
        checks.warn(sentence)
    return reports


def _errors(fn, value, z, mask, scale, plates, draws, stuck) -> tuple[dict, dict, float, str]:
    """Standard errors of means and of standard deviations of draws that a site's likelihood leaves, the largest, and
    the warning of it, or that of a chain that is `stuck`."""
    table = ravel(draws, 1).astype(np.float64)
    varying = table[:, deviations(table) > 0.0]
    few = len(table) < 4 or not varying.size  # of fewer NumPyro knows no effective number
    if few or not np.any(mask) or not fn.fitted.others:
        return {}, {}, 0.0, stuck
    with host.one_blas_thread, checks.collected_warnings():
        own, *logs = (
            prepare(fitted, np.asarray(value), mask, fn.bounds).brief().total(z, mask, scale, plates)
            for fitted in (fn.fitted, *fn.fitted.others)
        )
    size = float(np.min(effective_sample_size(varying[None])))
    errors = StandardErrors.of(np.array(logs) - own, fn.fitted.shares, size, table)
    found = {name: errors.of_moments(np.asarray(part, np.float64)) for name, part in draws.items()}
    off = float(errors.relative(table).max())
    unsure = unsure_message(errors, numbers(draws), AGAIN) if off > 1.0 else ""
    return {k: v[0] for k, v in found.items()}, {k: v[1] for k, v in found.items()}, off, stuck or unsure


def _negative(fn: KernelMeansLikelihood, value, mask) -> jax.Array:
    """Fraction of the evaluations that count where the surrogate is negative."""
    if checks.is_concrete(mask) and not np.any(mask):
        return jnp.zeros(())
    return jnp.sum((fn.signs(value) < 0) & mask) / jnp.maximum(jnp.sum(mask), 1)


def _check_shapes(model, samples, args, kwargs) -> None:
    for name, site in trace_of(model, args, kwargs).items():
        if site["type"] != "sample" or site["is_observed"] or isinstance(compat.innermost(site["fn"]), Simulator):
            continue
        found, shape = np.shape(samples.get(name, 0.0)), np.shape(site["value"])
        checks.require(
            len(found) > 0 and found[1:] == shape,
            f"`samples` must hold every latent of the model as (draws, *shape); at {name!r}, of shape {shape}, it "
            f"has {found if name in samples else 'nothing'}. Pass `mcmc.get_samples()`, not grouped by chain.",
        )


def _evenly_spaced(samples: Arrays, most: int) -> dict[str, np.ndarray]:
    """At most so many of the draws `{site: (draws, *event)}`."""
    checks.draws("samples", samples)
    num = len(next(iter(samples.values())))
    rows = np.unique(np.linspace(0, num - 1, min(num, most)).astype(int))
    return of_rows(samples, rows)


@frozen
class NoiseSensitivity:
    """Posterior draws rescored with other noise.

    Attributes:
        shift: Where posterior means move, in posterior standard deviations, `{site: (num_keys, *event)}`.
        sd: Standard deviation, over draws, of the change of the log density, `(num_keys,)`.
        effective_proportion: Fraction of the draws that is left when they are reweighted, `(num_keys,)`; near 0,
            `shift` is only a sign that the posteriors hardly overlap.
    """

    shift: Mapping[str, np.ndarray]
    sd: np.ndarray
    effective_proportion: np.ndarray

    @property
    def largest_shift(self) -> float:
        """Largest move of a mean, over sites and keys; above 0.2 or so, simulate more points."""
        return max(float(np.abs(value).max()) for value in self.shift.values())


@door
def noise_sensitivity(
    rng_key: jax.Array, model: Callable, samples: Arrays, *args, num_keys: int = 5, **kwargs
) -> NoiseSensitivity:
    """Rescore posterior draws of a `generalized_bayes` model with `CommonNoise` under other keys, and reweight them.

    Args:
        rng_key: Makes the other keys.
        model: The model that was sampled.
        samples: Its draws, `{site: (draws, *event)}`.
        *args: Positional arguments of the model.
        num_keys: How many other keys to try; each compiles the model again.
        **kwargs: Keyword arguments of the model.
    Raises:
        ValueError: If `num_keys` is not positive.
        NotImplementedError: For `FreshNoise`, which has no noise of its own to keep.
    """
    checks.whole("num_keys", num_keys, 1)
    checks.draws("samples", samples)
    _check_shapes(model, samples, args, kwargs)
    draws = {name: np.asarray(value) for name, value in samples.items()}
    own = _score(model, draws, args, kwargs)
    keys = jax.random.split(rng_key, num_keys)
    change = np.stack([_score(simulation_keys(model, rng_key=key), draws, args, kwargs) - own for key in keys])
    weights = np.exp(change - change.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)

    def moved(value):
        return (np.tensordot(weights, value, 1) - value.mean(axis=0)) / np.maximum(value.std(axis=0), 1e-300)

    shift = {name: moved(value.astype(np.float64)) for name, value in draws.items()}
    return NoiseSensitivity(shift, change.std(axis=1), effective_size(weights) / weights.shape[1])


@door
def log_estimate_sd(
    rng_key: jax.Array, model: Callable, samples: Arrays, *args, num_draws: int = 20, num_keys: int = 50, **kwargs
) -> float:
    """Standard deviation of the logarithm of a noisy density estimate, for `PseudoMarginal`.

    Between 1 and 1.7 is best for the work it takes; above 2 the chain sticks at estimates that came out too high.

    Args:
        rng_key: Makes the noise.
        model: A `generalized_bayes` model with `FreshNoise`, or any that asks for `simulation_key`.
        samples: Latents to look at, `{site: (draws, *event)}`: draws of a chain, or of a rough guess at the posterior.
        *args: Positional arguments of the model.
        num_draws: How many of the draws to look at, evenly spaced.
        num_keys: Estimates at each.
        **kwargs: Keyword arguments of the model.
    Returns:
        The mean, over draws, of the standard deviation over keys.
    Raises:
        ValueError: If there are no draws, or fewer than two keys.
    Warns:
        UserWarning: Above 2, with what helps.
    References: Doucet, Pitt, Deligiannidis and Kohn (2015), Biometrika 102.
    """
    checks.whole("num_keys", num_keys, 2)
    checks.whole("num_draws", num_draws, 1)
    draws = _evenly_spaced(samples, num_draws)
    _check_shapes(model, samples, args, kwargs)

    @one_model_at_a_time()
    def one(latents, key):
        return log_density(simulation_keys(model, rng_key=key), args, kwargs, latents)[0]

    estimates = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None)))
    sd = float(np.mean(np.std(estimates(in_present_precision(draws), jax.random.split(rng_key, num_keys)), axis=1)))
    if sd > 2.0:
        checks.warn(
            f"The logarithm of the estimate has a standard deviation of {sd:.2g}; above 2 a PseudoMarginal chain "
            "sticks. Raise `num_simulations` or `repeats`, or renew noise in parts, PseudoMarginal(model, blocks=...)."
        )
    return sd


@one_model_at_a_time()
def _score(model, draws, args, kwargs) -> np.ndarray:
    found = log_likelihood(model, draws, *args, **kwargs)
    return sum(np.asarray(value, np.float64).reshape(len(value), -1).sum(axis=1) for value in found.values())
