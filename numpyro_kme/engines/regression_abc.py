"""ABC by kernel regression on the data: kernel ABC, kernel recursive ABC and distribution regression."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from numpyro_kme._core import checks, progress
from numpyro_kme._core.display import shown
from numpyro_kme._core.keys import split
from numpyro_kme._core.saving import saveable
from numpyro_kme.abc.recursive import recursive_abc_step
from numpyro_kme.abc.weighting import soft_abc_weights
from numpyro_kme.engines._simulations import PlannedEngine, check_model, of_model
from numpyro_kme.engines._vectors import LatentVectors
from numpyro_kme.engines._weighers import (
    ReferenceTable,
    SignedWeigher,
    Weigher,
    Weighting,
    apart,
    check_kernel,
    held_out_regularisation,
    kernel_on,
    kernels_on,
)
from numpyro_kme.engines._weighted import KernelEngine, SignedEngine
from numpyro_kme.engines.base import RunAgain, check_positive
from numpyro_kme.engines.posterior import Posterior, groups, missing_entries
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import KernelRule, LengthScaleRule, MedianHeuristic
from numpyro_kme.kernels.low_rank import TOLERANCE, LowRankRidge
from numpyro_kme.kernels.ragged import WithLength, log_lengths
from numpyro_kme.kernels.regression import DistributionRegression
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.failures import StoreError

SMOOTHER = 10.0
"""Signed weights need more regularisation than means do: a variance is a small difference of two of them."""


@dataclass(eq=False, repr=False, kw_only=True)
class KernelABC(SignedEngine):
    r"""Kernel ABC: ridge regression of the parameters' embedding on the data.

    $E[f(\theta) \mid y] \approx \sum_j v_j f(\theta_j)$, $v = (G_Y + m \varepsilon I)^{-1} k_Y(y)$. Weights are
    signed; they are divided by their sum. No simulation has to come near the observation in every number of the data
    at once, as it has in rejection. Without a model it is `conditional_embedding`.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        kernel: On outputs of the simulator, or a rule that makes one, such as `EmpiricalMeasureRule()` for data sets of
            any length (`Simulator(ragged=True)`), where it is multiplied by one on lengths. When left out, a Gaussian
            with the median distance of each number as length scale; for draws under a plate, a Gaussian in their mean
            embeddings (`kernels.EmpiricalMeasure`).
        length_scale: Rule for the length scale of that Gaussian, or of the kernel inside the mean embeddings, instead
            of the median: `BayesianKernelLearning(key)`, `CrossValidation(key)`.
        regularisation: `eps`; when left out `0.01 / sqrt(m)`, or for outputs of any length, which say more or less
            each, ten times what predicts parameters and their squares best, each simulation without itself.
        tolerance: Of the low-rank factor of `G_Y`; 1e-3 is much faster for large `m`, and loses little.
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

    def _fit(self, rng_key, problem, table):
        kernel = self._kernel(table)
        epsilon = 0.01 / np.sqrt(len(table)) if self.regularisation is None else self.regularisation
        if table.ragged and self.regularisation is None:
            epsilon = SMOOTHER * held_out_regularisation(table, kernel, self.tolerance)
        return SignedWeigher(table, LowRankRidge.fit(kernel, kernel.points(table.x), epsilon, tolerance=self.tolerance))


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRecursiveABC(PlannedEngine):
    r"""Kernel recursive ABC: the maximum-likelihood point of a simulator, by Bayes' rule applied again and again.

    Each iteration simulates at `m` points, finds the embedding of their posterior by kernel ABC,
    $v = (G_Y + m \varepsilon I)^{-1} k_Y(y)$, and herds `m` new points from it, which are the prior of the next. The
    `t`-th posterior is proportional to $p(\theta) \ell(\theta)^t$ and closes in on the maximum of the likelihood, as
    far as the kernel on data resolves it. The prior says where to begin. What comes out is no posterior: the
    standard deviations of the points say how far the iterations have come. Without a model it is
    `kernel_recursive_abc`.

    Args:
        model: A NumPyro model with one observed `Simulator` site. Where its arguments do not determine all latents, as
            under a Dirichlet or a hierarchical prior, the points move in the space of all latents, mapped to vectors
            without constraints.
        num_simulations: Number `m` of simulations in an iteration. Each point is simulated in the next one, so that
            there are as many draws, and no `num_samples`.
        num_iterations: Number of iterations.
        kernel: On outputs of the simulator; by median heuristics, anew in each iteration, when left out.
        length_scale: Rule for that kernel instead of the median, as in `KernelABC`.
        regularisation: `eps`; `0.01 / sqrt(m)` when left out.
        tolerance: Of the low-rank factor of `G_Y`.
        simulations: The first iteration, made elsewhere, from the prior or from where the points should begin.
        store: A folder for a store of each iteration, `iteration 1` and so on. A run that ended early goes on from
            there; `condition`, whose points are others, writes nothing there.
        on_failure, executor, version, timeout, progress_bar: How it simulates, as in `simulate`; with
            `on_failure="skip"` the other points of an iteration serve.
    Raises:
        RuntimeError: If the weights of an iteration vanish or cancel, or its points come together in one place,
            because the observation lies far from all that was simulated.
    Cost: `m` simulations and `m r^2` for a factor of rank `r` an iteration.
    References: Kajihara, Kanagawa, Yamazaki & Fukumizu (2018), ICML.
    """

    paper = "kajihara2018kernel"

    num_simulations: int = field(default=200, kw_only=False)
    num_iterations: int = 10
    kernel: Kernel | KernelRule | None = None
    length_scale: LengthScaleRule | None = None
    regularisation: float | None = None
    tolerance: float = TOLERANCE

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        checks.whole("num_simulations", self.num_simulations, 20)
        checks.whole("num_iterations", self.num_iterations, 1)
        check_kernel(self.kernel, self.length_scale, self.regularisation)
        checks.positive_number("tolerance", self.tolerance)

    def _infer(self, rng_key, args, kwargs):
        problem = Problem.read(self.model, *args, **kwargs)
        check_model(problem, type(self).__name__)
        problem.require_continuous("KernelRecursiveABC, which herds points,")
        start_key, coordinates_key, *keys = split(rng_key, self.num_iterations + 2)
        latents = problem.draw(start_key, self.num_simulations).latents
        coordinates = Coordinates.from_prior(coordinates_key, problem)
        vectors = None if coordinates.one_to_one else LatentVectors.read(problem, latents)
        path, deviations, made = [], [], []
        for number, key in enumerate(progress.progress(keys, "iterations", self.progress_bar), 1):
            simulate_key, herd_key = split(key)
            simulations = self._iteration(simulate_key, problem, latents, number)
            made.append(simulations)
            table = ReferenceTable.read(coordinates, problem, simulations)
            if vectors is not None:
                table = replace(table, z=vectors.table(table.latents))
            z = self._step(herd_key, table, table.point(problem.observations[problem.site()]))
            latents = (vectors or coordinates).latents_table(z)
            path.append(z[0])
            deviations.append(z.std(axis=0))
        posterior = PointPosterior(
            engine=type(self).__name__,
            samples={**latents, **problem.evaluate(latents).deterministics},
            groups={"observed_data": groups(simulations, problem)["observed_data"]},
            info={
                "simulations": sum(one.attempted or len(one) for one in made),
                **_failures(made),
                "standard deviations of the points, first and last": np.concatenate([deviations[0], deviations[-1]]),
                "last move of the estimate": np.abs(path[-1] - path[max(len(path) - 2, 0)]),
                **missing_entries(problem.simulators[problem.site()]),
                "what these are": "points that close in on the maximum of the likelihood, not draws from a posterior",
            },
            problem=problem,
            estimate={name: np.asarray(value[0]) for name, value in latents.items()},
        )
        bare = self._settings()
        bare.store = None
        return RunAgain(bare), posterior

    def _iteration(self, rng_key, problem: Problem, latents: Mapping, number: int) -> Simulations:
        """Simulations at the points of an iteration, counted from 1."""
        if number == 1 and self.simulations is not None:
            return of_model(problem, self.simulations)
        store = None
        if self.store is not None:
            folder = Path(self.store).expanduser()
            checks.require(
                not (folder / "zarr.json").exists(),
                f"The store {folder} holds simulations of one call, and KernelRecursiveABC keeps a store of each "
                "iteration in a folder: give another path.",
                StoreError,
            )
            store = folder / f"iteration {number}"
        return replace(self.plan, progress_bar=False).simulate_at(rng_key, problem, latents, store)

    def _step(self, rng_key, table: ReferenceTable, y: np.ndarray) -> np.ndarray:
        """New points `(num_simulations, D)` in coordinates; points that have come close may agree in a count."""
        rule = self.length_scale or MedianHeuristic(per_dimension=not table.data_sets, ties=False)
        kernel, m = kernel_on(table, self.kernel, rule), self.num_simulations
        return recursive_abc_step(
            rng_key, kernel, table.z, table.x, y, m, regularisation=self.regularisation, tolerance=self.tolerance
        )


