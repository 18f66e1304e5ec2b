"""The posterior bootstrap: one minimisation for each reweighting of the data, each one checked."""

from dataclasses import dataclass, replace
from typing import Literal

import jax
import numpy as np

from numpyro_kme import _checks
from numpyro_kme.bootstrap import lanes
from numpyro_kme.bootstrap.derivatives import DISAGREE, Derivatives, compare_derivatives
from numpyro_kme.bootstrap.fit import Fit, fit, newton_step, rank_starts, refit, spread
from numpyro_kme.bootstrap.lanes import Control, Tasks
from numpyro_kme.bootstrap.newton import Minimum
from numpyro_kme.bootstrap.weights import DirichletProcess, draw_weights
from numpyro_kme.losses.base import Objective
from numpyro_kme.losses.differenced import Differenced
from numpyro_kme.losses.generator import BLOCK, Nodes, num_sets

TOLERANCE = 0.01
"""A replicate has converged when its remaining Newton step is at most this many posterior standard
deviations."""

PILOT = 2**30
"""Replicates numbered from here on set the scale of the others: it must not depend on how many there are."""

NARROW, WIDE = 0.02, 0.3
"""Difference steps are a posterior standard deviation, but within these shares of the spread of the
starting points."""


@dataclass(frozen=True)
class Settings:
    """How a posterior bootstrap is computed.

    Attributes:
        num_samples: Replicates `B`.
        num_nodes: Noise nodes `M` of the model's law in each minimisation.
        method: `"newton"` minimises; `"linear"` takes one Newton step from the full-data minimum (the
            influence function).
        restart_every: One replicate in this many is restarted from elsewhere and compared.
    """

    num_samples: int = 500
    num_nodes: int = 512
    method: Literal["newton", "linear"] = "newton"
    restart_every: int = 20

    def __post_init__(self):
        _checks.require(self.num_samples >= 1, f"`num_samples` must be at least 1; got {self.num_samples}.")
        _checks.require(self.num_nodes >= 8, f"`num_nodes` must be at least 8; got {self.num_nodes}.")
        _checks.require(
            self.method in ("newton", "linear"),
            f'`method` must be "newton" or "linear"; got {self.method!r}.',
        )


@dataclass(frozen=True)
class Quadrature:
    """How far the minima move when the noise nodes are doubled and the grid, if any, is halved.

    Attributes:
        shift: `(R, p)` moves of `R` replicates, to first order, in posterior standard deviations.
    """

    shift: np.ndarray

    @property
    def noise(self) -> float:
        """Largest root mean square move of a parameter, in posterior standard deviations."""
        return float(np.sqrt(np.mean(np.square(self.shift), axis=0)).max())


