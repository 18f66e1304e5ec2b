"""Adaptive importance sampling: weighted particles of a posterior, however much narrower than the prior it is; and
systematic resampling of weighted particles; standard errors by weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from numpyro_kme._core import Array, checks, child, numpy_function, numpy_rng, saveable, shown, split
from numpyro_kme.embeddings.measures import Measure, Points
from numpyro_kme.kernels.base import register

COMPONENTS = 100
"""Normals in a kernel density estimate."""
WIDTHS = np.array([1.0, 0.5, 0.25])
"""Bandwidths that are tried, in those of the rule of thumb, which is for one normal: several modes ask for less."""
ONE_NORMAL = 0.5
"""Part of a proposal that is one normal: in many dimensions so few kernels are far from one."""
DEFENSIVE = 0.1
"""Part of the measure in a proposal."""
SMALLEST = -60.0
"""Log of the smallest power of a likelihood, relative to the largest."""
BATCH = 1024
"""Points at which a likelihood is evaluated together: what they need stays in a processor's cache."""


class SignedLikelihood(Protocol):
    """A likelihood of one observation as a function of coordinates, which may be negative."""

    def signed_log(self, z: Array) -> tuple[Array, Array]:
        """Its sign and the logarithm of its size at points `(n, D)`, `(n,)` each."""


@register
class WeightedParticles:
    """Particles with signed importance weights: `sum_i weights_i f(particles_i)` estimates a posterior expectation.

    Args:
        particles: `(n, D)`.
        weights: `(n,)`, with sum one; negative where the surrogate is.
        log_evidence: Estimate of `log int q(y | z) p(dz)`, the sum of the weights before they were normalised.
    """

    particles: Array
    weights: Array
    log_evidence: Array

    @property
    def positive_weights(self) -> np.ndarray:
        """Weights of the positive part of the posterior, normalised again, `(n,)`."""
        positive = np.maximum(np.asarray(self.weights), 0.0)
        return positive / positive.sum()


@numpy_function
def adaptive_importance_sampling(
    rng_key: jax.Array, likelihood: SignedLikelihood, measure: Measure, n: int
) -> WeightedParticles:
    """`n` weighted particles of the posterior `q(y | z) p(dz)`.

    Draws from the measure are reweighted by the positive part of `q` to a power that keeps a fifth of them effective; a
    normal and normals around the best of them propose the next round, until the power is one. The last round draws `n`
    particles from a defensive mixture, a tenth of them from the measure, with the weights `q p / proposal`, negative
    ones included. A `Points` measure has no density: its own points are reweighted.

    Cost: `n` evaluations of `q` a round, two to fifteen rounds.
    """
    checks.whole("n", n, 1)
    if isinstance(measure, Points):
        sign, log_size = signed_logs(likelihood, np.asarray(measure.points))
        return _normalised(measure.points, sign, log_size + np.log(measure.probabilities))

    def positive(z):
        sign, log_size = signed_logs(likelihood, z)
        return np.where(sign > 0, log_size, -np.inf)

    proposal_key, key = split(rng_key, 2)
    mixture = adapted_proposal(proposal_key, positive, measure, n)
    particles = mixture.sample(key, n)
    sign, log_size = signed_logs(likelihood, particles)
    log_ratio = measure.log_densities(particles) - mixture.log_densities(particles)
    return _normalised(particles, sign, log_size + log_ratio - np.log(n))


class NormalKernels(NamedTuple):
    """The normal kernel density estimate `mean_k N(centres_k, root root')`.

    Attributes:
        centres: `(K, D)`.
        root: Lower Cholesky factor of the covariance of each kernel, `(D, D)`.
    """

    centres: np.ndarray
    root: np.ndarray

    def sample(self, rng_key: jax.Array, n: int) -> np.ndarray:
        """`n` independent draws, `(n, D)`."""
        rng = numpy_rng(rng_key)
        which = rng.integers(len(self.centres), size=n)
        return self.centres[which] + rng.standard_normal((n, len(self.root))) @ self.root.T

    def log_densities(self, points: np.ndarray) -> np.ndarray:
        """`(n,)` at points `(n, D)`."""
        middle, inverse = self.centres.mean(axis=0), np.linalg.inv(self.root)  # so that squares do not cancel
        points, centres = (points - middle) @ inverse.T, (self.centres - middle) @ inverse.T
        logs = points @ centres.T - 0.5 * np.sum(centres**2, axis=1)
        peak = logs.max(axis=1, keepdims=True)
        total = np.log(np.exp(logs - peak).sum(axis=1)) + peak[:, 0] - 0.5 * np.sum(points**2, axis=1)
        constant = np.log(len(centres)) + 0.5 * points.shape[1] * np.log(2.0 * np.pi)
        return total - constant + np.sum(np.log(np.diagonal(inverse)))


