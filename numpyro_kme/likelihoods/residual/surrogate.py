"""What the residual form has learnt: a likelihood to evaluate, and a report for a person."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.display import between
from numpyro_kme._core.host import in_present_precision, numpy_function
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.extrapolation import Region, warn_if_out_of_distribution
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap
from numpyro_kme.likelihoods.residual.density import ResidualDensity
from numpyro_kme.likelihoods.residual.evaluation import ResidualAt, Standardised
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions
from numpyro_kme.likelihoods.residual.intervals import ResidualWithinAt
from numpyro_kme.likelihoods.residual.location_errors import LocationErrors
from numpyro_kme.likelihoods.residual.outside import UsualSlopes
from numpyro_kme.likelihoods.residual.support import AROUND, SupportBounds
from numpyro_kme.likelihoods.statistics import MarginalTransform, StatisticsTransform

SHOWN = 8
"""So many statistics are listed by number."""


@register
class ScoreImprovements:
    """What each part adds to the held-out log score, the log density of a simulation that is held out.

    In nats, means over the simulations.

    Attributes:
        location: Improvement over a constant location, `(n,)`.
        scale: Improvement over a constant scale, `(n,)`.
        decorrelation: Improvement over independent residuals, `(n,)`.
        shape: Improvement of the embedding over independent standard normals, a scalar.
    """

    location: ArrayLike
    scale: ArrayLike
    decorrelation: ArrayLike
    shape: ArrayLike


@register
class ResidualSurrogate(Surrogate):
    r"""A learnt location-scale kernel means likelihood.

    Attributes:
        transform: Which statistics vary, and the check of observations.
        region: Which parameters were simulated; weights are the information of all statistics, by their locations and
            scales, about each coordinate.
        location_information: Fisher information of the location of each statistic about each coordinate, `(n, D)`:
            $E_z[(\partial \mu_i / \partial z_d)^2 / \sigma_i(z)^2]$ over the simulations.
        slopes: Usual slopes of locations and of log scales.
        support: Bounds `e` of the statistics.
        marginals: Transformations `T` of standardised statistics, or of what bounds put in their place.
        location: Locations `mu`.
        log_scale: Log scale functions `log sigma`.
        location_errors: What the locations may be off by; None in what only evaluates.
        decorrelation: Triangular map `V`.
        density: Density `p(v | z)` of decorrelated residuals.
        simulated_range: Lowest and highest simulated statistics, transformed, `(2, n)`.
        improvements: What the parts add to the held-out log score.
        residuals: Held-out standardised residuals `u` of the simulations, `(m, n)`, from which `marginal` learns; None
            in what only evaluates.
        unmoved: Which statistics are embedded as they are, with location 0 and scale 1, `(n,)`.
        simulated: Coordinates of the simulations, `(m, D)`.
        form: The settings (static).
    """

    transform: StatisticsTransform
    region: Region
    location_information: ArrayLike
    slopes: UsualSlopes
    support: SupportBounds
    marginals: MarginalTransform
    location: RidgeFunctions
    log_scale: RidgeFunctions
    location_errors: LocationErrors | None
    decorrelation: TriangularMap
    density: ResidualDensity
    simulated_range: ArrayLike
    improvements: ScoreImprovements
    residuals: ArrayLike | None
    unmoved: ArrayLike
    simulated: ArrayLike
    form: Any = field(metadata=dict(static=True))

    @property
    def form_of_part(self) -> Any:
        """The settings for a part of the simulations: a third of the steps, no bounds or curves where all show none."""
        bounds, curved = bool(np.any(self.support.side)), self.decorrelation.curved is not None
        return replace(self.form, bounds=bounds, curved=curved, steps=max(self.form.steps // 3, 1))

    @property
    def moves(self) -> bool:
        """As `Surrogate.moves`."""
        return not np.all(self.unmoved)

    @property
    def dim(self):
        """Number of coordinates."""
        return len(self.region.low)

    def named(self, names: Sequence[str]) -> "ResidualSurrogate":
        """As `Surrogate.named`."""
        return replace(self, transform=self.transform.named(names))

    def at(self, y: Any) -> "ResidualAt":
        """The likelihood at one observation `(n_raw,)`; a concrete `y` is checked and prepared on the host in float64.

        NaN means not observed, as in `marginal`; a traced `y` must have none.

        Raises:
            ValueError: If `y` has the wrong shape, is infinite, or differs from a statistic that all simulations share.
        Warns:
            UserWarning: If `y` lies far outside all simulations.
        """
        if not checks.is_concrete((y, self)):
            return in_present_precision(self)._at(jnp.asarray(y))
        if self.transform.lacks(y):
            return self.marginal(~np.isnan(y)).at(y)
        self.transform.check(y)
        y = np.array(y, np.float64)
        warn_if_out_of_distribution(self.transform, self.simulated_range, y)
        return self._at(y, np)

    def at_rows(self, rows: Any, axes: int = 1) -> "ResidualAt":
        """As `Surrogate.at_rows`."""
        rows = rows.reshape(*rows.shape[:axes], -1)
        return self._at(rows, np) if isinstance(rows, np.ndarray) else in_present_precision(self)._at(rows)

    def _at(self, y, xp=jnp) -> "ResidualAt":
        kept, scale = y[..., np.array(self.transform.kept)], xp.asarray(self.transform.scale)
        return ResidualAt(self._to_evaluate, (kept - self.transform.centre) / scale, -xp.sum(xp.log(scale)), y)

    @cached_property
    def _to_evaluate(self) -> "ResidualSurrogate":
        """Without what only reports read."""
        return replace(self, residuals=None, location_errors=None)

    @cached_property
    def brief(self) -> "ResidualSurrogate":
        """As `LikelihoodAt.brief`: with the density in float32, and without the zeros that fill up what is compiled."""
        density = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), self.density.tabulated())
        location, log_scale = self.location.trimmed(), self.log_scale.trimmed()
        return replace(
            self, location=location, log_scale=log_scale, decorrelation=self.decorrelation.trimmed(), density=density
        )

    def within(self, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> LikelihoodAt:
        """As `Surrogate.within`: the integral of the density over the intervals."""
        inside = np.isnan(rows[0]) & (np.isfinite(low[0]) | np.isfinite(high[0]))
        learnt = self.marginal(~np.isnan(rows[0]) | inside, inside)
        kept, centre, scale = (
            np.array(learnt.transform.kept),
            learnt.transform.centre,
            np.asarray(learnt.transform.scale),
        )
        first = len(kept) - np.count_nonzero(inside[kept])
        if first == len(kept):  # those in intervals do not vary
            return learnt.at_rows(rows)
        y, low, high = ((part[:, kept] - centre) / scale for part in (rows, low, high))
        ends = y[:, :first], low[:, first:], high[:, first:]
        return ResidualWithinAt(learnt._to_evaluate, *ends, -np.sum(np.log(scale[:first])), rows)

    def _marginal(self, seen, last):
        """Locations, scales and transformations are of single statistics and stay; the dependence of the residuals that
        are left, and their density, are learnt again from the held-out residuals of the same simulations.

        Exact integrals over the others would need the order in which residuals are decorrelated to have these last, and
        would keep bandwidths that were learnt for more dimensions. This is what simulations without these statistics
        teach, for about a fifth of the time that learning took.
        """
        chosen = self.transform.numbers(seen, last)
        if np.array_equal(chosen, np.arange(len(self.transform.kept))):
            return self
        residuals, unmoved = np.asarray(self.residuals)[:, chosen], np.asarray(self.unmoved)[chosen]
        learnt = self.form.dependence(np.asarray(self.simulated), residuals, unmoved)
        some = partial(jax.tree.map, lambda leaf: np.asarray(leaf)[chosen])
        information, slopes = np.asarray(self.location_information)[chosen], self.slopes.some(chosen)
        weights = (information + slopes.scale_information).sum(axis=0)
        found = self.improvements
        return replace(
            self,
            transform=self.transform.some(chosen),
            region=Region.of(np.asarray(self.simulated), weights),
            location_information=information,
            slopes=slopes,
            support=some(self.support),
            marginals=some(self.marginals),
            location=self.location.some(chosen),
            log_scale=self.log_scale.some(chosen),
            location_errors=self.location_errors and self.location_errors.some(chosen),
            decorrelation=learnt.decorrelation,
            density=learnt.density,
            simulated_range=np.asarray(self.simulated_range)[:, chosen],
            improvements=ScoreImprovements(
                some(found.location), some(found.scale), learnt.decorrelation_improvement, learnt.shape_improvement
            ),
            residuals=residuals,
            unmoved=unmoved,
        )

    def standardised(self, standard: Any, given: Any, xp: Any) -> Standardised:
        """Statistics `(..., n)`, in robust standard deviations, at coordinates `(..., D)`; see
        `ResidualAt.log_density`."""
        z = self.region.nearest(given, xp)
        bounded, log_slope = self.support(standard, z, xp)
        parts = np.split(self._both(z, np), 2, axis=-1) if xp is np else (self.location(z), self.log_scale(z))
        location, log_scale = (part.astype(z.dtype) for part in parts)
        u, log_scale = self.slopes.residuals(self.marginals(bounded, xp) - location, given - z, log_scale, xp)
        return Standardised(u, self.marginals.log_slope(bounded, xp) + log_slope - log_scale, z)

    @cached_property
    def _both(self) -> RidgeFunctions:
        return RidgeFunctions.together([self.location, self.log_scale])

    def location_changes(self, y: Any, z: np.ndarray) -> np.ndarray | None:
        r"""As `Surrogate.location_changes`: $\sum_i u_i / \sigma_i(z) \, \delta_{is}(z)$ of normal residuals `u`."""
        if self.location_errors is None:
            return None
        if self.transform.lacks(y):
            return self.marginal(~np.isnan(y)).location_changes(y, z)
        found = self.standardised(self._at(np.asarray(y, np.float64), np).standard, np.asarray(z, np.float64), np)
        score = found.residuals * np.exp(-self.log_scale.on_host(found.z))
        return np.einsum("kn,ksn->ks", score, self.location_errors.at(found.z))

    def dependence(self) -> np.ndarray:
        """Information of all statistics about each coordinate, `(D,)`."""
        return np.asarray(self.region.weights)

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Whether an observation `(..., n_raw)` is beyond a bound at `z` `(..., D)`, or nearer than its width."""
        kept = np.asarray(y, np.float64)[..., list(self.transform.kept)]
        return self.support.outside_support((kept - self.transform.centre) / self.transform.scale, z)

    def informativeness(self) -> tuple[str, np.ndarray]:
        """As `Surrogate.informativeness`: the mutual information of each raw statistic alone and the parameters.

        `log(1 + sum_d information_d) / 2` with the Fisher information of the location, `location_information`, where a
        prior has 1 in each coordinate: as if the location were linear and prior and noise normal. 0 for constant
        statistics.
        """
        found = np.zeros(self.transform.num_raw)
        found[list(self.transform.kept)] = 0.5 * np.log1p(np.sum(self.location_information, axis=1))
        return "mutual information", found

    def describe(self) -> Mapping[str, Any]:
        """How location, scale and transformations were fitted, and how well: text, and numbers for each statistic."""
        density, curved_map = self.density, self.decorrelation.curved
        unusual = {"embedded as they are": self.unmoved, "heavy tails around a line": self.support.side == AROUND}
        # A log scale that varies by more than this over the simulations changes
        changes = np.std(self.log_scale.on_host(np.asarray(self.simulated)[:300]), axis=0) > 0.1
        explained = -np.expm1(-2.0 * np.maximum(np.asarray(self.improvements.location), 0.0))
        return {
            "form": "location-scale kernel means likelihood, an extension of Hsu and Ramos (2019)",
            "location": f"{between(f'{explained.min():.0%}', f'{explained.max():.0%}')} of the variance of statistics, "
            f"held out; curved: {self._list(np.count_nonzero(self.location.rbf, axis=1) > 0)}",
            "scale": f"changes with the parameters: {self._list(changes)}",
            **{name: self._list(np.asarray(which)) for name, which in unusual.items() if np.any(which)},
            "support bounds": self._list(np.abs(self.support.side) == 1.0),
            # A marginal transformation whose `arcsinh` has a larger standard deviation than this is curved
            "marginal transformations": f"curved: {self._list(np.asarray(self.marginals.scale) > 0.5)}",
            "held-out improvement, nats": ", ".join(
                f"{part} {round(float(np.sum(nats)), 2) + 0.0:.2f}" for part, nats in vars(self.improvements).items()
            ),
            **({} if curved_map is None else {"given those before": self._list(curved_map.used())}),
            **(
                {}
                if density.apart is None
                else {
                    "residuals": f"each by itself, a product of their densities, in a mixture "
                    f"with weight {float(density.proportion):.0%}"
                }
            ),
            "eps": float(density.together.eps),
            "beta": float(density.together.weights.beta),
            "mutual information": self.informativeness()[1],
        }

    def describe_observation(self, y: Any) -> str:
        """Where an observation `(n_raw,)` lies among the simulations, in a sentence."""
        if self.transform.lacks(y):
            return self.marginal(~np.isnan(y)).describe_observation(y)
        self.transform.check(y)
        place = numpy_function(StatisticsTransform.forward)(self.transform, np.asarray(y, np.float64))
        low, high = np.asarray(self.simulated_range)
        outside, worst = (place < low) | (place > high), int(np.argmax(np.abs(place)))
        where = "within the simulated range of all statistics"
        if outside.any():
            where = f"outside the simulated range of {self._list(outside)}: what follows is extrapolated in the data"
        return (
            f"{where}; farthest from the middle in statistic {self.transform.label(self.transform.kept[worst])}, by "
            f"{np.sinh(abs(place[worst])):.2g} robust standard deviations"
        )

    def _list(self, chosen: np.ndarray) -> str:
        """Raw numbers of the statistics that are marked, `(n,)`, in words."""
        numbers = [self.transform.label(self.transform.kept[i]) for i in np.flatnonzero(chosen)]
        if len(numbers) in (0, len(chosen)):
            return "all statistics" if numbers else "none"
        more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
        return f"statistics {', '.join(numbers[:SHOWN])}{more}"
