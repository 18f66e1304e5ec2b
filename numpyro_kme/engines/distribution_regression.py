"""DR-ABC: summaries learnt by regression from the embeddings of data sets, then soft ABC."""

from dataclasses import dataclass

import numpy as np

from numpyro_kme.abc.regression import DistributionRegression
from numpyro_kme.abc.weighting import soft_abc_weights
from numpyro_kme.engines._weighers import Weigher, Weighting, apart
from numpyro_kme.engines._weighted import KernelEngine
from numpyro_kme.engines.base import check_positive


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
        kernel: On outputs of the simulator; as in `KernelABC` when left out. For data sets that are one event `(n,
            d)`, give `kernels.EmpiricalMeasure`.
        length_scale: Rule for the kernel that is chosen when `kernel` is left out, as in `KernelABC`.
        regularisation: `lambda`; when left out, the power of ten, 1e-9 to 1, with the least leave-one-out error.
        epsilon: Width, in squared units of coordinates; when left out, such that the effective sample size is `max(50,
            m / 50)`.
        tolerance: Of the low-rank factor of `K`; 1e-3 is much faster for large `m`, and loses little.
        num_samples: Number of equally weighted draws, resampled systematically from the simulations.
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If the effective sample size is below 10, or the kernel is zero between the observation and all
            simulations.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`).
    Cost: `m` simulations, `m r` kernels and `m r^2` for a factor of rank `r`, once; `r` kernels an observation.
    References: Mitrovic, Sejdinovic & Teh (2016), ICML.
    """

    paper = "mitrovic2016drabc"
    advice = "Use more simulations, a larger `epsilon`, or a prior nearer to what is known."
    epsilon: float | None = None

    def __post_init__(self, simulations):
        super().__post_init__(simulations)
        check_positive(epsilon=self.epsilon)

    def _fit(self, rng_key, problem, table):
        settings = self._kernel(table), self.regularisation
        fitted = DistributionRegression.fit(table.x, table.z, *settings, tolerance=self.tolerance)
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
        info = {
            "epsilon": epsilon,
            "regularisation": float(self.fitted.regularisation),
            "leave-one-out error of the summaries": self.fitted.error,
            "summary": summary,
            "rank of the data": f"{self.fitted.features.rank} of {len(self.table)}",
        }
        return Weighting(weights, self.apart(self.table.x, y[None])[0], info)

    def apart(self, x, y):
        """As `Weigher.apart`."""
        return apart(self.fitted.features.kernel, x, y)
