r"""The kernel means likelihood of Hsu & Ramos (2019), here the published form: settings, and `fit`.

$q(y \mid z) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(z)$ with kernels $\kappa_\epsilon$ on data and $\ell$
on coordinates.
"""

from dataclasses import field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, frozen
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import Kernel, take
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.base import Form, simulated
from numpyro_kme.likelihoods.published.learning import Hyperparameters, Learner, LearningObjective, TrainingSet, learn
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
            kernel sees them; the targets are coordinates. `beta` and `lam` are learnt. The likelihood is blurred by
            these length scales, and a median is far wider than what is learnt.
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
        checks.instance("learner", self.learner, Learner, "Learner(...)")
        rule = self.length_scale
        checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as CrossValidation(key)")
        alone = rule is None or (self.data_kernel is None and self.hyperparameters is None)
        checks.require(alone, "Give `length_scale`, or `data_kernel` or `hyperparameters`, not both.")

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
        z, x = simulated(z, x)
        transform = StatisticsTransform.fit(x) if self.standardise and TrainingSet(z, x).is_table else None
        data = x if transform is None else transform.forward(x)
        point = None if y is None else as_one_point(transform, jax.tree.map(np.asarray, y))
        if self.hyperparameters is None:
            hyper, _, at_bounds = self._learn(TrainingSet(z, data, measure, point))
        else:
            hyper, at_bounds = jax.tree.map(partial(np.asarray, dtype=np.float64), self.hyperparameters), "not learnt"
        solve = self.solve or (DenseSolve() if len(z) <= MOST_DENSE else LowRankSolve())
        solution, summary = solve.fit(hyper, z), summarise(hyper, z, data)
        return KernelMeansSurrogate(z, data, hyper, solution, transform, summary, at_bounds)

    def again(self, learnt: "KernelMeansSurrogate", z, x, rows, *, measure=None, y=None) -> "KernelMeansSurrogate":
        """Implement `Form.again`: with the same hyperparameters."""
        known = replace(self, hyperparameters=learnt.hyper, length_scale=None)
        return known.fit(z[rows], take(x, rows), measure=measure, y=y)

    def _learn(self, training):
        kernel, dim = self.data_kernel, training.z.shape[1]
        if kernel is None:
            shapes = jax.tree.map(np.shape, training.data)
            checks.require(training.is_table, f"`x` must have shape (m, n) without a `data_kernel`; got {shapes}.")
            size = training.data.shape[1]
            scale = 0.4 * np.sqrt(size) if self.length_scale is None else self.length_scale(training.data, training.z)
            kernel = Gaussian(np.broadcast_to(scale, size))
        template = Hyperparameters(Gaussian(np.full(dim, np.sqrt(dim))), kernel, np.array(1e-2))
        return learn(self.objective, training, template, self.learner, fixed=self.length_scale is not None)
