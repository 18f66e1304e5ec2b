"""Many minimisations of one objective: fixed blocks of tasks, so that no result depends on how many there
are or where they run."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host, to_host
from numpyro_kme.bootstrap.newton import Minimum, minimise
from numpyro_kme.losses.base import Expansion, Objective
from numpyro_kme.losses.generator import BLOCK, Nodes


@dataclass(frozen=True)
class Tasks:
    """Minimisation tasks, one a row.

    Attributes:
        weights: Data weights `(R, n)` or `(R, n + T)`.
        extra: Centering points `(R, T, ...)`, or nothing.
        sets: Which set of noise nodes each task uses, `(R,)`.
    """

    weights: np.ndarray
    extra: Any
    sets: np.ndarray

    def __len__(self) -> int:
        return len(self.sets)

    def rows(self, index: np.ndarray) -> "Tasks":
        """Select tasks."""
        return Tasks(self.weights[index], jax.tree.map(lambda leaf: leaf[index], self.extra), self.sets[index])


@dataclass(frozen=True)
class Control:
    """When a minimisation stops and how boldly it starts; see `minimise`."""

    scale: np.ndarray
    tolerance: float = 1e-3
    max_steps: int = 30
    damping: float = 0.0
    stride: float = 10.0


def solve(
    objective: Objective,
    nodes: Nodes,
    tasks: Tasks,
    starts: np.ndarray,
    hessians: np.ndarray,
    control: Control,
    exact: bool = True,
) -> Minimum:
    """Minimise every task from its start.

    Args:
        objective: What to minimise.
        nodes: Sets of noise nodes, `(sets, M, ...)`.
        tasks: Weights and node sets, `R` of them.
        starts: `(R, p)` or `(p,)`.
        hessians: First Hessians, `(R, p, p)` or `(p, p)`.
        control: Scales and stopping.
        exact: Evaluate Hessians where that is cheap; if not, the first ones are updated.
    Returns:
        Minima with leading axis `R`.
    """
    numbers = (control.tolerance, control.max_steps, control.damping, control.stride)
    block = _solve_exactly if exact and objective.has_cheap_hessian else _solve_with_updates
    return _over_blocks(block, objective, nodes, tasks, (starts, hessians), (control.scale, numbers))


def expand(objective: Objective, nodes: Nodes, tasks: Tasks, points: np.ndarray) -> Expansion:
    """Loss, gradient and Hessian of every task at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_expand_block, objective, nodes, tasks, (points,), ())


def slopes(objective: Objective, nodes: Nodes, tasks: Tasks, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient of every task at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_slope_block, objective, nodes, tasks, (points,), ())


def values(objective: Objective, nodes: Nodes, tasks: Tasks, points: np.ndarray) -> np.ndarray:
    """Loss of every task at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_value_block, objective, nodes, tasks, (points,), ())


def slopes_together(objective: Objective, nodes: Nodes, tasks: Tasks, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient of every task at one point `u (p,)`.

    The model is simulated once for a block of tasks: tasks `16 i` to `16 i + 15` must share a node set.
    """
    return _over_blocks(_slope_together, objective, nodes, tasks, (), u)


def offsets(objective: Objective, tasks: Tasks) -> np.ndarray:
    """The part of each task's loss that the parameters do not change and `value` leaves out, `(R,)`."""
    return on_host(_offsets)(objective, tasks.weights, tasks.extra)


@on_host
def _over_blocks(function, objective, nodes, tasks, per_task, shared):
    """Call a compiled function on blocks of `BLOCK` tasks, dealt out to the local devices; the last block
    is padded."""
    ranks = (1, 2)
    per_task = tuple(
        np.broadcast_to(value, (len(tasks), *np.shape(value)[-rank:])) for value, rank in zip(per_task, ranks)
    )
    devices = jax.local_devices()
    objective = jax.tree.map(_strong, objective)
    fixed = [jax.device_put((objective, nodes, shared), device) for device in devices]
    results = []
    for number, first in enumerate(range(0, len(tasks), BLOCK)):
        index = np.minimum(np.arange(first, first + BLOCK), len(tasks) - 1)
        part, count = tasks.rows(index), min(BLOCK, len(tasks) - first)
        rows = (part.weights, part.extra, part.sets), tuple(value[index] for value in per_task)
        where = number % len(devices)
        results.append(function(*fixed[where], *jax.device_put((count, *rows), devices[where])))
    results = [to_host(result) for result in results]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(tasks)], *results)


def _strong(leaf):
    """Python's numbers are weakly typed: `Gaussian(1.5)` and the same kernel widened would be compiled apart."""
    return np.asarray(leaf) if isinstance(leaf, float) else leaf


def _each(objective, nodes, count, block, per_task, function):
    """Call `function(facts, the task's nodes, *its own numbers)` for the first `count` tasks of the block
    in turn."""

    def one(row):
        (weights, extra, which), own = row
        return function(objective.reduce(weights, extra), jax.tree.map(lambda leaf: leaf[which], nodes), *own)

    rows = (block, per_task)
    first = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], rows))

    def fill(i, results):
        result = one(jax.tree.map(lambda leaf: leaf[i], rows))
        return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), results, result)

    empty = jax.tree.map(lambda leaf: jnp.zeros((BLOCK, *leaf.shape), leaf.dtype), first)
    return jax.lax.fori_loop(0, count, fill, empty)


def _together(objective, nodes, block, function):
    """Call `function(facts, nodes)` for all tasks of the block at once, with the nodes of its first task."""
    weights, extra, sets = block
    own = jax.tree.map(lambda leaf: leaf[sets[0]], nodes)
    return jax.vmap(lambda w, points: function(objective.reduce(w, points), own))(weights, extra)


@jax.jit
def _offsets(objective, weights, extra):
    return objective.offsets(weights, extra)


@partial(jax.jit, static_argnames="exact")
def _solve_block(objective, nodes, shared, count, block, per_task, exact):
    scale, (tolerance, max_steps, damping, stride) = shared
    control = dict(scale=scale, tolerance=tolerance, max_steps=max_steps, damping=damping, stride=stride, exact=exact)

    def one(facts, own_nodes, start, hessian):
        return minimise(objective, facts, own_nodes, start, hessian, **control)

    return _each(objective, nodes, count, block, per_task, one)


_solve_exactly = partial(_solve_block, exact=True)
_solve_with_updates = partial(_solve_block, exact=False)


@jax.jit
def _expand_block(objective, nodes, shared, count, block, per_task):
    return _each(objective, nodes, count, block, per_task, lambda facts, own, u: objective.expand(facts, u, own))


@jax.jit
def _slope_block(objective, nodes, shared, count, block, per_task):
    return _each(objective, nodes, count, block, per_task, lambda facts, own, u: objective.slope(facts, u, own))


@jax.jit
def _value_block(objective, nodes, shared, count, block, per_task):
    return _each(objective, nodes, count, block, per_task, lambda facts, own, u: objective.value(facts, u, own))


@jax.jit
def _slope_together(objective, nodes, u, count, block, per_task):
    return _together(objective, nodes, block, lambda facts, own: objective.slope(facts, u, own))
