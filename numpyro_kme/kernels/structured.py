"""Kernels on structured points: data sets, time series and spatial fields seen at arbitrary places, rotations."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels import gram
from numpyro_kme.kernels.base import Kernel, OfArrays, PointSet, Signed, check_fields, num_points, pairwise, register
from numpyro_kme.kernels.gram import products, squared_distances
from numpyro_kme.kernels.ragged import filled_up, may_end


@register
class EmpiricalMeasure(Kernel):
    r"""Double kernel `k(Y, X) = exp(-|mu_Y - mu_X|^2 / (2 eps^2))`; the distance is the biased squared MMD.

    A point is a data set whose rows have no order: an array `(size, dim)`, or a tuple `(rows, weights)` with weights
    `(size,)` that sum to one. Sets of different sizes compare; a batch `(count, size, dim)` has one size, and weights
    of 0 fill shorter sets up. In arrays that a simulator gives, rows of NaN stand behind the end of a shorter set
    (`kernels.pad`).

    Args:
        inner: `h`, the positive definite kernel that embeds rows: `mu_X = sum_i w_i h(x_i, .)`.
        length_scale: `eps`, a scalar, in units of the embedding, where distances are at most `2 sqrt(sup h)`.
    Cost: a Gram matrix between batches takes `count * count * size * size` inner evaluations in blocks, half of that
        for one batch with itself; the terms of one set alone are computed once. `squared_mmd` does not depend on `eps`.
    References: Christmann & Steinwart (2010), NIPS; Muandet et al. (2017), section 3.
    """

    any_length = True

    inner: Kernel
    length_scale: ArrayLike

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")
        checks.require(
            jnp.ndim(self.length_scale) == 0,
            f"`length_scale` of EmpiricalMeasure must be a scalar; got {jnp.shape(self.length_scale)}.",
        )

    def points(self, x):
        """Read arrays `(n, size, dim)` or `(n, size)` as data sets of up to `size` rows, with weights where some end
        before."""
        x = x.reshape(*x.shape[:2], -1)
        if not may_end(x):
            return x
        rows, own = filled_up(x, first=True)
        return rows, own / own.sum(axis=1, keepdims=True)

    def squared_mmd(self, x: PointSet, y: PointSet | None = None) -> jax.Array:
        """Matrix `|mu_{x_i} - mu_{y_j}|^2`, `(n, m)`, between batches of data sets; never negative."""
        x = _measures("x", x)
        x_own = _self_terms(self.inner, *x)
        if y is None:
            y_own, cross = x_own, _symmetric_cross_terms(self.inner, *x)
        else:
            y = _measures("y", y)
            y_own, cross = _self_terms(self.inner, *y), _cross_terms(self.inner, *x, *y)
        return jnp.maximum(x_own[:, None] + y_own[None, :] - 2.0 * cross, 0.0)

    def log_pair(self, a, b):
        """Logarithm of the kernel for two data sets."""
        single = jax.tree.map(lambda leaf: leaf[None], (a, b))
        return self.log_gram(*single)[0, 0]

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between two batches of data sets."""
        return -0.5 * self.squared_mmd(x, y) / self.length_scale / self.length_scale

    def diagonal(self, x):
        """Ones."""
        rows, _ = _measures("x", x)
        return jnp.ones(num_points(rows), rows.dtype)


def _measures(name, batch):
    rows, weights = batch if isinstance(batch, tuple) else (batch, None)
    rows = jnp.asarray(rows, jnp.result_type(rows, float))
    checks.require(
        rows.ndim == 3 and rows.shape[1] > 0,
        f"`{name}` must be a batch of data sets with shape (count, size, dim); got {rows.shape}. Rows of "
        "scalars need a last axis of length 1.",
    )
    if weights is None:
        return rows, jnp.full(rows.shape[:2], 1.0 / rows.shape[1], rows.dtype)
    checks.require(
        jnp.shape(weights) == rows.shape[:2],
        f"Weights of `{name}` must have shape {rows.shape[:2]}, one per row; got {jnp.shape(weights)}.",
    )
    checks.sums_to_one(f"weights of {name}", weights)
    return rows, jnp.asarray(weights)


@jax.jit
def _self_terms(inner, rows, weights):
    return jax.lax.map(jax.checkpoint(lambda one: gram.weighted_self_sum(inner, *one)), (rows, weights))


@jax.jit
def _cross_terms(inner, x_rows, x_weights, y_rows, y_weights):
    """`sum_kl v_ik w_jl h(x_ik, y_jl)`, one set of `x` at a time against all rows of `y`."""
    return jax.lax.map(jax.checkpoint(lambda one: _against(inner, *one, y_rows, y_weights)), (x_rows, x_weights))


