r"""Location and scale of each decorrelated residual given the residuals before it, where they are not straight lines.

$w_i = (v_i - m_i(z, h(u_{<i}))) e^{-s_i(z, h(u_{<i}))}$, with the soft clipping `h` of the triangular map: in a series,
say, what tomorrow's count spreads over follows from today's. `m` and `s` are learnt as location and scale of a
statistic are, with the residuals before it as further coordinates. The Jacobian stays triangular, and the density
integrates to 1.

Reference: Papamakarios, Pavlakou and Murray (2017), Masked autoregressive flow, of which this is one layer by kernels.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import in_threads
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.fitting import NEGLIGIBLE, fit_statistics
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions
from numpyro_kme.likelihoods.residual.location_scale import Location
from numpyro_kme.likelihoods.residual.smoothness import Inputs, Smoothness

CLIP = 5.0
"""Residuals beyond this many standard deviations say no more about the next ones than this one does."""

MOST = 200
"""Largest number of inducing points: there are many coordinates, and functions of them are smooth."""

WORTH = 0.02
"""Least improvement, in nats a simulation, for which a residual's functions are kept."""


def soft_clip(u: Any, xp: Any = np) -> Any:
    """`h(u) = 5 tanh(u / 5)`."""
    return CLIP * xp.tanh(u / CLIP)


@register
class Autoregression:
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
        return self.location(inputs, xp).astype(u.dtype), self.log_scale(inputs, xp).astype(u.dtype)


def fit_autoregression(
    form: Any, z: np.ndarray, u: np.ndarray, v: np.ndarray, rows: np.ndarray
) -> tuple[Autoregression, np.ndarray, np.ndarray] | None:
    """Learn the functions; return them with the held-out `w`, `(m, n)`, and improvements, `(n,)`, or None.

    None where no residual's functions are worth `WORTH`.

    Args:
        form: Settings of the residual form.
        z: Coordinates, `(m, D)`.
        u: Standardised residuals, `(m, n)`.
        v: Held-out decorrelated residuals, `(m, n)`.
        rows: Simulations that hyperparameters are learnt from.
    """
    n, dim = u.shape[1], z.shape[1]
    inputs = np.concatenate([z, soft_clip(u)], axis=1)
    before = np.arange(dim + n) < dim + np.arange(n)[:, None]
    points = Inputs.pivoted(inputs[rows], MOST).inducing_points
    centre, spread = v.mean(axis=0), v.std(axis=0)
    targets = ((v - centre) / spread).T
    starts = Location(Smoothness.start(dim + n, 0.1, 0.3, 1.0, 0.9), 0.0, 0.0)
    starts = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n, *np.shape(leaf))), starts)
    settings = replace(form, transform_marginals=False)

    def fit(group):
        return fit_statistics(settings, Inputs(inputs, points, before[group]), rows, targets, starts, group)

    fits = in_threads(fit, np.array_split(np.arange(1, n), min(2, n - 1)))
    improvement = np.zeros(n)
    improvement[1:] = np.concatenate([f.location_improvement + f.scale_improvement for f in fits])
    kept = np.flatnonzero(improvement > WORTH)
    if not len(kept):
        return None
    found = np.array(v)
    found[:, kept] = np.concatenate([f.residuals for f in fits])[kept - 1].T
    location = RidgeFunctions.of((f.regression, np.zeros(len(f.size)), NEGLIGIBLE * f.size) for f in fits)
    log_scale = RidgeFunctions.of((f.log_scales, f.log_scale, np.full(f.size.shape, NEGLIGIBLE)) for f in fits)
    functions = Autoregression(
        location.some(kept - 1).times(spread[kept], centre[kept]).among(kept, n),
        log_scale.some(kept - 1).times(np.ones(len(kept)), np.log(spread[kept])).among(kept, n),
    )
    return functions, found, np.where(improvement > WORTH, improvement, 0.0)
