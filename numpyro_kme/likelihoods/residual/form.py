r"""The location-scale kernel means likelihood, here the residual form: settings, and `fit`.

It embeds residuals, which simulations can lend each other, and not the statistics.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, host, numpy_function, saveable, shown
from numpyro_kme.likelihoods.base import Form, simulated
from numpyro_kme.likelihoods.extrapolation import Region, Repeats
from numpyro_kme.likelihoods.residual.bandwidths import BEGIN, Bandwidths, learn, log_densities_at, mixing_proportion
from numpyro_kme.likelihoods.residual.decorrelation import WORTH, TriangularMap, fit_curves, fit_triangular_map
from numpyro_kme.likelihoods.residual.density import KernelMixture, ResidualDensity
from numpyro_kme.likelihoods.residual.location_scale import fit_statistics, start_locations
from numpyro_kme.likelihoods.residual.smoothness import Inputs
from numpyro_kme.likelihoods.residual.support import fit_support_bounds
from numpyro_kme.likelihoods.residual.surrogate import MIN_SIMULATIONS, ResidualSurrogate, Standardisation
from numpyro_kme.likelihoods.statistics import MarginalTransform, StatisticsTransform, jitter_ties

MOST_PAIRS = 500
"""Bandwidths are learnt from the pairs of at most this many simulations: weights take the cube of their number."""

SMALL, SIGNIFICANT = 0.005, 3.0
"""Improvement of the held-out log density, in nats and in its standard errors, that a product of densities has to make:
counts are a little skewed, which moves posteriors where some of many are out in their tails."""

RAW = 0.05
"""Improvement of the held-out log density, in nats, that a raw statistic has to make."""

TRIED = Bandwidths(1.5, 0.03, 0.25, 0.0)
"""Bandwidths where nothing is learnt yet, `beta` times the root of the number of coordinates."""

TAIL, REACH = 0.02, 2.0
"""For learning, statistics are clipped where their arcsinh is beyond its `TAIL` quantiles by `REACH`: far outliers."""


@shown
@saveable
@dataclass(frozen=True)
class ResidualKernelMeans(Form):
    r"""The location-scale kernel means likelihood, the residual form: settings, and `fit`.

    Each statistic is transformed by a learnt monotone map, $t_i = T_i(y_i)$, and written as
    $t_i = \mu_i(z) + \sigma_i(z) u_i$ with location and log scale by kernel ridge regression; the held-out residuals
    $u$ are decorrelated by a triangular map, $v = V_z(u)$, with slopes $e^{-\rho_i(z, u_{<i})}$, and their embedding is
    the density $p(v \mid z)$ (`ResidualDensity`):

    $$ q(y \mid z) = p(V_z(u) \mid z) \prod_i e^{-\rho_i(z, u_{<i})} \, T_i'(y_i) / \sigma_i(z),
       \qquad u_i = (T_i(y_i) - \mu_i(z)) / \sigma_i(z). $$

    It is positive and integrates to 1 in `y` for every `z`. Statistics whose held-out density is higher without
    location and scale, as for a mixture whose weights follow the parameters, are embedded as they are. All
    hyperparameters maximise held-out densities in closed form, under priors that favour simple functions.

    Args:
        bounds: Whether a statistic may have a line that follows the coordinates: a bound, or the middle of heavy tails.
        decorrelate: Whether residuals are decorrelated.
        curved: Whether location and scale given the residuals before may be curved functions, where they are
            decorrelated.
        subset: Largest number of simulations that hyperparameters are learnt from; functions use all. When left out
            half of them, no fewer than 350 and no more than 2,000; of more than 20,000 a tenth, no more than 6,000.
        num_inducing_points: Largest number of simulations around which functions have a radial basis function; when
            left out a tenth of them, no fewer than 100 and no more than 400.
        steps: Iterations of the optimiser for one location; other parts take fixed fractions of this number.
    """

    paper = "hsu2019bayesian"

    bounds: bool = True
    decorrelate: bool = True
    curved: bool = True
    subset: int | None = None
    num_inducing_points: int | None = None
    steps: int = 30

    most_calls: ClassVar[int] = 10_000

    def __post_init__(self):
        for name, least in (("subset", MIN_SIMULATIONS), ("num_inducing_points", 1)):
            checks.optional(checks.whole, name, getattr(self, name), least)

    def fit(self, z: ArrayLike, x: Any, *, measure: Any = None, y: Any = None) -> ResidualSurrogate:
        """Learn a surrogate from simulations.

        Args:
            z: Coordinates, `(m, D)`, from any proposal; `m >= 10`.
            x: Raw statistics, `(m, n)`: continuous, counts, constant, with atoms.
            measure: Not used.
            y: Not used: the surrogate serves every observation.
        Raises:
            ValueError: For tables that disagree or are not finite, fewer than 10 simulations, and statistics that are
                all constant.
        Warns:
            UserWarning: For statistics that are constant over the simulations; they are left out.
        Cost: for each statistic thirty to seventy evaluations of `10 min(m, subset) r^2` operations, and six of
            `2 m r^2`, for `r` inducing points and features; hyperparameters are learnt with half of the inducing
            points, or fewer.
        """
        checks.concrete(z=z, x=x)
        z, x = simulated(z, np.asarray(x))
        many = len(z) >= MIN_SIMULATIONS
        checks.require(many, f"The residual form needs at least {MIN_SIMULATIONS} simulations; got {len(z)}.")
        return self._fit(z, x)

    def again(self, learnt: ResidualSurrogate, z, x, rows, *, measure=None, y=None) -> ResidualSurrogate:
        """Implement `Form.again`: locations, scales and the density in a third of the steps, from where all simulations
        ended; the triangular map, and which statistics are embedded as they are, are theirs."""
        subset = max(len(self.rows(z)) * len(rows) // len(z), MIN_SIMULATIONS)
        bounds, curved = bool(np.any(learnt.standardisation.support.side)), learnt.decorrelation.curved is not None
        settings = replace(self, bounds=bounds, curved=curved, subset=subset, steps=max(self.steps // 3, 1))
        return settings._fit(z[rows], np.asarray(x[rows], np.float64), learnt)

    def rows(self, z: np.ndarray, least: int = 350) -> np.ndarray:
        """Simulations that hyperparameters are learnt from, at random: first one of each that have the same
        coordinates, since others tell of functions where they are known, and not between."""
        most = int(np.clip(len(z) // 10, 2000, 6000))
        used = self.subset or int(np.clip(len(z) // 2, least, most))
        return Repeats.of(z).at_random(np.random.default_rng(0))[:used]

    @host.one_blas_thread
    @numpy_function
    def _fit(self, z, x, before: ResidualSurrogate | None = None):
        rows, first, transform = self.rows(z), Repeats.of(z).first, StatisticsTransform.fit(x)
        found = self.standardised(z, x, transform, before and before.location)
        location, standardisation, standard, residuals, gained = found
        information = standardisation.information(standard[first[:300]], z[first[:300]])
        statistics = np.asarray(standardisation.marginals(standardisation.support(standard, z, np)[0], np))
        if before is None:
            still = np.zeros(residuals.shape[1], bool)
            learnt = self.dependence(z, residuals, still)
            other = self._as_they_are(z, statistics, residuals, gained.sum(axis=0), learnt)
            still, residuals, learnt = other or (still, residuals, learnt)
        else:
            still, kept = np.asarray(before.unmoved), before.decorrelation
            residuals = np.where(still, statistics, residuals)
            learnt = self._embedded(z, kept(residuals, z, np)[0], rows, kept, -np.asarray(kept.log_scale))
        if still.any():
            matrix, gained = np.diag(np.tile(~still, 2).astype(float)), np.where(still, 0.0, gained)
            standardisation = replace(standardisation, functions=standardisation.functions.combined(matrix))
        return ResidualSurrogate(
            transform,
            Region.of(z, np.diagonal(information.sum(axis=0))),
            information,
            standardisation,
            learnt.decorrelation,
            learnt.density,
            np.asarray(transform.forward(np.stack([x.min(axis=0), x.max(axis=0)]))),
            {**dict(zip(("location", "scale"), gained)), **learnt.improvements},
            residuals,
            still,
            z,
            location,
            self,
        )

    def standardised(
        self, z: np.ndarray, x: np.ndarray, transform: StatisticsTransform, starts: Any = None, ends: Any = None
    ):
        """Learn bounds, the `ends` of more simulations if given, transformations, locations and scales of statistics.

        Returns:
            Hyperparameters of the locations, from which another fit can start, the map to residuals, statistics in
            robust standard deviations, held-out residuals, `(m, n)` both, and what location and scale add to the
            held-out log score, `(2, n)`.
        """
        rows, first = self.rows(z), Repeats.of(z).first
        most = self.num_inducing_points or int(np.clip(len(first) // 10, 100, 400))
        at = Inputs.pivoted(z, most, rows)
        standard = (jitter_ties(x[:, list(transform.kept)]) - transform.centre) / transform.scale
        support, bounded = fit_support_bounds(at, standard, rows, self.bounds, ends)
        scores = np.arcsinh(bounded)
        low, high = np.quantile(scores, [TAIL, 1.0 - TAIL], axis=0)
        clipped = np.sinh(np.clip(scores, low - REACH, high + REACH))
        if starts is None:
            zero = np.where(support.side, np.inf, -np.asarray(transform.centre) / transform.scale)
            starts, _ = start_locations(at.coarse[rows], clipped[rows].T, zero)
        location, functions, residuals, gained = fit_statistics(self.steps, at, rows, clipped.T, starts)
        v = location.transformed(clipped.T)
        marginals = MarginalTransform(location.centre, np.exp(location.log_width), v.mean(axis=1), v.std(axis=1))
        return location, Standardisation(support, marginals, functions), standard, residuals, gained

    def _as_they_are(self, z, statistics, residuals, gained, learnt: "Dependence"):
        """Find the statistics that are embedded without location and scale, their residuals then, and how these depend
        on one another; None where that says no more of held-out simulations than what was `learnt` of all residuals.

        Simulations lend each other residuals where location and scale move a shape that hardly changes. Where the
        parameters change how probable clusters of values are, as in a mixture, residuals have peaks that move, and
        their density blurs them. Those of the statistic stay where they are, and its own embedding, of which the
        weights follow the parameters, keeps them.
        """
        rows = self.rows(z)[:MOST_PAIRS]
        points, raw, own = [np.asarray(part[rows], np.float32) for part in (z, statistics, residuals)]
        better = _alone(points, raw) - _alone(points, own) - gained
        still = better.mean(axis=0) > np.maximum(RAW, SIGNIFICANT * better.std(axis=0) / np.sqrt(len(rows)))
        if not still.any():
            return None
        residuals = np.where(still, statistics, residuals)
        other = self.dependence(z, residuals, still)
        return (still, residuals, other) if other.score > learnt.score + gained[still].sum() + RAW else None

    @host.one_blas_thread
    @numpy_function
    def dependence(self, z: np.ndarray, residuals: np.ndarray, still: np.ndarray) -> "Dependence":
        """Learn from held-out standardised residuals `(m, n)` how they depend on one another, and their density.

        Those that are `still` statistics as they are, `(n,)`, follow the coordinates, and so do their regressions on
        one another: they are not decorrelated.
        """
        rows, chosen = self.rows(z), np.flatnonzero(~still & self.decorrelate)
        decorrelation, v = fit_triangular_map(residuals, rows, chosen)
        improvement = -np.asarray(decorrelation.log_scale)
        if self.curved and len(chosen) == len(still) > 1:
            more = self.rows(z, MOST_PAIRS)  # of functions of many coordinates there is more to learn
            found = fit_curves(self.steps, z, residuals, v, more)
            if found is not None:
                curved, other, added = found
                few, before, after = (part[more[:MOST_PAIRS]].astype(np.float32) for part in (z, v, other))
                shape = log_densities_at(few, [after], BEGIN) - log_densities_at(few, [before], BEGIN)
                if added.sum() + shape.mean() > WORTH:
                    decorrelation, v, improvement = replace(decorrelation, curved=curved), other, improvement + added
        return self._embedded(z, v, rows, decorrelation, improvement)

    def _embedded(self, z, v, rows, decorrelation, improvement) -> "Dependence":
        """With the density of held-out decorrelated residuals `v`."""
        # kernels and their sums need no more than float32, as the ridge is at least a thousandth of `m`
        few, points = v[rows[:MOST_PAIRS]].astype(np.float32), z[rows[:MOST_PAIRS]].astype(np.float32)
        learnt = learn(points, [few])
        score = learnt.log_densities.astype(np.float64)
        density = ResidualDensity(KernelMixture.fit(z, [v], learnt), None, np.zeros(()))
        if v.shape[1] > 1 and np.mean(_alone(points, few).sum(axis=1) - score) > SMALL:
            columns = np.split(few, v.shape[1], axis=1)
            apart = learn(points, columns)
            gap = apart.log_densities - score
            proportion = mixing_proportion(gap)
            added = np.logaddexp(np.log1p(-proportion), np.log(proportion) + gap)
            if added.mean() > max(SMALL, SIGNIFICANT * added.std() / np.sqrt(len(added))):
                product = KernelMixture.fit(z, np.split(v, v.shape[1], axis=1), apart)
                density, score = replace(density, apart=product, proportion=np.array(proportion)), score + added
        normal = -0.5 * np.sum(np.square(few) + np.log(2.0 * np.pi), axis=1)
        improvements = {"decorrelation": improvement, "shape": np.mean(score - normal)}
        return Dependence(decorrelation, density, improvements, float(np.sum(improvement) + score.mean()))


class Dependence(NamedTuple):
    """Dependence of residuals on one another: their triangular map, the density of what it gives, what both add to the
    held-out log score, `(n,)` and a scalar, and the mean held-out log density of the residuals."""

    decorrelation: TriangularMap
    density: ResidualDensity
    improvements: dict[str, np.ndarray]
    score: float


def _alone(z: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Held-out log densities of single residuals `(m, n)`, each by itself, where nothing is learnt yet, `(m, n)`."""
    return log_densities_at(z, np.split(columns, columns.shape[1], axis=1), TRIED)
