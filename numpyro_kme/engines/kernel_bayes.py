"""Kernel Bayes' rule on a model: the prior may differ from where the simulations were made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.keys import split
from numpyro_kme.embeddings.parameter_choice import KernelBayesSettings, choose_by_folds, kernel_bayes_candidates
from numpyro_kme.engines.reference_table import ReferenceTable
from numpyro_kme.engines.simulation_engine import SimulationEngine, check_kernel, check_weighting
from numpyro_kme.engines.weighting import SignedWeights, held_out_regularisation
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import KernelRule, LengthScaleRule
from numpyro_kme.kernels.low_rank import TOLERANCE
from numpyro_kme.models.problem import Problem


@dataclass(eq=False, repr=False, kw_only=True)
class KernelBayes(SimulationEngine):
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
        regularisation: `eps`; when left out `0.01 / m`, or for outputs of any length what predicts parameters and their
            squares best, each simulation without itself.
        delta: `2 eps` when left out, as in the paper: best for means. A smaller one, `1e-4 / m`, gives better
            variances where the posterior is narrow; a warning says where a variance comes out negative.
        num_folds: If given, the length scales of both kernels and `eps` are chosen by the K-fold criterion of the paper
            (`choose_by_folds`), among multiples of those above, measured in the space of `parameter_kernel`; with
            `delta` at twice `eps`. It asks that averages of posteriors are the distribution of the simulated
            parameters.
        tolerance: Of the low-rank factors of Gram matrices; 1e-3 is much faster for large `m`, and loses little.
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
    advice = (
        "Use more simulations, simulations that cover the prior, or a larger `regularisation` or length scale of the "
        "kernels."
    )

    prior: Mapping[str, Any] | None = None
    kernel: Kernel | KernelRule | None = None
    length_scale: LengthScaleRule | None = None
    parameter_kernel: Kernel | None = None
    regularisation: float | None = None
    delta: float | None = None
    num_folds: int | None = None
    tolerance: float = TOLERANCE
    regression_adjustment: bool = False

    def check_settings(self):  # noqa: D102
        super().check_settings()
        positive = {"regularisation": self.regularisation, "delta": self.delta}
        check_weighting(self.num_simulations, self.regression_adjustment, **positive)
        checks.positive_number("tolerance", self.tolerance)
        check_kernel(self.kernel, self.length_scale)
        if self.num_folds is not None:
            checks.whole("num_folds", self.num_folds, 2)
        what = "a kernel, such as Gaussian(length_scale)"
        checks.instance("parameter_kernel", self.parameter_kernel, Kernel | None, what)
        checks.require(
            self.num_folds is None or (self.regularisation is None and self.delta is None),
            "With `num_folds` the regularisation is chosen: leave `regularisation` and `delta` out.",
        )
        what = 'draws {site: (n, *shape)} with their "weight", as from get_weights()'
        checks.instance("prior", self.prior, Mapping | None, what)

    def weights(self, observations: Any) -> np.ndarray:
        """Signed weights of the simulations at many observations `(s, *event)`, `(s, m)`, as they are."""
        learnt = self.trained.learnt
        return learnt.at_rows(learnt.table.points(observations))

    def _fit(self, rng_key, problem, simulations):
        draw_key, fold_key = split(rng_key)
        table = ReferenceTable.found(rng_key, problem, simulations)
        kernel = table.kernels(self.kernel, self.length_scale)[0]
        x, m = kernel.points(table.x), len(table)
        on_parameters = self.parameter_kernel or Gaussian(median_heuristic(table.z))
        epsilon = 0.01 / m if self.regularisation is None else self.regularisation
        if table.ragged and self.regularisation is None:
            epsilon = held_out_regularisation(table, kernel, self.tolerance)
        settings = KernelBayesSettings(on_parameters, kernel, epsilon, self.delta)
        if self.num_folds is not None:
            epsilons = [0.1 * epsilon, epsilon, 10 * epsilon, 100 * epsilon]
            tried = kernel_bayes_candidates(on_parameters, kernel, epsilons)
            how = {"num_folds": self.num_folds, "compare_in": on_parameters, "tolerance": self.tolerance}
            settings = choose_by_folds(fold_key, table.z, x, tried, **how).settings
        rule = settings.rule(table.z, x, *self._embedded(draw_key, problem, table), tolerance=self.tolerance)
        return SignedWeights(self._settings(), rng_key, problem, table, rule)

    def _check(self, problem):
        super()._check(problem)
        if self.prior is None:
            return
        missing = [name for name in problem.latents if name not in self.prior]
        checks.require(not missing, f"`prior` must have the latents {list(problem.latents)}; it lacks {missing}.")
        latents = {name: np.asarray(self.prior[name]) for name in problem.latents}
        for name, value in latents.items():
            checks.sound(f"prior[{name!r}]", value)
        problem.require_inside_support("prior", latents)

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
        return z, weights
