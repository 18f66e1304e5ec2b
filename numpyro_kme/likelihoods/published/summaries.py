"""What a fit of the published form says about itself: held-out scores, negative share, relevance of each statistic."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.likelihoods import isolation
from numpyro_kme.likelihoods.published import scores
from numpyro_kme.likelihoods.published.objectives import Bank, Hyperparameters, LeaveOneOut, held_out, log_integral
from numpyro_kme.likelihoods.signed import to_signed_log


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LeaveOneOutScores:
    """Held-out quantities of each simulation.

    Attributes:
        sign, log_predictive: `q_{-j}(x_j | z_j)` of the standardised statistics, `(m,)`; normalised where the data kernel is a
            density.
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
        score: Mean held-out log posterior density of the simulated parameters relative to the bank, in nats.
        negative_share: Share of the negative part in the absolute mass of the held-out posteriors.
        log_isolation: How far simulations lie from each other: the first percentile, over simulations, of the log data
            kernel at the nearest other one.
    """

    score: Array
    negative_share: Array
    log_isolation: Array


@jax.jit
def summarise(hyper: Hyperparameters, bank: Bank) -> Summary:
    """The summary of a fit; one factorisation."""
    ratios, _ = held_out(hyper, bank)
    score = jnp.mean(scores.posterior_scores(ratios, LeaveOneOut().floor))
    negative = jnp.sum(jnp.maximum(-ratios, 0.0)) / jnp.sum(jnp.abs(ratios))
    return Summary(score, negative, isolation.log_isolation(hyper.data_kernel.log_gram(bank.data)))


@jax.jit
def leave_one_out(hyper: Hyperparameters, bank: Bank) -> LeaveOneOutScores:
    """The scores of every simulation; one factorisation."""
    ratios, log_marginal = held_out(hyper, bank)
    log_norm = log_integral(hyper.data_kernel, bank.data)
    log_scale = log_marginal if log_norm is None else log_marginal - log_norm
    sign, log_predictive = to_signed_log(jnp.diagonal(ratios), log_scale)
    return LeaveOneOutScores(sign, log_predictive, scores.posterior_scores(ratios, 0.0))


@on_host
def relevance(hyper: Hyperparameters, bank: Bank) -> np.ndarray:
    """Drop of `Summary.score` when one statistic is taken out of the data kernel, for each, `(n,)`.

    A column of zeros adds nothing to a distance, so it stands for a statistic that was left out.
    """
    full = float(summarise(hyper, bank).score)
    columns = np.arange(bank.data.shape[1])
    banks = (replace(bank, data=np.where(columns[None, :] == out, 0.0, bank.data)) for out in columns)
    return np.array([full - float(summarise(hyper, without).score) for without in banks])
