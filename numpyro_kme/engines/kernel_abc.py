"""Kernel ABC: the posterior as a conditional mean embedding of the parameters given the data."""

from dataclasses import dataclass

import numpy as np

from numpyro_kme.engines._weighers import SignedWeigher
from numpyro_kme.engines._weighted import SignedEngine
from numpyro_kme.kernels.low_rank import LowRankRidge


@dataclass(eq=False, repr=False, kw_only=True)
class KernelABC(SignedEngine):
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
        regularisation: `eps`; `0.01 / sqrt(m)` when left out.
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

    paper = "nakagome2013kernel"
    advice = "Use more simulations, or a larger `regularisation` or length scale of the kernel."

    def _fit(self, rng_key, problem, table):
        kernel = self._kernel(table)
        epsilon = 0.01 / np.sqrt(len(table)) if self.regularisation is None else self.regularisation
        return SignedWeigher(table, LowRankRidge.fit(kernel.points(table.x), kernel, epsilon, tolerance=self.tolerance))