class Mixed(NamedTuple):
    """A mixture of two densities: `weight` times the first and the rest of the second."""

    first: "Measure | NormalKernels"
    second: "Measure | NormalKernels | Mixed"
    weight: float

    def sample(self, rng_key: jax.Array, n: int) -> np.ndarray:
        """`n` draws, `weight` of them, rounded up, from the first and before the others, `(n, D)`."""
        of_first, of_second = split(rng_key, 2)
        count = int(np.ceil(self.weight * n))
        return np.concatenate([self.first.sample(of_first, count), self.second.sample(of_second, n - count)])

    def log_densities(self, points: np.ndarray) -> np.ndarray:
        """`(n,)` at points `(n, D)`."""
        first, second = self.first.log_densities(points), self.second.log_densities(points)
        return np.logaddexp(np.log(self.weight) + first, np.log1p(-self.weight) + second)


def adapted_proposal(
    rng_key: jax.Array,
    log_likelihood: Callable[[np.ndarray], np.ndarray],
    measure: Measure,
    n: int,
    candidates: np.ndarray | None = None,
) -> Mixed:
    """A mixture of normals about as wide as the posterior `q(y | z) p(dz)`, by rounds of `n` weighted particles
    (`adaptive_importance_sampling`), and of a tenth of the measure itself, so that importance weights are bounded. In
    the first round `candidates` `(k, D)`, if any, stand beside draws from the measure.

    Reference: Hesterberg (1995), Technometrics 37.
    """
    proposal: Measure | Mixed = measure
    particles = np.asarray(measure.sample(child(rng_key, 0), n))
    if candidates is not None:
        particles = np.concatenate([particles, candidates])
    for number in range(1, 16):
        key = child(rng_key, number)
        log_ratio = measure.log_densities(particles) - proposal.log_densities(particles)
        power, weights, _ = tempered(log_likelihood(particles) + log_ratio, 1.0, 0.2 * n)
        proposal = _fitted_proposal(key, particles, weights)
        if power == 1.0:
            break
        particles = np.asarray(proposal.sample(key, n))
    return Mixed(measure, proposal, DEFENSIVE)


def _normalised(particles, sign, log_size) -> WeightedParticles:
    """Particles with weights `sign exp(log_size)`, each already divided by their number, normalised."""
    largest = np.max(log_size)
    weights = sign * np.exp(log_size - largest)
    total = np.sum(weights)
    checks.require(bool(total > 0.0), "The learnt likelihood is negative on average over the prior: simulate more.")
    return WeightedParticles(np.asarray(particles), weights / total, largest + np.log(total))


def tempered(
    log_weights: np.ndarray, most: float, effective: float, halvings: int = 14
) -> tuple[float, np.ndarray, float]:
    """The largest power up to `most` at which weights keep an effective number, by so many halvings of an interval.

    Returns:
        The power, the weights to this power, normalised, and the log of their mean. Where no weight is positive and
        finite the power is 0, and the weights are equal.
    """
    log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
    peak = np.max(log_weights)
    if not np.isfinite(peak):
        return 0.0, np.full(len(log_weights), 1.0 / len(log_weights)), peak
    relative, low, high = log_weights - peak, SMALLEST, 0.0
    power = most
    if effective_size(np.exp(most * relative)) < effective:
        for _ in range(halvings):
            middle = 0.5 * (low + high)
            enough = effective_size(np.exp(most * np.exp(middle) * relative)) >= effective
            low, high = (middle, high) if enough else (low, middle)
        power = most * np.exp(low)
    weights = np.exp(power * relative)
    return power, weights / weights.sum(), power * peak + float(np.log(np.mean(weights)))


