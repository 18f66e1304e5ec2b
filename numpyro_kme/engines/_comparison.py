"""How far a posterior moves under other likelihoods learnt from the same simulations: of the default form where it has
the published one, and from half of the simulations."""

from collections.abc import Mapping

import numpy as np
from scipy import special

from numpyro_kme._core import checks, solves
from numpyro_kme.engines import _rounds
from numpyro_kme.engines._sampling import Drawn, LearntModel
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import FittedLikelihood, fit_likelihood
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import systematic

FEWEST = 10
"""With a smaller effective number of draws the two posteriors have too little in common to say how far they are."""

HALVED = 40
"""Of fewer simulations a half teaches too little to be compared with."""


def default_form(form: Form | None, theta: np.ndarray, x: np.ndarray, **how) -> FittedLikelihood | None:
    """The likelihood of the default form where it answers the same question: beside the published form, with kernels of
    its own that it learns. The other has given the warnings of the simulations."""
    if not isinstance(form, KernelMeans) or form.data_kernel is not None or form.hyperparameters is not None:
        return None
    with checks.collected_warnings():
        return fit_likelihood(theta, x, **how)


def of_half(form: Form | None, theta: np.ndarray, x: np.ndarray, **how) -> FittedLikelihood | None:
    """The likelihood of the default form from half of the simulations, at random, where it is that of all of them, and
    all statistics that vary over these vary over the half."""
    if len(theta) < HALVED or not isinstance(form, ResidualKernelMeans | None):
        return None
    rows = np.random.default_rng(0).permutation(len(theta))[: len(theta) // 2]
    if np.any((x != x[0]).any(axis=0) & (x[rows] == x[rows[0]]).all(axis=0)):
        return None
    with checks.collected_warnings():
        return fit_likelihood(theta[rows], x[rows], form=form, **how)


def moved(
    problem: Problem,
    likelihoods: Mapping[str, FittedLikelihood],
    others: Mapping[str, FittedLikelihood],
    drawn: Drawn,
) -> float:
    r"""How far the posterior moves when the draws are weighted to other likelihoods of some sites,
    $w_i \propto q_{other}(y \mid \theta_i) / q(y \mid \theta_i)$.

    The published form smooths the likelihood over its kernel on data, so that its posterior can be right on average
    over the prior and still be far too wide: the default form tells. What half of the simulations say otherwise than
    all is about what the posterior may be off by, since so few were made: the variance of a mean over half of them is
    twice that over all, and that of the difference as large as the latter.

    Returns:
        The largest change of a mean, in standard deviations, or of a log standard deviation; infinite where fewer than
        `FEWEST` draws have weight, NaN where there is nothing to compare with.
    """
    if not others:
        return np.nan
    with solves.one_blas_thread, checks.collected_warnings():
        own, other = (
            LearntModel(problem, found).log_likelihood(drawn.coordinates)
            for found in (likelihoods, {**likelihoods, **others})
        )
    weights = special.softmax(np.broadcast_to(other - own, drawn.log_posterior.shape))
    if np.sum(weights**2) * FEWEST > 1.0:
        return np.inf
    rows = systematic(np.random.default_rng(0), weights, len(weights))
    return _rounds.moved(drawn.latents, {name: value[rows] for name, value in drawn.latents.items()})
