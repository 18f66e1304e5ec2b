"""Before the replicates: the full-data minimum, the quadrature nodes, and how to differentiate."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme.bootstrap.fit import (
    Fit,
    fit,
    full_data,
    look,
    newton_step,
    rank_starts,
    refit,
    robust_sd,
    starting_scale,
)
from numpyro_kme.bootstrap.newton import Problems
from numpyro_kme.bootstrap.settings import Settings
from numpyro_kme.bootstrap.surface import Surface, settle
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.kernels.base import num_points
from numpyro_kme.losses.base import Differenced, TwoSampleObjective, WeightedObjective
from numpyro_kme.losses.generator import BLOCK, QuadratureNodes
from numpyro_kme.losses.mmd import DirectMMD

NARROW, WIDE = 0.02, 0.3
"""Difference steps are a posterior standard deviation, but within these multiples of that of the starting points."""

DISAGREE = 0.3
"""Derivatives further than this from the differences, relative to them, are not used."""

FIRST_NODES, MOST, QUIET = 512, 16, 0.08
"""Nodes of the noise to begin with; how many times as many, at most, to move minima by so many posterior standard
deviations."""

OF_A_RULE, EXACT = 256, 0.01
"""Nodes of a quadrature rule to begin with, whose error falls exponentially where the simulator is smooth; how far
twice as many may move minima, in posterior standard deviations."""

FEW_NODES = 128
"""Nodes with which starting points are ranked and followed at first; and data, where each has nodes of its own."""


@dataclass(frozen=True)
class Derivatives:
    """How a loss is differentiated, and why.

    Attributes:
        automatic: Whether by automatic differentiation; else by large differences with common random numbers, and
            replicates on polynomial surfaces (`surface.py`).
        disagreement: Relative difference between the two, `(p,)`, or nothing if the simulator has no derivatives.
    """

    automatic: bool
    disagreement: np.ndarray | None

    def __str__(self) -> str:
        how = "automatic" if self.automatic else "large differences with common random numbers, and surfaces"
        if self.disagreement is None:
            return f"{how}: the simulator has no derivatives"
        apart = f"{self.disagreement.max():.2g}"
        return f"{how}: automatic and large ones are {apart} apart (relative; at most {DISAGREE} is trusted)"


@dataclass(frozen=True)
class Prepared:
    """What the replicates share.

    Attributes:
        objective: What they minimise.
        nodes: Sets of quadrature nodes.
        fit: The minimum on the full data.
        scale: A first look at the posterior's standard deviations, `(p,)`.
        pool: Where to restart from if the full data have one minimum only, `(K, p)`, best first.
        derivatives: How the loss is differentiated.
        surface: Where polynomials take the place of a loss that jumps.
    """

    objective: WeightedObjective
    nodes: QuadratureNodes
    fit: Fit
    scale: np.ndarray
    pool: np.ndarray
    derivatives: Derivatives
    surface: Surface | None = None

    def on(self, nodes: QuadratureNodes, pilot: Reweightings) -> "Prepared":
        """The same with other nodes."""
        if self.surface is None:
            return replace(self, nodes=nodes, fit=refit(self.objective, nodes, self.fit))
        surface, full, some = settle(self.objective, nodes, pilot, self.fit, self.surface)
        return replace(self, nodes=nodes, fit=full, scale=posterior_sd(some), surface=surface)


def prepare(
    rng_key: jax.Array,
    objective: WeightedObjective,
    nodes: QuadratureNodes,
    pilot: Reweightings,
    starts: np.ndarray,
    settings: Settings,
) -> Prepared:
    """Fit the full data, adapt the nodes, and settle how to differentiate.

    Args:
        rng_key: For the few nodes with which starting points are ranked.
        objective: A loss bound to data.
        nodes: Sets of quadrature nodes; the full data use the first.
        pilot: Reweightings that show the posterior's scale; they share a node set.
        starts: `(S, p)`.
        settings: Sizes.
    """
    few = problems = Problems(objective, nodes, pilot)
    # on a grid, which takes any number, few independent nodes would mistake a diffuse model for a good one
    uneven = objective.has_cheap_hessian and objective.generator.noise.independent
    if nodes.weights.shape[1] > FEW_NODES and not uneven:
        few = _with_few(rng_key, problems)
    ranked, width = rank_starts(few.objective.smoothed(), few.nodes, starts), starting_scale(starts)
    box = np.min(starts, axis=0), np.max(starts, axis=0)
    if not (objective.has_cheap_hessian and objective.generator.differentiable):
        ranked = ranked[:BLOCK]
    derivatives = Derivatives(objective.generator.differentiable, None)
    if derivatives.automatic:
        adapted, full, scale, pool = _fit_and_adapt(problems, few, ranked, width, box)
        flat = scale < 1e-6 * width  # no derivative at all: look over a wide step
        steps = np.where(flat, NARROW * width, np.minimum(scale, WIDE * width))
        told = replace(few, nodes=adapted) if few.objective is objective else few
        disagreement = compare_derivatives(told, full.u, steps)
        derivatives = Derivatives(bool((disagreement <= DISAGREE).all()), disagreement)
        if derivatives.automatic:
            return Prepared(objective, adapted, full, scale, pool, derivatives)
    objective = Differenced(objective, 0.1 * width)
    best = ranked[:BLOCK]
    for _ in range(2):
        problems = Problems(objective, nodes, pilot)
        nodes, full, scale, pool = _fit_and_adapt(problems, problems, best, width, box)
        objective = replace(objective, steps=np.clip(scale, NARROW * width, WIDE * width))
        best = np.concatenate([full.u[None], full.others])[:BLOCK]
    first = Surface(full.u, np.diag(np.clip(scale, NARROW * width, WIDE * width)))
    return Prepared(objective, nodes, full, scale, pool, derivatives, first).on(nodes, pilot)


def _with_few(rng_key: jax.Array, problems: Problems) -> Problems:
    """The same with few nodes, or with nodes of few data where these have nodes of their own."""
    objective, pilot = problems.objective, problems.reweightings
    generator, covariates = objective.generator, objective.generator.covariates
    if isinstance(objective, DirectMMD | TwoSampleObjective) and covariates is not None:
        n = num_points(covariates)
        # of one number of data always the same, and with them the program
        chosen = np.random.default_rng(0).permutation(n)[:FEW_NODES]
        covariates, data = jax.tree.map(itemgetter(chosen), (covariates, objective.data))
        simulate = _OfSome(generator.simulate, tuple(chosen.tolist()))
        generator, pilot = replace(generator, simulate=simulate, covariates=covariates), pilot.of_some_data(chosen, n)
        objective = replace(objective, generator=generator, data=data)
    return Problems(objective, generator.draw_nodes(rng_key, FEW_NODES, 1), pilot)


@dataclass(frozen=True)
class _OfSome:
    """A simulator with covariates, of some of the data by their numbers."""

    simulate: Callable
    chosen: tuple[int, ...]

    def __call__(self, u, noise, i):
        return self.simulate(u, noise, jnp.asarray(self.chosen)[i])


def _fit_and_adapt(
    problems: Problems, few: Problems, starts: np.ndarray, width: np.ndarray, box: tuple[np.ndarray, np.ndarray]
) -> tuple[QuadratureNodes, Fit, np.ndarray, np.ndarray]:
    """Minimise on the full data, adapt the nodes to the minimum, and take a first look at the posterior's scale; also
    what the starts had come to half way, by the loss and the nodes of `few`.

    The way leads over a smoother loss: with the kernel's own width a model with heavy tails has gaps between its nodes,
    in which starts settle at false minima.
    """
    objective, nodes, pilot = problems.objective, problems.nodes, problems.reweightings
    least = nodes.weights.shape[1]
    pool = _brought_back(look(few.objective.smoothed(), few.nodes, starts, width), starts, box)
    nodes = objective.adapt_nodes(pool[0], least) or nodes
    # starts followed to the end
    if few.objective is objective:
        full = fit(objective, nodes, pool[:6], width)
    else:
        full = refit(objective, nodes, fit(few.objective, few.nodes, pool[:6], width))
    adapted = objective.adapt_nodes(full.u, least)
    if adapted is not None:
        nodes, full = adapted, refit(objective, adapted, full)
    return nodes, full, posterior_sd(one_step(Problems(objective, nodes, pilot), full)[0]), pool


def _brought_back(points: np.ndarray, starts: np.ndarray, box: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Points `(S, p)`, best first; those that ran out of the box of all starts come last, brought back to it, each with
    one of the best starts: far out, as where a correlation is 1, losses are flat and nothing leads back."""
    inside = np.clip(points, *box)
    ran = (inside != points).any(axis=1)
    back = np.stack([inside[ran], starts[: ran.sum()]], axis=1)
    return np.concatenate([points[~ran], back.reshape(-1, points.shape[1])])


