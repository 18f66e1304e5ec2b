r"""The likelihood of statistics that kernel ridge regression learns from data sets, series, whatever a kernel compares.

$s(y) = \bar z + k(y)^\top (K + m \lambda I)^{-1} (z - \bar z)$ predicts the coordinates of the parameters, and the
likelihood of $s(y)$ is learnt in their place. The statistics of the simulations are predicted without themselves, in
closed form, so that they err as that of the observation does.
"""

import math
from dataclasses import field
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.length_scales import KernelRule
from numpyro_kme.kernels.regression import DistributionRegression
from numpyro_kme.likelihoods.base import Form, Surrogate
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.transformed import TransformedSurrogate


@frozen
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

    def fit(self, z, x, *, measure=None, y=None) -> Surrogate:
        """As `Form.fit`."""
        return self.fit_given(np.asarray(z), np.zeros((len(np.asarray(z)), 0)), x)

    def fit_given(self, z, given, x) -> Surrogate:
        """As `Form.fit_given`; the statistics predict `z` alone."""
        kernels = self.kernel.candidates(x, z) if isinstance(self.kernel, KernelRule) else [self.kernel]
        regression = DistributionRegression.fit_best(kernels, x, z, self.regularisation)
        inner = self.form.fit_given(z, given, np.asarray(regression.held_out))
        return KernelStatisticsSurrogate(regression, inner, np.shape(x)[1:])


@register
class KernelStatisticsSurrogate(TransformedSurrogate):
    """A learnt likelihood of statistics that are learnt, too.

    Attributes:
        regression: Predicts coordinates from outputs.
        inner: The likelihood of such predictions.
        event_shape: Of an output (static).
    """

    regression: DistributionRegression
    inner: Surrogate
    event_shape: tuple[int, ...] = field(metadata=dict(static=True))

    def transformed(self, rows: np.ndarray) -> np.ndarray:
        """Predictions `(R, D)`."""
        checks.require(
            rows.shape[1] == math.prod(self.event_shape),
            f"An output must have the shape {self.event_shape} of the simulations; got {rows.shape[1]} numbers. Put "
            "rows of NaN behind a shorter one, `kernels.pad`.",
        )
        return self.regression.predict(rows.reshape(-1, *self.event_shape))

    def describe(self):
        """As `Surrogate.describe`."""
        told = f"{len(self.regression.error)}, learnt by kernel ridge regression of the coordinates on the outputs"
        return {
            "statistics": told,
            "leave-one-out error of the statistics": np.asarray(self.regression.error),
            **self.inner.describe(),
        }

    def require_density(self) -> None:
        """Raise: the statistics have a density, and the output has none."""
        raise checks.explained(
            "KernelStatistics learns a density of statistics and not of the output, so there is no marginal or "
            "predictive density of that; posteriors do not need one."
        )
