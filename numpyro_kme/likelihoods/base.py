"""What every form of the learnt likelihood offers: it as a function of coordinates, at known outputs prepared once."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.samplers.importance import signed_logs

SignedLog = tuple[Array, Array]
"""A signed number as `(sign, log of the absolute value)`: nothing underflows and no sign is lost."""


def to_signed_log(value: ArrayLike, log_scale: ArrayLike = 0.0) -> SignedLog:
    """`(sign, log |value| + log_scale)`; the logarithm of 0 is `-inf`, with gradient 0."""
    value = jnp.asarray(value)
    zero = value == 0
    log_size = jnp.where(zero, -jnp.inf, jnp.log(jnp.abs(jnp.where(zero, 1.0, value))))
    return jnp.sign(value), log_size + log_scale


def positive_part(value: ArrayLike, floor: ArrayLike) -> jax.Array:
    """Smooth positive part `(v + sqrt(v^2 + c^2)) / 2`.

    It exceeds `max(v, 0)` by at most `c / 2`, at `v = 0`, and by about `c^2 / (4 |v|)` away from it.
    """
    value = jnp.asarray(value)
    return 0.5 * (value + jnp.sqrt(jnp.square(value) + jnp.square(floor)))


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

    A frozen pytree: evaluate it under `jax.jit`, `jax.grad` and `jax.vmap`, in the precision of the caller.

    Attributes:
        data: The observation `y`.
    """

    data: Any

    @abc.abstractmethod
    def signed_log(self, z: ArrayLike) -> SignedLog:
        """Sign and log absolute value of `q(y | z)` at one point `z` of shape `(D,)`.

        `q` may be negative for a finite number of simulations; it is handed out as it is.
        """

    @abc.abstractmethod
    def log_density(self, z: ArrayLike) -> jax.Array:
        """Logarithm of a positive version of `q(y | z)` at one point, for samplers that follow gradients.

        It equals `log q` up to a stated error where `q` is well above zero; elsewhere its gradient is finite and leads
        back to the simulations that look like `y`. Never a flat floor.
        """

    def brief(self) -> "LikelihoodAt":
        """The same with the parts in which nothing cancels in float32, for samplers that only compare values."""
        return self

    def log_mean(self, measure: Measure) -> SignedLog:
        """Sign and log absolute value of `int q(y | z) p(dz)` for a measure `p`.

        In closed form where `q(y | .)` is an expansion whose kernel `p` can be integrated against; otherwise over the
        points that stand for `p`.
        """
        terms = self.expansion()
        if terms is not None:
            value = jnp.asarray(terms.weights) @ measure.mean_embedding(terms.kernel, terms.points)
            return to_signed_log(value, terms.log_scale)
        points = measure.as_points()
        return self.log_sum(jnp.asarray(points.points), points.probabilities)

    def log_sum(self, z: jax.Array, weights: jax.Array) -> SignedLog:
        """Sign and log absolute value of `sum_i weights_i q(y | z_i)` over points `(n, D)`."""
        signs, log_sizes = signed_logs(self, z)
        log_size, sign = logsumexp(log_sizes, b=signs * weights, return_sign=True)
        return sign, log_size

    def expansion(self) -> KernelExpansion | None:
        """`q(y | .)` as a weighted sum of kernels, where it is one; `None` where functionals need particles."""
        return None


