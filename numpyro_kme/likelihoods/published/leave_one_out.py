r"""Leave-one-out quantities for all simulations at once, in closed form, and the objectives that the learner maximises.

With `B = (L + m lam I)^-1` and `G_ki = kappa(x_i, x_k)`, column `i` holding the data kernel at the observation `x_i`,
the surrogate built without simulation `j` predicts at `z_j` the value `-sum_{k != j} B_jk G_ki / B_jj`
(`m lam` keeps its full-sample value). Everything below is invariant to the scale of the data kernel, because each
column of `G` is divided by its mean, the kernel density estimate of `p(x_i)` from the other simulations.
"""

import abc
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import logsumexp

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen, shown
from numpyro_kme._core.host import on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import positive_part, to_signed_log
from numpyro_kme.likelihoods.extrapolation import log_nearest_quantile, without_diagonal
from numpyro_kme.likelihoods.published.hyperparameters import (
    Hyperparameters,
    TrainingSet,
    log_integral,
    log_positive_part,
)
from numpyro_kme.likelihoods.published.solves import inverse_with_adjoint, regularised


def leave_one_out_log_marginal(log_gram: jax.Array) -> jax.Array:
    """Log kernel density estimate `log 1/(m-1) sum_{k != i} kappa(x_i, x_k)` of each simulation, `(m,)`.

    Args:
        log_gram: `(m, m)`, `log kappa(x_i, x_k)` in row `k` and column `i`.
    """
    return logsumexp(without_diagonal(log_gram), axis=0) - jnp.log(len(log_gram) - 1.0)


def density_ratios(inverse_gram: Array, log_gram: Array, xp: Any = jnp) -> Any:
    r"""Held-out estimates `R_ji` of `p(x_i | z_j) / p(x_i) = p(z_j | x_i) / p(z_j)`, `(m, m)`.

    Entry `(j, i)` uses neither simulation `j` nor simulation `i`. With `U = B G` (zero diagonal in `G`), taking two
    rows out of a ridge regression gives `R_ji = G_ji - (B_ii U_ji - B_ji U_ii) / (B_jj B_ii - B_ji^2)`, and taking one
    out `R_ii = -U_ii / B_ii`. Estimates of either sign.

    Args:
        inverse_gram: `B`, `(m, m)`.
        log_gram: `(m, m)`, as in `leave_one_out_log_marginal`.
        xp: `numpy`, or `jax.numpy`.
    Cost: one matrix product.
    """
    size = len(log_gram)
    softmax = scipy.special.softmax if xp is np else jax.nn.softmax
    gram = (size - 1.0) * softmax(without_diagonal(log_gram, xp), axis=0)
    own = xp.diagonal(inverse_gram)
    product = inverse_gram @ gram
    single = xp.diagonal(product)
    diagonal = xp.eye(size, dtype=bool)
    determinant = xp.where(diagonal, 1.0, own[:, None] * own[None, :] - xp.square(inverse_gram))
    others = gram - (product * own[None, :] - inverse_gram * single[None, :]) / determinant
    return xp.where(diagonal, (-single / own)[:, None], others)


def posterior_scores(ratios: Array, floor: float, xp: Any = jnp) -> Any:
    """Held-out log posterior density of each `z_i` given `x_i`, relative to the simulated parameters, `(m,)`.

    `log((1 - w) R_ii^+ / mean_j R_ji^+ + w)`: the positive part of the signed posterior, normalised over the
    simulations, in a defensive mixture with the prior of weight `w`. 0 for a surrogate that has learnt nothing, at most
    about `log m`.
    """
    return _log_relative_density(ratios, 0, floor, xp)


def log_heavy_tailed_density(x: np.ndarray) -> np.ndarray:
    """`log p_0(x_j)` of a multivariate Student distribution with 3 degrees of freedom, fitted to the simulations.

    Mean and covariance are theirs, the covariance doubled: no simulation is improbable under it.
    """
    covariance = 2.0 * np.cov(x, rowvar=False, bias=True) + 1e-6 * np.eye(x.shape[1])
    return scipy.stats.multivariate_t(np.mean(x, axis=0), covariance, df=3, allow_singular=True).logpdf(x)


FLOOR = 0.02
"""Weight of the prior or of a heavy-tailed density in the mixture that bounds the loss of one simulation."""

SOFTNESS = 0.02
"""Ratios below this fraction of the mean count as zero, smoothly, so that gradients pull negative predictions up."""


