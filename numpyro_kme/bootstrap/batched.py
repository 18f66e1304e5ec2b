"""Batched optimisation of one objective for many reweightings of the data, in fixed blocks, so that no result depends
on how many there are or where they run."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import compat
from numpyro_kme._core.host import on_host, to_host
from numpyro_kme.bootstrap.newton import Minimum, minimise
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.base import TaylorExpansion, WeightedObjective
from numpyro_kme.losses.generator import BLOCK, QuadratureNodes


@dataclass(frozen=True)
class Control:
    """When a minimisation stops and how boldly it starts; see `minimise`."""

    scale: np.ndarray
    tolerance: float = 1e-3
    max_steps: int = 30
    damping: float = 0.0
    stride: float = 10.0


def solve(
    objective: WeightedObjective,
    nodes: QuadratureNodes,
    reweightings: Reweightings,
    starts: np.ndarray,
    hessians: np.ndarray,
    control: Control,
    exact: bool = True,
    progress_bar: bool = False,
) -> Minimum:
    """Minimise for every reweighting from its start.

    Args:
        objective: What to minimise.
        nodes: Sets of quadrature nodes, `(sets, M, ...)`.
        reweightings: Weights and node sets, `R` of them.
        starts: `(R, p)` or `(p,)`.
        hessians: First Hessians, `(R, p, p)` or `(p, p)`.
        control: Scales and stopping.
        exact: Evaluate Hessians where that is cheap; if not, the first ones are updated.
        progress_bar: Show a bar of the blocks.
    Returns:
        Minima with leading axis `R`.
    """
    numbers = (control.tolerance, control.max_steps, control.damping, control.stride)
    block = _solve_exactly if exact and objective.has_cheap_hessian else _solve_with_updates
    shared = control.scale, numbers
    return _over_blocks(block, objective, nodes, reweightings, (starts, hessians), shared, progress_bar)


def expand(
    objective: WeightedObjective, nodes: QuadratureNodes, reweightings: Reweightings, points: np.ndarray
) -> TaylorExpansion:
    """Loss, gradient and Hessian for every reweighting at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_expand_block, objective, nodes, reweightings, (points,), ())


def slopes(
    objective: WeightedObjective, nodes: QuadratureNodes, reweightings: Reweightings, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient for every reweighting at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_slope_block, objective, nodes, reweightings, (points,), ())


def values(
    objective: WeightedObjective, nodes: QuadratureNodes, reweightings: Reweightings, points: np.ndarray
) -> np.ndarray:
    """Loss for every reweighting at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_value_block, objective, nodes, reweightings, (points,), ())


def slopes_together(
    objective: WeightedObjective, nodes: QuadratureNodes, reweightings: Reweightings, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient for every reweighting at one point `u (p,)`.

    The model is simulated once for a block: reweightings `16 i` to `16 i + 15` must share a node set.
    """
    return _over_blocks(_slope_together, objective, nodes, reweightings, (), u)


def offsets(objective: WeightedObjective, reweightings: Reweightings) -> np.ndarray:
    """The part of each loss that the parameters do not change and `value` leaves out, `(R,)`."""
    return on_host(_offsets)(objective, reweightings.weights, reweightings.extra)


@on_host
def _over_blocks(function, objective, nodes, reweightings, per_row, shared, progress_bar=False):
    """Call a compiled function on blocks of reweightings, on the local devices in turn; the last one is padded."""
    ranks = (1, 2)
    per_row = tuple(
        np.broadcast_to(value, (len(reweightings), *np.shape(value)[-rank:])) for value, rank in zip(per_row, ranks)
    )
    devices = jax.local_devices()
    objective = jax.tree.map(_strong, objective)
    fixed = [jax.device_put((objective, nodes, shared), device) for device in devices]
    results = []
    for number, first in enumerate(range(0, len(reweightings), BLOCK)):
        index = np.minimum(np.arange(first, first + BLOCK), len(reweightings) - 1)
        part, count = reweightings.rows(index), min(BLOCK, len(reweightings) - first)
        rows = (part.weights, part.extra, part.sets), tuple(value[index] for value in per_row)
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
        (weights, extra, which), own = row
        return function(objective.reduce(weights, extra), jax.tree.map(lambda leaf: leaf[which], nodes), *own)

    rows = (block, per_row)
    first = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], rows))

    def fill(i, results):
        result = one(jax.tree.map(lambda leaf: leaf[i], rows))
        return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), results, result)

    empty = jax.tree.map(lambda leaf: jnp.zeros((BLOCK, *leaf.shape), leaf.dtype), first)
    return jax.lax.fori_loop(0, count, fill, empty)


def _together(objective, nodes, block, function):
    """Call `function(reduced, nodes)` for all reweightings of the block at once, with the nodes of its first one."""
    weights, extra, sets = block
    own = jax.tree.map(lambda leaf: leaf[sets[0]], nodes)
    return jax.vmap(lambda w, points: function(objective.reduce(w, points), own))(weights, extra)


@jax.jit
def _offsets(objective, weights, extra):
    return objective.offsets(weights, extra)


@partial(jax.jit, static_argnames="exact")
def _solve_block(objective, nodes, shared, count, block, per_row, exact):
    scale, (tolerance, max_steps, damping, stride) = shared
    control = dict(scale=scale, tolerance=tolerance, max_steps=max_steps, damping=damping, stride=stride, exact=exact)

    def one(reduced, own_nodes, start, hessian):
        return minimise(objective, reduced, own_nodes, start, hessian, **control)

    return _each(objective, nodes, count, block, per_row, one)


_solve_exactly = partial(_solve_block, exact=True)
_solve_with_updates = partial(_solve_block, exact=False)


@jax.jit
def _expand_block(objective, nodes, shared, count, block, per_row):
    return _each(objective, nodes, count, block, per_row, lambda reduced, own, u: objective.expand(reduced, u, own))


@jax.jit
def _slope_block(objective, nodes, shared, count, block, per_row):
    return _each(objective, nodes, count, block, per_row, lambda reduced, own, u: objective.slope(reduced, u, own))


@jax.jit
def _value_block(objective, nodes, shared, count, block, per_row):
    return _each(objective, nodes, count, block, per_row, lambda reduced, own, u: objective.value(reduced, u, own))


@jax.jit
def _slope_together(objective, nodes, u, count, block, per_row):
    return _together(objective, nodes, block, lambda reduced, own: objective.slope(reduced, u, own))
