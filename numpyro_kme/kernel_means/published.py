r"""The published kernel means likelihood, $q(y \mid z) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(z)$."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme import _checks, _linalg
from numpyro_kme.kernel_means import scores
from numpyro_kme.kernel_means.base import Expansion, Form, LikelihoodAt, Surrogate
from numpyro_kme.kernel_means.learning import Learner, Learnt, learn
from numpyro_kme.kernel_means.objectives import Bank, Hyperparameters, LeaveOneOut, Objective, held_out, regularised
from numpyro_kme.kernel_means.signed import log_positive_part, to_signed_log
from numpyro_kme.kernel_means.statistics import StatisticsTransform
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.measures import Measure

LOG_FLOOR = -7.0
"""Log of the floor of the positive version, relative to the largest value of `q(y | .)` at the simulations."""

FLOOR_WIDTH = 4.0
"""Standard deviation of the floor's bell, in coordinates."""


@dataclass(frozen=True)
class KernelMeans(Form):
    """Settings of the published form of the kernel means likelihood.

    Args:
        objective: What the hyperparameters maximise: `LeaveOneOut()`, or the published `MarginalLikelihood()`.
        data_kernel: The epsilon-kernel, whose values are where learning starts. A `Gaussian` on standardised statistics
            when left out. Kernels on other data (`EmpiricalMeasure`, `GaussianProcessPath`) see the data as they are.
        learner: How the hyperparameters are searched.
        hyperparameters: Use these instead of learning.
    """

    objective: Objective = field(default_factory=LeaveOneOut)
    data_kernel: Kernel | None = None
    learner: Learner = field(default_factory=Learner)
    hyperparameters: Hyperparameters | None = None

    def fit(self, z: ArrayLike, x: Any, *, measure: Measure | None = None, y: Any = None) -> "KernelMeansSurrogate":
        """Learn a surrogate from simulations.

        Args:
            z: Coordinates, `(m, D)`, from any proposal.
            x: Raw statistics `(m, n)`, or a pytree of `m` data points that `data_kernel` compares.
            measure: The prior in coordinates; only `MarginalLikelihood` needs it.
            y: The observation; only `MarginalLikelihood` needs it.
        Raises:
            ValueError: For tables that disagree or are not finite, and statistics that are all constant.
            numpy.linalg.LinAlgError: If `L + m lam I` cannot be factorised.
        """
        _checks.matrix("z", z, min_rows=2)
        z = np.asarray(z, np.float64)
        _checks.finite("z", z)
        plain = self.data_kernel is None or isinstance(self.data_kernel, Gaussian)
        transform = StatisticsTransform.fit(x) if plain else None
        with _linalg.float64():
            data = x if transform is None else np.asarray(transform.forward(np.asarray(x, np.float64)))
            log_broad = None if transform is None else np.asarray(scores.log_broad_density(jnp.asarray(data)))
            seen = None if y is None else _seen(transform, y)
        bank = Bank(z, data, log_broad, measure, seen)
        if self.hyperparameters is not None:
            learnt = Learnt(self.hyperparameters, np.nan, np.zeros(0, bool), np.zeros(0, bool), np.zeros(2, int))
        else:
            learnt = learn(self.objective, bank, self._template(z, data), self.learner)
        hyper = learnt.hyper
        with _linalg.float64():
            matrix = np.asarray(regularised(hyper, z))
        factor = _linalg.cholesky(matrix, f"L + m lam I with lam = {float(hyper.regularisation):.3g}")
        return KernelMeansSurrogate(z, data, hyper, factor, transform, learnt, log_broad)

    def _template(self, z, data) -> Hyperparameters:
        """Where learning starts: length scales that grow with the square root of the dimension."""
        dim = z.shape[1]
        kernel = self.data_kernel
        if kernel is None:
            size = data.shape[1]
            kernel = Gaussian(np.full(size, 0.4 * np.sqrt(size)))
        return Hyperparameters(Gaussian(np.full(dim, np.sqrt(dim))), kernel, np.array(1e-2))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KernelMeansSurrogate(Surrogate):
    """A learnt kernel means likelihood of the published form.

    Attributes:
        z: Coordinates of the simulations, `(m, D)`.
        data: Standardised statistics `(m, n)`, or the data points as they are.
        hyper: Hyperparameters.
        factor: Lower Cholesky factor of `L + m lam I`.
        transform: Raw statistics to standardised ones; `None` where the data are not vectors.
        learnt: How learning went.
        log_broad: Log density of each simulation under a broad density; see `scores`.
    """

    z: ArrayLike
    data: Any
    hyper: Hyperparameters
    factor: ArrayLike
    transform: StatisticsTransform | None
    learnt: Learnt
    log_broad: ArrayLike | None

    @property
    def dim(self):
        """Number of coordinates."""
        return np.shape(self.z)[1]

    @property
    def num_simulations(self):
        """Number of simulations."""
        return np.shape(self.z)[0]

    def at(self, y):
        """The likelihood at one observation; warns if a concrete one lies far outside all simulations."""
        if not _checks.is_concrete((y, self)):
            return self._at(y)
        if self.transform is not None:
            self.transform.check(y)
        with _linalg.float64():
            likelihood = _linalg.to_host(self._at(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), y)))
        if likelihood.log_nearest < -18.0:
            warnings.warn(
                "The observation lies far outside all simulations: the nearest is more than 6 learnt bandwidths away, so the "
                "posterior rests on the tails of the kernel. Check the simulator and the prior, or simulate more.",
                stacklevel=2,
            )
        return likelihood

    def _at(self, y) -> "KernelMeansAt":
        kernel = self.hyper.data_kernel
        log_kappa = kernel.log_gram(_seen(self.transform, y), self.data)[0]
        largest = jnp.max(log_kappa)
        weights = _linalg.cho_solve(self.factor, jnp.exp(log_kappa - largest))
        gram = self.hyper.parameter_kernel.gram(jnp.asarray(self.z))
        fitted = gram @ weights
        share = jax.nn.softmax(log_kappa)
        log_scale = largest
        if self.transform is not None:
            log_integral = kernel.log_integral(jnp.shape(self.data)[1])
            log_scale = largest - log_integral + self.transform.log_abs_det_jacobian(y)
        return KernelMeansAt(
            Expansion(self.hyper.parameter_kernel, self.z, weights, log_scale),
            jnp.log(jnp.maximum(jnp.max(fitted), 1e-12)),
            share @ jnp.asarray(self.z),
            largest,
            y,
        )

    def weights(self, y: Any) -> jax.Array:
        """`v(y) = (L + m lam I)^-1 kappa(y)`, `(m,)`, times `exp(-max_j log kappa_j)`."""
        return self.at(y).expansion().weights

    def variance(self, z: ArrayLike) -> jax.Array:
        r"""Variance of a Gaussian process with kernel `l` and noise `m lam` at points `(r, D)`, before any amplitude.

        `l(z, z) - l(z)' (L + m lam I)^-1 l(z)`: between 0 near simulations and 1 far from all of them.
        """
        cross = self.hyper.parameter_kernel.gram(jnp.asarray(self.z), jnp.asarray(z))
        white = jax.scipy.linalg.solve_triangular(jnp.asarray(self.factor), cross, lower=True)
        return self.hyper.parameter_kernel.diagonal(jnp.asarray(z)) - jnp.sum(white**2, axis=0)

    def log_marginal(self, y: Any, measure: Measure) -> tuple[jax.Array, jax.Array]:
        """Sign and log absolute value of `q(y) = v(y)' mu`, with `mu_j = int l(z_j, t) p(dt)`."""
        expansion = self.at(y).expansion()
        value = expansion.weights @ measure.mean_embedding(expansion.kernel, self.z)
        return to_signed_log(value, expansion.log_scale)

    def negative_share(self, y: Any, points: ArrayLike) -> float:
        """Share of the negative part in the absolute mass of `q(y | .)` over points `(T, D)`."""
        with _linalg.float64():
            values = np.asarray(self.at(y).values(jnp.asarray(points)))
        return float(np.sum(np.maximum(-values, 0.0)) / np.sum(np.abs(values)))

    def relevance(self) -> np.ndarray:
        """Relevance of each raw statistic, `(n_raw,)`: what leaving it out costs.

        The drop of the mean held-out log posterior density of the simulated parameters, in nats, when the statistic is
        taken out of the data kernel and everything else stays. 0 for constant statistics.
        """
        transform, kernel = self.transform, self.hyper.data_kernel
        _checks.require(
            transform is not None and isinstance(kernel, Gaussian), "Relevance needs vectors of statistics."
        )
        assert transform is not None and isinstance(kernel, Gaussian)
        scales = np.broadcast_to(kernel.length_scale, (len(transform.kept),))
        with _linalg.float64():
            full = float(_posterior_score(self.hyper, self.z, self.data))
            relevance = np.zeros(transform.num_raw)
            for column, raw in enumerate(transform.kept):
                without = np.where(np.arange(len(scales)) == column, 1e6, scales)
                hyper = Hyperparameters(self.hyper.parameter_kernel, Gaussian(without), self.hyper.regularisation)
                relevance[raw] = full - float(_posterior_score(hyper, self.z, self.data))
        return relevance

    def describe(self) -> Mapping[str, Any]:
        """What was learnt, and which bounds were met."""
        described = {
            "form": "published kernel means likelihood",
            "beta": np.asarray(self.hyper.parameter_kernel.length_scale),
            "lam": float(self.hyper.regularisation),
            "score": float(self.learnt.score),
        }
        if isinstance(self.hyper.data_kernel, Gaussian):
            described["eps"] = np.asarray(self.hyper.data_kernel.length_scale)
        names = [f"beta[{i}]" for i in range(self.dim)]
        names += [f"eps[{i}]" for i in range(len(self.learnt.at_lower) - self.dim - 1)] + ["lam"]
        at = [f"{n} (lower)" for n, hit in zip(names, self.learnt.at_lower) if hit]
        at += [f"{n} (upper)" for n, hit in zip(names, self.learnt.at_upper) if hit]
        return described | {"at bounds": ", ".join(at) or "none"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KernelMeansAt(LikelihoodAt):
    """The published form at one observation.

    Attributes:
        terms: `q(y | .)` as a weighted sum of kernels.
        log_largest: Log of the largest fitted value at the simulations, relative to `terms.log_scale`.
        centre: Mean of the simulated coordinates, weighted by how alike their data are to `y`, `(D,)`.
        log_nearest: Largest log value of the data kernel.
        y: The observation.
    """

    terms: Expansion
    log_largest: ArrayLike
    centre: ArrayLike
    log_nearest: ArrayLike
    y: Any

    @property
    def data(self):
        """The observation."""
        return self.y

    def values(self, points: ArrayLike) -> jax.Array:
        """`q(y | z) exp(-log_scale)` at points `(r, D)`, `(r,)`."""
        terms = self.terms
        return terms.kernel.gram(jnp.asarray(points), jnp.asarray(terms.points)) @ jnp.asarray(terms.weights)

    def signed_log(self, z):
        """Sign and log absolute value at one point `(D,)`."""
        return to_signed_log(self.values(jnp.asarray(z)[None, :])[0], self.terms.log_scale)

    def log_density(self, z):
        """`log((q + sqrt(q^2 + c^2)) / 2)` with a floor `c(z)`: a wide bell about the simulations that look like `y`.

        The bell's height is `exp(LOG_FLOOR)` of the largest fitted value, so that the gradient leads back from
        anywhere, and `q` is met to that share of its maximum.
        """
        z = jnp.asarray(z)
        distance = jnp.sum(jnp.square((z - jnp.asarray(self.centre)) / FLOOR_WIDTH))
        log_floor = self.log_largest + LOG_FLOOR - 0.5 * distance
        return log_positive_part(self.values(z[None, :])[0], log_floor) + self.terms.log_scale

    def expansion(self):
        """The weighted sum of kernels that `q(y | .)` is."""
        return self.terms


def _seen(transform: StatisticsTransform | None, y: Any) -> Any:
    """A bank with the observation alone, as the data kernel sees it."""
    if transform is None:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], y)
    return transform.forward(jnp.asarray(y)[None, :])


@jax.jit
def _posterior_score(hyper, z, data):
    ratios, _ = held_out(hyper, Bank(z, data))
    return jnp.mean(scores.posterior_scores(ratios, 0.02))
