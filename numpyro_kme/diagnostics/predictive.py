"""Posterior-predictive checks with the real simulator."""

from dataclasses import dataclass, field

import jax
import numpy as np
from numpyro.infer import Predictive

from numpyro_kme._core import arviz, checks
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.models import tracing
from numpyro_kme.models.problem import Arrays, Problem


@dataclass(frozen=True)
class PredictiveCheck:
    """The observation beside data simulated at posterior draws.

    Attributes:
        predicted: `{site: (draws, *batch, *event)}`; without masked outputs, which make it `(draws, outputs, *event)`.
        observed: `{site: (*batch, *event)}`, of the same outputs.
    """

    predicted: Arrays = field(repr=False)
    observed: Arrays = field(repr=False)

    def tail_probabilities(self) -> dict[str, np.ndarray]:
        """Two-sided: twice the smaller share of predictions on either side of each observed number, ties counted half.

        Not a p-value of a test: the data were used twice, so that it is rarely small even where the model is wrong.
        """
        found = {}
        for site, value in self.observed.items():
            below = np.mean(self.predicted[site] < value[None], axis=0)
            ties = np.mean(self.predicted[site] == value[None], axis=0)
            share = below + 0.5 * ties
            found[site] = 2 * np.minimum(share, 1 - share)
        return found

    def to_inference_data(self):
        """An ArviZ object with the groups `posterior_predictive` and `observed_data`, for `az.plot_ppc` and others."""
        predicted = {site: value[None] for site, value in self.predicted.items()}
        return arviz.to_inference_data({"posterior_predictive": predicted, "observed_data": self.observed})


def problem_of(posterior: Posterior) -> Problem:
    """The model of a posterior that rests on simulations."""
    checks.require(
        posterior.problem is not None,
        f"`posterior` must be of an engine that works from simulations, such as KELFI; {posterior.engine} is not.",
        TypeError,
    )
    assert posterior.problem is not None
    return posterior.problem


def predictive_check(rng_key: jax.Array, posterior: Posterior | Engine, num_draws: int = 200) -> PredictiveCheck:
    """Simulate at posterior draws.

    Args:
        rng_key: The only source of randomness.
        posterior: Of an engine that works from simulations, or that engine.
        num_draws: How many draws, each simulated once.
    """
    checks.key(rng_key)
    checks.whole("num_draws", num_draws, 1)
    posterior = posterior_of(posterior)
    problem, samples = problem_of(posterior), posterior.samples
    choose_key, simulate_key = jax.random.split(rng_key)
    total = len(next(iter(samples.values())))
    rows = np.asarray(jax.random.permutation(choose_key, total))[:num_draws]
    latents = {name: np.asarray(samples[name])[rows] for name in problem.latents}
    observed = problem.observations
    unseen = {name: None if name in observed else value for name, value in problem.kwargs.items()}
    with tracing.one_model_at_a_time(), tracing.as_numpyro_does():
        predictive = Predictive(problem.model, latents, return_sites=list(observed), parallel=True)
        predicted = predictive(simulate_key, *problem.args, **unseen)
    for site, value in observed.items():
        checks.require(
            not np.array_equal(np.asarray(predicted[site])[0], value) or len(rows) == 1,
            f"The model keeps the observation at {site!r}: let it take it as a keyword argument of that name, so that "
            "leaving it out simulates.",
        )
    sites = {site: found for site, found in problem.simulators.items() if found.mask.any()}
    return PredictiveCheck(
        {site: found.counted(np.asarray(predicted[site]), 1) for site, found in sites.items()},
        {site: found.counted(observed[site]) for site, found in sites.items()},
    )
