"""The kernel interface: an author writes one pair of points, the base class batches; callables as kernels."""

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, solves
from numpyro_kme._core.display import frozen
from numpyro_kme._core.saving import saveable

PointSet = Any
"""A pytree whose leaves share their leading axis: `(n, dim)` vectors, `(n, size, dim)` data sets, ..."""


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def register(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of its own and register it as a pytree.

    Files can hold it, too (`_core/saving`). Fields are leaves; those marked `field(metadata=dict(static=True))` are
    structure. `__post_init__` checks what a user passes, and is skipped when JAX rebuilds an object: a gradient, an
    axis number or a placeholder is no length scale.
    """
    cls = frozen(cls)
    members = fields(cls)  # type: ignore[arg-type]
    static = tuple(f.name for f in members if f.metadata.get("static", False))
    leaves = tuple(f.name for f in members if f.name not in static)

    keys = [jax.tree_util.GetAttrKey(name) for name in leaves]

    def flatten(instance):
        children = [(key, getattr(instance, name)) for key, name in zip(keys, leaves)]
        return children, tuple(getattr(instance, name) for name in static)

    def unflatten(structure, children):
        instance = object.__new__(cls)
        for name, value in (*zip(leaves, children), *zip(static, structure)):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return saveable(cls)


class Kernel:
    """A positive definite function `k(a, b)` of two points.

    A family implements `pair` (or `log_pair`, when the kernel is positive and its logarithm is simpler);
    everything else follows. `a` and `b` are single points without a batch axis: a vector `(dim,)`, or any
    pytree of arrays that the kernel understands. Kernels are frozen pytrees, so hyperparameters can be
    traced, differentiated and vmapped.
    """

    any_length: ClassVar[bool] = False
    """Whether `points` reads rows of NaN at the end of an array as rows behind its end (`kernels.pad`)."""

    symmetric: ClassVar[bool] = True
    """Whether it is a positive definite kernel, with `k(a, b) = k(b, a)`, and not only a density of its first point."""

    def pair(self, a: Any, b: Any) -> jax.Array:
        """Value `k(a, b)` for one pair of points."""
        return jnp.exp(self.log_pair(a, b))

    def log_pair(self, a: Any, b: Any) -> jax.Array:
        """Logarithm `log k(a, b)` for one pair of points; only for kernels that are positive."""
        return jnp.log(self.pair(a, b))

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if cls.pair is Kernel.pair and cls.log_pair is Kernel.log_pair:
            raise checks.explained(
                f"{cls.__name__} must implement `pair(a, b)` or `log_pair(a, b)` for one pair of points.", TypeError
            )

    def __call__(self, a: Any, b: Any) -> jax.Array:
        """Value `k(a, b)` for one pair of points."""
        return self.pair(a, b)

    def gram(self, x: PointSet, y: PointSet | None = None) -> jax.Array:
        """Matrix `k(x_i, y_j)`, `(n, m)`; `y` is `x` when left out. Cost: `n * m` evaluations.

        The exponential of `log_gram` where a family implements that, and no `pair`.
        """
        family = type(self)
        if family.pair is Kernel.pair and family.log_gram is not Kernel.log_gram:
            return jnp.exp(self.log_gram(x, y))
        return pairwise(self.pair, x, x if y is None else y)

    def log_gram(self, x: PointSet, y: PointSet | None = None) -> jax.Array:
        """Matrix `log k(x_i, y_j)`, `(n, m)`, that does not underflow where the kernel does."""
        return pairwise(self.log_pair, x, x if y is None else y)

    def diagonal(self, x: PointSet) -> jax.Array:
        """Values `k(x_i, x_i)`, `(n,)`."""
        return jax.vmap(lambda a: self.pair(a, a))(x)

    def points(self, x: Any) -> PointSet:
        """Read arrays `(n, *event)`, one array for each point, as points of this kernel; here vectors `(n, dim)`."""
        return x.reshape(len(x), -1)

    def point(self, y: Any) -> Any:
        """Read one array `(*event)` as one point."""
        return jax.tree.map(lambda leaf: leaf[0], self.points(y[None]))

    def log_integral(self, dim: int) -> jax.Array:
        """Logarithm of `int k(a, b) da` over `R^dim`, where it exists and does not depend on `b`.

        `k(a, b) / exp(log_integral(dim))` is a density in `a`: this is what makes an epsilon-kernel of `k`.
        """
        raise checks.explained(
            f"{type(self).__name__} has no `log_integral`, so it cannot be normalised to a density over vectors for a "
            "marginal or predictive density; posteriors do not need one. Use Gaussian, Laplace, Matern or "
            "RationalQuadratic for densities, or write `log_integral` where the integral exists."
        )

    def __add__(self, other: "Kernel") -> "Kernel":
        from numpyro_kme.kernels.algebra import Sum

        return Sum((self, other))

    def __mul__(self, other: "Kernel | float") -> "Kernel":
        from numpyro_kme.kernels.algebra import Product, Scaled

        return Product((self, other)) if isinstance(other, Kernel) else Scaled(self, other)

    __rmul__ = __mul__


class OverLengthScale:
    """Base of kernels with a length scale, which has to be positive."""

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")


class OfArrays:
    """Base of kernels whose points are arrays of any shape."""

    def points(self, x):
        """Read arrays `(n, *event)` as they are."""
        return x


class Signed(Kernel):
    """A kernel that takes negative values: it has no logarithm, and no density."""

    def log_pair(self, a, b):
        """Raise: the logarithm does not exist."""
        raise checks.explained(
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


def num_points(points: PointSet) -> int:
    """Number of points in a pytree whose leaves share their leading axis."""
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(points)}
    checks.require(
        len(lengths) == 1 and () not in lengths,
        f"Points must be arrays that share their leading axis; got shapes {jax.tree.map(np.shape, points)}.",
    )
    return lengths.pop()[0]


def pairwise(function, x: PointSet, y: PointSet) -> jax.Array:
    """Matrix `function(x_i, y_j)`, `(n, m)`, of a function of one pair."""
    return jax.vmap(lambda a: jax.vmap(lambda b: function(a, b))(y))(x)


@register
class FromCallable(OfArrays, Kernel):
    r"""Kernel `k(a, b) = fn(a, b)` of a callable.

    With `host=True`, `fn` is plain Python and is called once per pair with NumPy arrays. Strings, graphs and
    sets are then compared by number, on points `np.arange(len(words))`:

        FromCallable(lambda i, j: compare(words[int(i)], words[int(j)]), host=True)

    A kernel with hyperparameters to learn is a subclass of `Kernel` with a `pair` method.

    Args:
        fn: `(a, b) -> float`, symmetric and positive definite; for logarithms also positive. It is part of
            the compiled program: pass the same function object again to avoid compiling again.
        host: Whether `fn` runs in Python rather than being traced by JAX. It must not call JAX, and has no
            gradient.
    Raises:
        FloatingPointError: From `log_gram`, if `fn` is negative or NaN for some pair. (Under `jax.jit` values
            are NaN.)
    Cost: one call per pair; with `host=True`, in a Python loop.
    """

    fn: Callable[[Any, Any], Any] = field(metadata=dict(static=True))
    host: bool = field(default=False, metadata=dict(static=True))

    def __post_init__(self):
        checks.require(callable(self.fn), f"`fn` must be callable as fn(a, b); got {self.fn!r}.", TypeError)

    def pair(self, a, b):
        """Value of the callable for one pair of points."""
        if self.host:
            return _on_host(self._call, (), a, b)
        value = jnp.asarray(self._call(a, b))
        checks.require(value.shape == (), f"`fn` must return a scalar for one pair; got shape {value.shape}.")
        return value

    def _call(self, a, b):
        try:
            return self.fn(a, b)
        except Exception as error:
            raise checks.explained(
                f"The kernel `{getattr(self.fn, '__name__', self.fn)}` failed for a pair of points of shapes "
                f"{jax.tree.map(jnp.shape, a)} and {jax.tree.map(jnp.shape, b)}: {error} ({type(error).__name__}).",
                RuntimeError,
            ) from error

    def gram(self, x, y=None):
        """Matrix of the callable's values."""
        y = x if y is None else y
        if not self.host:
            return pairwise(self.pair, x, y)

        def loop(x, y):
            return [[self._call(_pick(x, i), _pick(y, j)) for j in range(shape[1])] for i in range(shape[0])]

        shape = num_points(x), num_points(y)
        return _on_host(loop, shape, x, y)

    def log_gram(self, x, y=None):
        """Matrix of logarithms of the callable's values."""
        result = jnp.log(self.gram(x, y))
        if checks.is_concrete(result):
            checks.require(
                not bool(jnp.any(jnp.isnan(result))),
                "`fn` is negative or NaN for some pair of points, so it has no logarithm and cannot be an "
                "epsilon-kernel; return positive values.",
                FloatingPointError,
            )
        return result


def _on_host(function, shape, *points):
    dtype = jnp.result_type(float)

    def call(*points):
        return np.asarray(function(*points), dtype)

    if checks.is_concrete(points):
        return jnp.asarray(call(*jax.tree.map(np.asarray, points)))
    return solves.call_back(call, shape, dtype, *points, vmap_method="sequential")


def _pick(points, i):
    return jax.tree.map(lambda leaf: leaf[i], points)
