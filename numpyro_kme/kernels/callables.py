"""Callables as kernels: of JAX arrays, or of anything in plain Python."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, host, in_jax_types
from numpyro_kme.kernels.base import Kernel, OfArrays, namespace, num_points, register, take


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
            return self._in_python([(0, 0)], *take(jax.tree.map(in_jax_types, (a, b)), None))[0]
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
        if not self.host:
            return super().gram(x, y)
        y = x if y is None else y
        shape = num_points(x), num_points(y)
        return self._in_python(list(np.ndindex(shape)), x, y).reshape(shape)

    def diagonal(self, x):
        """Values of the callable for each point and itself."""
        return self._in_python([(i, i) for i in range(num_points(x))], x, x) if self.host else super().diagonal(x)

    def _in_python(self, pairs, x, y):
        """Values for pairs `(i, j)` of points, one after another; NumPy float64 unless points are traced."""
        traced = not checks.is_concrete((x, y))
        dtype = jnp.result_type(float) if traced else np.float64

        def loop(x, y):
            x, y = jax.tree.map(np.asarray, (x, y))
            return np.array([self._call(take(x, i), take(y, j)) for i, j in pairs], dtype)

        return host.call_back(loop, (len(pairs),), dtype, x, y, vmap_method="sequential") if traced else loop(x, y)

    def log_gram(self, x, y=None):
        """Matrix of logarithms of the callable's values."""
        values = self.gram(x, y)
        if checks.is_concrete(values):
            checks.require(
                bool((values >= 0).all()),
                "`fn` is negative or NaN for some pair of points, and has no logarithm: return positive values.",
                FloatingPointError,
            )
        with np.errstate(divide="ignore"):
            return namespace(values).log(values)
