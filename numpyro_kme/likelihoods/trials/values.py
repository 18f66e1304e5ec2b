r"""Features of the values of an entry, and the nodes at which a family is summed up.

The sum `A` of a family runs over the values of a category, over the whole numbers of a count, and for a number it is a
quadrature: nothing is jittered, and what is evaluated does not grow with the number of simulations.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr, ndtri

from numpyro_kme._core import Array, robust_standard_deviation
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.likelihoods.residual.ridge import inverse_root
from numpyro_kme.likelihoods.residual.smoothness import RIDGE
from numpyro_kme.likelihoods.statistics import COUNTS

DEGREES = 5.0
"""Degrees of freedom of the Student distribution `h` of a count."""

KNOTS, FEWEST, BEYOND = 40, 3.0, 5.0
"""Quantiles of a number over all simulations, how many of these are below the first, and by how many of the first steps
another knot is farther out."""

NODES = COUNTS
"""Nodes of the quadrature, and values of a count that have a node each; those beyond stand for several."""

OFTEN = 0.02
"""Share of the simulations from which a value of a count has an indicator, as the zero of zero-inflated ones needs."""

SAME = 0.01
"""Steps, or numbers of categories, that a value may be off by for rounding."""


@register
class Values:
    """Features `phi` of the values of an entry.

    Attributes:
        atoms: Values that have an indicator, `(a,)`.
        same: What a value may be off by from these, for rounding.
        knots: Values between which scores, and the logarithm of `h`, are straight lines, `(k,)`.
        scores: What radial basis functions take; of numbers their normal scores over all simulations, `(k,)`.
        log_base: `log h`: of numbers the density of all simulations, `(k,)`.
        log_tail: Log weight in `h` of a Cauchy density, so that no number is impossible; minus infinity for others.
        points: Centres of radial basis functions, scores, `(r,)`.
        length: Their length scale.
        root: Inverse root of their kernel matrix, `(r, r)`.
        factor: Of a count itself as a feature, in standard deviations, `(1,)`; `(0,)` for others.
        nodes: `v_k`, `(K,)`.
        log_weights: `log w_k`, `(K,)`.
    """

    atoms: Array
    same: Array
    knots: Array
    scores: Array
    log_base: Array
    log_tail: Array
    points: Array
    length: Array
    root: Array
    factor: Array
    nodes: Array
    log_weights: Array

    @classmethod
    def of_categories(cls, number: int) -> "Values":
        """Take so many categories, by their numbers: an indicator of each."""
        every, zeros, level = np.arange(float(number)), np.zeros(number), np.zeros(2)
        unused = np.array(-np.inf), np.zeros(0), np.array(1.0), np.zeros((0, 0)), np.zeros(0)
        return cls(every, np.array(SAME), np.arange(2.0), level, level, *unused, every, zeros)

    @classmethod
    def of_counts(cls, v: np.ndarray, length: float) -> "Values":
        """Take values `(m,)` on a lattice, with a length scale; where there is one, of whole numbers."""
        start, step = v.min(), np.diff(np.unique(v)).min(initial=np.inf)
        step = step if np.isfinite(step) else 1.0
        v = np.rint((v - start) / step)
        values, repeats = np.unique(v, return_counts=True)
        edges = np.append(np.arange(NODES), np.geomspace(NODES, max(values[-1], NODES) + 1.0, NODES))
        edges = np.unique(np.rint(edges))
        gaps = np.diff(edges)
        nodes = edges[:-1] + 0.5 * (gaps - 1.0)  # in the middle of several
        scale = robust_standard_deviation(v) or 1.0
        scores = np.arcsinh((nodes - np.median(v)) / scale)
        log_base = -0.5 * (DEGREES + 1.0) * np.log1p(np.square(np.sinh(scores)) / DEGREES)
        often, nodes = start + step * values[repeats > OFTEN * len(v)], start + step * nodes
        factor = np.array([scale / (v.std() or 1.0)])  # robust ones make the search of heavy tails three times as long
        tail = -np.inf
        return cls._with_basis(often, SAME * step, factor, nodes, scores, log_base, tail, nodes, np.log(gaps), length)

    @classmethod
    def of_numbers(cls, v: np.ndarray, length: float) -> "Values":
        """Take standardised numbers `(m,)`, with a length scale."""
        top = -ndtri(FEWEST / len(v))
        scores = np.linspace(-top, top, KNOTS)
        knots = np.quantile(v, ndtr(scores))
        rises = np.maximum(np.diff(knots), 1e-9 * np.ptp(knots))  # of atoms
        scores = np.concatenate([[-top - 1.0], scores, [top + 1.0]])
        knots = knots[0] + np.cumsum([-BEYOND * rises[0], BEYOND * rises[0], *rises, BEYOND * rises[-1]])
        log_base = -0.5 * np.square(scores) - np.log(np.gradient(knots, scores))
        nodes = np.interp(np.linspace(scores[0], scores[-1], NODES), scores, knots)
        log_weights = np.log(np.gradient(nodes))
        none, log_tail = np.zeros(0), -np.log(len(v))
        return cls._with_basis(none, SAME, none, knots, scores, log_base, log_tail, nodes, log_weights, length)

    @classmethod
    def _with_basis(cls, atoms, same, factor, knots, scores, log_base, log_tail, nodes, log_weights, length):
        number = int(np.clip(np.ptp(scores) / (0.7 * length), 4, NODES // 2))
        points = np.linspace(scores.min(), scores.max(), number)
        root = inverse_root(gaussian_gram(points[:, None], points[:, None], length**2) + RIDGE * np.eye(number)).T
        same, log_tail, length = np.array(same), np.array(log_tail), np.array(length)
        return cls(atoms, same, knots, scores, log_base, log_tail, points, length, root, factor, nodes, log_weights)

    def __call__(self, v: Any, xp: Any = jnp) -> Any:
        """`phi(v)` of values `(...)`, `(..., b)`."""
        same, near = self._near(v, xp)
        return xp.concatenate([same, near @ xp.asarray(self.root)], axis=-1)

    def product(self, v: Any, theta: Any, xp: Any = jnp) -> Any:
        """`phi(v)^T theta` of values `(...)` and parameters `(..., b)`."""
        same, near = self._near(v, xp)
        of_same, of_near = theta[..., : same.shape[-1]], theta[..., same.shape[-1] :]
        return xp.sum(same * of_same, axis=-1) + xp.sum(near * (of_near @ xp.asarray(self.root).T), axis=-1)

    def _near(self, v: Any, xp: Any) -> tuple[Any, Any]:
        """Indicators of the atoms, and a count itself, `(..., a + 1)`, and Gaussians of the scores around the points,
        `(..., r)`."""
        points, length, atoms, factor = map(xp.asarray, (self.points, self.length, self.atoms, self.factor))
        score = self.score(v, xp)[..., None]
        near = xp.exp(-0.5 * xp.square((score - points) / length))
        same = (xp.abs(v[..., None] - atoms) < self.same).astype(near.dtype)
        return xp.concatenate([same, factor * xp.sinh(score)], axis=-1), near

    def at_nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """`phi(v_k)`, `(K, b)`, and `log (w_k h(v_k))`, `(K,)`."""
        return self(self.nodes, np), self.log_weights + self.log_h(self.nodes, np)

    def score(self, v: Any, xp: Any = jnp) -> Any:
        """Scores of values; beyond the knots that of the nearest."""
        return between(xp.clip(v, self.knots[0], self.knots[-1]), self.knots, self.scores, xp)

    def log_h(self, v: Any, xp: Any = jnp) -> Any:
        """`log h(v)`, without its constant; beyond the knots it goes on as it ends."""
        log_base = between(v, self.knots, self.log_base, xp)
        return xp.logaddexp(log_base, self.log_tail - xp.log1p(xp.square(v)))


def between(v: Any, knots: Any, values: Any, xp: Any) -> Any:
    """The straight lines between values at knots, `(k,)` each, of which the first and the last go on."""
    how = {"method": "compare_all"} if xp is jnp else {}  # a loop takes JAX ten times as long
    knots, values = xp.asarray(knots), xp.asarray(values)
    left = xp.searchsorted(knots[1:-1], v, side="right", **how)
    slopes = xp.diff(values) / xp.diff(knots)
    return values[left] + slopes[left] * (v - knots[left])
