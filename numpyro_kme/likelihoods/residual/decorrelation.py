r"""Triangular decorrelation: each residual given those before it.

$v_i = (u_i - \sum_{k<i} C_{ik} h(u_k)) e^{-\rho_i}$ with the soft clipping $h(u) = 5 \tanh(u / 5)$: a triangular map,
as the Knothe-Rosenblatt rearrangement is, with slopes $e^{-\rho_i}$ on the diagonal, so that the Jacobian is exact
whatever the coefficients are.

Where straight lines do not suffice, $w_i = (v_i - m_i(z, h(u_{<i}))) e^{-s_i(z, h(u_{<i}))}$ takes their place: in a
series, say, what tomorrow's count spreads over follows from today's. `m` and `s` are learnt as location and scale of a
statistic are, with the residuals before it as further coordinates. The Jacobian stays triangular, and the density
integrates to 1.

Reference: Papamakarios, Pavlakou and Murray (2017), Masked autoregressive flow, of which this is one layer by kernels.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import linalg

from numpyro_kme._core.host import in_parallel
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.location_scale import (
    LEAST_LOG_SCALE,
    Location,
    explained,
    fit_statistics,
    winsorised_rms,
)
from numpyro_kme.likelihoods.residual.ridge import RidgeFunctions
from numpyro_kme.likelihoods.residual.smoothness import Inputs, Smoothness

AMPLITUDES = 0.03, 0.1, 0.3, 1.0
"""Prior standard deviations of coefficients, in those of the noise: the best, held out, is taken for each residual."""

MOST = 200
"""Largest number of inducing points of curves: there are many coordinates, and functions of them are smooth."""

FEWEST = 5
"""Simulations for each coordinate and residual, at least: curves of more are noise, and of 500 residuals take hours."""

WORTH = 0.02
"""A residual's curves are kept if they improve on more than this, in nats a simulation, and all if together they do."""


def soft_clip(u: Any, xp: Any = np, most: float = 5.0) -> Any:
    """`h(u) = 5 tanh(u / 5)`: residuals beyond say no more about the next ones than this one does."""
    return most * xp.tanh(u / most)


