"""What a posterior bootstrap returns: its replicates, each with what is known of its minimisation."""

from dataclasses import dataclass

import numpy as np

from numpyro_kme.bootstrap.fit import Fit
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.generator import QuadratureNodes

DISAGREE = 0.3
"""Derivatives further than this from the differences, relative to them, are not used."""

WRONG = 0.5
"""Errors of an emulated loss up to this many units of log-likelihood are harmless."""

TOLERANCE = 0.01
"""A replicate has converged when its remaining Newton step is at most this many posterior standard deviations."""


@dataclass(frozen=True)
class Derivatives:
    """How a loss is differentiated, and why.

    Attributes:
        automatic: Whether by automatic differentiation; else by large differences with common random numbers.
        disagreement: Relative difference between the two, `(p,)`, or nothing if the simulator has no derivatives.
    """

    automatic: bool
    disagreement: np.ndarray | None

    def __str__(self) -> str:
        how = "automatic" if self.automatic else "large differences with common random numbers"
        if self.disagreement is None:
            return f"{how}: the simulator has no derivatives"
        apart = f"{self.disagreement.max():.2g}"
        return f"{how}: automatic and large ones are {apart} apart (relative; at most {DISAGREE} is trusted)"


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


@dataclass(frozen=True)
class Quadrature:
    """How far the minima move when the quadrature nodes are doubled and the grid, if any, is halved.

    Attributes:
        shift: `(R, p)` moves of `R` replicates that converged, to first order, in posterior standard deviations.
    """

    shift: np.ndarray

    @property
    def noise(self) -> float:
        """Largest root mean square move of a parameter, in posterior standard deviations; NaN if none converged."""
        if not len(self.shift):
            return float("nan")
        return float(np.sqrt(np.mean(np.square(self.shift), axis=0)).max())


@dataclass(frozen=True)
class Replicates:
    """Samples of the posterior bootstrap, unconstrained, with what is known of each.

    Attributes:
        u: Minimisers, `(B, p)`.
        value: Losses, `(B,)`.
        remaining: Newton step left, the largest over parameters, in posterior standard deviations, `(B,)`.
        converged: Whether that is at most 0.01, the loss is convex there and not above its value at the full-data
            minimum.
        steps: Evaluations used, `(B,)`.
        moved: Whether a restart found a lower minimum, which is the one kept.
        linear: One-step approximations, `(B, p)`; on an emulator, the first starts.
        numbers: Further numbers of the loss, such as `mixing_proportion` and its error were it one, by name.
        compared: How many replicates were restarted elsewhere.
        quadrature: The check of the quadrature nodes and the grid; on an emulator, how far its networks are apart.
        derivatives: How the loss was differentiated.
        fit: The minimum on the full data.
        nodes: The quadrature nodes; the full data used the first set.
        reweightings: Data weights, centering points and node set of each replicate.
        anchors: Prior anchor of each replicate, `(B, p)`, where the loss is minimised on an emulator.
        emulator: What is known of the emulator, if there is one.
    """

    u: np.ndarray
    value: np.ndarray
    remaining: np.ndarray
    converged: np.ndarray
    steps: np.ndarray
    moved: np.ndarray
    linear: np.ndarray
    numbers: dict[str, np.ndarray]
    compared: int
    quadrature: Quadrature
    derivatives: Derivatives
    fit: Fit
    nodes: QuadratureNodes
    reweightings: Reweightings
    anchors: np.ndarray | None = None
    emulator: EmulatorSummary | None = None
