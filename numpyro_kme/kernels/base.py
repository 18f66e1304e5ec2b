"""The kernel interface: an author writes one pair of points; the base batches, adds, multiplies and scales."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from operator import itemgetter
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, frozen, saveable

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
    cls = frozen(checks.instance("cls", cls, type, "a class of annotated fields, below @register"))
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

    what: ClassVar[str] = "a kernel, such as Gaussian(length_scale)"
    """What an argument of this kind must be, in the words of error messages."""

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

    def __init_subclass__(cls):
        if cls.pair is Kernel.pair and cls.log_pair is Kernel.log_pair:
            raise checks.explained(f"{cls.__name__} must implement `pair` or `log_pair` of two points.", TypeError)

    def __call__(self, a: Any, b: Any) -> jax.Array:
        """Value `k(a, b)` for one pair of points."""
        return self.pair(a, b)

    @jax.jit
    def gram(self, x: PointSet, y: PointSet | None = None) -> jax.Array:
        """Matrix `k(x_i, y_j)`, `(n, m)`; `y` is `x` when left out. Cost: `n * m` evaluations."""
        return jax.vmap(jax.vmap(self.pair, (None, 0)), (0, None))(x, x if y is None else y)

    @jax.jit
    def log_gram(self, x: PointSet, y: PointSet | None = None) -> jax.Array:
        """Matrix `log k(x_i, y_j)`, `(n, m)`, that does not underflow where the kernel does."""
        return jax.vmap(jax.vmap(self.log_pair, (None, 0)), (0, None))(x, x if y is None else y)

    @jax.jit
    def diagonal(self, x: PointSet) -> jax.Array:
        """Values `k(x_i, x_i)`, `(n,)`."""
        return jax.vmap(self.pair)(x, x)

    def points(self, x: Any) -> PointSet:
        """Read arrays `(n, *event)`, one array for each point, as points of this kernel; here vectors `(n, dim)`."""
        return x.reshape(len(x), -1)

    def point(self, y: Any) -> Any:
        """Read one array `(*event)` as one point."""
        return take(self.points(y[None]), 0)

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
        return Sum((self, other))

    def __mul__(self, other: "Kernel | float") -> "Kernel":
        return Product((self, other)) if isinstance(other, Kernel) else Scaled(self, other)

    __rmul__ = __mul__


class Batched(Kernel):
    """A kernel written for two batches, by `gram` or `log_gram` over any array namespace; a pair is a batch of one."""

    def pair(self, a, b):
        """Value for one pair of points."""
        return self.gram(take(a, None), take(b, None))[0, 0]

    def log_pair(self, a, b):
        """Logarithm for one pair of points."""
        return self.log_gram(take(a, None), take(b, None))[0, 0]

    def gram(self, x, y=None):
        """Matrix of kernel values."""
        logs = self.log_gram(x, y)
        return namespace(logs).exp(logs)

    def log_gram(self, x, y=None):
        """Matrix of logarithms of kernel values."""
        values = self.gram(x, y)
        return namespace(values).log(values)

    def diagonal(self, x):
        """Values of each point and itself."""
        if namespace(self, x) is jnp:
            return super().diagonal(x)
        blocks = np.array_split(np.arange(num_points(x)), math.isqrt(num_points(x)))  # of as many points as blocks
        return np.concatenate([np.diagonal(self.gram(take(x, block))) for block in blocks])


def namespace(*trees: Any) -> Any:
    """The array namespace of what is computed from these: JAX's where any of it is an array of JAX, else NumPy's."""
    return jnp if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(trees)) else np


class OverLengthScale:
    """Base of kernels with a length scale, which has to be positive."""

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")


class OfArrays:
    """Base of kernels whose points are arrays of any shape."""

    def points(self, x):
        """Read arrays `(n, *event)` as they are."""
        return x


class Signed(Batched):
    """A kernel that takes negative values: it has no logarithm, and no density."""

    def log_gram(self, x, y=None):
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
    shared, shapes = len(lengths) == 1 and () not in lengths, jax.tree.map(np.shape, points)
    checks.require(shared, f"Points must be arrays that share their leading axis; got shapes {shapes}.")
    return lengths.pop()[0]


def take(points: PointSet, index: Any) -> PointSet:
    """Some points, or one without its axis."""
    return jax.tree.map(itemgetter(index), points)


class _Composite(Batched):
    """Kernels on the same points, whose values and logarithms are joined."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self):
        given = isinstance(self.kernels, tuple) and len(self.kernels) > 0
        checks.require(
            given and all(isinstance(k, Kernel) for k in self.kernels),
            f"`kernels` of {type(self).__name__} must be a tuple of at least one kernel; got {self.kernels!r}.",
            TypeError,
        )

    def join(self, values: Sequence[Any]) -> Any:
        """The value of this kernel from those of the members."""
        raise NotImplementedError

    def join_logs(self, logs: Sequence[Any]) -> Any:
        """Its logarithm from those of the members' values."""
        raise NotImplementedError

    @property
    def any_length(self) -> bool:  # type: ignore[override]
        """Tell whether all members take arrays of any length."""
        return all(k.any_length for k in self.kernels)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Tell whether all members are symmetric."""
        return all(k.symmetric for k in self.kernels)

    def points(self, x):
        """Read arrays as the first member does; all members get the same points."""
        return self.kernels[0].points(x)

    def parts(self, x: PointSet | None) -> Sequence[PointSet | None]:
        """Share points out to the members: all of them to each."""
        return [x] * len(self.kernels)

    def gram(self, x, y=None):
        """The members' Gram matrices, joined."""
        return self.join([k.gram(*own) for k, *own in zip(self.kernels, self.parts(x), self.parts(y))])

    def log_gram(self, x, y=None):
        """The members' log Gram matrices, joined."""
        return self.join_logs([k.log_gram(*own) for k, *own in zip(self.kernels, self.parts(x), self.parts(y))])

    def diagonal(self, x):
        """The members' diagonals, joined."""
        return self.join([k.diagonal(own) for k, own in zip(self.kernels, self.parts(x))])

    def log_integral(self, dim):
        """The members' integrals, joined."""
        return self.join_logs([k.log_integral(dim) for k in self.kernels])


