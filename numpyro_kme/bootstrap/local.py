"""The loss near the minimum of the full data, cheap for all replicates: see `losses/local_mmd.py`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from numpyro_kme._core.host import on_host, to_host
from numpyro_kme._core.programs import jitted
from numpyro_kme.bootstrap.fit import Fit, fit, newton_step
from numpyro_kme.bootstrap.newton import Control, Minimum, Problems
from numpyro_kme.bootstrap.preparation import Prepared, one_step, posterior_sd, times_needed
from numpyro_kme.bootstrap.second_attempts import restart
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import Generator, QuadratureNodes, vectors
from numpyro_kme.losses.local_mmd import LocalMMD, pivots_of
from numpyro_kme.losses.mmd import DirectMMD

RANKS, POINTS = (64, 128, 256, 512), 1024
"""Numbers of features that are tried, and simulated points near the minimum of which pivots are chosen."""

CLOSE = 0.003
"""Features must give minima as far as this, in posterior standard deviations, from those by direct sums."""

SETS = 8
"""Sets of nodes behind a correction: their differences show its error."""


def localises(objective: WeightedObjective) -> bool:
    """Whether it is a loss of the kind that `localise` takes."""
    return isinstance(objective, DirectMMD)


def localise(
    ready: Prepared, pilot: Reweightings, draw: Callable[..., QuadratureNodes], num: int, most: int, least: int = 0
) -> tuple[Prepared, int] | None:
    """The loss near the full data's minimum, with as many nodes behind its correction as `with_enough_nodes` asks for.

    Args:
        ready: With a loss by direct sums that has derivatives, and few nodes.
        pilot: Reweightings that show the posterior's place.
        draw: Makes sets of so many nodes, by default one for each block of replicates.
        num: Nodes of a set.
        most, least: Nodes of a set of the correction, at most and at least.
    Returns:
        What replicates share, and the number of nodes; None for other losses, and where a few hundred features do not
        give the same minima.
    """
    if not localises(ready.objective) or ready.surface is not None:
        return None
    few, draw = draw(num), partial(draw, sets=SETS)
    u = one_step(Problems(ready.objective, ready.nodes, pilot), ready.fit)[0]
    local = _with_features(ready, few.weights.shape[1], pilot, u)
    if local is None:
        return None
    num = max(num, least)
    many = draw(num)
    while True:
        expansions = local.expansions(many)
        single = _at_sets(local, few, expansions)
        times = times_needed(replace(ready, objective=local, nodes=single), pilot, partial(draw, num))
        if times == 1 or num >= most:
            break
        num = min(max(times // 2, 2) * num, most)
        many = draw(num)
    for _ in range(2):
        near, nodes = local.corrected(few, expansions, expansions.shape[0] * num / few.weights.shape[1])
        full = fit(near, nodes, ready.fit.u[None], ready.fit.scale, max_steps=20)
        scale = posterior_sd(one_step(Problems(near, nodes, pilot), full)[0])
        if np.abs((full.u - local.anchor) / scale).max() < 1.0:
            break
        local = replace(local, anchor=full.u)
        expansions = local.expansions(many)
    kept = {name: getattr(ready.fit, name) for name in ("others", "other_values", "reached", "followed")}
    return replace(ready, objective=near, nodes=nodes, fit=replace(full, **kept), scale=scale), num


def _at_sets(local: LocalMMD, few: QuadratureNodes, expansions: np.ndarray) -> QuadratureNodes:
    """The first set of few nodes, corrected by each of several sets of many alone."""
    first = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[:1], len(expansions), axis=0), few)
    return first._replace(correction=expansions - local.expansions(jax.tree.map(lambda leaf: leaf[:1], few)))


def _with_features(ready: Prepared, size: int, pilot: Reweightings, u: np.ndarray) -> LocalMMD | None:
    """The fewest features that give minima close to those by direct sums, with the same nodes, for some of the pilot
    reweightings, from the minima `u (R, p)` of which simulated points are taken; compared with `size` nodes."""
    direct: Any = ready.objective
    points = _simulated(direct.generator, np.concatenate([ready.fit.u[None], u]), ready.nodes)
    pivots = pivots_of(direct.kernel, points, RANKS[-1])
    some = np.arange(0, len(u), 4)
    gradient = Problems(direct, ready.nodes, pilot.rows(some)).slopes(u[some])[1]
    nodes = _filled_up(ready.nodes, size)
    for rank in RANKS:
        local = LocalMMD.of(direct, jax.tree.map(itemgetter(slice(rank)), pivots), ready.fit.u, rank)
        miss = Problems(local, local.uncorrected(nodes), pilot.rows(some)).slopes(u[some])[1] - gradient
        if np.abs(newton_step(ready.fit.hessian, miss) / ready.scale).max() <= CLOSE:
            return local
    return None


def _filled_up(nodes: QuadratureNodes, size: int) -> QuadratureNodes:
    """The same sets with so many nodes, further ones of weight zero: they meet the programs of more nodes."""
    num = nodes.weights.shape[1]
    values = jax.tree.map(lambda leaf: leaf[:, np.arange(size) % num], nodes.values)
    weights: Any = np.pad(nodes.weights, ((0, 0), (0, size - num)))
    return QuadratureNodes(values, weights)


@on_host
def _simulated(generator: Generator, u: np.ndarray, nodes: QuadratureNodes):
    """`POINTS` simulated points of the first set of nodes at parameters `(S, p)`."""
    points = to_host(_points(generator, u, jax.tree.map(lambda leaf: leaf[0], nodes)))
    size = len(jax.tree.leaves(points)[0])
    index = np.random.default_rng(0).permutation(size)[:POINTS]
    return jax.tree.map(lambda leaf: leaf[index], points)


@jitted
def _points(generator, u, nodes):
    points = jax.vmap(lambda t: vectors(generator.points(t, nodes)))(u)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), points)


def finer(
    rng_key: jax.Array, local: LocalMMD, few: QuadratureNodes, num: int, sets: int
) -> tuple[LocalMMD, QuadratureNodes]:
    """The same loss with other nodes throughout: `sets` of few, corrected by half as many sets, of `num`."""
    few_key, many_key = jax.random.split(rng_key)
    draw = local.generator.draw_nodes
    expansions = local.expansions(draw(many_key, num, SETS // 2))
    return local.corrected(draw(few_key, few.weights.shape[1], sets), expansions, 1.0)


def leaves_basin(
    exact: Problems, full: Fit, pool: np.ndarray, found: Minimum, control: Control, every: int
) -> tuple[np.ndarray, int]:
    """As `restart`, by direct sums over few nodes: which replicates have lower minima elsewhere, and how many were
    compared. These end the use of the local loss."""
    some = np.arange(len(found.u))[::every]
    rows = exact.rows(some)
    these = rows.solve(found.u[some], full.hessian, control)
    moved = np.zeros(len(found.u), bool)
    _, moved[some], compared = restart(rows, full, pool, these, control, 1)
    return moved, compared
