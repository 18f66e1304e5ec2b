"""A posterior bootstrap of a squared distance, and a look at its loss over the prior: where to simulate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import scipy

from numpyro_kme._core import checks, child, numpy_rng
from numpyro_kme.bootstrap.emulator import Ellipsoid
from numpyro_kme.bootstrap.least_squares import Targets
from numpyro_kme.kernels.base import num_points
from numpyro_kme.losses.base import Embedding, Loss

FEATURES = 64
"""Length of an embedding at most; the tolerance of features decides before, but for data of many dimensions."""
CANDIDATES = 1000
"""Data, and simulated points, among which features choose their pivots."""
ROWS, NODES = 128, 32
"""Data points whose covariates serve to look at the prior, with a node each; without, one in how many nodes does."""
ROW_NODES = 128
"""With covariates, each data point has one in so many nodes."""
FOLLOWED, BASINS = 40, 4
"""Prior draws that are sorted into basins of the loss; basins that are followed."""
PROPOSALS, STEPS = 300, 5
"""Points that a step of cross-entropy makes; steps."""
SLOW = 0.5
"""What is left of a proposal's covariance in the next one: as many points share their noise, few may win."""
OUTSIDE = 1e-4
"""Proportion of a normal posterior that lies outside of the ellipsoid."""


