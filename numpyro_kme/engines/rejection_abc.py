"""Rejection ABC with any discrepancy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.abc.discrepancies import Discrepancy, check_discrepancy
from numpyro_kme.abc.weighting import check_acceptance, rejection_weights
from numpyro_kme.embeddings.mmd import Estimator
from numpyro_kme.engines._weighers import DiscrepancyWeigher, NumbersWeigher, check_rule
from numpyro_kme.engines._weighted import WeightedEngine
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.losses.base import Loss


@dataclass(eq=False, repr=False, kw_only=True)
class RejectionABC(WeightedEngine):
    r"""Rejection ABC: the simulations from the prior whose outputs are nearest to the observation.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        discrepancy: A function of one simulated output and the observation that gives a number, less where they are
            more alike. It gets `(n, d)` for `n` draws under a plate, otherwise the event of the simulator. An
            estimator of the MMD, `Quadratic(kernel)`, and `Wasserstein(p)`, whose p-th power it is, get `(n, d)`
            always. When left out, the Euclidean distance of outputs, each number divided by its median absolute
            deviation over the simulations, by its standard deviation where that is 0, and by 1 where it is constant;
            scalar draws under a plate are sorted first.
        length_scale: Rule such as `MedianHeuristic()`; with one the discrepancy is the squared MMD with a Gaussian
            kernel of that length scale, as in `K2ABC`.
        quantile: Fraction of the simulations to accept; 0.02 when left out and there is no `threshold`.
        threshold: Largest discrepancy to accept.
        num_samples: Number of equally weighted draws, resampled systematically from the accepted simulations.
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    Raises:
        RuntimeError: If fewer than 10 simulations are accepted.
    Warns:
        UserWarning: If the observation lies away from the simulations (`out_of_distribution_check`).
    Cost: `m` simulations; `m` discrepancies an observation, compiled where JAX can trace the function, and once, to
    see whether it
        lies away, at most half as many again between simulations. Estimators of the MMD as in `K2ABC`.
    References: Pritchard et al. (1999); Bernton et al. (2019), JRSS B, for the Wasserstein distance.
    """

    paper = "pritchard1999population"
    measure = "discrepancy, or for an estimator of the MMD minus log of the cosine between mean embeddings"
    advice = "Use more simulations, or a larger `quantile` or `threshold`."

    num_simulations: int = field(default=10_000, kw_only=False)
    discrepancy: Estimator | Loss | Discrepancy | None = None
    length_scale: LengthScaleRule | None = None
    quantile: float | None = None
    threshold: float | None = None

    def __post_init__(self, simulations):
        super().__post_init__(simulations)
        check_acceptance(self.quantile, self.threshold)
        if self.discrepancy is not None:
            check_discrepancy(self.discrepancy)
        check_rule(self.length_scale, self.discrepancy, "discrepancy", object, "a discrepancy")

    def _fit(self, rng_key, problem, table):
        by_numbers = self.discrepancy is None and self.length_scale is None
        checks.require(
            not (by_numbers and table.data_sets) or table.x.shape[2] == 1,
            f"The simulator gives data sets of shape {table.x.shape[1:]}, whose rows have no order: give a "
            "`discrepancy`, such as the MMD estimator Quadratic(kernel).",
        )
        accept = partial(accepted, quantile=self.quantile, threshold=self.threshold)
        if by_numbers:
            return NumbersWeigher(table, accept)
        return NearestWeigher(table, self.discrepancy, self.length_scale, accept)


def accepted(discrepancies, quantile, threshold) -> tuple[np.ndarray, dict[str, Any]]:
    """Equal weights of the simulations with the least discrepancies `(m,)`, and what a person reads."""
    weights, threshold = rejection_weights(discrepancies, quantile=quantile, threshold=threshold)
    return weights, {"threshold": threshold, "accepted": int((weights > 0).sum())}


@dataclass(frozen=True)
class NearestWeigher(DiscrepancyWeigher):
    """Weights of the simulations with the least discrepancy from the observation.

    Attributes:
        accept: Gives weights, as `accepted`.
    """

    accept: Callable

    def weights_of(self, discrepancies):
        """As `DiscrepancyWeigher.weights_of`."""
        return self.accept(discrepancies)
