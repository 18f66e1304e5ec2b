"""Bayesian kernel learning: the length scale by a pseudo-likelihood of the data, and shrinkage of mean embeddings."""

import math
from dataclasses import field
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, full_precision, numpy_function, shown
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.kernels.length_scales import LengthScaleRule, median_heuristic, some_rows

MULTIPLES = np.geomspace(1e-3, 1.0, 20)
"""Length scales that are tried, relative to the median heuristic, before the search around the best of them."""


def smoothed_kernel(x: Array, y: Array, length_scale: Any, reach: Any) -> Any:
    r"""$r(x, y) = \int k(x, u)\, k(u, y)\, e^{-|u|^2 / 2 \eta^2} du$ for a Gaussian `k` of length scale `s`, `(n, m)`.

    $$ \big(2 \pi \tfrac{s^2 \eta^2}{s^2 + 2 \eta^2}\big)^{D/2}\, e^{-|x - y|^2 / 4 s^2}\,
       e^{-|(x + y)/2|^2 / (s^2 + 2 \eta^2)}: $$

    the covariance of a Gaussian process whose paths lie in the space of `k` with probability one.

    Args:
        x, y: `(n, D)` and `(m, D)`.
        length_scale: `s`, a scalar.
        reach: `eta`, of the order of the distances of the data from 0.
    References: Flaxman et al. (2016), UAI, whose slides print another last denominator.
    """
    xp = namespace(x, y, length_scale, reach)
    square, far = length_scale * length_scale, reach * reach
    apart = xp.sum(xp.square(x[:, None] - y[None]), axis=-1)
    middle = 0.25 * xp.sum(xp.square(x[:, None] + y[None]), axis=-1)
    log_scale = 0.5 * x.shape[1] * xp.log(2.0 * np.pi * square * far / (square + 2.0 * far))
    return xp.exp(log_scale - apart / (4.0 * square) - middle / (square + 2.0 * far))


@full_precision
def log_pseudo_likelihood(x: Array, landmarks: Array, length_scale: Any, noise: Any, reach: Any) -> Any:
    r"""Log density of the data `x` given a Gaussian kernel: features at landmarks are draws around a mean embedding.

    With $\phi(x) = (k(x, z_l))_l$ and $R_{ll'} = r(z_l, z_{l'})$:
    $\mathrm{vec}\,\phi(x_{1..n}) \sim N(0,\; 11^\top \otimes R + \tau^2 I)$, times $\prod_i \gamma(x_i)$,
    $\gamma(x)^2 = \det \sum_l \nabla k(x, z_l) \nabla k(x, z_l)^\top$, the volume that $\phi$ takes.

    Args:
        x: `(n, D)`, centred.
        landmarks: `z`, `(q, D)`, `q >= D`.
        length_scale, noise, reach: `s`, `tau`, `eta`.
    Cost: `q^3 + n q D^2`.
    References: Flaxman et al. (2016), UAI, section 4.
    """
    log_features, rows = _features(x, landmarks, length_scale)
    xp, (n, q) = namespace(log_features, noise, reach), log_features.shape
    features = xp.exp(log_features)
    mean = features.mean(axis=0)
    covariance = n * smoothed_kernel(landmarks, landmarks, length_scale, reach) + noise * noise * xp.eye(q)
    factor = xp.linalg.cholesky(covariance)
    white = xp.linalg.solve(factor, math.sqrt(n) * mean)
    about_mean = -0.5 * white @ white - xp.log(xp.diagonal(factor)).sum()
    rest = -0.5 * xp.square(features - mean[None]).sum() / (noise * noise) - (n - 1) * q * xp.log(noise)
    return about_mean + rest - 0.5 * n * q * math.log(2.0 * math.pi) + _log_volumes(log_features, rows).sum()


def _features(x, landmarks, length_scale):
    """Logs of the features, `(n, q)`, and what multiplies each in its gradient, `(n, q, D)`."""
    apart = landmarks[None] - x[:, None]
    square = length_scale * length_scale
    return -0.5 * (apart * apart).sum(axis=-1) / square, apart / square


def _log_volumes(logs, rows):
    """`log det(J'J) / 2` for `J` with rows `e^logs * rows`, `(n, q)` and `(n, q, D)`: `(n,)`.

    By elimination with complete pivoting, with the factors `e^logs` kept apart: they differ by many powers of ten, and
    the nearest landmark alone gives a matrix `J'J` of rank one in which rounding drowns all others.
    """
    xp, (n, q, dim) = namespace(logs, rows), rows.shape
    lower, total = [], 0.0
    for _ in range(dim):
        with np.errstate(divide="ignore"):
            sizes = (logs[:, :, None] + xp.log(xp.abs(rows))).reshape(n, -1)
        row, column = (index[:, None, None] for index in xp.divmod(xp.argmax(sizes, axis=1), dim))
        chosen, from_column = xp.take_along_axis(rows, row, axis=1), xp.take_along_axis(rows, column, axis=2)
        pivot, log_pivot = xp.take_along_axis(chosen, column, axis=2), xp.take_along_axis(logs, row[..., 0], axis=1)
        ratio = from_column / pivot
        total = total + (log_pivot + xp.log(xp.abs(pivot[..., 0])))[:, 0]
        lower.append(xp.exp(xp.minimum(logs - log_pivot, 80.0)) * ratio[..., 0])
        used = (xp.arange(q)[None, :, None] == row) | (xp.arange(dim)[None, None] == column)
        rows = xp.where(used, 0.0, rows - ratio * chosen)
    lower = xp.stack(lower, axis=1)
    return total + 0.5 * xp.linalg.slogdet(lower @ xp.swapaxes(lower, 1, 2))[1]


