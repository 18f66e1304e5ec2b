"""What every form of the learnt likelihood offers: it as a function of coordinates, at known outputs prepared once."""

import abc
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import Array, Card, Recomputed, checks, short
from numpyro_kme.kernels.base import namespace, register, take
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.extrapolation import Region

SignedLog = tuple[Array, Array]
"""A signed number as `(sign, log of the absolute value)`: nothing underflows and no sign is lost."""


def to_signed_log(value: Any, log_scale: Any = 0.0) -> SignedLog:
    """`(sign, log |value| + log_scale)`; the logarithm of 0 is `-inf`, with gradient 0."""
    xp, zero = namespace(value, log_scale), value == 0
    log_size = xp.where(zero, -np.inf, xp.log(xp.abs(xp.where(zero, 1.0, value))))
    return xp.sign(value), log_size + log_scale


def positive_part(value: Any, floor: Any, xp: Any = jnp) -> Any:
    """Smooth positive part `(v + sqrt(v^2 + c^2)) / 2`.

    It exceeds `max(v, 0)` by at most `c / 2`, at `v = 0`, and by about `c^2 / (4 |v|)` away from it.
    """
    value = xp.asarray(value)
    found = xp.square(value)
    found += floor**2
    found = xp.sqrt(found)
    found += value  # in place by NumPy
    found *= 0.5
    return found


def log_positive_part(value: Any, log_floor: Any) -> Any:
    """Logarithm of `positive_part(value, exp(log_floor))`, `log(c / 2) + arcsinh(v / c)`, safe at every magnitude.

    Its gradient is finite everywhere: that of `log v` where `v` is large, and that of the floor where `v` vanishes.
    """
    xp = namespace(value, log_floor)
    value, log_floor = xp.asarray(value), xp.asarray(log_floor)
    far = xp.abs(value) > xp.exp(log_floor)
    small = log_floor - np.log(2.0) + xp.arcsinh(xp.where(far, 0.0, value * xp.exp(xp.minimum(-log_floor, 80.0))))
    log_size = xp.log(xp.where(far, xp.abs(value), 1.0))
    ratio = xp.where(far, xp.exp(xp.where(far, log_floor - log_size, 0.0)), 1.0)
    log_half = xp.log1p(xp.sqrt(1.0 + xp.square(ratio))) - np.log(2.0)
    above = log_size + log_half
    below = 2.0 * (log_floor - np.log(2.0)) - log_size - log_half
    return xp.where(far, xp.where(value > 0, above, below), small)


@register
class KernelExpansion:
    """A function `z -> exp(log_scale) sum_j weights_j k(points_j, z)` on coordinates.

    Args:
        kernel: `k`.
        points: Centres of the kernels, `(m, D)`.
        weights: Weights of either sign, `(m,)`.
        log_scale: Log of the common factor, a scalar.
    """

    kernel: Gaussian
    points: Array
    weights: Array
    log_scale: Array


