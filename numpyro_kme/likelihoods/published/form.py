r"""The published kernel means likelihood, $q(y \mid z) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(z)$."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import in_present_precision, on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.empirical import EmpiricalMeasure
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods import isolation
from numpyro_kme.likelihoods.base import Expansion, Form, Surrogate
from numpyro_kme.likelihoods.published import scores, summaries
from numpyro_kme.likelihoods.published.empirical import learn_empirical
from numpyro_kme.likelihoods.published.learning import Learner, Learnt, learn
from numpyro_kme.likelihoods.published.likelihood import KernelMeansAt, describe_weights
from numpyro_kme.likelihoods.published.objectives import (
    Bank,
    Hyperparameters,
    LeaveOneOut,
    Objective,
    log_integral,
    part,
)
from numpyro_kme.likelihoods.published.solves import MOST_DENSE, Solution, Solve, Solved, default_solve
from numpyro_kme.likelihoods.published.summaries import LeaveOneOutScores, Summary
from numpyro_kme.likelihoods.signed import SignedLog, to_signed_log
from numpyro_kme.likelihoods.statistics import StatisticsTransform

MOST_HELD_OUT = 2000
FIXED = (1.0 - 1e-9, 1.0 + 1e-9)
"""Bounds of a factor that is not searched."""
SMALLEST_SINGLE = 1e-5
"""Smallest `lam` for solves in float32, whose relative error is about `1e-7 / lam`."""


@dataclass(frozen=True)
class KernelMeans(Form):
    r"""The published form of the kernel means likelihood: settings, and `fit`.

    Args:
        objective: What the hyperparameters maximise: `LeaveOneOut()`, `LeaveOneOutPredictive()` or the published
            `MarginalLikelihood()`.
        data_kernel: The epsilon-kernel; learning starts from its hyperparameters. When left out, a `Gaussian` with one
            length scale for each statistic. `EmpiricalMeasure` compares data sets, `GaussianProcessPath` time series.
        learner: How the hyperparameters are searched; `Learner(tied=Tied())` learns one `eps` and one `beta_0`, as the
            papers do.
        hyperparameters: Use these instead of learning.
        solve: `DenseSolve()`, exact, or `LowRankSolve()`, for many simulations; when left out, dense up to 10,000 simulations.
        standardise: Whether statistics given as an array `(m, n)` are standardised (robust z-scores, arcsinh) before the
            data kernel sees them; its length scales are then in standard deviations. Other data never are.
        length_scale: Rule for the length scales of the Gaussian data kernel, which are then fixed, on statistics as the kernel sees
            them; the targets are coordinates. `beta` and `lam` are learnt. The soft likelihood is as wide as they are: a
            median is far wider than what is learnt.
    References:
        Hsu & Ramos (2019), AISTATS.
    """

    objective: Objective = field(default_factory=LeaveOneOut)
    data_kernel: Kernel | None = None
    learner: Learner = field(default_factory=Learner)
    hyperparameters: Hyperparameters | None = None
    solve: Solve | None = None
    standardise: bool = True
    length_scale: LengthScaleRule | None = None

    def __post_init__(self):
        rule = self.length_scale
        checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as CrossValidation(key)")
        checks.require(
            rule is None or (self.data_kernel is None and self.hyperparameters is None),
            "Give `length_scale`, or `data_kernel` or `hyperparameters`, not both.",
        )

    def points(self, x: Any) -> Any:
        """Read outputs `(n, *event)` as the data kernel does."""
        return super().points(x) if self.data_kernel is None else self.data_kernel.points(x)

    def point(self, y: Any) -> Any:
        """Read one output `(*event)` as the data kernel does."""
        return super().point(y) if self.data_kernel is None else self.data_kernel.point(y)

    def fit(self, z: ArrayLike, x: Any, *, measure: Measure | None = None, y: Any = None) -> "KernelMeansSurrogate":
        """Learn a surrogate from simulations.

        Args:
            z: Coordinates, `(m, D)`, from any proposal; `m >= 2`.
            x: Raw statistics `(m, n)`, or a pytree of `m` data points that `data_kernel` compares.
            measure: The prior in coordinates; only `MarginalLikelihood` needs it.
            y: The observation; only `MarginalLikelihood` needs it.
        Raises:
            ValueError: For tables that disagree or are not finite, and statistics that are all constant.
            numpy.linalg.LinAlgError: If `L + m lam I` cannot be factorised.
        Warns:
            UserWarning: For statistics that are constant over the simulations; they are left out.
        Cost: that of `solve`; learning takes some tens of gradients on `learner.subset` simulations and about fifteen on
            `learner.most`, `O(m^3)` each.
        """
        checks.concrete(z=z, x=x, measure=measure, y=y)
        z, x = _simulations(z, x)
        transform = (
            StatisticsTransform.fit(x) if self.standardise and isinstance(x, np.ndarray) and x.ndim == 2 else None
        )
        bank = _bank(transform, z, x, measure, y)
        hyper, learnt = self._learn(bank)
        solution = (self.solve or default_solve(len(z))).fit(hyper, z)
        summary = on_host(summaries.summarise)(*_sample(hyper, z, bank.data))
        return KernelMeansSurrogate(z, bank.data, hyper, solution, transform, summary, learnt)

    def _learn(self, bank) -> tuple[Hyperparameters, Learnt | None]:
        if self.hyperparameters is not None:
            return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self.hyperparameters), None
        kernel, dim = self.data_kernel, bank.z.shape[1]
        if kernel is None:
            checks.require(
                isinstance(bank.data, np.ndarray) and bank.data.ndim == 2,
                "`x` must have shape (simulations, statistics), unless `data_kernel` compares other data; got "
                f"{jax.tree.map(np.shape, bank.data)}.",
            )
            size = bank.data.shape[1]
            scale = 0.4 * np.sqrt(size) if self.length_scale is None else self.length_scale(bank.data, bank.z)
            kernel = Gaussian(np.broadcast_to(scale, size))
        template = Hyperparameters(Gaussian(np.full(dim, np.sqrt(dim))), kernel, np.array(1e-2))
        find = learn_empirical if isinstance(kernel, EmpiricalMeasure) else learn
        if self.length_scale is None:
            learnt = find(self.objective, bank, template, self.learner)
            return learnt.hyper, learnt
        learnt = find(self.objective, bank, template, replace(self.learner, data_factors=FIXED))
        learnt.at_lower[dim:-1] = learnt.at_upper[dim:-1] = False
        hyper = replace(learnt.hyper, data_kernel=kernel)
        return hyper, replace(learnt, hyper=hyper)


@on_host
def _bank(transform: StatisticsTransform | None, z: np.ndarray, x: Any, measure: Measure | None, y: Any) -> Bank:
    """The simulations as the data kernel sees them."""
    data = x if transform is None else np.asarray(transform.forward(x))
    plain = isinstance(data, np.ndarray) and data.ndim == 2
    log_broad = scores.log_broad_density(jnp.asarray(data)) if plain else None
    return Bank(z, data, log_broad, measure, None if y is None else _seen(transform, y, data))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
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
    learnt: Learnt | None

    @property
    def dim(self):
        """Number of coordinates."""
        return self.z.shape[1]

    @property
    def num_simulations(self):
        """Number of simulations."""
        return len(self.z)

    def point(self, y: Any) -> Any:
        """Read one output `(*event)` as the data kernel does."""
        return self.hyper.data_kernel.point(y)

    def at(self, y: Any) -> KernelMeansAt:
        """The likelihood at one observation.

        A concrete `y` is checked and prepared on the host in float64; a traced one is prepared in place.

        Raises:
            ValueError: If `y` has the wrong shape, is not finite, or differs from a statistic that every simulation
                shares.
        Warns:
            UserWarning: If `y` lies far outside all simulations.
        Cost: `m` data kernels and two triangular solves.
        """
        if not checks.is_concrete((y, self)):
            self._check_precision()
            return in_present_precision(self)._at(y)
        if self.transform is not None:
            self.transform.check(y)
        y = jax.tree.map(lambda leaf: np.array(leaf, np.float64), y)
        bare = replace(self, solution=None, summary=None, learnt=None)  # type: ignore[arg-type]  # nothing below solves
        log_kappa = on_host(KernelMeansSurrogate._log_kappa)(bare, y)
        solved = self.solution.solve_on_host(self.hyper, self.z, np.exp(log_kappa - np.max(log_kappa)))
        likelihood = on_host(_likelihood)(bare, y, log_kappa, solved)
        isolation.warn_if_isolated(likelihood.log_nearest, self.summary.log_isolation, self.transform, self.data, y)
        return likelihood

    def _at(self, y) -> KernelMeansAt:
        log_kappa = self._log_kappa(y)
        solved = self.solution.solve(self.hyper, self.z, jnp.exp(log_kappa - jnp.max(log_kappa)))
        return self._likelihood(y, log_kappa, solved)

    def _log_kappa(self, y) -> jax.Array:
        return self.hyper.data_kernel.log_gram(_seen(self.transform, y, self.data), self.data)[0]

    def _likelihood(self, y, log_kappa, solved: Solved) -> KernelMeansAt:
        kernel, largest = self.hyper.data_kernel, jnp.max(log_kappa)
        seen = _seen(self.transform, y, self.data)
        log_norm = log_integral(kernel, self.data)
        log_scale = largest if log_norm is None else largest - log_norm
        if self.transform is not None:
            log_scale = log_scale + self.transform.log_abs_det_jacobian(y)
        terms = Expansion(self.hyper.parameter_kernel, solved.points, solved.weights, log_scale)
        beta = self.hyper.parameter_kernel.length_scale
        log_largest, centre, spread, amplitude = describe_weights(self.z, log_kappa, solved, beta)
        return KernelMeansAt(
            terms, log_largest, centre, spread, largest - kernel.log_gram(seen, seen)[0, 0], amplitude, y
        )

    def _check_precision(self):
        single = jnp.result_type(float) == jnp.float32
        if single and checks.is_concrete(self.hyper.regularisation):
            lam = float(self.hyper.regularisation)
            checks.require(
                lam >= SMALLEST_SINGLE,
                f"lam = {lam:.1e} is too small to solve for a traced observation in float32 (at least {SMALLEST_SINGLE:.0e}). "
                "Turn on float64 by numpyro.enable_x64(), or pass a concrete observation, which is prepared in float64.",
            )

    def weights(self, y: Any) -> SignedLog:
        """`v(y)` as signs and logs; `q(y | z) = sum_j v_j(y) l(z_j, z)` over the simulations, `(m,)`, or over the pivots."""
        terms = self.at(y).terms
        return on_host(to_signed_log)(terms.weights, terms.log_scale)

    def dependence(self) -> np.ndarray:
        """Inverse squared length scales of the coordinates, `(D,)`."""
        return np.broadcast_to(1.0 / np.square(self.hyper.parameter_kernel.length_scale), self.dim)

    def variance(self, z: ArrayLike) -> jax.Array:
        r"""Variance of a Gaussian process with kernel `l` and noise `m lam` at points `(r, D)`, before any amplitude, `(r,)`.

        `l(z, z) - l(z)' (L + m lam I)^-1 l(z)`: between 0 near simulations and 1 far from all of them. Times
        `amplitude * exp(2 log_scale)` of `at(y)` it is a variance of `q(y | z)`: where further simulations tell most.
        """
        return self.solution.variance(self.hyper, self.z, jnp.asarray(z))

    def log_marginal(self, y: Any, measure: Measure) -> SignedLog:
        """Sign and log absolute value of `q(y) = v(y)' mu`, `mu_j = int l(z_j, t) p(dt)`.

        Raises:
            ValueError: If the data kernel is not a density in `y`.
        """
        self.require_density()
        return self.at(y).log_mean(measure)

    def require_density(self) -> None:
        """Raise unless the data kernel is a density in the observation."""
        checks.require(
            log_integral(self.hyper.data_kernel, self.data) is not None,
            f"{type(self.hyper.data_kernel).__name__} is not a density in the observation, so there is no marginal or "
            "predictive density; posteriors do not need one. Compare models by the leave-one-out score instead.",
        )

    def leave_one_out(self) -> LeaveOneOutScores:
        """Held-out quantities of every simulation, in closed form, as a refit without it would give at the same `m lam`.

        Cost: six dense matrices; at most 10,000 simulations.
        """
        checks.require(
            len(self.z) <= MOST_DENSE,
            f"Leaving out each of {len(self.z)} simulations takes {6 * 8 * len(self.z) ** 2 / 1e9:.0f} GB of dense matrices; at most "
            f"{MOST_DENSE} are taken. `summary` holds the scores of a random choice.",
        )
        return on_host(summaries.leave_one_out)(self.hyper, Bank(self.z, self.data))

    def relevance(self) -> np.ndarray:
        """Relevance of each raw statistic, `(n_raw,)`: what leaving it out costs.

        The drop of the mean held-out log posterior density of the simulated parameters (`LeaveOneOut`), in nats, when the
        statistic is taken out of the data kernel and everything else stays, over 2,000 simulations at most. 0 for constant
        statistics; noise around 0 for those that say nothing. Cost: one matrix product of size `m` for each statistic.
        """
        checks.require(
            isinstance(self.data, np.ndarray) and self.data.ndim == 2,
            "Relevance needs statistics `(m, n)`; these data are compared as a whole.",
        )
        drops = summaries.relevance(*_sample(self.hyper, self.z, self.data))
        if self.transform is None:
            return drops
        of_raw = np.zeros(self.transform.num_raw)
        of_raw[list(self.transform.kept)] = drops
        return of_raw

    def describe(self) -> Mapping[str, Any]:
        """What was learnt, which bounds were met, and what to look at."""
        described = {
            "form": "published kernel means likelihood",
            "beta": np.asarray(self.hyper.parameter_kernel.length_scale),
            "lam": float(self.hyper.regularisation),
            "leave-one-out score": float(self.summary.score),
            "negative share": float(self.summary.negative_share),
            **self.solution.describe(),
        }
        if isinstance(self.hyper.data_kernel, Gaussian):
            described["eps"] = np.asarray(self.hyper.data_kernel.length_scale)
        else:
            described["data kernel"] = str(self.hyper.data_kernel)
        return described | {"at bounds": "not learnt" if self.learnt is None else self.learnt.at_bounds(self.dim)}


_likelihood = jax.jit(KernelMeansSurrogate._likelihood)


def _simulations(z, x) -> tuple[np.ndarray, Any]:
    """Both tables on the host, checked."""
    checks.matrix("z", z, min_rows=2)
    z = np.array(z, np.float64)
    checks.finite("z", z)
    x = jax.tree.map(np.array, x)
    if isinstance(x, np.ndarray):
        x = x.astype(np.float64)
        checks.require(
            x.ndim >= 2 and len(x) == len(z),
            f"`z` and `x` must have one row for each simulation; got shapes {z.shape} and {x.shape}.",
        )
        checks.finite("x", x, "Leave out the simulations that failed.")
    return z, x


def _sample(hyper: Hyperparameters, z, data) -> tuple[Hyperparameters, Bank]:
    """At most about 2,000 simulations, with the noise variance `m lam` of all."""
    bank = part(Bank(z, data), MOST_HELD_OUT)
    return replace(hyper, regularisation=hyper.regularisation * len(z) / len(bank.z)), bank


def _seen(transform: StatisticsTransform | None, y: Any, data: Any) -> Any:
    """A bank with the observation alone, as the data kernel sees it; what a whole bank shares is left as it is."""
    if transform is not None:
        return transform.forward(jnp.asarray(y)[None, :])
    return jax.tree.map(
        lambda leaf, like: jnp.asarray(leaf)[None] if jnp.ndim(leaf) < jnp.ndim(like) else leaf, y, data
    )
