"""The posterior bootstrap: one minimisation for each reweighting of the data, each one checked."""

from dataclasses import dataclass, replace

import jax
import numpy as np

from numpyro_kme._core import progress
from numpyro_kme._core.display import Card, frozen
from numpyro_kme._core.host import to_host
from numpyro_kme._core.keys import split
from numpyro_kme.bootstrap.fit import Fit, full_data, newton_step, require_possible
from numpyro_kme.bootstrap.local import finer, leaves_basin, localise, localises
from numpyro_kme.bootstrap.newton import Control, Problems, offsets
from numpyro_kme.bootstrap.preparation import (
    FEW_NODES,
    FIRST_NODES,
    MOST,
    OF_A_RULE,
    Derivatives,
    Prepared,
    one_step,
    posterior_sd,
    prepare,
    root_mean_square,
    with_enough_nodes,
    with_lower_minimum,
    with_nodes,
)
from numpyro_kme.bootstrap.second_attempts import rescue, restart
from numpyro_kme.bootstrap.settings import Settings
from numpyro_kme.bootstrap.surface import measured
from numpyro_kme.bootstrap.weights import PILOT, DirichletProcess, Reweightings, draw_reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import BLOCK, QuadratureNodes
from numpyro_kme.losses.local_mmd import LocalMMD

WRONG = 0.5
"""Errors of an emulated loss up to this many units of log-likelihood are harmless."""

COARSE = 0.5
"""Moves of draws to minima of wider surfaces, in posterior standard deviations, beyond which a warning says so: of a
rounded g-and-k and a mixture whose posteriors were off by 0.5 to 3 they are 0.6 to 1.9, of counts 0.01 to 0.08, and of
that mixture without outliers 0.3, where the posterior is off by 0.15."""

NOISY = 0.1
"""Simulation noise above this many posterior standard deviations is warned of, and asks for more nodes."""

LARGEST_REMAINING = 0.01
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


@frozen
class Quadrature:
    """How far the minima move when the quadrature nodes are doubled and the grid, if any, is halved.

    Attributes:
        shift: `(R, p)` moves of `R` replicates that converged, to first order, in posterior standard deviations.
        widened: Where polynomial surfaces stand for the loss, the moves to minima of surfaces half as wide again.
    """

    shift: np.ndarray
    widened: np.ndarray | None = None

    @property
    def noise(self) -> float:
        """Largest root mean square move of a parameter, in posterior standard deviations; NaN if none converged."""
        return root_mean_square(self.shift)

    @property
    def surface_error(self) -> float:
        """The same of wider surfaces; NaN where there are none."""
        return root_mean_square(np.empty((0, 1)) if self.widened is None else self.widened)


@frozen
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
        nodes: The quadrature nodes; the full data used the first set. Of a local loss (`local.py`) one of the sets
            behind its correction.
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

    def _card(self) -> Card:
        return Card(
            f"{len(self.u):,} replicates of a posterior bootstrap, unconstrained",
            {
                "converged": f"{np.mean(self.converged):.1%}",
                "compared": f"{self.compared} were restarted elsewhere, {int(np.sum(self.moved))} moved",
                "quadrature noise": f"{self.quadrature.noise:.2g} posterior standard deviations",
                "evaluations": f"{np.mean(self.steps):.3g} each",
            },
            "`u` are the samples, unconstrained; `fit` is the minimum on the full data",
        )


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
        from numpyro_kme.bootstrap.emulated.replicates import emulated_bootstrap  # which returns `Replicates`

        return emulated_bootstrap(rng_key, objective, starts, process, settings)
    keys = split(rng_key, 3)
    blocks = 1 + -(-settings.num_samples // BLOCK)
    num_nodes = _nodes(settings.num_nodes or FIRST_NODES, objective)
    draw = lambda num, sets=blocks: objective.generator.draw_nodes(keys[0], num, sets)  # noqa: E731
    pilot = draw_reweightings(keys[1], objective, process, PILOT + np.arange(BLOCK), 1)
    with progress.phase("minimising the loss of the data", settings.progress_bar):
        first = _first_nodes(num_nodes, objective, settings)
        ready = prepare(keys[2], objective, draw(first), pilot, starts, settings)
    ids = np.arange(settings.num_samples)

    def minimised(ready, num, direct=None):
        reweightings = draw_reweightings(keys[1], objective, process, ids, len(ready.nodes.weights))
        return _replicates(keys[2], ready, num, reweightings, settings, direct)

    if settings.method == "newton":
        most = num_nodes * (1 if settings.num_nodes else MOST)
        near = localise(ready, pilot, draw, num_nodes, most)
        while near is not None:
            found = minimised(*near, ready)
            if not found.moved.any():
                if near[1] >= most or not found.quadrature.noise > NOISY:
                    return replace(found, nodes=to_host(draw(near[1], 1)))
                near = localise(ready, pilot, draw, num_nodes, most, 2 * near[1])
            elif (better := with_lower_minimum(ready, pilot)) is not None:
                ready = better
                near = localise(ready, pilot, draw, num_nodes, most)
            else:
                near = None
    if ready.surface is None and _follows_a_rule(objective):
        num_nodes = first
    elif first < num_nodes:
        ready = with_nodes(ready, draw(num_nodes), pilot)
    if settings.num_nodes is None:
        ready, num_nodes = with_enough_nodes(ready, pilot, num_nodes, draw)
    return minimised(ready, num_nodes)


def _replicates(
    rng_key: jax.Array,
    ready: Prepared,
    num_nodes: int,
    reweightings: Reweightings,
    settings: Settings,
    direct: Prepared | None = None,
) -> Replicates:
    """Minimise for each reweighting and check it; of a local loss, `direct` is what it stands for."""
    objective, nodes, full = ready.objective, ready.nodes, ready.fit
    noise = objective.generator.noise
    of_full = Problems(objective, nodes, full_data(objective))
    whole = full.raised(float(offsets(objective, of_full.reweightings)[0]))
    whole = replace(whole, numbers={name: value[0] for name, value in of_full.report(full.u).items()})
    require_possible(whole.value, whole.numbers, noise)
    problems = Problems(objective, nodes, reweightings)
    linear, before = one_step(problems, full)
    control = Control(
        ready.scale, largest_remaining=0.3 * LARGEST_REMAINING, max_steps=12 if settings.method == "newton" else 1
    )
    moved, compared = np.zeros(len(reweightings), bool), 0
    surface = ready.surface if settings.method == "newton" else None
    if surface is None:
        found = problems.solve(linear, full.hessian, control, progress_bar=settings.progress_bar)
    else:
        found = measured(problems, surface.follow(problems, surface.minimise(problems)))
    if settings.method == "newton":
        found = rescue(problems, full, found, before, control)
        pool, every = ready.pool, settings.restart_every
        if direct is None:
            found, moved, compared = restart(problems, full, pool, found, control, every, surface)
        else:
            exact = Problems(direct.objective, direct.nodes, reweightings)
            moved, compared = leaves_basin(exact, full, pool, found, control, every)
    value, numbers = found.value + offsets(objective, reweightings), problems.report(found.u)
    require_possible(value, numbers, noise)
    sd = posterior_sd(found.u)
    with np.errstate(over="ignore"):  # the steps that a flat loss leaves
        remaining = np.abs(found.remaining / sd).max(axis=1)
    converged = (remaining <= LARGEST_REMAINING) & found.convex & ((found.value <= before) | (not objective.is_smooth))
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
        numbers=numbers,
        compared=compared,
        quadrature=_quadrature(rng_key, objective, reweightings.rows(check), found, check, ready, sd, 2 * num_nodes),
        derivatives=ready.derivatives,
        fit=whole,
        nodes=to_host(nodes),
        reweightings=reweightings,
    )


