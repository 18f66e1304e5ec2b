"""What the learner maximises: leave-one-out densities of the simulations, or the marginal likelihood of the paper."""

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from numpyro_kme._core import checks
from numpyro_kme.likelihoods.base import log_positive_part
from numpyro_kme.likelihoods.published.hyperparameters import Hyperparameters, TrainingSet, log_integral
from numpyro_kme.likelihoods.published.leave_one_out import FLOOR, held_out, posterior_scores, predictive_scores
from numpyro_kme.likelihoods.published.solves import regularised

LOG_SMALLEST = -18.0
"""Marginals below `exp(-18)` of the largest data kernel value count as not positive."""


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


class LeaveOneOutPredictive(_Defensive):
    r"""Held-out log predictive density of each simulation's data, in closed form.

        mean_j log [ (1-w) q_{-j}(x_j | z_j)^+ / N_j + w p_0(x_j) ]

    with `N_j` the integral of the positive part and `p_0` a heavy-tailed density fitted to the simulations. Every
    statistic has to be predicted, informative or not, so `eps` is a bandwidth and says nothing about relevance. Better
    than `LeaveOneOut` for predictive densities; as good for posteriors when all statistics matter, and worse when some
    do not.

    Args:
        floor: `w`, the weight of the heavy-tailed component.
    Cost: as `LeaveOneOut`.
    """

    def value(self, hyper, training):
        """Mean held-out log density of the standardised statistics."""
        ratios, log_marginal = held_out(hyper, training)
        log_marginal = log_marginal - log_integral(hyper.data_kernel, training.data)
        return jnp.mean(predictive_scores(ratios, log_marginal, training.log_heavy_tailed, self.floor))

    def check(self, training, template):
        """Require a density."""
        checks.require(
            training.log_heavy_tailed is not None and log_integral(template.data_kernel, training.data) is not None,
            "LeaveOneOutPredictive needs a data kernel that is a density over vectors of statistics. Learn by "
            "LeaveOneOut().",
        )


@dataclass(frozen=True)
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
        return log_positive_part(marginal, LOG_SMALLEST) + largest - log_integral(hyper.data_kernel, training.data)

    def check(self, training, template):
        """Require the observation, the measure and a density."""
        checks.require(
            training.y is not None
            and training.measure is not None
            and log_integral(template.data_kernel, training.data) is not None,
            "MarginalLikelihood needs `y=` (the observation) and `measure=` (the prior in coordinates) in `fit`, and a "
            "data kernel that is a density in the observation. Give them, or learn by LeaveOneOut().",
        )
