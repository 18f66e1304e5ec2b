r"""The kernel means likelihood of Hsu & Ramos (2019), here the published form: settings, and `fit`.

$q(y \mid z) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(z)$ with kernels $\kappa_\epsilon$ on data and $\ell$
on coordinates.
"""

from dataclasses import field, replace
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, frozen
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import Batched, Kernel, register, take
from numpyro_kme.kernels.data_sets import EmpiricalMeasure
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.published.learning import (
    Hyperparameters,
    Learner,
    LearningObjective,
    LearntHyperparameters,
    TrainingSet,
    learn,
)
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut, summarise
from numpyro_kme.likelihoods.published.solves import MOST_DENSE, DenseSolve, LowRankSolve, Solve
from numpyro_kme.likelihoods.published.surrogate import KernelMeansSurrogate, as_one_point
from numpyro_kme.likelihoods.statistics import StatisticsTransform


@frozen
class KernelMeans(Form):
    r"""The published form of the kernel means likelihood: settings, and `fit`.

    Args:
        objective: What the hyperparameters maximise: `LeaveOneOut()`, or the published
            `MarginalLikelihood()`.
        data_kernel: The epsilon-kernel; learning starts from its hyperparameters. When left out, a `Gaussian` with one
            length scale for each statistic. `EmpiricalMeasure` compares data sets, `GaussianProcessPath` time series.
        learner: How the hyperparameters are searched; `Learner(tied=Tied())` learns one `eps` and one `beta_0`, as the
            papers do.
        hyperparameters: Use these instead of learning.
        solve: `DenseSolve()`, exact, or `LowRankSolve()`, for many simulations; when left out, dense up to 10,000
            simulations.
        standardise: Whether statistics given as an array `(m, n)` are standardised (robust z-scores, arcsinh) before
            the data kernel sees them; its length scales are then in standard deviations. Other data never are.
        length_scale: Rule for the length scales of the Gaussian data kernel, which are then fixed, on statistics as the
            kernel sees them; the targets are coordinates. `beta` and `lam` are learnt. The soft likelihood is as wide
            as they are: a median is far wider than what is learnt.
    References:
        Hsu & Ramos (2019), AISTATS.
    """

    paper = "hsu2019bayesian"

    objective: LearningObjective = field(default_factory=LeaveOneOut)
    data_kernel: Kernel | None = None
    learner: Learner = field(default_factory=Learner)
    hyperparameters: Hyperparameters | None = None
    solve: Solve | None = None
    standardise: bool = True
    length_scale: LengthScaleRule | None = None

    def __post_init__(self):
        rule = self.length_scale
        checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as CrossValidation(key)")
        checks.require(
            rule is None or (self.data_kernel is None and self.hyperparameters is None),
            "Give `length_scale`, or `data_kernel` or `hyperparameters`, not both.",
        )

    def points(self, x: Any) -> Any:
        """Read outputs `(n, *event)` as the data kernel does."""
        return super().points(x) if self.data_kernel is None else self.data_kernel.points(x)

    def fit(self, z: ArrayLike, x: Any, *, measure: Measure | None = None, y: Any = None) -> "KernelMeansSurrogate":
        """Learn a surrogate from simulations.

        Args:
            z: Coordinates, `(m, D)`, from any proposal; `m >= 2`.
            x: Raw statistics `(m, n)`, or a pytree of `m` data points that `data_kernel` compares.
            measure: The prior in coordinates; only `MarginalLikelihood` needs it.
            y: The observation; only `MarginalLikelihood` needs it.
        Raises:
            ValueError: For tables that disagree or are not finite, and statistics that are all constant.
            numpy.linalg.LinAlgError: If `L + m lam I` cannot be factorised.
        Warns:
            UserWarning: For statistics that are constant over the simulations; they are left out.
        Cost: that of `solve`; learning takes some tens of gradients on `learner.subset` simulations and about fifteen
            on `learner.most`, `O(m^3)` each.
        """
        checks.concrete(z=z, x=x, measure=measure, y=y)
        z, x = _simulations(z, x)
        transform = StatisticsTransform.fit(x) if self.standardise and TrainingSet(z, x).is_table else None
        data = x if transform is None else transform.forward(x)
        point = None if y is None else as_one_point(transform, jax.tree.map(np.asarray, y))
        training = TrainingSet(z, data, measure, point)
        learnt = self._learn(training)
        solve = self.solve or (DenseSolve() if len(z) <= MOST_DENSE else LowRankSolve())
        solution = solve.fit(learnt.hyper, z)
        summary = summarise(learnt.hyper, z, data)
        return KernelMeansSurrogate(z, data, learnt.hyper, solution, transform, summary, learnt.at_bounds)

    def again(self, learnt: "KernelMeansSurrogate", z, x, rows, *, measure=None, y=None) -> "KernelMeansSurrogate":
        """Implement `Form.again`: with the same hyperparameters."""
        known = replace(self, hyperparameters=learnt.hyper, length_scale=None)
        return known.fit(z[rows], take(x, rows), measure=measure, y=y)

    def _learn(self, training) -> LearntHyperparameters:
        if self.hyperparameters is not None:
            given = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self.hyperparameters)
            return LearntHyperparameters(given, np.nan, "not learnt")
        kernel, dim = self.data_kernel, training.z.shape[1]
        if kernel is None:
            checks.require(
                training.is_table,
                "`x` must have shape (simulations, statistics), unless `data_kernel` compares other data; got "
                f"{jax.tree.map(np.shape, training.data)}.",
            )
            size = training.data.shape[1]
            scale = 0.4 * np.sqrt(size) if self.length_scale is None else self.length_scale(training.data, training.z)
            kernel = Gaussian(np.broadcast_to(scale, size))
        template = Hyperparameters(Gaussian(np.full(dim, np.sqrt(dim))), kernel, np.array(1e-2))
        if isinstance(kernel, EmpiricalMeasure):
            return learn_empirical(self.objective, training, template, self.learner)
        return learn(self.objective, training, template, self.learner, fixed=self.length_scale is not None)


