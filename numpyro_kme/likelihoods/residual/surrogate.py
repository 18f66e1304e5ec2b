"""What the residual form has learnt: a likelihood to evaluate, and a report for a person."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, host, in_present_precision, numpy_function
from numpyro_kme.kernels.base import register, take
from numpyro_kme.likelihoods.base import LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.extrapolation import Region, warn_if_out_of_distribution
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap
from numpyro_kme.likelihoods.residual.density import ResidualAt, ResidualDensity
from numpyro_kme.likelihoods.residual.location_scale import Location
from numpyro_kme.likelihoods.residual.ridge import RidgeFunctions
from numpyro_kme.likelihoods.residual.support import AROUND, SupportBounds
from numpyro_kme.likelihoods.statistics import MarginalTransform, StatisticsTransform

MISFIT = 3.0
"""Standard deviations by which a statistic that does not fit is off: one in 400 of those that do."""

MIN_SIMULATIONS = 10
"""Fewer simulations than this cannot be held out from."""


@register
class Standardisation:
    """The map from statistics to residuals at coordinates.

    Attributes:
        support: Bounds `e` of the statistics.
        marginals: Transformations `T` of standardised statistics, or of what bounds put in their place.
        functions: Locations `mu` of the `n` statistics, and then their log scales `log sigma`.
    """

    support: SupportBounds
    marginals: MarginalTransform
    functions: RidgeFunctions

    def __call__(self, standard: Any, z: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """Residuals of statistics `(..., n)`, in robust standard deviations, at coordinates `(..., D)`, and the logs of
        their derivatives by the statistics, `(..., n)` both."""
        return self.given(self.moments(z, xp), standard, z, xp)

    def moments(self, z: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """Locations and log scales at coordinates `(..., D)`, `(..., n)` both."""
        location, log_scale = xp.split(self.functions(z, xp).astype(z.dtype), 2, axis=-1)
        return location, log_scale

    def given(self, moments: tuple[Any, Any], standard: Any, z: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """The same, with these locations and log scales."""
        (location, log_scale), (bounded, log_slope) = moments, self.support(standard, z, xp)
        u = (self.marginals(bounded, xp) - location) * xp.exp(-log_scale)
        return u, self.marginals.log_slope(bounded, xp) + log_slope - log_scale

    def inverse(self, moments: tuple[np.ndarray, np.ndarray], u: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Statistics `(..., n)` with these residuals, locations and log scales."""
        location, log_scale = moments
        return self.support.inverse(self.marginals.inverse(location + u * np.exp(log_scale)), z)

    def some(self, chosen: np.ndarray) -> "Standardisation":
        """Keep the statistics with these numbers."""
        support, marginals = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], (self.support, self.marginals))
        n = len(np.asarray(self.marginals.scale))
        functions = self.functions.combined(np.eye(2 * n)[np.append(chosen, n + chosen)])
        return Standardisation(support, marginals, functions)

    def information(self, standard: np.ndarray, z: np.ndarray, step: float = 1e-4) -> np.ndarray:
        """Fisher information of each statistic about the coordinates, of normal residuals, `(n, D, D)`.

        The mean over simulations, `(m, n)` at `(m, D)`, of the products of the derivatives of a residual, and of its
        log slope, by differences over twice a `step`.
        """
        steps = step * np.eye(z.shape[1])
        changes = [np.subtract(self(standard, z + one, np), self(standard, z - one, np)) for one in steps]
        slopes = np.divide(changes, 2.0 * step)
        return np.einsum("dkmn,ekmn->nde", slopes, slopes) / len(z)


