"""ABC by a discrepancy between data sets: K2-ABC and rejection ABC."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme.abc.discrepancies import Discrepancy, check_discrepancy, discrepancies_to, dissimilarities
from numpyro_kme.abc.weighting import check_acceptance, rejection_weights, soft_abc_weights
from numpyro_kme.embeddings.mmd import Estimator, Quadratic
from numpyro_kme.engines._weighers import Weigher, Weighting, draws
from numpyro_kme.engines._weighted import WeightedEngine
from numpyro_kme.engines.base import check_positive, check_rule
from numpyro_kme.kernels import Gaussian
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic, mad_or_sd
from numpyro_kme.losses.base import Loss


@dataclass(eq=False, repr=False, kw_only=True)
class K2ABC(WeightedEngine):
    r"""K2-ABC: simulations from the prior weighted by how close their data sets are to the observed one.

    $w_i \propto \exp\big(-\widehat{\mathrm{MMD}}^2(x_i, y) / \epsilon\big)$, with data sets of draws in any order, and
    no summary statistics. A data set is one event `(n,)` or `(n, d)` of the simulator, or `n` draws under a plate.
    Weights are positive.

    The posterior is that of a likelihood widened by $\epsilon$: it is exact in no limit but that of $\epsilon \to 0$,
    with ever more simulations and data sets so large that the discrepancy loses nothing.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        estimator: Of the squared MMD: `Quadratic`, `LinearTime` or `Fourier`. `Quadratic` when left out, with a
            Gaussian kernel whose length scale is the median distance within the observed data.
        length_scale: Rule for that length scale instead of the median: `BayesianKernelLearning(key)` on the observed
            data, or `CrossValidation(key)` on simulated draws, which are to predict their parameters.
        epsilon: Width, in units of the squared MMD; when left out, such that the effective sample size is `max(50, m /
            50)`.
        num_samples: Number of equally weighted draws, resampled systematically from the simulations.
        regression_adjustment: Whether a local linear regression on the numbers of the output moves the weighted
            simulations to where they would lie had they given the observation (`abc.RegressionAdjustment`).
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If the effective sample size is below 10.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`), or if that
            regression would move a mean by more than 0.25 standard deviations or leave less than 0.78 of one.
    Cost: `m` simulations; `m` estimates of the MMD an observation, and at most `3 m` mean kernels between data sets,
    which say
        whether it lies away.
    References: Park, Jitkrittum & Sejdinovic (2016), AISTATS.
    """

    paper = "park2016k2abc"
    measure = "minus log of the cosine between mean embeddings"
    advice = "Use more simulations, a larger `epsilon`, or a prior nearer to what is known."

    estimator: Estimator | None = None
    length_scale: LengthScaleRule | None = None
    epsilon: float | None = None

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        check_positive(epsilon=self.epsilon)
        what = "an estimator of the MMD: Quadratic(kernel), LinearTime(kernel) or a Fourier"
        check_rule(self.length_scale, self.estimator, "estimator", Estimator, what)

    def _fit(self, rng_key, problem, table):
        size = table.as_data_sets(table.x).shape[1]
        checks.require(
            size >= 2,
            f"K2ABC compares data sets; the simulator gives one of {size} points. Put several draws under a plate.",
        )
        return DiscrepancyWeigher(table, partial(softened, epsilon=self.epsilon), self.estimator, self.length_scale)


@dataclass(eq=False, repr=False, kw_only=True)
class RejectionABC(WeightedEngine):
    r"""Rejection ABC: the simulations from the prior whose outputs are nearest to the observation.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        discrepancy: A function of one simulated output and the observation that gives a number, less where they are
            more alike. It gets `(n, d)` for `n` draws under a plate, otherwise the event of the simulator, with rows of
            NaN behind the ends of outputs of any length (`Simulator(ragged=True)`). An
            estimator of the MMD, `Quadratic(kernel)`, and `Wasserstein(p)`, whose p-th power it is, get `(n, d)`
            always. When left out, the Euclidean distance of outputs, each number divided by its median absolute
            deviation over the simulations, by its standard deviation where that is 0, and by 1 where it is constant;
            scalar draws under a plate are sorted first.
        length_scale: Rule such as `MedianHeuristic()`; with one the discrepancy is the squared MMD with a Gaussian
            kernel of that length scale, as in `K2ABC`.
        quantile: Fraction of the simulations to accept; 0.02 when left out and there is no `threshold`.
        threshold: Largest discrepancy to accept.
        num_samples: Number of equally weighted draws, resampled systematically from the accepted simulations.
        regression_adjustment: Whether a local linear regression on the numbers of the output moves the weighted
            simulations to where they would lie had they given the observation (`abc.RegressionAdjustment`).
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If fewer than 10 simulations are accepted.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`), or if that
            regression would move a mean by more than 0.25 standard deviations or leave less than 0.78 of one.
    Cost: `m` simulations; `m` discrepancies an observation, compiled where JAX can trace the function, and once, to
    see whether it
        lies away, at most half as many again between simulations. Estimators of the MMD as in `K2ABC`.
    References: Pritchard et al. (1999); Bernton et al. (2019), JRSS B, for the Wasserstein distance.
    """

    paper = "pritchard1999population"
    measure = "discrepancy, or for an estimator of the MMD minus log of the cosine between mean embeddings"
    advice = "Use more simulations, or a larger `quantile` or `threshold`."

    num_simulations: int = field(default=10_000, kw_only=False)
    discrepancy: Estimator | Loss | Discrepancy | None = None
    length_scale: LengthScaleRule | None = None
    quantile: float | None = None
    threshold: float | None = None

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        check_acceptance(self.quantile, self.threshold)
        if self.discrepancy is not None:
            check_discrepancy(self.discrepancy)
        check_rule(self.length_scale, self.discrepancy, "discrepancy", object, "a discrepancy")

    def _fit(self, rng_key, problem, table):
        by_numbers = self.discrepancy is None and self.length_scale is None
        checks.require(
            not (by_numbers and table.data_sets) or table.x.shape[2] == 1,
            f"The simulator gives data sets of shape {table.x.shape[1:]}, whose rows have no order: give a "
            "`discrepancy`, such as the MMD estimator Quadratic(kernel).",
        )
        if by_numbers:
            table.require_one_length("the Euclidean distance")
        else:
            table.require_rows("a discrepancy")
        if isinstance(self.discrepancy, Estimator | Loss) or self.length_scale is not None:
            table.require_one_length("a discrepancy between data sets")
        weights_of = partial(accepted, quantile=self.quantile, threshold=self.threshold)
        if by_numbers:
            return NumbersWeigher(table, weights_of)
        return DiscrepancyWeigher(table, weights_of, self.discrepancy, self.length_scale)


WeightsOf = Callable[[np.ndarray], tuple[np.ndarray, dict[str, Any]]]
"""Gives the weights of simulations with discrepancies `(m,)`, and what a person reads."""


def softened(discrepancies, epsilon) -> tuple[np.ndarray, dict[str, Any]]:
    """Soft weights of simulations with discrepancies `(m,)`, and what a person reads."""
    weights, epsilon = soft_abc_weights(discrepancies, epsilon)
    return weights, {"epsilon": epsilon}


def accepted(discrepancies, quantile, threshold) -> tuple[np.ndarray, dict[str, Any]]:
    """Equal weights of the simulations with the least discrepancies `(m,)`, and what a person reads."""
    weights, threshold = rejection_weights(discrepancies, quantile=quantile, threshold=threshold)
    return weights, {"threshold": threshold, "accepted": int((weights > 0).sum())}


@shown
@dataclass(frozen=True)
class DiscrepancyWeigher(Weigher):
    """Weights by a discrepancy from the observation.

    Attributes:
        weights_of: Gives weights of discrepancies.
        discrepancy: None until there is an observation whose length scale the squared MMD takes.
        length_scale: Rule for that length scale.
    """

    weights_of: WeightsOf
    discrepancy: Estimator | Loss | Discrepancy | None
    length_scale: LengthScaleRule | None

    def at(self, y):
        """With the MMD under a Gaussian kernel, where no discrepancy is given: with the median distance within the
        observed data, or what the rule says. A rule that needs parameters sees the draws of all simulations.
        """
        if self.discrepancy is not None:
            return self
        rule = self.length_scale or MedianHeuristic()
        length_scale = rule(*draws(self.table)) if rule.needs_targets else rule(self.table.as_data_sets(y[None])[0])
        return replace(self, discrepancy=Quadratic(Gaussian(length_scale)))

    def weigh(self, y):
        """As `Weigher.weigh`."""
        compared = self._as_compared(y[None])[0], self._as_compared(self.table.x)
        found = discrepancies_to(*compared, self.discrepancy, ragged=self.table.ragged)
        distances = self.apart(self.table.x, y[None])[0] if isinstance(self.discrepancy, Estimator) else found
        weights, info = self.weights_of(found)
        return Weighting(weights, distances, info)

    @property
    def num_compared(self):
        """So many that comparing them with one another costs half of what comparing all with the observation does."""
        return int(np.clip(np.sqrt(len(self.table) / 2), 10, 50))

    def apart(self, x, y):
        """As `Weigher.apart`."""
        x, y = self._as_compared(x), self._as_compared(y)
        if isinstance(self.discrepancy, Estimator):
            return dissimilarities(self.discrepancy, x, y)
        return np.stack([discrepancies_to(one, x, self.discrepancy, ragged=self.table.ragged) for one in y])

    def _as_compared(self, x: np.ndarray) -> np.ndarray:
        """Outputs as the discrepancy gets them."""
        return self.table.as_data_sets(x) if isinstance(self.discrepancy, Estimator | Loss) else x


@dataclass(frozen=True)
class NumbersWeigher(Weigher):
    """Weights of the simulations whose numbers are nearest to the observed ones, each in units of its robust standard
    deviation.

    Attributes:
        weights_of: Gives weights of distances.
    """

    weights_of: WeightsOf

    @cached_property
    def scale(self) -> np.ndarray:
        """Median absolute deviation of each number, or its standard deviation where that is 0, or 1, `(d,)`."""
        scale = mad_or_sd(self._as_compared(self.table.x))
        return np.where(scale > 0, scale, 1.0)

    def weigh(self, y):
        """As `Weigher.weigh`."""
        found = self.apart(self.table.x, y[None])[0]
        weights, info = self.weights_of(found)
        return Weighting(weights, found, info)

    def apart(self, x, y):
        """As `Weigher.apart`."""
        x, y = self._as_compared(x), self._as_compared(y)
        return np.stack([np.linalg.norm((x - one) / self.scale, axis=1) for one in y])

    def _as_compared(self, x: np.ndarray) -> np.ndarray:
        """Rows of numbers, draws along plates in the order of their values."""
        return np.sort(x[..., 0], axis=1) if self.table.data_sets else x.reshape(len(x), -1)
