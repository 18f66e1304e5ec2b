"""Kernels on time series, and on fields seen at arbitrary places: by a Gaussian process, and by signatures."""

from dataclasses import field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jax.scipy.stats import multivariate_normal
from jax.typing import ArrayLike

from numpyro_kme._core import checks, frozen, full_precision
from numpyro_kme.kernels.base import Batched, Kernel, check_fields, namespace, register
from numpyro_kme.kernels.data_sets import filled_up, may_end
from numpyro_kme.kernels.length_scales import RuleOfDistances
from numpyro_kme.kernels.stationary import Stationary


@register
class GaussianProcessPath(Batched):
    r"""Density of one path given another, `k((t, y), (s, x)) = N(y | A x, H_tt + eps^2 I - A H_st)`.

    `A = H_ts (H_ss + eps^2 I)^-1`: the values `x` seen at places `s` are interpolated by a Gaussian process with
    covariance `h` and noise variance `eps^2`, and `y` at places `t` is scored under its prediction. Grids and lengths
    may differ.

    A point is a tuple `(places, values)` of shapes `(size, dim)` and `(size,)`: times need a last axis `[:, None]`. A
    batch is `(count, size, dim)` and `(count, size)`; places shared by a whole batch may be passed as `(size, dim)`.
    Paths of any length in one batch have a third entry, which places were seen, `(count, size)`; in arrays that a
    simulator gives, rows of NaN stand behind the end of a path (`kernels.pad`).

    Not symmetric: a normalised density in the values of its FIRST argument, so `log_integral` is 0, and a Gram matrix
    `gram(y, x)` has observations in rows and simulations in columns.

    Args:
        coordinate_kernel: `h`, a positive kernel on places, for values of variance `h(t, t)`: scale it to the data.
        noise: `eps`, a standard deviation in the units of the values.
    Raises:
        FloatingPointError: If a covariance is not positive definite to working precision: raise `noise`. (Under
            `jax.jit` values are NaN instead.)
    Cost: one factorisation per grid when both batches share their places, one per pair otherwise.
    """

    any_length = True
    symmetric = False

    coordinate_kernel: Kernel
    noise: ArrayLike

    def __post_init__(self):
        checks.instance("coordinate_kernel", self.coordinate_kernel, Kernel, "a kernel on places")
        check_fields(self, checks.positive, "noise")

    def points(self, x):
        """Read arrays `(n, size, dim + 1)` as paths, values in the last column; places that all share are kept once."""
        if may_end(x):
            rows, seen = filled_up(x, first=True)
            return rows[..., :-1], rows[..., -1], seen
        places, values = x[..., :-1], x[..., -1]
        shared = len(x) > 1 and bool((places == places[:1]).all())
        return (places[0] if shared else places), values

    def log_gram(self, x, y=None):
        """Matrix of log densities of the paths `x` given the paths `y`; what is shared is factorised once."""
        x, y = _batch("x", x), _batch("y", x if y is None else y)
        across = jax.vmap(_log_density, (None, None, _axes(y)))
        found = jax.vmap(across, (None, _axes(x), None))(self, x, y)
        checks.require(
            not checks.is_concrete(found) or bool(jnp.all(jnp.isfinite(found))),
            f"A covariance of GaussianProcessPath with noise {self.noise} is not positive definite to working "
            "precision, or a path is not finite. Raise `noise`, or remove repeated places.",
            FloatingPointError,
        )
        return found

    def diagonal(self, x):
        """Density of each path given itself."""
        x = _batch("x", x)
        return jnp.exp(jax.vmap(lambda a: _log_density(self, a, a), (_axes(x),))(x))

    def log_integral(self, dim):
        """0: the kernel is a density in the values of its first argument."""
        return jnp.zeros(())


@jax.jit
@full_precision
def _log_density(kernel, a, b):
    """Log density of one path given another, `(places, values)` each, with a third entry where some may not be seen:
    what was not seen has the covariance 1 with itself and 0 with all else, and the value 0."""
    (t, y, *t_seen), (s, x, *s_seen) = a, b
    t_seen, s_seen = (given[0] if given else jnp.ones(len(p), bool) for given, p in ((t_seen, t), (s_seen, s)))
    h, variance = kernel.coordinate_kernel, jnp.square(kernel.noise)

    def covariance(places, seen):
        whole = h.gram(places) + variance * jnp.eye(len(seen))
        return jnp.where(seen[:, None] & seen[None], whole, jnp.eye(len(seen)))

    cross = jnp.where(t_seen[:, None] & s_seen[None], h.gram(t, s), 0.0)
    weights = cho_solve((jnp.linalg.cholesky(covariance(s, s_seen)), True), cross.T)
    apart = jnp.where(t_seen, y, 0.0) - jnp.where(s_seen, x, 0.0) @ weights
    found = multivariate_normal.logpdf(apart, jnp.zeros_like(apart), covariance(t, t_seen) - cross @ weights)
    return found + 0.5 * jnp.sum(~t_seen) * jnp.log(2.0 * jnp.pi)


