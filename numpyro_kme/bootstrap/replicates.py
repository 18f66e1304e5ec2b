"""The posterior bootstrap, a minimisation for each reweighting of the data: of squared distances on emulated
embeddings, of other losses by L-BFGS on the loss itself."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, child, data_of, fold_in, frozen, jitted, programs, progress, split
from numpyro_kme.bootstrap.least_squares import LARGEST_REMAINING
from numpyro_kme.bootstrap.look import BootstrapProblem, Look
from numpyro_kme.bootstrap.rounds import CHECKED, HARMLESS, Explored, explore
from numpyro_kme.bootstrap.weights import PILOT, DirichletProcess, Reweightings, draw_reweightings, with_full_data
from numpyro_kme.kernels.base import num_points
from numpyro_kme.losses.base import Family, Loss, Nodes

NUM_PILOTS = 128
"""Reweightings that say where to simulate."""
MOST_STEPS = 200
"""Steps of L-BFGS."""
STALLED = 3
"""Steps without progress after which it ends; a line search may fail once or twice in float32 and go on."""
FOLLOWED = 16
"""Prior draws that are followed on the full data; a replicate starts from the minimum that is best for its own."""
SMALL = 0.05
"""A minimum has converged when its Newton step is at most this many posterior standard deviations."""


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

    def describe(self, at_prior_end: Mapping[str, int]) -> dict[str, Any]:
        """Lines of a summary: how the minimisations went, and at how many a latent is where its prior ends."""
        info: dict[str, Any] = {
            "converged": f"{int(self.converged.sum())} of {len(self.converged)} replicates",
            "full-data loss": self.minimum_loss,
            "error of the minimisers (sd)": self.error,
        }
        if at_prior_end:
            info["replicates at the end of a prior"] = ", ".join(f"{name} {n}" for name, n in at_prior_end.items())
        if len(self.regions) > 1:
            info["separate regions"] = f"{len(self.regions)}, with {', '.join(map(str, self.regions))} replicates"
        if self.mixing_proportion is not None:
            mean, sd = self.mixing_proportion.mean(), self.mixing_proportion.std()
            info["mixing proportion"] = f"{mean:.3f} (sd {sd:.3f})"
        return info

    def emit_warnings(self, at_prior_end: Mapping[str, int]) -> None:
        """Warn of minimisations that fell short, and of latents that are often where their prior ends."""
        if at_prior_end:
            checks.warn(
                f"of {len(self.u)} replicates, so many have their minimum where the prior ends: {at_prior_end}. The "
                "data leave these open on that side: let the prior count (`prior_weight=1.0`), or read the draws as a "
                "bound."
            )
        failed = np.flatnonzero(~self.converged)
        if len(failed):
            checks.warn(
                f"{len(failed)} of {len(self.converged)} replicates did not converge: {failed[:10].tolist()}"
                f"{' ...' if len(failed) > 10 else ''}. They are marked in the extra field `converged`."
            )
        if not self.settled:
            checks.warn(
                f"simulations at the minima move them by {self.error:.2g} posterior standard deviations (limit "
                f"{HARMLESS}): raise `num_nodes`. Where that does not help, the data may leave parameters open: let "
                "the prior count (`prior_weight=1.0`), or narrow it."
            )


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
    with progress.phase("looking at the prior", problem.progress_bar):
        look = Look.at_prior(problem)
        regions = look.regions(child(problem.rng_key, 1), reweightings.weights[: 1 + NUM_PILOTS])
    anchors = _anchors(anchor_key, look, reweightings, np.append(PILOT - 1, ids), prior_draws)
    found = list[Explored]()
    for i, region in enumerate(regions):
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


def minimised_bootstrap(
    rng_key: jax.Array,
    loss: Loss,
    data: Any,
    family: Family,
    nodes: Callable[[jax.Array], Nodes],
    process: DirichletProcess,
    starts: np.ndarray,
    num_samples: int,
) -> Replicates:
    """Minimise a loss for every reweighting, each from the best of the minima of the full data.

    Args:
        rng_key: The only source of randomness.
        loss: The loss, differentiable in the parameters of the model.
        data: `(n, ...)`, or a pair (covariates, responses).
        family: The model.
        nodes: Noise of simulated points by a key; each replicate has its own.
        process: The Dirichlet process.
        starts: Prior draws, unconstrained, `(S, p)`.
        num_samples: Number of replicates.
    """

    scale = starts.std(axis=0) + 1e-300

    def value(u, weights, extra, key):
        x = data if extra is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), data, extra)
        return loss.of_model(x, weights, family, u, nodes(key))

    @jitted
    def values(u, *reweighting):
        return jax.vmap(value)(u, *reweighting)

    @jitted
    def minimise(u, *reweighting):
        return jax.vmap(lambda u, *given: _minimise(lambda t: value(t, *given), u, scale))(u, *reweighting)

    def rows(function, u, own: Reweightings, keys):
        return programs.in_blocks(lambda block: function(*block), (u, own.weights, own.extra, keys), FOLLOWED)

    weights_key, noise_key, other_key = split(rng_key, 3)
    drawn = draw_reweightings(weights_key, data, process, np.arange(num_samples))
    full = with_full_data(drawn, num_points(data))
    keys = jax.vmap(lambda b: jax.random.fold_in(noise_key, b))(np.arange(1 + num_samples))
    first = np.zeros(len(starts), int)
    found = rows(values, starts, full.rows(first), keys[first])
    checks.require(
        bool(np.isfinite(found).any()),
        f"the loss is not finite at any of the {len(starts)} samples of the prior; check the simulator there.",
    )
    followed = starts[np.argsort(np.where(np.isfinite(found), found, np.inf))[:FOLLOWED]]
    u, loss_there, _ = rows(minimise, followed, full.rows(first[: len(followed)]), keys[first[: len(followed)]])
    ids = 1 + np.arange(num_samples)
    at_each = [rows(values, np.repeat(place[None], num_samples, 0), drawn, keys[ids]) for place in u]
    own, reached, gradient = rows(minimise, u[np.nanargmin(at_each, axis=0)], drawn, keys[ids])
    lowest = np.nanargmin(loss_there)
    minimum, sd = u[lowest], own.std(axis=0) + 1e-300
    one = jax.tree.map(lambda leaf: leaf[0], (full.weights, full.extra))
    hessian = np.asarray(jitted(jax.hessian(value))(jnp.asarray(minimum), *one, keys[0]), np.float64)
    remaining = np.abs(gradient @ np.linalg.pinv(hessian) / sd).max(axis=1)
    few = np.arange(min(CHECKED, num_samples))
    others = jax.vmap(lambda b: jax.random.fold_in(other_key, b))(few)
    again = rows(minimise, own[few], drawn.rows(few), others)[0]
    moved = np.sqrt(np.mean(np.square((again - own[few]) / sd), axis=0) / 2.0)
    return Replicates(
        u=own,
        loss=reached,
        converged=remaining <= SMALL,
        minimum=minimum,
        minimum_loss=float(loss_there[lowest]),
        hessian=hessian,
        reweightings=drawn,
        error=float(moved.max()),
        settled=bool(moved.max() <= HARMLESS),
    )


def _minimise(function: Callable, start: jax.Array, scale: np.ndarray):
    """Minimiser, its value and gradient, by L-BFGS; steps are judged in units of `scale`, the prior's deviations."""
    import optax

    solver = optax.lbfgs()
    slope = optax.value_and_grad_from_state(function)

    def step(carry):
        u, state, count, last, stalled = carry
        value, gradient = slope(u, state=state)
        update, state = solver.update(gradient, state, u, value=value, grad=gradient, value_fn=function)
        gained = last - value > jnp.finfo(value.dtype).eps * jnp.abs(value)
        stalls = ~gained | (jnp.max(jnp.abs(update) / scale) < LARGEST_REMAINING)
        return optax.apply_updates(u, update), state, count + 1, value, jnp.where(stalls, stalled + 1, 0)

    def going(carry):
        return (carry[2] < MOST_STEPS) & (carry[4] < STALLED)

    u = jnp.asarray(start, jnp.result_type(float))
    found = jax.lax.while_loop(going, step, (u, solver.init(u), 0, jnp.asarray(jnp.inf, u.dtype), 0))[0]
    return found, *jax.value_and_grad(function)(found)
