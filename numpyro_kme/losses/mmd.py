"""The squared maximum mean discrepancy as a loss, and by direct sums of kernel values for data of any kind."""

from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import jitted
from numpyro_kme.kernels import Gaussian, Kernel
from numpyro_kme.kernels.base import num_points, register
from numpyro_kme.kernels.gram import split, squared_distances
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic, median_absolute_deviation
from numpyro_kme.kernels.stationary import Stationary
from numpyro_kme.losses import mixing
from numpyro_kme.losses.base import EmbeddingObjective, Loss, WeightedObjective, widened
from numpyro_kme.losses.generator import Generator, check_points, join, vectors
from numpyro_kme.losses.grid import find_step
from numpyro_kme.losses.grid_mmd import GridMMD


@register
class MMD(Loss):
    r"""Squared maximum mean discrepancy between the weighted data and the model.

    `|mu_w - mu_u|^2` with `mu_w = sum_i w_i k(x_i, .)` and `mu_u = E k(G_u(noise), .)`. With `fit_proportion`,
    `min_{0 <= c <= 1} |mu_w - c mu_u|^2`, with `c = <mu_w, mu_u> / |mu_u|^2` inside: the model has mixing proportion
    `c` in the distribution of the data (its measure need not be normalised), and far contamination costs nothing, where
    the plain loss answers a proportion `e` of outliers with a model that is too wide. The fitted `c` is reported as
    `mixing_proportion`; without contamination the estimates are less efficient by about a third.

    Scalar data and a smooth stationary kernel: both embeddings are tabulated on a grid (`grid.py`), at a cost of
    `O(n + M + N log N)` an evaluation with `N` cells. Otherwise `M (n + M)` kernel values are summed in blocks.

    Args:
        kernel: Compares two data points; Gaussian with the median distance as length scale when left out. It must be
            bounded. Kernels on points that are not vectors work too.
        fit_proportion: Fit the mixing proportion of the model, instead of fixing it at 1.
        covariate_kernel: Compares two covariates, for simulators with covariates: the loss then compares joint
            distributions, with kernel `covariate_kernel * kernel`. Gaussian with the median distance when left out.
        table_error: Largest error of a tabulated kernel value, relative to `k(0, 0)`.
        max_cells: Largest grid; a window that needs more is cut about the median.
        length_scale: Rule for the length scale of the Gaussian kernels that are left out, instead of the median:
            `BayesianKernelLearning(key)`. It sees the data alone, so it cannot be one that predicts parameters.

    References: Gretton et al. (2012), JMLR 13; Cherief-Abdellatif and Alquier (2022), Bernoulli 28;
        Dellaporta et al. (2022), AISTATS; Scott (2004) (`fit_proportion`, see `mixing.py`).
    """

    takes_covariates = True
    kernel: Kernel | None = None
    fit_proportion: bool = field(default=False, metadata=dict(static=True))
    covariate_kernel: Kernel | None = None
    table_error: float = field(default=1e-4, metadata=dict(static=True))
    max_cells: int = field(default=32_768, metadata=dict(static=True))
    length_scale: LengthScaleRule | None = None

    @on_host
    def objective(self, data: Any, generator: Generator, extra: Any = None) -> WeightedObjective:
        """Bind to data, on a grid where data and kernel allow one.

        `extra`: points that replicates will add to the data, so that the grid covers them.
        """
        check_points(data, generator)
        rule = self._rule(generator)
        data, extra = jax.tree.map(_float64, (data, extra))
        responses = data if generator.covariates is None else data[1]
        kernel = self.kernel or gaussian_by(rule, responses)
        if generator.covariates is not None:
            kernel = OnPairs(self.covariate_kernel or gaussian_by(rule, data[0]), kernel)
        _require_bounded(kernel, vectors(data))
        window = self._window(kernel, data, extra)
        if window is None:
            return DirectMMD(generator, kernel, data, self.fit_proportion)
        return GridMMD.bind(generator, kernel, data, window, self.fit_proportion, self.max_cells)

    def _rule(self, generator: Generator) -> LengthScaleRule:
        rule = self.length_scale
        checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as BayesianKernelLearning(key)")
        given = self.kernel is not None and (generator.covariates is None or self.covariate_kernel is not None)
        checks.require(rule is None or not given, "Give `kernel` or `length_scale`, not both.")
        checks.require(
            rule is None or not rule.needs_targets,
            f"`length_scale` {type(rule).__name__} asks what predicts the parameters best, and a loss sees data of one "
            "unknown parameter. Use BayesianKernelLearning(key) or MedianHeuristic(), or give `kernel`.",
        )
        return rule or MedianHeuristic()

    def _window(self, kernel: Kernel, data: Any, extra: Any) -> tuple[float, ...] | None:
        """Centre, width, step, half width and reach of a grid for scalar data; None where there is no such grid."""
        if not isinstance(data, np.ndarray) or data.ndim > 2 or data.size != len(data):  # pairs, with covariates
            return None
        centre = float(np.median(data))
        scale = float(median_absolute_deviation(data.ravel(), centre)) or float(np.abs(data - centre).max()) or 1.0
        found = find_step(kernel, scale, self.table_error)
        if found is None:
            return None
        everything = data.ravel() if extra is None else np.concatenate([data.ravel(), extra.ravel()])
        return centre, 2.0 * (float(np.abs(everything - centre).max()) + min(found[2], 8.0 * scale)), *found


