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

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

LOCAL, MODE_JUMP = 0.5, 0.05
"""Probabilities of a proposal by a difference, and by a whole difference."""
JITTER, RIDGE = 1e-3, 1e-9
"""Noise of differences, in standard deviations, and what is added to the diagonal of correlation matrices."""


class RandomNumbers(NamedTuple):
    """Random numbers of several moves: uniforms `(moves, 5 + ..., M)` and normals `(moves, D, M)`."""

    uniform: jax.Array
    normal: jax.Array


class ProposalDistribution(NamedTuple):
    """What proposals are made from.

    Attributes:
        particles: `(N, D)`.
        mean, sd: Their moments, `(D,)`.
        root, inverse: The Cholesky factor of their correlations and its inverse, `(D, D)`.
    """

    particles: jax.Array
    mean: jax.Array
    sd: jax.Array
    root: jax.Array
    inverse: jax.Array


def _degrees(dim: int) -> int:
    # degrees of freedom of the Student distribution, one more in odd dimensions: with the dimension an even number
    return 4 + dim % 2


def random_numbers(rng_key: jax.Array, moves: int, count: int, dim: int) -> RandomNumbers:
    """Random numbers of several moves of `count` particles, in float32, which is enough for proposals.

    XLA takes several times longer where the last axis is short, or where they are drawn in the loop that uses them.
    """
    keys, exponentials = jax.random.split(rng_key), (_degrees(dim) + dim) // 2
    uniform = jax.random.uniform(keys[0], (moves * (5 + exponentials) * count,), jnp.float32).reshape(moves, -1, count)
    normal = jax.random.normal(keys[1], (moves * dim * count,), jnp.float32).reshape(moves, dim, count)
    return RandomNumbers(uniform, normal)


def fit_proposal(particles: jax.Array) -> ProposalDistribution:
    """The proposal that fits particles `(N, D)`."""
    size, dim = particles.shape
    mean, sd = jnp.mean(particles, axis=0), jnp.maximum(jnp.std(particles, axis=0), jnp.finfo(particles.dtype).tiny)
    standard = (particles - mean[None]) / sd[None]
    root = jnp.linalg.cholesky(standard.T @ standard / size + RIDGE * jnp.eye(dim, dtype=particles.dtype))
    return ProposalDistribution(particles, mean, sd, root, jnp.linalg.inv(root))


def propose(
    proposal: ProposalDistribution, u: jax.Array, uniform: jax.Array, normal: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Proposals `(M, D)`, and for each the log of `t(u) / t(proposal)` where it is by the Student distribution."""
    size, dim = proposal.particles.shape
    degrees, scale = _degrees(dim), 2.38 / (2.0 * dim) ** 0.5

    @partial(jax.vmap, in_axes=(0, 1, 1))
    def one(u, uniform, normal):
        kind, amount, *pair = uniform[:4]
        first, second = (jnp.floor(x * size).astype(int) for x in pair)
        multiple = jnp.where(kind < MODE_JUMP, 1.0, scale)
        difference = proposal.particles[first] - proposal.particles[second]
        by_difference = u + multiple * difference + JITTER * proposal.sd * normal
        white = proposal.inverse @ ((u - proposal.mean) / proposal.sd)
        chi_square, angle = -2.0 * jnp.log(jnp.prod(1.0 - uniform[4:])), 0.5 * jnp.pi * jnp.minimum(2.0 * amount, 1.0)
        heavy = normal * jnp.sqrt((degrees + white @ white) / chi_square)
        there = jnp.cos(angle) * white + jnp.sin(angle) * heavy
        log_ratio = 0.5 * (degrees + dim) * (jnp.log1p(there @ there / degrees) - jnp.log1p(white @ white / degrees))
        local, by_student = kind < LOCAL, proposal.mean + proposal.sd * (proposal.root @ there)
        return jnp.where(local, by_difference, by_student), jnp.where(local, 0.0, log_ratio)

    return one(u, uniform[1:].astype(u.dtype), normal.astype(u.dtype))
