r"""The squared maximum mean discrepancy as a loss, and as a function of two inner products.

Everywhere in this package the **mixing proportion** is the `c` in `[0, 1]` of an unnormalised model measure `c P_u`.
Where it is fitted (`MMD(fit_proportion=True)`), the data are taken for a mixture of the model, with proportion `c`, and
of points that it does not explain, and the loss is

    min_{0 <= c <= 1} |mu_w - c mu_u|^2 = |mu_w|^2 - 2 c s + c^2 q,    c = min(max(s / q, 0), 1),

with `q = |mu_u|^2` and `s = <mu_w, mu_u>`; otherwise `c = 1`. Without the bound at one a diffuse model, whose `q` is
small and known the worst, would win by a proportion that means nothing.

Reference: Scott (2004), Partial mixture estimation and outlier detection, in Theory and Applications of Recent Robust
Methods.
"""

from dataclasses import field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, full_precision, host, jitted, programs
from numpyro_kme.kernels import Gaussian, Kernel
from numpyro_kme.kernels.base import PairProduct, num_points, register
from numpyro_kme.kernels.gram import matvec
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.losses.base import Embedding, Loss, vectors

TOLERANCE = 1e-4
"""Largest squared distance of a point's embedding from the span of the features, relative to `k(x, x)`."""

TOGETHER, NODES = 2**15, 64
"""Simulated points that are compared with pivots in one call of a compiled program, and nodes that it averages."""


def discrepancy(q: Any, s: Any, fit_proportion: bool) -> Any:
    """Squared MMD without the constant `|mu_w|^2`, from `q = |mu_u|^2` and `s = <mu_w, mu_u>`, of JAX or NumPy.

    `c^2 q - 2 c s`, with `c = 1`, or the fitted mixing proportion.
    """
    c = proportion(q, s) if fit_proportion else 1.0
    return c * (c * q - 2.0 * s)


def derivatives(q: Any, s: Any, fit_proportion: bool) -> tuple[Any, Any]:
    """Gradient `(2, ...)` and Hessian `(2, 2, ...)` of `discrepancy` in `(q, s)`, of JAX or NumPy.

    The gradient is `(c^2, -2 c)`, whether the proportion `c` is fitted or at a bound; where it is fitted inside, the
    Hessian is `-(2 / q) (c, -1) (c, -1)'`.
    """
    xp = q.__array_namespace__()
    c, curvature = xp.ones_like(q), xp.zeros_like(q)
    if fit_proportion:
        c = proportion(q, s)
        curvature = xp.where((c > 0.0) & (c < 1.0), -2.0 / xp.where(q == 0.0, 1.0, q), 0.0)
    hessian = curvature * xp.stack([xp.stack([c * c, -c]), xp.stack([-c, xp.ones_like(q)])])
    return xp.stack([c * c, -2.0 * c]), hessian


def proportion(q: Any, s: Any) -> Any:
    """Mixing proportion `c = s / q` that fits best, or the nearer of 0 and 1, of JAX or NumPy; 0 where `q` is."""
    xp = q.__array_namespace__()
    return xp.clip(s / xp.where(q == 0.0, 1.0, q), 0.0, 1.0)


