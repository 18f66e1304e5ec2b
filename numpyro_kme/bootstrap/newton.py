"""Damped Newton minimisation of a few parameters, for many reweightings of the data side by side.

Steps are proposed by NumPy; losses and their derivatives are evaluated in blocks of a fixed size, so that no result
depends on how many there are or where they run.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import progress
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import on_host, to_host
from numpyro_kme._core.programs import for_rows, jitted
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.kernels.base import register
from numpyro_kme.losses import grid_rows
from numpyro_kme.losses.base import TaylorExpansion, WeightedObjective
from numpyro_kme.losses.generator import BLOCK, QuadratureNodes


@shown
class Minimum(NamedTuple):
    """Where minimisations stopped, `R` of them.

    Attributes:
        u: Parameters, `(R, p)`.
        value: Losses there, `(R,)`.
        gradient: Gradients there, `(R, p)`.
        hessian: Hessians there, exact or updated, `(R, p, p)`.
        remaining: The Newton step that is left, `(R, p)`: how far from the minimum `u` still is, to first order.
        convex: Whether the Hessian is positive definite, `(R,)`.
        steps: Evaluations used, `(R,)`.
    """

    u: Any
    value: Any
    gradient: Any
    hessian: Any
    remaining: Any
    convex: Any
    steps: Any


@shown
class Control(NamedTuple):
    """When a minimisation stops and how boldly it starts.

    Attributes:
        scale: Typical sizes of the parameters `(p,)`: eigenvalues, damping and what remains are in these units.
        largest_remaining: Stop when the remaining Newton step is at most this, in units of `scale`.
        max_steps: Most evaluations.
        damping: Relative to the largest eigenvalue; the first step has a fifth of it, and 0 trusts the first Hessian.
        stride: Longest step, in units of `scale`.
    """

    scale: np.ndarray
    largest_remaining: float = 1e-3
    max_steps: int = 30
    damping: float = 0.0
    stride: float = 10.0


def minimise(
    evaluate: Callable, starts: np.ndarray, hessians: np.ndarray, control: Control, updates: bool = True
) -> Minimum:
    r"""Minimise several losses by damped Newton steps `-(|H| + damping I)^-1 g`, each from its start.

    `|H|` has the absolute eigenvalues, so saddles repel. A step that does not lower the loss is taken back and the
    damping raised. Where `evaluate` gives Hessians these are used; otherwise `hessians` are the first ones, followed by
    symmetric rank-one updates. Without `updates` they stay, and a step is good if it lowers `g' |H|^-1 g`: where
    simulated points jump, the loss is a staircase and says nothing of small steps, and differences of gradients are
    those of its stairs.

    Args:
        evaluate: `(rows, points)` to the losses `(k,)` of the rows `(k,)` at their points `(k, p)`, their gradients
            `(k, p)` and, where that is cheap, Hessians `(k, p, p)`.
        starts: First parameters `(R, p)`.
        hessians: First Hessians `(R, p, p)`.
        control: Scales and stopping.
        updates: Update the Hessian by differences of gradients.
    """
    num, scale = len(starts), control.scale
    nowhere = np.full(num, np.inf), np.zeros_like(starts), hessians, np.full_like(starts, np.inf)
    state: Any = [np.array(starts), *map(np.array, nowhere), np.zeros(num, bool), np.zeros(num, int)]
    trial, damping, predicted = np.array(starts), np.full(num, float(control.damping)), np.zeros(num)
    rows = np.arange(num)
    while len(rows):
        best, at = Minimum._make(leaf[rows] for leaf in state), trial[rows]
        value, gradient, *exact = evaluate(rows, at)
        with np.errstate(all="ignore"):
            fresh, kept = (exact[0], best.hessian) if exact else (best.hessian, best.hessian)
            if updates and not exact:
                fresh = rank_one(best.hessian, at - best.u, gradient - best.gradient)
                kept = np.where(_finite(fresh)[:, None, None], fresh, best.hessian)
            lower = value < best.value
            if not updates:
                left = _propose(gradient, fresh, np.zeros(len(rows)), control)[1]
                lower = (best.steps == 0) | (_dot(gradient, left) > _dot(best.gradient, best.remaining))
            good = lower & _finite(gradient) & _finite(fresh)
            gain = (best.value - value) / np.maximum(predicted[rows], 1e-300)
            raised = np.maximum(4.0 * damping[rows], 1e-2)
            lowered = np.where(gain > 0.75, 0.2 * damping[rows], np.where(gain > 0.25, damping[rows], raised))
            damping[rows] = np.where(good, np.where(lowered < 1e-6, 0.0, lowered), raised)
            new, old = (at, value, gradient, fresh), (best.u, best.value, best.gradient, kept)
            kept_rows: Any = [np.where(good.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old)]
            step, full, predicted[rows], convex = _propose(kept_rows[2], kept_rows[3], damping[rows], control)
            for leaf, found in zip(state, (*kept_rows, full, convex, best.steps + 1)):
                leaf[rows] = found
            trial[rows] = kept_rows[0] + step
            near = convex & (np.abs(full / scale).max(axis=1) <= control.largest_remaining)
            rows = rows[(best.steps + 1 < control.max_steps) & ~near & (damping[rows] < 1e8)]
    return Minimum._make(state)


def _propose(gradient, hessian, damping, control) -> tuple[np.ndarray, ...]:
    """For each row the next step, the whole Newton step, the fall of the loss that the next one promises, and whether
    the Hessian is positive definite."""
    units = hessian * control.scale[:, None] * control.scale
    sound = _finite(units)[:, None]
    values, vectors = np.linalg.eigh(np.where(sound[..., None], 0.5 * (units + np.swapaxes(units, 1, 2)), 0.0))
    values = np.where(sound, values, np.nan)
    top = np.abs(values).max(axis=1, keepdims=True)
    slopes = _times(np.swapaxes(vectors, 1, 2), gradient * control.scale)
    # where the largest eigenvalue is below this, as far from all data, the loss is constant and no step is taken
    curvature = np.where(top > 1e-30, np.maximum(np.abs(values), 1e-9 * top), 1.0)
    step = -_times(vectors, slopes / (curvature + damping[:, None] * top))
    step *= np.minimum(1.0, control.stride / np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-300))
    full = -_times(vectors, slopes / curvature)
    along = _times(np.swapaxes(vectors, 1, 2), step)
    predicted = -(_dot(slopes, along) + 0.5 * _dot(values, np.square(along)))
    return step * control.scale, full * control.scale, predicted, (values > 1e-9 * top).all(axis=1)


def rank_one(hessian: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Symmetric rank-one updates of Hessians `(R, p, p)` by steps `(R, p)` and the changes of gradients along them."""
    miss = change - _times(hessian, step)
    along = _dot(miss, step)
    usable = np.abs(along) > 1e-8 * np.linalg.norm(miss, axis=1) * np.linalg.norm(step, axis=1)
    by = np.where(usable, 1.0 / np.where(usable, along, 1.0), 0.0)
    return hessian + by[:, None, None] * miss[:, :, None] * miss[:, None]


