"""Second attempts: replicates that stopped short, and some that are started elsewhere and compared."""

from dataclasses import replace

import jax
import numpy as np

from numpyro_kme.bootstrap import batched
from numpyro_kme.bootstrap.batched import Control
from numpyro_kme.bootstrap.fit import Fit
from numpyro_kme.bootstrap.newton import Minimum
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import QuadratureNodes


def rescue(
    objective: WeightedObjective,
    nodes: QuadratureNodes,
    reweightings: Reweightings,
    full: Fit,
    found: Minimum,
    ceiling: np.ndarray,
    control: Control,
) -> Minimum:
    """Minimise again, with damping and from the full-data minimum, where the first attempt stopped short."""
    left = np.abs(found.remaining / control.scale).max(axis=1)
    short = np.flatnonzero(~((left <= control.tolerance) & found.convex & (found.value <= ceiling)))
    if not len(short):
        return found
    careful = replace(control, max_steps=60, damping=0.03, stride=3.0)
    again = batched.solve(objective, nodes, reweightings.rows(short), full.u, full.hessian, careful)
    return keep_lower(found, again, short)


def restart(
    objective: WeightedObjective,
    nodes: QuadratureNodes,
    reweightings: Reweightings,
    full: Fit,
    starts: np.ndarray,
    found: Minimum,
    control: Control,
    every: int,
) -> tuple[Minimum, np.ndarray, int]:
    """Minimise one replicate in `every` from elsewhere; where that finds lower minima, minimise all from there too.

    Elsewhere: the other minima of the full data in turn, or `starts` where there are none.

    Returns:
        The minima, which replicates moved, and how many were compared.
    """
    some = np.arange(0, len(reweightings), every)
    pool = full.others if len(full.others) else starts
    careful = replace(control, scale=full.scale, tolerance=1e-4, max_steps=20, damping=0.1, stride=1.0)
    moved = np.zeros(len(reweightings), bool)

    def lower(index, start):
        elsewhere = batched.solve(objective, nodes, reweightings.rows(index), start, full.hessian, careful)
        polished = batched.solve(
            objective, nodes, reweightings.rows(index), elsewhere.u, elsewhere.hessian, control, exact=False
        )
        apart = np.abs((polished.u - found.u[index]) / control.scale).max(axis=1) > 0.1
        return polished, apart & (polished.value < found.value[index])

    which = np.arange(len(some)) % len(pool)
    polished, better = lower(some, pool[which])
    for start in np.unique(which[better]):
        rows = np.arange(len(reweightings))
        polished, better = lower(rows, pool[start])
        found = keep_lower(found, jax.tree.map(lambda leaf, rows=better: leaf[rows], polished), rows[better])
        moved |= better
    return found, moved, len(some)


def keep_lower(found: Minimum, again: Minimum, rows: np.ndarray) -> Minimum:
    """Replace rows by a second attempt where its loss is lower, or equal with less left to go."""
    closer = np.abs(again.remaining).max(axis=1) < np.abs(found.remaining[rows]).max(axis=1)
    take = (again.value < found.value[rows]) | ((again.value <= found.value[rows]) & closer)

    def mix(old, new):
        old = np.array(old)
        old[rows[take]] = new[take]
        return old

    return jax.tree.map(mix, found, again)
