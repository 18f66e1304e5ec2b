"""Waste-free tempered sequential Monte Carlo: draws from a density of several modes, without tuning.

Particles go from a start density, such as a prior, to the posterior through `start * weight^t`, where `weight` is the
posterior over the start density, such as a likelihood. At each temperature few of them, the chains, are resampled and
moved, and all states of their last round of moves are the particles of the next temperature. A temperature is the
largest at which the effective sample size of the weights is a stated fraction of the particles; rounds of moves end
when the chains no longer correlate with where they began, so that easy posteriors cost little. Proposals are those of
`ProposalDistribution`.

References: Dau and Chopin (2022), JRSS B 84 (waste-free); Del Moral et al. (2006), JRSS B 68.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from numpyro_kme._core import door, numpy_rng, shown
from numpyro_kme.kernels.base import take
from numpyro_kme.samplers.importance import systematic, tempered

SINGLE, BINS = 0.15, 100
"""Probability of a proposal of one coordinate alone, and the bins of its histogram. With 0.3 six
ordinary targets take up to a third more evaluations for each effective draw; with none up to a third fewer, but chains
get stuck where a coordinate has a narrow mode beside a broad one."""
JUMP = 0.3
"""Probability of a proposal by a difference. With 0.5 the effective draws for each evaluation change by at most a third
on ten targets in two to fifteen dimensions, with 0.15 by a quarter on four of them."""
DEGREES = 4.0
"""Degrees of freedom `nu` of the Student distribution."""


class ProposalDistribution(NamedTuple):
    r"""Proposals of Metropolis moves, fitted to many particles: differences of two, histograms of single coordinates,
    and a Student distribution.

    Some of the proposals add the difference of two particles, and jump between modes. Some give one coordinate a value
    from the histogram of the particles, whose bins have equal mass, and so jump between broad modes and narrow ones.
    The others leave the Student distribution $t$ with `nu` degrees of freedom and the mean $m$ and covariance $S$ of
    the particles invariant: with $q = (x - m)' S^{-1} (x - m)$

    $$ x' = m + \cos(a) (x - m) + \sin(a) \sqrt{(\nu + q) / c}\; S^{1/2} n,
       \qquad c \sim \chi^2_{\nu + D}, \; n \sim N(0, I), $$

    accepted with probability $\min(1, \pi(x') t(x) / (\pi(x) t(x')))$: half of the angles $a$ are right angles, which
    forget the state where the posterior is near $t$, and half are uniform below, of which the small ones are accepted
    where it is not.

    Attributes:
        particles: `(N, D)`.
        mean, sd: Their moments, `(D,)`.
        root, inverse: The Cholesky factor of their correlations and its inverse, `(D, D)`.
        edges: Of the bins of each coordinate, `(BINS + 1, D)`.
    References: Tierney (1994), Annals of Statistics 22 (a coordinate alone); ter Braak (2006), Statistics and Computing
    16 (differences); Grumitt et al. (2024), Inverse Problems 40 (Student proposals).
    """

    particles: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    root: np.ndarray
    inverse: np.ndarray
    edges: np.ndarray

    @classmethod
    def fit(cls, particles: np.ndarray, ridge: float = 1e-9) -> "ProposalDistribution":
        """The proposal that fits particles `(N, D)`, with a `ridge` on the diagonal of their correlations."""
        mean, sd = particles.mean(axis=0), np.maximum(particles.std(axis=0), np.finfo(particles.dtype).tiny)
        standard = (particles - mean) / sd
        root = np.linalg.cholesky(standard.T @ standard / len(particles) + ridge * np.eye(len(mean)))
        edges = np.quantile(particles, np.linspace(0.0, 1.0, BINS + 1), axis=0)
        return cls(particles, mean, sd, root, np.linalg.inv(root), edges)

    def propose(self, rng: np.random.Generator, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Proposals from `u` `(M, D)`, and for each the log of `t(u) / t(proposal)` where it is by a distribution `t`,
        the Student distribution or a histogram."""
        count, dim = u.shape
        (kind, amount), normal = rng.random((2, count)), rng.standard_normal((count, dim))
        first, second = rng.integers(len(self.particles), size=(2, count))
        by_difference = u + self.particles[first] - self.particles[second]
        white = ((u - self.mean) / self.sd) @ self.inverse.T
        form, chi_square = np.sum(white * white, axis=1), rng.chisquare(DEGREES + dim, count)
        angle = 0.5 * np.pi * np.minimum(2.0 * amount, 1.0)[:, None]
        there = np.cos(angle) * white + np.sin(angle) * normal * np.sqrt((DEGREES + form) / chi_square)[:, None]
        log_ratio = np.log1p(np.sum(there * there, axis=1) / DEGREES) - np.log1p(form / DEGREES)
        jumps, by_student = kind < JUMP, self.mean + self.sd * (there @ self.root.T)
        found = np.where(jumps[:, None], by_difference, by_student)
        log_ratio = np.where(jumps, 0.0, 0.5 * (DEGREES + dim) * log_ratio)
        single = np.flatnonzero(kind > 1.0 - SINGLE)
        found[single], log_ratio[single] = self._renewed(rng, u[single])
        return found, log_ratio

    def _renewed(self, rng: np.random.Generator, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, where one coordinate each has a new value; none leaves where its histogram is zero."""
        rows, one = np.arange(len(u)), rng.integers(u.shape[1], size=len(u))
        low, high = self.edges[:-1, one], self.edges[1:, one]
        new, old = rng.integers(BINS, size=len(u)), (low <= u[rows, one]) & (u[rows, one] < high)
        found = u.copy()
        found[rows, one] = rng.uniform(low[new, rows], high[new, rows])
        width = np.sum((high - low) * old, axis=0)
        with np.errstate(divide="ignore"):  # bins without width have no density
            log_ratio = np.log((high - low)[new, rows]) - np.log(np.where(width > 0.0, width, np.inf))
        return found, log_ratio


LogDensities = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

EFFECTIVE = 0.3
"""Effective number of particles that the weights of a new temperature leave, relative to all at which the weight is
positive; the others go at once, however many they are."""
MOVES = 4
"""Moves in a round: so many particles come from each chain."""
DECORRELATED, ENOUGH, MOST_ROUNDS = 0.1, 0.8, 24
"""At each temperature, rounds end when the squared correlation with where the chains began, in the worst coordinate, is
at most this; at the posterior, when the effective number of draws, relative to all, is at least this; or when there
were this many."""
MOST_TEMPERATURES = 1000
"""Only weights whose logarithms differ by more than the smallest step of the search can bridge meet this bound."""


@shown
class Tempered(NamedTuple):
    """Draws after tempering, and how it went.

    Attributes:
        particles: `(M, D)`, equally weighted draws from the posterior, the states of `M` chains.
        log_density: `log start + log weight` there, `(M,)`.
        log_evidence: Estimate of `log int weight d start`.
        num_temperatures: How many steps led from the start to the posterior.
        num_evaluations: How many times both densities were evaluated.
        acceptance: Acceptance rate of the last round of moves.
        effective_size: Effective number of independent draws, `1 / ((1 - r^2) / M + r^2 (1 / F + 1 / E - 1 / N))` for
            the worst coordinate: `r` is the autocorrelation between a chain's states before and after the moves at the
            posterior, `F = M^2 / sum_i f_i^2` the effective number of first particles that the chains descend from, of
            which number `i` has `f_i` descendants, and `E = 1 / sum_i w_i^2` that of the `N` weights that led to the
            posterior. Both states are clipped at the 1st and 99th percentiles of those before, so that it holds for
            means of the bulk: a mode of less than 1% of the mass may be stuck, and its probability wrong, without
            notice.
    """

    particles: np.ndarray
    log_density: np.ndarray
    log_evidence: float
    num_temperatures: int
    num_evaluations: int
    acceptance: float
    effective_size: float


class _Points(NamedTuple):
    """Positions `(n, D)` and their densities, `(n,)`."""

    u: np.ndarray
    log_start: np.ndarray
    log_weight: np.ndarray

    @classmethod
    def joined(cls, parts: list["_Points"]) -> "_Points":
        return cls(*map(np.concatenate, zip(*parts)))

    def log_density(self, temperature):
        return self.log_start + temperature * self.log_weight


def _squared_autocorrelation(before: np.ndarray, after: np.ndarray) -> float:
    """Largest squared correlation of a coordinate of positions `(M, D)` before and after moves; 1 where one does not
    vary. Both are clipped at the 1st and 99th percentiles of those before, else one outlying particle would rule."""
    ordered, out = np.sort(before, axis=0), int(0.01 * len(before))
    first, last = np.clip(np.stack([before, after]), ordered[out], ordered[-1 - out])
    first, last = first - np.mean(first, axis=0), last - np.mean(last, axis=0)
    squares, shared = np.sum(first**2, axis=0) * np.sum(last**2, axis=0), np.sum(first * last, axis=0) ** 2
    return float(np.max(np.divide(shared, squares, out=np.ones_like(shared), where=squares > 0)))


@door
def temper(
    rng_key: jax.Array, log_densities: LogDensities, particles: np.ndarray, num_chains: int | None = None
) -> Tempered:
    """Turn draws from a start density into draws from the posterior, by NumPy: nothing is compiled but what the
    densities compile.

    Args:
        rng_key: The only source of randomness.
        log_densities: `(n, D) -> (log start, log weight)`, each `(n,)`, the first up to a constant: a prior and its
            likelihood, or a density that is about the posterior and what the posterior is relative to it. Where the
            weight is 0 or NaN the posterior has no mass; where it is so at every particle, the evidence is not finite.
            It is called with at most `M` points at a time.
        particles: `(N, D)` independent draws from the start density: of a prior `MOVES` for each draw from the
            posterior that is wanted, of one that is about the posterior fewer; a few thousand for ten dimensions.
        num_chains: `M`, as many as draws from the posterior; a quarter of the particles when left out.
    Returns:
        `Tempered`.
    Cost: `N` evaluations of both densities, batched over `M`, at the start and in each round of moves: 1 to
    `MOST_ROUNDS` at each temperature. Narrow crescents and modes far apart meet this bound; the chains then still
    correlate with where they began, and `effective_size` is small.
    """

    def evaluate(u):
        log_start, log_weight = map(np.asarray, log_densities(u))
        return _Points(u, log_start, np.where(np.isnan(log_weight), -np.inf, log_weight))

    rng, start, num_chains = numpy_rng(rng_key), len(particles), num_chains or len(particles) // MOVES
    blocks = np.split(np.asarray(particles, np.float64), range(num_chains, start, num_chains))
    population, size = _Points.joined(list(map(evaluate, blocks))), num_chains * MOVES
    ancestors, unequal, temperature, log_evidence = np.arange(start), 0.0, 0.0, 0.0
    num_temperatures, num_moves = 0, 0
    while True:
        last = temperature >= 1.0
        if last:  # once more, for as many rounds as it needs, from the states that the chains are in
            chosen = np.arange(size)
            starts = chosen[-num_chains:]
        else:
            alive, to_go = np.sum(population.log_weight > -np.inf), 1.0 - temperature
            step, weights, log_mean = tempered(population.log_weight, to_go, EFFECTIVE * alive)
            temperature = 1.0 if step in (0.0, to_go) else temperature + step
            unequal = float(np.sum(weights**2)) - 1.0 / len(weights)
            chosen = systematic(rng, weights, size)
            starts, log_evidence, num_temperatures = chosen[::MOVES], log_evidence + log_mean, num_temperatures + 1
            temperature = temperature if num_temperatures < MOST_TEMPERATURES else 1.0
        proposal, points = ProposalDistribution.fit(population.u[chosen]), take(population, starts)
        before, ancestors, enough = points.u, ancestors[starts], False
        kin = np.sum(np.bincount(ancestors) ** 2) / num_chains**2
        ancestors = np.tile(ancestors, MOVES)
        for _ in range(MOST_ROUNDS):
            path: list[_Points] = []
            moved: list[np.ndarray] = []
            while len(path) < MOVES and not enough:
                points, accepted = _move(rng, evaluate, proposal, points, temperature)
                path.append(points)
                moved.append(accepted)
                shared = _squared_autocorrelation(before, points.u)
                effective_size = 1.0 / ((1.0 - shared) / num_chains + shared * (kin + unequal))
                enough = temperature >= 1.0 and bool(effective_size >= ENOUGH * num_chains)
            population, num_moves = _Points.joined(path), num_moves + len(path)
            if enough or (not last and shared <= DECORRELATED):
                break
        if last or enough:
            break
    return Tempered(
        particles=points.u,
        log_density=points.log_density(1.0),
        log_evidence=log_evidence,
        num_temperatures=num_temperatures,
        num_evaluations=start + num_chains * num_moves,
        acceptance=float(np.mean(moved)),
        effective_size=effective_size,
    )


def _move(rng: np.random.Generator, evaluate, proposal: ProposalDistribution, points: _Points, temperature: float):
    """The points after a Metropolis move, and which of them moved."""
    u, log_ratio = proposal.propose(rng, points.u)
    proposed = evaluate(u)
    with np.errstate(invalid="ignore"):  # infinity less infinity, where nothing moves
        log_ratio = log_ratio + proposed.log_density(temperature) - points.log_density(temperature)
    accepted = np.log1p(-rng.random(len(u))) < log_ratio
    return take(_Points.joined([points, proposed]), np.arange(len(u)) + len(u) * accepted), accepted