def _against(inner, rows, weights, y_rows, y_weights):
    witness = gram.matvec(inner, y_rows.reshape(-1, y_rows.shape[-1]), rows, weights)
    return jnp.sum(y_weights * witness.reshape(y_weights.shape), axis=1)


@jax.jit
def _symmetric_cross_terms(inner, rows, weights):
    """The same for a batch with itself: set `i` meets the `count // 2` sets that follow it on a circle."""
    count = num_points(rows)
    window = count // 2 + 1
    twice_rows, twice_weights = jnp.concatenate([rows, rows]), jnp.concatenate([weights, weights])

    @jax.checkpoint
    def follow(i):
        following = [jax.lax.dynamic_slice_in_dim(twice, i, window) for twice in (twice_rows, twice_weights)]
        return _against(inner, rows[i], weights[i], *following)

    band = jax.lax.map(follow, jnp.arange(count))
    i, j = np.indices((count, count))
    steps = (j - i) % count
    forward = steps < window
    return band[np.where(forward, i, j), np.where(forward, steps, (i - j) % count)]


@register
class GaussianProcessPath(Kernel):
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
    Cost: one factorisation per grid and matrix products when both batches share their places, one per pair otherwise.
    """

    any_length = True
    symmetric = False

    coordinate_kernel: Kernel
    noise: ArrayLike

    def __post_init__(self):
        check_fields(self, checks.positive, "noise")

    def points(self, x):
        """Read arrays `(n, size, dim + 1)` as paths, values in the last column; places that all share are kept once."""
        if may_end(x):
            rows, seen = filled_up(x, first=True)
            return rows[..., :-1], rows[..., -1], seen
        places, values = x[..., :-1], x[..., -1]
        shared = bool((places == places[:1]).all())
        return (places[0] if shared else places), values

    def point(self, y):
        """Read one array `(size, dim + 1)` as a path."""
        if may_end(y):
            return super().point(y)
        return y[:, :-1], y[:, -1]

    def log_pair(self, a, b):
        """Logarithm of the density of the path `a` given the path `b`."""
        (t, y, *t_seen), (s, x, *s_seen) = a, b
        if t_seen or s_seen:
            return self._checked(_log_density_of_part(self, (t, y, _seen(t_seen, y)), (s, x, _seen(s_seen, x))))
        return self._checked(_log_density(self, t, jnp.asarray(y)[None], s, jnp.asarray(x)[None])[0, 0])

    def log_gram(self, x, y=None):
        """Matrix of log densities of the paths `x` given the paths `y`."""
        y = x if y is None else y
        (t, t_values, *t_seen), (s, s_values, *s_seen) = _batch("x", x), _batch("y", y)
        if t.ndim == 2 and s.ndim == 2 and not (t_seen or s_seen):
            return self._checked(_log_density(self, t, t_values, s, s_values))
        pairs = pairwise(self.log_pair, _one_grid_each(t, t_values, *t_seen), _one_grid_each(s, s_values, *s_seen))
        return self._checked(pairs)

    def diagonal(self, x):
        """Density of each path given itself."""
        return jax.vmap(lambda a: self.pair(a, a))(_one_grid_each(*_batch("x", x)))

    def log_integral(self, dim):
        """0: the kernel is a density in the values of its first argument."""
        return jnp.zeros(())

    def _checked(self, result):
        if checks.is_concrete(result):
            checks.require(
                bool(jnp.all(jnp.isfinite(result))),
                f"A covariance of GaussianProcessPath with noise {self.noise} is not positive definite to "
                "working precision, or a path is not finite. Raise `noise`, or remove repeated places.",
                FloatingPointError,
            )
        return result


@jax.jit
def _log_density(kernel, t, y, s, x):
    """Matrix `log N(y_i | A x_j, C)` for one pair of grids, `y` `(n, T)` and `x` `(m, S)`."""
    h, variance = kernel.coordinate_kernel, jnp.square(kernel.noise)
    seen = jnp.linalg.cholesky(h.gram(s) + variance * jnp.eye(s.shape[0]))
    cross = h.gram(t, s)
    weights = cho_solve((seen, True), cross.T)
    covariance = h.gram(t) + variance * jnp.eye(t.shape[0]) - cross @ weights
    factor = jnp.linalg.cholesky(covariance)
    y, mean = (solve_triangular(factor, rows.T, lower=True).T for rows in (y, x @ weights))
    log_scale = jnp.sum(jnp.log(jnp.diagonal(factor))) + 0.5 * t.shape[0] * jnp.log(2.0 * jnp.pi)
    return -0.5 * squared_distances(y, mean) - log_scale


@jax.jit
def _log_density_of_part(kernel, a, b):
    """Log density of one path given another, `(places, values, seen)` each: what was not seen has the covariance 1 with
    itself and 0 with all else, and the value 0."""
    (t, y, t_seen), (s, x, s_seen) = a, b
    h, variance = kernel.coordinate_kernel, jnp.square(kernel.noise)

    def covariance(places, seen):
        whole = h.gram(places) + variance * jnp.eye(len(seen))
        return jnp.where(seen[:, None] & seen[None], whole, jnp.eye(len(seen)))

    cross = jnp.where(t_seen[:, None] & s_seen[None], h.gram(t, s), 0.0)
    weights = cho_solve((jnp.linalg.cholesky(covariance(s, s_seen)), True), cross.T)
    factor = jnp.linalg.cholesky(covariance(t, t_seen) - cross @ weights)
    apart = jnp.where(t_seen, y, 0.0) - jnp.where(s_seen, x, 0.0) @ weights
    white = solve_triangular(factor, apart, lower=True)
    log_scale = jnp.sum(jnp.log(jnp.diagonal(factor))) + 0.5 * jnp.sum(t_seen) * jnp.log(2.0 * jnp.pi)
    return -0.5 * white @ white - log_scale


def _seen(given, values):
    return given[0] if given else jnp.ones(jnp.shape(values), bool)


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
    return places, values, *seen


def _one_grid_each(places, values, *seen):
    return jnp.broadcast_to(places, (values.shape[0], *places.shape[-2:])), values, *seen


@register
class RotationTrace(OfArrays, Signed):
    r"""Trace kernel `k(A, B) = tr(A B^T)` on rotation matrices `(size, size)`.

    In three dimensions `k = 1 + 2 cos(angle between A and B)`, from -1 to 3; it has no length scale. Its features are
    the matrix entries, so an embedding is a mean matrix.

    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 5.3.
    """

    def pair(self, a, b):
        """Trace of `A B^T` for two matrices."""
        return jnp.sum(a * b)

    def gram(self, x, y=None):
        """Matrix of traces between `(n, size, size)` and `(m, size, size)`, as one matrix product."""
        return products(_flat("x", x), _flat("y", x if y is None else y))


@register
class RotationGaussian(OfArrays, Kernel):
    r"""Gaussian kernel `k(A, B) = exp(-|A - B|_F^2 / (2 l^2))` on rotation matrices `(size, size)`.

    `|A - B|_F^2 = 2 (size - tr(A B^T))`, at most 8 in three dimensions. Unlike `RotationTrace` it is characteristic.

    Args:
        length_scale: `l`, a scalar, in units of the Frobenius norm.
    """

    length_scale: ArrayLike

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")

    def log_pair(self, a, b):
        """Logarithm of the kernel for two matrices."""
        return -0.5 * jnp.sum(jnp.square(a - b)) / jnp.square(self.length_scale)

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between `(n, size, size)` and `(m, size, size)`."""
        apart = squared_distances(_flat("x", x), _flat("y", x if y is None else y))
        return -0.5 * apart / jnp.square(self.length_scale)


