"""The posterior bootstrap: one minimisation for each reweighting of the data, each one checked."""

from dataclasses import dataclass, replace

import jax
import numpy as np

from numpyro_kme._core.host import to_host
from numpyro_kme.bootstrap import lanes
from numpyro_kme.bootstrap.derivatives import Derivatives
from numpyro_kme.bootstrap.emulated.emulator import LAST
from numpyro_kme.bootstrap.emulated.replicates import Emulation, emulate
from numpyro_kme.bootstrap.fit import Fit, full_data, newton_step, require_possible
from numpyro_kme.bootstrap.lanes import Control, Tasks
from numpyro_kme.bootstrap.preparation import Settings, one_step, prepare, robust_sd
from numpyro_kme.bootstrap.restarts import rescue, restart
from numpyro_kme.bootstrap.weights import DirichletProcess, draw_weights
from numpyro_kme.losses.base import Objective
from numpyro_kme.losses.generator import BLOCK, Nodes, num_sets

TOLERANCE = 0.01
"""A replicate has converged when its remaining Newton step is at most this many posterior standard
deviations."""

PILOT = 2**30
"""Replicates numbered from here on set the scale of the others: it must not depend on how many there are."""


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
        numbers: Further numbers of the loss, such as `share` and its error were it one, by name.
        compared: How many replicates were restarted elsewhere.
        quadrature: The check of the noise nodes and the grid.
        derivatives: How the loss was differentiated.
        fit: The minimum on the full data.
        nodes: The noise nodes; the full data used the first set.
        tasks: Weights and noise set of each replicate, and its prior point where the prior counts.
        emulation: What is known of the emulator, if there is one.
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
    tasks: Tasks
    emulation: Emulation | None = None


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
    Raises:
        RuntimeError: If a loss is negative or a share above one, beyond their errors: the nodes are too few.

    Cost: about 3 to 6 evaluations of the loss and its gradient a replicate.
    References: Dellaporta et al. (2022), AISTATS; Lyddon, Walker and Holmes (2018), NeurIPS.
    """
    process, settings = process or DirichletProcess(), settings or Settings()
    if settings.method == "emulated":
        return _on_emulator(rng_key, objective, starts, process, settings)
    keys = jax.random.split(rng_key, 3)
    ids = np.arange(settings.num_samples)
    nodes = objective.generator.draw_nodes(keys[0], settings.nodes(objective), 1 + -(-settings.num_samples // BLOCK))
    pilot = draw_tasks(keys[1], objective, process, PILOT + np.arange(BLOCK), 1)
    ready = prepare(keys[2], objective, nodes, pilot, starts, settings)
    objective, nodes, full = ready.objective, ready.nodes, ready.fit
    whole = full.raised(float(lanes.offsets(objective, full_data(objective, 0))[0]))
    require_possible(whole.value, whole.numbers)
    tasks = draw_tasks(keys[1], objective, process, ids, num_sets(nodes))
    linear, before = one_step(objective, nodes, tasks, full)
    control = Control(ready.scale, tolerance=0.3 * TOLERANCE, max_steps=12 if settings.method == "newton" else 1)
    moved, compared = np.zeros(len(ids), bool), 0
    found = lanes.solve(objective, nodes, tasks, linear, full.hessian, control, exact=False)
    if settings.method == "newton":
        found = rescue(objective, nodes, tasks, full, found, before, control)
        every = settings.restart_every
        found, moved, compared = restart(objective, nodes, tasks, full, ready.pool, found, control, every)
    value = found.value + lanes.offsets(objective, tasks)
    require_possible(value, found.numbers)
    sd = robust_sd(found.u)
    remaining = np.abs(found.remaining / sd).max(axis=1)
    check = np.unique(np.linspace(0, len(ids) - 1, min(BLOCK, len(ids))).astype(int))
    return Replicates(
        u=found.u,
        value=value,
        remaining=remaining,
        converged=(remaining <= TOLERANCE) & found.convex & (found.value <= before),
        steps=found.steps,
        moved=moved,
        linear=linear,
        numbers=found.numbers,
        compared=compared,
        quadrature=_quadrature(keys[2], objective, tasks.rows(check), found, check, full, sd, settings),
        derivatives=ready.derivatives,
        fit=whole,
        nodes=to_host(nodes),
        tasks=tasks,
    )


def _on_emulator(rng_key, objective, starts, process, settings) -> Replicates:
    """Minimise on an emulator; the nodes are for people who look at the loss itself."""
    keys = jax.random.split(rng_key, 3)

    def tasks(ids):
        found = draw_tasks(keys[1], objective, process, ids, 1)
        size, count = (settings.prior_draws,), len(starts)
        rows = jax.vmap(lambda b: jax.random.randint(jax.random.fold_in(keys[2], b), size, 0, count))(ids)
        return replace(found, extra=(found.extra, np.asarray(rows)))

    def pilot(number, count):
        return tasks(PILOT + number * 2**16 + np.arange(count))

    own = tasks(np.arange(settings.num_samples))
    done = emulate(keys[0], objective, np.asarray(starts, np.float64), pilot, own, settings)
    require_possible(done.fit.value, done.fit.numbers)
    require_possible(done.minima.value, done.numbers)
    minima, sd = done.minima, robust_sd(done.minima.x)
    remaining = np.abs(minima.remaining / sd).max(axis=1)
    return Replicates(
        u=minima.x,
        value=minima.value,
        remaining=remaining,
        converged=(remaining <= TOLERANCE) & minima.convex,
        steps=np.full(len(own), 2 * LAST),
        moved=done.moved,
        linear=done.starts,
        numbers=done.numbers,
        compared=len(own),
        quadrature=Quadrature(done.shift / sd),
        derivatives=Derivatives(True, None),
        fit=done.fit,
        nodes=objective.generator.draw_nodes(keys[0], settings.num_nodes, 1),
        tasks=replace(own, extra=(own.extra[0], done.towards)),
        emulation=done.emulation,
    )


def draw_tasks(
    rng_key: jax.Array, objective: Objective, process: DirichletProcess, ids: np.ndarray, sets: int
) -> Tasks:
    """Draw the weights and centering points of replicates `ids`, with the node set of each."""
    weights_key, points_key = jax.random.split(rng_key)
    extra = process.points(points_key, ids, objective.data)
    weights = draw_weights(process, weights_key, ids, objective.data)
    return Tasks(weights, extra, np.minimum(1 + ids // BLOCK, sets - 1))


def _quadrature(rng_key, objective, tasks, found, rows, full, sd, settings) -> Quadrature:
    """Move of each minimum by one Newton step of the finer problem: doubled nodes of its own and a halved grid.

    Where a replicate's Hessian is flat, as that of draws that jump can be, the full data's takes its place.
    """
    num = 2 * settings.nodes(objective)
    nodes = objective.place(full.u, num)
    if nodes is None:
        nodes = objective.generator.draw_nodes(rng_key, num, len(tasks))
    sets = np.minimum(np.arange(len(tasks)), num_sets(nodes) - 1)
    _, gradient = lanes.slopes(objective.refined(), nodes, replace(tasks, sets=sets), found.u[rows])
    units = full.scale[:, None] * full.scale[None]
    least = 1e-6 * np.abs(np.linalg.eigvalsh(full.hessian * units)).max()
    sound = np.abs(np.linalg.eigvalsh(found.hessian[rows] * units)).min(axis=-1) > least
    hessians = np.where(sound[:, None, None], found.hessian[rows], full.hessian)
    return Quadrature(np.stack([newton_step(h, g) for h, g in zip(hessians, gradient)]) / sd)