def _log_relative_density(ratios, axis, floor, xp=jnp):
    means = xp.mean(xp.maximum(ratios, 0.0), axis=axis)
    own = xp.diagonal(ratios) / xp.maximum(means, SOFTNESS)
    return xp.log((1.0 - floor) * positive_part(own, SOFTNESS, xp) + floor)


MOST_HELD_OUT = 2000
"""Largest number of simulations whose held-out quantities go into a summary."""


@register
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


@register
class Summary:
    """Held-out quantities of a fit in a few numbers.

    Attributes:
        score: Mean held-out log posterior density of the simulated parameters relative to all of them, in nats.
        negative_proportion: Proportion of the negative part in the integral of the absolute held-out posteriors.
        log_nearest_quantile: How far simulations lie from each other: the first percentile, over simulations, of the
            log data kernel at the nearest other one.
    """

    score: Array
    negative_proportion: Array
    log_nearest_quantile: Array


def held_out_sample(hyper: Hyperparameters, z: Array, data: Any) -> tuple[Hyperparameters, TrainingSet]:
    """At most about `MOST_HELD_OUT` simulations, with the noise variance `m lam` of all."""
    training = TrainingSet(z, data).random_subset(MOST_HELD_OUT)
    return replace(hyper, regularisation=hyper.regularisation * len(z) / len(training.z)), training


@on_host
def summarise(hyper: Hyperparameters, training: TrainingSet) -> Summary:
    """The summary of a fit; one factorisation, and NumPy, so that next to nothing is compiled."""
    matrix, log_gram = (np.asarray(found) for found in _matrices(hyper, training))
    factor, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1)
    identity = np.eye(len(matrix))
    inverse = np.full_like(identity, np.nan) if failed else scipy.linalg.cho_solve((factor, True), identity)
    with np.errstate(all="ignore"):
        ratios = density_ratios(inverse, log_gram.T, np)
        score = np.mean(posterior_scores(ratios, FLOOR, np))
        negative = np.sum(np.maximum(-ratios, 0.0)) / np.sum(np.abs(ratios))
        return Summary(score, negative, log_nearest_quantile(log_gram, np))


@jax.jit
def _matrices(hyper, training):
    return regularised(hyper, training.z), hyper.data_kernel.log_gram(training.data)


@jax.jit
def leave_one_out_scores(hyper: Hyperparameters, training: TrainingSet) -> LeaveOneOutScores:
    """The scores of every simulation; one factorisation."""
    ratios, log_marginal = held_out(hyper, training)
    log_norm = log_integral(hyper.data_kernel, training.data)
    log_scale = log_marginal if log_norm is None else log_marginal - log_norm
    sign, log_predictive = to_signed_log(jnp.diagonal(ratios), log_scale)
    return LeaveOneOutScores(sign, log_predictive, posterior_scores(ratios, 0.0))


@on_host
def held_out_drops(hyper: Hyperparameters, training: TrainingSet) -> np.ndarray:
    """Drop of `Summary.score` when one statistic is taken out of the data kernel, for each, `(n,)`.

    A column of zeros adds nothing to a distance, so it stands for a statistic that was left out.
    """
    full = float(summarise(hyper, training).score)
    columns = np.arange(training.data.shape[1])
    reduced = (replace(training, data=np.where(columns[None, :] == out, 0.0, training.data)) for out in columns)
    return np.array([full - float(summarise(hyper, without).score) for without in reduced])


def held_out(hyper: Hyperparameters, training: TrainingSet) -> tuple[jax.Array, jax.Array]:
    """Held-out density ratios `(m, m)` and log marginals `(m,)` of `kappa` as it is, not normalised."""
    inverse_gram = inverse_with_adjoint(regularised(hyper, training.z))
    log_gram = hyper.data_kernel.log_gram(training.data).T
    return density_ratios(inverse_gram, log_gram), leave_one_out_log_marginal(log_gram)


class LearningObjective(abc.ABC):
    """A function of the hyperparameters to maximise, per simulation.

    Attributes:
        uses_priors: Whether the learner adds its weak priors on the logarithms of the hyperparameters.
    """

    uses_priors = True

    @abc.abstractmethod
    def value(self, hyper: Hyperparameters, training: TrainingSet) -> jax.Array:
        """The objective; NaN where a factorisation fails."""

    def check(self, training: TrainingSet, template: Hyperparameters) -> None:
        """Raise where something that this objective needs is missing; nothing is, unless a class says so."""
        return


@dataclass(frozen=True)
class _Defensive(LearningObjective):
    floor: float = FLOOR

    def __post_init__(self):
        checks.require(0.0 < self.floor < 1.0, f"`floor` must be between 0 and 1; got {self.floor}.")


