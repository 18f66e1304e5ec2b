"""The posterior bootstrap: one minimisation for each reweighting of the data, each one checked."""

from dataclasses import dataclass, replace

import jax
import numpy as np

from numpyro_kme._core.host import to_host
from numpyro_kme.bootstrap.fit import Fit, full_data, newton_step, refit, require_possible
from numpyro_kme.bootstrap.newton import Control, Minimum, Problems, offsets
from numpyro_kme.bootstrap.preparation import (
    FIRST_NODES,
    Derivatives,
    Settings,
    enough_nodes,
    one_step,
    posterior_sd,
    prepare,
)
from numpyro_kme.bootstrap.weights import PILOT, DirichletProcess, Reweightings, draw_reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import BLOCK, QuadratureNodes

WRONG = 0.5
"""Errors of an emulated loss up to this many units of log-likelihood are harmless."""

TOLERANCE = 0.01
"""A replicate has converged when its remaining Newton step is at most this many posterior standard deviations."""


@dataclass(frozen=True)
class EmulatorSummary:
    """What an emulator cost, and how wrong it is.

    Attributes:
        simulations: Runs of the simulator in all.
        rounds: Rounds in which they were made.
        loss_scale: One unit of log-likelihood in the loss, see `calibrated_loss_scale`.
        error: Root mean square error of the emulated loss at the replicates' minima, in units of log-likelihood, to
            first order, from simulations that the emulator has not seen; the noise of these is taken out.
        resolution: Errors below about this cannot be told from none by so many simulations.
    """

    simulations: int
    rounds: int
    loss_scale: float
    error: float
    resolution: float

    @classmethod
    def of_split_halves(
        cls, simulations: float, rounds: int, loss_scale: float, errors: np.ndarray
    ) -> "EmulatorSummary":
        """From split-half estimates of the errors, `(R, 2)`: the mean of their products has no noise in it."""
        product = errors[:, 0] * errors[:, 1]
        resolution = np.sqrt(product.std() / np.sqrt(len(product)))
        error = np.sqrt(max(product.mean(), 0.0))
        return cls(int(simulations), rounds, loss_scale, float(error), float(resolution))

    @property
    def is_wrong(self) -> bool:
        """Whether the error is larger than what is harmless, and can be told from none."""
        return self.error > max(WRONG, self.resolution)


@dataclass(frozen=True)
class Quadrature:
    """How far the minima move when the quadrature nodes are doubled and the grid, if any, is halved.

    Attributes:
        shift: `(R, p)` moves of `R` replicates that converged, to first order, in posterior standard deviations.
    """

    shift: np.ndarray

    @property
    def noise(self) -> float:
        """Largest root mean square move of a parameter, in posterior standard deviations; NaN if none converged."""
        if not len(self.shift):
            return float("nan")
        return float(np.sqrt(np.mean(np.square(self.shift), axis=0)).max())


@dataclass(frozen=True)
class Replicates:
    """Samples of the posterior bootstrap, unconstrained, with what is known of each.

    Attributes:
        u: Minimisers, `(B, p)`.
        value: Losses, `(B,)`.
        remaining: Newton step left, the largest over parameters, in posterior standard deviations, `(B,)`.
        converged: Whether that is at most 0.01, the loss is convex there and not above its value at the full-data
            minimum.
        steps: Evaluations used, `(B,)`.
        moved: Whether a restart found a lower minimum, which is the one kept.
        linear: One-step approximations, `(B, p)`; on an emulator, the first starts.
        numbers: Further numbers of the loss, such as `mixing_proportion` and its error were it one, by name.
        compared: How many replicates were restarted elsewhere.
        quadrature: The check of the quadrature nodes and the grid; on an emulator, how far its networks are apart.
        derivatives: How the loss was differentiated.
        fit: The minimum on the full data.
        nodes: The quadrature nodes; the full data used the first set.
        reweightings: Data weights, centering points and node set of each replicate.
        anchors: Prior anchor of each replicate, `(B, p)`, where the loss is minimised on an emulator.
        emulator: What is known of the emulator, if there is one.
    """

    u: np.ndarray
    value: np.ndarray
    remaining: np.ndarray
    converged: np.ndarray
    steps: np.ndarray
    moved: np.ndarray
    linear: np.ndarray
    numbers: dict[str, np.ndarray]
    compared: int
    quadrature: Quadrature
    derivatives: Derivatives
    fit: Fit
    nodes: QuadratureNodes
    reweightings: Reweightings
    anchors: np.ndarray | None = None
    emulator: EmulatorSummary | None = None


