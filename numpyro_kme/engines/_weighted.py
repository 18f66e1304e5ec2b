"""Engines whose posterior is a weighting of simulations from the prior, with weights of one sign or of both."""

import abc
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np
import scipy

from numpyro_kme._core import checks, progress
from numpyro_kme._core.display import shown
from numpyro_kme._core.keys import child, split
from numpyro_kme._core.programs import Recomputed
from numpyro_kme._core.saving import saveable
from numpyro_kme.abc.discrepancies import out_of_distribution_check
from numpyro_kme.abc.weighting import LEAST_EFFECTIVE_SIZE, effective_sample_size, with_unit_sum
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.engines._simulations import SimulationEngine, check_model
from numpyro_kme.engines._vectors import LatentVectors, adjusted, deviation, herded, warn_if_coarse
from numpyro_kme.engines._weighers import ReferenceTable, Weigher, check_kernel, kernel_on, observed_part
from numpyro_kme.engines.base import Trained, check_positive
from numpyro_kme.engines.posterior import Posterior, groups, missing_entries, problem_of, with_present_data
from numpyro_kme.kernels import Gaussian
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import KernelRule, LengthScaleRule
from numpyro_kme.kernels.low_rank import TOLERANCE
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import systematic_shuffled
from numpyro_kme.simulations import Simulations

PATTERNS = 32
"""Weighers for so many other masks of the observation are kept."""


@dataclass(frozen=True)
class LearntWeigher(Recomputed):
    """What a weighting engine keeps for other observations.

    Attributes:
        simulations: As they were made.
        weigher: What was learnt from them, without the draws that the observation masked.
        fit_key: Its key: for another mask it is learnt again, once for each.
    """

    simulations: Simulations = field(repr=False)
    weigher: Weigher = field(repr=False)
    fit_key: jax.Array = field(repr=False)

    @cached_property
    def others(self) -> "OrderedDict[bytes, LearntWeigher]":
        """Learnt for other masks, by mask, the last `PATTERNS` of them."""
        return OrderedDict()


@shown
@saveable
@dataclass(frozen=True, kw_only=True)
class WeightedPosterior(Posterior):
    """A posterior that is a weighting of simulations from the prior.

    Attributes:
        table: The simulations.
        weights: `(m,)`, with a sum of one; some methods give weights of both signs.
    """

    problem: Problem
    table: ReferenceTable
    weights: np.ndarray

    def get_weights(self) -> dict[str, np.ndarray]:
        """The weighted set: every simulation's latents `{site: (m, *shape)}`, and under `"weight"` weights that sum to
        one.

        Some methods give weights of both signs.
        """
        return {**self.table.sites, "weight": self.weights}

    def expectation(self, function: Callable[[Mapping[str, np.ndarray]], Any]) -> np.ndarray:
        """Posterior expectation by the weights, `sum_i w_i f(theta_i)`; more exact than an average of `get_samples`.

        Args:
            function: Maps `{site: (m, *shape)}`, all simulations at once, to `(m, *event)`.
        Returns:
            `(*event)`.
        """
        values = np.asarray(function(self.table.sites))
        checks.require(
            values.shape[:1] == self.weights.shape,
            f"`function` must give {len(self.weights)} rows, one for each simulation; it gave shape {values.shape}.",
        )
        return np.tensordot(self.weights, values, axes=1)

    def mode(self) -> dict[str, np.ndarray]:
        """Point estimate, `{site: (*shape)}`: the mode of the posterior embedding (its pre-image), the weights smoothed
        by a Gaussian kernel in coordinates.

        The kernel is as wide as the posterior in each coordinate. Where the simulator's
        arguments do not determine the latents, as under a Dirichlet or a hierarchical prior, the coordinates are those
        of all latents, mapped to vectors without constraints. Where all latents are discrete it is the value that has
        the largest weight.
        """
        problem = problem_of(self)
        if len(problem.discrete) == len(problem.latents):
            return _heaviest(self.table.latents, self.weights)
        z, vectors = LatentVectors.of(problem, self.table)
        found = MeanEmbedding(Gaussian(deviation(z, self.weights)), z, self.weights).mode()
        latents = vectors.latents_table(found[None])
        return {name: np.asarray(value[0]) for name, value in latents.items()}

    def herd(self, rng_key: jax.Array, num_samples: int) -> Posterior:
        """Super-samples: simulations chosen by kernel herding of the embedded posterior, in the order in which it
        finds them.

        The key decides nothing: candidates are the simulations.
        """
        checks.key(rng_key)
        checks.whole("num_samples", num_samples, 1)
        chosen = herded(self.table.z, self.weights, num_samples)
        return self._super_samples({name: value[chosen] for name, value in self.table.sites.items()})