def _times(matrices, vectors):
    return (matrices @ vectors[..., None])[..., 0]


def _dot(a, b):
    return np.sum(a * b, axis=1)


def _finite(rows):
    return np.isfinite(rows).reshape(len(rows), -1).all(axis=1)


@register
class Problems:
    """One objective to minimise for many reweightings of the data, each from its own start.

    Attributes:
        objective: What to minimise.
        nodes: Sets of quadrature nodes, `(sets, M, ...)`.
        reweightings: Weights and node sets, `R` of them.
    """

    objective: WeightedObjective
    nodes: QuadratureNodes
    reweightings: Reweightings

    def rows(self, index: np.ndarray) -> "Problems":
        """Select reweightings."""
        return replace(self, reweightings=self.reweightings.rows(index))

    def solve(
        self, starts: np.ndarray, hessians: np.ndarray, control: Control, updates: Any = None, progress_bar=False
    ) -> Minimum:
        """Minimise for every reweighting from its start, with exact Hessians where these are cheap.

        Args:
            starts: `(R, p)` or `(p,)`.
            hessians: First Hessians, `(R, p, p)` or `(p, p)`.
            control: Scales and stopping.
            updates: Update Hessians that are not evaluated; when left out, where the objective is smooth.
            progress_bar: Show a bar of the replicates.
        """
        updates, num = self.objective.is_smooth if updates is None else updates, len(self.reweightings)
        starts, hessians = (np.broadcast_to(v, (num, *np.shape(v)[-k:])) for v, k in ((starts, 1), (hessians, 2)))
        return _solve(self, starts, hessians, control, updates, progress_bar)

    def expand(self, points: np.ndarray) -> TaylorExpansion:
        """Loss, gradient and Hessian for every reweighting at its point, `(R, p)` or `(p,)`."""
        return self._evaluated("expand", points)

    def hessians(self, points: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Hessians for every reweighting at its point, `(R, p)` or `(p,)`; of an embedding that has no cheap ones
        central differences of gradients over `1e-5` of the scale `(p,)`, by the program of these."""
        if not self.objective.hessian_by_slopes:
            return self.expand(points).hessian
        dim, num = len(scale), len(self.reweightings)
        away = 1e-5 * np.diag(scale)
        around = np.broadcast_to(points, (num, dim))[:, None] + np.concatenate([away, -away])
        _, slopes = self.rows(np.repeat(np.arange(num), 2 * dim)).slopes(around.reshape(-1, dim))
        right, left = np.split(slopes.reshape(num, 2 * dim, dim), 2, axis=1)
        differences = (right - left) / (2e-5 * scale[:, None])
        return 0.5 * (differences + np.swapaxes(differences, 1, 2))

    def report(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Further numbers of the loss for every reweighting at its point, by name."""
        return self._evaluated("report", points)

    def slopes(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loss and gradient for every reweighting at its point, `(R, p)` or `(p,)`."""
        return self._evaluated("slope", points)

    def values(self, points: np.ndarray) -> np.ndarray:
        """Loss for every reweighting at its point, `(R, p)` or `(p,)`."""
        return self._evaluated("value", points)

    def values_together(self, points: np.ndarray) -> np.ndarray:
        """Losses `(R, J)` at the same points `(J, p)` for all; reweightings `16 i` to `16 i + 15` must share a node
        set, and share its simulations."""
        if self.objective.by_numpy:
            return np.stack([self.values(point) for point in points], axis=1)
        return _over_blocks(_together, self, points[:, None])

    def _evaluated(self, method, points):
        """`objective.value`, `slope`, `expand` or `report` for every reweighting, by name."""
        points = np.broadcast_to(points, (len(self.reweightings), np.shape(points)[-1]))
        if self.objective.by_numpy:
            return grid_rows.evaluate(method, self.objective, self.nodes, self.reweightings, points)
        return _over_blocks(partial(_at_points, method), self, points)


@on_host
def _solve(problems, starts, hessians, control, updates, progress_bar):
    method, results = "expand" if problems.objective.has_cheap_hessian else "slope", []
    several = 4 * BLOCK * jax.local_device_count()  # side by side
    for first in progress.progress(range(0, len(starts), several), "bootstrapping", progress_bar):

        def evaluate(rows, points, first=first):
            return problems.rows(first + rows)._evaluated(method, points)

        part = slice(first, first + several)
        results.append(minimise(evaluate, starts[part], hessians[part], control, updates))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


@on_host
@jitted
def offsets(objective: WeightedObjective, reweightings: Reweightings) -> jax.Array:
    """The part of each loss that the parameters do not change and `value` leaves out, `(R,)`."""
    return objective.offsets(jnp.asarray(reweightings.weights), reweightings.extra)


@on_host
def _over_blocks(function, problems, points):
    """Call a compiled function on blocks of reweightings, each with its nodes, on the local devices in turn; the last
    one is padded. The programs are those of any number of node sets. `points` are `(R, p)` or, for all of them,
    `(J, 1, p)`."""
    reweightings, devices = problems.reweightings, jax.local_devices()
    objective = jax.tree.map(_strong, problems.objective)
    fixed = [jax.device_put(objective, device) for device in devices]
    results = []
    for number, first in enumerate(range(0, len(reweightings), BLOCK)):
        index = np.minimum(np.arange(first, first + BLOCK), len(reweightings) - 1)
        count = min(BLOCK, len(reweightings) - first)
        block, where = reweightings.rows(index), number % len(devices)
        if points.ndim == 2:
            rows = objective.nodes_of(problems.nodes, block.sets, block.weights), block, points[index]
        else:  # one set for all of them
            rows = problems.nodes.of_sets(block.sets[:1]), block, points[:, 0]
        results.append(function(fixed[where], *jax.device_put((count, *rows), devices[where])))
    results = [to_host(result) for result in results]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(reweightings)], *results)


def _strong(leaf):
    """Python's numbers are weakly typed: `Gaussian(1.5)` and the same kernel widened would be compiled apart."""
    return np.asarray(leaf) if isinstance(leaf, float) else leaf


@partial(jitted, static_argnums=0)
def _at_points(method, objective, count, nodes, block, points):
    """`objective.value`, `slope`, `expand` or `report`, by name, for the first `count` reweightings of the block in
    turn, each with its nodes."""

    def one(own, of_data, u):
        return getattr(objective, method)(objective.reduce(of_data.weights, of_data.extra), u, own)

    return for_rows(one, count, (nodes, block, points))


@jitted
def _together(objective, count, nodes, block, points):
    """Losses of all reweightings of the block at each point, with the nodes of its first one."""
    own = jax.tree.map(lambda leaf: leaf[0], nodes)
    reduced = jax.vmap(lambda row: objective.reduce(row.weights, row.extra))(block)
    found = jax.lax.map(lambda u: jax.vmap(lambda one: objective.value(one, u, own))(reduced), points)
    return found.T
