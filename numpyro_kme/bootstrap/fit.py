"""The minimum-loss point estimate on the full data, from many starts."""

from dataclasses import field, replace
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import Card, extremes, frozen
from numpyro_kme.bootstrap.newton import Control, Minimum, Problems
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.kernels.base import num_points
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import BLOCK, Noise, QuadratureNodes

SAME = 0.02
"""Minima closer than this, in robust standard deviations of the starting points, are one."""

FEW = 15
"""Steps of a first look."""


@frozen
class Fit:
    """The minimum-loss estimate and the other minima that were found.

    Attributes:
        u: Best parameters, `(p,)`.
        value: Loss there; in a result with the part that parameters do not change, see `WeightedObjective.offsets`.
        hessian: Hessian there, `(p, p)`.
        others: Other distinct minima, `(K, p)`, best first.
        other_values: Their losses, `(K,)`.
        scale: Robust standard deviations of the starting points, `(p,)`.
        reached: How many of the starts that were followed ended at the best minimum.
        followed: How many starts were followed.
        converged: Whether the best one is a minimum to working precision.
        numbers: Further numbers of the loss there, such as `loss_error`, by name.
    """

    u: np.ndarray
    value: float
    hessian: np.ndarray
    others: np.ndarray
    other_values: np.ndarray
    scale: np.ndarray
    reached: int
    followed: int
    converged: bool
    numbers: dict[str, np.ndarray] = field(default_factory=dict)

    def _card(self) -> Card:
        return Card(
            f"Minimum-loss estimate of {len(self.u)} parameters, {'converged' if self.converged else 'NOT CONVERGED'}",
            {
                "loss": self.value,
                "parameters": extremes(self.u) if len(self.u) > 6 else ", ".join(f"{one:.4g}" for one in self.u),
                "starts": f"{self.reached} of {self.followed} ended there",
                "other minima": len(self.others),
            },
            "`u` are the parameters, unconstrained; where starts ended elsewhere, see `others` and `other_values`",
        )

    def raised(self, by: float) -> "Fit":
        """Add to the losses what parameters do not change."""
        return replace(self, value=self.value + by, other_values=self.other_values + by)


def rank_starts(objective: WeightedObjective, nodes: QuadratureNodes, starts: np.ndarray) -> np.ndarray:
    """Sort the starting points `(S, p)` by their loss on the full data, best first; keep `3 BLOCK` at most."""
    starts = np.asarray(starts, np.float64)
    checks.matrix("starts", starts, columns=objective.generator.dim)
    scores = Problems(objective, nodes, full_data(objective)).rows(np.zeros(len(starts), int)).values(starts)
    finite = np.isfinite(scores)
    checks.require(
        bool(finite.any()),
        f"the loss is not finite at any of the {len(starts)} starting points; check the simulator at "
        "samples of the prior.",
    )
    return starts[np.argsort(np.where(finite, scores, np.inf))[: min(3 * BLOCK, int(finite.sum()))]]


