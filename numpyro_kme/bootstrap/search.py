"""Where the minima of reweighted data lie: a look at the prior, and rounds that move an ellipsoid to them.

Every round simulates at points of the ellipsoid and at minima of the last round, so that its simulations also judge the
emulator of that round. It ends when the ellipsoid stays and the emulator agrees with what is simulated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import scipy
from scipy.special import ndtri

from numpyro_kme._core import checks, progress
from numpyro_kme._core.host import numpy_rng
from numpyro_kme._core.keys import child
from numpyro_kme.bootstrap.emulator import Ellipsoid, Emulator, fit, num_monomials
from numpyro_kme.bootstrap.least_squares import NOTHING, Anchor, Minima, Targets, minimise
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.kernels.base import num_points
from numpyro_kme.losses.base import Embedding, Loss
from numpyro_kme.losses.family import vectors

LOOK_FEATURES, FEATURES = 64, 250
"""Length of an embedding at most, while looking at the prior and afterwards; the tolerance of features decides before,
but for data of many dimensions."""
CANDIDATES = 1000
"""Data, and simulated points, among which features choose their pivots."""
LOOK_ROWS, LOOK_NODES = 128, 32
"""Data points whose covariates serve to look at the prior, with a node each; without, one in how many nodes does."""
ROW_NODES = 128
"""With covariates, each data point has one in so many nodes."""
FOLLOWED, BASINS = 40, 4
"""Prior draws that are sorted into basins of the loss; basins that are followed."""
PROPOSALS, STEPS = 300, 5
"""Points that a step of cross-entropy makes; steps."""
SLOW = 0.5
"""What is left of a proposal's covariance in the next one: as many points share their noise, few may win."""
CHECKED = 32
"""Minima at which a round simulates."""
MOST_ROUNDS = 12
"""Rounds at most; problems that are narrower than their prior take three to five."""
SCALINGS = 3
"""Times that minima and the scale of the loss are found in turn, where the prior counts."""
HARMLESS = 0.1
"""Errors of the emulator up to this many posterior standard deviations are left alone."""
WIDEN = 3.0
"""Factor by which an ellipsoid grows that has minima at its edge."""
STRAY = 1.3
"""Factor by which the radius grows where few replicates, none of them a pilot, have their minima at the edge."""
MORE_NODES = 4
"""Factor by which nodes are multiplied once the ellipsoid stays, where noise hides how wrong the emulator is."""
OUTSIDE = 1e-4
"""Proportion of a normal posterior that lies outside of the ellipsoid."""