def _nodes(num_nodes: int, objective: WeightedObjective) -> int:
    """Twice as many where a grid makes them cheap."""
    return num_nodes * (2 if objective.has_cheap_hessian else 1)


def _follows_a_rule(objective: WeightedObjective) -> bool:
    """Whether sums over nodes are those of a quadrature rule, as precise as the simulator is smooth."""
    generator = objective.generator
    return objective.has_cheap_hessian and generator.differentiable and generator.by_quadrature


def _first_nodes(num_nodes: int, objective: WeightedObjective, settings: Settings) -> int:
    """Nodes with which the full data are fitted."""
    if settings.method == "newton" and localises(objective):
        return min(num_nodes, FEW_NODES)
    return OF_A_RULE if settings.num_nodes is None and _follows_a_rule(objective) else num_nodes


def _quadrature(rng_key, objective, reweightings, found, rows, ready, sd, num) -> Quadrature:
    """Move of each minimum by one Newton step of the finer problem: `num` nodes of its own and a halved grid; of a
    surface, to the minimum of the finer one, and from there to that of one half as wide again.

    Where a replicate's Hessian is flat, as it can be where simulated points jump, that of the full data takes its
    place.
    """
    full = ready.fit
    if not len(rows):
        return Quadrature(np.empty((0, len(sd))))
    if isinstance(objective, LocalMMD):
        objective, nodes = finer(rng_key, objective, ready.nodes, num, len(reweightings))
    else:
        # twice what there are: nodes adapted to heavy tails are more than were asked for
        twice = max(num, 2 * ready.nodes.weights.shape[1])
        objective, nodes = objective.refined(), objective.adapt_nodes(full.u, twice)
        if nodes is None:
            nodes = objective.generator.draw_nodes(rng_key, num, len(reweightings))
    own = 0 if ready.surface else len(nodes.weights) - 1  # what shares its design's simulations shares nodes
    refined = Problems(objective, nodes, replace(reweightings, sets=np.minimum(np.arange(len(reweightings)), own)))
    if ready.surface:
        again, wider = (one.follow(refined, one.minimise(refined)) for one in (ready.surface, ready.surface.widened()))
        both = again.convex & wider.convex
        return Quadrature(((again.u - found.u[rows]) / sd)[again.convex], ((wider.u - again.u) / sd)[both])
    _, gradient = refined.slopes(found.u[rows])
    units = full.scale[:, None] * full.scale[None]
    least = 1e-6 * np.abs(np.linalg.eigvalsh(full.hessian * units)).max()
    sound = np.abs(np.linalg.eigvalsh(found.hessian[rows] * units)).min(axis=-1) > least
    hessians = np.where(sound[:, None, None], found.hessian[rows], full.hessian)
    return Quadrature(np.stack([newton_step(h, g) for h, g in zip(hessians, gradient)]) / sd)
