"""Damped Newton minimisation of a few parameters, and the same for many reweightings of the data in blocks.

Blocks have a fixed size, so that no result depends on how many there are or where they run.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import compat
from numpyro_kme._core.host import on_host, to_host
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.kernels.base import register
from numpyro_kme.losses.base import TaylorExpansion, WeightedObjective
from numpyro_kme.losses.generator import BLOCK, QuadratureNodes


class Minimum(NamedTuple):
    """Where a minimisation stopped.

    Attributes:
        u: Parameters, `(p,)`.
        value: Loss there.
        gradient: Gradient there, `(p,)`.
        hessian: Hessian there, exact or updated, `(p, p)`.
        remaining: The Newton step that is left, `(p,)`: how far from the minimum `u` still is, to first order.
        convex: Whether the Hessian is positive definite.
        steps: Evaluations used.
        numbers: Further numbers of the loss at `u`, by name.
    """

    u: Any
    value: Any
    gradient: Any
    hessian: Any
    remaining: Any
    convex: Any
    steps: Any
    numbers: dict[str, Any]


class _State(NamedTuple):
    best: Minimum
    trial: jax.Array
    damping: jax.Array
    predicted: jax.Array


def minimise(
    objective: WeightedObjective,
    reduced: Any,
    nodes: QuadratureNodes,
    start: jax.Array,
    hessian: jax.Array,
    *,
    scale: jax.Array,
    tolerance: jax.Array,
    max_steps: jax.Array,
    damping: jax.Array,
    stride: jax.Array,
    exact: bool = True,
    updates: bool = True,
) -> Minimum:
    r"""Minimise `u -> objective.value(reduced, u, nodes)` by damped Newton steps `-(|H| + damping I)^-1 g`.

    `|H|` has the absolute eigenvalues, so saddles repel. A step that does not lower the loss is taken back and the
    damping raised. With `exact`, a cheap Hessian is evaluated at every step; otherwise `hessian` is the first one and
    symmetric rank-one updates follow. Without `updates` it stays, and a step is good if it lowers `g' |H|^-1 g`: where
    simulated points jump, the loss is a staircase and says nothing of small steps, and differences of gradients are
    those of its stairs.

    Args:
        objective: What to minimise.
        reduced: Reduced data terms, `objective.reduce(weights)`.
        nodes: Quadrature nodes, the same at every step.
        start: First parameters `(p,)`.
        hessian: First Hessian `(p, p)`, unless Hessians are cheap.
        scale: Typical sizes of the parameters `(p,)`: eigenvalues, damping and tolerance are in these units.
        tolerance: Stop when the remaining Newton step is at most this, in units of `scale`.
        max_steps: Most evaluations.
        damping: Relative to the largest eigenvalue; the first step has a fifth of it, and 0 trusts the first Hessian.
        stride: Longest step, in units of `scale`.
        exact: Use the objective's Hessian where it is cheap.
        updates: Update the Hessian by differences of gradients.
    """
    exact = exact and objective.has_cheap_hessian

    def propose(gradient, hessian, damping):
        values, vectors = jnp.linalg.eigh(hessian * scale[:, None] * scale[None])
        top = jnp.max(jnp.abs(values))
        slopes = vectors.T @ (gradient * scale)
        # where the largest eigenvalue is below this, as far from all data, the loss is constant and no step is taken
        curvature = jnp.where(top > 1e-30, jnp.maximum(jnp.abs(values), 1e-9 * top), 1.0)
        step = -vectors @ (slopes / (curvature + damping * top))
        step = step * jnp.minimum(1.0, stride / jnp.maximum(jnp.linalg.norm(step), 1e-300))
        full = -vectors @ (slopes / curvature)
        predicted = -(jnp.vdot(slopes, vectors.T @ step) + 0.5 * jnp.vdot(values, jnp.square(vectors.T @ step)))
        return step * scale, full * scale, predicted, jnp.all(values > 1e-9 * top)

    def body(state):
        best, moved = state.best, state.trial - state.best.u
        if exact:
            value, gradient, fresh = objective.expand(reduced, state.trial, nodes)
            kept = best.hessian
        else:
            value, gradient = objective.slope(reduced, state.trial, nodes)
            fresh = _rank_one(best.hessian, moved, gradient - best.gradient) if updates else best.hessian
            kept = jnp.where(jnp.all(jnp.isfinite(fresh)), fresh, best.hessian)
        lower = value < best.value
        if not updates:
            left = propose(gradient, fresh, 0.0)[1]
            lower = (best.steps == 0) | (jnp.vdot(gradient, left) > jnp.vdot(best.gradient, best.remaining))
        good = lower & jnp.all(jnp.isfinite(gradient)) & jnp.all(jnp.isfinite(fresh))
        gain = (best.value - value) / jnp.maximum(state.predicted, 1e-300)
        raised = jnp.maximum(4.0 * state.damping, 1e-2)
        lowered = jnp.where(gain > 0.75, 0.2 * state.damping, jnp.where(gain > 0.25, state.damping, raised))
        damping = jnp.where(good, jnp.where(lowered < 1e-6, 0.0, lowered), raised)
        u, value, gradient, fresh = jax.tree.map(
            lambda new, old: jnp.where(good, new, old),
            (state.trial, value, gradient, fresh),
            (best.u, best.value, best.gradient, kept),
        )
        step, full, predicted, convex = propose(gradient, fresh, damping)
        best = Minimum(u, value, gradient, fresh, full, convex, best.steps + 1, {})
        return _State(best, u + step, damping, predicted)

    def unfinished(state):
        best = state.best
        near = best.convex & (jnp.max(jnp.abs(best.remaining / scale)) <= tolerance)
        return (best.steps < max_steps) & ~near & (state.damping < 1e8)

    zero, none = jnp.zeros_like(start), jnp.zeros((), start.dtype)
    nowhere = Minimum(start, none + jnp.inf, zero, hessian, zero + jnp.inf, none > 1, jnp.zeros((), int), {})
    found = jax.lax.while_loop(unfinished, body, _State(nowhere, start, damping, none)).best
    return found._replace(numbers=objective.report(reduced, found.u, nodes))


def _rank_one(hessian: jax.Array, step: jax.Array, change: jax.Array) -> jax.Array:
    """Symmetric rank-one update of a Hessian by a step and the change of the gradient along it."""
    miss = change - hessian @ step
    along = jnp.vdot(miss, step)
    usable = jnp.abs(along) > 1e-8 * jnp.linalg.norm(miss) * jnp.linalg.norm(step)
    return hessian + jnp.where(usable, 1.0 / jnp.where(usable, along, 1.0), 0.0) * jnp.outer(miss, miss)


class Control(NamedTuple):
    """When a minimisation stops and how boldly it starts; see `minimise`."""

    scale: np.ndarray
    tolerance: float = 1e-3
    max_steps: int = 30
    damping: float = 0.0
    stride: float = 10.0


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
        self,
        starts: np.ndarray,
        hessians: np.ndarray,
        control: Control,
        exact: bool = True,
        progress_bar: bool = False,
        updates: bool | None = None,
    ) -> Minimum:
        """Minimise for every reweighting from its start.

        Args:
            starts: `(R, p)` or `(p,)`.
            hessians: First Hessians, `(R, p, p)` or `(p, p)`.
            control: Scales and stopping.
            exact: Evaluate Hessians where that is cheap; if not, the first ones are updated.
            progress_bar: Show a bar of the blocks.
            updates: Update Hessians that are not evaluated; when left out, where the objective is smooth.
        Returns:
            Minima with leading axis `R`.
        """
        updates = self.objective.is_smooth if updates is None else updates
        block = partial(_solve_block, exact=exact and self.objective.has_cheap_hessian, updates=updates)
        return _over_blocks(block, self, (starts, hessians), control, progress_bar)

    def expand(self, points: np.ndarray) -> TaylorExpansion:
        """Loss, gradient and Hessian for every reweighting at its point, `(R, p)` or `(p,)`."""
        return _over_blocks(partial(_at_points, "expand"), self, (points,), ())

    def slopes(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loss and gradient for every reweighting at its point, `(R, p)` or `(p,)`."""
        return _over_blocks(partial(_at_points, "slope"), self, (points,), ())

    def values(self, points: np.ndarray) -> np.ndarray:
        """Loss for every reweighting at its point, `(R, p)` or `(p,)`."""
        return _over_blocks(partial(_at_points, "value"), self, (points,), ())

    def slopes_together(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loss and gradient for every reweighting at one point `u (p,)`; reweightings `16 i` to `16 i + 15` must
        share a node set, and share its simulations."""
        return jax.tree.map(lambda leaf: leaf[:, 0], _over_blocks(partial(_together, "slope"), self, (), u[None]))

    def values_together(self, points: np.ndarray) -> np.ndarray:
        """Losses `(R, J)` at the same points `(J, p)` for all; as `slopes_together`."""
        return _over_blocks(partial(_together, "value"), self, (), points)


@on_host
@jax.jit
def offsets(objective: WeightedObjective, reweightings: Reweightings) -> jax.Array:
    """The part of each loss that the parameters do not change and `value` leaves out, `(R,)`."""
    return objective.offsets(jnp.asarray(reweightings.weights), reweightings.extra)


@on_host
def _over_blocks(function, problems, per_row, shared, progress_bar=False):
    """Call a compiled function on blocks of reweightings, on the local devices in turn; the last one is padded."""
    reweightings, ranks = problems.reweightings, (1, 2)
    per_row = tuple(
        np.broadcast_to(value, (len(reweightings), *np.shape(value)[-rank:])) for value, rank in zip(per_row, ranks)
    )
    devices = jax.local_devices()
    objective = jax.tree.map(_strong, problems.objective)
    fixed = [jax.device_put((objective, problems.nodes, shared), device) for device in devices]
    results = []
    for number, first in enumerate(range(0, len(reweightings), BLOCK)):
        index = np.minimum(np.arange(first, first + BLOCK), len(reweightings) - 1)
        count = min(BLOCK, len(reweightings) - first)
        rows = reweightings.rows(index), tuple(value[index] for value in per_row)
        where = number % len(devices)
        results.append(function(*fixed[where], *jax.device_put((count, *rows), devices[where])))
    results = [to_host(result) for result in compat.progress(results, "bootstrapping", progress_bar)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(reweightings)], *results)


def _strong(leaf):
    """Python's numbers are weakly typed: `Gaussian(1.5)` and the same kernel widened would be compiled apart."""
    return np.asarray(leaf) if isinstance(leaf, float) else leaf


def _each(objective, nodes, count, block, per_row, function):
    """Call `function(reduced, own nodes, *own numbers)` for the first `count` reweightings of the block in turn."""

    def one(row):
        of_data, own = row
        own_nodes = jax.tree.map(lambda leaf: leaf[of_data.sets], nodes)
        return function(objective.reduce(of_data.weights, of_data.extra), own_nodes, *own)

    one, rows = jax.jit(one), (block, per_row)  # traced once
    first = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], rows))

    def fill(i, results):
        result = one(jax.tree.map(lambda leaf: leaf[i], rows))
        return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), results, result)

    empty = jax.tree.map(lambda leaf: jnp.zeros((BLOCK, *leaf.shape), leaf.dtype), first)
    return jax.lax.fori_loop(0, count, fill, empty)


@partial(jax.jit, static_argnames=("exact", "updates"))
def _solve_block(objective, nodes, control, count, block, per_row, exact, updates):
    def one(reduced, own_nodes, start, hessian):
        settings = control._asdict() | {"exact": exact, "updates": updates}
        return minimise(objective, reduced, own_nodes, start, hessian, **settings)

    return _each(objective, nodes, count, block, per_row, one)


@partial(jax.jit, static_argnums=0)
def _at_points(method, objective, nodes, shared, count, block, per_row):
    """`objective.value`, `slope` or `expand`, by name."""
    evaluate = getattr(objective, method)
    return _each(objective, nodes, count, block, per_row, lambda reduced, own, u: evaluate(reduced, u, own))


@partial(jax.jit, static_argnums=0)
def _together(method, objective, nodes, points, count, block, per_row):
    """As `_at_points`, for all reweightings of the block at each point, with the nodes of its first one."""
    own, evaluate = jax.tree.map(lambda leaf: leaf[block.sets[0]], nodes), getattr(objective, method)
    reduced = jax.vmap(lambda row: objective.reduce(row.weights, row.extra))(block)
    found = jax.lax.map(lambda u: jax.vmap(lambda one: evaluate(one, u, own))(reduced), points)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), found)