def _simulations(z, x) -> tuple[np.ndarray, Any]:
    """Both tables on the host, checked."""
    checks.table("z", z, min_rows=2)
    z, x = np.array(z, np.float64), jax.tree.map(np.array, x)
    if isinstance(x, np.ndarray):
        x = x.astype(np.float64)
        checks.require(
            x.ndim >= 2 and len(x) == len(z),
            f"`z` and `x` must have one row for each simulation; got shapes {z.shape} and {x.shape}.",
        )
        checks.sound("x", x, "Leave out the simulations that failed.")
    return z, x


@register
class KnownDistances(Batched):
    """Gaussian kernel whose "points" are the rows of a matrix of squared distances that is known already."""

    length_scale: ArrayLike

    def log_gram(self, x, y=None):
        """`-x / (2 eps^2)` for squared distances `x` `(m, m)`."""
        return -0.5 * x / self.length_scale / self.length_scale


def learn_empirical(
    objective: LearningObjective, training: TrainingSet, template: Hyperparameters, learner: Learner
) -> LearntHyperparameters:
    """Learn with an `EmpiricalMeasure` data kernel, its inner hyperparameters included.

    The inner kernel's hyperparameters are multiplied by a common factor `2^k`, the best of `k = -4, -2, 0, 2, 4`; at
    each, squared MMDs between all simulated data sets are computed once, and `eps`, `beta` and `lam` learnt on them.
    `eps` starts at 0.4 of the median distance. All this with `learner.subset` simulations, or `learner.most` where
    hyperparameters are tied.

    Cost: half of `m^2 size^2` inner kernel evaluations for each of five inner length scales.
    """
    given: Any = template.data_kernel
    total, training = len(training.z), training.random_subset(learner.most if learner.tied else learner.subset)
    learner = replace(learner, subset=len(training.z), most=len(training.z))  # distances have no further subsets

    def at(step: int) -> LearntHyperparameters:
        inner = jax.tree.map(lambda leaf: 2.0**step * np.asarray(leaf, np.float64), given.inner)
        squared = np.asarray(replace(given, inner=inner).squared_mmd(training.data), np.float64)
        start = 0.4 * np.sqrt(np.median(squared[np.triu_indices(len(squared), 1)]))
        known = replace(template, data_kernel=KnownDistances(np.array(start)))
        found = learn(objective, replace(training, data=squared), known, learner)
        learnt: Any = found.hyper.data_kernel
        data_kernel = replace(given, inner=inner, length_scale=learnt.length_scale)
        lam = found.hyper.regularisation * len(training.z) / total
        return found._replace(hyper=replace(found.hyper, data_kernel=data_kernel, regularisation=lam))

    return max(map(at, range(-4, 5, 2)), key=lambda found: found.score)
