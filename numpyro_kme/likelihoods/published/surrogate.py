"""What the published form has learnt: a likelihood to evaluate, its held-out scores, and a report for a person."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import full_precision, in_present_precision, on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.kernels.ragged import WithLength
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.base import KernelExpansion, LikelihoodAt, SignedLog, Surrogate, to_signed_log
from numpyro_kme.likelihoods.extrapolation import warn_if_out_of_distribution
from numpyro_kme.likelihoods.published.hyperparameters import (
    Hyperparameters,
    TrainingSet,
    log_integral,
    log_positive_part,
)
from numpyro_kme.likelihoods.published.learning import LearntHyperparameters
from numpyro_kme.likelihoods.published.leave_one_out import (
    LeaveOneOutScores,
    Summary,
    held_out_drops,
    held_out_sample,
    leave_one_out_scores,
    summarise,
)
from numpyro_kme.likelihoods.published.solves import MOST_DENSE, Solution, Solved
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.samplers.importance import effective_size

DEGREES = 4.0
"""Degrees of freedom of the floor's shape."""


@register
class KernelMeansAt(LikelihoodAt):
    """The published form at one observation.

    Attributes:
        terms: `q(y | .)` as a weighted sum of kernels; the largest fitted value at the simulations has log
            `terms.log_scale + log_largest`.
        log_largest: See `terms`.
        centre: Mean of the simulated coordinates, weighted by how alike their data are to `y`, `(D,)`.
        cholesky_factor: Lower Cholesky factor of their weighted covariance, widened by the length scales, `(D, D)`.
        log_nearest: Log data kernel at the nearest simulation, relative to the observation itself.
        data: The observation `y`.
    """

    terms: KernelExpansion
    log_largest: Array
    centre: Array
    cholesky_factor: Array
    log_nearest: Array
    data: Any

    def expansion(self):
        """The weighted sum of kernels that `q(y | .)` is."""
        return self.terms

    @full_precision
    def signed_log(self, z):
        """Sign and log absolute value at one point `(D,)`; nothing underflows, however far the point."""
        terms = self.terms
        log_kernel = terms.kernel.log_gram(jnp.asarray(terms.points), jnp.asarray(z)[None, :])[:, 0]
        largest = jax.lax.stop_gradient(jnp.max(log_kernel))
        return to_signed_log(jnp.asarray(terms.weights) @ jnp.exp(log_kernel - largest), largest + terms.log_scale)

    @full_precision
    def log_density(self, z):
        r"""`log (q + sqrt(q^2 + c^2)) / 2`, with a floor `c(z)` that falls off around the simulations like `y`.

        `c(z) = 0.01 max_j q(y | z_j) (1 + r(z)^2 / 4)^{-(4 + D) / 2}`, where `r` is the Mahalanobis distance from the
        simulated coordinates weighted by how alike their data are to `y`. Where `q` is above a tenth of its maximum,
        the error of `log q` is below `0.003`; where `q` vanishes or is negative, the gradient is that of the floor,
        finite, and leads back. The floor's tails are those of a Student distribution with 4 degrees of freedom.
        """
        z = jnp.asarray(z)
        terms = self.terms
        value = terms.kernel.gram(z[None, :], jnp.asarray(terms.points)) @ jnp.asarray(terms.weights)
        white = solve_triangular(jnp.asarray(self.cholesky_factor), z - jnp.asarray(self.centre), lower=True)
        return self._above_floor(value[0], white, jnp)

    def log_densities(self, z):
        """As `LikelihoodAt.log_densities`."""
        terms, rows = self.terms, z.reshape(-1, z.shape[-1])
        scaled = (a / terms.kernel.length_scale for a in (rows, terms.points))
        near = gaussian_gram(*scaled).reshape(*z.shape[:-1], -1)
        white = np.einsum("...ij,...j->...i", np.linalg.inv(self.cholesky_factor), z - self.centre)
        return self._above_floor(np.einsum("...m,...m->...", near, terms.weights), white, np)

    def _above_floor(self, value, white, xp):
        """The positive version, from `q` and the standardised distances `(..., D)` of the floor's shape."""
        log_shape = -0.5 * (DEGREES + white.shape[-1]) * xp.log1p(xp.sum(white * white, axis=-1) / DEGREES)
        # height of the floor of the positive version, as a fraction of the largest value of `q(y | .)` at the
        # simulations
        return log_positive_part(value, self.log_largest + np.log(0.01) + log_shape, xp) + self.terms.log_scale