@shown
class LearntLengthScale(NamedTuple):
    """Result of Bayesian kernel learning.

    Attributes:
        length_scale: `s`.
        noise: `tau`.
        log_likelihood: Log pseudo-likelihood there.
    """

    length_scale: float
    noise: float
    log_likelihood: float


@numpy_function
def learn_length_scale(rng_key: jax.Array, x: ArrayLike, *, num_landmarks: int = 50) -> LearntLengthScale:
    """Length scale of a Gaussian kernel by Bayesian kernel learning: maximise `log_pseudo_likelihood`.

    It finds the local scale of data with structure, where the median heuristic gives the size of the whole. The median
    heuristic is also the upper bound of the search: beyond it features are linear in the data, `tau` goes to 0 with
    `1 / s`, and the pseudo-likelihood grows without bound. `eta` is the root mean squared distance from the mean.

    Args:
        rng_key: Chooses the landmarks among the data.
        x: `(n, D)`.
        num_landmarks: Size of the farthest-point design. The more landmarks, the shorter the length scale that is
            learnt (`python -m benchmarks kernel_learning`).
    References: Flaxman et al. (2016), UAI.
    """
    checks.table("x", x, min_rows=2)
    table = np.asarray(x, np.float64)
    table = table - table.mean(axis=0)
    checks.require(bool(np.ptp(table, axis=0).all()), "`x` has a constant column; leave it out.")
    checks.whole("num_landmarks", num_landmarks, 1)
    landmarks = farthest_point_design(rng_key, table, max(num_landmarks, table.shape[1]))
    reach = float(np.sqrt(np.mean(np.sum(np.square(table), axis=1))))
    return _search(table, landmarks, reach, float(median_heuristic(table)))


def _search(table, landmarks, reach, median) -> LearntLengthScale:
    def loss(at):
        try:
            with np.errstate(all="ignore"):
                value = -log_pseudo_likelihood(table, landmarks, *np.exp(at), reach)
        except np.linalg.LinAlgError:
            return np.inf
        return value if np.isfinite(value) else np.inf

    def start(scale):
        """A length scale with the noise of the features about their mean."""
        features = np.exp(_features(table, landmarks, scale)[0])
        return np.clip(np.log([scale, np.sqrt(np.mean(features.var(axis=0)))]), *np.transpose(bounds))

    scales = MULTIPLES * median
    bounds = [(np.log(scales[0]), np.log(median)), (np.log(1e-2), np.log(10.0))]
    best = min(map(start, scales), key=loss)
    checks.require(
        np.isfinite(loss(best)),
        f"The pseudo-likelihood is not finite at length scales from {scales[0]:.3g} to {median:.3g}: are "
        f"there enough different points among the {len(table)}, more than columns?",
        np.linalg.LinAlgError,
    )
    found = scipy.optimize.minimize(loss, best, method="Nelder-Mead", bounds=bounds)
    length_scale, noise = np.exp(found.x)
    return LearntLengthScale(float(length_scale), float(noise), float(-found.fun))


@numpy_function
def farthest_point_design(rng_key: jax.Array, x: ArrayLike, number: int) -> np.ndarray:
    """A farthest-point (maximin) design, `(number, D)`: each row of `x` is the farthest from those before it.

    Args:
        rng_key: Chooses the first row.
        x: `(n, D)`.
        number: How many rows; all `n` if there are fewer.
    Cost: `n number` distances.
    References: Gonzalez (1985), Theoretical Computer Science 38.
    """
    checks.table("x", x)
    checks.whole("number", number, 1)
    x = np.asarray(x)
    first = int(jax.random.randint(rng_key, (), 0, len(x)))
    chosen, distance = [first], np.sum(np.square(x - x[first]), axis=1)
    while len(chosen) < min(number, len(x)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.sum(np.square(x - x[chosen[-1]]), axis=1))
    return x[chosen]


@register
class BayesianKernelLearning(LengthScaleRule):
    """The length scale of `learn_length_scale`, from at most `most` of the points.

    Args:
        rng_key: Chooses points and landmarks.
        num_landmarks: Number of landmarks.
        most: Largest number of points, chosen at random.
    """

    paper = "flaxman2016bayesian"

    rng_key: jax.Array
    num_landmarks: int = field(default=50, metadata=dict(static=True))
    most: int = field(default=1000, metadata=dict(static=True))

    def __post_init__(self):
        checks.key(self.rng_key)

    def __call__(self, x, targets=None):
        """The learnt scalar; `targets` say nothing."""
        checks.table("x", x, min_rows=2)
        rows, landmarks = jax.random.split(self.rng_key)
        table = some_rows(rows, np.asarray(x), self.most)
        return np.asarray(learn_length_scale(landmarks, table, num_landmarks=self.num_landmarks).length_scale)