@register
class MMD(Loss):
    r"""Squared maximum mean discrepancy between the weighted data and the model.

    `|mu_w - mu_u|^2` with `mu_w = sum_i w_i k(x_i, .)` and `mu_u = E k(X_u, .)`. With `fit_proportion`,
    `min_{0 <= c <= 1} |mu_w - c mu_u|^2`, with `c = <mu_w, mu_u> / |mu_u|^2` inside: the model is a proportion `c` of
    the distribution of the data. Far contamination then causes no bias, while the plain loss answers a proportion `e`
    of outliers with a model that is too wide. The fitted `c` is reported as `mixing_proportion`; without contamination
    the estimates are less efficient by about a third.

    Args:
        kernel: Compares two data points; Gaussian with the median distance as length scale when left out. It must be
            bounded. Kernels on points that are not vectors work too.
        fit_proportion: Fit the mixing proportion of the model, instead of fixing it at 1.
        covariate_kernel: Compares two covariates, for simulators with covariates: the loss then compares joint
            distributions, with kernel `covariate_kernel * kernel`. Gaussian with the median distance when left out.
        length_scale: Rule for the length scale of the Gaussian kernels that are left out, instead of the median:
            `BayesianKernelLearning(key)`. It sees the data alone, so it cannot be one that predicts parameters.
        unbiased: Leave out pairs of a simulated point with itself (U-statistic), for independent simulations.

    References: Gretton et al. (2012), JMLR 13; Cherief-Abdellatif and Alquier (2022), Bernoulli 28;
        Dellaporta et al. (2022), AISTATS; Scott (2004) (`fit_proportion`, see the module).
    """

    takes_covariates = True
    kernel: Kernel | None = None
    fit_proportion: bool = field(default=False, metadata=dict(static=True))
    covariate_kernel: Kernel | None = None
    length_scale: LengthScaleRule | None = None
    unbiased: bool = field(default=False, metadata=dict(static=True))

    @full_precision
    def value(self, x, w, y, v):
        """Squared MMD of two weighted samples, `n^2 + n M + M^2` kernel values."""
        for name, one in {"x": x, "w": w, "y": y, "v": v}.items():
            checks.real(name, one)
        for name, weights, points in (("w", w, x), ("v", v, y)):
            checks.shaped(name, weights, (num_points(points),), "point")
        return self.offset(x, w) + self._excess(x, w, y, v)

    @full_precision
    def of_model(self, x, w, family, u, nodes):
        """Squared MMD of weighted data and the model, without `|mu_w|^2`."""
        return self._excess(x, w, family.points(u, nodes), family.weights(nodes, w))

    def offset(self, x, w):
        """`|mu_w|^2`."""
        return self._inner(vectors(x), w, vectors(x), w)

    def _excess(self, x, w, y, v):
        x, y = vectors(x), vectors(y)
        energy = self._inner(y, v, y, v)
        if self.unbiased:
            squares = jnp.square(v)
            coincident = squares @ self._kernel(y).diagonal(y)
            energy = (energy - coincident) / (1.0 - jnp.sum(squares))
            # so many points cannot tell a smaller energy from nothing: those that scatter would seem to fit best
            energy = jnp.maximum(energy, coincident) if self.fit_proportion else energy
        return discrepancy(energy, self._inner(y, v, x, w), self.fit_proportion)

    def _inner(self, x, w, y, v):
        return w @ matvec(self._kernel(x), x, y, v)

    def _kernel(self, points) -> Kernel:
        kernel = checks.given(self.kernel, "`kernel` of MMD must be given where no data tell a length scale.")
        return OnPairs((self.covariate_kernel, kernel)) if isinstance(points, tuple) else kernel

    def for_independent(self):
        """Leave out pairs of a simulated point with itself."""
        return replace(self, unbiased=True)

    def for_data(self, data):
        """Choose length scales by the data."""
        checks.real("data", data)
        pairs = isinstance(data, tuple)
        rule = self._rule(pairs)
        responses = data[1] if pairs else data
        kernel = self.kernel or gaussian_by(rule, responses)
        covariate = (self.covariate_kernel or gaussian_by(rule, data[0])) if pairs else None
        _require_bounded(kernel if not pairs else OnPairs((covariate, kernel)), vectors(data))
        return replace(self, kernel=kernel, covariate_kernel=covariate, length_scale=None)

    def is_squared_distance(self, data):
        """Tell whether the loss has an `embedding`: for data of any kind."""
        return True

    def embedding(self, data, simulated, max_rank):
        """Features of the kernel by pivots among data and simulations."""
        data, simulated = jax.tree.map(partial(np.asarray, dtype=np.float64), (vectors(data), vectors(simulated)))
        together = jax.tree.map(lambda *leaves: np.concatenate(leaves), data, simulated)
        factor = LowRank.fit(self._kernel(data), together, tolerance=TOLERANCE, max_rank=max_rank)
        return KernelEmbedding(data, factor, factor.values[: num_points(data)])

    def _rule(self, pairs: bool) -> LengthScaleRule:
        rule = self.length_scale
        checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as BayesianKernelLearning(key)")
        given = self.kernel is not None and (not pairs or self.covariate_kernel is not None)
        checks.require(rule is None or not given, "Give `kernel` or `length_scale`, not both.")
        fits = rule is None or not rule.needs_targets
        checks.require(
            fits, f"`length_scale` {type(rule).__name__} asks what predicts the parameters best: use another."
        )
        return rule or MedianHeuristic()


