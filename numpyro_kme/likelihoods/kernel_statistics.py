r"""The likelihood of statistics that kernel ridge regression learns from data sets, series, whatever a kernel compares.

$s(y) = \bar z + k(y)^\top (K + m \lambda I)^{-1} (z - \bar z)$ predicts the coordinates of the parameters, and the
likelihood of $s(y)$ is learnt in their place. The statistics of the simulations are predicted without themselves, in
closed form, so that they err as that of the observation does. Where outputs are of any length, the logarithm of the
length is a statistic before the others: the mean of 20 rows scatters three times as much as that of 200.
"""

import math
from dataclasses import field

import numpy as np

from numpyro_kme._core import checks, frozen
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.data_sets import lengths
from numpyro_kme.kernels.length_scales import KernelRule
from numpyro_kme.kernels.low_rank import DistributionRegression
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.learnt_statistics import Learnt, LearntStatistics, OfLearnt
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans


@frozen
class KernelStatistics(OfLearnt):
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

    def learn(self, z, x, y):
        """Implement `OfLearnt.learn`, of outputs which end before their last row where NaN stands behind them.

        Rows of `y` that are not whole, before its end, are left out of `x`, too. Where the outputs are of several
        lengths, the logarithm of the length is a statistic before the others, which are learnt given it.
        """
        x = x.reshape(len(x), *(x.shape[1:] or (1,)))
        gaps = () if y is None else gaps_of(np.reshape(y, x.shape[1:]))
        event_shape, x = x.shape[1:], np.delete(x, gaps, axis=1)
        size = lengths(x)
        rows = "row" if not gaps else f"row beside those that the observation lacks, {', '.join(map(str, gaps))}"
        none = int(np.sum(size == 0))
        checks.require(not none, f"{none} of the {len(x)} outputs have no {rows}. Leave them out.")
        kernels = self.kernel.candidates(x, z) if isinstance(self.kernel, KernelRule) else [self.kernel]
        regression = DistributionRegression.fit_best(kernels, x, z, self.regularisation)
        ends, table = (int(size.min()), int(size.max())), np.asarray(regression.held_out)
        table = table if ends[0] == ends[1] else np.concatenate([np.log(size)[:, None], table], axis=1)
        return Learnt(KernelRegressed(regression, event_shape, ends, gaps), table)


def gaps_of(y: np.ndarray) -> tuple[int, ...]:
    """Rows of an output `(longest, *shape)` before its end that hold NaN."""
    whole = ~np.isnan(y).reshape(len(y), -1).any(axis=1)
    return tuple(np.flatnonzero(~whole[: int(lengths(y[None])[0])]).tolist())


@register
class KernelRegressed(LearntStatistics):
    """Statistics that kernel ridge regression gives, and how long the outputs are.

    Attributes:
        regression: Predicts coordinates from outputs.
        event_shape: Shape of an output (static).
        ends: Lengths of the shortest and the longest simulation (static).
        gaps: Rows that are left out of all outputs, since the observation lacks them (static).
    """

    records = True

    regression: DistributionRegression
    event_shape: tuple[int, ...] = field(metadata=dict(static=True))
    ends: tuple[int, int] = field(metadata=dict(static=True))
    gaps: tuple[int, ...] = field(default=(), metadata=dict(static=True))

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The log length where it varies, and the coordinates that are predicted."""
        means = [f"mean of coordinate {i}" for i in range(len(self.regression.error))]
        return tuple(means if self.ends[0] == self.ends[1] else ["log length", *means])

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Log lengths where they vary, and predictions, `(R, k)`."""
        x = self._outputs(rows)
        found = self.regression.predict(x)
        return found if self.ends[0] == self.ends[1] else np.concatenate([np.log(lengths(x))[:, None], found], axis=1)

    def seen(self, entries: np.ndarray) -> np.ndarray:
        """All of them: NaN at the end is the end."""
        return np.ones(len(self.names), bool)

    def _outputs(self, rows: np.ndarray) -> np.ndarray:
        """Outputs `(R, *event)` without the rows that are left out.

        Raises:
            ValueError: If one has another shape, no row, NaN before its end, or another length than all simulations.
        Warns:
            UserWarning: If one is shorter or longer than all simulations.
        """
        checks.require(
            rows.shape[1] == math.prod(self.event_shape),
            f"An output must have the shape {self.event_shape}; got {rows.shape[1]} numbers. Use `kernels.pad`.",
        )
        whole = rows.reshape(-1, *self.event_shape)
        x = np.delete(whole, self.gaps, axis=1)
        size, (shortest, longest) = lengths(x), self.ends
        checks.require(bool(size.all()), "The observation has no row: its first row is NaN, where an output ends.")
        known = f"without the rows {list(self.gaps)}" if self.gaps else "from whole outputs"
        for i in np.flatnonzero(np.isnan(x).reshape(len(x), -1).any(axis=1)):
            checks.require(
                not gaps_of(x[i]),
                f"The observation lacks numbers of its rows {list(gaps_of(whole[i]))}, before its end, and the "
                f"likelihood was learnt {known}. Learn it again: `run` the engine, or pass `y` to fit_likelihood.",
            )
        outside = size[(size < shortest) | (size > longest)]
        sentence = f"The observation has {outside[:1].sum()} rows, and the simulations have {shortest} to {longest}"
        varied = not len(outside) or shortest < longest
        checks.require(varied, f"{sentence}: nothing was learnt of others. Let the simulator draw lengths around that.")
        if len(outside):
            checks.warn(f"{sentence}: the likelihood there rests on no simulation. Simulate lengths around that.")
        return x

    def describe(self):
        """Implement `LearntStatistics.describe`."""
        shortest, longest = self.ends
        told = f"{shortest} to {longest} in the simulations; a statistic before the others, which are learnt given it"
        rows = ", ".join(map(str, self.gaps))
        return {
            "statistics": f"{len(self.regression.error)}, learnt by kernel ridge regression of the coordinates on the "
            "outputs",
            **({"lengths": told} if shortest < longest else {}),
            **({"rows left out": f"{rows}, which the observation lacks, of all simulations"} if self.gaps else {}),
            "leave-one-out error of the statistics": np.asarray(self.regression.error),
        }
