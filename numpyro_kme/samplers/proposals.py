r"""Proposals of Metropolis moves that are fitted to many particles: differences of two, and a Student distribution.

Half of the proposals add a multiple of the difference of two particles, which has the right scale and orientation in
every direction, and jump between modes. The others leave the Student distribution $t$ with `nu` degrees of freedom and
the mean $m$ and covariance $S$ of the particles invariant: with $q = (x - m)' S^{-1} (x - m)$

$$ x' = m + \cos(a) (x - m) + \sin(a) \sqrt{(\nu + q) / c}\; S^{1/2} n,
   \qquad c \sim \chi^2_{\nu + D}, \; n \sim N(0, I), $$

accepted with probability $\min(1, \pi(x') t(x) / (\pi(x) t(x')))$: half of the angles $a$ are right angles, which
forget the state where the posterior is near $t$, and half are uniform below, of which the small ones are accepted where
it is not.

References: ter Braak (2006), Statistics and Computing 16 (differences); Grumitt et al. (2024), Inverse Problems 40
(Student proposals).
"""

from typing import NamedTuple

import numpy as np

LOCAL, MODE_JUMP = 0.5, 0.05
"""Probabilities of a proposal by a difference, and by a whole difference."""
JITTER, RIDGE = 1e-3, 1e-9
"""Noise of differences, in standard deviations, and what is added to the diagonal of correlation matrices."""
DEGREES = 4.0
"""Degrees of freedom `nu` of the Student distribution."""


class ProposalDistribution(NamedTuple):
    """What proposals are made from.

    Attributes:
        particles: `(N, D)`.
        mean, sd: Their moments, `(D,)`.
        root, inverse: The Cholesky factor of their correlations and its inverse, `(D, D)`.
    """

    particles: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    root: np.ndarray
    inverse: np.ndarray

    @classmethod
    def fit(cls, particles: np.ndarray) -> "ProposalDistribution":
        """The proposal that fits particles `(N, D)`."""
        mean, sd = particles.mean(axis=0), np.maximum(particles.std(axis=0), np.finfo(particles.dtype).tiny)
        standard = (particles - mean) / sd
        root = np.linalg.cholesky(standard.T @ standard / len(particles) + RIDGE * np.eye(len(mean)))
        return cls(particles, mean, sd, root, np.linalg.inv(root))

    def propose(self, rng: np.random.Generator, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Proposals from `u` `(M, D)`, and for each the log of `t(u) / t(proposal)` where it is by the Student
        distribution."""
        count, dim = u.shape
        (kind, amount), normal = rng.random((2, count)), rng.standard_normal((count, dim))
        first, second = rng.integers(len(self.particles), size=(2, count))
        multiple = np.where(kind < MODE_JUMP, 1.0, 2.38 / np.sqrt(2.0 * dim))[:, None]
        difference = self.particles[first] - self.particles[second]
        by_difference = u + multiple * difference + JITTER * self.sd * normal
        white = ((u - self.mean) / self.sd) @ self.inverse.T
        form, chi_square = np.sum(white * white, axis=1), rng.chisquare(DEGREES + dim, count)
        angle = 0.5 * np.pi * np.minimum(2.0 * amount, 1.0)[:, None]
        there = np.cos(angle) * white + np.sin(angle) * normal * np.sqrt((DEGREES + form) / chi_square)[:, None]
        log_ratio = np.log1p(np.sum(there * there, axis=1) / DEGREES) - np.log1p(form / DEGREES)
        local, by_student = kind < LOCAL, self.mean + self.sd * (there @ self.root.T)
        found = np.where(local[:, None], by_difference, by_student)
        return found, np.where(local, 0.0, 0.5 * (DEGREES + dim) * log_ratio)
