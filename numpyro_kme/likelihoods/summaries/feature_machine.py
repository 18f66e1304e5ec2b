r"""Kernel ridge regression that learns which features matter: a recursive feature machine with diagonal weights.

The kernel is Gaussian plus linear in weighted features,

$$ k(a, b) = e^{-|a - b|_w^2 / 2 s} + \langle a, b \rangle_w / s, \qquad \langle a, b \rangle_w = \sum_j w_j a_j b_j, $$

with `s` the median of $|a - b|_w^2$. The weights start equal, and are twice replaced by the mean squared derivatives of
the functions that were fitted, $w_j \propto \sum_t R^2_t \, E[(\partial f_t / \partial a_j)^2]$, each function's adding
up to one. Regularisations follow leave-one-out errors in closed form.

References: Radhakrishnan et al. (2024), Science 383.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from numpyro_kme._core import solves
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import squared_distances_on_host

UPDATES = 2
"""So often are weights learnt."""

CENTRES = 500
"""Largest number of points whose kernels functions are sums of."""

DERIVATIVES = 400
"""Points at which derivatives are taken."""

REGULARISATIONS = 10.0 ** np.arange(-6.0, 2.0, 0.5)
"""Regularisations whose leave-one-out errors are compared."""


@register
class FeatureMachine:
    """Functions `f` of features, `sum_r beta_r k(a, c_r)` plus an offset.

    Attributes:
        weights: `w`, `(p,)`.
        centres: `c`, weighted by the roots of `w`, `(r, p)`.
        width: `s`.
        coefficients: `beta`, `(r, k)`.
        offset: `(k,)`.
    """

    weights: Array
    centres: Array
    width: Array
    coefficients: Array
    offset: Array

    def __call__(self, a: np.ndarray) -> np.ndarray:
        """Values `(n, k)` at features `(n, p)`."""
        kernel, linear = self.kernels(a)
        return (kernel + linear) @ self.coefficients + self.offset

    def some(self, chosen: np.ndarray) -> "FeatureMachine":
        """Some of the functions."""
        return replace(
            self, coefficients=np.asarray(self.coefficients)[:, chosen], offset=np.asarray(self.offset)[chosen]
        )

    def kernels(self, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The Gaussian and the linear kernel between features and centres, `(n, r)` each."""
        return _kernels(a * np.sqrt(self.weights), self.centres, self.width)

    def relevance(self, a: np.ndarray, worth: np.ndarray) -> np.ndarray:
        """Mean squared derivatives at features `(n, p)`, `(p,)`: those of each function add up to its worth, `(k,)`."""
        root = np.sqrt(self.weights)
        gaussian, _ = self.kernels(a)
        total = np.zeros(len(root))
        for beta, own in zip(np.asarray(self.coefficients).T, worth):
            if own > 0.0:
                weighted = gaussian * beta
                slopes = weighted @ self.centres - weighted.sum(axis=1)[:, None] * (a * root) + beta @ self.centres
                squares = np.mean(np.square(slopes * root), axis=0)
                total += own * squares / max(squares.sum(), 1e-300)
        return total


