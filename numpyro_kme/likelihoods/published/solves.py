r"""`(L + m lam I)^-1` applied to data kernels: exactly, or through pivots where simulations are many."""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from scipy import linalg

from numpyro_kme._core import checks, solves
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels import gram
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.likelihoods.published.hyperparameters import Hyperparameters


@jax.custom_vjp
def inverse_with_adjoint(matrix: jax.Array) -> jax.Array:
    """Inverse `B` of a positive definite matrix; NaN where the factorisation fails.

    The adjoint of `A -> B` is `-B dB B`: two matrix products, where differentiating the factorisation costs dozens.
    """
    factor = jnp.linalg.cholesky(matrix)
    return jax.scipy.linalg.cho_solve((factor, True), jnp.eye(len(matrix), dtype=matrix.dtype))


inverse_with_adjoint.defvjp(
    lambda matrix: (inverse_with_adjoint(matrix),) * 2, lambda inverse, change: (-inverse @ change @ inverse,)
)


MOST_DENSE = 10_000
"""Simulations up to which the solve is dense where none is asked for: 0.8 GB."""

BLOCK = 1024
"""Rows of a matrix that are formed together."""


def regularised(hyper: Hyperparameters, z: ArrayLike) -> jax.Array:
    """`L + m lam I`, `(m, m)`."""
    gram = hyper.parameter_kernel.gram(jnp.asarray(z))
    return gram + len(gram) * hyper.regularisation * jnp.eye(len(gram), dtype=gram.dtype)


class Solved(NamedTuple):
    """What one observation gives.

    Attributes:
        points, weights: `q(y | z) = sum_j weights_j l(points_j, z)`, on the scale of `kappa`.
        fitted: `q(y | z_j)` at the simulations, `(m,)`.
    """

    points: Array
    weights: Array
    fitted: Array


class Solution(abc.ABC):
    """A factorisation for given simulations and hyperparameters; a frozen pytree."""

    @abc.abstractmethod
    def solve(self, hyper: Hyperparameters, z: Array, kappa: Array) -> Solved:
        """Solve for one observation with data kernels `kappa` `(m,)`; traceable."""

    def solve_on_host(self, hyper: Hyperparameters, z: Array, kappa: np.ndarray) -> Solved:
        """The same, at once and in float64."""
        return on_host(type(self).solve)(self, hyper, z, kappa)

    @abc.abstractmethod
    def variance(self, hyper: Hyperparameters, z: Array, t: Array) -> jax.Array:
        """`l(t, t) - l(t)' (L + m lam I)^-1 l(t)` at points `(r, D)`, `(r,)`."""

    def describe(self) -> Mapping[str, Any]:
        """What a person should know."""
        return {}


class Solve(abc.ABC):
    """How `L + m lam I` is solved: settings, and `fit`."""

    @abc.abstractmethod
    def fit(self, hyper: Hyperparameters, z: np.ndarray) -> Solution:
        """Factorise for simulations `(m, D)`."""


def default_solve(num_simulations: int) -> Solve:
    """Dense up to `MOST_DENSE` simulations, low rank above."""
    return DenseSolve() if num_simulations <= MOST_DENSE else LowRankSolve()


@frozen
class DenseSolve(Solve):
    """Solve exactly, by one Cholesky factor of all simulations.

    Cost: `m^3 / 3` operations and `8 m^2` bytes, filled and factorised in place: 0.8 GB for 10,000 simulations, 3.2 GB
    for 20,000, the most that are taken.
    """

    def fit(self, hyper, z):
        """Fill the matrix by blocks of columns, and factorise it in place."""
        checks.few_enough(len(z))
        kernel, lam = hyper.parameter_kernel, float(np.asarray(hyper.regularisation))
        matrix = np.empty((len(z), len(z)), order="F")
        for rows, block in _blocks(z):
            matrix[:, rows] = np.asarray(kernel.gram(z, block))[:, : rows.stop - rows.start]
        matrix[np.diag_indices(len(z))] += len(z) * lam
        factor, failed = linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
        done = not failed and bool(np.isfinite(factor.diagonal()).all())
        solves.require_factorised(done, f"L + m lam I with lam = {lam:.3g}")
        return DenseSolution(factor)


@register
class DenseSolution(Solution):
    """The Cholesky factor of `L + m lam I`, lower, `(m, m)`."""

    factor: Array

    def solve(self, hyper, z, kappa):
        """Two triangular solves."""
        return _dense(hyper, z, kappa, solves.cho_solve(self.factor, kappa))

    def solve_on_host(self, hyper, z, kappa):
        """Two triangular solves with the factor where it lies: no copy of it is made."""
        return _dense(hyper, z, kappa, linalg.cho_solve((self.factor, True), kappa, check_finite=False))

    def variance(self, hyper, z, t):
        """One triangular solve."""
        kernel = hyper.parameter_kernel
        white = solve_triangular(jnp.asarray(self.factor), kernel.gram(jnp.asarray(z), t), lower=True)
        return kernel.diagonal(t) - jnp.sum(white * white, axis=0)


def _dense(hyper, z, kappa, weights) -> Solved:
    return Solved(z, weights, kappa - len(kappa) * hyper.regularisation * weights)


