"""Second attempts at minima of replicates: where the first stopped short, and from elsewhere."""

from operator import itemgetter

import jax
import numpy as np

from numpyro_kme.bootstrap.fit import Fit
from numpyro_kme.bootstrap.newton import Control, Minimum, Problems
from numpyro_kme.bootstrap.surface import Surface


def rescue(problems: Problems, full: Fit, found: Minimum, ceiling: np.ndarray, control: Control) -> Minimum:
    """Minimise again, with damping, where the first attempt stopped short: from the full-data minimum, and then from
    where it has come to, as where a mixing proportion meets its bound at every other step."""
    careful = control._replace(max_steps=60, damping=0.03, stride=3.0)
    for from_full in (True, False):
        left = np.abs(found.remaining / control.scale).max(axis=1)
        lower = (found.value <= ceiling) | (not problems.objective.is_smooth)
        short = np.flatnonzero(~((left <= control.largest_remaining) & found.convex & lower))
        if len(short):
            starts = full.u if from_full else found.u[short]
            found = keep_lower(found, problems.rows(short).solve(starts, full.hessian, careful), short)
    return found


def restart(
    problems: Problems,
    full: Fit,
    starts: np.ndarray,
    found: Minimum,
    control: Control,
    every: int,
    surface: Surface | None = None,
) -> tuple[Minimum, np.ndarray, int]:
    """Minimise one replicate in `every` from elsewhere; where that finds lower minima, minimise all from there too.

    Elsewhere: the other minima of the full data in turn, or `starts` where there are none. What ends in the ball of a
    surface has been minimised on that.

    Returns:
        The minima, which replicates moved, and how many were compared.
    """
    every_one = np.arange(len(problems.reweightings))
    some = every_one[::every]
    pool = full.others if len(full.others) else starts
    careful = control._replace(scale=full.scale, largest_remaining=1e-4, max_steps=20, damping=0.1, stride=1.0)
    moved = np.zeros(len(every_one), bool)

    def lower(index, start):
        """Rows that have a lower minimum elsewhere, and these minima."""
        elsewhere = problems.rows(index).solve(start, full.hessian, careful)
        # twice the fall that the step which is left promises; a loss that jumps says nothing of it
        with np.errstate(all="ignore"):
            least = elsewhere.value + np.sum(elsewhere.gradient * elsewhere.remaining, axis=1)
        hopeful = np.flatnonzero((least < found.value[index]) | (not problems.objective.is_smooth))
        if not len(hopeful):
            return hopeful, elsewhere
        index = index[hopeful]
        first = jax.tree.map(itemgetter(hopeful), elsewhere)
        polished = problems.rows(index).solve(first.u, first.hessian, control)
        apart = np.abs((polished.u - found.u[index]) / control.scale).max(axis=1) > 0.1
        apart &= np.ones(len(apart), bool) if surface is None else ~surface.holds(polished.u)
        better = np.flatnonzero(apart & (polished.value < found.value[index]))
        return index[better], jax.tree.map(itemgetter(better), polished)

    which = np.arange(len(some)) % len(pool)
    better, _ = lower(some, pool[which])
    for start in np.unique(which[np.isin(some, better)]):
        better, polished = lower(every_one, pool[start])
        found = keep_lower(found, polished, better)
        moved[better] = True
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
