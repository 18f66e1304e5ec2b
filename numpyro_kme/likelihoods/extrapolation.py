r"""The simulated region: the parameters that a likelihood was learnt from, in its coordinates, distances from it, and
which of them are the same.

The region is the box of the simulated coordinates. A point `z` is outside by a distance in which each coordinate
counts as much as the likelihood depends on it,

$$ r(z) = \Big( \sum_d g_d (z_d - \tilde z_d)^2 \Big)^{1/2}, $$

with the nearest point `z~` of the box and weights `g`, such as the information of the statistics about the coordinates.
A point is beyond the simulated parameters where `r` is larger than that of every simulation outside the box of the
others, and than rounding: with probability of about `1 / (m + 1)` for a further simulation, in any number of
dimensions.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import Array, checks
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.statistics import StatisticsTransform

NEGLIGIBLE = 0.05
"""Share of draws beyond the simulated parameters that is not worth a warning: of 180 posteriors in 5 to 20 dimensions
12 had 1 to 5% there, whose largest errors of a mean were .2 to .8 standard deviations, where those of others were .15
to .4; standard errors are to tell these."""


@register
class Region:
    """The simulated coordinates, a value.

    Attributes:
        low, high: Smallest and largest coordinates, `(D,)`.
        weights: `g`, `(D,)`.
        limit: Largest `r` of a simulation outside the box of the others.
    """

    low: Array
    high: Array
    weights: Array
    limit: Array

    @classmethod
    def of(cls, z: np.ndarray, weights: np.ndarray, rounding: float = 1e-5) -> "Region":
        """The region of coordinates `(m, D)`, which are known to `rounding` of its width: some are float32."""
        first = Repeats.of(z).first  # draws that share coordinates are one simulation
        z = z[first] if len(first) > 1 else z
        ranked = np.sort(z, axis=0)
        outside = np.maximum(z - ranked[-2], 0.0) + np.maximum(ranked[1] - z, 0.0)
        width = rounding * (ranked[-1] - ranked[0])  # more than none, where several calls have the same parameters
        limit = np.sqrt(max(np.max(np.square(outside) @ weights), np.square(width) @ weights))
        return cls(ranked[0], ranked[-1], np.asarray(weights), limit)

    def beyond(self, z: np.ndarray) -> np.ndarray:
        """Tell whether points `(..., D)` are farther outside than every simulation is of the others."""
        return np.sqrt(np.square(z - np.clip(z, self.low, self.high)) @ self.weights) > self.limit

    def nearest(self, z: Any, xp: Any = jnp) -> Any:
        """`z~` for points `(..., D)`: itself in the box, and smoothly about the nearest point of the box outside."""
        low, high = xp.stack([self.low, self.high]).astype(z.dtype)
        # beyond the box points are followed by no more than this fraction of its width
        inside, step = xp.clip(z, low, high), 0.02 * (high - low)
        return inside + step * xp.tanh((z - inside) / step)


def without_diagonal(log_gram: np.ndarray) -> np.ndarray:
    """Logarithms `(m, m)` with `-inf` on the diagonal: no simulation counts for itself."""
    return np.where(np.eye(len(log_gram), dtype=bool), -np.inf, log_gram)


def warn_if_out_of_distribution(
    transform: StatisticsTransform | None, data: Any, y: Any, log_nearest: Any = 0.0, usual: Any = 0.0
) -> None:
    """Warn if the observation is much further from every simulation than simulations are from each other.

    In squared distances: further than nine more than twice the usual one; or, in any one statistic, further outside the
    simulated range than a quarter of it, on the standardised scale.

    Args:
        transform: Raw statistics to standardised ones; without, single statistics are not looked at.
        data: Standardised statistics of the simulations, or their extremes, `(..., n)`.
        y: The observation.
        log_nearest: Log data kernel at the simulation nearest to the observation, relative to the observation itself.
        usual: That of 99% of the simulations is larger, at the nearest other one.
    """
    advice = "Check the simulator, the prior and units: more simulations help only if the model can make such data."
    if transform is not None:
        ends, standardised = np.stack([np.min(data, axis=0), np.max(data, axis=0)]), transform.forward(np.asarray(y))
        outside = np.maximum(ends[0] - standardised, standardised - ends[1]) > 0.25 * (ends[1] - ends[0])
        if outside.any():
            kept = zip(transform.kept, *(transform.centre + transform.scale * np.sinh(ends)))
            names = [
                f"{transform.label(i)} (observed {np.asarray(y)[i]:.6g}, simulated {low:.6g} to {high:.6g})"
                for (i, low, high), far in zip(kept, outside)
                if far
            ]
            told = f"The observation lies far outside all simulations in {', '.join(names)}. {advice}"
            checks.warn(told, about=f"{np.asarray(y)}, far outside")
            return
    # log kernel value that is never far: three length scales of a Gaussian kernel
    if float(log_nearest) < 2.0 * min(float(usual), 0.0) - 4.5:
        checks.warn(
            f"The observation lies far outside all simulations: log data kernel {float(log_nearest):.3g} at the "
            f"nearest one, where 99% of the simulations have a neighbour above {float(usual):.3g}. {advice}"
        )


def extrapolation_message(site: str, proportion: float, advice: str, calls: np.ndarray | None = None) -> str:
    """The warning of a proportion of draws beyond the simulated parameters of a site, at its `calls` `(k, dims)` with
    parameters of their own, and how to simulate more."""
    places = [", ".join(map(str, place)) for place in ([] if calls is None else calls.tolist()) if place]
    shown = "; ".join(places[:5]) + ("; ..." if len(places) > 5 else "")
    where = f", at {len(places)} of its calls, with covariates or parameters of their own ({shown})" if places else ""
    return (
        f"{proportion:.2%} of the posterior draws lie beyond the simulated parameters of site {site!r}{where}, where "
        f"no simulation supports the likelihood. {advice} Look at the prior, too."
    )


@dataclass(frozen=True)
class Repeats:
    """Groups of rows of a table that are the same.

    Attributes:
        first: Numbers of the rows that are not seen before, in order, `(d,)`.
        kind: To which of those each row belongs, `(m,)`, from 0 to `d - 1`.
    """

    first: np.ndarray
    kind: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray) -> "Repeats":
        """Group the rows of a table `(m, p)`."""
        rows = np.lexsort(table.T)
        new = np.append(True, (table[rows[1:]] != table[rows[:-1]]).any(axis=1))
        first, kind = rows[new], np.empty(len(rows), int)
        order = np.argsort(first)
        kind[rows] = np.argsort(order)[np.cumsum(new) - 1]
        return cls(first[order], kind)

    def __len__(self) -> int:
        return len(self.first)

    def reduced(self, ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Sums, or what else `ufunc` makes, of the rows of each kind, `(d, ...)`, of values `(m, ...)`."""
        order = np.argsort(self.kind, kind="stable")
        return ufunc.reduceat(values[order], np.searchsorted(self.kind[order], np.arange(len(self))))

    def at_random(self, rng: np.random.Generator) -> np.ndarray:
        """Numbers of all rows in random order, first one of each kind, `(m,)`."""
        order = rng.permutation(len(self.kind))
        first = np.zeros(len(order), bool)
        first[np.unique(self.kind[order], return_index=True)[1]] = True
        return np.concatenate([order[first], order[~first]])

    def halves(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of all rows of half of the kinds, at random, and of those of the others."""
        of_first = rng.permutation(len(self))[self.kind] < len(self) // 2
        return np.flatnonzero(of_first), np.flatnonzero(~of_first)
