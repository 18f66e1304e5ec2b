"""Bayesian kernel learning: the length scale by a pseudo-likelihood of the data, and shrinkage of mean embeddings."""

from dataclasses import field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import full_precision, on_host
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.length_scales import LengthScaleRule, median_heuristic, some_rows

FAILED = 1e12
"""Stands for a loss that is not finite."""


STARTS = (0.02, 0.1, 0.5, 0.95)
"""Starting values of the length scale, relative to the median heuristic."""


def smoothed_kernel(x: ArrayLike, y: ArrayLike, length_scale: ArrayLike, reach: ArrayLike) -> jax.Array:
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
    x, y = jnp.asarray(x), jnp.asarray(y)
    square, far = jnp.square(length_scale), jnp.square(reach)
    apart = jnp.sum(jnp.square(x[:, None] - y[None]), axis=-1)
    middle = 0.25 * jnp.sum(jnp.square(x[:, None] + y[None]), axis=-1)
    log_scale = 0.5 * x.shape[1] * jnp.log(2.0 * jnp.pi * square * far / (square + 2.0 * far))
    return jnp.exp(log_scale - apart / (4.0 * square) - middle / (square + 2.0 * far))


@full_precision
def log_pseudo_likelihood(
    x: ArrayLike, landmarks: ArrayLike, length_scale: ArrayLike, noise: ArrayLike, reach: ArrayLike
) -> jax.Array:
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
    x, z = jnp.asarray(x), jnp.asarray(landmarks)
    n, q = x.shape[0], z.shape[0]
    difference = (z[None] - x[:, None]) / jnp.square(length_scale)
    log_features = -0.5 * jnp.sum(jnp.square(z[None] - x[:, None]), axis=-1) / jnp.square(length_scale)
    features = jnp.exp(log_features)
    mean = jnp.mean(features, axis=0)
    covariance = n * smoothed_kernel(z, z, length_scale, reach) + jnp.square(noise) * jnp.eye(q)
    factor = jnp.linalg.cholesky(covariance)
    white = jax.scipy.linalg.solve_triangular(factor, jnp.sqrt(n * 1.0) * mean, lower=True)
    about_mean = -0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(factor)))
    rest = -0.5 * jnp.sum(jnp.square(features - mean[None])) / jnp.square(noise) - (n - 1) * q * jnp.log(noise)
    log_volume = jnp.sum(jax.vmap(_log_volume)(log_features, difference))
    return about_mean + rest + log_volume - 0.5 * n * q * jnp.log(2.0 * jnp.pi)


def _log_volume(logs, rows):
    """`log det(J'J) / 2` for `J` with rows `e^logs * rows`, `(q,)` and `(q, D)`.

    By elimination with complete pivoting, with the factors `e^logs` kept apart: they differ by many powers of ten, and
    the nearest landmark alone gives a matrix `J'J` of rank one in which rounding drowns all others.
    """
    lower, total = [], jnp.zeros((), rows.dtype)
    for _ in range(rows.shape[1]):
        sizes = jax.lax.stop_gradient(logs[:, None] + jnp.log(jnp.abs(rows)))
        row, column = jnp.divmod(jnp.argmax(sizes), rows.shape[1])
        ratio = rows[:, column] / rows[row, column]
        total += logs[row] + jnp.log(jnp.abs(rows[row, column]))
        lower.append(jnp.exp(jnp.minimum(logs - logs[row], 80.0)) * ratio)
        rows = (rows - ratio[:, None] * rows[row][None]).at[:, column].set(0.0).at[row].set(0.0)
    lower = jnp.stack(lower)
    return total + 0.5 * jnp.linalg.slogdet(lower @ lower.T)[1]


@shown
class LearntLengthScale(NamedTuple):
    """Result of Bayesian kernel learning.

    Attributes:
        length_scale: `s`.
        noise: `tau`.
        log_likelihood: Log pseudo-likelihood there.
        optima: `(length_scale, log_likelihood)` at the end of the search from each starting value.
    """

    length_scale: float
    noise: float
    log_likelihood: float
    optima: np.ndarray


def learn_length_scale(rng_key: jax.Array, x: ArrayLike, *, num_landmarks: int = 50) -> LearntLengthScale:
    """Length scale of a Gaussian kernel by Bayesian kernel learning: maximise `log_pseudo_likelihood` by L-BFGS.

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
    checks.concrete(rng_key=rng_key, x=x)
    checks.key(rng_key)
    checks.table("x", x, min_rows=2)
    table = np.asarray(x, np.float64)
    table = table - table.mean(axis=0)
    checks.require(bool(np.ptp(table, axis=0).all()), "`x` has a constant column; leave it out.")
    checks.whole("num_landmarks", num_landmarks, 1)
    landmarks = farthest_point_design(rng_key, table, max(num_landmarks, table.shape[1]))
    reach = float(np.sqrt(np.mean(np.sum(np.square(table), axis=1))))
    return _search(table, landmarks, reach, float(median_heuristic(table)))


@on_host
def _search(table, landmarks, reach, median) -> LearntLengthScale:
    def loss(at):
        value, slope = _loss(at, table, landmarks, reach)
        value, slope = float(value), np.asarray(slope)
        return (value, slope) if np.isfinite(value) and np.isfinite(slope).all() else (FAILED, np.zeros(2))

    bounds = [tuple(np.log(median) + np.log([1e-3, 1.0])), (np.log(1e-2), np.log(10.0))]
    starts = [np.array([np.log(multiple * median), np.log(0.3)]) for multiple in STARTS]
    found = [scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
    best = min(found, key=lambda result: result.fun)
    checks.require(
        best.fun < FAILED,
        f"The pseudo-likelihood is not finite at length scales "
        f"{', '.join(f'{multiple * median:.3g}' for multiple in STARTS)}: are there enough different points among the "
        f"{len(table)}, more than columns?",
        np.linalg.LinAlgError,
    )
    optima = np.array([[np.exp(result.x[0]), -result.fun] for result in found])
    return LearntLengthScale(float(np.exp(best.x[0])), float(np.exp(best.x[1])), float(-best.fun), optima)


@jax.jit
@jax.value_and_grad
def _loss(at, x, landmarks, reach):
    return -log_pseudo_likelihood(x, landmarks, jnp.exp(at[0]), jnp.exp(at[1]), reach)


def farthest_point_design(rng_key: jax.Array, x: ArrayLike, number: int) -> np.ndarray:
    """A farthest-point (maximin) design, `(number, D)`: each row of `x` is the farthest from those before it.

    Args:
        rng_key: Chooses the first row.
        x: `(n, D)`.
        number: How many rows; all `n` if there are fewer.
    Cost: `n number` distances.
    References: Gonzalez (1985), Theoretical Computer Science 38.
    """
    checks.concrete(rng_key=rng_key, x=x)
    checks.key(rng_key)
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
        num_landmarks: How many landmarks.
        most: How many points, at most, chosen at random.
    """

    paper = "flaxman2016bayesian"

    rng_key: jax.Array
    num_landmarks: int = field(default=50, metadata=dict(static=True))
    most: int = field(default=1000, metadata=dict(static=True))

    def __post_init__(self):
        checks.key(self.rng_key)

    def __call__(self, x, targets=None):
        """The learnt scalar; `targets` say nothing."""
        checks.matrix("x", x, min_rows=2)
        rows, landmarks = jax.random.split(self.rng_key)
        table = some_rows(rows, np.asarray(x), self.most)
        return np.asarray(learn_length_scale(landmarks, table, num_landmarks=self.num_landmarks).length_scale)