class Fitted(NamedTuple):
    """Functions, and what made them.

    Attributes:
        machine: The functions.
        turns: For each turn in which weights are learnt, its regularisation, and what each function is worth, `R^2`.
        own: Regularisation of each function, `(k,)`.
        residuals: Leave-one-out residuals, `(n, k)`; slightly too small, as the weights saw the targets.
    """

    machine: FeatureMachine
    turns: tuple[tuple[float, np.ndarray], ...]
    own: np.ndarray
    residuals: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Mean squares of the residuals, `(k,)`."""
        return np.mean(np.square(self.residuals), axis=0)


def fit(a: np.ndarray, targets: np.ndarray) -> Fitted:
    """Learn functions of features `(n, p)` that predict targets `(n, k)`.

    Cost: for each turn an eigendecomposition of order `r`, `2 n r^2`, and `n r k` for each regularisation.
    """
    weights, turns = np.full(a.shape[1], 1.0 / a.shape[1]), []
    variance = targets.var(axis=0)
    for turn in range(UPDATES + 1):
        basis = _Basis.of(a, weights)
        found = list(solves.ridges(basis.factor, targets - targets.mean(axis=0), REGULARISATIONS))
        errors = np.array([np.mean(np.square(held_out), axis=0) for _, _, held_out in found])
        if turn < UPDATES:
            chosen = np.argmin((errors / variance).sum(axis=1))
            turns.append((float(REGULARISATIONS[chosen]), 1.0 - errors[chosen] / variance))
            weights = _again(basis.machine(found[chosen][1], targets.mean(axis=0)), a, turns[-1][1])
    best = np.argmin(errors, axis=0)
    coefficients, residuals = (np.stack([found[i][part][:, t] for t, i in enumerate(best)], axis=1) for part in (1, 2))
    machine = basis.machine(coefficients, targets.mean(axis=0))
    return Fitted(machine, tuple(turns), REGULARISATIONS[best], residuals)


def refit(a: np.ndarray, targets: np.ndarray, like: Fitted) -> FeatureMachine:
    """Learn the same from other data, weights included, with regularisations that are known.

    Cost: `n r^2` for each turn, and `r^3 / 3` for each regularisation.
    """
    weights, mean = np.full(a.shape[1], 1.0 / a.shape[1]), targets.mean(axis=0)
    for regularisation, worth in like.turns:
        basis = _Basis.of(a, weights)
        machine = basis.ridge(targets - mean, np.full(len(mean), regularisation), mean)
        weights = _again(machine, a, worth)
    return _Basis.of(a, weights).ridge(targets - mean, like.own, mean)


def _again(machine: FeatureMachine, a: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Weights that add up to one; as they were if nothing predicts."""
    total = machine.relevance(a[:: -(-len(a) // DERIVATIVES)], worth)
    return total / total.sum() if total.sum() > 0.0 else np.asarray(machine.weights)


def _kernels(a, b, width):
    return np.exp(squared_distances_on_host(a, b) / (-2.0 * width)), a @ np.transpose(b) / width


class _Basis(NamedTuple):
    """Points, some of them centres, and a factor `U` of their kernel matrix: `K ~ U U'`, exact if all are centres."""

    weights: np.ndarray
    centres: np.ndarray
    width: float
    factor: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, a: np.ndarray, weights: np.ndarray) -> "_Basis":
        """Of features `(n, p)` in a random order."""
        scaled = a * np.sqrt(weights)
        centres = scaled[:CENTRES]
        some = squared_distances_on_host(scaled[:300], scaled[:300])
        width = float(np.median(some[np.triu_indices(len(some), 1)])) or 1.0
        gram = np.add(*_kernels(scaled, centres, width))
        square = gram[: len(centres)].copy()
        square.flat[:: len(square) + 1] += 1e-10 * np.trace(square) / len(square)
        root = np.linalg.cholesky(square)
        factor = np.concatenate([root, np.linalg.solve(root, gram[len(centres) :].T).T])
        return cls(weights, centres, width, factor, root)

    def machine(self, coefficients: np.ndarray, offset: np.ndarray) -> FeatureMachine:
        """Functions with coefficients `(r, k)` of the columns of the factor."""
        beta = np.linalg.solve(self.root.T, coefficients)
        return FeatureMachine(self.weights, self.centres, np.asarray(self.width), beta, offset)

    def ridge(self, targets: np.ndarray, regularisations: np.ndarray, offset: np.ndarray) -> FeatureMachine:
        """Functions that predict centred targets `(n, k)`."""
        right, found = self.factor.T @ targets, np.empty((self.factor.shape[1], len(offset)))
        for regularisation in np.unique(regularisations):
            own = regularisations == regularisation
            square = solves.inner(self.factor, len(self.factor) * regularisation)
            found[:, own] = np.linalg.solve(square, right[:, own])
        return self.machine(found, offset)
