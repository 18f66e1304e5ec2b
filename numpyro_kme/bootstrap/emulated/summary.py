"""What is known of an emulator after a bootstrap on it."""

from dataclasses import dataclass

import numpy as np

WRONG = 0.5
"""Errors of an emulated loss up to this many units of log-likelihood are harmless."""


@dataclass(frozen=True)
class EmulatorSummary:
    """What an emulator cost, and how wrong it is.

    Attributes:
        simulations: Runs of the simulator in all.
        rounds: Rounds in which they were made.
        loss_scale: One unit of log-likelihood in the loss, see `calibrated_loss_scale`.
        error: Root mean square error of the emulated loss at the replicates' minima, in units of log-likelihood, to
            first order, from simulations that the emulator has not seen; the noise of these is taken out.
        resolution: Errors below about this cannot be told from none by so many simulations.
    """

    simulations: int
    rounds: int
    loss_scale: float
    error: float
    resolution: float

    @classmethod
    def of_split_halves(
        cls, simulations: float, rounds: int, loss_scale: float, errors: np.ndarray
    ) -> "EmulatorSummary":
        """From split-half estimates of the errors, `(R, 2)`: the mean of their products has no noise in it."""
        product = errors[:, 0] * errors[:, 1]
        resolution = np.sqrt(product.std() / np.sqrt(len(product)))
        error = np.sqrt(max(product.mean(), 0.0))
        return cls(int(simulations), rounds, loss_scale, float(error), float(resolution))

    @property
    def is_wrong(self) -> bool:
        """Whether the error is larger than what is harmless, and can be told from none."""
        return self.error > max(WRONG, self.resolution)
