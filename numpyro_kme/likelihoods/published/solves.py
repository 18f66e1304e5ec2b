r"""`(L + m lam I)^-1` applied to data kernels: exactly, or through pivots where simulations are many."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import linalg

from numpyro_kme._core import Array, checks, frozen
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.kernels.gram import matvec
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.published.learning import Hyperparameters
from numpyro_kme.samplers.importance import BATCH

MOST_DENSE = 10_000
"""Simulations up to which the solve is dense where none is asked for: 0.8 GB."""


def regularised(kernel: Gaussian, z: np.ndarray, regularisation: ArrayLike) -> np.ndarray:
    """`L + m lam I`, `(m, m)`, filled by blocks of columns."""
    matrix = np.empty((len(z), len(z)), order="F")
    for start in range(0, len(z), BATCH):
        matrix[:, start : start + BATCH] = kernel.gram(z, z[start : start + BATCH])
    matrix[np.diag_indices(len(z))] += len(z) * np.asarray(regularisation)
    return matrix


def factorised(matrix: np.ndarray, in_place: bool = False) -> np.ndarray:
    """Lower Cholesky factor of a matrix; NaN where it is not positive definite."""
    factor, failed = linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=in_place)
    if failed or not np.isfinite(factor.diagonal()).all():
        factor[:] = np.nan
    return factor


def inverted(factor: np.ndarray) -> np.ndarray:
    """Inverse of the matrix that has a lower Cholesky factor."""
    lower, _ = linalg.lapack.dpotri(factor, lower=1)
    return lower + np.tril(lower, -1).T


Solved = tuple[Array, Array, Array]
"""Points and weights of `q(y | z) = sum_j weights_j l(points_j, z)` for several observations, on the scale of `kappa`,
and `q(y | z_j)` at the simulations."""


MOST_SIMULATIONS = 20_000
"""Largest number of simulations for a dense matrix, which takes 3.2 GB then."""


@frozen
class DenseSolve:
    """Solve exactly, by one Cholesky factor of all simulations.

    Cost: `m^3 / 3` operations and `8 m^2` bytes, filled and factorised in place: 0.8 GB for 10,000 simulations, 3.2 GB
    for 20,000, the most that are taken.
    """

    def fit(self, hyper: Hyperparameters, z: np.ndarray) -> "DenseSolution":
        """Fill the matrix by blocks of columns, and factorise it in place."""
        m = len(z)
        checks.require(
            m <= MOST_SIMULATIONS,
            f"Learning from {m} simulations takes about {8 * m * m / 1e9:.0f} GB for a dense matrix; at most "
            f"{MOST_SIMULATIONS} are taken. Use LowRankSolve(), or some of them: at random, or near the observation.",
        )
        factor = factorised(regularised(hyper.parameter_kernel, z, hyper.regularisation), in_place=True)
        checks.require(
            np.isfinite(factor[0, 0]),
            f"L + m lam I with lam = {float(hyper.regularisation):.3g} is not positive definite to working precision. "
            "Increase the regularisation, or remove duplicated points.",
            np.linalg.LinAlgError,
        )
        return DenseSolution(factor)


@register
class DenseSolution:
    """The Cholesky factor of `L + m lam I`, lower, `(m, m)`."""

    factor: Array

    def solve(self, hyper: Hyperparameters, z: Array, kappa: Any) -> Solved:
        """Solve for data kernels `(R, m)`, by NumPy or JAX; no copy of the factor is made."""
        weights = cholesky_solve(self.factor, kappa.T).T
        return z, weights, kappa - kappa.shape[1] * hyper.regularisation * weights

    def __str__(self) -> str:
        return "dense"

    def variance(self, hyper: Hyperparameters, z: np.ndarray, t: np.ndarray) -> np.ndarray:
        """`l(t, t) - l(t)' (L + m lam I)^-1 l(t)` at points `(r, D)`, `(r,)`."""
        kernel = hyper.parameter_kernel
        white = linalg.solve_triangular(self.factor, kernel.gram(z, t), lower=True)
        return kernel.diagonal(t) - np.sum(white * white, axis=0)


def cholesky_solve(factor: Any, b: Any) -> Any:
    """Solve given a lower Cholesky factor, by NumPy or JAX."""
    if namespace(factor, b) is jnp:
        return jax.scipy.linalg.cho_solve((jnp.asarray(factor), True), b)
    return linalg.cho_solve((factor, True), b, check_finite=False)


@frozen
class LowRankSolve:
    r"""Solve with $L \approx U U^\top$, a pivoted incomplete Cholesky factor of rank `r`, by Woodbury's formula.

    $q(y \mid z) = \sum_{j=1}^{r} w_j\, \ell(p_j, z)$ on the pivots alone. What is left of a simulation's kernel,
    $\ell(z_j, z_j) - |U_j|^2$, is at most `tolerance lam`, or twice this for simulations that no pivots were chosen
    among; the relative error of the fitted values is of the order of the tolerance. Pivots are chosen among `subset`
    simulations at random, and among those that these leave unexplained, until nothing is; no `(m, r)` matrix is kept.

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

    def fit(self, hyper: Hyperparameters, z: np.ndarray) -> "LowRankSolution":
        """Choose pivots, and sum over the simulations in blocks."""
        kernel, lam = hyper.parameter_kernel, float(hyper.regularisation)
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
class LowRankSolution:
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

    def solve(self, hyper: Hyperparameters, z: Array, kappa: Any) -> Solved:
        """`weights = W' (U' U + m lam I)^-1 U' kappa` on the pivots; `m r` kernel evaluations, twice."""
        kernel = hyper.parameter_kernel
        seen = self.inverse @ matvec(kernel, self.pivots, z, kappa.T)
        weights = self.inverse.T @ cholesky_solve(self.core, seen)
        return self.pivots, weights.T, matvec(kernel, z, self.pivots, weights).T

    def variance(self, hyper: Hyperparameters, z: np.ndarray, t: np.ndarray) -> np.ndarray:
        """`l(t, t) - phi' phi + m lam phi' (U' U + m lam I)^-1 phi` with the features `phi` of `t`."""
        kernel = hyper.parameter_kernel
        features = self.inverse @ kernel.gram(self.pivots, t)
        white = linalg.solve_triangular(self.core, features, lower=True)
        added = len(z) * hyper.regularisation
        return kernel.diagonal(t) - np.sum(features * features, axis=0) + added * np.sum(white * white, axis=0)

    def __str__(self) -> str:
        return f"low rank, {len(self.pivots)} pivots; at most {float(self.residual):.1e} of a kernel is left out"


def _accumulate(factor: LowRank, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`U' U` `(r, r)`, and the diagonal of `L - U U'`, `(m,)`, from blocks of rows of `U`."""
    core, rest = np.zeros((factor.rank, factor.rank)), np.empty(len(z))
    for start in range(0, len(z), BATCH):
        features = factor.features(z[start : start + BATCH])
        core += features.T @ features
        rest[start : start + BATCH] = 1.0 - np.sum(features * features, axis=1)
    return core, np.maximum(rest, 0.0)


Solution = DenseSolution | LowRankSolution
"""A factorisation for given simulations and hyperparameters; a frozen pytree."""

Solve = DenseSolve | LowRankSolve
"""How `L + m lam I` is solved: settings, and `fit`."""
