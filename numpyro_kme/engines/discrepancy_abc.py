"""ABC by a discrepancy between data sets: K2-ABC and rejection ABC."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from numpyro_kme._core import checks, frozen
from numpyro_kme.abc import weighting
from numpyro_kme.abc.discrepancies import Discrepancy, check_discrepancy, discrepancies_to, dissimilarities
from numpyro_kme.embeddings.mmd import Estimator, Quadratic
from numpyro_kme.engines.base import check_rule
from numpyro_kme.engines.reference_table import ReferenceTable
from numpyro_kme.engines.weighting import WeightingEngine, WeightingMethod
from numpyro_kme.kernels import Gaussian
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic, mad_or_sd
from numpyro_kme.losses.base import Loss


@dataclass(eq=False, repr=False, kw_only=True)
class K2ABC(WeightingEngine):
    r"""K2-ABC: simulations from the prior weighted by how close their data sets are to the observed one.

    $w_i \propto \exp\big(-\widehat{\mathrm{MMD}}^2(x_i, y) / \epsilon\big)$, with data sets of draws in any order, and
    no summary statistics. A data set is one event `(n,)` or `(n, d)` of the simulator, or `n` draws under a plate.
    Weights are positive.

    The posterior is that of a likelihood widened by $\epsilon$. It is exact only in the limit $\epsilon \to 0$, with
    ever more simulations, and data sets so large that the discrepancy loses nothing.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        estimator: Estimator of the squared MMD: `Quadratic`, `LinearTime` or `Fourier`. When left out `Quadratic`, with
            a Gaussian kernel whose length scale is the median distance within the observed data.
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
    Cost: `m` simulations; `m` estimates of the MMD an observation, and `2 m` mean kernels between data sets, which say
        whether it lies away.
    References: Park, Jitkrittum & Sejdinovic (2016), AISTATS.
    """

    paper = "park2016k2abc"
    advice = "Use more simulations, a larger `epsilon`, or a prior nearer to what is known."
    positive = ("epsilon",)

    estimator: Estimator | None = None
    length_scale: LengthScaleRule | None = None
    epsilon: float | None = None

    def check_settings(self):  # noqa: D102
        super().check_settings()
        check_rule(self.length_scale, self.estimator, "estimator", Estimator, "an estimator, such as Quadratic(kernel)")

    def _fit(self, rng_key, problem, simulations):
        table = ReferenceTable.found(rng_key, problem, simulations, given=self.simulations is not None)
        size = table.as_data_sets(table.x).shape[1]
        checks.require(size >= 2, f"K2ABC compares data sets, not {size} points. Put several draws under a plate.")
        how = partial(weighting.soft_abc_weights, epsilon=self.epsilon), self.estimator, self.length_scale
        return DiscrepancyWeights(self, rng_key, problem, table, *how)


@dataclass(eq=False, repr=False, kw_only=True)
class RejectionABC(WeightingEngine):
    r"""Rejection ABC: the simulations from the prior whose outputs are nearest to the observation.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        discrepancy: A function of one simulated output and the observation that gives a number, smaller where they are
            more alike. It gets `(n, d)` for `n` draws under a plate, otherwise the event of the simulator, with rows of
            NaN behind the ends of outputs of any length (`Simulator(ragged=True)`). It may also be an estimator of the
            squared MMD, `Quadratic(kernel)`, or the p-th power of a Wasserstein distance, `Wasserstein(p)`; these get
            `(n, d)` always. When left out, the Euclidean distance of outputs, each number divided by its median
            absolute deviation over the simulations, or by its standard deviation where that is 0; scalar draws under a
            plate are sorted first.
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
        see whether it lies away, 900 between simulations. Estimators of the MMD as in `K2ABC`.
    References: Pritchard et al. (1999); Bernton et al. (2019), JRSS B, for the Wasserstein distance.
    """

    paper = "pritchard1999population"
    advice = "Use more simulations, or a larger `quantile` or `threshold`."

    num_simulations: int = field(default=10_000, kw_only=False)
    discrepancy: Estimator | Loss | Discrepancy | None = None
    length_scale: LengthScaleRule | None = None
    quantile: float | None = None
    threshold: float | None = None

    def check_settings(self):  # noqa: D102
        super().check_settings()
        weighting.check_acceptance(self.quantile, self.threshold)
        if self.discrepancy is not None:
            check_discrepancy(self.discrepancy)
        check_rule(self.length_scale, self.discrepancy, "discrepancy", object, "a discrepancy")

    def _fit(self, rng_key, problem, simulations):
        table = ReferenceTable.found(rng_key, problem, simulations, given=self.simulations is not None)
        weights_of = partial(weighting.rejection_weights, quantile=self.quantile, threshold=self.threshold)
        if self.discrepancy is not None or self.length_scale is not None:
            table.require_rows("a discrepancy")
            how = weights_of, self.discrepancy, self.length_scale
            return DiscrepancyWeights(self, rng_key, problem, table, *how)
        fits = not table.data_sets or table.x.shape[2] == 1
        checks.require(fits, f"Rows of shape {table.x.shape[1:]} have no order: give `discrepancy`, Quadratic(kernel).")
        table.require_one_length("the Euclidean distance")
        scale = mad_or_sd(table.in_order(table.x))
        return DistanceWeights(self, rng_key, problem, table, weights_of, np.where(scale > 0, scale, 1.0))


@frozen
class DistanceWeights(WeightingMethod):
    """Weights by the Euclidean distance of numbers, draws along plates in the order of their values.

    Attributes:
        weights_of: Gives weights of distances, and a number that a person reads.
        scale: Unit of each number: its median absolute deviation, its standard deviation where that is 0, or 1, `(d,)`.
    """

    weights_of: Callable[[np.ndarray], weighting.SoftWeights | weighting.RejectionWeights]
    scale: np.ndarray

    def weigh(self, observed, distances):  # noqa: D102
        return _with_number(self.weights_of(distances))

    def apart(self, x, y):  # noqa: D102
        x, y = self.table.in_order(x), self.table.in_order(y)
        return np.stack([np.linalg.norm((x - one) / self.scale, axis=1) for one in y])


@frozen
class DiscrepancyWeights(WeightingMethod):
    """Weights by a discrepancy from the observation.

    Distances are the discrepancies, but for the squared MMD minus the log of the cosine between mean embeddings, which
    is the same for narrow and wide data sets.

    Attributes:
        weights_of: Gives weights of discrepancies, and a number that a person reads.
        discrepancy: None for the squared MMD under a Gaussian kernel, whose length scale an observation decides.
        length_scale: Rule for that length scale; a rule that needs parameters sees the draws of all simulations.
    """

    compared: ClassVar[int] = 30  # a discrepancy may be slow

    weights_of: Callable[[np.ndarray], weighting.SoftWeights | weighting.RejectionWeights]
    discrepancy: Estimator | Loss | Discrepancy | None
    length_scale: LengthScaleRule | None = None

    def at(self, observed):  # noqa: D102
        if self.discrepancy is not None:
            return self
        rule = self.length_scale or MedianHeuristic()
        given = self.table.draws() if rule.needs_targets else (self.table.as_data_sets(observed[None])[0],)
        return replace(self, discrepancy=Quadratic(Gaussian(rule(*given))))

    def weigh(self, observed, distances):  # noqa: D102
        if isinstance(self.discrepancy, Estimator):  # whose distances are others
            distances = self._discrepancies(self.table.x, observed[None])[0]
        return _with_number(self.weights_of(distances))

    def apart(self, x, y):  # noqa: D102
        if isinstance(self.discrepancy, Estimator):
            return dissimilarities(self.discrepancy, self.table.as_data_sets(x), self.table.as_data_sets(y))
        return self._discrepancies(x, y)

    def _discrepancies(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Discrepancies of rows `(k, *event)` of `table.x` from such rows `(s, *event)`, `(s, k)`."""
        discrepancy: Any = self.discrepancy
        if isinstance(discrepancy, Estimator | Loss):
            x, y = self.table.as_data_sets(x), self.table.as_data_sets(y)
        return np.stack([discrepancies_to(one, x, discrepancy, ragged=self.table.ragged) for one in y])


def _with_number(found: weighting.SoftWeights | weighting.RejectionWeights) -> tuple[np.ndarray, dict[str, Any]]:
    """Weights, and their width or threshold by its name."""
    return found.weights, {found._fields[1]: found[1]}
