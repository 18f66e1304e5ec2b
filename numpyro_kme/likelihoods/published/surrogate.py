"""What the published form has learnt: a likelihood to evaluate, its held-out scores, and a report for a person."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import Array, checks, full_precision
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.kernels.data_sets import WithLength
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.base import KernelExpansion, LikelihoodAt, Surrogate, log_positive_part, to_signed_log
from numpyro_kme.likelihoods.extrapolation import Region, warn_if_out_of_distribution
from numpyro_kme.likelihoods.published.learning import Hyperparameters
from numpyro_kme.likelihoods.published.leave_one_out import Summary, log_integral, log_kernels, summarise
from numpyro_kme.likelihoods.published.solves import Solution
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.samplers.importance import effective_size

DEGREES = 4.0
"""Degrees of freedom of the floor's shape."""

SMALLEST_SINGLE = 1e-5
"""Smallest `lam` for solves in float32, whose relative error is about `1e-7 / lam`."""


@register
class KernelMeansAt(LikelihoodAt):
    """The published form at one observation, or at several: all but kernel and points then have axes of these in front.

    Attributes:
        terms: `q(y | .)` as a weighted sum of kernels; the largest fitted value at the simulations has log
            `terms.log_scale + log_largest`.
        log_largest: See `terms`.
        centre: Mean of the simulated coordinates, weighted by how alike their data are to `y`, `(D,)`.
        inverse_factor: Inverse of the lower Cholesky factor of their weighted covariance, widened by the length scales,
            `(D, D)`.
    """

    terms: KernelExpansion
    log_largest: Array
    centre: Array
    inverse_factor: Array

    def expansion(self):
        """The weighted sum of kernels that `q(y | .)` is."""
        return self.terms

    @full_precision
    def signed_log(self, z):
        """Sign and log absolute value at points `(..., D)`; nothing underflows, however far the point."""
        log_kernel, xp = self._log_kernels(z)
        largest = xp.max(log_kernel, axis=-1)
        largest = largest if xp is np else jax.lax.stop_gradient(largest)
        value = self._sum(xp.exp(log_kernel - largest[..., None]), xp)
        return to_signed_log(value, largest + self.terms.log_scale)

    @full_precision
    def log_density(self, z):
        r"""`log (q + sqrt(q^2 + c^2)) / 2`, with a floor `c(z)` that falls off around the simulations like `y`.

        `c(z) = 0.01 max_j q(y | z_j) (1 + r(z)^2 / 4)^{-(4 + D) / 2}`, where `r` is the Mahalanobis distance from the
        simulated coordinates weighted by how alike their data are to `y`. Where `q` is above a tenth of its maximum,
        the error of `log q` is below `0.003`; where `q` vanishes or is negative, the gradient is that of the floor,
        finite, and leads back. The floor's tails are those of a Student distribution with 4 degrees of freedom.
        """
        log_kernel, xp = self._log_kernels(z)
        apart = xp.asarray(z) - self.centre
        white = xp.einsum("...ij,...j->...i", xp.asarray(self.inverse_factor), apart)
        log_shape = -0.5 * (DEGREES + white.shape[-1]) * xp.log1p(xp.sum(white * white, axis=-1) / DEGREES)
        # height of the floor, as a fraction of the largest value of `q(y | .)` at the simulations
        log_floor = self.log_largest + np.log(0.01) + log_shape
        return log_positive_part(self._sum(xp.exp(log_kernel), xp), log_floor) + self.terms.log_scale

    def _log_kernels(self, z):
        """Log kernels between points `(..., D)` and simulations, `(..., m)`, and the array namespace."""
        xp, (*lead, dim) = namespace(self, z), np.shape(z)
        found = self.terms.kernel.log_gram(xp.asarray(z).reshape(-1, dim), xp.asarray(self.terms.points))
        return found.reshape(*lead, -1), xp

    def _sum(self, kernels, xp):
        return xp.einsum("...m,...m->...", kernels, xp.asarray(self.terms.weights))


