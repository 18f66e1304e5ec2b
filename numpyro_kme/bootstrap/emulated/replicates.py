"""Replicates on an emulator: networks learn the model's mean embedding once, and every replicate minimises on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.bootstrap.emulated.emulator import LAST, Emulator, Minima, loss_unit
from numpyro_kme.bootstrap.emulated.simulations import Simulations
from numpyro_kme.bootstrap.fit import SAME, Fit, distinct, full_data, spread
from numpyro_kme.bootstrap.lanes import Tasks
from numpyro_kme.losses.base import Objective, num_points
from numpyro_kme.losses.direct_mmd import DirectMMD
from numpyro_kme.losses.features import Features, fit_features
from numpyro_kme.losses.generator import BLOCK
from numpyro_kme.losses.grid_mmd import GridMMD

EXPLORE, REFINE = 7, 6
"""Rounds of simulations, at most, in which the loss is tempered, and those in which it is not."""

SHARES = 1, 2, 4
"""Draws at each point of the prior, of a round that explores and of one that refines, in proportion."""

LEAST = 64
"""Draws at a point of the prior, at least."""

HOT, COOLING = 1e3, 6.0
"""First temperature of the loss, and the largest factor by which a round lowers it."""

UNSEEN = 16
"""Draws at each replicate's minimum, by which the emulator is judged, in the same proportion."""

LOWER = 1e-3
"""A second start has moved a replicate if its minimum is so much lower, in units of log-likelihood."""

CENTRES = 64
"""Pilot minima at which the unit of the loss is found."""

STEPS = 2000, 5000
"""Steps of Adam in a round that explores and in one that refines."""


@dataclass(frozen=True)
class Emulation:
    """What is known of an emulator.

    Attributes:
        simulations: Draws of the simulator in all.
        rounds: Rounds in which they were made.
        unit: One unit of log-likelihood in the loss, see `loss_unit`.
        error: Root mean square error of the emulated loss at the replicates' minima, in units of log-likelihood, to first
            order, from simulations that the emulator has not seen; the noise of these is taken out.
        resolution: Errors below about this cannot be told from none by so many simulations.
    """

    simulations: int
    rounds: int
    unit: float
    error: float
    resolution: float

    @classmethod
    def read(cls, simulations: float, rounds: int, unit: float, errors: np.ndarray) -> "Emulation":
        """From the errors by each half of the draws, `(R, 2)`: the mean product of independent errors has no noise in it."""
        product = errors[:, 0] * errors[:, 1]
        resolution = np.sqrt(product.std() / np.sqrt(len(product)))
        return cls(int(simulations), rounds, unit, float(np.sqrt(max(product.mean(), 0.0))), float(resolution))


class Emulated(NamedTuple):
    """Minima and prior points in units of the parameters, second minima that were lower, first points, the full data's
    fit, further numbers of the replicates, and what is known."""

    minima: Minima
    towards: np.ndarray
    moved: np.ndarray
    starts: np.ndarray
    fit: Fit
    shift: np.ndarray
    numbers: dict[str, np.ndarray]
    emulation: Emulation


def design(num_simulations: int) -> tuple[int, int]:
    """Points of a round, at most 1,024, and draws at a point of the prior, a power of two, for so many draws in all."""
    shares, each = 2 * SHARES[0] + EXPLORE * SHARES[1] + REFINE * SHARES[2], LEAST
    while num_simulations > 1024 * shares * each:
        each *= 2
    return num_simulations // (shares * each), each