@register
class OnPairs(Kernel):
    """Product kernel `k(c, c') k(y, y')` on pairs (covariate, response)."""

    covariate: Kernel
    response: Kernel

    def pair(self, a, b):
        """Value for two pairs."""
        return self.covariate.pair(a[0], b[0]) * self.response.pair(a[1], b[1])

    def gram(self, x, y=None):
        """Elementwise product of the two Gram matrices."""
        y = x if y is None else y
        return self.covariate.gram(x[0], y[0]) * self.response.gram(x[1], y[1])


def gaussian_by(rule: LengthScaleRule, data: Any) -> Gaussian:
    """Gaussian kernel with the length scale that a rule gives for the data points."""
    checks.require(
        isinstance(data, np.ndarray) and data.ndim <= 2,
        "`kernel` must be given for data that are not vectors of shape (n,) or (n, dim); there is no distance between "
        "them.",
    )
    scale = np.asarray(rule(vectors(data)))
    return Gaussian(scale.reshape(()) if scale.size == 1 else scale)


def _float64(leaf: Any) -> np.ndarray:
    leaf = np.asarray(leaf)
    return leaf.astype(np.float64) if leaf.dtype.kind in "fiub" else leaf


def _require_bounded(kernel: Kernel, points: Any) -> None:
    """Raise an error where `k(x, x)` grows with the data: such embeddings are not robust, and may not exist."""
    one = jax.tree.map(lambda leaf: leaf[:1], points)
    far = jax.tree.map(lambda leaf, all: leaf * 1e3 + 1e3 * np.abs(all).max(), one, points)
    near, distant = (float(np.asarray(_diagonal(kernel, point))[0]) for point in (one, far))
    checks.require(
        np.isfinite(distant) and distant <= 10.0 * max(near, 1e-300),
        f"`kernel` must be bounded for a robust loss; {type(kernel).__name__} has k(x, x) = {near:.3g} at a data point "
        f"and {distant:.3g} far away. Use Gaussian, Matern or RationalQuadratic.",
    )


_diagonal = jitted(lambda kernel, points: kernel.diagonal(points))

SOURCES = 512
"""Kernel values are formed for this many sources at a time."""


@register
class DirectMMD(EmbeddingObjective):
    r"""Squared MMD between weighted data and simulated points, up to the constant `|mu_w|^2` (see `offsets`).

    With `q = |mu_u|^2`, `s = <mu_w, mu_u>` and `L(q, s)` of `mixing.py`, the gradient pulls the derivative
    `v_m (2 L_q grad mu_u(y_m) + L_s grad mu_w(y_m))` by each simulated point back to `u`.
    """

    generator: Generator
    kernel: Kernel
    data: Any
    fit_proportion: bool = field(metadata=dict(static=True))

    def smoothed(self):
        """Widen a stationary kernel."""
        return replace(self, kernel=widened(self.kernel)) if isinstance(self.kernel, Stationary) else self

    def offsets(self, weights, extra=None):
        """The constants `|mu_w|^2`: `n^2` kernel values for all weights, with extra points `(n + T)^2` for each."""
        if extra is None:
            points = vectors(self.data)
            return jnp.sum(weights.T * potential(self.kernel, points, points, weights.T), axis=0)

        def one(row):
            points = vectors(join(self.data, row[1]))
            return row[0] @ potential(self.kernel, points, points, row[0])

        return jax.lax.map(one, (weights, extra))

    def value(self, reduced, u, nodes):
        """Squared MMD at `u`, without its constant."""
        own, cross, v, coincident = self.witnesses(reduced, u, nodes)
        return mixing.discrepancy(self.energy(v @ own, coincident, v), v @ cross, self.fit_proportion)

    def witnesses(self, reduced, u, nodes):
        """`mu_u` and `mu_w` at the simulated points, the weights of these, and their energy alone."""
        data, weights = reduced
        y, v = vectors(self.generator.points(u, nodes)), self.generator.weights(nodes, weights)
        own, cross = potential(self.kernel, y, y, v), potential(self.kernel, y, vectors(data), weights)
        return own, cross, v, self._coincident(y, v)

    def slope(self, reduced, u, nodes):
        """Squared MMD and gradient."""
        data, weights = reduced
        v = self.generator.weights(nodes, weights)
        y, pull = jax.vjp(lambda t: vectors(self.generator.points(t, nodes)), u)
        own, own_force = field_at(self.kernel, y, y, v)
        cross, cross_force = field_at(self.kernel, y, vectors(data), weights)
        energy = lambda raw, points: self.energy(raw, self._coincident(points, v), v)  # noqa: E731
        q, from_energy = jax.vjp(energy, v @ own, y)
        value, (by_q, by_s), _ = mixing.derivatives(q, v @ cross, self.fit_proportion)
        by_raw, direct = from_energy(by_q)

        def total(own_part, cross_part, direct_part):
            scaled = v.reshape(-1, *[1] * (own_part.ndim - 1))
            return scaled * (2.0 * by_raw * own_part + by_s * cross_part) + direct_part

        return value, pull(jax.tree.map(total, own_force, cross_force, direct))[0]

    def gram(self, reduced, points, nodes):
        """Inner products of several embeddings with one another and with the data, from points `(R, M, ...)`."""
        data, weights = reduced
        v = self.generator.weights(nodes, weights)
        points = jax.vmap(vectors)(points)

        def row(y):
            return jax.lax.map(lambda z: v @ potential(self.kernel, y, z, v), points)

        s = jax.lax.map(lambda y: v @ potential(self.kernel, y, vectors(data), weights), points)
        return jax.lax.map(row, points), s, jnp.zeros(())

    def _coincident(self, y, v):
        return jnp.square(v) @ self.kernel.diagonal(y)


