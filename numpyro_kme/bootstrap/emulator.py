r"""The model's embedding as a function of its parameters, by regression on simulated embeddings.

Over a region of parameters the embedding is $m(x) = B(x)^\top A$: monomials up to degree two or three of whitened
parameters, and where leave-one-out errors ask for them Gaussian functions at the simulated points (kernel ridge
regression: a conditional mean embedding).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from scipy.linalg import eigh

from numpyro_kme.kernels.gram import gaussian_gram

LENGTHS = 2.0, 4.0
"""Length scales of the Gaussian functions that are tried, in standard deviations of the region."""
RIDGES = 1e-4, 1e-2, 1.0
"""Ridges that are tried."""


@dataclass(frozen=True)
class Ellipsoid:
    """An ellipsoid of parameters inside a box: `x = center + root z` with `|z| <= radius`.

    Attributes:
        center: `(p,)`.
        root: `(p, p)`.
        radius: Of the ball of `z`.
        low, high: Bounds of the box, `(p,)`.
    """

    center: np.ndarray
    root: np.ndarray
    radius: float
    low: np.ndarray
    high: np.ndarray

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """Coordinates `z` of points `(R, p)`."""
        return np.linalg.solve(self.root, (x - self.center).T).T

    def project(self, x: np.ndarray) -> np.ndarray:
        """Move points `(R, p)` into the box, and towards the center until they are in the ball."""
        z = self.whiten(np.clip(x, self.low, self.high))
        far = np.maximum(np.linalg.norm(z, axis=1, keepdims=True) / self.radius, 1.0)
        return np.where(far > 1.0, self.center + (z / far) @ self.root.T, np.clip(x, self.low, self.high))

    def holds(self, point: np.ndarray) -> bool:
        """Tell whether a point `(p,)` lies in the ball."""
        return bool(np.linalg.norm(self.whiten(point[None])) <= self.radius)

    def at_edge(self, x: np.ndarray) -> np.ndarray:
        """Tell which points `(R, p)` lie on the edge of the ball."""
        return np.linalg.norm(self.whiten(x), axis=1) > 0.99 * self.radius


@dataclass(frozen=True)
class Basis:
    """Monomials of whitened parameters, and Gaussian functions around knots.

    Attributes:
        region: The region.
        factors: Three factors of each monomial, numbers of entries of `(1, z)`, `(K, 3)`.
        knots: Centers of the Gaussian functions in `z`, `(m, p)`.
        length: Their length scale.
    """

    region: Ellipsoid
    factors: np.ndarray
    knots: np.ndarray
    length: float = 1.0

    def values(self, x: np.ndarray) -> np.ndarray:
        """Functions at points `(R, p)`, `(R, K + m)`."""
        z = self.region.whiten(x)
        return np.concatenate([np.prod(self._entries(z), axis=0), self._gaussians(z)], axis=1)

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        """Derivatives of the functions, `(R, p, K + m)`."""
        z = self.region.whiten(x)
        a, b, c = self._entries(z)
        pairs = (b * c, a * c, a * b)
        of_monomials = sum(pair[:, None] * unit.T[None] for pair, unit in zip(pairs, self._units))
        bumps = self._gaussians(z)[:, None] * (self.knots.T[None] - z[:, :, None]) / self.length**2
        of_z = np.concatenate([of_monomials[:, 1:], bumps], axis=2)
        return np.linalg.inv(self.region.root).T @ of_z

    def curvature(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Hessians `(R, p, p)` of weighted sums of the functions, weights `(R, K + m)`."""
        z, num = self.region.whiten(x), len(self.factors)
        found = np.zeros((len(x), z.shape[1] + 1, z.shape[1] + 1))
        for (one, other), left in zip(((1, 2), (0, 2), (0, 1)), self._entries(z)):
            pairs = np.einsum("ka,kb->kab", self._units[one], self._units[other]).reshape(num, -1)
            found += ((weights[:, :num] * left) @ pairs).reshape(found.shape)
        found = (found + np.swapaxes(found, 1, 2))[:, 1:, 1:]
        bumps = weights[:, num:] * self._gaussians(z) / self.length**2
        moved = (z[:, None] - self.knots) / self.length
        found += np.swapaxes(moved * bumps[:, :, None], 1, 2) @ moved
        found -= bumps.sum(axis=1)[:, None, None] * np.eye(z.shape[1])
        inverse = np.linalg.inv(self.region.root)
        return inverse.T @ found @ inverse

    @property
    def _units(self) -> list[np.ndarray]:
        return [np.eye(len(self.region.center) + 1)[column] for column in self.factors.T]

    def _entries(self, z: np.ndarray) -> np.ndarray:
        return np.stack([np.insert(z, 0, 1.0, axis=1)[:, column] for column in self.factors.T])

    def _gaussians(self, z: np.ndarray) -> np.ndarray:
        return gaussian_gram(z, self.knots, self.length**2)


