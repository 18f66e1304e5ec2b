"""Rounds of simulations that move an ellipsoid to the minima of reweighted data.

Every round simulates at points of the ellipsoid and at minima of the last round, so that its simulations also judge the
emulator of that round. It ends when the ellipsoid stays and the emulator agrees with what is simulated.
"""

from dataclasses import dataclass, replace

import jax
import numpy as np
import scipy
from scipy.special import ndtri

from numpyro_kme._core import checks, child, host, numpy_rng, progress, split
from numpyro_kme.bootstrap.emulator import Ellipsoid, Emulator, fit, num_monomials
from numpyro_kme.bootstrap.least_squares import Minima, Targets, minimise
from numpyro_kme.bootstrap.look import BootstrapProblem, some_points
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.losses.base import vectors

FEATURES = 250
"""Length of an embedding at most; the tolerance of features decides before, but for data of many dimensions."""
CHECKED = 32
"""Minima at which a round simulates; replicates that are minimised again with other noise."""
MOST_ROUNDS = 12
"""Rounds at most; problems that are narrower than their prior take three to five."""
HARMLESS = 0.1
"""Errors of the emulator up to this many posterior standard deviations are left alone."""
WIDEN = 3.0
"""Factor by which an ellipsoid grows that has minima at its edge."""
STRAY = 1.3
"""Factor by which the radius grows where few replicates, none of them a pilot, have their minima at the edge; without
it one of 100 easy runs warns, and one of 40 replicates of a normal model does not converge."""


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
    errors: tuple[float, ...] = ()
    settled: bool = False


def explore(
    problem: BootstrapProblem,
    region: Ellipsoid,
    reweightings: Reweightings,
    anchors: np.ndarray,
    num_pilots: int,
    rng_key: jax.Array,
) -> Explored:
    """Move a region to the minima of the full data and of pilot reweightings, and learn the embedding over it.

    Args:
        problem: The bootstrap.
        region: Where to begin.
        reweightings: The full data first, then pilots, then others, which have no part in where the region moves.
        anchors: Their prior anchors, `(R, p)`.
        num_pilots: Number of pilots.
        rng_key: Makes designs and noise.
    """
    dim, pilots = problem.prior.shape[1], np.arange(1 + num_pilots)
    size = 2 * num_monomials(dim, 3 if dim <= 4 else 2) + 20
    rows = _row_weights(problem, reweightings) if problem.has_covariates else None
    settled, errors = False, list[float]()
    design_key, noise_key = split(rng_key)
    x = _design(child(design_key, 0), problem, region, size)
    points = problem.simulate(child(noise_key, 0), x, problem.nodes)
    embedding = problem.loss.embedding(problem.data, some_points(problem.data, points), FEATURES)
    embeddings, data = embedding.model(points, rows), embedding.data(reweightings.weights, reweightings.extra)
    weight = problem.prior_weight * float(np.square(data[1:] - data[0]).sum(axis=1).mean())
    targets = Targets(data, problem.fit_proportion, anchors, weight)
    learnt = _learn(problem, region, targets, x, embeddings, pilots)
    error, resolution = np.inf, 0.0
    for step in progress.progress(range(1, MOST_ROUNDS), "moving to the minima", problem.progress_bar):
        moved, stays = _moved(problem, region, learnt.minima)
        settled = stays and error <= max(HARMLESS, resolution)
        if settled:
            everyone = _minima(learnt.region, learnt.emulator, learnt.targets, x, embeddings, np.arange(len(data)))
            if not region.at_edge(everyone.x).any():
                break
            region = replace(region, radius=STRAY * region.radius)
        elif not stays:
            region = moved
        checked = learnt.minima.x[:CHECKED]
        new = np.concatenate([checked, checked, _design(child(design_key, step), problem, region, size)])
        points = problem.simulate(child(noise_key, step), new, problem.nodes)
        fresh = embedding.model(points, rows)
        error, resolution = _error(learnt, fresh)
        errors.append(error)
        x, embeddings = np.concatenate([x, new]), np.concatenate([embeddings, fresh])
        learnt = _learn(problem, region, learnt.targets, x, embeddings, pilots)
    everyone = _minima(learnt.region, learnt.emulator, learnt.targets, x, embeddings, np.arange(len(data)))
    return replace(learnt, minima=everyone, errors=tuple(errors), settled=settled)


@host.one_blas_thread
def _learn(problem: BootstrapProblem, region: Ellipsoid, targets: Targets, x, embeddings, pilots) -> "Explored":
    """Fit an emulator over a region, find the minima of the pilots there, and then the weight of the prior."""
    inside = np.linalg.norm(region.whiten(x), axis=1) <= 1.01 * region.radius
    inside &= np.isfinite(embeddings).all(axis=(1, 2))
    checks.require(
        int(inside.sum()) > x.shape[1],
        f"the simulator gave finite points at {int(inside.sum())} of {len(x)} parameters near minima: narrow priors.",
    )
    x, embeddings = x[inside], embeddings[inside]
    emulator = fit(region, x, embeddings)
    minima = _minima(region, emulator, targets, x, embeddings, pilots)
    if problem.prior_weight:
        scale = loss_scale(targets.rows(pilots), emulator.rows(pilots), minima.x)
        targets = replace(targets, weight=problem.prior_weight * scale)
    return Explored(region, emulator, targets, minima)


def _row_weights(problem: BootstrapProblem, reweightings: Reweightings) -> np.ndarray:
    """Weights of the covariates of the data, `(R, n)`; a further point adds its own to the nearest covariates."""
    weights = np.array(reweightings.weights[:, : problem.size])
    if reweightings.extra is not None:
        covariates = vectors(problem.data[0])
        for own, given, further in zip(weights, reweightings.extra[0], reweightings.weights[:, problem.size :]):
            apart = np.linalg.norm(vectors(given)[:, None] - covariates, axis=2)
            np.add.at(own, apart.argmin(axis=1), further)
    return weights


def _design(rng_key: jax.Array, problem: BootstrapProblem, region: Ellipsoid, size: int) -> np.ndarray:
    """Points evenly over a region, `(size, p)`."""
    dim = len(region.center)
    sobol = scipy.stats.qmc.Sobol(dim + 1, rng=numpy_rng(rng_key))
    cube = sobol.random(2 ** int(np.ceil(np.log2(size))))[:size].clip(1e-9, 1.0 - 1e-9)
    z = ndtri(cube[:, :dim])
    z *= region.radius * cube[:, dim:] ** (1.0 / dim) / np.linalg.norm(z, axis=1, keepdims=True)
    return problem.bound(region.center + z @ region.root.T)


@host.one_blas_thread
def _minima(region: Ellipsoid, emulator: Emulator, targets: Targets, x, embeddings, rows: np.ndarray) -> Minima:
    """Minima of some reweightings, each from the best of the simulated points."""
    some = targets.rows(rows)
    own = embeddings if embeddings.shape[1] == 1 else embeddings[:, rows]
    totals = [some.total(np.broadcast_to(m, some.data.shape), place) for place, m in zip(x, own)]
    return minimise(some, emulator.rows(rows), region, x[np.argmin(totals, axis=0)])


def _error(found: Explored, fresh: np.ndarray) -> tuple[float, float]:
    """Distance by which the emulator has moved the first minima, in standard deviations, and the error that noise alone
    could show.

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
    change = np.vecdot(tangents, (targets.pull(found) - targets.pull(emulated))[:, None])
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
        inner = np.vecdot(tangents, along[:, None])
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
