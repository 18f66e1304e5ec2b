r"""Polynomial response surfaces of losses that jump: counts, indicators and whatever else a parameter moves by steps.

With fixed noise the loss of such a simulator is a staircase, which has no minimum to converge to. Its expectation is
smooth. Around the minimum of the full data, over a ball of three posterior standard deviations, and so wide that the
stairs count for little, the loss of each reweighting is evaluated on a design and fitted by a polynomial
`sum_b c_b t^b` by least squares, `t` the parameters in units of the posterior; this averages over the stairs, and the
polynomial is minimised exactly. Replicates that share nodes share the simulations of the design.

References: Box and Wilson (1951), JRSS B 13; Myers, Montgomery and Anderson-Cook (2016), Response Surface Methodology.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from scipy import special

from numpyro_kme.bootstrap.fit import Fit, full_data
from numpyro_kme.bootstrap.newton import Control, Minimum, Problems
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.kernels.base import register
from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import QuadratureNodes

RADIUS = 3.0
"""Of the ball in which a surface is fitted, in posterior standard deviations."""

TERMS, POINTS = 70, 4
"""Polynomials have degree four, or the largest below that for which they have so many terms at most, at least two; and
points of the design for each term."""


@register
class FittedPolynomial(WeightedObjective):
    """`t -> sum_b w_b t^b`: a reweighting is its coefficients."""

    has_cheap_hessian: ClassVar[bool] = True
    generator: Any
    data: Any
    powers: Any = field(metadata=dict(static=True))

    def reduce(self, weights, extra=None):
        """The coefficients as they are."""
        return weights

    def value(self, reduced, u, nodes):
        """The polynomial at `u`."""
        return _monomials(u, self.powers) @ reduced


def _monomials(t: jax.Array, powers: tuple[tuple[int, ...], ...]) -> jax.Array:
    """`(..., p)` to `(..., B)`."""
    table = jnp.stack([t**power for power in range(1 + max(map(max, powers)))], axis=-1)
    return jnp.prod(table[..., np.arange(t.shape[-1]), np.array(powers)], axis=-1)


@dataclass(frozen=True)
class Surface:
    """Where polynomials are fitted.

    Attributes:
        centre: Middle of the ball, `(p,)`.
        root: Square root of a covariance of the posterior, `(p, p)`, lower triangular.
    """

    centre: np.ndarray
    root: np.ndarray

    @cached_property
    def powers(self) -> tuple[tuple[int, ...], ...]:
        """Exponents of the terms."""
        dim = len(self.centre)
        degree = max([d for d in (3, 4) if comb(dim + d, d) <= TERMS], default=2)
        chosen = (terms for size in range(degree + 1) for terms in combinations_with_replacement(range(dim), size))
        return tuple(tuple(terms.count(a) for a in range(dim)) for terms in chosen)

    @cached_property
    def design(self) -> np.ndarray:
        """Points in the ball, denser outside, `(J, p)`."""
        dim, num = len(self.centre), POINTS * len(self.powers)
        uniform = scipy.stats.qmc.Sobol(dim + 1, rng=0).random(1 << (num - 1).bit_length())[:num]
        away = special.ndtri(uniform[:, 1:])
        return RADIUS * uniform[:, :1] ** (1.0 / (dim + 1)) * away / np.linalg.norm(away, axis=1, keepdims=True)

    def standardise(self, moves: np.ndarray) -> np.ndarray:
        """Differences of parameters `(R, p)` in posterior standard deviations."""
        return np.linalg.solve(self.root, moves.T).T

    def drawn_in(self, moves: np.ndarray) -> np.ndarray:
        """The same, those that leave the ball shortened to its radius."""
        t = self.standardise(moves)
        return t * np.minimum(1.0, RADIUS / np.maximum(np.linalg.norm(t, axis=1, keepdims=True), 1e-300))

    def holds(self, u: np.ndarray) -> np.ndarray:
        """Which parameters lie in the ball, or close to it."""
        return np.linalg.norm(self.standardise(u - self.centre), axis=1) <= 1.2 * RADIUS

    @cached_property
    def terms(self) -> np.ndarray:
        """Those of the polynomial on the design, `(J, B)`."""
        return np.prod(self.design[:, None] ** np.array(self.powers), axis=2)

    @cached_property
    def inverse(self) -> np.ndarray:
        """From values on the design to coefficients, `(B, J)`."""
        return np.linalg.pinv(self.terms)

    def minimise(self, problems: Problems) -> Minimum:
        """Minima of the surfaces of all reweightings; those outside of the ball are not convex."""
        return self._fitted(self._values(problems), self.centre)

    def _values(self, problems: Problems) -> np.ndarray:
        """Losses on the design, `(R, J)`."""
        return problems.values_together(self.centre + self.design @ self.root.T)

    def sharpened(self, problems: Problems) -> tuple[Minimum, np.ndarray]:
        """As `minimise` for one reweighting, and the covariance of a ball, in units of this one, in which stairs would
        move the minimum by `SHARP`, `(p, p)`; in each direction at most four times as wide as this one, and of no width
        where the loss is no number.

        The stairs are what the polynomial leaves of the losses. An error `e` of its slope moves the minimum by `e / c`
        at a curvature `c`, which in a ball that is `w` times as wide is `e / (w^2 c)` of its radius.
        """
        values = self._values(problems)
        found = self._fitted(values, self.centre)
        if not np.isfinite(values).all():
            return found, np.zeros_like(self.root)
        linear = np.array([sum(powers) == 1 for powers in self.powers])
        left = np.sum(np.square(values[0] - self.terms @ (self.inverse @ values[0])))
        variance = left / (len(self.design) - len(self.powers))
        error = np.sqrt(variance * np.square(self.inverse[linear]).sum(axis=1).mean())
        curvatures, directions = np.linalg.eigh(self.root.T @ found.hessian[0] @ self.root)
        wanted = error / SHARP
        squares = wanted / np.maximum(curvatures, max(wanted / 16.0, 1e-300))
        return found, (directions * squares) @ directions.T

    def widened(self) -> "Surface":
        """Half as wide again: where polynomials follow the loss, its minima are the same."""
        return Surface(self.centre, 1.5 * self.root)

    def follow(self, problems: Problems, found: Minimum) -> Minimum:
        """What has no minimum in the ball again, in balls of its own that move there, `MOVES` times at most."""
        found, centres = jax.tree.map(np.array, found), np.tile(self.centre, (len(found.u), 1))
        for _ in range(MOVES):
            rows = np.flatnonzero(~found.convex)
            if not len(rows):
                break
            centres[rows] += self.drawn_in(found.u[rows] - centres[rows]) @ self.root.T
            points = centres[rows, None] + self.design @ self.root.T
            values = problems.rows(np.repeat(rows, len(self.design))).values(points.reshape(-1, len(self.centre)))
            again = self._fitted(values.reshape(len(rows), -1), centres[rows])
            jax.tree.map(lambda old, new, rows=rows: old.__setitem__(rows, new), found, again)
        return found

    def _fitted(self, values: np.ndarray, centres: np.ndarray) -> Minimum:
        """Minima of the polynomials through losses `(R, J)` on designs about centres `(R, p)` or `(p,)`."""
        sound = np.isfinite(values).all(axis=1)
        coefficients = np.where(sound[:, None], values, 0.0) @ self.inverse.T
        size = np.maximum(np.abs(coefficients).max(axis=1, keepdims=True), 1e-300)
        one = np.zeros(len(values), int)
        nowhere = QuadratureNodes(np.zeros((1, 1)), jnp.ones((1, 1)))
        problems = Problems(
            FittedPolynomial(None, None, self.powers), nowhere, Reweightings(coefficients / size, None, one)
        )
        dim = self.centre.size
        control = Control(np.ones(dim), largest_remaining=1e-6, max_steps=60, stride=1.0)
        found = problems.solve(np.zeros(dim), np.eye(dim), control)
        inverse = np.linalg.inv(self.root)
        return Minimum(
            u=centres + found.u @ self.root.T,
            value=found.value * size[:, 0],
            gradient=found.gradient @ inverse * size,
            hessian=inverse.T @ found.hessian @ inverse * size[:, None],
            remaining=found.remaining @ self.root.T,
            convex=found.convex & sound & (np.linalg.norm(found.u, axis=1) <= 1.2 * RADIUS),
            steps=np.full(len(values), len(self.design)),
        )

    def closer(self, whole: np.ndarray, some: np.ndarray, least: np.ndarray) -> "Surface":
        """About the full data's minimum `(p,)`, in the units of minima of reweightings `(R, p)`, and wider by a
        covariance in those of this one, `(p, p)`; twice as wide, at the edge, where that minimum is not in the ball."""
        t = self.drawn_in(np.concatenate([whole[None], some]) - self.centre)
        if not self.holds(whole[None])[0]:
            return Surface(self.centre + self.root @ t[0], 2.0 * self.root)
        covariance = np.cov(t[1:].T).reshape(len(whole), len(whole))
        # more of the diagonal, as there may be few reweightings for so many parameters: rather too wide than too narrow
        covariance += np.diag(0.3 * np.diag(covariance) + 0.01) + least
        return Surface(self.centre + self.root @ t[0], self.root @ np.linalg.cholesky(covariance))

    def agrees(self, other: "Surface") -> bool:
        """Whether another ball is about the same."""
        ratios = np.linalg.svd(np.linalg.solve(self.root, other.root), compute_uv=False)
        near = np.linalg.norm(self.standardise((other.centre - self.centre)[None])) < 0.5
        return bool(near and ratios.min() > 0.7 and ratios.max() < 1.4)


ROUNDS, MOVES, SHARP = 10, 5, 0.3
"""Surfaces that are tried until one has the posterior's place and size; moves of a replicate's own; and how far, in
units of the ball, stairs may move a minimum. In a smaller one polynomials through stairs have minima of its size."""


def settle(
    objective: WeightedObjective, nodes: QuadratureNodes, pilot: Reweightings, first: Fit, surface: Surface
) -> tuple[Surface, Fit, np.ndarray]:
    """From a first surface, that about the minimum of the full data; this minimum, and those of pilot replicates
    `(R, p)`.

    Where no ball of `ROUNDS` has the posterior's place and size, as on a curved ridge, the one whose minimum has the
    lowest loss of the full data takes its place, and that minimum counts as not converged.
    """
    of_full, of_pilot = (Problems(objective, nodes, some) for some in (full_data(objective), pilot))
    tried = []
    for _ in range(ROUNDS):
        whole, least = surface.sharpened(of_full)
        some = surface.minimise(of_pilot)
        found = measured(of_full, whole)
        tried.append((found.value[0] if found.convex[0] else np.inf, surface, found, some))
        nearer = surface.closer(whole.u[0], some.u, least)
        settled = found.convex[0] and surface.agrees(nearer)
        if settled:
            break
        surface = nearer
    if not settled:
        _, surface, found, some = min(tried, key=lambda one: one[0])
    others = ~surface.holds(first.others) if len(first.others) else np.zeros(0, bool)
    full = replace(
        first,
        u=found.u[0],
        value=float(found.value[0]),
        hessian=found.hessian[0],
        others=first.others[others],
        other_values=first.other_values[others],
        converged=bool(settled),
    )
    return surface, full, some.u


def measured(problems: Problems, found: Minimum) -> Minimum:
    """Minima of surfaces with the losses there."""
    return found._replace(value=problems.slopes(found.u)[0])
