"""What the residual form has learnt: a likelihood to evaluate, and a report for a person."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import in_present_precision, on_host
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods import out_of_distribution
from numpyro_kme.likelihoods.base import Surrogate
from numpyro_kme.likelihoods.region import Region
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap
from numpyro_kme.likelihoods.residual.density import ResidualDensity
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions
from numpyro_kme.likelihoods.residual.likelihood import ResidualAt
from numpyro_kme.likelihoods.residual.marginals import MarginalTransform, log_cosh
from numpyro_kme.likelihoods.residual.support import SupportBounds
from numpyro_kme.likelihoods.statistics import StatisticsTransform

NEAR = np.zeros(())
"""Log kernel at the nearest simulation: only the range of each statistic is looked at."""

CURVED = 0.5
"""A marginal transformation whose `arcsinh` has a larger standard deviation than this is curved."""

CHANGING = 0.1
"""A log scale that varies by more than this over the simulations changes."""

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

    def sentence(self) -> str:
        """Sums over the statistics."""
        parts = {
            "location": self.location,
            "scale": self.scale,
            "decorrelation": self.decorrelation,
            "shape": self.shape,
        }
        return ", ".join(f"{name} {np.sum(value):.2f}" for name, value in parts.items())


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ResidualSurrogate(Surrogate):
    """A learnt location-scale kernel means likelihood.

    Attributes:
        transform: Which statistics vary, and the check of observations.
        region: Which parameters were simulated; weights are the information of all statistics about each coordinate.
        squared_slopes: Mean squares of the slopes of locations and of log scales over the simulations, `(2, n, D)`.
        support: Bounds `e` of the statistics.
        marginals: Transformations `T` of standardised statistics, or of what bounds put in their place.
        location: Locations `mu`.
        log_scale: Log scale functions `log sigma`.
        decorrelation: Triangular map `V`.
        density: Density `p(v | z)` of decorrelated residuals.
        simulated_range: Lowest and highest simulated statistics, transformed, `(2, n)`.
        improvements: What the parts add to the held-out log score.
    """

    transform: StatisticsTransform
    region: Region
    squared_slopes: ArrayLike
    support: SupportBounds
    marginals: MarginalTransform
    location: RidgeFunctions
    log_scale: RidgeFunctions
    decorrelation: TriangularMap
    density: ResidualDensity
    simulated_range: ArrayLike
    improvements: ScoreImprovements

    @property
    def dim(self):
        """Number of coordinates."""
        return np.shape(self.density.points)[1]

    @property
    def num_simulations(self):
        """Number of simulations."""
        return np.shape(self.density.points)[0]

    def at(self, y: Any) -> "ResidualAt":
        """The likelihood at one observation `(n_raw,)`; a concrete `y` is checked and prepared on the host in float64.

        Raises:
            ValueError: If `y` has the wrong shape, is not finite, or differs from a statistic that every simulation
                shares.
        Warns:
            UserWarning: If `y` lies far outside all simulations.
        """
        if not checks.is_concrete((y, self)):
            return in_present_precision(self)._at(jnp.asarray(y))
        self.transform.check(y)
        y = np.array(y, np.float64)
        out_of_distribution.warn_if_out_of_distribution(NEAR, NEAR, self.transform, self.simulated_range, y)
        return on_host(_prepare)(self, y)

    def _at(self, y) -> "ResidualAt":
        kept, scale = jnp.asarray(y)[np.array(self.transform.kept)], jnp.asarray(self.transform.scale)
        log_jacobian = -jnp.sum(jnp.log(scale)) - jnp.sum(jnp.asarray(self.decorrelation.log_scale))
        parts = (
            self.region,
            self.squared_slopes,
            self.support,
            self.marginals,
            self.location,
            self.log_scale,
            self.decorrelation,
            self.density,
        )
        return ResidualAt(*parts, (kept - self.transform.centre) / scale, log_jacobian, y)

    def dependence(self) -> np.ndarray:
        """Information of all statistics about each coordinate, `(D,)`."""
        return np.asarray(self.region.weights)

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Whether an observation `(..., n_raw)` is beyond a bound at `z` `(..., D)`, or nearer than its width."""
        kept = np.asarray(y, np.float64)[..., list(self.transform.kept)]
        return self.support.outside_support((kept - self.transform.centre) / self.transform.scale, z)

    def information(self) -> np.ndarray:
        r"""Information of each raw statistic about each coordinate, `(n_raw, D)`.

        $E_z[(\partial \mu_i / \partial z_d)^2 / \sigma_i(z)^2]$ over the simulations: the Fisher information of the
        location, where a prior has 1 in each coordinate. 0 for constant statistics.
        """
        information = np.zeros((self.transform.num_raw, self.dim))
        information[list(self.transform.kept)] = self._over_simulations()[0]
        return information

    def relevance(self) -> np.ndarray:
        """Relevance of each raw statistic alone, `(n_raw,)`: `log(1 + sum_d information) / 2`, in nats."""
        return 0.5 * np.log1p(self.information().sum(axis=1))

    def describe(self) -> Mapping[str, Any]:
        """How location, scale and transformations were fitted, and how well: text, and numbers for each statistic."""
        density = self.density
        changes = self._over_simulations()[1] > CHANGING
        curved = np.count_nonzero(self.location.rbf, axis=1) > 0
        explained = -np.expm1(-2.0 * np.maximum(np.asarray(self.improvements.location), 0.0))
        return {
            "form": "location-scale kernel means likelihood",
            "location": f"{explained.min():.0%} to {explained.max():.0%} of the variance of statistics, held out; "
            f"curved: {self._list(curved)}",
            "scale": f"changes with the parameters: {self._list(changes)}",
            "support bounds": self._list(np.asarray(self.support.side) != 0.0),
            "marginal transformations": f"curved: {self._list(np.asarray(self.marginals.scale) > CURVED)}",
            "held-out improvement, nats": self.improvements.sentence(),
            "eps": np.asarray(density.eps),
            "beta": float(density.beta),
            "lam": float(density.ridge) / self.num_simulations,
            "relevance": self.relevance(),
        }

    def describe_observation(self, y: Any) -> str:
        """Where an observation `(n_raw,)` lies among the simulations, in a sentence."""
        self.transform.check(y)
        place = on_host(StatisticsTransform.forward)(self.transform, np.asarray(y, np.float64))
        low, high = np.asarray(self.simulated_range)
        outside = (place < low) | (place > high)
        worst = int(np.argmax(np.abs(place)))
        within = (
            "within the simulated range of all statistics"
            if not outside.any()
            else f"outside the simulated range of {self._list(outside)}: what follows is extrapolated in the data"
        )
        return (
            f"{within}; farthest from the middle in statistic {self.transform.kept[worst]}, by "
            f"{np.sinh(abs(place[worst])):.2g} robust standard deviations"
        )

    def _over_simulations(self) -> tuple[np.ndarray, np.ndarray]:
        """Information, `(n, D)`, and standard deviation of each log scale, `(n,)`, over at most 300 simulations."""
        points = np.asarray(self.density.points)
        log_scale = self.log_scale.on_host(points[:300])
        parts = self.support, self.marginals, self.location, self.log_scale
        return information_and_slopes(*parts, points)[0], np.std(log_scale, axis=0)

    def _list(self, chosen: np.ndarray) -> str:
        """Raw numbers of the statistics that are marked, `(n,)`, in words."""
        numbers = [str(self.transform.kept[i]) for i in np.flatnonzero(chosen)]
        if len(numbers) in (0, len(chosen)):
            return "all statistics" if numbers else "none"
        more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
        return f"statistics {', '.join(numbers[:SHOWN])}{more}"


def information_and_slopes(
    support: SupportBounds,
    marginals: MarginalTransform,
    location: RidgeFunctions,
    log_scale: RidgeFunctions,
    z: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Information of each statistic about each coordinate, and mean squared slopes, over at most 300 points `(m, D)`.

    A bound moves the location too, in units of the transformed statistic in its middle.

    Returns:
        Information, `(n, D)`, and mean squares of the slopes of locations and log scales, `(2, n, D)`.
    """
    z, middle = z[:300], marginals.middle
    log_slope = np.asarray(marginals.log_slope(middle)) - log_cosh(middle, np) - np.log(support.width)
    slopes = location.slopes(z) + np.where(support.side, np.exp(log_slope), 0.0)[:, None] * support.slopes(z)
    precision = np.exp(-2.0 * log_scale.on_host(z))[:, :, None]
    return np.mean(np.square(slopes) * precision, axis=0), np.mean(np.square([slopes, log_scale.slopes(z)]), axis=1)


@jax.jit
def _prepare(surrogate, y):
    return surrogate._at(y)
