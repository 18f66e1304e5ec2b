"""ABC by a discrepancy between data sets: K2-ABC and rejection ABC."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme.abc.discrepancies import Discrepancy, check_discrepancy, discrepancies_to, dissimilarities
from numpyro_kme.abc.weighting import (
    RejectionWeights,
    SoftWeights,
    check_acceptance,
    rejection_weights,
    soft_abc_weights,
)
from numpyro_kme.embeddings.mmd import Estimator, Quadratic
from numpyro_kme.engines.base import check_positive, check_rule
from numpyro_kme.engines.reference_table import ReferenceTable
from numpyro_kme.engines.simulation_engine import SimulationEngine, check_weighting
from numpyro_kme.engines.weighting import Weighting, WeightingMethod
from numpyro_kme.kernels import Gaussian
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic, mad_or_sd
from numpyro_kme.losses.base import Loss

MOST_COMPARED = 50
"""Simulations that are compared with one another by a discrepancy, which may be slow."""


@dataclass(eq=False, repr=False, kw_only=True)
class K2ABC(SimulationEngine):
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
    weights_by = "epsilon"
    advice = "Use more simulations, a larger `epsilon`, or a prior nearer to what is known."

    estimator: Estimator | None = None
    length_scale: LengthScaleRule | None = None
    epsilon: float | None = None
    regression_adjustment: bool = False

    def check_settings(self):  # noqa: D102
        super().check_settings()
        check_weighting(self.num_simulations, self.regression_adjustment)
        check_positive(epsilon=self.epsilon)
        what = "an estimator of the MMD: Quadratic(kernel), LinearTime(kernel) or a Fourier"
        check_rule(self.length_scale, self.estimator, "estimator", Estimator, what)

    def _fit(self, rng_key, problem, simulations):
        table = ReferenceTable.found(rng_key, problem, simulations, given=self.simulations is not None)
        size = table.as_data_sets(table.x).shape[1]
        checks.require(
            size >= 2,
            f"K2ABC compares data sets; the simulator gives one of {size} points. Put several draws under a plate.",
        )
        how = partial(soft_abc_weights, epsilon=self.epsilon), self.estimator, self.length_scale
        return DiscrepancyWeights(self._settings(), rng_key, problem, table, *how)


@dataclass(eq=False, repr=False, kw_only=True)
class RejectionABC(SimulationEngine):
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
    weights_by = "threshold"
    advice = "Use more simulations, or a larger `quantile` or `threshold`."

    num_simulations: int = field(default=10_000, kw_only=False)
    discrepancy: Estimator | Loss | Discrepancy | None = None
    length_scale: LengthScaleRule | None = None
    quantile: float | None = None
    threshold: float | None = None
    regression_adjustment: bool = False

    def check_settings(self):  # noqa: D102
        super().check_settings()
        check_weighting(self.num_simulations, self.regression_adjustment)
        check_acceptance(self.quantile, self.threshold)
        if self.discrepancy is not None:
            check_discrepancy(self.discrepancy)
        check_rule(self.length_scale, self.discrepancy, "discrepancy", object, "a discrepancy")

    def _fit(self, rng_key, problem, simulations):
        table = ReferenceTable.found(rng_key, problem, simulations, given=self.simulations is not None)
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
        weights_of = partial(rejection_weights, quantile=self.quantile, threshold=self.threshold)
        how = weights_of, ScaledNumbers.of(table) if by_numbers else self.discrepancy, self.length_scale
        return DiscrepancyWeights(self._settings(), rng_key, problem, table, *how)


class ScaledNumbers(NamedTuple):
    """Euclidean distance of numbers, each in units of its robust standard deviation, draws along plates in the order of
    their values.

    Attributes:
        scale: Median absolute deviation of each number, or its standard deviation where that is 0, or 1, `(d,)`.
    """

    scale: np.ndarray

    @classmethod
    def of(cls, table: ReferenceTable) -> "ScaledNumbers":
        """Scales of the simulations."""
        scale = mad_or_sd(table.in_order(table.x))
        return cls(np.where(scale > 0, scale, 1.0))


@frozen
class DiscrepancyWeights(WeightingMethod):
    """Weights by a discrepancy from the observation.

    Attributes:
        weights_of: Gives weights of discrepancies, and a number that a person reads.
        discrepancy: None for the squared MMD under a Gaussian kernel, whose length scale an observation decides.
        length_scale: Rule for that length scale; a rule that needs parameters sees the draws of all simulations.
    """

    weights_of: Callable[[np.ndarray], SoftWeights | RejectionWeights]
    discrepancy: Estimator | Loss | Discrepancy | ScaledNumbers | None
    length_scale: LengthScaleRule | None = None

    @property
    def measure(self) -> str:  # type: ignore[override]
        """Name of the distances."""
        by_mmd = isinstance(self.discrepancy, Estimator)
        return "minus log of the cosine between mean embeddings" if by_mmd else "discrepancy"

    @property
    def compared(self) -> int:  # type: ignore[override]
        """By a discrepancy, which may be slow, for half of the time that comparing all with the observation takes."""
        if isinstance(self.discrepancy, ScaledNumbers):
            return WeightingMethod.compared
        return int(np.clip(np.sqrt(len(self.table) / 2), 10, MOST_COMPARED))

    def at(self, y):  # noqa: D102
        if self.discrepancy is not None:
            return self
        rule = self.length_scale or MedianHeuristic()
        given = self.table.draws() if rule.needs_targets else (self.table.as_data_sets(y[None])[0],)
        return replace(self, discrepancy=Quadratic(Gaussian(rule(*given))))

    def weigh(self, y):  # noqa: D102
        found = self._discrepancies(self.table.x, y[None])[0]
        by_mmd = isinstance(self.discrepancy, Estimator)
        weights, number = self.weights_of(found)
        distances = self.apart(self.table.x, y[None])[0] if by_mmd else found
        return Weighting(weights, distances, {self.engine.weights_by: number})

    def apart(self, x, y):  # noqa: D102
        if isinstance(self.discrepancy, Estimator):
            return dissimilarities(self.discrepancy, self.table.as_data_sets(x), self.table.as_data_sets(y))
        return self._discrepancies(x, y)

    def _discrepancies(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Discrepancies of rows `(k, *event)` of `table.x` from such rows `(s, *event)`, `(s, k)`."""
        discrepancy = cast(Any, self.discrepancy)
        if isinstance(discrepancy, ScaledNumbers):
            x, y = self.table.in_order(x), self.table.in_order(y)
            return np.stack([np.linalg.norm((x - one) / discrepancy.scale, axis=1) for one in y])
        if isinstance(discrepancy, Estimator | Loss):
            x, y = self.table.as_data_sets(x), self.table.as_data_sets(y)
        return np.stack([discrepancies_to(one, x, discrepancy, ragged=self.table.ragged) for one in y])
