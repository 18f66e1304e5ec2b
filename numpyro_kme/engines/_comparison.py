"""How far a posterior of the published form is from that of the default form, learnt from the same simulations."""

from collections.abc import Mapping

import numpy as np
from scipy import special

from numpyro_kme._core import checks, solves
from numpyro_kme._core.host import on_host
from numpyro_kme.engines import _rounds
from numpyro_kme.engines._sampling import Drawn, LearntModel
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import FittedLikelihood, fit_likelihood
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import systematic

FEWEST = 10
"""With a smaller effective number of draws the two posteriors have too little in common to say how far they are."""


def comparable(form: Form | None) -> bool:
    """Whether the default form answers the same question: the published form, with kernels of its own that it
    learns."""
    return isinstance(form, KernelMeans) and form.data_kernel is None and form.hyperparameters is None


def default_form(theta: np.ndarray, x: np.ndarray, **how) -> FittedLikelihood:
    """The likelihood of the default form, without the warnings of the simulations that the other has given."""
    with checks.collected_warnings():
        return fit_likelihood(theta, x, **how)


@on_host
def moved_by_default(
    problem: Problem,
    likelihoods: Mapping[str, FittedLikelihood],
    default: Mapping[str, FittedLikelihood],
    drawn: Drawn,
) -> float:
    r"""How far the posterior moves when the draws are weighted to the default form,
    $w_i \propto q_{default}(y \mid \theta_i) / q(y \mid \theta_i)$.

    Both forms estimate the same likelihood; the published one smooths it over its kernel on data, so that its posterior
    can be right on average over the prior and still be far too wide.

    Returns:
        The largest change of a mean, in standard deviations, or of a log standard deviation; infinite where fewer than
        `FEWEST` draws have weight, NaN where there is nothing to compare with.
    """
    if not default:
        return np.nan
    with solves.one_blas_thread:
        own, other = (LearntModel(problem, found).log_likelihood(drawn.coordinates) for found in (likelihoods, default))
    weights = special.softmax(np.broadcast_to(other - own, drawn.log_posterior.shape))
    if np.sum(weights**2) * FEWEST > 1.0:
        return np.inf
    rows = systematic(np.random.default_rng(0), weights, len(weights))
    return _rounds.moved(drawn.latents, {name: value[rows] for name, value in drawn.latents.items()})
