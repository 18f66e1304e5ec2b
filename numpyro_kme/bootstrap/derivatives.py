"""Whether a simulator's derivatives can be trusted: a comparison with large finite differences."""

from dataclasses import dataclass

import numpy as np

from numpyro_kme.bootstrap import batched
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.differenced import Differenced
from numpyro_kme.losses.generator import QuadratureNodes

DISAGREE = 0.3
"""Derivatives further than this from the differences, relative to them, are not used."""


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


def compare_derivatives(
    objective: WeightedObjective, nodes: QuadratureNodes, reweightings: Reweightings, u: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Relative difference `(p,)` between gradients of the loss and differences of the loss, for several reweightings.

    Differences over `s` and `s / 2` are extrapolated, so that curvature does not count.

    Args:
        objective: A loss bound to data, with automatic derivatives.
        nodes: Sets of quadrature nodes.
        reweightings: Those to compare for; they share a node set.
        u: Parameters `(p,)`, near the minimum of the full data.
        steps: Difference steps `(p,)`, about a posterior standard deviation.
    Returns:
        Infinite where a gradient is not finite.
    """
    automatic = batched.slopes_together(objective, nodes, reweightings, u)[1]
    far = batched.slopes_together(Differenced(objective, steps), nodes, reweightings, u)[1]
    near = batched.slopes_together(Differenced(objective, 0.5 * steps), nodes, reweightings, u)[1]
    differences = (4.0 * near - far) / 3.0
    error = np.linalg.norm(automatic - differences, axis=0)
    return np.where(np.isfinite(error), error / np.maximum(np.linalg.norm(differences, axis=0), 1e-300), np.inf)
