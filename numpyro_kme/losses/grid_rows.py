"""The squared MMD on a grid for many reweightings of the data, by NumPy: nothing is compiled but the simulator."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import for_rows, jitted
from numpyro_kme.losses import mixing
from numpyro_kme.losses.base import TaylorExpansion
from numpyro_kme.losses.generator import BLOCK, Generator, QuadratureNodes, pick
from numpyro_kme.losses.grid import Grid

CHUNK, TASKS = 64, 64
"""Nodes that are simulated together, and how many times: one program serves any number of nodes and rows."""


@on_host
def evaluate(method: str, objective: Any, nodes: QuadratureNodes, reweightings: Any, u: np.ndarray) -> Any:
    """`objective.value`, `slope`, `expand` or `report` by name, for each reweighting at its parameters.

    No row depends on the others: sums and the simulator take one row at a time.

    Args:
        method: What to evaluate.
        objective: A `GridMMD`.
        nodes: Sets of quadrature nodes, `(sets, M, ...)`.
        reweightings: `R` of them, as `bootstrap.Reweightings`.
        u: Parameters `(R, p)`.
    """
    order = {"value": 0, "report": 0, "slope": 1, "expand": 2}[method]
    weights, extra, sets = reweightings.weights, reweightings.extra, np.asarray(reweightings.sets)
    rows, blocks = (np.asarray(weights), extra, sets, np.asarray(u)), []
    for start in range(0, len(u), BLOCK):
        block = (None if leaf is None else leaf[start : start + BLOCK] for leaf in rows)
        blocks.append(_block(order, method == "report", objective, nodes, *block))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks)


def _block(order, reports, objective, nodes, weights, extra, sets, u):
    grid, generator, independent = objective.grid, objective.generator, objective.generator.noise.independent
    points = objective.data[None]
    if extra is not None:
        points = np.concatenate([np.repeat(points, len(u), axis=0), extra.reshape(len(u), -1)], axis=1)
    data, v = grid.embed_rows(points, weights), np.asarray(nodes.weights)[sets]
    norm = _inner(grid, data, data)
    y, *moves = _simulated((_scalars, _moves, _bends)[order], generator, nodes, sets, u)
    stencil = grid.stencil(y, derivatives=order > 0)
    model = grid.charges_of_rows(stencil.cells, stencil.weights * v[..., None])
    q, s, pairs = _inner(grid, model, model), _inner(grid, model, data), np.ones(len(u))
    squares = np.sum(np.square(v), axis=1)
    if independent:
        q, pairs = (q - objective.peak * squares) / (1.0 - squares), 1.0 / (1.0 - squares)
        if objective.fit_proportion:
            q, pairs = np.maximum(q, objective.peak * squares), np.where(q > objective.peak * squares, pairs, 0.0)
    if reports:
        cells = (_at(grid.potential(embedding), stencil.cells) for embedding in (model, data))
        witness = tuple(np.sum(values * stencil.weights, axis=2) for values in cells)
        return mixing.report(q, s, witness, v, objective.peak * squares, independent, objective.fit_proportion)
    value, by, by_by = mixing.derivatives(q, s, objective.fit_proportion)
    if order == 0:
        return value + norm
    witness = grid.potential(2.0 * (pairs * by[0])[:, None] * model + by[1][:, None] * data)
    at_cells = _at(witness, stencil.cells)
    first, second = (v * np.einsum("rmk,rmk->rm", at_cells, by_y) for by_y in (stencil.first, stencil.second))
    tangents = moves[0]
    gradient = (first[:, None] @ tangents)[:, 0]
    if order == 1:
        return value + norm, gradient
    moved = v[..., None] * stencil.first
    change = [grid.charges_of_rows(stencil.cells, moved * tangents[..., a, None]) for a in range(u.shape[1])]
    steps = np.stack([[2.0 * pairs * _inner(grid, model, c), _inner(grid, data, c)] for c in change])  # (p, 2, R)
    products = np.array([[_inner(grid, a, b) for b in change] for a in change])
    hessian = np.moveaxis(2.0 * pairs * by[0] * products + np.einsum("air,ijr,bjr->abr", steps, by_by, steps), 2, 0)
    curved = np.einsum("rm,rmab->rab", first, moves[1])
    pulled = np.swapaxes(tangents, 1, 2)
    return TaylorExpansion(value + norm, gradient, hessian + curved + (pulled * second[:, None]) @ tangents)


def _inner(grid: Grid, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Inner products of rows of embeddings `(R, F)`."""
    return np.sum(grid.spectrum * (p.real * q.real + p.imag * q.imag), axis=1)