def with_lower_minimum(ready: Prepared, pilot: Reweightings) -> Prepared | None:
    """The same from a lower minimum of the full data, if some start of the pool leads to one that was overlooked, as
    replicates that end elsewhere suggest."""
    found = fit(ready.objective, ready.nodes, ready.pool[:BLOCK], ready.fit.scale)
    if not found.value < ready.fit.value or np.abs((found.u - ready.fit.u) / ready.scale).max() < 1.0:
        return None
    scale = posterior_sd(one_step(Problems(ready.objective, ready.nodes, pilot), found)[0])
    return replace(ready, fit=found, scale=scale)


def with_enough_nodes(
    ready: Prepared, pilot: Reweightings, num: int, draw: Callable[[int], QuadratureNodes]
) -> tuple[Prepared, int]:
    """As many more of `num` nodes as it takes for others to move minima by at most `QUIET` posterior standard
    deviations, or `EXACT` of a quadrature rule, at most `MOST` times as many; `draw(num)` makes them."""
    most = MOST * num
    if ready.surface is not None and len(ready.nodes.weights) == 1:  # of which two may agree by chance
        num *= 4
        ready = with_nodes(ready, draw(num), pilot)
    while num < most and (times := times_needed(ready, pilot, partial(draw, 2 * num))) > 1:
        # the last doubling may be one too many; those of a surface cost little, and few sizes need few programs
        num = min((max(times // 2, 2) if ready.surface is None else 4) * num, most)
        ready = with_nodes(ready, draw(num), pilot)
    return ready, num


def with_nodes(ready: Prepared, nodes: QuadratureNodes, pilot: Reweightings) -> Prepared:
    """The same with other nodes, adapted to the minimum where that is possible."""
    return ready.on(ready.objective.adapt_nodes(ready.fit.u, nodes.weights.shape[1]) or nodes, pilot)


def times_needed(ready: Prepared, pilot: Reweightings, draw: Callable[[], QuadratureNodes]) -> int:
    """How many times the nodes it takes, by minima of the full data, or of the pilot's surfaces, with several sets: the
    error of low-discrepancy points falls about as `1 / M` where the loss is smooth, otherwise as `M^-1/2`. Where there
    is one set of nodes, `draw` makes others."""
    objective, present = ready.objective, ready.nodes
    if ready.surface is None and len(present.weights) == 1:
        return _times_of_a_rule(ready, pilot, draw)
    sets = np.arange(min(len(present.weights), BLOCK))
    if ready.surface is None:
        # with covariates each datum has nodes of its own, whose errors show under unequal weights
        like = full_data(objective) if objective.generator.covariates is None else pilot
        many = replace(like.rows(np.zeros(len(sets), int)), sets=sets)
        _, gradients = Problems(objective, present, many).slopes(np.tile(ready.fit.u, (len(sets), 1)))
        moves = newton_step(ready.fit.hessian, gradients)
    else:
        several = [(present, int(number)) for number in sets]
        if len(sets) == 1:
            further = draw()
            further = objective.adapt_nodes(ready.fit.u, further.weights.shape[1]) or further
            several.append((further, 0))
        rows = ((nodes, replace(pilot, sets=np.full(len(pilot), number))) for nodes, number in several)
        found = (ready.surface.minimise(Problems(objective, *row)).u - ready.surface.centre for row in rows)
        moves = np.stack([ready.surface.drawn_in(one) @ ready.surface.root.T for one in found])
    rate = 2.0 if objective.generator.noise.independent or ready.surface is not None else 1.0
    # that of the difference to minima by twice the nodes; replicates further out than the pilot's surfaces have more
    ratio = np.sqrt(1.0 + 0.5**rate) * (1.0 if ready.surface is None else 2.0)
    moved = ratio * root_mean_square((moves - moves.mean(axis=0)) / ready.scale)
    return int(2.0 ** np.ceil(rate * np.log2(moved / QUIET))) if moved > QUIET else 1


def _times_of_a_rule(ready: Prepared, pilot: Reweightings, draw: Callable[[], QuadratureNodes]) -> int:
    """The same of a quadrature rule on a grid, by minima with twice as many nodes; others have no error."""
    if not ready.objective.has_cheap_hessian:
        return 1
    # of what there are: those adapted to heavy tails are more than were asked for
    finer = ready.objective.adapt_nodes(ready.fit.u, 2 * ready.nodes.weights.shape[1]) or draw()
    gradients = [Problems(ready.objective, nodes, pilot).slopes(ready.fit.u)[1] for nodes in (ready.nodes, finer)]
    moves = newton_step(ready.fit.hessian, gradients[1] - gradients[0])
    return 2 if root_mean_square(moves / ready.scale) > EXACT else 1


def root_mean_square(moves: np.ndarray) -> float:
    """Of moves `(..., p)`, the largest of a parameter; NaN of none."""
    if not moves.size:
        return float("nan")
    return float(np.sqrt(np.mean(np.square(moves.reshape(-1, moves.shape[-1])), axis=0)).max())


def one_step(problems: Problems, full: Fit) -> tuple[np.ndarray, np.ndarray]:
    """One Newton step for each reweighting from the full-data minimum, and its loss before the step."""
    value, gradient = problems.slopes(full.u)
    return full.u + newton_step(full.hessian, gradient), value


def posterior_sd(u: np.ndarray) -> np.ndarray:
    """Robust standard deviations of replicates `(R, p)`, never below their rounding."""
    return np.maximum(robust_sd(u), 1e-12 * (1.0 + np.abs(u).max(axis=0)))


def compare_derivatives(problems: Problems, u: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Relative difference `(p,)` between gradients of the loss and differences of the loss, for several reweightings.

    Differences over `s` and `s / 2` are extrapolated, so that curvature does not count.

    Args:
        problems: Of a loss with automatic derivatives; they share a node set.
        u: Parameters `(p,)`, near the minimum of the full data.
        steps: Difference steps `(p,)`, about a posterior standard deviation.
    Returns:
        Infinite where a gradient is not finite.
    """
    automatic, away = problems.slopes(u)[1], np.diag(steps)
    points = u + np.concatenate([away, -away, 0.5 * away, -0.5 * away])
    num = len(problems.reweightings)
    every = problems.rows(np.repeat(np.arange(num), len(points)))
    values = every.values(np.tile(points, (num, 1))).reshape(num, -1)
    right, left, near_right, near_left = np.split(values, 4, axis=1)
    differences = (8.0 * (near_right - near_left) - (right - left)) / (6.0 * steps)
    error = np.linalg.norm(automatic - differences, axis=0)
    return np.where(np.isfinite(error), error / np.maximum(np.linalg.norm(differences, axis=0), 1e-300), np.inf)
