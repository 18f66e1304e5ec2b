"""The kernel interface: an author writes one pair of points, the base class batches and combines."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks

Points = Any
"""A pytree whose leaves share their leading axis: `(n, dim)` vectors, `(n, size, dim)` data sets, ..."""

T = TypeVar("T")

MAX_DIFFERENCES = 32
"""Largest number of dimensions in which distances are sums of squared differences."""


@dataclass_transform(frozen_default=True)
def register(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of its own and register it as a pytree.

    Fields are leaves; those marked `field(metadata=dict(static=True))` are structure. `__post_init__` checks
    what a user passes, and is skipped when JAX rebuilds an object: a gradient, an axis number or a
    placeholder is no length scale.
    """
    cls = dataclass(frozen=True)(cls)
    members = fields(cls)  # type: ignore[arg-type]
    static = tuple(f.name for f in members if f.metadata.get("static", False))
    leaves = tuple(f.name for f in members if f.name not in static)

    def flatten(instance):
        return [getattr(instance, name) for name in leaves], tuple(getattr(instance, name) for name in static)

    def flatten_with_keys(instance):
        children, structure = flatten(instance)
        return list(zip(map(jax.tree_util.GetAttrKey, leaves), children)), structure

    def unflatten(structure, children):
        instance = object.__new__(cls)
        for name, value in (*zip(leaves, children), *zip(static, structure)):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


class Kernel:
    """A positive definite function `k(a, b)` of two points.

    A family implements `pair` (or `log_pair`, when the kernel is positive and its logarithm is simpler);
    everything else follows. `a` and `b` are single points without a batch axis: a vector `(dim,)`, or any
    pytree of arrays that the kernel understands. Kernels are frozen pytrees, so hyperparameters can be
    traced, differentiated and vmapped.
    """

    def pair(self, a: Any, b: Any) -> jax.Array:
        """Value `k(a, b)` for one pair of points."""
        return jnp.exp(self.log_pair(a, b))

    def log_pair(self, a: Any, b: Any) -> jax.Array:
        """Logarithm `log k(a, b)` for one pair of points; only for kernels that are positive."""
        return jnp.log(self.pair(a, b))

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if cls.pair is Kernel.pair and cls.log_pair is Kernel.log_pair:
            raise TypeError(f"{cls.__name__} must implement `pair(a, b)` or `log_pair(a, b)` for one pair of points.")

    def __call__(self, a: Any, b: Any) -> jax.Array:
        """Value `k(a, b)` for one pair of points."""
        return self.pair(a, b)

    def gram(self, x: Points, y: Points | None = None) -> jax.Array:
        """Matrix `k(x_i, y_j)`, `(n, m)`; `y` is `x` when left out. Cost: `n * m` evaluations."""
        return pairwise(self.pair, x, x if y is None else y)

    def log_gram(self, x: Points, y: Points | None = None) -> jax.Array:
        """Matrix `log k(x_i, y_j)`, `(n, m)`, that does not underflow where the kernel does."""
        return pairwise(self.log_pair, x, x if y is None else y)

    def diagonal(self, x: Points) -> jax.Array:
        """Values `k(x_i, x_i)`, `(n,)`."""
        return jax.vmap(lambda a: self.pair(a, a))(x)

    def points(self, x: Any) -> Points:
        """Read arrays `(n, *event)`, one array for each point, as points of this kernel; here vectors `(n, dim)`."""
        return x.reshape(len(x), -1)

    def point(self, y: Any) -> Any:
        """Read one array `(*event)` as one point."""
        return self.points(y[None])[0]

    def log_integral(self, dim: int) -> jax.Array:
        """Logarithm of `int k(a, b) da` over `R^dim`, where it exists and does not depend on `b`.

        `k(a, b) / exp(log_integral(dim))` is a density in `a`: this is what makes an epsilon-kernel of `k`.
        """
        raise ValueError(
            f"{type(self).__name__} cannot be normalised to a density over vectors, so it has no marginal "
            "or predictive density; posteriors do not need one. Use Gaussian, Laplace, Matern or "
            "RationalQuadratic for densities."
        )

    def __add__(self, other: "Kernel") -> "Kernel":
        from numpyro_kme.kernels.algebra import Sum

        return Sum((self, other))

    def __mul__(self, other: "Kernel | float") -> "Kernel":
        from numpyro_kme.kernels.algebra import Product, Scaled

        return Product((self, other)) if isinstance(other, Kernel) else Scaled(self, other)

    __rmul__ = __mul__


class Signed(Kernel):
    """A kernel that takes negative values: it has no logarithm, and no density."""

    def log_pair(self, a, b):
        """Raise: the logarithm does not exist."""
        raise ValueError(
            f"{type(self).__name__} takes negative values, so it has no logarithm and cannot be an "
            "epsilon-kernel; use a positive kernel such as Gaussian there."
        )