SMALLEST_SINGLE = 1e-5
"""Smallest `lam` for solves in float32, whose relative error is about `1e-7 / lam`."""


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
        learnt: How learning went; `None` where the hyperparameters were given.
    """

    z: Array
    data: Any
    hyper: Hyperparameters
    solution: Solution
    transform: StatisticsTransform | None
    summary: Summary
    learnt: LearntHyperparameters | None

    @property
    def dim(self):
        """Number of coordinates."""
        return self.z.shape[1]

    def point(self, y: Any) -> Any:
        """Read one output `(*event)` as the data kernel does."""
        return self.hyper.data_kernel.point(y)

    def at(self, y: Any) -> KernelMeansAt:
        """The likelihood at one observation.

        A concrete `y` is checked and prepared on the host in float64; a traced one is prepared in place. NaN among
        statistics means not observed, as in `marginal`; a traced `y` must have none.

        Raises:
            ValueError: If `y` has the wrong shape, is infinite, or differs from a statistic that all simulations share.
        Warns:
            UserWarning: If `y` lies far outside all simulations.
        Cost: `m` data kernels and two triangular solves.
        """
        if not checks.is_concrete((y, self)):
            self._check_precision()
            return in_present_precision(self)._at(y)
        if self.transform is not None and self.transform.lacks(y):
            return self.marginal(~np.isnan(y)).at(y)
        if self.transform is not None:
            self.transform.check(y)
        y = jax.tree.map(lambda leaf: np.array(leaf, bool if np.asarray(leaf).dtype == bool else np.float64), y)
        bare = replace(self, solution=None, summary=None, learnt=None)  # type: ignore[arg-type]  # nothing below solves
        log_kappa = on_host(KernelMeansSurrogate._log_kappa)(bare, y)
        solved = self.solution.solve_on_host(self.hyper, self.z, np.exp(log_kappa - np.max(log_kappa)))
        likelihood = on_host(_likelihood)(bare, y, log_kappa, solved)
        usual = self.summary.log_nearest_quantile
        warn_if_out_of_distribution(self.transform, self.data, y, likelihood.log_nearest, usual)
        return likelihood

    @property
    def records(self) -> bool:
        """As `Surrogate.records`: at the end of arrays whose lengths the data kernel compares."""
        return isinstance(self.hyper.data_kernel, WithLength)

    def marginal(self, seen, last=None):
        """As `Surrogate.marginal`; itself where NaN is at the end alone, and says where that is."""
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
        summary = summarise(*held_out_sample(hyper, self.z, data))
        return replace(self, data=data, hyper=hyper, transform=transform, summary=summary)

    @full_precision
    def _at(self, y) -> KernelMeansAt:
        log_kappa = self._log_kappa(y)
        solved = self.solution.solve(self.hyper, self.z, jnp.exp(log_kappa - jnp.max(log_kappa)))
        return self._likelihood(y, log_kappa, solved)

    def _log_kappa(self, y) -> jax.Array:
        return self.hyper.data_kernel.log_gram(as_one_point(self.transform, y, self.data), self.data)[0]

    def _likelihood(self, y, log_kappa, solved: Solved) -> KernelMeansAt:
        kernel, largest = self.hyper.data_kernel, jnp.max(log_kappa)
        observed = as_one_point(self.transform, y, self.data)
        log_norm = log_integral(kernel, self.data)
        log_scale = largest if log_norm is None else largest - log_norm
        if self.transform is not None:
            log_scale = log_scale + self.transform.log_abs_det_jacobian(y)
        kappa, z, dim = jnp.exp(log_kappa - largest), jnp.asarray(self.z), self.dim
        alike = kappa / jnp.sum(kappa)
        centre, effective = alike @ z, effective_size(alike, jnp)
        centred = z - centre[None, :]
        reach = jnp.minimum(jnp.broadcast_to(jnp.asarray(self.hyper.parameter_kernel.length_scale), (dim,)), 1.0)
        covariance = (centred * alike[:, None]).T @ centred + dim / (dim + effective) * jnp.diag(jnp.square(reach))
        return KernelMeansAt(
            terms=KernelExpansion(self.hyper.parameter_kernel, solved.points, solved.weights, log_scale),
            log_largest=jnp.log(jnp.maximum(jnp.max(solved.fitted), 1e-12)),
            centre=centre,
            cholesky_factor=jnp.linalg.cholesky(covariance),
            log_nearest=largest - kernel.log_gram(observed, observed)[0, 0],
            data=y,
        )

    def _check_precision(self):
        lam = self.hyper.regularisation
        if jnp.result_type(float) == jnp.float32 and checks.is_concrete(lam):
            checks.require(
                lam >= SMALLEST_SINGLE,
                f"lam = {float(lam):.1e} is too small to solve for a traced observation in float32 (at least "
                f"{SMALLEST_SINGLE:.0e}). Turn on float64 by numpyro.enable_x64(), or pass a concrete observation, "
                "which is prepared in float64.",
            )

    def weights(self, y: Any) -> SignedLog:
        """`v(y)` as signs and logs, `(m,)`: `q(y | z) = sum_j v_j(y) l(z_j, z)` over the simulations, or the pivots."""
        terms = self.at(y).terms
        return on_host(to_signed_log)(terms.weights, terms.log_scale)

    def dependence(self) -> np.ndarray:
        """Inverse squared length scales of the coordinates, `(D,)`."""
        return np.broadcast_to(1.0 / np.square(self.hyper.parameter_kernel.length_scale), self.dim)

    @full_precision
    def variance(self, z: ArrayLike) -> jax.Array:
        r"""Variance of a Gaussian process with kernel `l` and noise `m lam` at points `(r, D)`, before any amplitude.

        `(r,)`: `l(z, z) - l(z)' (L + m lam I)^-1 l(z)`: between 0 near simulations and 1 far from all of them, where
        further simulations tell most.
        """
        return self.solution.variance(self.hyper, self.z, jnp.asarray(z))

    def require_density(self) -> None:
        """Raise unless the data kernel is a density in the observation."""
        checks.require(
            log_integral(self.hyper.data_kernel, self.data) is not None,
            f"{type(self.hyper.data_kernel).__name__} is not a density in the observation, so there is no marginal or "
            "predictive density; posteriors do not need one. Compare models by the leave-one-out score instead.",
        )

    def leave_one_out(self) -> LeaveOneOutScores:
        """Held-out quantities of every simulation, in closed form, as a refit without it gives at the same `m lam`.

        Cost: six dense matrices; at most 10,000 simulations.
        """
        checks.require(
            len(self.z) <= MOST_DENSE,
            f"Leaving out each of {len(self.z)} simulations takes {6 * 8 * len(self.z) ** 2 / 1e9:.0f} GB of dense "
            f"matrices; at most {MOST_DENSE} are taken. `summary` holds the scores of a random choice.",
        )
        return on_host(leave_one_out_scores)(self.hyper, TrainingSet(self.z, self.data))

    def informativeness(self) -> tuple[str, np.ndarray]:
        """As `Surrogate.informativeness`: the held-out drop of each raw statistic, what leaving it out costs.

        The drop of the mean held-out log posterior density of the simulated parameters (`LeaveOneOut`), in nats, when
        the statistic is taken out of the data kernel and everything else stays, over 2,000 simulations at most. 0 for
        constant statistics; noise around 0 for those that say nothing. Cost: one matrix product of size `m` for each
        statistic.
        """
        checks.require(
            isinstance(self.data, np.ndarray) and self.data.ndim == 2,
            "The held-out drop needs statistics `(m, n)`; these data are compared as a whole.",
        )
        drops = held_out_drops(*held_out_sample(self.hyper, self.z, self.data))
        if self.transform is None:
            return "held-out drop", drops
        of_raw = np.zeros(self.transform.num_raw)
        of_raw[list(self.transform.kept)] = drops
        return "held-out drop", of_raw

    def named(self, names: Sequence[str]) -> "KernelMeansSurrogate":
        """As `Surrogate.named`."""
        return self if self.transform is None else replace(self, transform=self.transform.named(names))

    def describe(self) -> Mapping[str, Any]:
        """What was learnt, which bounds were met, and what to look at."""
        described = {
            "form": "kernel means likelihood of Hsu and Ramos (2019)",
            "beta": np.asarray(self.hyper.parameter_kernel.length_scale),
            "lam": float(self.hyper.regularisation),
            "leave-one-out score": float(self.summary.score),
            "negative proportion": float(self.summary.negative_proportion),
            **self.solution.describe(),
        }
        if isinstance(self.hyper.data_kernel, Gaussian):
            described["eps"] = np.asarray(self.hyper.data_kernel.length_scale)
        else:
            described["data kernel"] = str(self.hyper.data_kernel)
        return described | {"at bounds": "not learnt" if self.learnt is None else self.learnt.at_bounds(self.dim)}


_likelihood = jax.jit(KernelMeansSurrogate._likelihood)


def as_one_point(transform: StatisticsTransform | None, y: Any, data: Any) -> Any:
    """The observation as the data of one simulation that the data kernel sees; what all data share is left as it is."""
    if transform is not None:
        return transform.forward(jnp.asarray(y)[None, :])
    structures = {jax.tree.structure(y), jax.tree.structure(data)}
    if len(structures) > 1:  # one ends before its last row, the others do not
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], y)
    one = lambda leaf, like: jnp.asarray(leaf)[None] if jnp.ndim(leaf) < jnp.ndim(like) else leaf  # noqa: E731
    return jax.tree.map(one, y, data)
