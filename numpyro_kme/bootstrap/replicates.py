"""The posterior bootstrap: one minimisation for each reweighting of the data."""

import jax
import numpy as np

from numpyro_kme._core.display import frozen
from numpyro_kme._core.keys import child, data_of, fold_in, split
from numpyro_kme.bootstrap.look import BootstrapProblem, Look
from numpyro_kme.bootstrap.rounds import Explored, explore
from numpyro_kme.bootstrap.weights import PILOT, DirichletProcess, Reweightings, draw_reweightings, with_full_data

NUM_PILOTS = 128
"""Reweightings that say where to simulate."""


@frozen
class Replicates:
    """Minimisers of a loss on reweighted data, in unconstrained parameters.

    Attributes:
        u: Minimisers, `(B, p)`.
        loss: Their losses, `(B,)`.
        converged: Whether each is a minimum to working precision, inside the region that was simulated, `(B,)`.
        minimum: Minimiser on the data as they are, `(p,)`.
        minimum_loss: Its loss.
        hessian: Hessian of the loss there, `(p, p)`.
        reweightings: Weights of the data.
        error: How far simulations moved minimisers, in posterior standard deviations: root mean square, the largest
            over parameters; 0 where nothing is simulated.
        settled: Whether the search came to its end.
        mixing_proportion: Fitted mixing proportions, `(B,)`; None where it is fixed at one.
        at_bound: Which parameters are at a bound, beyond which the prior hardly reaches, `(B, p)`.
        anchors: Points of the prior that the replicates are pulled to, `(B, p)`; None without.
        regions: Number of replicates that have their minimum in each region that was simulated.
        rounds: Rounds of simulations.
    """

    u: np.ndarray
    loss: np.ndarray
    converged: np.ndarray
    minimum: np.ndarray
    minimum_loss: float
    hessian: np.ndarray
    reweightings: Reweightings
    error: float = 0.0
    settled: bool = True
    mixing_proportion: np.ndarray | None = None
    at_bound: np.ndarray | None = None
    anchors: np.ndarray | None = None
    regions: tuple[int, ...] = ()
    rounds: int = 0


def emulated_bootstrap(
    rng_key: jax.Array, problem: BootstrapProblem, process: DirichletProcess, num_samples: int, prior_draws: int
) -> Replicates:
    """Minimise a squared distance for every reweighting, on emulated embeddings of the model.

    Args:
        rng_key: Makes weights and anchors.
        problem: The loss, the data, the simulator and the prior.
        process: The Dirichlet process.
        num_samples: Number of replicates.
        prior_draws: Prior draws of which the best anchors a replicate.
    """
    weights_key, anchor_key = split(rng_key)
    ids = np.concatenate([PILOT + np.arange(NUM_PILOTS), np.arange(num_samples)])
    reweightings = with_full_data(draw_reweightings(weights_key, problem.data, process, ids), problem.size)
    look = Look.at_prior(problem)
    anchors = _anchors(anchor_key, look, reweightings, np.append(PILOT - 1, ids), prior_draws)
    found = list[Explored]()
    for i, region in enumerate(look.regions(child(problem.rng_key, 1), reweightings.weights[: 1 + NUM_PILOTS])):
        if not any(one.region.holds(region.center) for one in found):
            explored = explore(problem, region, reweightings, anchors, NUM_PILOTS, child(problem.rng_key, 2 + i))
            found += [explored] * (not any(one.region.holds(explored.region.center) for one in found))
    best = np.argmin([one.minima.total for one in found], axis=0)

    def chosen(values):
        """Values of each reweighting in the region where its minimum is lowest."""
        return np.stack([values(one) for one in found])[best, np.arange(len(best))]

    x = chosen(lambda one: one.minima.x)
    converged = chosen(lambda one: one.minima.converged & ~one.region.at_edge(one.minima.x))
    proportion = chosen(lambda one: one.targets.proportion(one.emulator.at(one.minima.x)))
    minima, own = found[best[0]].minima, np.arange(1 + NUM_PILOTS, len(best))
    chosen_regions = [found[i] for i in np.unique(best)]
    return Replicates(
        u=problem.unstandardise(x[own]),
        loss=chosen(lambda one: one.minima.loss)[own],
        converged=converged[own],
        minimum=problem.unstandardise(x[0]),
        minimum_loss=float(minima.loss[0]),
        hessian=minima.hessian[0] / (problem.width[:, None] * problem.width),
        reweightings=reweightings.rows(own),
        error=max(one.errors[-1] for one in chosen_regions),
        settled=all(one.settled for one in chosen_regions),
        mixing_proportion=proportion[own] if problem.fit_proportion else None,
        at_bound=((x <= problem.low) | (x >= problem.high))[own],
        anchors=problem.unstandardise(anchors[own]) if problem.prior_weight else None,
        regions=tuple(np.bincount(best[own], minlength=len(found)).tolist()),
        rounds=sum(len(one.errors) + 1 for one in found),
    )


def _anchors(rng_key, look: Look, reweightings: Reweightings, ids: np.ndarray, num: int) -> np.ndarray:
    """For each reweighting the best of `num` prior draws by its loss, `(R, p)`; the middle of the prior for the full
    data."""
    prior = look.problem.prior
    words = fold_in(data_of(rng_key), ids)
    drawn = np.stack([np.random.default_rng(row).integers(len(prior), size=num) for row in words])
    if num > 1:
        losses = np.take_along_axis(look.losses(reweightings.weights, look.models), drawn, axis=1)
        drawn = np.take_along_axis(drawn, losses.argmin(axis=1)[:, None], axis=1)
    anchors = prior[drawn[:, 0]]
    anchors[0] = 0.0
    return anchors