@dataclass(eq=False, repr=False, kw_only=True)
class WeightedEngine(SimulationEngine):
    """Base of the engines that weight simulations from the prior; a subclass makes a `Weigher` in `_fit`.

    Args:
        regression_adjustment: Whether `abc.RegressionAdjustment` moves the weighted simulations to where a local linear
            regression on the numbers of the output puts them, in coordinates without constraints; for draws under a
            plate on the mean and log standard deviation of each column. `info` says by how many standard deviations
            it moves each mean. When left out they stay where they are, and a warning says where it would move a
            mean by more than 0.25 standard deviations.
    """

    advice: ClassVar[str]
    """What to do where the effective sample size is too small."""
    measure: ClassVar[str]
    """What `Weigher.apart` measures."""
    from_anywhere: ClassVar[bool] = False
    """Whether simulations may come from elsewhere than the prior."""

    regression_adjustment: bool = False

    def check_settings(self):
        """As `Engine.check_settings`."""
        checks.instance("regression_adjustment", self.regression_adjustment, bool, "True or False")
        checks.whole("num_simulations", self.num_simulations, 20, " Thousands are usual.")
        super().check_settings()

    @abc.abstractmethod
    def _fit(self, rng_key: jax.Array, problem: Problem, table: ReferenceTable) -> Weigher:
        """Learn what does not depend on the observation."""

    def _infer(self, rng_key, args, kwargs):
        simulate_key, coordinates_key, fit_key, sample_key = split(rng_key, 4)
        problem = Problem.read(self.model, *args, **kwargs)
        self._check(problem)
        simulations = self._simulate(simulate_key, problem)
        coordinates = Coordinates.from_simulations(coordinates_key, problem, problem.site(), simulations)
        table = ReferenceTable.read(coordinates, problem, simulations)
        if self.plan.simulations is not None and not self.from_anywhere:
            self._check_prior(child(coordinates_key, 1), problem, table)
        with progress.phase(f"learning from {len(simulations)} simulations", self.progress_bar):
            learnt = LearntWeigher(simulations, self._fit(fit_key, problem, table), fit_key)
        with progress.phase("weighting the simulations", self.progress_bar):
            posterior = self._posterior(sample_key, problem, learnt)
        return Trained(self._settings(), problem, learnt), posterior

    def _check(self, problem: Problem) -> None:
        """That this engine can infer from a model, before anything is simulated."""
        check_model(problem, type(self).__name__)
        checks.require(
            "weight" not in {*problem.latents, *problem.deterministics},
            "A site of the model is called 'weight', as `get_weights` and ArviZ call the weights of the simulations. "
            "Give it another name.",
        )
        if self.regression_adjustment:
            problem.require_continuous("`regression_adjustment`, which moves latents,")

    def _check_prior(self, rng_key, problem: Problem, table: ReferenceTable) -> None:
        """That given simulations could be draws from the prior, by two-sample Kolmogorov-Smirnov tests of their
        coordinates against 1,000 draws, at level 1e-6."""
        own = table.coordinates_of(problem.draw(rng_key, 1000).arguments[problem.site()])
        tests = [scipy.stats.ks_2samp(z, prior) for z, prior in zip(table.z.T, own.T)]
        worst = min(range(len(tests)), key=lambda d: tests[d].pvalue)
        checks.require(
            tests[worst].pvalue * len(tests) > 1e-6,
            f"`simulations` are not draws from the prior of this model: {table.coordinates.names[worst]} has a "
            f"Kolmogorov-Smirnov distance of {tests[worst].statistic:.2f} from it (p-value {tests[worst].pvalue:.1g}), "
            f"and {type(self).__name__} takes them for such. Use KernelBayes or KELFI, which take simulations made "
            "anywhere, or a model with the prior they came from.",
        )

    def _condition(self, rng_key, problem, learnt: LearntWeigher):
        """With the same simulations; where the new observation has another mask, or lacks other numbers, learnt again
        for what counts."""
        self._check(problem)
        table = learnt.weigher.table
        mask = observed_part(problem)
        if not np.array_equal(mask, table.mask):
            pattern, others = (str(mask.shape).encode() + mask.tobytes()), learnt.others
            found = others.get(pattern)
            if found is None:
                table = ReferenceTable.read(table.coordinates, problem, learnt.simulations)
                found = replace(learnt, weigher=self._fit(learnt.fit_key, problem, table))
                others[pattern] = found
                while len(others) > PATTERNS:
                    others.popitem(last=False)
            learnt = found
        return self._posterior(rng_key, problem, learnt)

    def _posterior(self, rng_key, problem: Problem, learnt: LearntWeigher) -> WeightedPosterior:
        table = learnt.weigher.table
        y = table.point(problem.observations[problem.site()])
        weigher = learnt.weigher.at(y)
        found = weigher.weigh(y)
        weights, effective = self._normalise(found.weights)
        info: dict[str, Any] = {"simulations": len(weights), **found.info, "effective sample size": effective}
        info |= missing_entries(problem.simulators[problem.site()])
        if (weights < 0).any():
            info["proportion of negative weight"] = float(-weights[weights < 0].sum() / np.abs(weights).sum())
        if learnt.simulations.failures or learnt.simulations.repeated:
            info["simulations that failed"] = learnt.simulations.describe_failures()
        far = self._warn_if_out_of_distribution(weigher, found.distances)
        present = with_present_data(replace(learnt.simulations, latents=table.latents), problem)
        table = replace(table, deterministics=present.deterministics)
        if self.regression_adjustment:
            table, info["regression adjustment"] = adjusted(problem, table, weights, y)
        elif not far and not problem.discrete:  # a regression says little of a probability
            warn_if_coarse(type(self).__name__, problem, table, weights, y, found.distances)
        _warn_of_variances(table, weights)
        if (weights >= 0).all():
            chosen = systematic_shuffled(rng_key, weights, self.num_samples)
        else:
            chosen = herded(table.z, weights, self.num_samples)
        weighted = {name: value[None] for name, value in {**table.sites, "weight": weights}.items()}
        return WeightedPosterior(
            engine=type(self).__name__,
            samples={name: value[chosen] for name, value in table.sites.items()},
            groups={**groups(present, problem), "weighted_posterior": weighted},
            info=info,
            problem=problem,
            simulations=learnt.simulations,
            table=table,
            weights=weights,
        )

    def _normalise(self, weights: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights with a sum of one, checked to be a posterior, and their effective sample size."""
        name = type(self).__name__
        weights = with_unit_sum(weights, name, self.advice)
        effective = effective_sample_size(weights)
        checks.require(
            effective >= LEAST_EFFECTIVE_SIZE - 1e-6,  # that of ten equal weights may come out as 9.999999999999998
            f"{name}: the effective sample size is {effective:.1f} of {len(weights)} simulations, below "
            f"{LEAST_EFFECTIVE_SIZE:.0f}: this is not a posterior. {self.advice}",
            checks.EffectiveSampleSizeError,
        )
        return weights, effective

    def _warn_if_out_of_distribution(self, weigher: Weigher, distances: np.ndarray) -> bool:
        """An effective sample size does not see that all simulations are far."""
        found = out_of_distribution_check(distances, weigher.between)
        if found.is_out_of_distribution:
            checks.warn(
                f"{type(self).__name__}: the observation lies away from the simulations. The nearest "
                f"{found.proportion:.2%} of them are up to {found.nearest:.4g} from it, and simulations are up to "
                f"{found.threshold:.4g} from one another ({self.measure}). The weights say which are least far, not "
                "what the parameters are. Check the observation and the simulator, or use a prior under which such "
                "data occur.",
            )
        return found.is_out_of_distribution


@dataclass(eq=False, repr=False, kw_only=True)
class KernelEngine(WeightedEngine):
    """Base of the engines that weight simulations by ridge regression on the data, with a kernel on these.

    Args:
        kernel: On outputs of the simulator, or a rule that makes one from the simulations, such as
            `EmpiricalMeasureRule()`; made by `length_scale` when left out.
        length_scale: Rule for the length scale of that kernel; the median heuristic when left out.
        regularisation: Of the regression.
        tolerance: Of the low-rank factor of the Gram matrix of the data; weights of both signs need a number.
    """

    measure = "squared distance in the space of the kernel"
    kernel: Kernel | KernelRule | None = None
    length_scale: LengthScaleRule | None = None
    regularisation: float | None = None
    tolerance: float | None = TOLERANCE

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        check_kernel(self.kernel, self.length_scale, self.regularisation)
        check_positive(tolerance=self.tolerance)

    def _kernel(self, table: ReferenceTable) -> Kernel:
        return kernel_on(table, self.kernel, self.length_scale)


@dataclass(eq=False, repr=False, kw_only=True)
class SignedEngine(KernelEngine):
    """Base of the engines whose weights have both signs; `_fit` makes a `SignedWeigher`."""

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        checks.positive_number("tolerance", self.tolerance)

    def weights(self, observations: Any) -> np.ndarray:
        """Signed weights of the simulations at many observations `(s, *event)`, `(s, m)`, as they are, from one
        factorisation."""
        weigher = self.trained.learnt.weigher
        return weigher.at_rows(weigher.table.points(observations))


def _warn_of_variances(table: ReferenceTable, weights: np.ndarray) -> None:
    """Signed weights can give variances that no distribution has."""
    variances = weights @ np.square(table.z - weights @ table.z)
    negative = [name for name, value in zip(table.coordinates.names, variances) if value <= 0]
    if negative:
        checks.warn(
            f"Under the signed weights the variance of {', '.join(negative)} is negative: means may be right, and "
            "nothing finer. Use more simulations, or another regularisation.",
        )


def _heaviest(latents: Mapping[str, np.ndarray], weights: np.ndarray) -> dict[str, np.ndarray]:
    """The joint value of discrete latents `{site: (m, *shape)}` whose weights `(m,)` have the largest sum."""
    flat = np.concatenate([value.reshape(len(value), -1) for value in latents.values()], axis=1)
    _, first, group = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    best = first[np.argmax(np.bincount(group.ravel(), weights))]
    return {name: np.asarray(value[best]) for name, value in latents.items()}
