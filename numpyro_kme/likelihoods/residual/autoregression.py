r"""Location and scale of each decorrelated residual given the residuals before it, where they are not straight lines.

$w_i = (v_i - m_i(z, h(u_{<i}))) e^{-s_i(z, h(u_{<i}))}$, with the soft clipping `h` of the triangular map: in a series,
say, what tomorrow's count spreads over follows from today's. `m` and `s` are learnt as location and scale of a
statistic are, with the residuals before it as further coordinates. The Jacobian stays triangular, and the density
integrates to 1.

Reference: Papamakarios, Pavlakou and Murray (2017), Masked autoregressive flow, of which this is one layer by kernels.
"""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.programs import Recomputed
from numpyro_kme._core.threads import in_parallel
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.fitting import fit_statistics, fitted_functions
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions
from numpyro_kme.likelihoods.residual.location_scale import Location, explained
from numpyro_kme.likelihoods.residual.smoothness import Inputs, Smoothness

CLIP = 5.0
"""Residuals beyond this many standard deviations say no more about the next ones than this one does."""

MOST = 200
"""Largest number of inducing points: there are many coordinates, and functions of them are smooth."""

BOTH = "(d)->(n),(n)"
"""Signature of both functions."""

TRIED = 0.01
"""Functions are learnt of those residuals of which a regression explains so much of the variance at once."""

WORTH = 0.02
"""A residual's functions are kept if they improve on more than this, in nats a simulation, and all if together they do.
"""


def soft_clip(u: Any, xp: Any = np) -> Any:
    """`h(u) = 5 tanh(u / 5)`."""
    return CLIP * xp.tanh(u / CLIP)


@register
class Autoregression(Recomputed):
    """The fitted functions of `(z, h(u))`; those of residual `i` do not depend on the residuals from `i` on.

    Attributes:
        location: `m`, `(D + n,) -> (n,)`.
        log_scale: `s`, likewise.
    """

    location: RidgeFunctions
    log_scale: RidgeFunctions

    def __call__(self, u: Any, z: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """`m` and `s`, `(..., n)` each, at residuals `(..., n)` and coordinates `(..., D)`."""
        z = xp.broadcast_to(z, (*u.shape[:-1], z.shape[-1]))
        inputs = xp.concatenate([z, soft_clip(u, xp)], axis=-1)
        if xp is np:
            location, log_scale = np.split(self._both(inputs, np), 2, axis=-1)
        else:
            location, log_scale = jnp.vectorize(lambda a: (self.location(a), self.log_scale(a)), signature=BOTH)(inputs)
        return location.astype(u.dtype), log_scale.astype(u.dtype)

    @cached_property
    def _both(self) -> RidgeFunctions:
        return RidgeFunctions.together([self.location, self.log_scale])

    def used(self) -> np.ndarray:
        """Which residuals have functions, `(n,)`."""
        return np.any(self.location.linear, axis=1) | np.any(self.log_scale.linear, axis=1)

    def trimmed(self) -> "Autoregression":
        """The same without kernels of weight 0, for NumPy."""
        return Autoregression(self.location.trimmed(), self.log_scale.trimmed())


class FittedAutoregression(NamedTuple):
    """Functions, and what they leave.

    Attributes:
        functions: `m` and `s`.
        residuals: Held-out `w`, `(m, n)`.
        improvement: What they add to the held-out log score, `(n,)`.
    """

    functions: Autoregression
    residuals: np.ndarray
    improvement: np.ndarray


def fit_autoregression(
    form: Any, z: np.ndarray, u: np.ndarray, v: np.ndarray, rows: np.ndarray
) -> FittedAutoregression | None:
    """Learn the functions of those residuals for which they are worth it; None where there is no such residual.

    Args:
        form: Settings of the residual form.
        z: Coordinates, `(m, D)`.
        u: Standardised residuals, `(m, n)`.
        v: Held-out decorrelated residuals, `(m, n)`.
        rows: Simulations that hyperparameters are learnt from.
    """
    n, dim = u.shape[1], z.shape[1]
    if n == 1:
        return None
    inputs = np.concatenate([z, soft_clip(u)], axis=1)
    known = np.arange(dim + n) < dim + np.arange(n)[:, None]
    at = Inputs(inputs, Inputs.pivoted(inputs[rows], MOST).inducing_points)
    centre, spread = v.mean(axis=0), v.std(axis=0)
    targets = ((v - centre) / np.where(spread > 0.0, spread, 1.0)).T
    few, points = inputs[rows], at.coarse.inducing_points
    share = in_parallel(partial(_explained, few, points, targets[:, rows], known), range(1, n))
    tried = 1 + np.flatnonzero(np.array(share) > TRIED)
    if not len(tried):
        return None
    settings = replace(form, transform_marginals=False)
    start = Smoothness.start(at.dim, linear=0.1, length=1.0, noise=0.9)
    fits = in_parallel(partial(_fit, settings, at, rows, targets, start, known), at.groups(tried))
    added = np.concatenate([fit.location_improvement + fit.scale_improvement for fit in fits]) - np.log(spread[tried])
    worth = np.flatnonzero(added > WORTH)
    if not len(worth):
        return None
    kept, (location, log_scale) = tried[worth], (part.some(worth) for part in fitted_functions(fits))
    found = Autoregression(
        location.times(spread[kept], centre[kept]).among(kept, n),
        log_scale.times(np.ones(len(kept)), np.log(spread[kept])).among(kept, n),
    )
    residuals, improvement = np.array(v), np.zeros(n)
    residuals[:, kept] = np.concatenate([fit.residuals for fit in fits])[worth].T
    improvement[kept] = added[worth]
    return FittedAutoregression(found, residuals, improvement)


def _explained(few, points, targets, known, i):
    """`explained` of the residual with number `i` by what it may follow."""
    return explained(few[:, known[i]], points[:, known[i]], targets[i])


def _fit(form, at, rows, targets, start, known, group):
    """`fit_statistics` of a group of residuals by what each may follow."""
    starts = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(group), *np.shape(leaf))), Location(start, 0.0, 0.0))
    return fit_statistics(form, replace(at, used=known[group]), rows, targets[group], starts, int(group[0]))
