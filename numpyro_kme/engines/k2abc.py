"""K2-ABC: soft approximate Bayesian computation with the maximum mean discrepancy."""

from dataclasses import dataclass

from numpyro_kme._core import checks
from numpyro_kme.abc.weighting import soft_abc_weights
from numpyro_kme.embeddings.mmd import Estimator
from numpyro_kme.engines._weighers import DiscrepancyWeigher, check_rule
from numpyro_kme.engines._weighted import WeightedEngine
from numpyro_kme.engines.base import check_positive
from numpyro_kme.kernels.length_scales import LengthScaleRule


@dataclass(eq=False, repr=False, kw_only=True)
class K2ABC(WeightedEngine):
    r"""K2-ABC: simulations from the prior weighted by how close their data sets are to the observed one.

    $w_i \propto \exp\big(-\widehat{\mathrm{MMD}}^2(x_i, y) / \epsilon\big)$, with data sets of draws in any order, and
    no summary statistics. A data set is one event `(n,)` or `(n, d)` of the simulator, or `n` draws under a plate.
    Weights are positive.

    The posterior is that of a likelihood widened by $\epsilon$: it is exact in no limit but that of $\epsilon \to 0$,
    with ever more simulations and data sets so large that the discrepancy loses nothing.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        estimator: Of the squared MMD: `Quadratic`, `LinearTime` or `Fourier`. `Quadratic` when left out, with a
            Gaussian kernel whose length scale is the median distance within the observed data.
        length_scale: Rule for that length scale instead of the median: `BayesianKernelLearning(key)` on the observed
            data, or `CrossValidation(key)` on simulated draws, which are to predict their parameters.
        epsilon: Width, in units of the squared MMD; when left out, such that the effective sample size is `max(50, m /
            50)`.
        num_samples: Number of equally weighted draws, resampled systematically from the simulations.
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If the effective sample size is below 10.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`).
    Cost: `m` simulations; `m` estimates of the MMD an observation, and at most `3 m` mean kernels between data sets,
    which say
        whether it lies away.
    References: Park, Jitkrittum & Sejdinovic (2016), AISTATS.
    """

    paper = "park2016k2abc"
    measure = "minus log of the cosine between mean embeddings"
    advice = "Use more simulations, a larger `epsilon`, or a prior nearer to what is known."

    estimator: Estimator | None = None
    length_scale: LengthScaleRule | None = None
    epsilon: float | None = None

    def __post_init__(self, simulations):
        super().__post_init__(simulations)
        check_positive(epsilon=self.epsilon)
        what = "an estimator of the MMD: Quadratic(kernel), LinearTime(kernel) or a Fourier"
        check_rule(self.length_scale, self.estimator, "estimator", Estimator, what)

    def _fit(self, rng_key, problem, table):
        size = table.as_data_sets(table.x).shape[1]
        checks.require(
            size >= 2,
            f"K2ABC compares data sets; the simulator gives one of {size} points. Put several draws under a plate.",
        )
        return SoftWeigher(table, self.estimator, self.length_scale, self.epsilon)


@dataclass(frozen=True)
class SoftWeigher(DiscrepancyWeigher):
    """Soft weights by the squared MMD between data sets.

    Attributes:
        epsilon: Width of the weights, or None.
    """

    epsilon: float | None

    def weights_of(self, discrepancies):
        """As `DiscrepancyWeigher.weights_of`."""
        weights, epsilon = soft_abc_weights(discrepancies, self.epsilon)
        return weights, {"epsilon": epsilon}