def check_fields(kernel: Kernel, check: Callable[[str, Any], None], *names: str) -> None:
    """Run `check(name, value)` on fields in a `__post_init__`, where sequences of numbers become arrays."""
    for name in names:
        value = getattr(kernel, name)
        if isinstance(value, list | tuple):
            value = np.asarray(value) if checks.is_concrete(value) else jnp.asarray(value)
            object.__setattr__(kernel, name, value)
        check(name, value)


def num_points(points: Points) -> int:
    """Number of points in a pytree whose leaves share their leading axis."""
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(points)}
    checks.require(
        len(lengths) == 1 and () not in lengths,
        f"Points must be arrays that share their leading axis; got shapes {jax.tree.map(np.shape, points)}.",
    )
    return lengths.pop()[0]


def pairwise(function, x: Points, y: Points) -> jax.Array:
    """Matrix `function(x_i, y_j)`, `(n, m)`, of a function of one pair."""
    return jax.vmap(lambda a: jax.vmap(lambda b: function(a, b))(y))(x)


def scaled(x: jax.Array, y: jax.Array | None, length_scale: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Points in units of the length scale, a scalar or `(dim,)`; `y` is `x` when left out."""
    checks.matrix("x", x)
    checks.sound("x", x)
    dim = jnp.shape(x)[1]
    if y is not None:
        checks.matrix("y", y, columns=dim)
        checks.sound("y", y)
    shape = jnp.shape(length_scale)
    checks.require(
        shape in ((), (1,), (dim,)),
        f"`length_scale` must be a scalar or have shape ({dim},), one per column of the points; got {shape}.",
    )
    scale = jnp.broadcast_to(jnp.asarray(length_scale), (1, dim))
    x = x / scale
    return x, x if y is None else y / scale


def scaled_difference(a: jax.Array, b: jax.Array, length_scale: ArrayLike) -> jax.Array:
    """Difference of two points in units of the length scale, a scalar or `(dim,)`."""
    shape = jnp.shape(length_scale)
    checks.require(
        shape in ((), (1,), jnp.shape(a)),
        f"`length_scale` must be a scalar or have the shape of a point, {jnp.shape(a)}; got {shape}.",
    )
    return (a - b) / length_scale


def safe_sqrt(s: jax.Array) -> jax.Array:
    """Square root whose gradient at 0 is 0 instead of infinite."""
    positive = s > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, s, 1.0)), 0.0)


def products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix of inner products `<x_i, y_j>`, `(n, m)`, in full precision on every device."""
    return jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)


@jax.custom_jvp
def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix `|x_i - y_j|^2` between `(n, dim)` and `(m, dim)`, with no `(n, m, dim)` temporary.

    Up to 32 dimensions, differences are squared and added one dimension at a time: coincident points are
    exactly at distance 0, and float32 keeps its relative precision far from the origin. Above, one matrix
    product of centred points is much faster; what it cannot tell from 0 is 0. Derivatives are matrix
    products, `d s_ij = 2 (x_i - y_j).(dx_i - dy_j)`.
    """
    return _by_differences(x, y) if x.shape[1] <= MAX_DIFFERENCES else _by_products(x, y)


@squared_distances.defjvp
def _squared_distances_jvp(points, tangents):
    (x, y), (dx, dy) = points, tangents
    distances = squared_distances(x, y)
    x, y = _centred(x, y)
    own = jnp.sum(x * dx, axis=1)[:, None] + jnp.sum(y * dy, axis=1)[None, :]
    return distances, 2.0 * (own - products(x, dy) - products(dx, y))


@partial(jax.jit, inline=True)  # a loop outside of a program would be compiled anew in each call
def _by_differences(x, y):
    def add(total, columns):
        a, b = columns
        return total + jnp.square(a[:, None] - b[None, :]), None

    start = jnp.zeros((x.shape[0], y.shape[0]), jnp.result_type(x, y))
    return jax.lax.scan(add, start, (x.T, y.T), unroll=4)[0]


@partial(jax.jit, inline=True)
def _by_products(x, y):
    """`|x|^2 + |y|^2 - 2 x.y`; rounding errors of the products are about `eps sqrt(dim)` of the norms."""
    x, y = _centred(x, y)
    own = jnp.sum(jnp.square(x), axis=1)[:, None] + jnp.sum(jnp.square(y), axis=1)[None, :]
    distances = own - 2.0 * products(x, y)
    resolution = 4.0 * x.shape[1] ** 0.5 * jnp.finfo(distances.dtype).eps
    return jnp.where(distances > resolution * own, distances, 0.0)


def _centred(x, y):
    """Both point sets shifted alike: distances and their derivatives stay, and lose fewer digits."""
    centre = jax.lax.stop_gradient(jnp.mean(x, axis=0, keepdims=True))
    return x - centre, y - centre