@register
class ResidualSurrogate(Surrogate):
    r"""A learnt location-scale kernel means likelihood.

    Attributes:
        transform: Which statistics vary, and the check of observations.
        region: Which parameters were simulated; weights are the information of all statistics about each coordinate.
        information: Fisher information of each statistic about the coordinates, `(n, D, D)`.
        standardisation: Statistics to residuals.
        decorrelation: Triangular map `V`.
        density: Density `p(v | z)` of decorrelated residuals.
        simulated_range: Lowest and highest simulated statistics, transformed, `(2, n)`.
        improvements: What location, scale and decorrelation add to the held-out log score by each statistic, over
            constants and independence, `(n,)`, and the shape, over independent standard normals, a scalar; in nats.
        residuals: Held-out standardised residuals `u` of the simulations, `(m, n)`, from which `marginal` learns.
        unmoved: Which statistics are embedded as they are, with location 0 and scale 1, `(n,)`.
        simulated: Coordinates of the simulations, `(m, D)`.
        location: Hyperparameters of the locations.
        form: The settings (static).
    """

    transform: StatisticsTransform
    region: Region
    information: Array
    standardisation: Standardisation
    decorrelation: TriangularMap
    density: ResidualDensity
    simulated_range: Array
    improvements: Mapping[str, Array]
    residuals: Array
    unmoved: Array
    simulated: Array
    location: Location
    form: Any = field(metadata=dict(static=True))

    @property
    def moves(self) -> bool:
        """Implement `Surrogate.moves`."""
        return not np.all(self.unmoved)

    def named(self, names: Sequence[str]) -> "ResidualSurrogate":
        """Implement `Surrogate.named`."""
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
        """Implement `Surrogate.at_rows`."""
        rows = rows.reshape(*rows.shape[:axes], -1)
        return self._at(rows, np) if isinstance(rows, np.ndarray) else in_present_precision(self)._at(rows)

    def _at(self, y, xp=jnp) -> "ResidualAt":
        kept, scale = y[..., np.array(self.transform.kept)], xp.asarray(self.transform.scale)
        standard, nothing = (kept - self.transform.centre) / scale, np.zeros(0)
        return ResidualAt(self, standard, nothing, nothing, -xp.sum(xp.log(scale)))

    def one_by_one(self, z: np.ndarray) -> "OneByOne":
        """The statistics that vary, each given those before it, at points `(k, D)`."""
        z = np.asarray(self.region.nearest(z, np))
        return OneByOne(self, z, self.standardisation.moments(z, np))

    @cached_property
    def brief(self) -> "ResidualSurrogate":
        """Implement `LikelihoodAt.brief`: with the density in float32."""
        return replace(self, density=host.to_host(self.density, np.float32))

    def within(self, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> LikelihoodAt:
        """Implement `Surrogate.within`: the integral of the density over the intervals."""
        inside = np.isnan(rows[0]) & (np.isfinite(low[0]) | np.isfinite(high[0]))
        learnt = self.marginal(~np.isnan(rows[0]) | inside, inside)
        kept, scale = np.array(learnt.transform.kept), np.asarray(learnt.transform.scale)
        first = len(kept) - np.count_nonzero(inside[kept])
        y, low, high = ((part[:, kept] - learnt.transform.centre) / scale for part in (rows, low, high))
        ends = y[:, :first], low[:, first:], high[:, first:]
        return ResidualAt(learnt, *ends, -np.sum(np.log(scale[:first])))

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
        residuals, unmoved = self.residuals[:, chosen], self.unmoved[chosen]
        learnt, information = self.form.dependence(self.simulated, residuals, unmoved), self.information[chosen]
        known = {name: self.improvements[name][chosen] for name in ("location", "scale")}
        return replace(
            self,
            transform=self.transform.some(chosen),
            region=Region.of(self.simulated, np.diagonal(information.sum(axis=0))),
            information=information,
            standardisation=self.standardisation.some(chosen),
            decorrelation=learnt.decorrelation,
            density=learnt.density,
            simulated_range=self.simulated_range[:, chosen],
            improvements={**known, **learnt.improvements},
            residuals=residuals,
            unmoved=unmoved,
            location=take(self.location, chosen),
        )

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Tell whether an observation `(..., n_raw)` is beyond a bound at `z` `(..., D)`, or nearer than its width."""
        kept = np.asarray(y, np.float64)[..., list(self.transform.kept)]
        return self.standardisation.support.outside_support((kept - self.transform.centre) / self.transform.scale, z)

    def informativeness(self) -> tuple[str, np.ndarray]:
        """Implement `Surrogate.informativeness`: the mutual information of each raw statistic alone and the parameters.

        `log(1 + sum_d information_d) / 2` with the Fisher information of location and scale, `information`, where a
        prior has 1 in each coordinate: as if both were linear and prior and noise normal. 0 for constant statistics.
        """
        found = np.zeros(self.transform.num_raw)
        found[list(self.transform.kept)] = 0.5 * np.log1p(np.trace(self.information, axis1=1, axis2=2))
        return "mutual information", found

    def describe(self) -> Mapping[str, Any]:
        """Report how location, scale and transformations were fitted, and how well: text, and numbers by statistic."""
        density, curves, side = self.density, self.decorrelation.curved, self.standardisation.support.side
        functions, marginals = self.standardisation.functions, self.standardisation.marginals
        # A log scale that varies by more than this over the simulations changes
        changes = np.std(np.split(functions(np.asarray(self.simulated)[:300], np), 2, axis=1)[1], axis=0) > 0.1
        explained = -np.expm1(-2.0 * np.maximum(np.asarray(self.improvements["location"]), 0.0))
        ends = dict.fromkeys((f"{explained.min():.0%}", f"{explained.max():.0%}"))
        gained = [f"{part} {round(float(np.sum(nats)), 2) + 0.0:.2f}" for part, nats in self.improvements.items()]
        before = np.zeros(len(changes)) if curves is None else np.any(np.split(curves.linear, 2), axis=(0, 2))
        mixed = (
            f"each by itself, a product of their densities, in a mixture with weight {float(density.proportion):.0%}"
        )
        told = {
            "form": "location-scale kernel means likelihood, an extension of Hsu and Ramos (2019)",
            "location": f"{' to '.join(ends)} of the variance of statistics, "
            f"held out; curved: {self._list(np.any(functions.rbf, axis=1)[: len(changes)])}",
            "scale": f"changes with the parameters: {self._list(changes)}",
            "embedded as they are": self._list(np.asarray(self.unmoved)),
            "heavy tails around a line": self._list(np.asarray(side == AROUND)),
            "support bounds": self._list(np.abs(side) == 1.0),
            # A marginal transformation whose `arcsinh` has a larger standard deviation than this is curved
            "marginal transformations": self._list(np.asarray(marginals.scale) > 0.5),
            "held-out improvement, nats": ", ".join(gained),
            "given those before": self._list(before),
            "residuals": mixed if density.apart is not None else "none",
            "eps": float(density.together.eps),
            "beta": float(density.together.beta),
            "mutual information": self.informativeness()[1],
        }
        return {name: value for name, value in told.items() if not isinstance(value, str) or value != "none"}

    def describe_observation(self, y: Any, z: np.ndarray) -> Mapping[str, str]:
        """Implement `Surrogate.describe_observation`, of one `(n_raw,)`."""
        if self.transform.lacks(y):
            return self.marginal(~np.isnan(y)).describe_observation(y, z)
        self.transform.check(y)
        y = np.asarray(y, np.float64)
        place = numpy_function(StatisticsTransform.forward)(self.transform, y)
        low, high = np.asarray(self.simulated_range)
        outside, worst = (place < low) | (place > high), int(np.argmax(np.abs(place)))
        where = "within the simulated range of all statistics"
        if outside.any():
            where = f"outside the simulated range of {self._list(outside)}: what follows is extrapolated in the data"
        apart = self._apart(y, z)
        misfit = int(np.argmax(apart))
        fits = f"all statistics lie within {MISFIT:g} sd of simulations at the draws"
        if apart[misfit] > MISFIT:
            others = self._list((apart > MISFIT) & (np.arange(len(apart)) != misfit))
            label = self.transform.label(self.transform.kept[misfit])
            fits = f"{label} is {apart[misfit]:.2g} sd from simulations at the draws; others so far: {others}"
        far = f"{np.sinh(abs(place[worst])):.2g} robust standard deviations"
        label = self.transform.label(self.transform.kept[worst])
        return {"observation": f"{where}; farthest from the middle: {label}, by {far}", "fit": fits}

    def misfit(self, y: Any, z: np.ndarray) -> dict[str, float]:
        """Implement `Surrogate.misfit`, of one `(n_raw,)`."""
        if self.transform.lacks(y):
            return self.marginal(~np.isnan(y)).misfit(y, z)
        names = map(self.transform.label, self.transform.kept)
        return dict(zip(names, self._apart(np.asarray(y, np.float64), z).tolist()))

    def _apart(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Median size of the residuals of statistics that vary, at points `(k, D)`, `(n,)`; 0 without a location."""
        standard = (y[list(self.transform.kept)] - self.transform.centre) / self.transform.scale
        residuals = self.standardisation(np.broadcast_to(standard, (len(z), len(standard))), z, np)[0]
        return np.where(self.unmoved, 0.0, np.median(np.abs(residuals), axis=0))

    def _list(self, chosen: np.ndarray) -> str:
        """Names of the statistics that are marked, `(n,)`, of the first ten where there are more."""
        names = [self.transform.label(self.transform.kept[i]) for i in np.flatnonzero(chosen)]
        if len(names) in (0, len(chosen)):
            return "all statistics" if names else "none"
        return ", ".join(names[:10]) + f" and {len(names) - 10} more" * (len(names) > 10)


class OneByOne(NamedTuple):
    """Statistics that vary, each given those before it, at points.

    Attributes:
        learnt: The likelihood.
        z: The points, `(k, D)`.
        moments: Locations and log scales of the statistics there, `(k, n)` both.
    """

    learnt: ResidualSurrogate
    z: np.ndarray
    moments: tuple[np.ndarray, np.ndarray]

    def given(self, i: int, u: np.ndarray) -> "OneStatistic":
        """Statistic number `i`, where those before it have these residuals, `(k, i)`."""
        learnt, (location, log_scale) = self.learnt, (part[:, [i]] for part in self.moments)
        shift, log_spread = learnt.decorrelation.given(i, u, self.z)
        moments = location + np.exp(log_scale) * shift, log_scale + log_spread
        leaves = learnt.standardisation.support, learnt.standardisation.marginals
        support, marginals = jax.tree.map(lambda leaf: np.asarray(leaf)[[i]], leaves)
        maps = Standardisation(support, marginals, learnt.standardisation.functions)
        centre, scale = np.asarray(learnt.transform.centre)[i], np.asarray(learnt.transform.scale)[i]
        return OneStatistic(maps, moments, self.z, shift, log_spread, centre, scale)


class OneStatistic(NamedTuple):
    """One statistic given others, at points `(k, D)`: maps of its values to decorrelated residuals, and back.

    Attributes:
        maps: Its transformations.
        moments: Its location and log scale, `(k, 1)` both.
        z: The points.
        shift, log_spread: Location and log scale of its residual, `(k, 1)` both.
        centre, scale: Units of its values.
    """

    maps: Standardisation
    moments: tuple[np.ndarray, np.ndarray]
    z: np.ndarray
    shift: np.ndarray
    log_spread: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    def decorrelated(self, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Residual of values `(k,)` or of one, and the log of its derivative, `(k,)` both."""
        standard = np.reshape((y - self.centre) / self.scale, (-1, 1))
        v, log_slope = self.maps.given(self.moments, standard, self.z, np)
        return v[:, 0], log_slope[:, 0] - np.log(self.scale)

    def value(self, v: np.ndarray) -> np.ndarray:
        """Values with decorrelated residuals `(k,)`."""
        return self.centre + self.scale * self.maps.inverse(self.moments, v[:, None], self.z)[:, 0]

    def residual(self, v: np.ndarray) -> np.ndarray:
        """Residuals of these, which are not decorrelated."""
        return self.shift[:, 0] + np.exp(self.log_spread[:, 0]) * v
