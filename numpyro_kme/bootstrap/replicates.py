"""The posterior bootstrap: one minimisation for each reweighting of the data, each one checked."""

from dataclasses import replace

import jax
import numpy as np

from numpyro_kme._core.host import to_host
from numpyro_kme.bootstrap import batched
from numpyro_kme.bootstrap.batched import Control
from numpyro_kme.bootstrap.emulated.bootstrap import emulated_bootstrap
from numpyro_kme.bootstrap.fit import full_data, newton_step, require_possible
from numpyro_kme.bootstrap.preparation import Settings, one_step, posterior_sd, prepare
from numpyro_kme.bootstrap.restarts import rescue, restart
from numpyro_kme.bootstrap.results import TOLERANCE, Quadrature, Replicates
from numpyro_kme.bootstrap.weights import PILOT, DirichletProcess, draw_reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import BLOCK, num_sets


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
        RuntimeError: If a loss is negative or a mixing proportion above one, beyond their errors: the nodes are too
            few.

    Cost: about 3 to 6 evaluations of the loss and its gradient a replicate.
    References: Dellaporta et al. (2022), AISTATS; Lyddon, Walker and Holmes (2018), NeurIPS.
    """
    process, settings = process or DirichletProcess(), settings or Settings()
    if settings.method == "emulated":
        return emulated_bootstrap(rng_key, objective, starts, process, settings)
    keys = jax.random.split(rng_key, 3)
    ids = np.arange(settings.num_samples)
    nodes = objective.generator.draw_nodes(keys[0], settings.nodes(objective), 1 + -(-settings.num_samples // BLOCK))
    pilot = draw_reweightings(keys[1], objective, process, PILOT + np.arange(BLOCK), 1)
    ready = prepare(keys[2], objective, nodes, pilot, starts, settings)
    objective, nodes, full = ready.objective, ready.nodes, ready.fit
    whole = full.raised(float(batched.offsets(objective, full_data(objective, 0))[0]))
    require_possible(whole.value, whole.numbers)
    reweightings = draw_reweightings(keys[1], objective, process, ids, num_sets(nodes))
    linear, before = one_step(objective, nodes, reweightings, full)
    control = Control(ready.scale, tolerance=0.3 * TOLERANCE, max_steps=12 if settings.method == "newton" else 1)
    moved, compared = np.zeros(len(ids), bool), 0
    how = {"exact": False, "progress_bar": settings.progress_bar}
    found = batched.solve(objective, nodes, reweightings, linear, full.hessian, control, **how)
    if settings.method == "newton":
        found = rescue(objective, nodes, reweightings, full, found, before, control)
        every = settings.restart_every
        found, moved, compared = restart(objective, nodes, reweightings, full, ready.pool, found, control, every)
    value = found.value + batched.offsets(objective, reweightings)
    require_possible(value, found.numbers)
    sd = posterior_sd(found.u)
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
        quadrature=_quadrature(keys[2], objective, reweightings.rows(check), found, check, full, sd, settings),
        derivatives=ready.derivatives,
        fit=whole,
        nodes=to_host(nodes),
        reweightings=reweightings,
    )


def _quadrature(rng_key, objective, reweightings, found, rows, full, sd, settings) -> Quadrature:
    """Move of each minimum by one Newton step of the finer problem: doubled nodes of its own and a halved grid.

    Where a replicate's Hessian is flat, as it can be where simulated points jump, that of the full data takes its
    place.
    """
    num = 2 * settings.nodes(objective)
    nodes = objective.adapt_nodes(full.u, num)
    if nodes is None:
        nodes = objective.generator.draw_nodes(rng_key, num, len(reweightings))
    sets = np.minimum(np.arange(len(reweightings)), num_sets(nodes) - 1)
    _, gradient = batched.slopes(objective.refined(), nodes, replace(reweightings, sets=sets), found.u[rows])
    units = full.scale[:, None] * full.scale[None]
    least = 1e-6 * np.abs(np.linalg.eigvalsh(full.hessian * units)).max()
    sound = np.abs(np.linalg.eigvalsh(found.hessian[rows] * units)).min(axis=-1) > least
    hessians = np.where(sound[:, None, None], found.hessian[rows], full.hessian)
    return Quadrature(np.stack([newton_step(h, g) for h, g in zip(hessians, gradient)]) / sd)