@shown
class LeaveOneOut(_Defensive):
    r"""Held-out log posterior density of each simulation's parameters, in closed form: the default.

        mean_i log [ (1-w) q_{-i}(x_i | z_i)^+ / mean_j q_{-i}(x_i | z_j)^+ + w ]

    asks that the positive part of the posterior given `x_i`, learnt without simulation `i`, is high at `z_i` relative
    to the other simulated parameters. `^+` is a smooth positive part; the average in the denominator keeps negative
    parts from being rewarded. It is invariant to the scale of the data kernel, so every data kernel will do, and a
    statistic that says nothing about the parameters gets a wide `eps`.

    Args:
        floor: `w`, the weight of the prior in a defensive mixture, which bounds the loss of a single simulation.
    Cost: a gradient is one Cholesky factorisation, one inverse and five matrix products of size `m`.
    """

    def value(self, hyper, training):
        """Mean held-out score; 0 for a surrogate that knows nothing, at most about `log m`."""
        ratios, _ = held_out(hyper, training)
        return jnp.mean(posterior_scores(ratios, self.floor))


@shown
class LeaveOneOutPredictive(_Defensive):
    r"""Held-out log predictive density of each simulation's data, in closed form.

        mean_j log [ (1-w) q_{-j}(x_j | z_j)^+ / N_j + w p_0(x_j) ]

    with `N_j` the integral of the positive part, estimated over the simulated data (without it negative parts would be
    rewarded), and `p_0` a heavy-tailed density fitted to the simulations. Every
    statistic has to be predicted, informative or not, so `eps` is a bandwidth and does not say which ones are. Better
    than `LeaveOneOut` for predictive densities; as good for posteriors when all statistics matter, and worse when some
    do not.

    Args:
        floor: `w`, the weight of the heavy-tailed component.
    Cost: as `LeaveOneOut`.
    """

    def value(self, hyper, training):
        """Mean held-out log density of the standardised statistics."""
        ratios, log_marginal = held_out(hyper, training)
        log_density = _log_relative_density(ratios, 1, 0.0) + log_marginal
        log_density = log_density - log_integral(hyper.data_kernel, training.data)
        log_tails = jnp.log(self.floor) + training.log_heavy_tailed
        return jnp.mean(jnp.logaddexp(jnp.log1p(-self.floor) + log_density, log_tails))

    def check(self, training, template):
        """Require a density."""
        checks.require(
            training.log_heavy_tailed is not None and log_integral(template.data_kernel, training.data) is not None,
            "LeaveOneOutPredictive needs a data kernel that is a density over vectors of statistics. Learn by "
            "LeaveOneOut().",
        )


@frozen
class MarginalLikelihood(LearningObjective):
    r"""The objective of the paper: the marginal kernel means likelihood `log q(y) = log int q(y | z) p(dz)`.

    Over all hyperparameters it over-fits with few simulations: the maximum can be a spike (`eps` near the distance to
    the nearest simulation, tiny `beta`) and usually sits at a bound. The papers maximise it over two,
    `Learner(tied=Tied())`. Kept for comparison; prefer `LeaveOneOut`. No priors are added. Needs the observation and
    the measure.

    Cost: a gradient is one Cholesky factorisation and two solves of size `m`.
    References: Hsu & Ramos (2019), AISTATS.
    """

    uses_priors = False

    def value(self, hyper, training):
        """`log q(y)`, on the scale of one observation."""
        kernel = hyper.parameter_kernel
        log_kappa = hyper.data_kernel.log_gram(training.y, training.data)[0]
        largest = jax.lax.stop_gradient(jnp.max(log_kappa))
        weights = jax.scipy.linalg.solve(regularised(hyper, training.z), jnp.exp(log_kappa - largest), assume_a="pos")
        marginal = weights @ training.measure.mean_embedding(kernel, training.z)
        # marginals below `exp(-18)` of the largest data kernel value count as not positive
        return log_positive_part(marginal, -18.0) + largest - log_integral(hyper.data_kernel, training.data)

    def check(self, training, template):
        """Require the observation, the measure and a density."""
        checks.require(
            training.y is not None
            and training.measure is not None
            and log_integral(template.data_kernel, training.data) is not None,
            "MarginalLikelihood needs `y=` (the observation) and `measure=` (the prior in coordinates) in `fit`, and a "
            "data kernel that is a density in the observation. Give them, or learn by LeaveOneOut().",
        )