@register
class KernelEmbedding(Embedding):
    """Mean embeddings in features `phi(t) = W k(P, t)` of a kernel by pivots `P`.

    Attributes:
        points: The data.
        factor: The features.
        features: Those of the data, `(n, r)`.
    """

    points: Any
    factor: LowRank
    features: np.ndarray

    def data(self, weights, extra=None):
        """Weighted means of features."""
        n = len(self.features)
        found = weights[:, :n] @ self.features
        if extra is not None:
            flat = jax.tree.map(lambda leaf: vectors(leaf.reshape(-1, *leaf.shape[2:])), extra)
            own = self.factor.features(flat).reshape(len(found), -1, found.shape[1])
            found += np.einsum("rt,rtj->rj", weights[:, n:], own)
        return found

    @host.one_blas_thread
    def model(self, points, weights=None):
        """Means of features over simulated points."""
        kernel, pivots = self.factor.kernel, self.factor.pivots
        if weights is None:
            return _mean_kernels(kernel, pivots, points)[:, None] @ self.factor.inverse.T
        near = np.asarray(kernel.kernels[0].gram(self.points[0], pivots[0]), np.float64)
        few = max(TOGETHER // points.shape[1], 1)
        samples = (points[start : start + few].reshape(-1, *points.shape[2:]) for start in range(0, len(points), few))
        means = (_mean_kernels(kernel.kernels[1], pivots[1], flat).reshape(-1, *near.shape) for flat in samples)
        return np.concatenate([weights @ (near * own) for own in means]) @ self.factor.inverse.T


def _mean_kernels(kernel: Kernel, pivots: Any, points: np.ndarray) -> np.ndarray:
    """Means over `M` of the kernel between pivots and samples `(D, M, *event)`, `(D, r)` in float64."""
    num, nodes = num_points(pivots), min(points.shape[1], NODES)
    padded = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], -num % 64, axis=0)]), pivots)
    parts = points.reshape(-1, nodes, *points.shape[2:])
    together = lambda samples: _means(kernel, padded, samples.reshape(-1, *points.shape[2:]), nodes)  # noqa: E731
    found = programs.in_blocks(together, parts, TOGETHER // nodes).astype(np.float64)
    return found.reshape(len(points), -1, found.shape[1]).mean(axis=1)[:, :num]


@partial(jitted, static_argnums=3)
def _means(kernel, pivots, points, nodes):
    near = kernel.gram(vectors(points), pivots)
    return jnp.mean(near.reshape(-1, nodes, near.shape[1]), axis=1)


@register
class OnPairs(PairProduct):
    """Product kernel `k(c, c') k(y, y')` on pairs (covariate, response)."""

    kernels: tuple[Any, Kernel]


def gaussian_by(rule: LengthScaleRule, data: Any) -> Gaussian:
    """Gaussian kernel with the length scale that a rule gives for the data points."""
    apart = isinstance(data, np.ndarray) and data.ndim <= 2
    checks.require(apart, "`kernel` must be given for data that are not vectors of shape (n,) or (n, dim).")
    scale = np.asarray(rule(vectors(data)))
    return Gaussian(scale.reshape(()) if scale.size == 1 else scale)


def _require_bounded(kernel: Kernel, points: Any) -> None:
    """Raise an error where `k(x, x)` grows with the data: such embeddings are not robust, and may not exist."""
    one = jax.tree.map(lambda leaf: leaf[:1], points)
    far = jax.tree.map(lambda leaf, all: leaf * 1e3 + 1e3 * np.abs(all).max(), one, points)
    near, distant = (float(kernel.diagonal(point)[0]) for point in (one, far))
    checks.require(
        np.isfinite(distant) and distant <= 10.0 * max(near, 1e-300),
        f"`kernel` must be bounded for a robust loss; {type(kernel).__name__} has k(x, x) = {near:.3g} at a data point "
        f"and {distant:.3g} far away. Use Gaussian, Matern or RationalQuadratic.",
    )