def effective_size(weights: Any, xp: Any = np) -> Any:
    """Effective number `(sum_i w_i)^2 / sum_i w_i^2` of weights `(..., n)`, `(...)`."""
    return xp.square(xp.sum(weights, axis=-1)) / xp.sum(xp.square(weights), axis=-1)


def signed_moments(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean `(D,)` and covariance `(D, D)` of points `(n, D)` with weights `(n,)` that sum to 1."""
    mean = weights @ points
    return mean, ((points - mean) * weights[:, None]).T @ (points - mean)


def _fitted_proposal(rng_key, particles, weights) -> Mixed:
    """Half a normal and half a normal kernel density estimate with `COMPONENTS` kernels, of the covariance of the
    particles both; its centres are particles that are shrunk towards their mean (West, 1993, JRSS B 55), and its
    bandwidth is the best of `WIDTHS` for the other particles."""
    dim = particles.shape[1]
    mean, covariance = signed_moments(particles, weights)
    covariance += 1e-10 * (np.trace(covariance) / dim + 1e-30) * np.eye(dim)
    root, rule = np.linalg.cholesky(covariance), (4.0 / (COMPONENTS * (dim + 2.0))) ** (1.0 / (dim + 4.0))
    rows = numpy_rng(rng_key).choice(len(weights), COMPONENTS, p=weights)
    left = weights * ~np.isin(np.arange(len(weights)), rows)
    others, centred = np.flatnonzero(left > 0.0), particles[rows] - mean
    estimates = [NormalKernels(mean + np.sqrt(1.0 - width**2) * centred, width * root) for width in rule * WIDTHS]
    scores = [left[others] @ found.log_densities(particles[others]) for found in estimates]
    return Mixed(NormalKernels(mean[None], root), estimates[int(np.argmax(scores))], ONE_NORMAL)


def signed_logs(likelihood: SignedLikelihood, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sign and log of `q(y | z)` at points `(n, D)`, `(n,)` each, float64, in blocks."""
    starts = range(0, len(points), BATCH)
    parts = [likelihood.signed_log(points[start : start + BATCH]) for start in starts]
    sign, log_size = (np.concatenate([np.asarray(part, np.float64) for part in kind]) for kind in zip(*parts))
    return sign, log_size


def systematic(rng: np.random.Generator, weights: np.ndarray, n: int) -> np.ndarray:
    r"""`n` indices by systematic resampling, in ascending order, `(n,)`.

    With one offset $u \sim U(0, 1)$, index `i` comes once for each $k = 0, \ldots, n - 1$ with
    $w_1 + \cdots + w_{i-1} < (k + u) / n \le w_1 + \cdots + w_i$: $n w_i$ times, rounded up or down.

    Args:
        rng: The only source of randomness.
        weights: `w`, `(m,)`, none negative, with sum one.
        n: Number of indices.
    References: Kitagawa (1996), JCGS 5.
    """
    marks = (np.arange(n) + rng.random()) / n
    return np.clip(np.searchsorted(np.cumsum(weights), marks), 0, len(weights) - 1)


def systematic_shuffled(rng_key: jax.Array, weights: np.ndarray, n: int) -> np.ndarray:
    """Systematic resampling by a JAX key, in random order, so that any part is a sample too."""
    rng = numpy_rng(rng_key)
    return rng.permutation(systematic(rng, weights, n))


OF_MEAN, OF_SD = 0.5, 1 / 3
"""Standard errors of a mean, in standard deviations, and of a standard deviation, relative, that are warned of."""


@shown
@saveable
@dataclass(frozen=True)
class StandardErrors:
    r"""Standard errors of posterior expectations: how far other simulations, or a further run, would move them.

    Draws are weighted to what other simulations teach: each of four halves of them, and those before the last round;
    and, under the published form, to what the residual form learns from the same ones.
    The move of an expectation from all simulations to half of them has the variance that all of them leave to it, and
    what a further doubling would move besides. With the move $d_h$ of an expectation of $f$, in posterior standard
    deviations of $f$, under the weights number $h$, and the shares $s_h$, a quarter for a half and 1 for the others,

    $$ \frac{\mathrm{error}^2}{\mathrm{sd}^2} = \tfrac12 \sum_h s_h d_h^2
       + \tfrac12 \overline{\sum_h s_h d_h^2} + \frac1{\mathrm{ESS}}, $$

    where the bar is the mean over all numbers of the latents: the few moves of one leave three degrees of freedom. For
    standard deviations `d` is the relative move, and the last term half as large.

    Attributes:
        weights: Of the draws under each other likelihood, `(h, n)`, rows that add up to 1.
        log_ratios: Log of the evidence under each over that of the posterior, `(h,)`.
        shares: `s`, `(h,)`.
        effective_size: Effective number of the draws.
        typical: Means of the squared moves over the latents, of means and standard deviations, `(2,)`.
    """

    weights: np.ndarray
    log_ratios: np.ndarray
    shares: np.ndarray
    effective_size: float
    typical: np.ndarray

    @classmethod
    def of(
        cls, log_ratios: np.ndarray, shares: Sequence[float], effective_size: float, latents: np.ndarray
    ) -> "StandardErrors":
        """Compute from log ratios of other likelihoods to that of the draws, `(h, n)`, and the latents, `(n, k)`."""
        logs = np.logaddexp.reduce(log_ratios, axis=1) - np.log(len(latents))
        weights = np.exp(log_ratios - logs[:, None]) / len(latents)
        bare = cls(weights, logs, np.array(shares), effective_size, np.zeros(2))
        varies = deviations(latents) > 0.0
        return replace(bare, typical=bare._squares(latents[:, varies]).mean(axis=1)) if varies.any() else bare

    def of_moments(self, values: np.ndarray) -> np.ndarray:
        """Errors of means, in the units of the values `(n, *shape)`, and of standard deviations, relative to these,
        `(2, *shape)`; 0 of a value that does not vary."""
        table = values.reshape(len(values), -1)
        noise = np.array([[1.0], [0.5]]) / self.effective_size
        errors = np.sqrt(0.5 * (self._squares(table) + self.typical[:, None]) + noise)
        sd = deviations(table)
        return (errors * np.stack([sd, np.sign(sd)])).reshape(2, *values.shape[1:])

    def relative(self, table: np.ndarray) -> np.ndarray:
        """Errors of means and standard deviations of columns `(n, k)`, over those that are warned of, `(2, k)`."""
        mean, sd = self.of_moments(table)
        size = deviations(table)
        return np.stack([mean / np.where(size > 0.0, size, 1.0) / OF_MEAN, sd / OF_SD])

    @property
    def of_log_evidence(self) -> float:
        """Error of the log evidence."""
        return float(np.sqrt(self.shares @ np.square(self.log_ratios) + 1.0 / self.effective_size))

    def _squares(self, table: np.ndarray) -> np.ndarray:
        """Squared moves of means and standard deviations of the columns of a table `(n, k)`, `(2, k)`."""
        sd = deviations(table)
        standard = (table - table.mean(axis=0)) / np.where(sd > 0.0, sd, 1.0)
        means = self.weights @ standard
        spreads = np.sqrt(np.maximum(self.weights @ np.square(standard) - np.square(means), 0.0))
        return np.stack([self.shares @ np.square(means), self.shares @ np.square(spreads - 1.0)])


def unsure_message(errors: StandardErrors, columns: Mapping[str, np.ndarray], advice: str) -> str:
    """The warning that the moments of draws may be off, by the worst of their numbers `{name: (n,)}`, and what would
    mend that."""
    table = np.stack(list(columns.values()), axis=1).astype(np.float64)
    worst = int(np.argmax(errors.relative(table).max(axis=0)))
    mean, sd = errors.of_moments(table)[:, worst]
    return (
        f"The posterior mean of {list(columns)[worst]} may be off by {mean:.2g}, {mean / table[:, worst].std():.2g} "
        f"posterior standard deviations, and its standard deviation by {sd:.0%}: one standard error each. {advice}"
    )


def deviations(table: np.ndarray) -> np.ndarray:
    """Standard deviations of columns `(n, k)`; 0 where they vary by no more than rounding in float32, as a correlation
    with itself does."""
    return np.where(np.ptp(table, axis=0) > 1e-6 * np.max(np.abs(table), axis=0), table.std(axis=0), 0.0)