@register
class KernelMeansSurrogate(Surrogate):
    """A learnt kernel means likelihood of the published form.

    Attributes:
        z: Coordinates of the simulations, `(m, D)`.
        data: Standardised statistics `(m, n)`, or the data points as they are.
        hyper: Hyperparameters.
        solution: `L + m lam I`, factorised.
        transform: Raw statistics to standardised ones; `None` where data are compared as they are.
        summary: Held-out quantities of the fit, of 2,000 simulations at most.
        at_bounds: Which hyperparameters ended at a bound of the search, in words (static).
    """

    z: Array
    data: Any
    hyper: Hyperparameters
    solution: Solution
    transform: StatisticsTransform | None
    summary: Summary
    at_bounds: str = field(metadata=dict(static=True))

    @cached_property
    def region(self) -> Region:  # type: ignore[override]
        """Simulated region, in which coordinates count by their inverse squared length scales."""
        z, squared_length = np.asarray(self.z), np.square(self.hyper.parameter_kernel.length_scale)
        return Region.of(z, np.broadcast_to(1.0 / squared_length, z.shape[1]))

    def point(self, y: Any) -> Any:
        """Read one output `(*event)` as the data kernel does."""
        return self.hyper.data_kernel.point(y)

    def at(self, y: Any) -> KernelMeansAt:
        """The likelihood at one observation.

        A concrete `y` is checked and prepared in float64; a traced one is prepared in place. NaN among statistics means
        not observed, as in `marginal`; a traced `y` must have none.

        Raises:
            ValueError: If `y` has the wrong shape, is infinite, or differs from a statistic that all simulations share.
        Warns:
            UserWarning: If `y` lies far outside all simulations.
        Cost: `m` data kernels and two triangular solves.
        """
        if not checks.is_concrete((y, self)):
            return self._at(as_one_point(self.transform, y), y, ())
        if self.transform is not None:
            if self.transform.lacks(y):
                return self.marginal(~np.isnan(y)).at(y)
            self.transform.check(y)
        y = jax.tree.map(lambda leaf: np.array(leaf, bool if np.asarray(leaf).dtype == bool else np.float64), y)
        point, kernel = as_one_point(self.transform, y), self.hyper.data_kernel
        nearest = np.max(log_kernels(kernel, point, self.data)) - log_kernels(kernel, point)[0, 0]
        warn_if_out_of_distribution(self.transform, self.data, y, nearest, self.summary.log_nearest_quantile)
        return self._at(point, y, ())

    def at_rows(self, rows, axes=1):
        """The likelihood at several outputs that need no check."""
        lead, event = rows.shape[:axes], rows.shape[axes:]
        if self.transform is None:
            return self._at(self.hyper.data_kernel.points(rows.reshape(-1, *event)), rows, lead)
        y = rows.reshape(*lead, -1)
        return self._at(self.transform.forward(y.reshape(-1, y.shape[-1])), y, lead)

    @full_precision
    def _at(self, points, y, lead) -> KernelMeansAt:
        """At outputs `y`, which are a batch of `points` that the data kernel compares."""
        kernel, data_kernel, xp = self.hyper.parameter_kernel, self.hyper.data_kernel, namespace(points, self)
        if xp is jnp:
            self._check_precision()
        log_kappa = (log_kernels if xp is np else type(data_kernel).log_gram)(data_kernel, points, self.data)
        largest, norm = xp.max(log_kappa, axis=1), log_integral(data_kernel, self.data)
        kappa, z = xp.exp(log_kappa - largest[:, None]), xp.asarray(self.z)
        centres, weights, fitted = self.solution.solve(self.hyper, z, kappa)
        log_scale = largest if norm is None else largest - norm
        if self.transform is not None:
            log_scale = log_scale + self.transform.log_abs_det_jacobian(y).reshape(-1)
        alike = kappa / xp.sum(kappa, axis=1, keepdims=True)
        centre = alike @ z
        apart = z[None] - centre[:, None]
        dim = z.shape[1]
        few = dim / (dim + effective_size(alike, xp))
        reach = xp.square(xp.minimum(xp.broadcast_to(xp.asarray(kernel.length_scale), dim), 1.0))
        covariance = xp.swapaxes(alike[:, :, None] * apart, 1, 2) @ apart + few[:, None, None] * xp.diag(reach)[None]
        log_largest = xp.log(xp.maximum(xp.max(fitted, axis=1), 1e-12))
        inverse_factor = xp.linalg.inv(xp.linalg.cholesky(covariance))
        found = weights, log_scale, log_largest, centre, inverse_factor
        weights, log_scale, *rest = (leaf.reshape((*lead, *leaf.shape[1:])) for leaf in found)
        terms = KernelExpansion(kernel, centres, weights, log_scale)
        return KernelMeansAt(terms, *rest)

    def _check_precision(self):
        lam = self.hyper.regularisation
        if jnp.result_type(float) == jnp.float32 and checks.is_concrete(lam):
            checks.require(
                lam >= SMALLEST_SINGLE,
                f"lam = {float(lam):.1e} is too small to solve for a traced observation in float32 (at least "
                f"{SMALLEST_SINGLE:.0e}). Turn on float64 by numpyro.enable_x64(), or pass a concrete observation.",
            )

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Tell whether NaN says something: at the end of arrays whose lengths the data kernel compares."""
        return isinstance(self.hyper.data_kernel, WithLength)

    def marginal(self, seen, last=None):
        """The likelihood of the marked statistics; itself where NaN is at the end alone, and says where that is."""
        return self if self.records and np.all(seen[:-1] >= seen[1:]) else super().marginal(seen, last)

    def _marginal(self, seen, last):
        """In closed form: the Gaussian data kernel is a density in every statistic, and integrates to 1 in those that
        were not observed, which its product leaves out."""
        kernel = self.hyper.data_kernel
        if self.transform is None or not isinstance(kernel, Gaussian):
            return super()._marginal(seen, last)
        chosen = self.transform.numbers(seen, last)
        if np.array_equal(chosen, np.arange(len(self.transform.kept))):
            return self
        transform, data = self.transform.some(chosen), np.asarray(self.data)[:, chosen]
        scale = np.broadcast_to(kernel.length_scale, np.shape(self.data)[1])[chosen]
        hyper = replace(self.hyper, data_kernel=Gaussian(scale))
        return replace(self, data=data, hyper=hyper, transform=transform, summary=summarise(hyper, self.z, data))

    def variance(self, z: np.ndarray) -> np.ndarray:
        r"""Variance of a Gaussian process with kernel `l` and noise `m lam` at points `(r, D)`, before any amplitude.

        `(r,)`: `l(z, z) - l(z)' (L + m lam I)^-1 l(z)`: between 0 near simulations and 1 far from all of them, where
        further simulations tell most.
        """
        return self.solution.variance(self.hyper, np.asarray(self.z), np.asarray(z, np.float64))

    def require_density(self) -> None:
        """Raise unless the data kernel is a density in the observation."""
        checks.require(
            log_integral(self.hyper.data_kernel, self.data) is not None,
            f"{type(self.hyper.data_kernel).__name__} is not a density in the observation, so there is no marginal or "
            "predictive density; posteriors do not need one. Compare models by the leave-one-out score instead.",
        )

    def informativeness(self) -> tuple[str, np.ndarray]:
        """The held-out drop of each raw statistic, what leaving it out costs.

        The drop of the mean held-out log posterior density of the simulated parameters (`LeaveOneOut`), in nats, when
        the statistic is taken out of the data kernel and everything else stays, over 2,000 simulations at most. 0 for
        constant statistics; noise around 0 for those that say nothing. Cost: one matrix product of size `m` for each
        statistic.
        """
        table = isinstance(self.data, np.ndarray) and self.data.ndim == 2
        checks.require(table, "The held-out drop needs statistics `(m, n)`; these data are compared as a whole.")
        columns = np.arange(self.data.shape[1])
        # a column of zeros adds nothing to a distance, so it stands for a statistic that was left out
        others = (np.where(columns == out, 0.0, self.data) for out in columns)
        drops = np.array([self.summary.score - summarise(self.hyper, self.z, data).score for data in others])
        if self.transform is None:
            return "held-out drop", drops
        of_raw = np.zeros(self.transform.num_raw)
        of_raw[list(self.transform.kept)] = drops
        return "held-out drop", of_raw

    def named(self, names: Sequence[str]) -> "KernelMeansSurrogate":
        """A copy with names of the statistics."""
        return self if self.transform is None else replace(self, transform=self.transform.named(names))

    def describe(self) -> Mapping[str, Any]:
        """Report what was learnt, which bounds were met, and what to look at."""
        kernel = self.hyper.data_kernel
        return {
            "form": "kernel means likelihood of Hsu and Ramos (2019)",
            "beta": np.asarray(self.hyper.parameter_kernel.length_scale),
            "lam": float(self.hyper.regularisation),
            "leave-one-out score": float(self.summary.score),
            "negative proportion": float(self.summary.negative_proportion),
            "solve": str(self.solution),
            **(
                {"eps": np.asarray(kernel.length_scale)}
                if isinstance(kernel, Gaussian)
                else {"data kernel": str(kernel)}
            ),
            "at bounds": self.at_bounds,
        }


def as_one_point(transform: StatisticsTransform | None, y: Any) -> Any:
    """The observation as the data of one simulation that the data kernel sees."""
    return jax.tree.map(lambda leaf: leaf[None], y) if transform is None else transform.forward(y[None, :])