def posterior_bootstrap(
    rng_key: jax.Array,
    objective: WeightedObjective,
    starts: np.ndarray,
    process: DirichletProcess | None = None,
    settings: Settings | None = None,
) -> Replicates:
    r"""Sample the posterior that a Dirichlet process on the distribution of the data puts on the minimum-loss
    parameters.

    Replicate `b` has random weights `w_b` and minimises the loss between the weighted data and the model. It starts
    from one Newton step off the full-data minimum, and simulates with node set `1 + b // 16`: noise is sampled anew
    across replicates, and nothing depends on how replicates are batched or on which device they run.

    Args:
        rng_key: The only source of randomness.
        objective: A loss bound to data, `loss.objective(data, generator)`.
        starts: `(S, p)` starting points for the full-data minimum.
        process: The Dirichlet-process prior.
        settings: Sizes and method.
    Raises:
        RuntimeError: If a loss is negative, beyond its error: the nodes are too few.

    Cost: about 3 to 6 evaluations of the loss and its gradient a replicate.
    References: Dellaporta et al. (2022), AISTATS; Lyddon, Walker and Holmes (2018), NeurIPS.
    """
    process, settings = process or DirichletProcess(), settings or Settings()
    if settings.method == "emulated":
        from numpyro_kme.bootstrap.emulated import emulated_bootstrap  # which returns `Replicates`

        return emulated_bootstrap(rng_key, objective, starts, process, settings)
    keys = jax.random.split(rng_key, 3)
    ids = np.arange(settings.num_samples)
    blocks = 1 + -(-settings.num_samples // BLOCK)
    num_nodes = settings.num_nodes or FIRST_NODES
    nodes = objective.generator.draw_nodes(keys[0], _nodes(num_nodes, objective), blocks)
    pilot = draw_reweightings(keys[1], objective, process, PILOT + np.arange(BLOCK), 1)
    ready = prepare(keys[2], objective, nodes, pilot, starts, settings)
    if settings.num_nodes is None and (times := enough_nodes(ready)) > 1:
        num_nodes *= times
        nodes = objective.generator.draw_nodes(keys[0], _nodes(num_nodes, objective), blocks)
        ready = replace(ready, nodes=nodes, fit=refit(ready.objective, nodes, ready.fit))
    objective, nodes, full = ready.objective, ready.nodes, ready.fit
    whole = full.raised(float(offsets(objective, full_data(objective))[0]))
    require_possible(whole.value, whole.numbers)
    reweightings = draw_reweightings(keys[1], objective, process, ids, len(nodes.weights))
    problems = Problems(objective, nodes, reweightings)
    linear, before = one_step(problems, full)
    control = Control(ready.scale, tolerance=0.3 * TOLERANCE, max_steps=12 if settings.method == "newton" else 1)
    moved, compared = np.zeros(len(ids), bool), 0
    found = problems.solve(linear, full.hessian, control, exact=False, progress_bar=settings.progress_bar)
    if settings.method == "newton":
        found = rescue(problems, full, found, before, control)
        found, moved, compared = restart(problems, full, ready.pool, found, control, settings.restart_every)
    value = found.value + offsets(objective, reweightings)
    require_possible(value, found.numbers)
    sd = posterior_sd(found.u)
    with np.errstate(over="ignore"):  # the steps that a flat loss leaves
        remaining = np.abs(found.remaining / sd).max(axis=1)
    converged = (remaining <= TOLERANCE) & found.convex & ((found.value <= before) | (not objective.is_smooth))
    ends = np.flatnonzero(converged)
    check = ends[np.unique(np.linspace(0, len(ends) - 1, min(BLOCK, len(ends))).astype(int))]
    return Replicates(
        u=found.u,
        value=value,
        remaining=remaining,
        converged=converged,
        steps=found.steps,
        moved=moved,
        linear=linear,
        numbers=found.numbers,
        compared=compared,
        quadrature=_quadrature(
            keys[2], objective, reweightings.rows(check), found, check, full, sd, _nodes(2 * num_nodes, objective)
        ),
        derivatives=ready.derivatives,
        fit=whole,
        nodes=to_host(nodes),
        reweightings=reweightings,
    )


def _nodes(num_nodes: int, objective: WeightedObjective) -> int:
    """Twice as many where a grid makes them cheap."""
    return num_nodes * (2 if objective.has_cheap_hessian else 1)


def _quadrature(rng_key, objective, reweightings, found, rows, full, sd, num) -> Quadrature:
    """Move of each minimum by one Newton step of the finer problem: `num` nodes of its own and a halved grid.

    Where a replicate's Hessian is flat, as it can be where simulated points jump, that of the full data takes its
    place.
    """
    if not len(rows):
        return Quadrature(np.empty((0, len(sd))))
    nodes = objective.adapt_nodes(full.u, num)
    if nodes is None:
        nodes = objective.generator.draw_nodes(rng_key, num, len(reweightings))
    sets = np.minimum(np.arange(len(reweightings)), len(nodes.weights) - 1)
    _, gradient = Problems(objective.refined(), nodes, replace(reweightings, sets=sets)).slopes(found.u[rows])
    units = full.scale[:, None] * full.scale[None]
    least = 1e-6 * np.abs(np.linalg.eigvalsh(full.hessian * units)).max()
    sound = np.abs(np.linalg.eigvalsh(found.hessian[rows] * units)).min(axis=-1) > least
    hessians = np.where(sound[:, None, None], found.hessian[rows], full.hessian)
    return Quadrature(np.stack([newton_step(h, g) for h, g in zip(hessians, gradient)]) / sd)


def rescue(problems: Problems, full: Fit, found: Minimum, ceiling: np.ndarray, control: Control) -> Minimum:
    """Minimise again, with damping and from the full-data minimum, where the first attempt stopped short."""
    left = np.abs(found.remaining / control.scale).max(axis=1)
    lower = (found.value <= ceiling) | (not problems.objective.is_smooth)
    short = np.flatnonzero(~((left <= control.tolerance) & found.convex & lower))
    if not len(short):
        return found
    careful = control._replace(max_steps=60, damping=0.03, stride=3.0)
    again = problems.rows(short).solve(full.u, full.hessian, careful)
    return keep_lower(found, again, short)


def restart(
    problems: Problems, full: Fit, starts: np.ndarray, found: Minimum, control: Control, every: int
) -> tuple[Minimum, np.ndarray, int]:
    """Minimise one replicate in `every` from elsewhere; where that finds lower minima, minimise all from there too.

    Elsewhere: the other minima of the full data in turn, or `starts` where there are none.

    Returns:
        The minima, which replicates moved, and how many were compared.
    """
    every_one = np.arange(len(problems.reweightings))
    some = every_one[::every]
    pool = full.others if len(full.others) else starts
    careful = control._replace(scale=full.scale, tolerance=1e-4, max_steps=20, damping=0.1, stride=1.0)
    moved = np.zeros(len(every_one), bool)

    def lower(index, start):
        elsewhere = problems.rows(index).solve(start, full.hessian, careful)
        polished = problems.rows(index).solve(elsewhere.u, elsewhere.hessian, control, exact=False)
        apart = np.abs((polished.u - found.u[index]) / control.scale).max(axis=1) > 0.1
        return polished, apart & (polished.value < found.value[index])

    which = np.arange(len(some)) % len(pool)
    polished, better = lower(some, pool[which])
    for start in np.unique(which[better]):
        polished, better = lower(every_one, pool[start])
        found = keep_lower(found, jax.tree.map(lambda leaf, rows=better: leaf[rows], polished), every_one[better])
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