def nearest_rotation(matrix: ArrayLike) -> np.ndarray:
    r"""The rotation with the largest `tr(R M^T)`, the nearest to `M` in the Frobenius norm, `(*batch, size, size)`.

    $R = U\, \mathrm{diag}(1, \ldots, 1, \det U V^\top)\, V^\top$ with $M = U S V^\top$; one of several where
    the two least singular values of `M` are equal and its determinant is negative.

    Args:
        matrix: `M`, `(*batch, size, size)`.
    References: Kabsch (1976), Acta Crystallographica A 32.
    """
    shape = np.shape(matrix)
    checks.require(
        len(shape) >= 2 and shape[-1] == shape[-2] >= 1, f"`matrix` must have shape (..., size, size); got {shape}."
    )
    checks.sound("matrix", matrix)
    left, _, right = np.linalg.svd(np.asarray(matrix, np.float64))
    turned = np.sign(np.linalg.det(left @ right))
    left[..., -1] *= turned[..., None]
    return left @ right


def _flat(name, rotations):
    shape = jnp.shape(rotations)
    checks.require(
        len(shape) == 3 and shape[1] == shape[2],
        f"`{name}` must hold rotation matrices with shape (count, size, size); got {shape}.",
    )
    return jnp.reshape(jnp.asarray(rotations), (shape[0], -1))
