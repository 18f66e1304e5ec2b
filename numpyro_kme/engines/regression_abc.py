"""ABC by kernel regression on the data: kernel ABC, kernel Bayes' rule and distribution regression."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpyro_kme._core import checks, frozen, in_jax_types, split
from numpyro_kme.abc.weighting import soft_abc_weights
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding
from numpyro_kme.embeddings.parameter_choice import KernelBayesSettings, choose_by_folds, kernel_bayes_candidates
from numpyro_kme.engines.base import KernelEngine, learn_success
from numpyro_kme.engines.reference_table import ReferenceTable
from numpyro_kme.engines.weighting import SignedWeights, WeightingEngine, WeightingMethod, squared_distances
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.data_sets import WithLength, log_lengths
from numpyro_kme.kernels.low_rank import DistributionRegression
from numpyro_kme.models.problem import Problem

SMOOTHER = 10.0
"""Signed weights need more regularisation than means do: a variance is a small difference of two of them."""


@dataclass(eq=False, repr=False, kw_only=True)
class KernelABC(WeightingEngine, KernelEngine):
    r"""Kernel ABC: ridge regression of the parameters' embedding on the data.

    $E[f(\theta) \mid y] \approx \sum_j v_j f(\theta_j)$, $v = (G_Y + m \varepsilon I)^{-1} k_Y(y)$. Weights are
    signed; they are divided by their sum. Unlike in rejection, no simulation has to be near the observation in all
    numbers of the data at once. Without a model it is `conditional_embedding`.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        kernel: Kernel on outputs of the simulator, or a rule that makes one, such as `EmpiricalMeasureRule()` for data
            sets of any length (`Simulator(ragged=True)`), where it is multiplied by one on lengths. When left out, a
            Gaussian with the median distance of each number as length scale; for draws under a plate, a Gaussian in
            their mean embeddings (`kernels.EmpiricalMeasure`).
        length_scale: Rule for the length scale of that Gaussian, or of the kernel inside the mean embeddings, instead
            of the median: `BayesianKernelLearning(key)`, `CrossValidation(key)`.
        regularisation: `eps`; when left out `0.01 / sqrt(m)`. For outputs of any length, which differ in what they say,
            ten times the one that predicts parameters and their squares best, by leave-one-out.
        tolerance: Tolerance of the low-rank factor of `G_Y`; 1e-3 is much faster for large `m`, and loses little.
        num_samples: Number of equally weighted draws: simulations chosen by herding, which follows signed weights.
        regression_adjustment: Whether a local linear regression on the numbers of the output moves the weighted
            simulations to where they would lie had they given the observation (`abc.RegressionAdjustment`).
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If the effective sample size, one over the sum of squared weights, is below 10, or the weights
            sum to 0.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`), or if that
            regression would move a mean by more than 0.25 standard deviations or leave less than 0.78 of one.
    Cost: `m` simulations and `m r^2` for a factor of rank `r`, once; `m r` an observation.
    References: Song et al. (2009), ICML; Fukumizu, Song & Gretton (2013), JMLR 14; Nakagome et al. (2013).
    """

    paper = "nakagome2013kernel"
    advice = "Use more simulations, or a larger `regularisation` or length scale of the kernel."

    def _fit(self, rng_key, problem, simulations):
        table = ReferenceTable.found(rng_key, problem, simulations, given=self.simulations is not None)
        kernel = table.kernels(self.kernel, self.length_scale)[0]
        epsilon = 0.01 / np.sqrt(len(table)) if self.regularisation is None else self.regularisation
        if table.ragged and self.regularisation is None:
            targets = np.concatenate([table.z, np.square(table.z)], axis=1)
            held_out = DistributionRegression.fit(kernel, table.x, targets, tolerance=self.tolerance)
            epsilon = SMOOTHER * float(held_out.regularisation)
        fitted = ConditionalMeanEmbedding.fit(kernel, kernel.points(table.x), epsilon, tolerance=self.tolerance)
        return SignedWeights(self, rng_key, problem, table, fitted)


@dataclass(eq=False, repr=False, kw_only=True)
class KernelBayes(WeightingEngine, KernelEngine):
    r"""Kernel Bayes' rule: posterior weights of simulations that may come from anywhere.

    The prior of the model enters as an embedding $\sum_j \gamma_j k_\Theta(\cdot, u_j)$ of draws, so `simulations` may
    have been made at other parameters, such as a grid, or draws from an earlier prior. The posterior is
    $\sum_i \rho_i k_\Theta(\cdot, \theta_i)$, $\rho = R\, k_Y(y)$, with `R` of `KernelBayesRule`. Weights are signed;
    they are divided by their sum.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        prior: Draws `{site: (n, *shape)}` of the model's latents that stand for the prior instead of the model's own,
            and under `"weight"` their weights `(n,)` of any sign, with a sum of one; equal when left out.
            `get_weights()` of another engine is one: its posterior is the prior of this one. Other names, of
            deterministic sites, are passed over. They have to lie in the support of the model's prior, which gives the
            coordinates.
        kernel: On outputs of the simulator; as in `KernelABC` when left out.
        length_scale: Rule for that kernel, as in `KernelABC`.
        parameter_kernel: On coordinates of the parameters, in which the prior is about standard normal; a Gaussian
            with the median distance as length scale when left out.
        regularisation: `eps`; `0.01 / m` when left out.
        delta: `2 eps` when left out, as in the paper: best for means. A smaller one, `1e-4 / m`, gives better
            variances where the posterior is narrow; a warning says where a variance comes out negative.
        num_folds: If given, the length scales of both kernels and `eps` are chosen by the K-fold criterion of the paper
            (`choose_by_folds`), among multiples of those above, measured in the space of `parameter_kernel`; with
            `delta` at twice `eps`. By this criterion posteriors should average to the distribution of the simulated
            parameters.
        tolerance: Tolerance of the low-rank factors of Gram matrices; 1e-3 is much faster for large `m`, and loses
            little.
        num_samples: Number of equally weighted draws: simulations chosen by herding, which follows signed weights.
        regression_adjustment: Whether a local linear regression on the numbers of the output moves the weighted
            simulations to where they would lie had they given the observation (`abc.RegressionAdjustment`).
        simulations: Simulations made elsewhere, at any parameters, instead of new ones.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If the effective sample size, one over the sum of squared weights, is below 10, or the weights
            sum to 0.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`), or if that
            regression would move a mean by more than 0.25 standard deviations or leave less than 0.78 of one.
    Cost: `m` simulations and `m r^2` for factors of rank `r`, once; `m r` an observation.
    References: Fukumizu, Song & Gretton (2013), JMLR 14.
    """

    paper = "fukumizu2013kernel"
    advice = "Use more simulations, simulations that cover the prior, or a larger `regularisation` or length scale."

    positive = ("regularisation", "delta", "tolerance")

    prior: Mapping[str, Any] | None = None
    parameter_kernel: Kernel | None = None
    delta: float | None = None
    num_folds: int | None = None

    def check_settings(self):  # noqa: D102
        super().check_settings()
        checks.optional(checks.whole, "num_folds", self.num_folds, 2)
        checks.instance("parameter_kernel", self.parameter_kernel, Kernel | None, "a kernel, such as Gaussian(1.0)")
        chosen = self.num_folds is None or (self.regularisation is None and self.delta is None)
        checks.require(chosen, "With `num_folds` the regularisation is chosen: leave `regularisation` and `delta` out.")
        checks.instance("prior", self.prior, Mapping | None, "draws {site: (n, *shape)}, as from get_weights()")

    def _fit(self, rng_key, problem, simulations):
        draw_key, fold_key = split(rng_key)
        table = ReferenceTable.found(rng_key, problem, simulations)
        kernel = table.kernels(self.kernel, self.length_scale)[0]
        x, m = kernel.points(table.x), len(table)
        on_parameters = self.parameter_kernel or Gaussian(median_heuristic(table.z))
        epsilon = 0.01 / m if self.regularisation is None else self.regularisation
        settings = KernelBayesSettings(on_parameters, kernel, epsilon, self.delta)
        if self.num_folds is not None:
            epsilons = [0.1 * epsilon, epsilon, 10 * epsilon, 100 * epsilon]
            tried = kernel_bayes_candidates(on_parameters, kernel, epsilons)
            how = {"num_folds": self.num_folds, "compare_in": on_parameters, "tolerance": self.tolerance}
            settings = choose_by_folds(fold_key, table.z, x, tried, **how).settings
        rule = settings.rule(table.z, x, *self._embedded(draw_key, problem, table), tolerance=self.tolerance)
        return SignedWeights(self, rng_key, problem, table, rule)

    def _checked(self, problem):
        super()._checked(problem)
        if self.prior is None:
            return problem
        missing = [name for name in problem.latents if name not in self.prior]
        checks.require(not missing, f"`prior` must have the latents {list(problem.latents)}; it lacks {missing}.")
        latents = {name: in_jax_types(self.prior[name]) for name in problem.latents}
        for name, value in latents.items():
            checks.sound(f"prior[{name!r}]", value)
        problem.require_inside_support("prior", latents)
        return problem

    def _embedded(self, rng_key, problem: Problem, table: ReferenceTable) -> tuple[np.ndarray, np.ndarray | None]:
        """Coordinates of draws of the prior, and their weights."""
        if self.prior is None:
            drawn, weights = problem.draw(rng_key, len(table)), None
        else:
            drawn = problem.evaluate({name: np.asarray(self.prior[name]) for name in problem.latents})
            weights = self.prior.get("weight")
        z = table.coordinates_of(drawn.arguments[problem.site()])
        if weights is not None:
            weights = np.asarray(weights, np.float64)
            checks.shaped("prior['weight']", weights, (len(z),), "per draw")
            checks.sums_to_one("prior['weight']", weights)
        site = problem.site()
        for success in learn_success(problem, table.simulations, {site: table.coordinates}).values():
            weights = (1.0 if weights is None else weights) * np.exp(success.log_probability(z))
            weights = weights / weights.sum()
        return z, weights


@dataclass(eq=False, repr=False, kw_only=True)
class DistributionRegressionABC(WeightingEngine, KernelEngine):
    r"""DR-ABC: soft ABC with summaries learnt by ridge regression from data sets to parameters.

    $s(y) = \bar z + k(y)^\top (K + m \lambda I)^{-1} (z - \bar z)$ predicts the coordinates `z` of the parameters from
    a data set, with a kernel on data sets, such as a Gaussian in their mean embeddings; $w_i \propto
    \exp(-|s_{-i}(x_i) - s(y)|^2 / \epsilon)$. The summaries of the simulations are predicted without themselves, in
    closed form, so that their errors are like that of the observation. Weights are positive. Without a model it is
    `DistributionRegression` and `soft_abc_weights`.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        kernel: Kernel on outputs of the simulator. When left out as in `KernelABC`; on draws under a plate that kernel
            or one with eight times its length scale, whichever has the smaller leave-one-out error. For data sets that
            are one event `(n, d)`, give `kernels.EmpiricalMeasure`.
        length_scale: Rule for the kernel that is chosen when `kernel` is left out, as in `KernelABC`.
        regularisation: `lambda`; when left out, the power of ten, 1e-9 to 1, with the least leave-one-out error.
        epsilon: Width, in squared units of coordinates; when left out, such that the effective sample size is `max(50,
            m / 50)`.
        tolerance: Tolerance of the low-rank factor of `K`; when left out 0.1, 0.01, and so on until the squared
            leave-one-out error falls by less than 1%.
        num_samples: Number of equally weighted draws, resampled systematically from the simulations.
        regression_adjustment: Whether a local linear regression on the numbers of the output moves the weighted
            simulations to where they would lie had they given the observation (`abc.RegressionAdjustment`).
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If the effective sample size is below 10, or the kernel is zero between the observation and all
            simulations.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`), or if that
            regression would move a mean by more than 0.25 standard deviations or leave less than 0.78 of one.
    Cost: `m` simulations, `m r` kernels and `m r^2` for a factor of rank `r`, once; `r` kernels an observation.
    References: Mitrovic, Sejdinovic & Teh (2016), ICML.
    """

    paper = "mitrovic2016drabc"
    advice = "Use more simulations, a larger `epsilon`, or a prior nearer to what is known."
    positive = ("regularisation", "epsilon", "tolerance")

    epsilon: float | None = None
    tolerance: float | None = None

    def _fit(self, rng_key, problem, simulations):
        table = ReferenceTable.found(rng_key, problem, simulations, given=self.simulations is not None)
        given = table.kernels(self.kernel, self.length_scale), table.x, table.z, self.regularisation
        fitted = DistributionRegression.fit_best(*given, tolerance=self.tolerance)
        return SummaryWeights(self, rng_key, problem, table, fitted, self.epsilon)


@frozen
class SummaryWeights(WeightingMethod):
    """Soft weights by learnt summaries.

    Attributes:
        fitted: The regression that predicts coordinates from data sets.
        epsilon: Width of the weights, or None.
    """

    fitted: DistributionRegression
    epsilon: float | None

    def weigh(self, observed, distances):  # noqa: D102
        summary = self.fitted.predict(observed[None])[0]
        distance = np.sum(np.square(np.asarray(self.fitted.held_out) - summary), axis=1)
        weights, epsilon = soft_abc_weights(distance, self.epsilon)
        kernel = self.fitted.features.kernel
        if isinstance(kernel, WithLength):  # summaries of longer outputs scatter less
            differences = log_lengths(self.table.x) - log_lengths(observed[None])
            weights = weights * np.exp(-0.5 * np.square(differences / kernel.length_scale))
        return weights, {
            "epsilon": epsilon,
            "regularisation": float(self.fitted.regularisation),
            "leave-one-out error of the summaries": self.fitted.error,
            "summary": summary,
            "rank of the data": f"{self.fitted.features.rank} of {len(self.table)}",
        }

    def apart(self, x, y):  # noqa: D102
        return squared_distances(self.fitted.features.kernel, x, y)