def potential(kernel: Kernel, y: Any, z: Any, c: jax.Array) -> jax.Array:
    """Witness values `sum_j c_j k(y_i, z_j)`, `(m,)` or `(m, R)` for `c (n,)` or `(n, R)`, in blocks of sources."""
    return _over_sources(lambda z, c: kernel.gram(y, z) @ c, z, c)


def field_at(kernel: Kernel, y: Any, z: Any, c: jax.Array) -> tuple[jax.Array, Any]:
    """Witness values `sum_j c_j k(y_i, z_j)` and their gradients in `y_i`, with the sources held still.

    For a stationary kernel `exp(g(s))`, `s = |(y - z) / l|^2`, gradients are two moments of `c_j k g'(s)`
    over the sources, so one matrix of exponentials serves both; covariates are given and have no gradient.
    """
    if isinstance(kernel, Stationary):
        return _over_sources(lambda z, c: _stationary_field(kernel, y, z, c), z, c)
    if isinstance(kernel, OnPairs) and isinstance(kernel.response, Stationary):
        return _over_sources(lambda z, c: _field_of_pairs(kernel, y, z, c), z, c)

    def block(z, c):
        values, pull = jax.vjp(lambda points: kernel.gram(points, z) @ c, y)
        return values, pull(jnp.ones_like(values))[0]

    return _over_sources(block, z, c)


def _field_of_pairs(kernel: OnPairs, y: Any, z: Any, c: jax.Array):
    near = kernel.covariate.gram(y[0], z[0])
    values, forces = _stationary_field(kernel.response, y[1], z[1], c, near)
    return values, (jax.tree.map(jnp.zeros_like, y[0]), forces)


def _stationary_field(kernel: Any, y: jax.Array, z: jax.Array, c: jax.Array, times: jax.Array | float = 1.0):
    """Of the kernel, or of its product with given values `(m, n)`."""
    scale = jnp.broadcast_to(jnp.asarray(kernel.length_scale), (1, y.shape[1]))
    y, z = y / scale, z / scale
    log_k, slope = jax.jvp(kernel.log_profile, (s := squared_distances(y, z),), (jnp.ones_like(s),))
    k = jnp.exp(log_k) * times
    weighted = k * slope
    toward = (weighted @ c)[:, None] * y - weighted @ (c[:, None] * z)
    return k @ c, 2.0 * toward / scale


def _over_sources(block, z: Any, c: jax.Array):
    """Sum `block(z, c)` over blocks of the sources; the last one is padded with sources of weight zero."""
    n = num_points(z)
    if n <= SOURCES:
        return block(z, c)
    c = jnp.pad(c, ((0, -n % SOURCES), *[(0, 0)] * (c.ndim - 1))).reshape(-1, SOURCES, *c.shape[1:])
    z = split(z, SOURCES)
    shapes = jax.eval_shape(block, *jax.tree.map(lambda a: a[0], (z, c)))
    start = jax.tree.map(lambda out: jnp.zeros(out.shape, out.dtype), shapes)
    return jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, block(*part)), None), start, (z, c))[0]