def emulate(
    rng_key: jax.Array,
    objective: Objective,
    starts: np.ndarray,
    pilot: Callable[[int, int], Tasks],
    tasks: Tasks,
    settings: Any,
) -> Emulated:
    r"""Minimise the squared MMD of every task on an emulator of `mu_u`, which is learnt in rounds.

    The first simulations are at prior draws. A round then trains the networks anew on everything there is, minimises the
    emulated loss of pilot replicates, divided by a temperature, each pulled to a prior point of its own, and simulates at their
    minima; half of these are moved by a draw of the normal law with the loss as log-density. The temperature falls to the
    error found there, and then to 1. At last the replicates are minimised, from two starts each.

    Args:
        rng_key: The only source of randomness.
        objective: A squared MMD.
        starts: Draws of the prior `(S, p)`, unconstrained.
        pilot: `(round, count) -> Tasks` with `extra = (points, rows)`, new replicates for each round: a replicate's prior point is
            the best of the starts with its rows `(R, K)`.
        tasks: The replicates, likewise.
        settings: `Settings`.
    """
    checks.require(
        isinstance(objective, GridMMD | DirectMMD) and objective.generator.covariates is None,
        f'`method="emulated"` knows the squared MMD without covariates; got {type(objective).__name__}'
        f"{' with covariates' if objective.generator.covariates is not None else ''}. Use MMD(...), or leave `method` out.",
    )
    assert isinstance(objective, GridMMD | DirectMMD)
    middle, width = np.median(starts, axis=0), spread(starts)
    simulations = Simulations(objective.generator, middle, width)
    learnt = _learn(rng_key, objective, simulations, starts, pilot, settings)
    emulator, unit, weight = learnt.emulator, learnt.unit, settings.prior_weight
    data = learnt.embeddings(tasks) @ emulator.basis
    towards = emulator.best(data, (starts - middle) / width, tasks.extra[1])
    first = emulator.starts(data, towards, unit, weight)
    one = emulator.minimise(data, towards, unit, weight, first, LAST)
    away = emulator.starts(data, towards, unit, weight, one.x)
    two = emulator.minimise(data, towards, unit, weight, away, LAST)
    totals = [m.value / unit + 0.5 * weight * np.square(m.x - towards).sum(axis=1) for m in (one, two)]
    moved = totals[1] < totals[0] - LOWER
    best = Minima(*(np.where(moved.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(one, two)))
    unseen = learnt.simulations.bank(jax.random.split(rng_key, 4)[3], best.x, UNSEEN * learnt.each)
    errors = emulator.errors(unseen, data, best) / unit
    count = emulator.bank.counts.sum() + unseen.counts.sum()
    some = np.unique(np.linspace(0, len(tasks) - 1, min(BLOCK, len(tasks))).astype(int))
    shift = emulator.between(data[some], best.x[some], unit, best.hessian[some])
    full, scales = _full_fit(emulator, learnt.whole @ emulator.basis, unit, weight), width[:, None] * width
    known = Emulation.read(count, learnt.rounds, unit, errors)

    def shares(mass, x):
        return (
            _shares(mass, emulator.at(x), learnt.of_data @ emulator.basis, known.error * unit) if emulator.free else {}
        )

    whole = replace(full_data(objective, 0), extra=(None, None))
    return Emulated(
        best._replace(
            x=middle + width * best.x,
            value=best.value + _squared_norms(objective, tasks) - np.square(data).sum(axis=1),
            remaining=best.remaining * width,
            hessian=best.hessian * unit / scales,
        ),
        middle + width * towards,
        moved,
        middle + width * first,
        replace(
            full,
            u=middle + width * full.u,
            others=middle + width * full.others,
            hessian=full.hessian * unit / scales,
            scale=width,
            numbers=shares(full.numbers["share"], full.u[None]),
        ).raised(float(_squared_norms(objective, whole)[0] - np.square(learnt.whole @ emulator.basis).sum())),
        shift * width,
        shares(best.mass, best.x),
        known,
    )


@dataclass(frozen=True)
class _Learnt:
    """The emulator after the last round, the loss's unit, features of the data `(n, J)`, and how simulations are made."""

    emulator: Emulator
    unit: float
    of_data: np.ndarray
    simulations: Simulations
    each: int
    rounds: int

    @property
    def whole(self) -> np.ndarray:
        """The embedding of the data as they are `(J,)`."""
        return self.of_data.mean(axis=0)

    def embeddings(self, tasks: Tasks) -> np.ndarray:
        """Those of the weighted data of every task `(R, J)`."""
        assert self.simulations.features is not None
        return _embeddings(self.simulations.features, self.of_data, tasks)


def _learn(rng_key, objective, simulations: Simulations, starts, pilot, settings) -> _Learnt:
    """Learn the emulator in rounds, see `emulate`."""
    middle, width, weight = simulations.middle, simulations.width, settings.prior_weight
    points, each = design(settings.num_simulations)
    draw_key, fit_key, round_key, _ = jax.random.split(rng_key, 4)
    prior = (starts - middle) / width
    x = prior[np.arange(2 * points) % len(prior)]
    draws = simulations.draws(draw_key, x, SHARES[0] * each)
    features = fit_features(objective.kernel, _together(objective.data, draws))
    simulations = replace(simulations, features=features)
    bank, of_data, free = simulations.read(x, draws), features.at(objective.data), objective.free_mass
    whole, unit = of_data.mean(axis=0), np.square(of_data).sum(axis=1).mean() / len(of_data)
    hot, refined, rows = HOT, 0, (2 + EXPLORE + REFINE) * points
    for number in range(EXPLORE + REFINE + 1):
        exploring = hot > 1.0 and number < EXPLORE
        hot = hot if exploring else 1.0
        net_key, jitter_key = jax.random.split(jax.random.fold_in(fit_key, number))
        emulator = Emulator.fit(net_key, bank, whole, free, rows, STEPS[0 if exploring else 1])
        now = pilot(number, points)
        data = _embeddings(features, of_data, now) @ emulator.basis
        towards = emulator.best(data, prior, now.extra[1])
        found = emulator.minimise(data, towards, unit * hot, weight, emulator.starts(data, towards, unit * hot, weight))
        unit = loss_unit(emulator.tangents(found.x[:CENTRES], found.mass[:CENTRES]), data)
        if refined == REFINE:
            break
        count = SHARES[1 if exploring else 2] * each
        new = simulations.bank(jax.random.fold_in(round_key, number), _jittered(jitter_key, found), count)
        errors = emulator.errors(new, data, found)[: points // 2] / unit
        bank, refined = bank.join(new), refined + (not exploring)
        typical = np.sqrt(max(float(np.median(errors[:, 0] * errors[:, 1])), 0.0))
        hot = float(np.clip(0.5 * typical, max(1.0, hot / COOLING), hot))
    return _Learnt(emulator, unit, of_data, simulations, each, number)


def _embeddings(features: Features, of_data: np.ndarray, tasks: Tasks) -> np.ndarray:
    """Features of the weighted data of every task `(R, J)`."""
    n, extra = len(of_data), tasks.extra[0]
    found = tasks.weights[:, :n] @ of_data
    if extra is not None:
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), extra)
        found += np.einsum(
            "rt,rtj->rj", tasks.weights[:, n:], features.at(flat).reshape(len(found), -1, found.shape[1])
        )
    return found


