r"""The residual kernel means likelihood: embed residuals, which simulations can lend each other, not the statistics."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme import _checks, _linalg
from numpyro_kme.kernel_means.base import Form
from numpyro_kme.kernel_means.chain import Chain, fit_chain
from numpyro_kme.kernel_means.location import Location, learn_location, start_locations
from numpyro_kme.kernel_means.residual_density import fit_residual_density, learn_bandwidths, learn_share, mean_gain
from numpyro_kme.kernel_means.residual_surrogate import Gains, ResidualSurrogate
from numpyro_kme.kernel_means.ridge import RidgeFunctions
from numpyro_kme.kernel_means.smoothness import Inputs, Regression
from numpyro_kme.kernel_means.spread import Spread, robust_size
from numpyro_kme.kernel_means.statistics import StatisticsTransform
from numpyro_kme.kernel_means.warping import Warp, spread_atoms

MIN_SIMULATIONS = 10
"""Fewer simulations than this cannot be held out from."""

TAIL, REACH = 0.02, 2.0
"""For learning, statistics are cut where their arcsinh is beyond its `TAIL` quantiles by `REACH`: far outliers alone."""

NEGLIGIBLE = 0.02
"""What location, in residual standard deviations, and log scale may be off by where a simpler function stands in."""


@dataclass(frozen=True)
class ResidualKernelMeans(Form):
    r"""The residual form of the kernel means likelihood: settings, and `fit`.

    Each statistic is warped by a learnt monotone map, $t_i = T_i(y_i)$, and written as $t_i = \mu_i(z) + \sigma_i(z) u_i$ with
    location and log scale by kernel ridge regression; the held-out residuals $u$ are decorrelated by a triangular chain,
    $v = V_z(u)$, and their embedding is the density $p(v \mid z)$ (`residual_density`):

    $$ q(y \mid z) = p(V_z(u) \mid z) \prod_i e^{-\rho_i} \, T_i'(y_i) / \sigma_i(z), \qquad u_i = (T_i(y_i) - \mu_i(z)) / \sigma_i(z). $$

    It is positive and integrates to 1 in `y` for every `z`. All hyperparameters follow held-out densities in closed form,
    under priors that favour simple functions.

    Args:
        warp: Whether statistics are warped.
        scale: Whether the scale of residuals may change with the coordinates.
        chain: Whether residuals are decorrelated.
        subset: Largest number of simulations that hyperparameters are learnt from; functions use all.
        centres: Largest number of simulations around which functions have a Gaussian kernel.
        steps: Iterations of one location; other parts take fixed shares of it.
    """

    warp: bool = True
    scale: bool = True
    chain: bool = True
    subset: int = 350
    centres: int = 100
    steps: int = 30

    def __post_init__(self):
        _checks.whole("centres", self.centres, 1)

    def fit(self, z: ArrayLike, x: Any, *, measure: Any = None, y: Any = None) -> ResidualSurrogate:
        """Learn a surrogate from simulations.

        Args:
            z: Coordinates, `(m, D)`, from any proposal; `m >= 10`.
            x: Raw statistics, `(m, n)`: continuous, counts, constant, with atoms.
            measure: Not used.
            y: Not used: the surrogate serves every observation.
        Raises:
            ValueError: For tables that disagree or are not finite, fewer than 10 simulations, and statistics that are all
                constant.
        Warns:
            UserWarning: For statistics that are constant over the simulations; they are left out.
        Cost: for each statistic about fifty evaluations of `10 min(m, subset) r^2` operations, and six of `2 m r^2`,
            for `r` centres and features.
        """
        _checks.matrix("z", z)
        _checks.few_enough(np.shape(z)[0], 2)
        _checks.matrix("x", x, min_rows=2)
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        _checks.require(
            len(z) == len(x),
            f"`z` and `x` must have one row for each simulation; got shapes {z.shape} and {x.shape}.",
        )
        _checks.require(
            len(z) >= MIN_SIMULATIONS,
            f"The residual form needs at least {MIN_SIMULATIONS} simulations; got {len(z)}. Simulate more.",
        )
        _checks.finite("z", z)
        with _linalg.float64(), _linalg.one_blas_thread():
            transform = StatisticsTransform.fit(x)
            return self._fit(z, x, transform)

    def _fit(self, z, x, transform):
        scaled = _scaled(x, transform)
        zero = -np.asarray(transform.centre) / transform.scale
        rows = np.random.default_rng(0).permutation(len(z))[: self.subset]
        at = Inputs.at(z, Inputs.spread(z[rows], self.centres).centres)
        starts = start_locations(at.coarse[rows], scaled[rows], zero, self.warp)
        fits = _linalg.in_threads(partial(_fit_statistic, self, at, rows), list(zip(scaled.T, starts, strict=True)))
        residuals = np.stack([fit.residuals for fit in fits], axis=1)
        if self.chain:
            chain, residuals = fit_chain(z, residuals, rows, self.steps // 2)
        else:
            chain = Chain.identity(residuals.shape[1], z.shape[1])
        bandwidths = learn_bandwidths(z, residuals, self.subset, self.steps)
        gains = Gains(
            np.array([fit.location_gain for fit in fits]),
            np.array([fit.scale_gain for fit in fits]),
            -np.asarray(chain.log_size),
            np.array(mean_gain(bandwidths, z, residuals, self.subset)),
        )
        return ResidualSurrogate(
            transform,
            _warp(fits, scaled, transform),
            RidgeFunctions.stack([(f.regression, 0.0, NEGLIGIBLE * f.size) for f in fits]),
            RidgeFunctions.stack([(f.spread.last or f.flat, f.log_scale, NEGLIGIBLE) for f in fits]),
            chain,
            fit_residual_density(z, residuals, bandwidths, learn_share(bandwidths, z, residuals, self.subset)),
            np.asarray(transform.forward(np.stack([x.min(axis=0), x.max(axis=0)]))),
            gains,
        )


@dataclass
class _Fit:
    """One statistic: location, its regression, spread, log scale beside it, standardised residuals `(m,)`, gains."""

    location: Location
    regression: Regression
    spread: Spread
    log_scale: float
    residuals: np.ndarray
    location_gain: float
    scale_gain: float

    @property
    def size(self) -> float:
        """Least scale of the residuals at the simulations."""
        return float(np.exp(self.log_scale + np.min(self.spread.fitted - self.spread.offset)))

    @property
    def flat(self) -> Regression:
        """Zero everywhere."""
        return self.regression.again(np.zeros(len(self.residuals)))


def _fit_statistic(form: ResidualKernelMeans, at: Inputs, rows, statistic) -> _Fit:
    """Learn on `rows`, coarsely, and then with the noise found so and all centres; fit all simulations with the result."""
    x, location = statistic
    spread = Spread.unknown(at.dim, len(at))
    noise = size = np.ones(len(rows))
    for steps, inputs in ((form.steps, at.coarse[rows]), (form.steps // 2, at[rows])):
        location = learn_location(location, inputs, x[rows], noise, size, steps, form.warp)
        residuals = location.fit(inputs, x[rows], noise).held_out.residual
        noise, size = _noise(form, inputs, residuals, spread, 2, form.steps // 3)
    noise = size = np.ones(len(x))
    for _ in range(2):
        found = location.fit(at, x, noise)
        noise, size = _noise(form, at, found.held_out.residual, spread, 2, 0)
    residuals = found.held_out.residual * np.exp(-spread.held_out)
    scale, plain = robust_size(residuals), robust_size(found.held_out.residual)
    return _Fit(
        location,
        found,
        spread,
        spread.offset + np.log(scale),
        residuals / scale,
        -np.log(plain),
        np.log(plain / scale) - np.mean(spread.held_out),
    )


def _noise(form, at, residuals, spread: Spread, rounds, steps):
    """Relative noise variances for the next regression, and without the weights that outliers get."""
    if form.scale:
        spread.update(at, residuals, rounds, steps)
    log_scale = spread.held_out if form.scale else np.zeros(len(at))
    standard = residuals * np.exp(-log_scale)
    weights = 5.0 / (4.0 + np.square(standard / robust_size(standard)))
    size = np.exp(2.0 * (log_scale - np.mean(log_scale)))
    return size * np.mean(weights) / weights, size


def _scaled(x, transform: StatisticsTransform) -> np.ndarray:
    """Kept statistics, atoms spread, in robust standard deviations, cut where far outside the bulk."""
    columns = spread_atoms(x[:, list(transform.kept)])
    scores = np.arcsinh((columns - transform.centre) / transform.scale)
    low, high = np.quantile(scores, [TAIL, 1.0 - TAIL], axis=0)
    return np.sinh(np.clip(scores, low - REACH, high + REACH))


def _warp(fits, scaled, transform: StatisticsTransform) -> Warp:
    """The learnt warps on raw statistics."""
    centre = np.array([float(fit.location.centre) for fit in fits])
    width = np.exp([float(fit.location.log_width) for fit in fits])
    v = np.arcsinh((scaled - centre) / width)
    return Warp(
        transform.centre + centre * transform.scale,
        width * transform.scale,
        np.mean(v, axis=0),
        np.std(v, axis=0),
    )
