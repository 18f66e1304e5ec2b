"""Rejection ABC with any discrepancy."""

from collections.abc import Callable

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.abc import weighting
from numpyro_kme.abc.weighting import Discrepancy, discrepancies_to, dissimilarities, rejection_weights
from numpyro_kme.embeddings.mmd_estimators import Estimator
from numpyro_kme.engines._bank import Bank
from numpyro_kme.engines._data_kernels import checked_rule, quadratic_by
from numpyro_kme.engines._weighted import WeightedEngine, Weighting, fewer_compared
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.losses.base import Loss
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.failures import OnFailure


class RejectionABC(WeightedEngine):
    r"""Rejection ABC: the simulations from the prior whose outputs are nearest to the observation.

    Args:
        model: A NumPyro model with one observed `Simulator` site.
        num_simulations: Number `m` of draws from the prior, each simulated once.
        discrepancy: A function of one simulated output and the observation that gives a number, less where they are more alike.
            It gets `(n, d)` for `n` draws under a plate, otherwise the event of the simulator. An estimator of the MMD,
            `Quadratic(kernel)`, and `Wasserstein(p)`, whose p-th power it is, get `(n, d)` always. When left out, the Euclidean
            distance of outputs, each number divided by its median absolute deviation over the simulations, by its standard
            deviation where that is 0, and by 1 where it is constant; scalar draws under a plate are sorted first.
        length_scale: Rule such as `MedianHeuristic()`; with one the discrepancy is the squared MMD with a Gaussian kernel of that
            length scale, as in `K2ABC`.
        quantile: Share of the simulations to accept; .02 when left out and there is no `threshold`.
        threshold: Largest discrepancy to accept.
        num_samples: Number of equally weighted draws, resampled systematically from the accepted simulations.
        simulations: Simulations made elsewhere from the prior, instead of new ones; others raise an error.
        on_failure: What to do when a simulation fails, as in `simulate`.
        progress_bar: Whether to show the progress of the simulations.
    Raises:
        RuntimeError: If fewer than 10 simulations are accepted.
    Warns:
        UserWarning: If the observation lies away from the simulations (`remoteness`).
    Cost: `m` simulations; `m` discrepancies an observation, compiled where JAX can trace the function, and once, to see whether it
        lies away, at most half as many again between simulations. Estimators of the MMD as in `K2ABC`.
    References: Pritchard et al. (1999); Bernton et al. (2019), JRSS B, for the Wasserstein distance.
    """

    measure = "discrepancy, or for an estimator of the MMD minus log of the cosine between mean embeddings"
    advice = "Use more simulations, or a larger `quantile` or `threshold`."

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 10_000,
        *,
        discrepancy: Estimator | Loss | Discrepancy | None = None,
        length_scale: LengthScaleRule | None = None,
        quantile: float | None = None,
        threshold: float | None = None,
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
        weighting.check_acceptance(quantile, threshold)
        if discrepancy is not None:
            weighting.check_discrepancy(discrepancy)
        self.length_scale = checked_rule(discrepancy, length_scale, "discrepancy", object, "a discrepancy")
        self.discrepancy, self.quantile, self.threshold = discrepancy, quantile, threshold

    def _fit(self, rng_key, bank: Bank) -> None:
        self._by_numbers = self.discrepancy is None and self.length_scale is None
        checks.require(
            not (self._by_numbers and bank.data_sets) or bank.x.shape[2] == 1,
            f"The simulator gives data sets of shape {bank.x.shape[1:]}, whose rows have no order: give a `discrepancy`, such as "
            "the MMD estimator Quadratic(kernel).",
        )
        self._discrepancy, self._x = self.discrepancy, self._as_compared(bank.x)
        if self._by_numbers:
            spread = np.median(np.abs(self._x - np.median(self._x, axis=0)), axis=0)
            deviation = self._x.std(axis=0)
            self._spread = np.where(spread > 0, spread, np.where(deviation > 0, deviation, 1.0))

    def _weigh(self, bank, y):
        if self.length_scale is not None:
            self._discrepancy = quadratic_by(self.length_scale, bank, bank.as_data_sets(y[None])[0])
            self._between = None
        observed = self._as_compared(y[None])
        found = self._discrepancies(self._x, observed[0])
        weights, threshold = rejection_weights(found, quantile=self.quantile, threshold=self.threshold)
        bounded = isinstance(self._discrepancy, Estimator)
        distances = dissimilarities(self._discrepancy, self._x, observed)[0] if bounded else found
        return Weighting(weights, distances, {"threshold": threshold, "accepted": int((weights > 0).sum())})

    def _num_compared(self, m):
        return super()._num_compared(m) if self._by_numbers else fewer_compared(m)

    def _apart(self, x, y):
        x, y = self._as_compared(x), self._as_compared(y)
        if isinstance(self._discrepancy, Estimator):
            return dissimilarities(self._discrepancy, x, y)
        return np.stack([self._discrepancies(x, one) for one in y])

    def _discrepancies(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if self._discrepancy is None:
            return np.linalg.norm((x - y) / self._spread, axis=1)
        return discrepancies_to(y, x, self._discrepancy)

    def _as_compared(self, x: np.ndarray) -> np.ndarray:
        """Outputs as the discrepancy gets them; without one as rows of numbers, and draws along plates in the order of their values."""
        if self._by_numbers:
            return np.sort(x[..., 0], axis=1) if self._bank.data_sets else x.reshape(len(x), -1)
        by_sets = self.length_scale is not None or isinstance(self.discrepancy, Estimator | Loss)
        return self._bank.as_data_sets(x) if by_sets else x