@dataclass(frozen=True)
class BootstrapProblem:
    """A bootstrap in which parameters `x` are in units of the prior.

    Attributes:
        simulate: `(x (D, p), number, num_nodes, rows) -> points`, see `Embedding.model`; `number` parameters have been
            simulated before.
        loss: The loss, a squared distance.
        data: `(n, ...)`, or a pair (covariates, responses).
        fit_proportion: Whether the loss fits a mixing proportion.
        prior: Prior draws `(S, p)`.
        center, width: Unconstrained parameters are `center + width x`, `(p,)`.
        low, high: Bounds of `x`, `(p,)`.
        prior_weight: Weight of the prior as a log-likelihood.
        num_nodes: Points that are simulated at each of the parameters.
        rng_key: Makes designs.
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
        """Whether data are pairs."""
        return isinstance(self.data, tuple)

    @property
    def size(self) -> int:
        """Number of data points."""
        return num_points(self.data)

    @property
    def look_nodes(self) -> int:
        """Nodes of each of the parameters, or of each of their data points, that serve to look at the prior."""
        return 1 if self.has_covariates else self.num_nodes // LOOK_NODES

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
            rows = np.unique(np.linspace(0, problem.size - 1, LOOK_ROWS).astype(int))
            data = jax.tree.map(lambda leaf: leaf[rows], data)
        points = problem.simulate(problem.prior, 0, problem.look_nodes, rows)
        embedding = problem.loss.embedding(data, some_points(data, points), LOOK_FEATURES)
        return cls(problem, rows, embedding, _equal(embedding, points, rows))

    def losses(self, weights: np.ndarray, models: np.ndarray) -> np.ndarray:
        """Losses `(R, S)` of reweighted data, weights `(R, n)`, and embeddings of the model `(S, r)`, infinite where
        these are not finite."""
        some = weights[:, : self.problem.size] if self.rows is None else weights[:, self.rows]
        none = Anchor(np.zeros((1, 0)), 0.0)
        data = self.embedding.data(some / some.sum(axis=1, keepdims=True))
        targets = (Targets(np.broadcast_to(row, models.shape), self.problem.fit_proportion, none) for row in data)
        losses = np.stack([target.loss(models) for target in targets])
        return np.where(np.isfinite(losses), losses, np.inf)

    def embed(self, x: np.ndarray, number: int) -> np.ndarray:
        """Embeddings of the model at points `(D, p)`."""
        points = self.problem.simulate(x, number, self.problem.look_nodes, self.rows)
        return _equal(self.embedding, points, self.rows)

    def regions(self, pilots: np.ndarray) -> list[Ellipsoid]:
        """Follow the best prior draws, basin by basin, to where the minima of the full data and of pilot
        reweightings are, by cross-entropy: each keeps the best point, and these make the next proposal.

        A basin in which no pilot has its lowest loss is left, and one whose center the region of a better one holds.

        Args:
            pilots: Weights, the full data first, `(R, n)`.
        """
        problem, dim = self.problem, self.problem.prior.shape[1]
        rng, prior = numpy_rng(child(problem.rng_key, 0)), problem.prior
        radius = scipy.stats.chi2.ppf(1.0 - OUTSIDE, dim) ** 0.5
        full = self.losses(pilots[:1], self.models)[0]
        best = np.argsort(full)[: min(len(full) // 20, int(np.isfinite(full).sum()))]
        basins, number = self._basins(pilots[:1], prior[best[:FOLLOWED]], full[best[:FOLLOWED]])
        nearest = np.linalg.norm(prior[best][:, None] - prior[best[basins]], axis=2).argmin(axis=1)
        found, lowest = list[Ellipsoid](), list[np.ndarray]()
        for label in range(len(basins)):
            own = best[nearest == label]
            x, losses = prior[own], self.losses(pilots, self.models[own])
            center, spread = x.mean(axis=0), _spread(x) if len(x) > 1 else np.eye(dim)
            for _ in range(STEPS):
                new = problem.bound(rng.multivariate_normal(center, spread, PROPOSALS))
                further = self.losses(pilots, self.embed(new, number))
                x, losses = np.concatenate([x, new]), np.concatenate([losses, further], axis=1)
                number += PROPOSALS
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

    def _basins(self, equal: np.ndarray, x: np.ndarray, losses: np.ndarray) -> tuple[list[int], int]:
        """Numbers of the best point of each basin, of points `(m, p)` best first, and how many parameters have been
        simulated.

        Two points share a basin if the loss half way between them is not above the worse one.
        """
        better, worse = np.triu_indices(len(x), 1)
        number = len(self.problem.prior)
        middle = self.losses(equal, self.embed(0.5 * (x[better] + x[worse]), number))[0]
        apart = np.ones((len(x), len(x)), bool)
        apart[better, worse] = middle > losses[worse]
        chosen: list[int] = []
        for i in range(len(x)):
            if len(chosen) < BASINS and apart[chosen, i].all():
                chosen.append(i)
        return chosen, number + len(better)


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


@dataclass(frozen=True)
class Explored:
    """Minima of all reweightings in a region, on embeddings that were emulated over it.

    Attributes:
        region: The region.
        emulator: The embeddings.
        targets: What is minimised.
        minima: The minima.
        errors: How far simulation moved pilot minima in each round but the first, in posterior standard deviations.
        settled: Whether the region stayed, and the error is harmless.
    """

    region: Ellipsoid
    emulator: Emulator
    targets: Targets
    minima: Minima
    errors: tuple[float, ...]
    settled: bool


def explore(
    problem: BootstrapProblem,
    region: Ellipsoid,
    reweightings: Reweightings,
    anchors: np.ndarray,
    num_pilots: int,
    number: int,
) -> tuple[Explored, int]:
    """Move a region to the minima of the full data and of pilot reweightings, and learn the embedding over it.

    Args:
        problem: The bootstrap.
        region: Where to begin.
        reweightings: The full data first, then pilots, then others, which have no part in where the region moves.
        anchors: Their prior anchors, `(R, p)`.
        num_pilots: Number of pilots.
        number: How many parameters have been simulated before.
    Returns:
        What was found, and how many parameters have been simulated.
    """
    dim, pilots = problem.prior.shape[1], np.arange(1 + num_pilots)
    size = 2 * num_monomials(dim, 3 if dim <= 4 else 2) + 20
    rows = _row_weights(problem, reweightings) if problem.has_covariates else None
    nodes, most_nodes, settled, errors = problem.nodes, MORE_NODES * problem.nodes, False, list[float]()
    x = _design(problem, region, size, 0)
    points, number = problem.simulate(x, number, nodes), number + size
    embedding = problem.loss.embedding(problem.data, some_points(problem.data, points), FEATURES)
    embeddings, data = embedding.model(points, rows), embedding.data(reweightings.weights, reweightings.extra)
    targets = Targets(data, problem.fit_proportion, Anchor(anchors, np.square(data[1:] - data[0]).sum(axis=1).mean()))
    learnt = _learn(problem, region, targets, x, embeddings, pilots)
    error, resolution = np.inf, np.inf
    for step in progress.progress(range(1, MOST_ROUNDS), "moving to the minima", problem.progress_bar):
        moved, stays = _moved(problem, region, learnt.minima)
        settled = stays and error <= max(HARMLESS, resolution) and (resolution <= HARMLESS or nodes == most_nodes)
        if settled:
            everyone = _minima(learnt, x, embeddings, np.arange(len(data)))
            if not region.at_edge(everyone.x).any():
                break
            region = replace(region, radius=STRAY * region.radius)
        else:
            region, nodes = (region, most_nodes) if stays else (moved, nodes)
        checked = learnt.minima.x[:CHECKED]
        new = np.concatenate([checked, checked, _design(problem, region, size, step)])
        points, number = problem.simulate(new, number, nodes), number + len(new)
        fresh = embedding.model(points, rows)
        error, resolution = _error(learnt, fresh)
        errors.append(error)
        x, embeddings = np.concatenate([x, new]), np.concatenate([embeddings, fresh])
        learnt = _learn(problem, region, learnt.targets, x, embeddings, pilots)
    everyone = _minima(learnt, x, embeddings, np.arange(len(data)))
    return replace(learnt, minima=everyone, errors=tuple(errors), settled=settled), number


def _learn(problem: BootstrapProblem, region: Ellipsoid, targets: Targets, x, embeddings, pilots) -> "Explored":
    """Fit an emulator over a region, and find the minima of the pilots and the weight of the prior in turn."""
    inside = np.linalg.norm(region.whiten(x), axis=1) <= 1.01 * region.radius
    inside &= np.isfinite(embeddings).all(axis=(1, 2))
    checks.require(
        int(inside.sum()) > x.shape[1],
        f"the simulator gave finite points at {int(inside.sum())} of {len(x)} parameters near the minima: narrow the "
        "priors.",
    )
    x, embeddings = x[inside], embeddings[inside]
    weight = targets.anchor.weight if problem.prior_weight else 0.0
    found = Explored(region, fit(region, x, embeddings), targets.anchored(weight), NOTHING, (), False)
    for _ in range(SCALINGS if problem.prior_weight else 1):
        found = replace(found, targets=targets.anchored(weight))
        found = replace(found, minima=_minima(found, x, embeddings, pilots))
        if problem.prior_weight:
            scale = loss_scale(found.targets.rows(pilots), found.emulator.rows(pilots), found.minima.x)
            weight = problem.prior_weight * scale
    return found


def _row_weights(problem: BootstrapProblem, reweightings: Reweightings) -> np.ndarray:
    """Weights of the covariates of the data, `(R, n)`; a further point adds its own to the nearest covariates."""
    weights = np.array(reweightings.weights[:, : problem.size])
    if reweightings.extra is not None:
        covariates = vectors(problem.data[0])
        for own, given, further in zip(weights, reweightings.extra[0], reweightings.weights[:, problem.size :]):
            apart = np.linalg.norm(vectors(given)[:, None] - covariates, axis=2)
            np.add.at(own, apart.argmin(axis=1), further)
    return weights


def _design(problem: BootstrapProblem, region: Ellipsoid, size: int, number: int) -> np.ndarray:
    """Points evenly over a region, `(size, p)`."""
    dim = len(region.center)
    sobol = scipy.stats.qmc.Sobol(dim + 1, rng=numpy_rng(child(problem.rng_key, 1 + number)))
    cube = sobol.random(2 ** int(np.ceil(np.log2(size))))[:size].clip(1e-9, 1.0 - 1e-9)
    z = ndtri(cube[:, :dim])
    z *= region.radius * cube[:, dim:] ** (1.0 / dim) / np.linalg.norm(z, axis=1, keepdims=True)
    return problem.bound(region.center + z @ region.root.T)


def _minima(found: Explored, x: np.ndarray, embeddings: np.ndarray, rows: np.ndarray) -> Minima:
    """Minima of some reweightings, each from the best of the simulated points."""
    some = found.targets.rows(rows)
    own = embeddings if embeddings.shape[1] == 1 else embeddings[:, rows]
    totals = []
    for place, m in zip(x, own):
        away = np.square(place - some.anchor.points).sum(axis=1)
        totals.append(some.loss(np.broadcast_to(m, some.data.shape)) + 0.5 * some.anchor.weight * away)
    return minimise(some, found.emulator.rows(rows), found.region, x[np.argmin(totals, axis=0)])


def _error(found: Explored, fresh: np.ndarray) -> tuple[float, float]:
    """How far the emulator has moved the first minima, in standard deviations, and the error that noise alone could
    show.

    Root mean square, the largest over parameters. The first `2 CHECKED` embeddings were simulated at these minima,
    twice: the mean product of two moves has no noise in it.
    """
    few, minima = np.arange(min(CHECKED, len(found.minima.x))), found.minima
    some = found.targets.rows(few), found.emulator.rows(few), Minima(*(part[few] for part in minima))
    halves = (own[:, 0] if own.shape[1] == 1 else own[few, few] for own in (fresh[few], fresh[CHECKED + few]))
    width = np.sqrt(np.square(found.region.root).sum(axis=1))
    one, other = (moves(*some, half) / np.maximum(minima.x.std(axis=0), 1e-3 * width) for half in halves)
    products = one * other
    noise = 2.0 * products.std(axis=0).max() / np.sqrt(len(few))
    return float(np.sqrt(max(products.mean(axis=0).max(), 0.0))), float(np.sqrt(noise))


def moves(targets: Targets, emulator: Emulator, minima: Minima, found: np.ndarray) -> np.ndarray:
    """First-order moves `(R, p)` of minima whose embeddings were found to be `(R, r)` by simulation."""
    tangents, emulated = emulator.tangents(minima.x), emulator.at(minima.x)
    change = np.einsum("rpk,rk->rp", tangents, targets.pull(found) - targets.pull(emulated))
    values, vectors = np.linalg.eigh(minima.hessian)
    values = np.maximum(np.abs(values), 1e-9 * np.abs(values).max(axis=1, keepdims=True))
    return -np.einsum("rpq,rq->rp", vectors, np.einsum("rpq,rp->rq", vectors, change) / values)


def loss_scale(targets: Targets, emulator: Emulator, x: np.ndarray) -> float:
    r"""One unit of log-likelihood in the loss, `sum_k h_k / sum_k (h_k^2 / j_k)`: the inverse of a learning rate.

    For a log-likelihood the variance `j` of the gradient over reweightings of the data is the Hessian `h` (the
    information identity), and the scale 1. For another loss it is that of Lyddon, Holmes and Walker, along the
    principal directions of `h`, summed over points `x (R, p)`, since along what the data leave open `h` varies.

    References: Lyddon, Holmes and Walker (2019), Biometrika 106.
    """
    m, tangents = emulator.at(x), emulator.tangents(x)
    if targets.fit_proportion:
        along = m / np.linalg.norm(m, axis=1, keepdims=True)
        c = targets.proportion(m)[:, None, None]
        inner = np.einsum("rpk,rk->rp", tangents, along)
        tangents = np.where(c < 1.0, c * (tangents - inner[:, :, None] * along[:, None]), tangents)
    h, directions = np.linalg.eigh(2.0 * tangents @ np.swapaxes(tangents, 1, 2))
    slopes = 2.0 * np.swapaxes(directions, 1, 2) @ tangents
    j = np.einsum("kpr,rs,kps->kp", slopes, np.cov(targets.data.T).reshape(m.shape[1], -1), slopes, optimize=True)
    h = np.maximum(h, 1e-9 * h.max())
    return float(h.sum() / (h**2 / np.maximum(j, 1e-300)).sum())


def _moved(problem: BootstrapProblem, region: Ellipsoid, minima: Minima) -> tuple[Ellipsoid, bool]:
    """The region of the minima, and whether it is about the one that they were found in.

    Where the full data's minimum is at the edge, the region moves there and widens instead.
    """
    edge = region.at_edge(minima.x)
    if edge[0] or edge.mean() > 0.1:
        center = minima.x[0] if edge[0] else minima.x.mean(axis=0)
        return replace(region, center=problem.bound(center), root=WIDEN * region.root), False
    z = region.whiten(minima.x)
    spread = np.cov(z.T).reshape(z.shape[1], -1) + 0.02 * np.eye(z.shape[1])
    root = region.root @ np.linalg.cholesky(spread)
    sizes, shift = np.sqrt(np.linalg.eigvalsh(spread)), np.linalg.norm(z.mean(axis=0))
    stays = bool(np.abs(np.log(sizes)).max() < np.log(4.0 / 3.0) and shift < 1.0)
    return replace(region, center=minima.x.mean(axis=0), root=root), stays