def _jittered(rng_key: jax.Array, found: Minima) -> np.ndarray:
    """The minima, the second half of them moved by a draw of the normal law with their Hessian as precision."""
    values, vectors = np.linalg.eigh(found.hessian)
    noise = np.asarray(jax.random.normal(rng_key, found.x.shape)) / np.sqrt(np.maximum(values, 1.0))
    moves = np.einsum("rpq,rq->rp", vectors, noise)
    return found.x + np.where(np.arange(len(moves))[:, None] < len(moves) // 2, 0.0, moves)


def _full_fit(emulator: Emulator, whole: np.ndarray, unit: float, weight: float) -> Fit:
    """The full data's minimum, pulled to the prior's middle, from the best points of the bank."""
    p, middle = emulator.bank.x.shape[1], np.square(emulator.bank.x).sum(axis=1)
    losses = np.square(emulator.known - whole).sum(axis=1) / unit + 0.5 * weight * middle
    starts = emulator.bank.x[np.argsort(losses)[:64]]
    found = emulator.minimise(
        np.repeat(whole[None], len(starts), axis=0), np.zeros_like(starts), unit, weight, starts, LAST
    )
    best, *others = distinct(found.x, found.value / unit + 0.5 * weight * np.square(found.x).sum(axis=1), np.ones(p))
    same = np.abs(found.x - found.x[best]).max(axis=1) <= SAME
    return Fit(
        u=found.x[best],
        value=float(found.value[best]),
        hessian=found.hessian[best],
        others=found.x[others],
        other_values=found.value[others],
        scale=np.ones(p),
        reached=int(same.sum()),
        followed=len(starts),
        converged=bool(found.convex[best] and np.abs(found.remaining[best]).max() < 1e-2),
        numbers={"share": found.mass[best]},
    )


def _shares(share: np.ndarray, means: np.ndarray, of_data: np.ndarray, error: float) -> dict[str, np.ndarray]:
    """Shares with their errors were they one, as `mass.report` has them, and that of the emulated loss."""
    of_sample = 2.0 / len(of_data) * (of_data @ means.T).var(axis=0)
    return {"share": share, "share_error": np.sqrt(of_sample + error**2) / np.square(means).sum(axis=1)}


def _squared_norms(objective: GridMMD | DirectMMD, tasks: Tasks) -> np.ndarray:
    """`|mu_w|^2` of every task."""
    bare = DirectMMD(objective.generator, objective.kernel, objective.data, objective.free_mass)
    return on_host(_norms)(bare, tasks.weights, tasks.extra[0])


def _together(data: Any, draws: Any) -> Any:
    """Data, and about as many draws `(R, count, ...)`, as one set of points."""
    n = num_points(data)

    def both(a, b):
        flat = b.reshape(-1, *b.shape[2:])
        return np.concatenate([a.reshape(n, *flat.shape[1:]), flat[:: max(len(flat) // n, 1)]])

    return jax.tree.map(both, data, draws)


@jax.jit
def _norms(objective, weights, extra):
    return objective.offsets(weights, extra)