@register
class Sum(_Composite):
    r"""Sum `k(a, b) = sum_i k_i(a, b)`; also written `k1 + k2`.

    Args:
        kernels: A tuple of kernels on the same points.
    """

    kernels: tuple[Kernel, ...]

    def join(self, values):
        """Sum of the members' values."""
        return sum(values[1:], values[0])

    def join_logs(self, logs):
        """Logarithm of the sum of the members' values, from their logarithms."""
        return functools.reduce(namespace(logs).logaddexp, logs)


class _Product(_Composite):
    """A product of kernels."""

    def join(self, values):
        """Product of the members' values."""
        return math.prod(values)

    def join_logs(self, logs):
        """Sum of the members' logarithms."""
        return sum(logs[1:], logs[0])

    def log_integral(self, dim):
        """Raise: the integral of a product does not follow from those of its members."""
        return Kernel.log_integral(self, dim)


@register
class Product(_Product):
    r"""Product `k(a, b) = prod_i k_i(a, b)`; also written `k1 * k2`.

    Args:
        kernels: A tuple of kernels on the same points.
    """

    kernels: tuple[Kernel, ...]


class PairProduct(_Product):
    """Base of products `k(a, b) = k_1(a_1, b_1) k_2(a_2, b_2)` on pairs of points."""

    def parts(self, x):
        """The first points for the first kernel, the second for the second."""
        return (None, None) if x is None else x


@register
class Scaled(_Composite):
    r"""Multiple `k(a, b) = c k_1(a, b)`; also written `c * k1`.

    Args:
        kernel: `k_1`.
        scale: `c`, positive.
    """

    kernel: Kernel
    scale: ArrayLike

    def __post_init__(self):
        checks.instance("kernel", self.kernel, Kernel, "a kernel, such as Gaussian(1.0)")
        check_fields(self, checks.positive_number, "scale")

    @property
    def kernels(self) -> tuple[Kernel, ...]:  # type: ignore[override]
        """The one member."""
        return (self.kernel,)

    def join(self, values):
        """Multiple of the member's values."""
        return self.scale * values[0]

    def join_logs(self, logs):
        """The logarithm of the multiple."""
        return namespace(self.scale, logs).log(self.scale) + logs[0]
