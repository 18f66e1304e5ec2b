"""The emulated posterior bootstrap: networks learn the mean embedding once, and every replicate minimises on them."""

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.bootstrap import newton
from numpyro_kme.bootstrap.emulated.emulator import FINAL_ITERATIONS, EmulatedMinima, Emulator
from numpyro_kme.bootstrap.emulated.learning import AnchoredReweightings, LearntEmulator, learn
from numpyro_kme.bootstrap.fit import SAME, Fit, distinct, full_data, require_possible
from numpyro_kme.bootstrap.preparation import Settings, posterior_sd
from numpyro_kme.bootstrap.results import TOLERANCE, Derivatives, EmulatorSummary, Quadrature, Replicates
from numpyro_kme.bootstrap.weights import PILOT, DirichletProcess, Reweightings, draw_reweightings
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.direct_mmd import DirectMMD
from numpyro_kme.losses.generator import BLOCK
from numpyro_kme.losses.grid_mmd import GridMMD

LEAST_STARTS, STARTS_PER_CANDIDATE = 2048, 128
"""Samples of the prior that an emulator begins with, at least; and for each candidate of a prior anchor."""

UNSEEN = 16
"""Simulations at each replicate's minimum, which judge the emulator, for one at a point of the prior."""

LOWER = 1e-3
"""A second start has moved a replicate if its minimum is so much lower, in units of log-likelihood."""


def least_starts(settings: Settings) -> int:
    """Samples of the prior that the emulated bootstrap needs: replicates choose their anchors among different ones."""
    return max(LEAST_STARTS, STARTS_PER_CANDIDATE * settings.prior_draws)


def emulated_bootstrap(
    rng_key: jax.Array,
    objective: WeightedObjective,
    starts: np.ndarray,
    process: DirichletProcess,
    settings: Settings,
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
    checks.require(
        isinstance(objective, GridMMD | DirectMMD) and objective.generator.covariates is None,
        f'`method="emulated"` needs the squared MMD without covariates; got {type(objective).__name__}'
        f"{' with covariates' if objective.generator.covariates is not None else ''}. Use MMD(...), or leave "
        "`method` out.",
    )
    assert isinstance(objective, GridMMD | DirectMMD)
    learn_key, weights_key, anchor_key = jax.random.split(rng_key, 3)
    starts = np.asarray(starts, np.float64)

    def anchored(ids):
        def candidates(replicate):
            key = jax.random.fold_in(anchor_key, replicate)
            return jax.random.randint(key, (settings.prior_draws,), 0, len(starts))

        found = draw_reweightings(weights_key, objective, process, ids, 1)
        return AnchoredReweightings(found, np.asarray(jax.vmap(candidates)(ids)))

    def pilot(number, count):
        return anchored(PILOT + number * 2**16 + np.arange(count))

    own = anchored(np.arange(settings.num_samples))
    learnt = learn(learn_key, objective, starts, pilot, settings)
    emulator, simulator, loss_scale = learnt.emulator, learnt.simulator, learnt.loss_scale
    data = learnt.embeddings(own.reweightings) @ emulator.basis
    anchors = emulator.best(data, simulator.standardise(starts), own.candidates)
    first, best, moved = _from_two_starts(emulator, data, anchors, loss_scale, settings.prior_weight)
    unseen = simulator.training_set(jax.random.split(learn_key, 4)[3], best.x, UNSEEN * learnt.each)
    summary = EmulatorSummary.of_split_halves(
        emulator.training.counts.sum() + unseen.counts.sum(),
        learnt.rounds,
        loss_scale,
        emulator.errors(unseen, data, best) / loss_scale,
    )
    full = _full_fit(learnt, objective, settings.prior_weight, summary)
    require_possible(full.value, full.numbers)
    value = best.value + _squared_norms(objective, own.reweightings) - np.square(data).sum(axis=1)
    numbers = _numbers(learnt, best.mixing_proportion, best.x, summary)
    require_possible(value, numbers)
    u = simulator.parameters(best.x)
    sd = posterior_sd(u)
    remaining = np.abs(best.remaining * simulator.width / sd).max(axis=1)
    some = np.unique(np.linspace(0, len(u) - 1, min(BLOCK, len(u))).astype(int))
    shift = emulator.between_networks(data[some], best.x[some], loss_scale, best.hessian[some]) * simulator.width
    return Replicates(
        u=u,
        value=value,
        remaining=remaining,
        converged=(remaining <= TOLERANCE) & best.convex,
        steps=np.full(len(u), 2 * FINAL_ITERATIONS),
        moved=moved,
        linear=simulator.parameters(first),
        numbers=numbers,
        compared=len(u),
        quadrature=Quadrature(shift / sd),
        derivatives=Derivatives(True, None),
        fit=full,
        nodes=objective.generator.draw_nodes(learn_key, settings.num_nodes, 1),
        reweightings=own.reweightings,
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
    totals = [m.value / loss_scale + 0.5 * weight * np.square(m.x - anchors).sum(axis=1) for m in (one, two)]
    moved = totals[1] < totals[0] - LOWER
    best = (np.where(moved.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(one, two))
    return first, EmulatedMinima(*best), moved


def _full_fit(learnt: LearntEmulator, objective: GridMMD | DirectMMD, weight: float, summary: EmulatorSummary) -> Fit:
    """The full data's minimum, pulled to the prior's middle, from the best points of the training set."""
    emulator, simulator, loss_scale = learnt.emulator, learnt.simulator, learnt.loss_scale
    data, x = learnt.data_features.mean(axis=0) @ emulator.basis, emulator.training.x
    losses = np.square(emulator.known - data).sum(axis=1) / loss_scale + 0.5 * weight * np.square(x).sum(axis=1)
    starts = x[np.argsort(losses)[:64]]
    targets = np.repeat(data[None], len(starts), axis=0)
    found = emulator.minimise(targets, np.zeros_like(starts), loss_scale, weight, starts, FINAL_ITERATIONS)
    totals = found.value / loss_scale + 0.5 * weight * np.square(found.x).sum(axis=1)
    best, *others = distinct(found.x, totals, np.ones(x.shape[1]))
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
        numbers=_numbers(learnt, found.mixing_proportion[best], found.x[best][None], summary),
    ).raised(float(_squared_norms(objective, full_data(objective, 0))[0] - np.square(data).sum()))


def _numbers(
    learnt: LearntEmulator, proportion: np.ndarray, x: np.ndarray, summary: EmulatorSummary
) -> dict[str, np.ndarray]:
    """Fitted mixing proportions, and their errors were they one, as of `mixing.report`, with that of the emulator."""
    emulator = learnt.emulator
    if not emulator.fit_proportion:
        return {}
    means = emulator.at(x)
    of_sample = 2.0 / len(learnt.data_features) * (learnt.data_features @ emulator.basis @ means.T).var(axis=0)
    error = summary.error * learnt.loss_scale
    return {
        "mixing_proportion": proportion,
        "mixing_proportion_error": np.sqrt(of_sample + error**2) / np.square(means).sum(axis=1),
    }


def _squared_norms(objective: GridMMD | DirectMMD, reweightings: Reweightings) -> np.ndarray:
    """`|mu_w|^2` of every reweighting."""
    bare = DirectMMD(objective.generator, objective.kernel, objective.data, objective.fit_proportion)
    return newton.offsets(bare, reweightings)