@dataclass(frozen=True)
class BootstrapProblem:
    """A bootstrap in which parameters `x` are in units of the prior.

    Attributes:
        simulate: `(rng_key, x (D, p), num_nodes, rows) -> points`, see `Embedding.model`.
        loss: The loss, a squared distance.
        data: `(n, ...)`, or a pair (covariates, responses).
        fit_proportion: Whether the loss fits a mixing proportion.
        prior: Prior draws `(S, p)`.
        center, width: Unconstrained parameters are `center + width x`, `(p,)`.
        low, high: Bounds of `x`, `(p,)`.
        prior_weight: Weight of the prior as a log-likelihood.
        num_nodes: Points that are simulated at each of the parameters.
        rng_key: Makes designs and noise.
        progress_bar: Whether rounds are shown.
    """

    simulate: Callable[..., np.ndarray]
    loss: Loss
    data: Any
    fit_proportion: bool
    prior: np.ndarray
    center: np.ndarray
    width: np.ndarray
    low: np.ndarray
    high: np.ndarray
    prior_weight: float
    num_nodes: int
    rng_key: jax.Array
    progress_bar: bool

    @property
    def has_covariates(self) -> bool:
        """Tell whether data are pairs."""
        return isinstance(self.data, tuple)

    @property
    def size(self) -> int:
        """Number of data points."""
        return num_points(self.data)

    @property
    def look_nodes(self) -> int:
        """Nodes of each of the parameters, or of each of their data points, that serve to look at the prior."""
        return 1 if self.has_covariates else self.num_nodes // NODES

    @property
    def nodes(self) -> int:
        """Nodes of each of the parameters, or of each of their data points."""
        return max(self.num_nodes // ROW_NODES, 1) if self.has_covariates else self.num_nodes

    def bound(self, x: np.ndarray) -> np.ndarray:
        """Move points into the box."""
        return np.clip(x, self.low, self.high)

    def unstandardise(self, x: np.ndarray) -> np.ndarray:
        """Unconstrained parameters."""
        return self.center + self.width * x


@dataclass(frozen=True)
class Look:
    """The loss at prior draws, by few nodes and features, and with covariates by some of the data.

    Attributes:
        problem: The bootstrap.
        rows: With covariates, the data points that it rests on.
        embedding: The features.
        models: Embeddings of the model at the prior draws, `(S, r)`.
    """

    problem: BootstrapProblem
    rows: np.ndarray | None
    embedding: Embedding
    models: np.ndarray

    @classmethod
    def at_prior(cls, problem: BootstrapProblem) -> "Look":
        """Simulate at the prior draws."""
        rows, data = None, problem.data
        if problem.has_covariates:
            rows = np.unique(np.linspace(0, problem.size - 1, ROWS).astype(int))
            data = jax.tree.map(lambda leaf: leaf[rows], data)
        points = problem.simulate(child(problem.rng_key, 0), problem.prior, problem.look_nodes, rows)
        embedding = problem.loss.embedding(data, some_points(data, points), FEATURES)
        return cls(problem, rows, embedding, _equal(embedding, points, rows))

    def losses(self, weights: np.ndarray, models: np.ndarray) -> np.ndarray:
        """Losses `(R, S)` of reweighted data, weights `(R, n)`, and embeddings of the model `(S, r)`, infinite where
        these are not finite."""
        some = weights[:, : self.problem.size] if self.rows is None else weights[:, self.rows]
        data = self.embedding.data(some / some.sum(axis=1, keepdims=True))
        targets = (Targets(np.broadcast_to(row, models.shape), self.problem.fit_proportion) for row in data)
        losses = np.stack([target.loss(models) for target in targets])
        return np.where(np.isfinite(losses), losses, np.inf)

    def embed(self, rng_key: jax.Array, x: np.ndarray) -> np.ndarray:
        """Embeddings of the model at points `(D, p)`."""
        points = self.problem.simulate(rng_key, x, self.problem.look_nodes, self.rows)
        return _equal(self.embedding, points, self.rows)

    def regions(self, rng_key: jax.Array, pilots: np.ndarray) -> list[Ellipsoid]:
        """Follow the best prior draws, basin by basin, to where the minima of the full data and of pilot
        reweightings are, by cross-entropy: each keeps the best point, and these make the next proposal.

        A basin in which no pilot has its lowest loss is left, and one whose center the region of a better one holds.

        Args:
            rng_key: Makes proposals and noise.
            pilots: Weights, the full data first, `(R, n)`.
        """
        problem, dim = self.problem, self.problem.prior.shape[1]
        rng, prior = numpy_rng(rng_key), problem.prior
        radius = scipy.stats.chi2.ppf(1.0 - OUTSIDE, dim) ** 0.5
        full = self.losses(pilots[:1], self.models)[0]
        best = np.argsort(full)[: min(len(full) // 20, int(np.isfinite(full).sum()))]
        basins = self._basins(child(rng_key, 0), pilots[:1], prior[best[:FOLLOWED]], full[best[:FOLLOWED]])
        nearest = np.linalg.norm(prior[best][:, None] - prior[best[basins]], axis=2).argmin(axis=1)
        found, lowest = list[Ellipsoid](), list[np.ndarray]()
        for label in range(len(basins)):
            own = best[nearest == label]
            x, losses = prior[own], self.losses(pilots, self.models[own])
            center, spread = x.mean(axis=0), _spread(x) if len(x) > 1 else np.eye(dim)
            for step in range(STEPS):
                new = problem.bound(rng.multivariate_normal(center, spread, PROPOSALS))
                further = self.losses(pilots, self.embed(child(rng_key, 1 + label * STEPS + step), new))
                x, losses = np.concatenate([x, new]), np.concatenate([losses, further], axis=1)
                elite = x[np.unique(np.argmin(losses, axis=1))]
                shift, center = elite.mean(axis=0) - center, elite.mean(axis=0)
                spread = SLOW * spread + np.outer(shift, shift) + (_spread(elite) if len(elite) > 1 else 0.0)
            found.append(Ellipsoid(center, np.linalg.cholesky(spread), radius, problem.low, problem.high))
            lowest.append(losses.min(axis=1))
        kept = list[Ellipsoid]()
        for i in sorted(np.unique(np.argmin(lowest, axis=0)), key=lambda i: lowest[i][0]):
            if not any(better.holds(found[i].center) for better in kept):
                kept.append(found[i])
        return kept

    def _basins(self, rng_key: jax.Array, equal: np.ndarray, x: np.ndarray, losses: np.ndarray) -> list[int]:
        """Numbers of the best point of each basin, of points `(m, p)` best first.

        Two points share a basin if the loss half way between them is not above the worse one.
        """
        better, worse = np.triu_indices(len(x), 1)
        middle = self.losses(equal, self.embed(rng_key, 0.5 * (x[better] + x[worse])))[0]
        apart = np.ones((len(x), len(x)), bool)
        apart[better, worse] = middle > losses[worse]
        chosen: list[int] = []
        for i in range(len(x)):
            if len(chosen) < BASINS and apart[chosen, i].all():
                chosen.append(i)
        return chosen


def _equal(embedding: Embedding, points: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """Embeddings `(D, r)` of the model, with covariates for equally weighted data."""
    return embedding.model(points, None if rows is None else np.full((1, len(rows)), 1.0 / len(rows)))[:, 0]


def _spread(x: np.ndarray) -> np.ndarray:
    return np.cov(x.T).reshape(x.shape[1], -1) + 1e-8 * np.eye(x.shape[1])


def some_points(data: Any, points: np.ndarray) -> Any:
    """Some of the simulated points, `(m, ...)`, with their covariates."""
    lead = points.shape[: 3 if isinstance(data, tuple) else 2]
    total = int(np.prod(lead))
    # prime steps, so that all axes are met
    places = np.unravel_index(np.unique(np.arange(CANDIDATES) * 7919 % total), lead)
    found = points[places]
    sound = np.isfinite(found.reshape(len(found), -1)).all(axis=1)
    checks.require(bool(sound.any()), "no simulated point is finite; check the simulator at samples of the prior.")
    return (data[0][places[1]][sound], found[sound]) if isinstance(data, tuple) else found[sound]