@frozen
class LowRankSolve(Solve):
    r"""Solve with $L \approx U U^\top$, a pivoted incomplete Cholesky factor of rank `r`, by Woodbury's formula.

    $q(y \mid z) = \sum_{j=1}^{r} w_j\, \ell(p_j, z)$ on the pivots alone. What is left of a simulation's kernel,
    $\ell(z_j, z_j) - |U_j|^2$, is at most `tolerance lam`; the relative error of the fitted values is of the order of
    the tolerance. Pivots are chosen among `subset` simulations at random, and among those that these leave unexplained,
    until nothing is; no `(m, r)` matrix is kept.

    Args:
        tolerance: Largest error of the factor's diagonal, as a fraction of `lam`.
        max_rank: Largest rank; a warning says so where it ends the search.
        subset: How many simulations pivots are first chosen from.
    Cost: `m r` kernel evaluations and `m r^2` operations, `8 (1024 + r) r` bytes beside the simulations.
    References: Fine & Scheinberg (2001), JMLR 2.
    """

    tolerance: float = 0.01
    max_rank: int = 2000
    subset: int = 10_000

    def __post_init__(self):
        checks.positive("tolerance", self.tolerance)
        checks.whole("max_rank", self.max_rank, 1)
        checks.whole("subset", self.subset, 2)

    def fit(self, hyper, z):
        """Choose pivots, and sum over the simulations in blocks."""
        kernel, lam = hyper.parameter_kernel, float(np.asarray(hyper.regularisation))
        stop = self.tolerance * lam
        rows = np.sort(np.random.default_rng(0).permutation(len(z))[: self.subset])
        for _ in range(4):  # more pivots where some are missed
            factor = LowRank.fit(kernel, z[rows], tolerance=stop, max_rank=self.max_rank)
            core, rest = _accumulate(factor, z)
            missed = np.flatnonzero(rest > 2.0 * stop)
            if not len(missed) or factor.rank == self.max_rank:
                break
            rows = np.union1d(rows, missed[np.argsort(rest[missed])[-len(rows) :]])
        if rest.max() > 2.0 * stop:
            checks.warn(
                f"The low-rank solve ended at rank {factor.rank} with {rest.max():.2g} of a simulation's kernel left "
                f"out, {rest.max() / lam:.2g} times the regularisation; {2 * self.tolerance} times was asked for. "
                "Raise `max_rank`, or use fewer simulations and DenseSolve()."
            )
        core = np.linalg.cholesky(core + len(z) * lam * np.eye(len(core)))
        return LowRankSolution(np.asarray(factor.pivots), np.asarray(factor.inverse), core, np.asarray(rest.max()))


@register
class LowRankSolution(Solution):
    """A low-rank factor `U = l(z, P) W'` of `L`, not kept itself.

    Args:
        pivots: `P`, `(r, D)`.
        inverse: `W`, `(r, r)`.
        core: Lower Cholesky factor of `U' U + m lam I`, `(r, r)`.
        residual: Largest diagonal entry of `L - U U'`.
    """

    pivots: Array
    inverse: Array
    core: Array
    residual: Array

    def solve(self, hyper, z, kappa):
        """`weights = W' (U' U + m lam I)^-1 U' kappa` on the pivots; `m r` kernel evaluations, twice."""
        kernel, kappa = hyper.parameter_kernel, jnp.asarray(kappa)
        pivots, inverse, z = jnp.asarray(self.pivots), jnp.asarray(self.inverse), jnp.asarray(z)
        seen = inverse @ gram.matvec(kernel, pivots, z, kappa)
        weights = inverse.T @ solves.cho_solve(self.core, seen)
        return Solved(pivots, weights, gram.matvec(kernel, z, pivots, weights))

    def variance(self, hyper, z, t):
        """`l(t, t) - phi' phi + m lam phi' (U' U + m lam I)^-1 phi` with the features `phi` of `t`."""
        kernel = hyper.parameter_kernel
        features = jnp.asarray(self.inverse) @ kernel.gram(jnp.asarray(self.pivots), t)
        white = solve_triangular(jnp.asarray(self.core), features, lower=True)
        added = len(z) * hyper.regularisation
        return kernel.diagonal(t) - jnp.sum(features * features, axis=0) + added * jnp.sum(white * white, axis=0)

    def describe(self):
        """Rank, and what it leaves out."""
        return {
            "solve": f"low rank, {len(self.pivots)} pivots; at most {float(self.residual):.1e} of a kernel is left out"
        }


def _accumulate(factor: LowRank, z) -> tuple[np.ndarray, np.ndarray]:
    """`U' U` `(r, r)`, and the diagonal of `L - U U'`, `(m,)`, from blocks of rows of `U`."""
    core, rest = np.zeros((factor.rank, factor.rank)), np.empty(len(z))
    for rows, block in _blocks(z):
        features = factor.features(block)[: rows.stop - rows.start]
        core += features.T @ features
        rest[rows] = 1.0 - np.sum(features * features, axis=1)
    return core, np.maximum(rest, 0.0)


def _blocks(z):
    """Slices of the rows, and the rows, the last filled up, so that every block compiles to the same program."""
    size = min(BLOCK, len(z))
    for start in range(0, len(z), size):
        block = z[start : start + size]
        yield slice(start, start + len(block)), np.pad(block, ((0, size - len(block)), (0, 0)), mode="edge")
