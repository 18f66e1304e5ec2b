"""Before the replicates: the full-data minimum, the quadrature nodes, and how to differentiate."""

from dataclasses import dataclass, replace
from typing import Literal

import jax
import numpy as np

from numpyro_kme._core import checks
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
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.base import Differenced, WeightedObjective
from numpyro_kme.losses.generator import BLOCK, QuadratureNodes

NARROW, WIDE = 0.02, 0.3
"""Difference steps are a posterior standard deviation, but within these multiples of that of the starting points."""


DISAGREE = 0.3
"""Derivatives further than this from the differences, relative to them, are not used."""


FIRST_NODES, MOST, QUIET = 512, 16, 0.08
"""Nodes of the noise to begin with; how many times as many, at most, to move minima by so many posterior standard
deviations."""


@dataclass(eq=False, repr=False, kw_only=True)
class Settings:
    """How a posterior bootstrap is computed; the engine `PosteriorBootstrap` takes the same by the same names.

    Attributes:
        num_samples: Number `B` of replicates, which are the posterior draws.
        num_nodes: Quadrature nodes `M` of the noise in each minimisation. When left out 512, or as many times more, up
            to 16, as it takes for the noise to move minima by at most 0.08 posterior standard deviations.
        method: `"newton"`; `"linear"` for one Newton step from the full-data minimum (the influence function);
            `"emulated"` for simulators whose draws jump, are noisy or slow, with `loss=MMD(...)`: the model's mean
            embedding as a function of the parameters is learnt from `num_simulations` draws, by small neural networks,
            and every replicate is minimised on that.
        restart_every: One replicate in this many is minimised again from elsewhere and compared.
        num_simulations: Draws of the simulator that an emulator learns from, about; at least 100,000.
        prior_weight: What the model's prior counts against the loss as a log-likelihood, with `method="emulated"`; 0
            (as published) or 1, as in Bayes' rule. Each replicate then draws a point `z` of the prior, and to its loss
            `prior_weight * loss_scale * sum_a ((u_a - z_a) / s_a)^2 / 2` is added, `u` unconstrained, `s` the prior's
            standard deviations there: what the data leave open spreads as the prior does. The `loss_scale` is what
            makes the loss a log-likelihood (`calibrated_loss_scale`). Exact for linear models with normal noise and
            normal priors.
        prior_draws: `z` is the best, by the replicate's loss, of so many draws of the prior. With 1 the prior counts
            in every direction; with many (the published starts are the best of 500) only where the data say nothing,
            and there as given the data, which matters where they leave a curved set open.
        progress_bar: Show a bar of the replicates, or of the rounds in which an emulator learns, except where the
            environment variable `CI` is set.
    """

    num_samples: int = 500
    num_nodes: int | None = None
    method: Literal["newton", "linear", "emulated"] = "newton"
    restart_every: int = 20
    num_simulations: int = 2_500_000
    prior_weight: float = 0.0
    prior_draws: int = 1
    progress_bar: bool = True

    def __post_init__(self):
        checks.whole("num_samples", self.num_samples, 1)
        if self.num_nodes is not None:
            checks.whole("num_nodes", self.num_nodes, 8)
        checks.require(
            self.method in ("newton", "linear", "emulated"),
            f'`method` must be "newton", "linear" or "emulated"; got {self.method!r}.',
        )
        checks.whole("restart_every", self.restart_every, 1)
        checks.whole("num_simulations", self.num_simulations, 100_000)
        checks.require(
            0.0 <= self.prior_weight < np.inf,
            f"`prior_weight` must be finite and not negative; got {self.prior_weight}. Use 0 to ignore the prior.",
        )
        checks.require(
            self.prior_weight == 0.0 or self.method == "emulated",
            f'`prior_weight` is for `method="emulated"`; got {self.prior_weight} with {self.method!r}. Change one of '
            "them.",
        )
        checks.whole("prior_draws", self.prior_draws, 1)
        checks.require(
            self.prior_draws == 1 or self.prior_weight > 0.0,
            f"`prior_draws` does nothing without a prior weight; got {self.prior_draws} with "
            f"`prior_weight={self.prior_weight}`. Set `prior_weight=1.0`, or leave `prior_draws` out.",
        )