def num_monomials(dim: int, degree: int) -> int:
    """Number of monomials of `dim` parameters up to a degree."""
    return comb(dim + degree, degree)


def monomials(region: Ellipsoid, degree: int) -> Basis:
    """Monomials up to a degree of at most three."""
    dim = len(region.center)
    rows = [(0,) * (3 - degree) + row for row in combinations_with_replacement(range(dim + 1), degree)]
    return Basis(region, np.array(rows), np.empty((0, dim)))


@dataclass(frozen=True)
class Emulator:
    """Embeddings of the model, `m(x) = B(x)' A`.

    Attributes:
        basis: `B`.
        coefficients: `A`, `(1, K, r)`, or `(R, K, r)` where each reweighting has a model of its own (covariates).
    """

    basis: Basis
    coefficients: np.ndarray

    def at(self, x: np.ndarray) -> np.ndarray:
        """Embeddings at points `(R, p)`, `(R, r)`."""
        return (self.basis.values(x)[:, None] @ self.coefficients)[:, 0]

    def tangents(self, x: np.ndarray) -> np.ndarray:
        """Derivatives of the embeddings, `(R, p, r)`."""
        return self.basis.jacobian(x) @ self.coefficients

    def rows(self, rows: np.ndarray) -> "Emulator":
        """The embeddings of some reweightings."""
        return self if len(self.coefficients) == 1 else Emulator(self.basis, self.coefficients[rows])

    def curvature(self, x: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Hessians `(R, p, p)` of the inner products of the embeddings and directions `(R, r)`."""
        return self.basis.curvature(x, (direction[:, None] @ np.swapaxes(self.coefficients, 1, 2))[:, 0])


def fit(region: Ellipsoid, x: np.ndarray, embeddings: np.ndarray) -> Emulator:
    """Regress embeddings `(D, 1, r)` or `(D, R, r)` at points `(D, p)` on the parameters.

    The basis is the one with the smallest leave-one-out error of the first reweighting.
    """
    first = embeddings[:, 0]
    best = min(candidates(region, x), key=lambda one: np.mean(np.square(one.left_out(first))))
    flat = best.solve(embeddings.reshape(len(x), -1))
    return Emulator(best.basis, np.moveaxis(flat.reshape(-1, *embeddings.shape[1:]), 1, 0))


@dataclass(frozen=True)
class Smoother:
    """A least-squares regression on monomials, and of its residuals a ridge regression on Gaussian functions.

    Attributes:
        basis: The functions.
        values: Monomials at the points, `(D, K)`.
        inverse: Their pseudo-inverse, `(K, D)`.
        vectors, roots: Eigenvectors `(D, m)` and eigenvalues of the Gaussian functions at the points.
        ridge: What is added to the eigenvalues.
    """

    basis: Basis
    values: np.ndarray
    inverse: np.ndarray
    vectors: np.ndarray
    roots: np.ndarray
    ridge: float = 1.0

    def solve(self, targets: np.ndarray) -> np.ndarray:
        """Coefficients `(K + m, r)` for targets `(D, r)`."""
        trend = self.inverse @ targets
        if not len(self.roots):
            return trend
        rest = self.vectors.T @ (targets - self.values @ trend)
        return np.concatenate([trend, self.vectors @ (rest / (self.roots + self.ridge)[:, None])])

    def left_out(self, targets: np.ndarray) -> np.ndarray:
        """Leave-one-out residuals `(D, r)` of targets `(D, r)`, from the diagonal of the hat matrix."""
        shrunk = self.roots / (self.roots + self.ridge)

        def smooth(a):
            return self.vectors @ (shrunk[:, None] * (self.vectors.T @ a))

        rest = targets - self.values @ (self.inverse @ targets)
        of_trend = np.sum((self.values - smooth(self.values)) * self.inverse.T, axis=1)
        hat = of_trend + np.square(self.vectors) @ shrunk
        return (rest - smooth(rest)) / np.maximum(1.0 - hat, 1e-9)[:, None]


def candidates(region: Ellipsoid, x: np.ndarray) -> Iterator[Smoother]:
    """Regressions on points `(D, p)`: monomials, and those of degree two with Gaussian functions."""
    z, none = region.whiten(x), np.empty((len(x), 0))
    for degree in (1, 2, 3):
        if degree > 1 and len(x) < 1.5 * num_monomials(x.shape[1], degree):
            return
        basis = monomials(region, degree)
        values = basis.values(x)
        inverse = np.linalg.pinv(values, rcond=1e-10)
        yield Smoother(basis, values, inverse, none, np.empty(0))
        for length in LENGTHS if degree == 2 else ():
            wider = replace(basis, knots=z, length=length)
            roots, vectors = eigh(wider.values(x)[:, len(basis.factors) :])
            for ridge in RIDGES:
                yield Smoother(wider, values, inverse, vectors, np.maximum(roots, 0.0), ridge)
