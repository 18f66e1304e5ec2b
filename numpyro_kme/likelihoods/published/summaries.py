"""What a fit of the published form says about itself: held-out scores, negative share, relevance of each statistic."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.likelihoods.out_of_distribution import log_nearest_quantile
from numpyro_kme.likelihoods.published import scores
from numpyro_kme.likelihoods.published.objectives import (
    Hyperparameters,
    LeaveOneOut,
    TrainingSet,
    held_out,
    log_integral,
    random_subset,
)
from numpyro_kme.likelihoods.signed import to_signed_log

MOST_HELD_OUT = 2000
"""Largest number of simulations whose held-out quantities go into a summary."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LeaveOneOutScores:
    """Held-out quantities of each simulation.

    Attributes:
        sign, log_predictive: `q_{-j}(x_j | z_j)` of the standardised statistics, `(m,)`; normalised where the data
            kernel is a density.
        log_posterior: Log posterior density of `z_j` given `x_j` relative to the simulated parameters, `(m,)`, as in
            `LeaveOneOut` without its floor.
    """

    sign: Array
    log_predictive: Array
    log_posterior: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Summary:
    """Held-out quantities of a fit in a few numbers.

    Attributes:
        score: Mean held-out log posterior density of the simulated parameters relative to all of them, in nats.
        negative_share: Share of the negative part in the integral of the absolute held-out posteriors.
        log_nearest_quantile: How far simulations lie from each other: the first percentile, over simulations, of the
            log data kernel at the nearest other one.
    """

    score: Array
    negative_share: Array
    log_nearest_quantile: Array


def held_out_sample(hyper: Hyperparameters, z: Array, data: Any) -> tuple[Hyperparameters, TrainingSet]:
    """At most about `MOST_HELD_OUT` simulations, with the noise variance `m lam` of all."""
    training = random_subset(TrainingSet(z, data), MOST_HELD_OUT)
    return replace(hyper, regularisation=hyper.regularisation * len(z) / len(training.z)), training


@jax.jit
def summarise(hyper: Hyperparameters, training: TrainingSet) -> Summary:
    """The summary of a fit; one factorisation."""
    ratios, _ = held_out(hyper, training)
    score = jnp.mean(scores.posterior_scores(ratios, LeaveOneOut().floor))
    negative = jnp.sum(jnp.maximum(-ratios, 0.0)) / jnp.sum(jnp.abs(ratios))
    return Summary(score, negative, log_nearest_quantile(hyper.data_kernel.log_gram(training.data)))


@jax.jit
def leave_one_out(hyper: Hyperparameters, training: TrainingSet) -> LeaveOneOutScores:
    """The scores of every simulation; one factorisation."""
    ratios, log_marginal = held_out(hyper, training)
    log_norm = log_integral(hyper.data_kernel, training.data)
    log_scale = log_marginal if log_norm is None else log_marginal - log_norm
    sign, log_predictive = to_signed_log(jnp.diagonal(ratios), log_scale)
    return LeaveOneOutScores(sign, log_predictive, scores.posterior_scores(ratios, 0.0))


@on_host
def relevance(hyper: Hyperparameters, training: TrainingSet) -> np.ndarray:
    """Drop of `Summary.score` when one statistic is taken out of the data kernel, for each, `(n,)`.

    A column of zeros adds nothing to a distance, so it stands for a statistic that was left out.
    """
    full = float(summarise(hyper, training).score)
    columns = np.arange(training.data.shape[1])
    reduced = (replace(training, data=np.where(columns[None, :] == out, 0.0, training.data)) for out in columns)
    return np.array([full - float(summarise(hyper, without).score) for without in reduced])
