"""DR-ABC: summaries learnt by regression from the embeddings of data sets, then soft ABC."""

from collections.abc import Callable

import numpy as np

from numpyro_kme import _checks, _linalg
from numpyro_kme.engines._bank import Bank
from numpyro_kme.engines._data_kernels import checked_rule, data_kernel
from numpyro_kme.engines._soft import soft_weights
from numpyro_kme.engines._weighted import WeightedEngine, Weighting
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.length_scales import REGULARISATIONS, LengthScaleRule, ridges
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.failures import OnFailure


class DistributionRegressionABC(WeightedEngine):
    r"""DR-ABC: soft ABC with summaries learnt by ridge regression from data sets to parameters.

    $s(y) = \bar z + k(y)^\top (K + m \lambda I)^{-1} (z - \bar z)$ predicts the coordinates `z` of the parameters from a data set, with a
    kernel on data sets, such as a Gaussian in their mean embeddings; $w_i \propto \exp(-|s_{-i}(x_i) - s(y)|^2 / \epsilon)$. The summaries of
    the simulations are predicted without themselves, in closed form, so they err as that of the observation does. Weights are
    positive.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        kernel: On outputs of the simulator; as in `KernelABC` when left out. For data sets that are one event `(n, d)`, give
            `kernels.EmpiricalMeasure`.
        length_scale: Rule for the kernel that is chosen when `kernel` is left out, as in `KernelABC`.
        regularisation: `lambda`; when left out, the power of ten, 1e-9 to 1, with the least leave-one-out error.
        epsilon: Width, in squared units of coordinates; when left out, such that the effective sample size is `max(50, m / 50)`.
        num_samples: Number of equally weighted draws, resampled systematically from the simulations.
        simulations: Simulations made elsewhere from the prior, instead of new ones.
        on_failure: What to do when a simulation fails, as in `simulate`.
        progress_bar: Whether to show the progress of the simulations.
    Raises:
        RuntimeError: If the effective sample size is below 10, or the kernel is zero between the observation and all simulations.
    Cost: `m` simulations, `m^2` kernels and one eigendecomposition, about `9 m^3`, once; `m` kernels an observation.
    References: Mitrovic, Sejdinovic & Teh (2016), ICML.
    """

    advice = "Use more simulations, a larger `epsilon`, or a prior nearer to what is known."

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 1000,
        *,
        kernel: Kernel | None = None,
        length_scale: LengthScaleRule | None = None,
        regularisation: float | None = None,
        epsilon: float | None = None,
        num_samples: int = 1000,
        simulations: Simulations | None = None,
        on_failure: OnFailure = "raise",
        progress_bar: bool = True,
    ):
        super().__init__(
            model,
            num_simulations,
            num_samples=num_samples,
            simulations=simulations,
            on_failure=on_failure,
            progress_bar=progress_bar,
        )
        for name, value in {"regularisation": regularisation, "epsilon": epsilon}.items():
            if value is not None:
                _checks.positive_number(name, value)
        self.kernel, self.length_scale = kernel, checked_rule(kernel, length_scale)
        self.regularisation, self.epsilon = regularisation, epsilon

    def _fit(self, rng_key, bank: Bank) -> None:
        self._kernel = self.kernel or data_kernel(bank, self.length_scale)
        self._points = self._kernel.points(bank.x)
        self._centre = bank.z.mean(axis=0)
        gram = _linalg.on_host(lambda kernel, x: kernel.gram(x), self._kernel, self._points)
        self._size = float(np.diagonal(gram).mean())
        choices = REGULARISATIONS if self.regularisation is None else np.array([self.regularisation])
        fits = ridges(gram, bank.z - self._centre, choices)
        self._lam, self._coefficients, residuals = min(fits, key=lambda fit: float(np.mean(np.square(fit[2]))))
        self.summaries = bank.z - residuals
        self._error = np.sqrt(np.mean(np.square(residuals), axis=0))

    def _weigh(self, bank, y):
        row = _linalg.on_host(
            lambda kernel, a, b: kernel.gram(a, b), self._kernel, self._kernel.points(y[None]), self._points
        )
        if np.abs(row).max() <= np.finfo(float).eps * self._size:
            return Weighting(np.zeros(len(bank)), {})
        summary = self._centre + row[0] @ self._coefficients
        weights, epsilon = soft_weights(np.sum(np.square(self.summaries - summary), axis=1), self.epsilon)
        info = {"epsilon": epsilon, "regularisation": float(self._lam)}
        return Weighting(weights, info | {"leave-one-out error of the summaries": self._error, "summary": summary})
