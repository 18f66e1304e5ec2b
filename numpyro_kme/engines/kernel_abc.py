"""Kernel ABC: the posterior as a conditional mean embedding of the parameters given the data."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.engines._reference_table import MEASURE, apart, checked_rule, data_kernel
from numpyro_kme.engines._weighted import Weigher, WeightedEngine, Weighting
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.kernels.low_rank import TOLERANCE, LowRankRidge
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.failures import OnFailure
from numpyro_kme.simulations.plan import Plan


class KernelABC(WeightedEngine):
    r"""Kernel ABC: ridge regression of the parameters' embedding on the data.

    $E[f(\theta) \mid y] \approx \sum_j v_j f(\theta_j)$, $v = (G_Y + m \varepsilon I)^{-1} k_Y(y)$. Weights are
    signed; they are divided by their sum. No simulation has to come near the observation in every number of the data
    at once, as it has in rejection. Without a model it is `conditional_embedding`.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        kernel: On outputs of the simulator. When left out, a Gaussian with the median distance of each number as
            length scale; for draws under a plate, a Gaussian in their mean embeddings (`kernels.EmpiricalMeasure`).
        length_scale: Rule for the length scale of that Gaussian, or of the kernel inside the mean embeddings, instead
            of the median: `BayesianKernelLearning(key)`, `CrossValidation(key)`.
        regularisation: `eps`; `.01 / sqrt(m)` when left out.
        tolerance: Of the low-rank factor of `G_Y`; 1e-3 is much faster for large `m`, and loses little.
        num_samples: Number of equally weighted draws: simulations chosen by herding, which follows signed weights.
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If the effective sample size, one over the sum of squared weights, is below 10, or the weights
            sum to 0.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`).
    Cost: `m` simulations and `m r^2` for a factor of rank `r`, once; `m r` an observation.
    References: Song et al. (2009), ICML; Fukumizu, Song & Gretton (2013), JMLR 14; Nakagome et al. (2013).
    """

    measure = MEASURE
    advice = "Use more simulations, or a larger `regularisation` or length scale of the kernel."

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 1000,
        *,
        kernel: Kernel | None = None,
        length_scale: LengthScaleRule | None = None,
        regularisation: float | None = None,
        tolerance: float = TOLERANCE,
        num_samples: int = 1000,
        simulations: Simulations | None = None,
        on_failure: OnFailure = "raise",
        executor: Executor | int | None = None,
        store: str | PathLike | None = None,
        version: str | int | None = None,
        timeout: float | None = None,
        progress_bar: bool = True,
    ):
        plan = Plan(num_simulations, simulations, on_failure, executor, store, version, timeout, progress_bar)
        super().__init__(model, plan, num_samples)
        if regularisation is not None:
            checks.positive_number("regularisation", regularisation)
        checks.positive_number("tolerance", tolerance)
        self.kernel, self.length_scale = kernel, checked_rule(kernel, length_scale)
        self.regularisation, self.tolerance = regularisation, tolerance

    def _fit(self, rng_key, problem, table):
        kernel = self.kernel or data_kernel(table, self.length_scale)
        epsilon = 0.01 / np.sqrt(len(table)) if self.regularisation is None else self.regularisation
        fitted = LowRankRidge.fit(kernel.points(table.x), kernel, epsilon, tolerance=self.tolerance)
        return RidgeWeigher(table, fitted)

    def weights(self, observations: Any) -> np.ndarray:
        """Signed weights of the simulations at many observations `(s, *event)`, `(s, m)`, as they are, from one
        factorisation."""
        return self.trained.learnt.weigher.weights(observations)


@dataclass(frozen=True)
class RidgeWeigher(Weigher):
    """Signed weights by ridge regression on the data.

    Attributes:
        fitted: The regression.
    """

    fitted: LowRankRidge

    def weights(self, observations: Any) -> np.ndarray:
        """Signed weights at many observations."""
        return self._solve(self.table.points(observations))

    def weigh(self, y):
        """As `Weigher.weigh`."""
        weights = self._solve(y[None])[0]
        info = {
            "sum of weights": float(weights.sum()),
            "regularisation": float(self.fitted.regularisation),
            "rank of the data": f"{self.fitted.right.rank} of {len(self.table)}",
        }
        return Weighting(weights, self.apart(self.table.x, y[None])[0], info)

    def apart(self, x, y):
        """As `Weigher.apart`."""
        return apart(self.fitted.right.kernel, x, y)

    def _solve(self, y):
        return self.fitted.weights(self.fitted.right.kernel.points(y))
