r"""The likelihood of statistics that kernel ridge regression learns from data sets, series, whatever a kernel compares.

$s(y) = \bar z + k(y)^\top (K + m \lambda I)^{-1} (z - \bar z)$ predicts the coordinates of the parameters, and the
likelihood of $s(y)$ is learnt in their place. The statistics of the simulations are predicted without themselves, in
closed form, so that they err as that of the observation does.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.saving import saveable
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.kernel_rules import KernelRule
from numpyro_kme.kernels.regression import DistributionRegression
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans


@shown
@saveable
@dataclass(frozen=True)
class KernelStatistics(Form):
    """Settings of the likelihood of statistics that a kernel on whole outputs gives.

    Args:
        kernel: On outputs: `EmpiricalMeasure` compares data sets, `Signature` series; or a rule that makes one from the
            simulations, such as `EmpiricalMeasureRule()`.
        form: Of the likelihood of the statistics, one for each coordinate of the parameters.
        regularisation: `lambda`; when left out, the power of ten, 1e-9 to 1, with the least leave-one-out error.
    References:
        Fearnhead & Prangle (2012), JRSS B 74, for posterior means as statistics; Mitrovic, Sejdinovic & Teh (2016),
        ICML, for kernel regression from data sets.
    """

    paper = "mitrovic2016drabc"

    kernel: Kernel | KernelRule
    form: Form = field(default_factory=ResidualKernelMeans)
    regularisation: float | None = None

    def __post_init__(self):
        what = "a kernel on outputs, such as EmpiricalMeasure(Gaussian(1.0), 1.0), or a rule, EmpiricalMeasureRule()"
        checks.instance("kernel", self.kernel, Kernel | KernelRule, what)
        checks.instance("form", self.form, Form, "a form of the likelihood, such as ResidualKernelMeans()")

    def points(self, x: Any) -> Any:
        """Outputs as they are."""
        return x

    def point(self, y: Any) -> Any:
        """One output as it is."""
        return y

    def fit(self, z, x, *, measure=None, y=None) -> Surrogate:
        """As `Form.fit`."""
        return self.fit_given(np.asarray(z), np.zeros((len(np.asarray(z)), 0)), x)

    def fit_given(self, z, given, x) -> Surrogate:
        """As `Form.fit_given`; the statistics predict `z` alone."""
        kernels = self.kernel.candidates(x, z) if isinstance(self.kernel, KernelRule) else [self.kernel]
        tried = [DistributionRegression.fit(x, z, kernel, self.regularisation) for kernel in kernels]
        regression = min(tried, key=lambda found: float(np.sum(np.square(found.error))))
        return KernelStatisticsSurrogate(regression, self.form.fit_given(z, given, np.asarray(regression.held_out)))


@register
class KernelStatisticsSurrogate(Surrogate):
    """A learnt likelihood of statistics that are learnt, too.

    Attributes:
        regression: Predicts coordinates from outputs.
        inner: The likelihood of such predictions.
    """

    regression: DistributionRegression
    inner: Surrogate

    @property
    def dim(self):
        """Number of coordinates."""
        return self.inner.dim

    def point(self, y: Any) -> Any:
        """One output as it is."""
        return y

    def at(self, y: Any) -> LikelihoodAt:
        """The likelihood at one observation `(*event)`, concrete."""
        checks.concrete(y=y)
        return self.inner.at(self.regression.predict(np.asarray(y)[None])[0])

    def at_rows(self, rows: np.ndarray) -> LikelihoodAt:
        """As `Surrogate.at_rows`."""
        return self.inner.at_rows(self.regression.predict(rows))

    def describe(self):
        """As `Surrogate.describe`."""
        told = f"{len(self.regression.error)}, learnt by kernel ridge regression of the coordinates on the outputs"
        return {
            "statistics": told,
            "leave-one-out error of the statistics": np.asarray(self.regression.error),
            **self.inner.describe(),
        }

    def describe_observation(self, y: Any) -> str:
        """As `Surrogate.describe_observation`."""
        return self.inner.describe_observation(self.regression.predict(np.asarray(y)[None])[0])

    def dependence(self) -> np.ndarray:
        """As `Surrogate.dependence`."""
        return self.inner.dependence()

    def location_error(self, z: np.ndarray, power: float = 1.0) -> float:
        """As `Surrogate.location_error`."""
        return self.inner.location_error(z, power)

    def require_density(self) -> None:
        """Raise: the statistics have a density, and the output has none."""
        raise checks.explained(
            "KernelStatistics learns a density of statistics and not of the output, so there is no marginal or "
            "predictive density of that; posteriors do not need one."
        )