@register
class TriangularMap:
    """The fitted map from residuals to decorrelated ones.

    Attributes:
        coefficients: `C`, strictly lower triangular, `(n, n)`.
        log_scale: Log standard deviations `rho` of what is left, `(n,)`.
        curved: `m` and then `s`, `(D + n,) -> (2 n,)`, where straight lines do not suffice; those of residual `i` do
            not depend on the residuals from `i` on.
    """

    coefficients: ArrayLike
    log_scale: ArrayLike
    curved: RidgeFunctions | None = None

    def __call__(self, u: Any, z: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """Residuals `(..., n)` at `z` `(..., D)` to decorrelated ones, and log scales `(..., n)` or `(n,)`.

        The log Jacobian is minus the sum of the log scales.
        """
        log_scale, before = xp.asarray(self.log_scale), soft_clip(u, xp)
        v = (u - before @ xp.asarray(self.coefficients).T) * xp.exp(-log_scale)
        if self.curved is None:
            return v, log_scale
        inputs = xp.concatenate([xp.broadcast_to(z, (*u.shape[:-1], z.shape[-1])), before], axis=-1)
        location, curved = xp.split(self.curved(inputs, xp).astype(v.dtype), 2, axis=-1)
        curved = xp.maximum(curved, LEAST_LOG_SCALE)
        return (v - location) * xp.exp(-curved), log_scale + curved

    def given(self, i: int, u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Location and log scale, `(k, 1)` both, of residual `i` given those before it, `(k, i)`, at `z` `(k, D)`."""
        number, before = len(np.asarray(self.log_scale)), soft_clip(u)
        location = before @ np.asarray(self.coefficients)[i, :i, None]
        log_scale = np.full_like(location, np.asarray(self.log_scale)[i])
        if self.curved is None:
            return location, log_scale
        rest = np.zeros((len(u), number - i))  # of which these curves are no functions
        curves = self.curved.combined(np.eye(2 * number)[[i, number + i]])
        shift, log_spread = np.split(curves(np.concatenate([z, before, rest], axis=1), np), 2, axis=1)
        return location + np.exp(log_scale) * shift, log_scale + np.maximum(log_spread, LEAST_LOG_SCALE)


def fit_triangular_map(u: np.ndarray, rows: np.ndarray, chosen: np.ndarray) -> tuple[TriangularMap, np.ndarray]:
    """Fit the map by ridge regressions; return it with the held-out decorrelated residuals, `(m, n)`.

    A residual that the others do not make smaller, held out, stays as it is.

    Args:
        u: Standardised residuals, `(m, n)`.
        rows: Simulations that amplitudes are chosen on.
        chosen: Numbers of the residuals that are decorrelated; the others stay, and no other depends on them.
    """
    before, targets, rest = soft_clip(u[:, chosen]), u[:, chosen], np.array(u)
    coefficients, log_scale = np.zeros((u.shape[1], u.shape[1])), np.zeros(u.shape[1])
    precisions = 1.0 / np.square(AMPLITUDES)
    best = np.argmin([_sizes(before[rows], targets[rows], precision)[0] for precision in precisions], axis=0)
    for number, precision in enumerate(precisions):
        left, weights, held_out = _sizes(before, targets, precision)
        kept = np.flatnonzero((best == number) & (left < 1.0) & (np.arange(len(chosen)) > 0))
        coefficients[np.ix_(chosen[kept], chosen)] = weights[kept]
        log_scale[chosen[kept]], rest[:, chosen[kept]] = np.log(left[kept]), held_out[:, kept] / left[kept]
    return TriangularMap(coefficients, log_scale), rest


def _sizes(before: np.ndarray, targets: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Robust sizes of what ridge regressions of each target on the columns before its own leave, held out, `(k,)`,
    their coefficients, `(k, k)`, and what they leave, `(m, k)`: from one Cholesky factor, whose first rows are those of
    the first columns."""
    number = before.shape[1]
    factor = np.linalg.cholesky(before.T @ before + precision * np.eye(number))
    inverse = linalg.solve_triangular(factor, np.eye(number), lower=True)
    basis = before @ inverse.T
    inner, squares = np.triu(basis.T @ targets, 1), np.square(basis)
    held_out = (targets - basis @ inner) / (1.0 - (np.cumsum(squares, axis=1) - squares))
    return winsorised_rms(held_out.T), inner.T @ inverse, held_out


def fit_curves(
    steps: int, z: np.ndarray, u: np.ndarray, v: np.ndarray, rows: np.ndarray
) -> tuple[RidgeFunctions, np.ndarray, np.ndarray] | None:
    """Learn `m` and `s` of residuals of which a regression explains anything at once, where they are worth it.

    Return these functions, the held-out residuals `(m, n)`, and what they add to the held-out log score, `(n,)`; None
    where there is no such residual, or simulations are fewer than `FEWEST` for each.

    Args:
        steps: Iterations of one location.
        z: Coordinates, `(m, D)`.
        u: Standardised residuals, `(m, n)`.
        v: Held-out decorrelated residuals, `(m, n)`.
        rows: Simulations that hyperparameters are learnt from.
    """
    n, dim = u.shape[1], z.shape[1]
    if len(rows) < FEWEST * (dim + n):
        return None
    inputs = np.concatenate([z, soft_clip(u)], axis=1)
    known = np.arange(dim + n) < dim + np.arange(n)[:, None]
    at = Inputs.pivoted(inputs, MOST, rows)
    centre, spread = v.mean(axis=0), v.std(axis=0)
    targets = ((v - centre) / np.where(spread > 0.0, spread, 1.0)).T
    guess = Smoothness.start(at.dim, linear=0.1 / np.sqrt(at.dim), length=1.0)
    share = in_parallel(partial(_explained, at.coarse[rows], targets[:, rows], guess, known), range(1, n))
    tried = 1 + np.flatnonzero(np.array(share) > 0.0)
    if not len(tried):
        return None
    start = Location(Smoothness.start(at.dim, linear=0.1, length=1.0, noise=0.9), 0.0, 0.0)
    starts = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(tried), *np.shape(leaf))), start)
    at = replace(at, used=known[tried])
    _, functions, held_out, gained = fit_statistics(steps, at, rows, targets[tried], starts, transform=False)
    added = gained.sum(axis=0) - np.log(spread[tried])
    kept = tried[added > WORTH]
    if not len(kept):
        return None
    place = np.eye(n)[:, tried] * (added > WORTH)
    matrix = np.kron(np.eye(2), place)
    matrix[:n] *= spread[:, None]
    added_to = np.concatenate([centre, np.log(np.where(spread > 0.0, spread, 1.0))]) * np.tile(place.any(axis=1), 2)
    residuals = np.array(v)
    residuals[:, kept] = held_out[:, added > WORTH]
    return functions.combined(matrix, added_to), residuals, place @ added


def _explained(at, targets, start, known, i):
    """`explained` of the residual with number `i` by what it may follow."""
    at = replace(at, used=known[i])
    return explained(at, targets[i], jax.tree.map(np.clip, start, *Smoothness.bounds(at, (-7.0, 1.5))))