def _axes(batch):
    """Axes of the paths of a batch: none of places that all share."""
    return (None if batch[0].ndim == 2 else 0, *(0,) * (len(batch) - 1))


def _batch(name, batch):
    checks.require(
        isinstance(batch, tuple) and len(batch) in (2, 3),
        f"`{name}` must be a tuple (places, values), or (places, values, seen); got {type(batch).__name__}.",
        TypeError,
    )
    places, values, *seen = map(jnp.asarray, batch)
    checks.require(
        values.ndim == 2 and places.ndim in (2, 3) and places.shape[-2] == values.shape[1],
        f"`{name}` must hold places (count, size, dim), or (size, dim) shared by all, and values (count, "
        f"size); got shapes {places.shape} and {values.shape}. Times need a last axis: times[:, None].",
    )
    return places[0] if places.ndim == 3 and len(places) == 1 else places, values, *seen


@register
class Signature(Stationary):
    r"""Gaussian kernel on normalised truncated signatures of paths, $k(x, y) = \exp(-|s_x - s_y|^2 / (2 \epsilon^2))$.

    $s_x = S(x) / |S(x)|$, where $S(x)$ holds 1 and, for each `r` up to `level`, the sums of products of `r` increments

    $$ \sum_{i_1 < \dots < i_r} \Delta x_{i_1} \otimes \dots \otimes \Delta x_{i_r}. $$

    The order of what happens counts, and not when: so time is one more column, which runs from 0 to 1 along the longest
    path, and a first row of zeros lets levels count. Paths of any length compare, since behind its end a path stays
    where it is and has no increments: this is exact. `points` reads series, `(n, size)` or `(n, size, dim)`; a point is
    the vector `s_x`, of about `(dim + 1)^level` numbers.

    Args:
        length_scale: `eps`, a scalar; distances are at most 2.
        scales: Units of the columns, a scalar or `(dim,)`; `SignatureRule` finds them.
        level: Largest number of increments that are multiplied.
    Cost: `size (dim + 1)^level` products for each path.
    References: Kiraly & Oberhauser (2019), JMLR 20, sections 2 and 4.
    """

    any_length = True

    scales: ArrayLike
    level: int = field(default=3, metadata=dict(static=True))

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, checks.positive, "scales")
        checks.require(
            np.ndim(self.scales) <= 1,
            f"`scales` must be one number, or one a column; got shape {np.shape(self.scales)}.",
        )
        checks.whole("level", self.level, 1)

    def points(self, x):
        """Read arrays `(n, size)` or `(n, size, dim)`, NaN behind their ends, as normalised signatures."""
        xp = namespace(self.scales, x)
        rows, own = filled_up(xp.asarray(x, xp.result_type(x, float)).reshape(*x.shape[:2], -1), first=False)
        time = xp.cumsum(own, axis=1)[..., None] / rows.shape[1]
        scales = xp.broadcast_to(xp.asarray(self.scales), (rows.shape[-1],))[None, None]
        paths = xp.concatenate([rows / scales, time.astype(rows.dtype)], axis=2)
        increments = xp.diff(paths, axis=1, prepend=xp.zeros_like(paths[:, :1]))
        if xp is jnp:
            return _signatures(increments, self.level)
        return np.stack([_signature(one, self.level) for one in increments])

    def log_profile(self, s):
        """`-s / 2` of the squared distance of signatures in units of `eps`."""
        return -0.5 * s


@full_precision
def _signature(increments: Any, level: int) -> Any:
    """The normalised signature of increments `(size, dim)`, level after level, `(1 + dim + ... + dim^level,)`."""
    xp, size = namespace(increments), len(increments)
    before, parts = xp.ones((size, 1), increments.dtype), [xp.ones(1, increments.dtype)]
    for _ in range(level):
        parts.append((before.T @ increments).ravel())
        ending = (before[:, :, None] * increments[:, None, :]).reshape(size, -1)
        before = xp.cumsum(ending, axis=0) - ending
    found = xp.concatenate(parts)
    return found / xp.sqrt(found @ found)


@partial(jax.jit, static_argnums=1)
def _signatures(increments, level):
    return jax.vmap(lambda one: _signature(one, level))(increments)


@frozen
class SignatureRule(RuleOfDistances):
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

    def unscaled(self, few, targets):
        """The kernel, with the units of the columns."""
        ranges = np.median(np.nanmax(few, axis=1) - np.nanmin(few, axis=1), axis=0)
        vary = bool((ranges > 0).all())
        checks.require(vary, f"A column of most series is constant: the median ranges are {ranges}. Leave it out.")
        return Signature(1.0, ranges, self.level)