def look(objective: WeightedObjective, nodes: QuadratureNodes, starts: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Follow starts `(S, p)` on the full data: the distinct points reached, see `by_basin`.

    All starts for half of `FEW` steps, then the best `BLOCK` for `FEW`.
    """
    for steps in (FEW,) if len(starts) <= BLOCK else (FEW // 2, FEW):
        found = _follow(Problems(objective, nodes, full_data(objective)), starts, scale, steps)
        starts = found.u[distinct(found.u, found.value, scale)[:BLOCK]]
    return found.u[by_basin(objective, nodes, found.u, found.value, scale)]


def fit(
    objective: WeightedObjective, nodes: QuadratureNodes, starts: np.ndarray, scale: np.ndarray, max_steps: int = 60
) -> Fit:
    """Minimise the loss on the full data from every start and keep the distinct minima.

    Args:
        objective: A loss bound to data.
        nodes: Sets of quadrature nodes, `(sets, M, ...)`, of which the first is used.
        starts: `(S, p)` starting points, at most a few tens: see `rank_starts`.
        scale: Typical sizes of the parameters `(p,)`.
        max_steps: Most evaluations from each start.
    """
    problem = Problems(objective, nodes, full_data(objective))
    found = _follow(problem, starts, scale, max_steps)
    checks.require(
        bool(np.isfinite(found.value).any()),
        f"the loss is not finite at any of the {len(starts)} points that the starts led to, such as "
        f"{np.array2string(starts[0], precision=3)} (unconstrained). Check the simulator there, or narrow the priors.",
    )
    kept = distinct(found.u, found.value, scale)
    best, kept = kept[0], kept[1:][found.convex[kept[1:]]]
    u, hessian = found.u[best], found.hessian[best]
    if not objective.has_cheap_hessian:
        hessian = _sound(problem.hessians(u, scale), hessian)[0]
    same = np.abs((found.u - u) / scale).max(axis=1) <= SAME
    near = np.abs(newton_step(hessian, found.gradient[best]) / scale).max() < 1e-3
    return Fit(
        u,
        float(found.value[best]),
        hessian,
        found.u[kept],
        found.value[kept],
        scale,
        int(same.sum()),
        len(starts),
        bool(near and np.linalg.eigvalsh(hessian)[0] > 0),
    )


def distinct(u: np.ndarray, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Number the points `(S, p)` that are further than `SAME` scales from every better one, best first."""
    chosen: list[int] = []
    for i in np.argsort(values):
        if all(np.abs((u[i] - u[j]) / scale).max() > SAME for j in chosen):
            chosen.append(int(i))
    return np.array(chosen)


def by_basin(
    objective: WeightedObjective, nodes: QuadratureNodes, u: np.ndarray, values: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Number the distinct points `(S, p)`: the lowest of each basin, best first, and then the others, best first.

    Two points share a basin if the loss half way between them is not above the worse one. Points that run away along
    one ridge are far from each other, but share a basin.
    """
    kept = distinct(u, values, scale)
    if len(kept) == 1:
        return kept
    better, worse = np.triu_indices(len(kept), 1)
    problems = Problems(objective, nodes, full_data(objective)).rows(np.zeros(len(better), int))
    middle = problems.values(0.5 * (u[kept[better]] + u[kept[worse]]))
    apart = np.ones((len(kept), len(kept)), bool)
    apart[better, worse] = middle > values[kept[worse]]
    chosen: list[int] = []
    for i in range(len(kept)):
        if apart[chosen, i].all():
            chosen.append(i)
    return np.concatenate([kept[chosen], np.delete(kept, chosen)])


def _follow(problem: Problems, starts: np.ndarray, scale: np.ndarray, max_steps: int) -> Minimum:
    """Minimise for one reweighting from every start, by careful steps."""
    problems, hessians = problem.rows(np.zeros(len(starts), int)), np.eye(len(scale))
    if not problem.objective.has_cheap_hessian:
        hessians = _sound(problems.hessians(starts, scale), hessians)
    control = Control(scale, largest_remaining=1e-5, max_steps=max_steps, damping=0.1, stride=1.0)
    return problems.solve(starts, hessians, control, updates=True)


def _sound(hessians: np.ndarray, instead: np.ndarray) -> np.ndarray:
    """Hessians `(R, p, p)`, and something else for those that are not finite, as where a model has run away."""
    return np.where(np.isfinite(hessians).all(axis=(1, 2), keepdims=True), hessians, instead)


def refit(objective: WeightedObjective, nodes: QuadratureNodes, first: Fit) -> Fit:
    """Follow the minima of a fit to other quadrature nodes."""
    starts = np.concatenate([first.u[None], first.others])[:BLOCK]
    again = fit(objective, nodes, starts, first.scale, max_steps=20)
    return replace(again, reached=first.reached, followed=first.followed)


def require_possible(value: Any, numbers: dict[str, np.ndarray], noise: Noise) -> None:
    """Raise an error for fitted squared distances below zero, beyond their errors; `numbers` as of `mixing.report`.

    Independent nodes can be too few. Evenly spread ones weigh all pairs, which is a square whatever their number.
    """
    if noise.independent:
        advice = (
            "Too few simulated points measure the model where the loss was minimised: raise `num_nodes`, or write the "
            "simulator so that its noise can be lifted, or declare it with FromNoise."
        )
    else:
        advice = (
            "It is a square where the kernel is positive definite, however many `num_nodes` there are: use a kernel "
            "that is, or for data of one number a smaller `table_error` of MMD, the error of its tabulated kernel."
        )
    if "loss_error" in numbers:
        checks.possible("A minimum of the squared distance", value, numbers["loss_error"], advice, least=0.0)


def full_data(objective: WeightedObjective) -> Reweightings:
    """The data as they are, equally weighted, with the first set of nodes: one row."""
    n = num_points(objective.data)
    return Reweightings(np.full((1, n), 1.0 / n), None, np.array([0]))


def newton_step(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Steps `-|H|^-1 g` for gradients `(..., p)`; eigenvalues below a billionth of the largest are raised to it."""
    size = max(np.abs(hessian).max(), 1e-290)  # that of a model that runs away may overflow when squared
    values, vectors = np.linalg.eigh(hessian / size)
    values = np.maximum(np.abs(values), max(1e-9 * np.abs(values).max(), 1e-10))
    return -((gradient @ vectors) / values) @ vectors.T / size


def robust_sd(points: np.ndarray) -> np.ndarray:
    """Robust standard deviations of `(S, p)` points: half the distance between the 16% and 84% quantiles."""
    low, high = np.quantile(points, [0.16, 0.84], axis=0)
    return 0.5 * (high - low)


def starting_scale(points: np.ndarray) -> np.ndarray:
    """Robust standard deviations of `(S, p)` starting points; where they are equal, a tenth of their size."""
    sd = robust_sd(points)
    return np.where(sd > 0.0, sd, np.maximum(0.1 * np.abs(np.median(points, axis=0)), 0.1))
