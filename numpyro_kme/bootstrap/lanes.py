"""Minimisations side by side: fixed blocks of lanes, so that no result depends on how many there are or
where they run."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from numpyro_kme import _linalg
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
) -> Minimum:
    """Minimise every task from its start.

    Args:
        objective: What to minimise.
        nodes: Sets of noise nodes, `(sets, M, ...)`.
        tasks: Weights and node sets, `R` of them.
        starts: `(R, p)` or `(p,)`.
        hessians: First Hessians, `(R, p, p)` or `(p, p)`.
        control: Scales and stopping.
    Returns:
        Minima with leading axis `R`.
    """
    numbers = (control.tolerance, control.max_steps, control.damping, control.stride)
    return _over_blocks(_solve_block, objective, nodes, tasks, (starts, hessians), (control.scale, numbers))


def expand(objective: Objective, nodes: Nodes, tasks: Tasks, points: np.ndarray) -> Expansion:
    """Loss, gradient and Hessian of every task at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_expand_block, objective, nodes, tasks, (points,), ())


def slopes(objective: Objective, nodes: Nodes, tasks: Tasks, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient of every task at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_slope_block, objective, nodes, tasks, (points,), ())


def values(objective: Objective, nodes: Nodes, tasks: Tasks, points: np.ndarray) -> np.ndarray:
    """Loss of every task at its point, `(R, p)` or `(p,)`."""
    return _over_blocks(_value_block, objective, nodes, tasks, (points,), ())


def offsets(objective: Objective, tasks: Tasks) -> np.ndarray:
    """The part of each task's loss that the parameters do not change and `value` leaves out, `(R,)`."""
    with _linalg.float64():
        return np.asarray(_offsets(objective, tasks.weights, tasks.extra))


def _over_blocks(function, objective, nodes, tasks, per_task, shared):
    """Call a compiled function on blocks of `BLOCK` tasks, dealt out to the local devices; the last block
    is padded."""
    ranks = (1, 2)
    per_task = tuple(
        np.broadcast_to(value, (len(tasks), *np.shape(value)[-rank:])) for value, rank in zip(per_task, ranks)
    )
    devices = jax.local_devices()
    with _linalg.float64():
        fixed = [jax.device_put((objective, nodes, shared), device) for device in devices]
        results = []
        for number, first in enumerate(range(0, len(tasks), BLOCK)):
            index = np.minimum(np.arange(first, first + BLOCK), len(tasks) - 1)
            part = tasks.rows(index)
            block = (part.weights, part.extra, part.sets), tuple(value[index] for value in per_task)
            where = number % len(devices)
            results.append(function(*fixed[where], *jax.device_put(block, devices[where])))
        results = [_linalg.to_host(result) for result in results]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(tasks)], *results)


def _mapped(objective, function, *rows):
    """Map over a block's lanes: side by side, or one after the other where one lane fills the cache."""
    return jax.vmap(function)(*rows) if objective.lanes > 1 else jax.lax.map(lambda row: function(*row), rows)


def _each(objective, nodes, block, per_task, function):
    """Map `function(facts, the task's nodes, *its own numbers)` over the block."""

    def one(task, own):
        weights, extra, which = task
        return function(objective.reduce(weights, extra), jax.tree.map(lambda leaf: leaf[which], nodes), *own)

    return _mapped(objective, one, block, per_task)


@jax.jit
def _offsets(objective, weights, extra):
    return objective.offsets(weights, extra)


@jax.jit
def _solve_block(objective, nodes, shared, block, per_task):
    scale, (tolerance, max_steps, damping, stride) = shared
    control = dict(scale=scale, tolerance=tolerance, max_steps=max_steps, damping=damping, stride=stride)

    def one(facts, own_nodes, start, hessian):
        return minimise(objective, facts, own_nodes, start, hessian, **control)

    return _each(objective, nodes, block, per_task, one)


@jax.jit
def _expand_block(objective, nodes, shared, block, per_task):
    return _each(objective, nodes, block, per_task, lambda facts, own, u: objective.expand(facts, u, own))


@jax.jit
def _slope_block(objective, nodes, shared, block, per_task):
    return _each(objective, nodes, block, per_task, lambda facts, own, u: objective.slope(facts, u, own))


@jax.jit
def _value_block(objective, nodes, shared, block, per_task):
    return _each(objective, nodes, block, per_task, lambda facts, own, u: objective.value(facts, u, own))
