r"""Minimisers of squared distances between an emulated model and many reweightings of the data, all at once."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from numpyro_kme.bootstrap.emulator import Ellipsoid, Emulator
from numpyro_kme.losses import mmd

MOST_STEPS = 100
"""Newton steps of a minimisation; those that converge take about ten."""
MOST_DAMPING = 1e6
"""Damping, relative to the largest eigenvalue, at which steps are too short to go on."""
LARGEST_REMAINING = 1e-4
"""A minimum has converged when its next step is at most this long, in standard deviations of the region; a step of
L-BFGS that is, in those of the prior, is no progress."""


class Minima(NamedTuple):
    """Minima of `R` reweightings.

    Attributes:
        x: `(R, p)`.
        loss: `(R,)`, without what the anchor adds.
        total: What was minimised, in units of the loss, `(R,)`.
        hessian: Of what was minimised, `(R, p, p)`.
        converged: `(R,)`.
    """

    x: np.ndarray
    loss: np.ndarray
    total: np.ndarray
    hessian: np.ndarray
    converged: np.ndarray


@dataclass(frozen=True)
class Targets:
    """Embeddings of reweighted data, and how the model is compared with them.

    Attributes:
        data: `d`, `(R, r)`.
        fit_proportion: Minimise over a mixing proportion of the model.
        anchors: Points `z` of the prior, which counts as further squares, `weight |x - z|^2 / 2`, `(R, p)`.
        weight: Weight of the prior, in units of the loss.
    """

    data: np.ndarray
    fit_proportion: bool
    anchors: Any = None
    weight: float = 0.0

    def loss(self, m: np.ndarray) -> np.ndarray:
        """Squared distances of embeddings `(R, r)`."""
        q, s = np.vecdot(m, m), np.vecdot(m, self.data)
        return np.vecdot(self.data, self.data) + mmd.discrepancy(q, s, self.fit_proportion)

    def total(self, m: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Losses of embeddings `(R, r)` at parameters `(R, p)`, with the prior."""
        away = x - self.anchors
        return self.loss(m) + 0.5 * self.weight * np.vecdot(away, away)

    def proportion(self, m: np.ndarray) -> np.ndarray:
        """Mixing proportions, `(R,)`."""
        return mmd.proportion(np.vecdot(m, m), np.vecdot(m, self.data))

    def pull(self, m: np.ndarray) -> np.ndarray:
        """Derivatives of the loss in the embedding, `(R, r)`."""
        (by_q, by_s), _ = mmd.derivatives(np.vecdot(m, m), np.vecdot(m, self.data), self.fit_proportion)
        return 2.0 * by_q[:, None] * m + by_s[:, None] * self.data

    def expand(self, emulator: Emulator, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Totals `(R,)`, gradients `(R, p)` and Hessians `(R, p, p)`."""
        m, tangents = emulator.at(x), emulator.tangents(x)
        (by_q, _), second = mmd.derivatives(np.vecdot(m, m), np.vecdot(m, self.data), self.fit_proportion)
        pull = self.pull(m)
        slopes = np.stack([2.0 * np.vecdot(tangents, m[:, None]), np.vecdot(tangents, self.data[:, None])], axis=2)
        hessian = 2.0 * by_q[:, None, None] * tangents @ np.swapaxes(tangents, 1, 2)
        hessian += slopes @ np.moveaxis(second, 2, 0) @ np.swapaxes(slopes, 1, 2) + emulator.curvature(x, pull)
        gradient = np.vecdot(tangents, pull[:, None]) + self.weight * (x - self.anchors)
        return self.total(m, x), gradient, hessian + self.weight * np.eye(x.shape[1])

    def rows(self, rows: np.ndarray) -> "Targets":
        """Select reweightings."""
        return replace(self, data=self.data[rows], anchors=self.anchors[rows])


def minimise(targets: Targets, emulator: Emulator, region: Ellipsoid, starts: np.ndarray) -> Minima:
    """Minimise every reweighting from a start of its own `(R, p)`, by damped Newton steps inside the region."""
    x = region.project(starts)
    state = [x, *targets.expand(emulator, x)]
    damping, converged = np.full(len(x), 1e-3), np.zeros(len(x), bool)
    width = np.sqrt(np.square(region.root).sum(axis=1))
    for _ in range(MOST_STEPS):
        x, total, gradient, hessian = state
        newton = region.project(x + _step(x, gradient, hessian, region, np.zeros(len(x)))) - x
        converged = np.abs(newton / width).max(axis=1) <= LARGEST_REMAINING
        rows = np.flatnonzero(~converged & (damping <= MOST_DAMPING))
        if not len(rows):
            break
        step = _step(x[rows], gradient[rows], hessian[rows], region, damping[rows])
        trial = region.project(x[rows] + step)
        found = [trial, *targets.rows(rows).expand(emulator.rows(rows), trial)]
        better = found[1] < total[rows]
        damping[rows] *= np.where(better, 0.2, 5.0)
        for old, new in zip(state, found):
            old[rows[better]] = new[better]
    x, total, _, hessian = state
    return Minima(x, targets.loss(emulator.at(x)), total, hessian, converged)


def _step(x, gradient, hessian, region, damping):
    """Newton steps with positive eigenvalues, along the parameters that are not held at a bound of the box."""
    held = ((x <= region.low) & (gradient > 0.0)) | ((x >= region.high) & (gradient < 0.0))
    free = ~held
    inner = hessian * free[:, :, None] * free[:, None, :] + np.eye(x.shape[1]) * held[:, :, None]
    # in units of the region, so that one damping serves all directions
    units = np.sqrt(np.square(region.root).sum(axis=1))
    values, vectors = np.linalg.eigh(inner * units[:, None] * units)
    size = np.abs(values).max(axis=1, keepdims=True)
    values = np.maximum(np.abs(values), 1e-12 * size) + damping[:, None] * size
    along = np.einsum("rpq,rp->rq", vectors, gradient * free * units)
    return -np.einsum("rpq,rq->rp", vectors, along / values) * units