def _failures(made: list[Simulations]) -> dict[str, str]:
    """What a person reads of the failures of all iterations, if any."""
    failures: Counter[str] = Counter()
    for one in made:
        failures.update(one.failures)
    repeated = sum(one.repeated for one in made)
    reasons = [f"{count} {reason}" for reason, count in failures.items()]
    reasons += [f"{repeated} repeated"] * bool(repeated)
    return {"simulations that failed": ", ".join(reasons)} if reasons else {}


@shown
@saveable
@dataclass(frozen=True, kw_only=True)
class PointPosterior(Posterior):
    """Points that close in on a point estimate.

    Attributes:
        estimate: The first point that the last herding chose, `{site: (*shape)}`.
    """

    estimate: Mapping[str, np.ndarray]

    def mode(self) -> dict[str, np.ndarray]:
        """The point estimate `{site: (*shape)}`: the first point that the last herding chose."""
        return dict(self.estimate)


@dataclass(eq=False, repr=False, kw_only=True)
class DistributionRegressionABC(KernelEngine):
    r"""DR-ABC: soft ABC with summaries learnt by ridge regression from data sets to parameters.

    $s(y) = \bar z + k(y)^\top (K + m \lambda I)^{-1} (z - \bar z)$ predicts the coordinates `z` of the parameters from
    a data set, with a kernel on data sets, such as a Gaussian in their mean embeddings; $w_i \propto
    \exp(-|s_{-i}(x_i) - s(y)|^2 / \epsilon)$. The summaries of the simulations are predicted without themselves, in
    closed form, so they err as that of the observation does. Weights are positive. Without a model it is
    `DistributionRegression` and `soft_abc_weights`.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        kernel: On outputs of the simulator; as in `KernelABC` when left out, on draws under a plate also with eight
            times its length scale, whichever has the smaller leave-one-out error; so with the candidates of a rule. For
            data sets that are one event `(n, d)`, give `kernels.EmpiricalMeasure`.
        length_scale: Rule for the kernel that is chosen when `kernel` is left out, as in `KernelABC`.
        regularisation: `lambda`; when left out, the power of ten, 1e-9 to 1, with the least leave-one-out error.
        epsilon: Width, in squared units of coordinates; when left out, such that the effective sample size is `max(50,
            m / 50)`.
        tolerance: Of the low-rank factor of `K`; when left out 0.1, 0.01, and so on until the squared leave-one-out
            error falls by less than 1 %.
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
    tolerance: float | None = None
    epsilon: float | None = None

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        check_positive(epsilon=self.epsilon)

    def _fit(self, rng_key, problem, table):
        kernels = kernels_on(table, self.kernel, self.length_scale)
        fitted = DistributionRegression.fit_best(
            kernels, table.x, table.z, self.regularisation, tolerance=self.tolerance
        )
        return SummaryWeigher(table, fitted, self.epsilon)


@dataclass(frozen=True)
class SummaryWeigher(Weigher):
    """Soft weights by learnt summaries.

    Attributes:
        fitted: The regression that predicts coordinates from data sets.
        epsilon: Width of the weights, or None.
    """

    fitted: DistributionRegression
    epsilon: float | None

    def weigh(self, y):
        """As `Weigher.weigh`."""
        summary = self.fitted.predict(y[None])[0]
        distance = np.sum(np.square(np.asarray(self.fitted.held_out) - summary), axis=1)
        weights, epsilon = soft_abc_weights(distance, self.epsilon)
        weights = weights * self._alike(y)
        info = {
            "epsilon": epsilon,
            "regularisation": float(self.fitted.regularisation),
            "leave-one-out error of the summaries": self.fitted.error,
            "summary": summary,
            "rank of the data": f"{self.fitted.features.rank} of {len(self.table)}",
        }
        return Weighting(weights, self.apart(self.table.x, y[None])[0], info)

    def _alike(self, y: np.ndarray) -> np.ndarray:
        """What the weights are multiplied by for their lengths, `(m,)`: summaries of longer outputs scatter less."""
        kernel = self.fitted.features.kernel
        if not isinstance(kernel, WithLength):
            return np.ones(len(self.table))
        differences = log_lengths(self.table.x) - log_lengths(y[None])
        return np.exp(-0.5 * np.square(differences / kernel.length_scale))

    def apart(self, x, y):
        """As `Weigher.apart`."""
        return apart(self.fitted.features.kernel, x, y)