class Surrogate(abc.ABC):
    """A likelihood of raw statistics `y` given coordinates `z`, learnt from simulations `{(z_j, x_j)}`.

    A frozen pytree whose arrays are NumPy float64, so that it works in sessions of either precision.
    Coordinates are about standard normal under the prior. A form of the surrogate is a settings object with
    `fit(z, x, ...) -> Surrogate`.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of coordinates `D`."""

    @abc.abstractmethod
    def at(self, y: Any) -> LikelihoodAt:
        """The likelihood at one observation; a concrete `y` is prepared in float64 on the host, a traced one here."""

    def point(self, y: Any) -> Any:
        """Read one output `(*event)` of a simulator as what `at` takes; here a vector."""
        return y.reshape(-1)

    def informativeness(self) -> tuple[str, np.ndarray]:
        """A measure of what each raw statistic says about the parameters, by name, and its values `(n_raw,)`, in nats;
        raises where the form has none."""
        raise NotImplementedError(f"{type(self).__name__} has no measure of what single statistics say.")

    def variance(self, z: ArrayLike) -> jax.Array:
        """Variance of the surrogate at points `(r, D)`, 1 far from all simulations; raises if the form has none."""
        raise NotImplementedError(f"{type(self).__name__} has no Gaussian-process variance.")

    @abc.abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """What was learnt and what to look at, in words and numbers, for a person."""

    def describe_observation(self, y: Any) -> str:
        """Where an observation lies among the simulations, in a sentence; empty where the form does not say."""
        return ""

    def dependence(self) -> np.ndarray:
        """How much the likelihood depends on each coordinate, `(D,)`: squared distances from the simulations are
        weighted by it."""
        return np.ones(self.dim)

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Whether a vector of statistics `(..., n)` cannot come from coordinates `(..., D)`, as far as is known."""
        return np.zeros(np.broadcast_shapes(y.shape[:-1], z.shape[:-1]), bool)

    def require_density(self) -> None:  # noqa: B027
        """Raise where `q(y | z)` is not a density in `y`, so that marginals and predictions mean nothing."""

    def signed_log_density(self, z: ArrayLike, y: Any) -> SignedLog:
        """Sign and log absolute value of `q(y | z)` for one `z` of shape `(D,)`; use `at(y)` for many."""
        return self.at(y).signed_log(jnp.asarray(z))


class Form(abc.ABC):
    """Settings of one form of the surrogate: how a likelihood is learnt from simulations."""

    def points(self, x: Any) -> Any:
        """Read outputs `(n, *event)` of a simulator as what `fit` takes; here vectors."""
        return x.reshape(len(x), -1)

    def point(self, y: Any) -> Any:
        """Read one output `(*event)`."""
        return y.reshape(-1)

    @abc.abstractmethod
    def fit(self, z: ArrayLike, x: Any, *, measure: Any = None, y: Any = None) -> Surrogate:
        """Learn a surrogate.

        Args:
            z: Coordinates of the simulations, `(m, D)`, from any proposal.
            x: Raw statistics `(m, n)`, or a pytree of `m` data points.
            measure: The prior in coordinates, for objectives and reports that need one.
            y: The observation, for objectives that need it.
        """


@register
class PreparedLikelihood:
    """The likelihood at outputs `(*lead, *event)`, as a function of parameters.

    Attributes:
        likelihood: A `LikelihoodAt`; leaves that depend on the output have leading dimensions `lead`.
        value: The outputs.
        mask: Which outputs count.
        lead: Leading dimensions of the outputs.
        varies: Which leaves depend on the output.
    """

    likelihood: LikelihoodAt
    value: Any
    mask: Any
    lead: tuple[int, ...] = field(metadata=dict(static=True))
    varies: tuple[bool, ...] = field(metadata=dict(static=True))

    @classmethod
    def of(cls, fitted: Any, value: ArrayLike, mask: ArrayLike = True) -> "PreparedLikelihood":
        """Prepare on the host where everything is concrete, in place otherwise.

        `fitted` is a pytree with a likelihood `at` every output, and the shape of one, `event_shape`.
        """
        concrete = checks.is_concrete((value, fitted))
        data: Any = np.asarray(value) if concrete else jnp.asarray(value)
        checks.real("value", data)
        lead = data.shape[: data.ndim - len(fitted.event_shape)]
        checks.require(
            data.shape[len(lead) :] == fitted.event_shape,
            f"`value` must have shape (..., *{fitted.event_shape}), as the simulated outputs have; got {data.shape}.",
        )
        rows = data.reshape(-1, *fitted.event_shape)
        mask = mask if concrete and np.shape(mask) == lead else True
        if concrete:
            if not np.all(mask):  # one that counts in place of those that do not
                rows = rows[np.where(np.ravel(mask), np.arange(len(rows)), np.argmax(mask))]
            leaves, structure, varies = _prepare(fitted, rows)
        else:
            leaves, structure = jax.tree.flatten(jax.vmap(fitted.at)(rows))
            varies = [True] * len(leaves)
        shaped = [leaf.reshape((*lead, *leaf.shape[1:])) if moves else leaf for leaf, moves in zip(leaves, varies)]
        return cls(structure.unflatten(shaped), data, mask, lead, tuple(varies))

    def is_for(self, value: ArrayLike) -> bool:
        """Whether `value` is what was prepared; one that is traced can only be that."""
        if not checks.is_concrete((value, self.value, self.mask)):
            return True
        new, known = np.asarray(value), np.asarray(self.value)
        return new.shape == known.shape and np.array_equal(new[self.mask], known[self.mask])

    def over(self, function: Callable, arguments: jax.Array) -> jax.Array:
        """`function(likelihood, arguments)` for one output and one call's arguments, over the broadcast batch shape.

        What does not vary along a dimension is evaluated once for it.
        """
        batch = np.broadcast_shapes(self.lead, arguments.shape[:-1])
        mine, theirs = _axes(self.lead, batch), _axes(arguments.shape[:-1], batch)
        structure: Any
        leaves, structure = jax.tree.flatten(self.likelihood)
        kept, behind = _kept(mine, batch), len(self.lead)
        leaves = [
            leaf.reshape(*kept, *leaf.shape[behind:]) if moves else leaf
            for leaf, moves in zip(map(jnp.asarray, leaves), self.varies)
        ]
        for ours, args in zip(reversed(mine), reversed(theirs)):
            axes = structure.unflatten([ours if moves else None for moves in self.varies])
            function = jax.vmap(function, in_axes=(axes, args))
        return function(structure.unflatten(leaves), arguments.reshape(*_kept(theirs, batch), arguments.shape[-1]))


def _axes(lead: tuple[int, ...], batch: tuple[int, ...]) -> list[int | None]:
    """For each dimension of `batch` 0 where `lead` runs along it."""
    padded = (1,) * (len(batch) - len(lead)) + lead
    return [0 if size == whole else None for size, whole in zip(padded, batch)]


def _kept(axes: list[int | None], batch: tuple[int, ...]) -> list[int]:
    return [size for size, axis in zip(batch, axes) if axis == 0]


def _prepare(fitted: Any, rows: np.ndarray) -> tuple[list, Any, list[bool]]:
    """Leaves and structure of the likelihood at outputs `(R, *event)`, and which leaves differ between them.

    The outputs that are extreme in some statistic go through the checks of `fitted.at`; all are prepared together.
    """
    checks.finite("value", rows)
    columns = rows.reshape(len(rows), -1)
    extreme = np.unique([np.argmin(columns, axis=0), np.argmax(columns, axis=0)])
    checked = [fitted.at(rows[i]) for i in extreme]
    if len(rows) == 1:
        leaves, structure = jax.tree.flatten(checked[0])
        return [leaf[None] for leaf in leaves], structure, [True] * len(leaves)
    leaves, structure = jax.tree.flatten(on_host(_at_rows)(fitted, rows.astype(np.float64)))
    varies = [any(not np.array_equal(row, leaf[0]) for row in leaf[1:]) for leaf in leaves]
    varies[-1] = True
    return [leaf if moves else leaf[0] for leaf, moves in zip(leaves, varies)], structure, varies


_at_rows = jax.jit(lambda fitted, rows: jax.vmap(fitted.at)(rows))