def _at(potential: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Rows of coefficients `(R, size)` at cells `(R, M, 4)`."""
    return np.take_along_axis(potential, cells.reshape(len(cells), -1), axis=1).reshape(cells.shape)


def scalars(generator: Generator, nodes: QuadratureNodes, u: np.ndarray) -> np.ndarray:
    """Simulated scalars `(M,)` with the first set of nodes at parameters `(p,)`, by the program of all losses."""
    return _simulated(_scalars, generator, nodes, np.zeros(1, int), np.asarray(u)[None])[0][0]


def _simulated(program: Any, generator: Generator, nodes: QuadratureNodes, sets: np.ndarray, u: np.ndarray):
    """What a program finds for each node at parameters `(R, p)`, `(R, M, ...)`, `CHUNK` nodes at a time.

    Args:
        program: `_scalars` or another of these.
        generator: The simulator.
        nodes: Sets of nodes, `(sets, M, ...)`.
        sets: Their numbers, `(R,)`.
        u: Parameters.
    """
    num = nodes.weights.shape[1]
    pieces = -(-num // CHUNK)
    index = np.tile(np.minimum(np.arange(pieces * CHUNK), num - 1).reshape(pieces, CHUNK), (len(sets), 1))
    values = jax.tree.map(partial(pick, (np.repeat(sets, pieces)[:, None], index)), nodes.values)
    tasks, found = (values, np.repeat(u, pieces, axis=0)), []
    for first in range(0, len(index), TASKS):
        some = np.minimum(np.arange(first, first + TASKS), len(index) - 1)
        part = program(generator, min(TASKS, len(index) - first), *jax.tree.map(partial(pick, some), tasks))
        found.append([np.asarray(leaf)[: len(index) - first] for leaf in part])
    shape = len(sets), pieces * CHUNK
    return [np.concatenate(parts).reshape(*shape, *parts[0].shape[2:])[:, :num] for parts in zip(*found)]


def _scalars_at(generator: Generator, values: Any, u: jax.Array) -> jax.Array:
    """Simulated scalars `(CHUNK,)` at some noise values."""
    return jnp.ravel(generator.points(u, QuadratureNodes(values, jnp.ones(()))))


@jitted
def _scalars(generator, num, *tasks):
    """Simulated scalars."""
    return for_rows(lambda values, u: (_scalars_at(generator, values, u),), num, tasks)


@jitted
def _moves(generator, num, *tasks):
    """Simulated scalars and their derivatives, `(..., p)`."""

    def of_task(values, u):
        scalars = partial(_scalars_at, generator, values)
        return scalars(u), jax.jacfwd(scalars)(u)

    return for_rows(of_task, num, tasks)


@jitted
def _bends(generator, num, *tasks):
    """Simulated scalars, their derivatives and second derivatives, `(..., p, p)`."""

    def of_task(values, u):
        scalars = partial(_scalars_at, generator, values)

        def moves(u):
            slope, value = jax.jacfwd(lambda t: (y := scalars(t), y), has_aux=True)(u)
            return slope, (value, slope)

        second, (value, slope) = jax.jacfwd(moves, has_aux=True)(u)
        return value, slope, second

    return for_rows(of_task, num, tasks)