class LikelihoodAt(abc.ABC):
    """The learnt likelihood `z -> q(y | z)` at one observation `y`, with all work that depends on `y` alone done.

    A frozen pytree: evaluate it under `jax.jit`, `jax.grad` and `jax.vmap`, in the precision of the caller, or by NumPy
    in float64, where all arrays are NumPy's. What depends on the observation may have leading axes, which NumPy
    broadcasts against those of the points.
    """

    def signed_log(self, z: Any) -> SignedLog:
        """Sign and log absolute value of `q(y | z)` at points `(..., D)`; here 1 and `log_density`, of a density.

        `q` may be negative for a finite number of simulations; it is handed out as it is.
        """
        value = self.log_density(z)
        return namespace(value).ones_like(value), value

    @abc.abstractmethod
    def log_density(self, z: Any) -> Any:
        """Logarithm of a positive version of `q(y | z)` at points `(..., D)`, for samplers that follow gradients.

        It equals `log q` up to a stated error where `q` is well above zero; elsewhere its gradient is finite and leads
        back to the simulations that look like `y`. Never a flat floor.
        """

    def guided(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates that take the place of `(k, D)`, normal numbers of a sampler, and the log of the ratio of their
        prior density and that with which this draws them, `(k,)`; here as they are."""
        return z, np.zeros(len(z))

    def brief(self) -> "LikelihoodAt":
        """A copy with the parts in which nothing cancels in float32, for samplers that only compare values."""
        return self

    def expansion(self) -> KernelExpansion | None:
        """`q(y | .)` as a weighted sum of kernels, where it is one; `None` where functionals need particles."""
        return None


class Surrogate(Recomputed, abc.ABC):
    """A likelihood of raw statistics `y` given coordinates `z`, learnt from simulations `{(z_j, x_j)}`.

    A frozen pytree whose arrays are NumPy float64, so that it works in sessions of either precision.
    Coordinates are about standard normal under the prior. A form of the surrogate is a settings object with
    `fit(z, x, ...) -> Surrogate`.

    Attributes:
        region: Simulated region of the coordinates, in which each counts as much as the likelihood depends on it.
    """

    region: Region

    records: ClassVar[bool] = False
    """Whether NaN in an output is what the simulator gives, and not what is unknown."""

    def _card(self) -> Card:
        said = dict(self.describe())
        title = str(said.pop("form", type(self).__name__))
        return Card(title, {name: short(value) for name, value in said.items()}, "at(y) gives the likelihood of y")

    def named(self, names: Sequence[str]) -> Self:
        """A copy with names of the statistics, `(n_raw,)`, which what is reported uses; here as it is."""
        return self

    def marginal(self, seen: np.ndarray, last: np.ndarray | None = None) -> Self:
        """The likelihood of the statistics that are marked, `(n_raw,)`, whatever the others are.

        It takes observations `(n_raw,)` too, with NaN where nothing was observed. Each pattern is worked out once.
        Where the form has an order, those that `last` marks come last in it.

        Raises:
            ValueError: If none of the statistics that are observed varies over the simulations.
            NotImplementedError: If the form compares data as a whole.
        """
        last = np.zeros_like(seen) if last is None else last
        if seen.all() and not last.any():
            return self
        pattern = seen.tobytes(), last.tobytes()
        if pattern not in self._marginals:
            self._marginals[pattern] = self._marginal(seen, last)
        return self._marginals[pattern]

    @cached_property
    def _marginals(self) -> dict[tuple[bytes, bytes], Any]:
        return {}

    def within(self, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> LikelihoodAt:
        """The likelihood at outputs `(R, n_raw)`, NaN where they are not known but to lie between `low` and `high`,
        which may be infinite; the same entries of each. As in `at_rows`, nothing is checked."""
        raise checks.explained(
            f"{type(self).__name__} has no likelihood of intervals. Use form=ResidualKernelMeans().",
            NotImplementedError,
        )

    def _marginal(self, seen: np.ndarray, last: np.ndarray) -> Any:
        """Work out `marginal`."""
        raise checks.explained(
            f"{type(self).__name__} compares data as a whole, and {np.sum(~seen)} of {seen.size} entries of the "
            "observation are NaN, not observed. Use form=ResidualKernelMeans(), or KernelMeans() with no data kernel.",
            NotImplementedError,
        )

    @abc.abstractmethod
    def at(self, y: Any) -> LikelihoodAt:
        """The likelihood at one observation; a concrete `y` is prepared in float64 on the host, a traced one here."""

    @abc.abstractmethod
    def at_rows(self, rows: Any, axes: int = 1) -> LikelihoodAt:
        """The likelihood at several outputs `(*lead, *event)`, with so many leading axes, that need no check: what
        depends on the output has axes `lead` in front."""

    def point(self, y: Any) -> Any:
        """Read one output `(*event)` of a simulator as what `at` takes; here a vector."""
        return y.reshape(-1)

    def informativeness(self) -> tuple[str, np.ndarray]:
        """A measure of what each statistic says about the parameters, by name, and its values in nats, `(n_raw,)`, or
        `(k,)` of statistics that were learnt; raises where the form has none."""
        raise checks.explained(f"{type(self).__name__} has no measure of what statistics say.", NotImplementedError)

    def variance(self, z: np.ndarray) -> np.ndarray:
        """Variance of the surrogate at points `(r, D)`, 1 far from all simulations; raises if the form has none."""
        raise checks.explained(f"{type(self).__name__} has no Gaussian-process variance.", NotImplementedError)

    @abc.abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Report what was learnt and what to look at, in words and numbers, for a person."""

    def describe_observation(self, y: Any, z: np.ndarray) -> Mapping[str, str]:
        """Lines on an observation: where it lies among the simulations, and beside what the model makes at posterior
        draws `(n, D)`; none where the form does not say."""
        return {}

    def misfit(self, y: Any, z: np.ndarray) -> dict[str, float]:
        """Say how far each statistic of an observation is from simulations at posterior draws `(n, D)`, in their
        standard deviations, given the statistics before it; none where the form does not say."""
        return {}

    @property
    def moves(self) -> bool:
        """Tell whether the parameters move a statistic, and do not only make its values more or less probable."""
        return True

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Tell whether statistics `(..., n)` cannot come from coordinates `(..., D)`, as far as is known."""
        return np.zeros(np.broadcast_shapes(y.shape[:-1], z.shape[:-1]), bool)

    def require_density(self) -> None:
        """Raise where `q(y | z)` is not a density in `y`, so that marginals and predictions mean nothing."""


def simulated(z: ArrayLike, x: Any) -> tuple[np.ndarray, Any]:
    """Coordinates `(m, D)` and raw statistics `(m, n)`, or a pytree of `m` data points, on the host, checked."""
    checks.table("z", z, min_rows=2)
    z, x = np.array(z, np.float64), jax.tree.map(np.array, x)
    if isinstance(x, np.ndarray):
        x = x.astype(np.float64)
        fits = x.ndim >= 2 and len(x) == len(z)
        checks.require(fits, f"`z` and `x` must have one row for each simulation; got shapes {z.shape} and {x.shape}.")
        checks.sound("x", x, "Leave out the simulations that failed.")
    return z, x


class Form(abc.ABC):
    """Settings of one form of the surrogate: how a likelihood is learnt from simulations.

    Attributes:
        most_calls: About how many calls are learnt from where a simulation has several, along plates; one of each at
            least.
        fewest: Of fewer simulations nothing is learnt.
    """

    most_calls: ClassVar[int] = 2000
    fewest: ClassVar[int] = 10

    def points(self, x: Any) -> Any:
        """Read outputs `(n, *event)` of a simulator as what `fit` takes; here vectors."""
        return x.reshape(len(x), -1)

    @abc.abstractmethod
    def fit(self, z: ArrayLike, x: Any, *, measure: Any = None, y: Any = None) -> Surrogate:
        """Learn a surrogate.

        Args:
            z: Coordinates of the simulations, `(m, D)`, from any proposal.
            x: Raw statistics `(m, n)`, or a pytree of `m` data points.
            measure: The prior in coordinates, for objectives and reports that need one.
            y: The observation, for objectives that need it.
        """

    def again(
        self, learnt: Any, z: np.ndarray, x: Any, rows: np.ndarray, *, measure: Any = None, y: Any = None
    ) -> Surrogate:
        """Learn from some of the simulations what `fit` has `learnt` from all of them, which may say how; here anew.

        Args:
            learnt: The surrogate of all simulations.
            z, x, measure, y: As `fit` takes them.
            rows: Numbers of the simulations.
        """
        return self.fit(z[rows], take(x, rows), measure=measure, y=y)
