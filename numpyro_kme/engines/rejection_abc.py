"""Rejection ABC with any discrepancy."""

from collections.abc import Callable

import numpy as np

from numpyro_kme import _checks
from numpyro_kme.engines._bank import Bank
from numpyro_kme.engines._soft import Discrepancy, checked_discrepancy, discrepancies, on_samples
from numpyro_kme.engines._weighted import WeightedEngine, Weighting
from numpyro_kme.losses.base import Loss
from numpyro_kme.mmd_estimators import Estimator
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
        quantile: Share of the simulations to accept; .02 when left out and there is no `threshold`.
        threshold: Largest discrepancy to accept.
        num_samples: Number of equally weighted draws, resampled systematically from the accepted simulations.
        simulations: Simulations made elsewhere from the prior, instead of new ones.
        on_failure: What to do when a simulation fails, as in `simulate`.
        progress_bar: Whether to show the progress of the simulations.
    Raises:
        RuntimeError: If fewer than 10 simulations are accepted.
    Cost: `m` simulations and `m` discrepancies, compiled where JAX can trace the function.
    References: Pritchard et al. (1999); Bernton et al. (2019), JRSS B, for the Wasserstein distance.
    """

    advice = "Use more simulations, or a larger `quantile` or `threshold`."

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 10_000,
        *,
        discrepancy: Estimator | Loss | Discrepancy | None = None,
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
        for name, value in {"quantile": quantile, "threshold": threshold}.items():
            _checks.real(name, value)
        _checks.require(quantile is None or threshold is None, "Give `quantile` or `threshold`, not both.")
        _checks.require(quantile is None or 0 < quantile < 1, f"`quantile` must lie between 0 and 1; got {quantile}.")
        _checks.require(
            threshold is None or bool(np.isfinite(threshold)), f"`threshold` must be finite; got {threshold}."
        )
        self.discrepancy, self.quantile, self.threshold = checked_discrepancy(discrepancy), quantile, threshold

    def _fit(self, rng_key, bank: Bank) -> None:
        _checks.require(
            self.discrepancy is not None or not bank.data_sets or bank.x.shape[2] == 1,
            f"The simulator gives data sets of shape {bank.x.shape[1:]}, whose rows have no order: give a `discrepancy`, such as "
            "the MMD estimator Quadratic(kernel).",
        )
        x = _numbers(bank, bank.x)
        spread, deviation = np.median(np.abs(x - np.median(x, axis=0)), axis=0), x.std(axis=0)
        self._spread = np.where(spread > 0, spread, np.where(deviation > 0, deviation, 1.0))

    def _weigh(self, bank, y):
        if self.discrepancy is None:
            distance = np.linalg.norm((_numbers(bank, bank.x) - _numbers(bank, y[None])) / self._spread, axis=1)
        elif on_samples(self.discrepancy):
            distance = discrepancies(self.discrepancy, bank.as_data_sets(bank.x), bank.as_data_sets(y[None])[0])
        else:
            distance = discrepancies(self.discrepancy, bank.x, y)
        if self.threshold is None:
            kept = max(1, round((self.quantile or 0.02) * len(bank)))
            threshold = float(np.sort(distance)[kept - 1])
        else:
            threshold = float(self.threshold)
        accepted = distance <= threshold
        return Weighting(accepted.astype(float), {"threshold": threshold, "accepted": int(accepted.sum())})


def _numbers(bank: Bank, x: np.ndarray) -> np.ndarray:
    """Outputs as rows of numbers; the order of draws along plates is that of their values."""
    return np.sort(x[..., 0], axis=1) if bank.data_sets else x.reshape(len(x), -1)
