"""A kernel on paths by their signatures, of series of any length."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import on_host
from numpyro_kme._core.saving import saveable
from numpyro_kme.kernels.base import Kernel, check_fields, num_points, register
from numpyro_kme.kernels.kernel_rules import SETS, KernelRule
from numpyro_kme.kernels.ragged import filled_up


@register
class Signature(Kernel):
    r"""Gaussian kernel on normalised truncated signatures of paths, $k(x, y) = \exp(-|s_x - s_y|^2 / (2 \epsilon^2))$.

    $s_x = S(x) / |S(x)|$, where $S(x)$ holds the products of increments of `x` at rows in increasing order, of up to
    `level` of them, and

    $$ \langle S(x), S(y) \rangle = 1 + \sum_{r=1}^{level} \sum_{i_1 < \dots < i_r} \sum_{j_1 < \dots < j_r}
       \prod_{q=1}^{r} \langle \Delta x_{i_q}, \Delta y_{j_q} \rangle. $$

    The order of what happens counts, and not when: so time is one more column, which runs from 0 to 1 along the longest
    path, and a first row of zeros lets levels count. A point is an array `(size + 1, dim + 1)` of such rows. Paths of
    any length compare, since behind its end a path stays where it is and has no increments: this is exact.

    Args:
        scales: What the columns are divided by, a scalar or `(dim,)`, in their units; `SignatureRule` finds them.
        length_scale: `eps`, a scalar; distances are at most 2.
        level: How many increments are multiplied at most.
    Cost: `level size^2` products for each pair of paths of `size` rows.
    References: Kiraly & Oberhauser (2019), JMLR 20, section 4 and algorithm 3.
    """

    any_length = True

    scales: ArrayLike
    length_scale: ArrayLike
    level: int = field(default=3, metadata=dict(static=True))

    def __post_init__(self):
        check_fields(self, checks.positive, "scales", "length_scale")
        checks.whole("level", self.level, 1)

    def points(self, x):
        """Read arrays `(n, size)` or `(n, size, dim)`, NaN behind their ends, as paths with time and a start."""
        rows = jnp.asarray(x, jnp.result_type(x, float)) if isinstance(x, jax.Array) else np.asarray(x, np.float64)
        rows, own = filled_up(rows.reshape(*rows.shape[:2], -1), first=False)
        xp = jnp if isinstance(rows, jax.Array) else np
        time = xp.cumsum(own, axis=1)[..., None] / rows.shape[1]
        whole = xp.concatenate([rows / self._scales(rows.shape[-1], xp), time.astype(rows.dtype)], axis=2)
        return xp.concatenate([xp.zeros_like(whole[:, :1]), whole], axis=1)

    def _scales(self, dim, xp):
        return xp.broadcast_to(xp.asarray(self.scales), (dim,))[None, None]

    def squared_distances(self, x: ArrayLike, y: ArrayLike | None = None) -> jax.Array:
        """Matrix `|s_x - s_y|^2`, `(n, m)`, of paths `(n, size + 1, dim + 1)` and `(m, ...)`."""
        left, right = (jnp.diff(jnp.asarray(p), axis=1) for p in (x, x if y is None else y))
        return _squared_distances(self.level, left, right)

    def log_pair(self, a, b):
        """Logarithm of the kernel for two paths."""
        return self.log_gram(jnp.asarray(a)[None], jnp.asarray(b)[None])[0, 0]

    def log_gram(self, x, y=None):
        """Matrix of log kernel values."""
        return -0.5 * self.squared_distances(x, y) / jnp.square(self.length_scale)

    def diagonal(self, x):
        """Ones."""
        return jnp.ones(num_points(x), jnp.result_type(x))


def _inner_products(level: int, a: jax.Array, b: jax.Array) -> jax.Array:
    """`<S(x), S(y)>` of increments `(T, dim)` and `(U, dim)`: for each level a product, and two cumulated sums."""
    increments = a @ b.T
    last, total = increments, 1.0 + jnp.sum(increments)
    for _ in range(level - 1):
        before = jax.lax.associative_scan(jnp.add, jax.lax.associative_scan(jnp.add, last, axis=0), axis=1)
        last = increments * jnp.pad(before, ((1, 0), (1, 0)))[:-1, :-1]
        total = total + jnp.sum(last)
    return total


def _squared_distances(level, left, right):
    own = [jax.lax.map(lambda a: _inner_products(level, a, a), side) for side in (left, right)]
    across = jax.lax.map(lambda a: jax.vmap(lambda b: _inner_products(level, a, b))(right), left)
    return jnp.maximum(2.0 - 2.0 * across / jnp.sqrt(own[0][:, None] * own[1][None]), 0.0)


@shown
@saveable
@dataclass(frozen=True)
class SignatureRule(KernelRule):
    """`Signature` on series `(longest, dim)` or `(longest,)`.

    Each column is divided by the median of its ranges within a series.

    Args:
        level: How many increments are multiplied at most.
        multiple: `eps` in units of the median distance between `SETS` paths. Candidates are this,
            and eight times this, as in `EmpiricalMeasureRule`.
    """

    level: int = 3
    multiple: float = 0.5

    def __post_init__(self):
        checks.whole("level", self.level, 1)
        checks.positive_number("multiple", self.multiple)

    def __call__(self, x, targets=None):
        """The kernel."""
        return self._kernel(x, self.multiple)

    def candidates(self, x, targets=None):
        """With `eps`, and with eight times that."""
        return [self._kernel(x, multiple * self.multiple) for multiple in (1.0, 8.0)]

    def _kernel(self, x, multiple):
        few = np.asarray(x, np.float64)[:SETS]
        few = few.reshape(*few.shape[:2], -1)
        ranges = np.median(np.nanmax(few, axis=1) - np.nanmin(few, axis=1), axis=0)
        checks.require(
            bool((ranges > 0).all()),
            f"A column of most series is constant: columns have the median ranges {ranges}. Leave it out, or give a "
            "kernel by hand.",
        )
        bare = Signature(ranges, 1.0, self.level)
        squared = on_host(Signature.squared_distances)(bare, bare.points(few))
        median = np.sqrt(np.median(squared[np.triu_indices(len(few), 1)]))
        checks.require(bool(median > 0), "At least half of the series are the same: give a kernel by hand.")
        return Signature(ranges, float(multiple * median), self.level)
