"""The posterior bootstrap on an emulator of the simulator's mean embedding (`method="emulated"`).

A simulator whose output jumps, is noisy or is slow cannot be minimised over directly. Here small neural networks learn
`u -> mu_u`, the mean embedding as a function of the parameters, from simulations in rounds that move to where
replicates have their minima; then every replicate of the bootstrap is minimised on the networks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np

from numpyro_kme._core import checks, progress
from numpyro_kme._core.keys import child, split
from numpyro_kme.bootstrap import newton
from numpyro_kme.bootstrap.emulated.emulator import FINAL_ITERATIONS, EmulatedMinima, Emulator, calibrated_loss_scale
from numpyro_kme.bootstrap.emulated.training_set import TrainingSimulator, fit_features, together
from numpyro_kme.bootstrap.fit import SAME, Fit, distinct, full_data, starting_scale
from numpyro_kme.bootstrap.preparation import FIRST_NODES, Derivatives, posterior_sd
from numpyro_kme.bootstrap.replicates import LARGEST_REMAINING, EmulatorSummary, Quadrature, Replicates
from numpyro_kme.bootstrap.settings import Settings
from numpyro_kme.bootstrap.weights import PILOT, DirichletProcess, Reweightings, draw_reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import BLOCK
from numpyro_kme.losses.grid_mmd import GridMMD
from numpyro_kme.losses.mmd import DirectMMD

EXPLORE, REFINE = 7, 6
"""Rounds of simulations, at most, in which the loss is tempered, and those in which it is not."""

RATIOS = 2, 4
"""Simulations at each point of a round that explores and of one that refines, for one at a point of the prior."""


FIRST_TEMPERATURE, COOLING = 1e3, 6.0
"""First temperature of the loss, and the largest factor by which a round lowers it."""

SCALE_POINTS = 64
"""Pilot minima at which the loss scale is found."""

STEPS = 2000, 5000
"""Steps of Adam in a round that explores and in one that refines."""


@dataclass(frozen=True)
class LearntEmulator:
    """An emulator after the last round.

    Attributes:
        emulator: The networks.
        loss_scale: One unit of log-likelihood in the loss.
        data_features: Features of the data, `(n, J)`.
        simulator: How simulations are made.
        each: Simulations at a point of the prior.
        rounds: Rounds that were made.
    """

    emulator: Emulator
    loss_scale: float
    data_features: np.ndarray
    simulator: TrainingSimulator
    each: int
    rounds: int


def design(num_simulations: int) -> tuple[int, int]:
    """Points of a round, at most 1,024, and simulations at a point of the prior, a power of two, for so many in all."""
    # simulations at a point of the prior, at least
    ratio, each = 2 + EXPLORE * RATIOS[0] + REFINE * RATIOS[1], 64
    while num_simulations > 1024 * ratio * each:
        each *= 2
    return num_simulations // (ratio * each), each


def learn(
    rng_key: jax.Array,
    objective: GridMMD | DirectMMD,
    starts: np.ndarray,
    pilot: Callable[[int, int], tuple[Reweightings, np.ndarray]],
    settings: Settings,
) -> LearntEmulator:
    r"""Learn `mu_u` where the replicates of a bootstrap have their minima.

    The first simulations are at samples of the prior. A round then trains the networks anew on everything there is,
    minimises the emulated loss of pilot replicates, divided by a temperature, each pulled to a prior anchor of its own,
    and simulates at their minima; half of these are moved by a sample of the normal distribution with the loss as
    negative log-density. The temperature falls to half of the error found there, and then to 1.

    Args:
        rng_key: The only source of randomness.
        objective: A squared MMD.
        starts: Samples of the prior `(S, p)`, unconstrained.
        pilot: `(round, count) -> reweightings` of the data, new ones for each round, and for each numbers of starting
            points `(count, K)`, the best of which is its prior anchor.
        settings: How many simulations, and the prior's weight.
    """
    points, each = design(settings.num_simulations)
    first_key, fit_key, round_key, _ = split(rng_key, 4)
    simulator = TrainingSimulator(objective.generator, np.median(starts, axis=0), starting_scale(starts))
    prior, weight = simulator.standardise(starts), settings.prior_weight
    x = prior[np.arange(2 * points) % len(prior)]
    simulated = simulator.simulate(first_key, x, each)
    features = fit_features(objective.kernel, together(objective.data, simulated))
    simulator = replace(simulator, features=features)
    training, data_features = simulator.summarise(x, simulated), features.at(objective.data)
    full = data_features.mean(axis=0)
    loss_scale = np.square(data_features).sum(axis=1).mean() / len(data_features)
    temperature, refined, rows = FIRST_TEMPERATURE, 0, (2 + EXPLORE + REFINE) * points
    for number in progress.progress(range(EXPLORE + REFINE + 1), "learning in rounds", settings.progress_bar):
        exploring = temperature > 1.0 and number < EXPLORE
        temperature = temperature if exploring else 1.0
        net_key, jitter_key = split(child(fit_key, number))
        steps = STEPS[0 if exploring else 1]
        emulator = Emulator.fit(net_key, training, full, objective.fit_proportion, rows, steps)
        reweightings, candidates = pilot(number, points)
        data = features.reweighted(data_features, reweightings) @ emulator.basis
        anchors = emulator.best(data, prior, candidates)
        tempered = loss_scale * temperature
        found = emulator.minimise(data, anchors, tempered, weight, emulator.starts(data, anchors, tempered, weight))
        tangents = emulator.tangents(found.x[:SCALE_POINTS], found.mixing_proportion[:SCALE_POINTS])
        loss_scale = calibrated_loss_scale(tangents, data)
        if refined == REFINE:
            break
        count = RATIOS[0 if exploring else 1] * each
        new = simulator.training_set(child(round_key, number), _jittered(jitter_key, found), count)
        errors = emulator.errors(new, data, found)[: points // 2] / loss_scale
        training, refined = training.join(new), refined + (not exploring)
        typical = np.sqrt(max(float(np.median(errors[:, 0] * errors[:, 1])), 0.0))
        temperature = float(np.clip(0.5 * typical, max(1.0, temperature / COOLING), temperature))
    return LearntEmulator(emulator, loss_scale, data_features, simulator, each, number)


def _jittered(rng_key: jax.Array, found: EmulatedMinima) -> np.ndarray:
    """The minima, the second half of them moved by normal noise with their Hessian as precision."""
    values, vectors = np.linalg.eigh(found.hessian)
    noise = np.asarray(jax.random.normal(rng_key, found.x.shape)) / np.sqrt(np.maximum(values, 1.0))
    moves = np.einsum("rpq,rq->rp", vectors, noise)
    return found.x + np.where(np.arange(len(moves))[:, None] < len(moves) // 2, 0.0, moves)


LEAST_STARTS, STARTS_PER_CANDIDATE = 2048, 128
"""Samples of the prior that an emulator begins with, at least; and for each candidate of a prior anchor."""


def least_starts(settings: Settings) -> int:
    """Samples of the prior that the emulated bootstrap needs: replicates choose their anchors among different ones."""
    return max(LEAST_STARTS, STARTS_PER_CANDIDATE * settings.prior_draws)


def emulated_bootstrap(
    rng_key: jax.Array, objective: WeightedObjective, starts: np.ndarray, process: DirichletProcess, settings: Settings
) -> Replicates:
    r"""Minimise the squared MMD of every reweighting on an emulator of `mu_u`, learnt as in `learn`, from two starts
    each.

    What is minimised is `loss / loss_scale + prior_weight |x - z|^2 / 2`, `x` in standard deviations of the prior and
    `z` the replicate's prior anchor. The quadrature nodes of the result are for people who look at the loss itself.

    Args:
        rng_key: The only source of randomness.
        objective: A squared MMD without covariates.
        starts: Samples of the prior `(S, p)`, unconstrained.
        process: The Dirichlet-process prior.
        settings: How many replicates and simulations, and the prior's weight.
    """
    if not isinstance(objective, GridMMD | DirectMMD) or objective.generator.covariates is not None:
        raise checks.explained(
            f'`method="emulated"` needs the squared MMD without covariates; got {type(objective).__name__}'
            f"{' with covariates' if objective.generator.covariates is not None else ''}. Use MMD(...), or leave "
            "`method` out."
        )
    learn_key, weights_key, anchor_key = split(rng_key, 3)
    starts = np.asarray(starts, np.float64)

    def anchored(ids):
        def some_starts(replicate):
            key = jax.random.fold_in(anchor_key, replicate)
            return jax.random.randint(key, (settings.prior_draws,), 0, len(starts))

        return draw_reweightings(weights_key, objective, process, ids, 1), np.asarray(jax.vmap(some_starts)(ids))

    def pilot(number, count):
        return anchored(PILOT + number * 2**16 + np.arange(count))

    own, own_candidates = anchored(np.arange(settings.num_samples))
    learnt = learn(learn_key, objective, starts, pilot, settings)
    emulator, simulator, loss_scale = learnt.emulator, learnt.simulator, learnt.loss_scale
    data = simulator.features.reweighted(learnt.data_features, own) @ emulator.basis
    anchors = emulator.best(data, simulator.standardise(starts), own_candidates)
    first, best, moved = _from_two_starts(emulator, data, anchors, loss_scale, settings.prior_weight)
    # simulations at each replicate's minimum, which judge the emulator, for one at a point of the prior
    unseen = simulator.training_set(jax.random.split(learn_key, 4)[3], best.x, 16 * learnt.each)
    summary = EmulatorSummary.of_split_halves(
        emulator.training.counts.sum() + unseen.counts.sum(),
        learnt.rounds,
        loss_scale,
        emulator.errors(unseen, data, best) / loss_scale,
    )
    full = _full_fit(learnt, objective, settings.prior_weight)
    value = best.value + _squared_norms(objective, own) - np.square(data).sum(axis=1)
    numbers = {"mixing_proportion": best.mixing_proportion} if emulator.fit_proportion else {}
    u = simulator.parameters(best.x)
    sd = posterior_sd(u)
    remaining = np.abs(best.remaining * simulator.width / sd).max(axis=1)
    some = np.unique(np.linspace(0, len(u) - 1, min(BLOCK, len(u))).astype(int))
    shift = emulator.between_networks(data[some], best.x[some], loss_scale, best.hessian[some]) * simulator.width
    return Replicates(
        u=u,
        value=value,
        remaining=remaining,
        converged=(remaining <= LARGEST_REMAINING) & best.convex,
        steps=np.full(len(u), 2 * FINAL_ITERATIONS),
        moved=moved,
        linear=simulator.parameters(first),
        numbers=numbers,
        compared=len(u),
        quadrature=Quadrature(shift / sd),
        derivatives=Derivatives(True, None),
        fit=full,
        nodes=objective.generator.draw_nodes(learn_key, settings.num_nodes or FIRST_NODES, 1),
        reweightings=own,
        anchors=simulator.parameters(anchors),
        emulator=summary,
    )


def _from_two_starts(
    emulator: Emulator, data: np.ndarray, anchors: np.ndarray, loss_scale: float, weight: float
) -> tuple[np.ndarray, EmulatedMinima, np.ndarray]:
    """First starts, the lower of two minima of every replicate, and whether the second was the lower."""
    first = emulator.starts(data, anchors, loss_scale, weight)
    one = emulator.minimise(data, anchors, loss_scale, weight, first, FINAL_ITERATIONS)
    away = emulator.starts(data, anchors, loss_scale, weight, one.x)
    two = emulator.minimise(data, anchors, loss_scale, weight, away, FINAL_ITERATIONS)
    # a second start has moved a replicate if its minimum is so much lower, in units of log-likelihood
    moved = two.total < one.total - 1e-3
    best = (np.where(moved.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(one, two))
    return first, EmulatedMinima(*best), moved


def _full_fit(learnt: LearntEmulator, objective: GridMMD | DirectMMD, weight: float) -> Fit:
    """The full data's minimum, pulled to the prior's middle, from the best points of the training set."""
    emulator, simulator, loss_scale = learnt.emulator, learnt.simulator, learnt.loss_scale
    data, x = learnt.data_features.mean(axis=0) @ emulator.basis, emulator.training.x
    (totals,) = emulator.totals(data[None], np.zeros_like(x[:1]), loss_scale, weight)
    starts = x[np.argsort(totals)[:64]]
    targets = np.repeat(data[None], len(starts), axis=0)
    found = emulator.minimise(targets, np.zeros_like(starts), loss_scale, weight, starts, FINAL_ITERATIONS)
    best, *others = distinct(found.x, found.total, np.ones(x.shape[1]))
    scales = simulator.width[:, None] * simulator.width
    return Fit(
        u=simulator.parameters(found.x[best]),
        value=float(found.value[best]),
        hessian=found.hessian[best] * loss_scale / scales,
        others=simulator.parameters(found.x[others]),
        other_values=found.value[others],
        scale=simulator.width,
        reached=int((np.abs(found.x - found.x[best]).max(axis=1) <= SAME).sum()),
        followed=len(starts),
        converged=bool(found.convex[best] and np.abs(found.remaining[best]).max() < 1e-2),
        numbers={"mixing_proportion": found.mixing_proportion[best]} if emulator.fit_proportion else {},
    ).raised(float(_squared_norms(objective, full_data(objective))[0] - np.square(data).sum()))


def _squared_norms(objective: GridMMD | DirectMMD, reweightings: Reweightings) -> np.ndarray:
    """`|mu_w|^2` of every reweighting."""
    bare = DirectMMD(objective.generator, objective.kernel, objective.data, objective.fit_proportion)
    return newton.offsets(bare, reweightings)
