"""Location and scale of some statistics, learnt in turn on some simulations and fitted to all."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numpyro_kme.likelihoods.residual.functions import RidgeFunctions
from numpyro_kme.likelihoods.residual.location_errors import LocationErrors
from numpyro_kme.likelihoods.residual.location_scale import Location, ScaleFunction, learn_location, winsorised_rms
from numpyro_kme.likelihoods.residual.smoothness import Inputs

MOST_TURNS = 8
"""Location and scale are learnt in turn so many times at most: where the scale spans many orders of magnitude, what a
location can be known to follows from the scale, and the least scale from that."""

NEGLIGIBLE = 0.05
"""What location, in residual standard deviations, and log scale may be off by where a simpler function stands in."""


ROUNDED = 1.25
"""A location that is off at its own simulations by more residual standard deviations than this is off by rounding."""


class Fits(NamedTuple):
    """Some statistics as they are fitted: what is kept, and small enough to travel between processes.

    Attributes:
        location: Hyperparameters of the locations.
        functions: Locations and log scales as functions of the coordinates, as simple as `NEGLIGIBLE` lets them be.
        errors: What the locations may be off by.
        residuals: Standardised held-out residuals, `(n, m)`.
        location_improvement, scale_improvement: What these add to the held-out log score, `(n,)` each.
    """

    location: Location
    functions: tuple[RidgeFunctions, RidgeFunctions]
    errors: LocationErrors
    residuals: np.ndarray
    location_improvement: np.ndarray
    scale_improvement: np.ndarray


def fit_statistics(form: Any, at: Inputs, rows: np.ndarray, x: np.ndarray, location: Location, seed: int) -> Fits:
    """Learn on `rows` with some inducing points, and again with the noise found so, until that stays what it is; then
    fit all simulations.

    Args:
        form: Settings of the residual form.
        at: Coordinates.
        rows: Simulations that hyperparameters are learnt from.
        x: Statistics, `(n, m)`, in their robust standard deviations.
        location: Where the search begins.
        seed: Of the draws of what locations may be off by.
    """
    location, scale = _learnt(form, at.coarse[rows], x[:, rows], location)
    noise, size, needed = np.ones(x.shape), np.ones(x.shape), location.smoothness.enough(at)
    for number in range(MOST_TURNS):
        found, before = location.fit(needed, x, noise), size
        noise, size = _noise(form, at, found.held_out.residual, scale, 2, 0)
        if number > 0 and _settled(size, before).all():
            break
    residuals = found.held_out.residual * np.exp(-scale.held_out)
    rest, plain = winsorised_rms(residuals), winsorised_rms(found.held_out.residual)
    log_scale = scale.offset + np.log(rest)
    size = np.exp(log_scale[:, None] + scale.fitted - scale.offset[:, None])
    log_scales = scale.last or found.again(np.zeros(x.shape))
    of_location = RidgeFunctions.of(found, np.zeros(len(x)), NEGLIGIBLE * size)
    # with so little noise that a simplified function is off by more, residuals and scales are those of the function
    off = (location.target(x) - of_location.on_host(at.z).T) / size
    rounding = winsorised_rms(off)
    rounded = rounding > ROUNDED
    residuals = np.where(rounded[:, None], off / rounding[:, None], residuals / rest[:, None])
    log_scale += np.where(rounded, np.log(rounding), 0.0)
    return Fits(
        location,
        (of_location, RidgeFunctions.of(log_scales, log_scale, np.full(x.shape, NEGLIGIBLE))),
        LocationErrors.of(found, at.inducing_points, seed),
        residuals,
        -np.log(plain),
        np.log(plain / rest) - np.mean(scale.held_out, axis=1),
    )


def _learnt(form: Any, at: Inputs, x: np.ndarray, location: Location) -> tuple[Location, ScaleFunction]:
    """Hyperparameters of locations and of log scales, in turn until scales stay what they are."""
    scale, inverses = ScaleFunction(at.dim, *x.shape), None
    noise = size = np.ones(x.shape)
    for number in range(MOST_TURNS):
        steps, before = form.steps // (1 if number == 0 else 2), size
        location, inverses = learn_location(location, at, x, noise, size, steps, form.transform_marginals, inverses)
        residuals = location.fit(location.smoothness.enough(at), x, noise).held_out.residual
        noise, size = _noise(form, at, residuals, scale, 2, form.steps // 3)
        if number > 0 and _settled(size, before).all():
            break
    return location, scale


def _settled(size, before) -> np.ndarray:
    """Whether logarithms of the scales of each statistic, of which these are the squares, hardly changed, `(n,)`."""
    return np.std(np.log(size / before), axis=1) < 2.0 * NEGLIGIBLE


def _noise(form, at, residuals, scale: ScaleFunction, rounds, steps):
    """Relative noise variances for the next regression, and without the weights that outliers get, `(n, m)`."""
    if form.scale:
        scale.update(at, residuals, rounds, steps)
    log_scale = scale.held_out if form.scale else np.zeros(residuals.shape)
    standard = residuals * np.exp(-log_scale)
    noise = 4.0 + np.square(standard / winsorised_rms(standard)[:, None])
    size = np.exp(2.0 * (log_scale - np.mean(log_scale, axis=1, keepdims=True)))
    return size * noise * np.mean(1.0 / noise, axis=1, keepdims=True), size


def fitted_functions(fits: Sequence[Fits]) -> tuple[RidgeFunctions, RidgeFunctions]:
    """Locations and log scales of all groups."""
    location, log_scale = (RidgeFunctions.together([f.functions[i] for f in fits]).filled() for i in (0, 1))
    return location, log_scale