@dataclass(frozen=True)
class Replicates:
    """Draws of the posterior bootstrap, unconstrained, with what is known of each.

    Attributes:
        u: `(B, p)` minimisers.
        value: Losses `(B,)`.
        remaining: Newton step left, the largest over parameters, in posterior standard deviations, `(B,)`.
        converged: Whether that is at most .01, the loss is convex there and not above its value at the
            full-data minimum.
        steps: Evaluations used, `(B,)`.
        moved: Whether a restart found a lower minimum, which is the one kept.
        linear: One-step approximations `(B, p)`.
        numbers: Further numbers of the loss, such as `share`, by name.
        compared: How many replicates were restarted elsewhere.
        quadrature: The check of the noise nodes and the grid.
        derivatives: How the loss was differentiated.
        fit: The minimum on the full data.
        nodes: The noise nodes; the full data used the first set.
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
    nodes: Nodes


def posterior_bootstrap(
    rng_key: jax.Array,
    objective: Objective,
    starts: np.ndarray,
    process: DirichletProcess | None = None,
    settings: Settings | None = None,
) -> Replicates:
    r"""Draw from the posterior that a Dirichlet process on the data's law puts on the minimum-loss
    parameters.

    Replicate `b` draws weights `w_b` and minimises the loss between the weighted data and the model. It
    starts from one Newton step off the full-data minimum, and simulates with noise set `b // 16`: noise is
    drawn anew across replicates, and nothing depends on how replicates are batched or on which device they
    run.

    Args:
        rng_key: The only source of randomness.
        objective: A loss bound to data, `loss.objective(data, generator)`.
        starts: `(S, p)` starting points for the full-data minimum.
        process: The Dirichlet-process prior.
        settings: Sizes and method.

    Cost: about 3 to 6 evaluations of the loss and its gradient a replicate.
    References: Dellaporta et al. (2022), AISTATS; Lyddon, Walker and Holmes (2018), NeurIPS.
    """
    process, settings = process or DirichletProcess(), settings or Settings()
    keys = jax.random.split(rng_key, 3)
    ids = np.arange(settings.num_samples)
    nodes = objective.generator.draw_nodes(keys[0], settings.num_nodes, 1 + -(-settings.num_samples // BLOCK))
    pilot = draw_tasks(keys[1], objective, process, PILOT + np.arange(BLOCK), 1)
    objective, nodes, full, scale, derivatives = _prepare(objective, nodes, pilot, starts, settings)
    tasks = draw_tasks(keys[1], objective, process, ids, num_sets(nodes))
    linear, value = _one_step(objective, nodes, tasks, full)
    control = Control(scale, tolerance=0.3 * TOLERANCE, max_steps=12 if settings.method == "newton" else 1)
    found = lanes.solve(objective, nodes, tasks, linear, full.hessian, control)
    moved, compared = np.zeros(len(ids), bool), 0
    if settings.method == "newton":
        found = _rescue(objective, nodes, tasks, full, found, value, control)
        found, moved, compared = _restart(objective, nodes, tasks, full, starts, found, control, settings)
    sd = _sd(found.u)
    remaining = np.abs(found.remaining / sd).max(axis=1)
    check = np.unique(np.linspace(0, len(ids) - 1, min(BLOCK, len(ids))).astype(int))
    return Replicates(
        u=found.u,
        value=found.value + lanes.offsets(objective, tasks),
        remaining=remaining,
        converged=(remaining <= TOLERANCE) & found.convex & (found.value <= value),
        steps=found.steps,
        moved=moved,
        linear=linear,
        numbers=found.numbers,
        compared=compared,
        quadrature=_quadrature(keys[2], objective, tasks.rows(check), found.u[check], full, sd, settings),
        derivatives=derivatives,
        fit=full,
        nodes=nodes,
    )


def _prepare(objective: Objective, nodes: Nodes, pilot: Tasks, starts: np.ndarray, settings: Settings):
    """Fit the full data, place the nodes, and settle how to differentiate: the objective, nodes, fit,
    scale, and why."""
    ranked, width = rank_starts(objective, nodes, 0, starts), spread(starts)
    derivatives = Derivatives(objective.generator.differentiable, None)
    if derivatives.automatic:
        placed, full, scale = _fit_and_place(objective, nodes, pilot, ranked, width, settings)
        flat = scale < 1e-6 * width  # no derivative at all: look over a wide step
        steps = np.where(flat, NARROW * width, np.minimum(scale, WIDE * width))
        disagreement = compare_derivatives(objective, placed, pilot, full.u, steps)
        derivatives = Derivatives(bool((disagreement <= DISAGREE).all()), disagreement)
        if derivatives.automatic:
            return objective, placed, full, scale, derivatives
    objective = Differenced(objective, 0.1 * width)
    for _ in range(2):
        nodes, full, scale = _fit_and_place(objective, nodes, pilot, ranked, width, settings)
        objective = replace(objective, steps=np.clip(scale, NARROW * width, WIDE * width))
        ranked = np.concatenate([full.u[None], full.others])[:BLOCK]
    full = refit(objective, nodes, 0, full)
    return objective, nodes, full, _sd(_one_step(objective, nodes, pilot, full)[0]), derivatives


def _fit_and_place(objective, nodes, pilot, starts, width, settings) -> tuple[Nodes, Fit, np.ndarray]:
    """Minimise on the full data, place the nodes for the minimum, and take a first look at the posterior's
    scale."""
    full = fit(objective, nodes, 0, starts, width)
    placed = objective.place(full.u, settings.num_nodes)
    if placed is not None:
        nodes, full = placed, refit(objective, placed, 0, full)
    return nodes, full, _sd(_one_step(objective, nodes, pilot, full)[0])


def draw_tasks(
    rng_key: jax.Array, objective: Objective, process: DirichletProcess, ids: np.ndarray, sets: int
) -> Tasks:
    """Draw the weights and centering points of replicates `ids`, with the node set of each."""
    weights_key, points_key = jax.random.split(rng_key)
    extra = process.points(points_key, ids, objective.data)
    weights = draw_weights(process, weights_key, ids, objective.data)
    return Tasks(weights, extra, np.minimum(1 + ids // BLOCK, sets - 1))


def _one_step(objective: Objective, nodes: Nodes, tasks: Tasks, full: Fit) -> tuple[np.ndarray, np.ndarray]:
    """One Newton step of each replicate from the full-data minimum, and its loss before the step."""
    value, gradient = lanes.slopes(objective, nodes, tasks, full.u)
    return full.u + newton_step(full.hessian, gradient), value


def _rescue(
    objective: Objective,
    nodes: Nodes,
    tasks: Tasks,
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
    again = lanes.solve(objective, nodes, tasks.rows(short), full.u, full.hessian, careful)
    return _keep_lower(found, again, short)


def _restart(
    objective: Objective,
    nodes: Nodes,
    tasks: Tasks,
    full: Fit,
    starts: np.ndarray,
    found: Minimum,
    control: Control,
    settings: Settings,
) -> tuple[Minimum, np.ndarray, int]:
    """Minimise some replicates from elsewhere; where that finds lower minima, minimise all from there too.

    Elsewhere: the other minima of the full data in turn, or starting points where there are none.
    """
    some = np.arange(0, len(tasks), settings.restart_every)
    pool = full.others if len(full.others) else np.asarray(starts)
    careful = replace(control, scale=full.scale, tolerance=1e-4, max_steps=30, damping=0.1, stride=1.0)
    moved = np.zeros(len(tasks), bool)

    def lower(index, start):
        elsewhere = lanes.solve(objective, nodes, tasks.rows(index), start, full.hessian, careful)
        polished = lanes.solve(objective, nodes, tasks.rows(index), elsewhere.u, elsewhere.hessian, control)
        apart = np.abs((polished.u - found.u[index]) / control.scale).max(axis=1) > 0.1
        return polished, apart & (polished.value < found.value[index])

    which = np.arange(len(some)) % len(pool)
    polished, better = lower(some, pool[which])
    for start in np.unique(which[better]):
        rows = np.arange(len(tasks))
        polished, better = lower(rows, pool[start])
        found = _keep_lower(found, jax.tree.map(lambda leaf, rows=better: leaf[rows], polished), rows[better])
        moved |= better
    return found, moved, len(some)


def _keep_lower(found: Minimum, again: Minimum, rows: np.ndarray) -> Minimum:
    """Replace rows by a second attempt where its loss is lower, or equal with less left to go."""
    closer = np.abs(again.remaining).max(axis=1) < np.abs(found.remaining[rows]).max(axis=1)
    take = (again.value < found.value[rows]) | ((again.value <= found.value[rows]) & closer)

    def mix(old, new):
        old = np.array(old)
        old[rows[take]] = new[take]
        return old

    return jax.tree.map(mix, found, again)


def _quadrature(rng_key, objective, tasks, u, full, sd, settings) -> Quadrature:
    """Move of each minimum by one Newton step of the finer problem: doubled nodes of its own and a halved
    grid."""
    nodes = objective.place(full.u, 2 * settings.num_nodes)
    if nodes is None:
        nodes = objective.generator.draw_nodes(rng_key, 2 * settings.num_nodes, len(tasks))
    sets = np.minimum(np.arange(len(tasks)), num_sets(nodes) - 1)
    finer = lanes.expand(objective.refined(), nodes, replace(tasks, sets=sets), u)
    return Quadrature(np.stack([newton_step(h, g) for h, g in zip(finer.hessian, finer.gradient)]) / sd)


def _sd(u: np.ndarray) -> np.ndarray:
    """Robust standard deviations over replicates, never zero."""
    low, high = np.quantile(u, [0.16, 0.84], axis=0)
    return np.maximum(0.5 * (high - low), 1e-12 * (1.0 + np.abs(u).max(axis=0)))
