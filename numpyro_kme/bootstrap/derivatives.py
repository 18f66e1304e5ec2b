"""Whether a simulator's derivatives can be trusted: measured, at several parameters, against large differences."""

from dataclasses import dataclass

import jax
import numpy as np

from numpyro_kme.bootstrap import lanes
from numpyro_kme.bootstrap.lanes import Tasks
from numpyro_kme.bootstrap.weights import DirichletProcess, draw_weights
from numpyro_kme.losses.base import Objective
from numpyro_kme.losses.differenced import Differenced
from numpyro_kme.losses.generator import BLOCK, Nodes

STEP = 0.1
"""First difference step, in standard deviations of the starting points."""

DISAGREE = 0.3
"""Derivatives further than this from the differences, relative to them, are not used."""


@dataclass(frozen=True)
class Derivatives:
    """How a loss is differentiated, and why.

    Attributes:
        automatic: Whether by automatic differentiation; else by large differences with common noise.
        disagreement: `(p,)` relative difference between the two, or nothing if the simulator has no derivatives.
    """

    automatic: bool
    disagreement: np.ndarray | None

    def __str__(self) -> str:
        how = "automatic" if self.automatic else "large differences with common noise"
        if self.disagreement is None:
            return f"{how}: the simulator has no derivatives"
        return f"{how}: the two differ by {self.disagreement.max():.2g} (relative; at most {DISAGREE} is trusted)"


def choose_derivatives(
    rng_key: jax.Array, objective: Objective, nodes: Nodes, points: np.ndarray, scale: np.ndarray
) -> tuple[Objective, Derivatives]:
    """Compare gradients of the loss with differences of the loss, for random weights, and keep what can be trusted.

    Differences over `s` and `s / 2` are extrapolated, so that curvature does not count as disagreement.

    Args:
        rng_key: Draws the weights.
        objective: A loss bound to data.
        nodes: Sets of noise nodes; the first is used.
        points: `(K, p)` parameters to compare at.
        scale: `(p,)` typical sizes of the parameters.
    Returns:
        The objective, wrapped in `Differenced` where its derivatives fail, and what was measured.
    """
    wide = Differenced(objective, STEP * scale)
    if not objective.generator.differentiable:
        return wide, Derivatives(False, None)
    points = points[:BLOCK]
    weights = draw_weights(DirichletProcess(), rng_key, np.arange(len(points)), objective.data)
    tasks = Tasks(weights, None, np.zeros(len(points), int))
    automatic = lanes.slopes(objective, nodes, tasks, points)[1]
    far = lanes.slopes(wide, nodes, tasks, points)[1]
    near = lanes.slopes(Differenced(objective, 0.5 * STEP * scale), nodes, tasks, points)[1]
    differences = (4.0 * near - far) / 3.0
    usable = np.isfinite(automatic).all(axis=1) & np.isfinite(differences).all(axis=1)
    if not usable.any():
        return objective, Derivatives(True, np.full(len(scale), np.nan))
    error = np.linalg.norm((automatic - differences)[usable], axis=0)
    size = np.linalg.norm(differences[usable], axis=0)
    disagreement = error / np.maximum(size, 1e-6 * (size * scale).max() / scale)
    trusted = bool((disagreement <= DISAGREE).all())
    return (objective if trusted else wide), Derivatives(trusted, disagreement)