@dataclass(frozen=True)
class Derivatives:
    """How a loss is differentiated, and why.

    Attributes:
        automatic: Whether by automatic differentiation; else by large differences with common random numbers.
        disagreement: Relative difference between the two, `(p,)`, or nothing if the simulator has no derivatives.
    """

    automatic: bool
    disagreement: np.ndarray | None

    def __str__(self) -> str:
        how = "automatic" if self.automatic else "large differences with common random numbers"
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
    """

    objective: WeightedObjective
    nodes: QuadratureNodes
    fit: Fit
    scale: np.ndarray
    pool: np.ndarray
    derivatives: Derivatives


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
    rough = nodes
    if not objective.has_cheap_hessian:
        rough = objective.generator.draw_nodes(rng_key, max((settings.num_nodes or FIRST_NODES) // 4, 8), 1)
    ranked, width = rank_starts(objective.smoothed(), rough, starts), starting_scale(starts)
    if not (objective.has_cheap_hessian and objective.generator.differentiable):
        ranked = ranked[:BLOCK]
    derivatives = Derivatives(objective.generator.differentiable, None)
    if derivatives.automatic:
        adapted, full, scale, pool = _fit_and_adapt(objective, nodes, pilot, ranked, width)
        flat = scale < 1e-6 * width  # no derivative at all: look over a wide step
        steps = np.where(flat, NARROW * width, np.minimum(scale, WIDE * width))
        disagreement = compare_derivatives(Problems(objective, adapted, pilot), full.u, steps)
        derivatives = Derivatives(bool((disagreement <= DISAGREE).all()), disagreement)
        if derivatives.automatic:
            return Prepared(objective, adapted, full, scale, pool, derivatives)
    objective = Differenced(objective, 0.1 * width)
    best = ranked[:BLOCK]
    for _ in range(2):
        nodes, full, scale, pool = _fit_and_adapt(objective, nodes, pilot, best, width)
        objective = replace(objective, steps=np.clip(scale, NARROW * width, WIDE * width))
        best = np.concatenate([full.u[None], full.others])[:BLOCK]
    full = refit(objective, nodes, full)
    scale = posterior_sd(one_step(Problems(objective, nodes, pilot), full)[0])
    return Prepared(objective, nodes, full, scale, pool, derivatives)


def _fit_and_adapt(objective, nodes, pilot, starts, width) -> tuple[QuadratureNodes, Fit, np.ndarray, np.ndarray]:
    """Minimise on the full data, adapt the nodes to the minimum, and take a first look at the posterior's scale; also
    what the starts had come to half way.

    The way leads over a smoother loss: with the kernel's own width a model with heavy tails has gaps between its nodes,
    in which starts settle at false minima.
    """
    least = nodes.weights.shape[1]
    pool = look(objective.smoothed(), nodes, starts, width)
    nodes = objective.adapt_nodes(pool[0], least) or nodes
    # starts followed to the end
    full = fit(objective, nodes, pool[:6], width)
    adapted = objective.adapt_nodes(full.u, least)
    if adapted is not None:
        nodes, full = adapted, refit(objective, adapted, full)
    return nodes, full, posterior_sd(one_step(Problems(objective, nodes, pilot), full)[0]), pool


def enough_nodes(ready: Prepared) -> int:
    """How many times the nodes it takes that minima of the full data by several sets of them lie within `QUIET`
    posterior standard deviations, at most `MOST`: the error of low-discrepancy points falls about as `1 / M`, that of
    independent ones as `M^-1/2`."""
    objective, present = ready.objective, ready.nodes
    if not objective.is_smooth:  # so that stairs are small beside a posterior standard deviation
        return MOST // 2
    if len(present.weights) == 1:  # nodes that are not random
        return 1
    sets = np.arange(min(len(present.weights), BLOCK))
    many = Reweightings(np.repeat(full_data(objective).weights, len(sets), axis=0), None, sets)
    _, gradients = Problems(objective, present, many).slopes(np.tile(ready.fit.u, (len(sets), 1)))
    steps = newton_step(ready.fit.hessian, gradients - gradients.mean(axis=0)) / ready.scale
    moved = np.sqrt(np.mean(np.square(steps), axis=0)).max()
    rate = 2.0 if objective.generator.noise.independent else 1.0
    return int(min(2.0 ** np.ceil(rate * np.log2(moved / QUIET)), MOST)) if moved > QUIET else 1


def one_step(problems: Problems, full: Fit) -> tuple[np.ndarray, np.ndarray]:
    """One Newton step for each reweighting from the full-data minimum, and its loss before the step."""
    value, gradient = problems.slopes_together(full.u)
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
    objective = problems.objective
    automatic = problems.slopes_together(u)[1]
    far = replace(problems, objective=Differenced(objective, steps)).slopes_together(u)[1]
    near = replace(problems, objective=Differenced(objective, 0.5 * steps)).slopes_together(u)[1]
    differences = (4.0 * near - far) / 3.0
    error = np.linalg.norm(automatic - differences, axis=0)
    return np.where(np.isfinite(error), error / np.maximum(np.linalg.norm(differences, axis=0), 1e-300), np.inf)
