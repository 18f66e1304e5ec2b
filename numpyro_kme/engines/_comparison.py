"""How far a posterior moves under other likelihoods learnt from the same simulations: of the default form where it has
the published one, and from half of the simulations; and what the other half confirms of the latter."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import special

from numpyro_kme._core import checks, solves
from numpyro_kme._core.repeats import Repeats
from numpyro_kme._core.saving import saveable
from numpyro_kme.engines import _rounds
from numpyro_kme.engines._sampling import Drawn, LearntModel
from numpyro_kme.likelihoods.base import Form, Surrogate
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.fit import fit_likelihood
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.residual.surrogate import ResidualSurrogate
from numpyro_kme.likelihoods.summaries.base import OfStatistics, StatisticsSurrogate
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import effective_size, systematic

FEWEST = 10
"""With a smaller effective number of draws the two posteriors have too little in common to say how far they are."""

HALVED = 40
"""Of fewer simulations a half teaches too little to be compared with."""

NEAREST, STEPS = 200, 3
"""Held-out simulations nearest to the posterior, and steps from the parameters of each, that are looked at."""


class Half(NamedTuple):
    """What half of the simulations teach, and the others.

    Attributes:
        likelihood: Learnt from half of the simulations.
        surrogate: The same, as a likelihood of `x`.
        z, x: Coordinates `(m, D)` and outputs `(m, *event)` of the others, or statistics `(m, n)` where these are
            learnt, each without the simulation that it is of.
    """

    likelihood: FittedLikelihood
    surrogate: Surrogate
    z: np.ndarray
    x: np.ndarray


@saveable
class Confirmed(NamedTuple):
    """Proportion of the information that a likelihood claims which held-out simulations confirm, and its standard
    error; NaN where it is not known."""

    proportion: float = np.nan
    error: float = np.nan

    @property
    def at_most(self) -> float:
        """What the proportion may be, two standard errors above."""
        return self.proportion + 2.0 * self.error


def default_form(
    fitted: FittedLikelihood, form: Form | None, theta: np.ndarray, x: np.ndarray, **how
) -> FittedLikelihood | None:
    """The likelihood of the default form where it answers the same question as the `fitted` one: beside the published
    form, with kernels of its own that it learns. The other has given the warnings of the simulations."""
    if not isinstance(form, KernelMeans) or form.data_kernel is not None or form.hyperparameters is not None:
        return None
    with checks.collected_warnings():
        return fit_likelihood(theta, x, **how)


def of_half(fitted: FittedLikelihood, form: Form | None, theta: np.ndarray, x: np.ndarray, **how) -> Half | None:
    """The likelihood of the default form from half of the simulations, at random, where the `fitted` one is that of all
    of them, and all statistics that vary over these vary over the half. Statistics that were learnt stay, and bounds
    and curved dependence are learnt only where all simulations show them."""
    whole = learnt = fitted.surrogate
    if isinstance(form, OfStatistics) and isinstance(whole, StatisticsSurrogate):
        learnt, x, how = whole.inner, np.asarray(whole.simulated), how | dict(y=None, names=())
    repeats = Repeats.of(theta)
    if len(repeats) < HALVED or not isinstance(learnt, ResidualSurrogate):
        return None
    rows, others = repeats.halves(np.random.default_rng(0))
    if np.any((x != x[0]).any(axis=0) & (x[rows] == x[rows[0]]).all(axis=0)):
        return None
    with checks.collected_warnings():
        half = found = fit_likelihood(theta[rows], x[rows], form=learnt.form_of_part, **how)
    z = found.coordinates.table(theta[others])
    if isinstance(whole, StatisticsSurrogate):
        half = replace(fitted, surrogate=replace(whole, inner=found.surrogate), simulated=found.simulated)
    return Half(half, found.surrogate, z, x[others])


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
        other = LearntModel(problem, {**likelihoods, **others}).log_likelihood(drawn.coordinates, brief=True)
    weights = special.softmax(np.broadcast_to(other - drawn.log_likelihood, drawn.log_posterior.shape))
    if effective_size(weights) < FEWEST:
        return np.inf
    rows = systematic(np.random.default_rng(0), weights, len(weights))
    return _rounds.moved(drawn.latents, {name: value[rows] for name, value in drawn.latents.items()})


def confirmed(halves: Mapping[str, Half], drawn: Drawn) -> Confirmed:
    r"""The least over the sites of what held-out simulations confirm of the information that a likelihood claims.

    At the parameters of a simulation that a right likelihood has not seen, its mean curvature is its mean squared slope
    (the second Bartlett identity). With $l(z) = \log q(x_j \mid z)$ and steps `d` as posterior draws differ,

    $$ \frac{\sum_j 2 l(z_j) - l(z_j + d) - l(z_j - d)}{\sum_j (l(z_j + d) - l(z_j - d))^2 / 4} $$

    is about 1, or above where the likelihood has several modes or is wider than it could be. It is below 1 where slopes
    are errors of what was learnt, as of statistics that nearly follow from one another: standard
    deviations may then be as little as its root times what they should be.

    Reference: White (1982), Econometrica 50, the information matrix test.
    """
    found = [_confirmed(half, drawn.coordinates[site]) for site, half in halves.items()]
    return min((one for one in found if np.isfinite(one.proportion)), default=Confirmed())


def _confirmed(half: Half, draws: np.ndarray) -> Confirmed:
    surrogate, dim = half.surrogate, half.z.shape[1]
    draws = draws.reshape(len(draws), -1, dim)
    covariance = np.cov(draws.reshape(-1, dim), rowvar=False).reshape(dim, dim)
    if not isinstance(surrogate, ResidualSurrogate) or np.linalg.matrix_rank(covariance) < dim:
        return Confirmed()
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    near = np.argsort(np.square((half.z - draws.mean(axis=(0, 1))) @ root.T).sum(axis=1))[:NEAREST]
    rng, (number, groups) = np.random.default_rng(0), draws.shape[:2]
    first, second = rng.integers(number, size=(2, STEPS, len(near)))
    group = rng.integers(groups, size=(STEPS, len(near)))
    steps = (draws[first, group] - draws[second, group]) / np.sqrt(2.0)
    points = half.z[near] + np.concatenate([np.zeros_like(steps[:1]), steps, -steps])
    with solves.one_blas_thread:
        logs = surrogate.at_rows(half.x[near].astype(np.float64)).brief().log_densities(points)
    up, down = logs[0] - logs[1 : STEPS + 1], logs[0] - logs[STEPS + 1 :]
    curvature, squares = (up + down).mean(axis=0), np.square(0.5 * (up - down)).mean(axis=0)
    if not squares.any():
        return Confirmed()
    proportion = curvature.sum() / squares.sum()
    left = curvature - proportion * squares
    return Confirmed(float(proportion), float(left.std() * np.sqrt(len(left)) / squares.sum()))
