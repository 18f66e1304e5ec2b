"""Learning an emulator in rounds: simulate where the present one has its minima, train again, lower the temperature."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import compat
from numpyro_kme.bootstrap.emulated.emulator import EmulatedMinima, Emulator, calibrated_loss_scale
from numpyro_kme.bootstrap.emulated.training_set import FeatureMap, TrainingSimulator, fit_features
from numpyro_kme.bootstrap.fit import starting_scale
from numpyro_kme.bootstrap.preparation import Settings
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.base import num_points
from numpyro_kme.losses.direct_mmd import DirectMMD
from numpyro_kme.losses.grid_mmd import GridMMD

EXPLORE, REFINE = 7, 6
"""Rounds of simulations, at most, in which the loss is tempered, and those in which it is not."""

RATIOS = 1, 2, 4
"""Simulations at each point of the prior, of a round that explores and of one that refines, in proportion."""

LEAST = 64
"""Simulations at a point of the prior, at least."""

FIRST_TEMPERATURE, COOLING = 1e3, 6.0
"""First temperature of the loss, and the largest factor by which a round lowers it."""

SCALE_POINTS = 64
"""Pilot minima at which the loss scale is found."""

STEPS = 2000, 5000
"""Steps of Adam in a round that explores and in one that refines."""


@dataclass(frozen=True)
class AnchoredReweightings:
    """Reweightings of the data, with numbers of starting points `(R, K)`, the best of which are the prior anchors."""

    reweightings: Reweightings
    candidates: np.ndarray


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

    def embeddings(self, reweightings: Reweightings) -> np.ndarray:
        """Embeddings of the reweighted data, `(R, J)`."""
        assert self.simulator.features is not None
        return _embeddings(self.simulator.features, self.data_features, reweightings)


def design(num_simulations: int) -> tuple[int, int]:
    """Points of a round, at most 1,024, and simulations at a point of the prior, a power of two, for so many in all."""
    ratio, each = 2 * RATIOS[0] + EXPLORE * RATIOS[1] + REFINE * RATIOS[2], LEAST
    while num_simulations > 1024 * ratio * each:
        each *= 2
    return num_simulations // (ratio * each), each


def learn(
    rng_key: jax.Array,
    objective: GridMMD | DirectMMD,
    starts: np.ndarray,
    pilot: Callable[[int, int], AnchoredReweightings],
    settings: Settings,
) -> LearntEmulator:
    r"""Learn `mu_u` where the replicates of a bootstrap have their minima.

    The first simulations are at samples of the prior. A round then trains the networks anew on everything there is,
    minimises the emulated loss of pilot replicates, divided by a temperature, each pulled to a prior anchor of its own,
    and simulates at their minima; half of these are moved by a sample of the normal distribution with the loss as
    negative log-density. The temperature falls to the error found there, and then to 1.

    Args:
        rng_key: The only source of randomness.
        objective: A squared MMD.
        starts: Samples of the prior `(S, p)`, unconstrained.
        pilot: `(round, count) -> reweightings`, new ones for each round.
        settings: How many simulations, and the prior's weight.
    """
    points, each = design(settings.num_simulations)
    first_key, fit_key, round_key, _ = jax.random.split(rng_key, 4)
    simulator = TrainingSimulator(objective.generator, np.median(starts, axis=0), starting_scale(starts))
    prior, weight = simulator.standardise(starts), settings.prior_weight
    x = prior[np.arange(2 * points) % len(prior)]
    simulated = simulator.simulate(first_key, x, RATIOS[0] * each)
    features = fit_features(objective.kernel, _together(objective.data, simulated))
    simulator = replace(simulator, features=features)
    training, data_features = simulator.summarise(x, simulated), features.at(objective.data)
    full = data_features.mean(axis=0)
    loss_scale = np.square(data_features).sum(axis=1).mean() / len(data_features)
    temperature, refined, rows = FIRST_TEMPERATURE, 0, (2 + EXPLORE + REFINE) * points
    for number in compat.progress(range(EXPLORE + REFINE + 1), "learning in rounds", settings.progress_bar):
        exploring = temperature > 1.0 and number < EXPLORE
        temperature = temperature if exploring else 1.0
        net_key, jitter_key = jax.random.split(jax.random.fold_in(fit_key, number))
        steps = STEPS[0 if exploring else 1]
        emulator = Emulator.fit(net_key, training, full, objective.fit_proportion, rows, steps)
        now = pilot(number, points)
        data = _embeddings(features, data_features, now.reweightings) @ emulator.basis
        anchors = emulator.best(data, prior, now.candidates)
        tempered = loss_scale * temperature
        found = emulator.minimise(data, anchors, tempered, weight, emulator.starts(data, anchors, tempered, weight))
        tangents = emulator.tangents(found.x[:SCALE_POINTS], found.mixing_proportion[:SCALE_POINTS])
        loss_scale = calibrated_loss_scale(tangents, data)
        if refined == REFINE:
            break
        count = RATIOS[1 if exploring else 2] * each
        new = simulator.training_set(jax.random.fold_in(round_key, number), _jittered(jitter_key, found), count)
        errors = emulator.errors(new, data, found)[: points // 2] / loss_scale
        training, refined = training.join(new), refined + (not exploring)
        typical = np.sqrt(max(float(np.median(errors[:, 0] * errors[:, 1])), 0.0))
        temperature = float(np.clip(0.5 * typical, max(1.0, temperature / COOLING), temperature))
    return LearntEmulator(emulator, loss_scale, data_features, simulator, each, number)


def _embeddings(features: FeatureMap, data_features: np.ndarray, reweightings: Reweightings) -> np.ndarray:
    """Mean features of the reweighted data, `(R, J)`."""
    n, extra = len(data_features), reweightings.extra
    found = reweightings.weights[:, :n] @ data_features
    if extra is not None:
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), extra)
        own = features.at(flat).reshape(len(found), -1, found.shape[1])
        found += np.einsum("rt,rtj->rj", reweightings.weights[:, n:], own)
    return found


def _jittered(rng_key: jax.Array, found: EmulatedMinima) -> np.ndarray:
    """The minima, the second half of them moved by normal noise with their Hessian as precision."""
    values, vectors = np.linalg.eigh(found.hessian)
    noise = np.asarray(jax.random.normal(rng_key, found.x.shape)) / np.sqrt(np.maximum(values, 1.0))
    moves = np.einsum("rpq,rq->rp", vectors, noise)
    return found.x + np.where(np.arange(len(moves))[:, None] < len(moves) // 2, 0.0, moves)


def _together(data: Any, simulated: Any) -> Any:
    """Data, and about as many simulations `(R, count, ...)`, as one set of points."""
    n = num_points(data)

    def both(a, b):
        flat = b.reshape(-1, *b.shape[2:])
        return np.concatenate([a.reshape(n, *flat.shape[1:]), flat[:: max(len(flat) // n, 1)]])

    return jax.tree.map(both, data, simulated)
