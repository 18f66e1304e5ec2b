"""Kernel Bayes' rule on a model: the prior may differ from where the simulations were made."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from numpyro_kme import _checks
from numpyro_kme.embeddings import MeanEmbedding
from numpyro_kme.engines._bank import arguments_to_coordinates
from numpyro_kme.engines._data_kernels import data_kernel
from numpyro_kme.engines._weighted import WeightedEngine, Weighting
from numpyro_kme.kernel_bayes import KernelBayesRule
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.low_rank import TOLERANCE
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.failures import OnFailure


class KernelBayes(WeightedEngine):
    r"""Kernel Bayes' rule: posterior weights of simulations that may come from anywhere.

    The prior of the model enters as an embedding $\sum_j \gamma_j k_\Theta(\cdot, u_j)$ of draws, so `simulations` may have been made at
    other parameters, such as a grid, an earlier bank or a prior of former days. The posterior is $\sum_i \rho_i k_\Theta(\cdot, \theta_i)$,
    $\rho = R\, k_Y(y)$, with `R` of `KernelBayesRule`. Weights are signed; they are divided by their sum.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        kernel: On outputs of the simulator; as in `KernelABC` when left out.
        parameter_kernel: On coordinates of the parameters, in which the prior is about standard normal; a Gaussian with the
            median distance as length scale when left out.
        regularisation: `eps`; `.01 / m` when left out.
        delta: `2 eps` when left out, as in the paper: best for means. A smaller one, `1e-4 / m`, gives better variances where the
            posterior is narrow; a warning says where a variance comes out negative.
        num_prior_draws: Draws that embed the prior; as many as simulations when left out.
        tolerance: Of the low-rank factors of Gram matrices; 1e-3 is much faster for large `m`, and loses little.
        num_samples: Number of equally weighted draws: simulations chosen by herding, which follows signed weights.
        simulations: Simulations made elsewhere, at any parameters, instead of new ones.
        on_failure: What to do when a simulation fails, as in `simulate`.
        progress_bar: Whether to show the progress of the simulations.
    Raises:
        RuntimeError: If the effective sample size, one over the sum of squared weights, is below 10, or the weights sum to 0.
    Cost: `m` simulations and `m r^2` for factors of rank `r`, once; `m r` an observation.
    References: Fukumizu, Song & Gretton (2013), JMLR 14.
    """

    advice = "Use more simulations, or a larger `regularisation` or length scale of the kernels."

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 1000,
        *,
        kernel: Kernel | None = None,
        parameter_kernel: Kernel | None = None,
        regularisation: float | None = None,
        delta: float | None = None,
        num_prior_draws: int | None = None,
        tolerance: float = TOLERANCE,
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
        for name, value in {"regularisation": regularisation, "delta": delta}.items():
            if value is not None:
                _checks.positive(name, value)
        _checks.positive("tolerance", tolerance)
        _checks.require(
            num_prior_draws is None or num_prior_draws >= 2,
            f"`num_prior_draws` must be at least 2; got {num_prior_draws}.",
        )
        self.kernel, self.parameter_kernel = kernel, parameter_kernel
        self.regularisation, self.delta, self.tolerance = regularisation, delta, tolerance
        self.num_prior_draws = num_prior_draws

    def _fit(self, rng_key: jax.Array, bank) -> None:
        kernel = self.kernel or data_kernel(bank)
        draws = self.problem.draw(rng_key, self.num_prior_draws or len(bank))
        u = arguments_to_coordinates(bank.coordinates, draws.arguments[self.problem.site()])
        prior = MeanEmbedding(self.parameter_kernel or Gaussian(median_heuristic(bank.z)), u)
        self.rule = KernelBayesRule.fit(
            bank.z,
            kernel.points(bank.x),
            kernel,
            prior,
            0.01 / len(bank) if self.regularisation is None else self.regularisation,
            delta=self.delta,
            tolerance=self.tolerance,
        )

    def weights(self, observations: Any) -> np.ndarray:
        """Signed weights of the simulations at many observations `(s, *event)`, `(s, m)`, as they are, from one factorisation."""
        _ = self.result
        return self._solve(np.stack([self._bank.point(y) for y in np.asarray(observations)]))

    def _weigh(self, bank, y):
        weights = self._solve(y[None])[0]
        epsilon, delta = np.asarray(self.rule.regularisation)
        info = {
            "sum of weights": float(weights.sum()),
            "regularisation": float(epsilon),
            "delta": float(delta),
        }
        return Weighting(weights, info | {"rank of the data": f"{self.rule.right.rank} of {len(bank)}"})

    def _solve(self, y):
        return self.rule.weights(self.rule.right.kernel.points(y))
