r"""Learning a kernel conditional exponential family: its hyperparameters, and its weights.

Distances between coordinates are in the metric of the Fisher information of one value,
$\mathbb E_z[J^\top \operatorname{Cov}(\phi) J]$ with $J = \partial \theta / \partial z$ of a first fit: functions are
smooth along what hardly changes the distribution, and follow what does, be it one coordinate or the difference of two.
All hyperparameters have the most evidence, the integral of likelihood times prior over `W`, by Laplace's approximation
with a Kronecker product in place of the curvature: all simulations speak, where a held-out part has noise of its own.

References: Radhakrishnan et al. (2024), Science 383, for the metric; Laplace's approximation as Rasmussen and Williams
(2006), section 3.4.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy

from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.likelihoods.extrapolation import Repeats
from numpyro_kme.likelihoods.residual.ridge import RidgeFunctions, features, inverse_root
from numpyro_kme.likelihoods.residual.smoothness import INTERCEPT, RIDGE, Inputs
from numpyro_kme.likelihoods.trials.family import ExponentialFamily
from numpyro_kme.likelihoods.trials.values import Values

WIDTHS, AMPLITUDES, LENGTHS = (1.2, 0.6), (1.0, 3.0, 10.0), (1.0, 2.0, 0.7, 0.5)
"""Length scales of values, amplitudes of the radial basis functions of coordinates, and their length scales times
`sqrt(D)`: that of each with the most evidence is taken, one after another, from the first of each."""

FLAT = 0.01
"""Least eigenvalue of the metric of the coordinates, over their mean."""

ROUGHER = 0.5
"""By how much the length scales of coordinates are shorter where halves of the simulations are learnt for standard
errors. What smoothing leaves is the same for all that are as smooth: the moves of rougher ones hold it too."""

MOST, SEARCHED = 200, 200_000
"""Inducing points of the coordinates, at most, and how many probabilities the search evaluates at a time: 2,000
coordinates of a number, and up to 20,000 of an answer."""

LOOSE, PRECISE = 1e-5, 1e-8
"""Decrease of the loss in one step, relative to it, below which fits of the search, and the last fit, end. 6e-5 nats a
trial are a quarter of the posterior standard deviation of 500 trials, and 1e-6 left as much."""


class CoordinateFeatures(NamedTuple):
    """Features `F` of the coordinates.

    Attributes:
        metric: Root of their metric, `(D, D)`.
        points: Inducing points, `(r, D)`.
        amplitude, length: Of the radial basis functions around them, the length in `sqrt(D)`.
    """

    metric: np.ndarray
    points: np.ndarray
    amplitude: float
    length: float

    @property
    def _squared(self) -> float:
        return self.length**2 * self.points.shape[1]

    @property
    def _root(self) -> np.ndarray:
        among = gaussian_gram(self.points, self.points, self._squared) + RIDGE * np.eye(len(self.points))
        return self.amplitude * inverse_root(among).T

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """`F`, `(d, 1 + 2 D + r)`."""
        z = z @ self.metric
        near = gaussian_gram(z, self.points, self._squared) @ self._root
        return np.concatenate([np.full((len(z), 1), INTERCEPT), features(z), near], axis=1)

    def functions(self, weights: np.ndarray) -> RidgeFunctions:
        """The functions of `z @ metric` that have these weights, `(1 + 2 D + r, b)`."""
        intercept, linear, rbf = np.split(weights, [1, len(weights) - len(self.points)])
        precision = np.full(self.points.shape, 1.0 / self._squared)
        return RidgeFunctions(INTERCEPT * intercept[0], linear.T, self.points, precision, (self._root @ rbf).T)

    def metric_of(self, weights: np.ndarray, z: np.ndarray, table: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
        """The root of the metric of the functions that have these weights, from points `(m, D)`."""
        step = 1e-3
        moves = np.stack([self(z + way) - self(z - way) for way in step * np.eye(z.shape[1])])
        slopes = moves @ weights @ table.T / (2.0 * step)
        shares = scipy.special.softmax(self(z) @ weights @ table.T + log_weights, axis=1)
        slopes -= np.sum(slopes * shares, axis=-1, keepdims=True)
        information = np.einsum("imk,jmk,mk->ij", slopes, slopes, shares, optimize=True)
        sizes, ways = np.linalg.eigh(information)
        sizes = np.maximum(sizes, FLAT * max(sizes.mean(), 1e-100))
        return ways * np.sqrt(sizes / sizes.mean())


class Candidate(NamedTuple):
    """What may stand for the values of an entry: values `(m,)`, their features with a length scale, which of these are
    tried, and the logs of the slopes of the values, `(m,)`."""

    values: np.ndarray
    make: Callable[[float], Values]
    widths: Sequence[float] = WIDTHS
    log_slope: np.ndarray | float = 0.0


def fit_family(
    z: np.ndarray, candidates: Sequence[Candidate], before: ExponentialFamily | None = None
) -> ExponentialFamily:
    """Learn the distribution of values given coordinates `(m, D)`.

    Args:
        z: The coordinates; rows of the same are taken together.
        candidates: What may stand for the values, of which the best is taken.
        before: Of all simulations, where these are some of them, which has the hyperparameters (but see `ROUGHER`);
            these are searched where left out.
    Cost: for `d` different coordinates, `r` inducing points, `b` features of values and `K` nodes some hundred times
        `d b (r + K)` operations; the search of hyperparameters as much eight times for each candidate, of a
        part of the simulations.
    """
    repeats = Repeats.of(z)
    z, number = z[repeats.first], np.bincount(repeats.kind).astype(float)
    most = int(np.clip(SEARCHED // len(candidates[0].make(WIDTHS[0]).nodes), 2000, 20_000))
    some = np.random.default_rng(0).permutation(len(z))[:most]
    metrics = [np.asarray(before.metric) if before else np.eye(z.shape[1])]

    @cache
    def of_width(kind, width):
        """Features, and sums of these and of `log h` at each of the different coordinates, `(d, b)` and `(d,)`."""
        v, make, _, log_slope = candidates[kind]
        values = make(width)
        return values, *(repeats.reduced(np.add, a) for a in (values(v, np), values.log_h(v, np) + log_slope))

    @cache
    def points(metric):
        """Inducing points in a metric, by its number."""
        return Inputs.pivoted(z @ metrics[metric], MOST, some[:2000]).inducing_points

    @cache
    def attempt(kind, width, metric, amplitude, length):
        """Features of the coordinates, weights of a part of the simulations, and the log evidence there."""
        values, sums, log_h = of_width(kind, width)
        basis = CoordinateFeatures(metrics[metric], points(metric), amplitude, length)
        weights, evidence = maximise(basis(z[some]), number[some], sums[some], *values.at_nodes(), enough=LOOSE)
        return basis, weights, float(evidence + np.sum(log_h[some]))

    def with_metric(one):
        """The same settings in the metric of their fit."""
        kind, width, _, *others = one
        basis, weights, _ = attempt(*one)
        metrics.append(basis.metric_of(weights, z[some[:2000]], *of_width(kind, width)[0].at_nodes()))
        return kind, width, len(metrics) - 1, *others

    if before:
        kind, width, amplitude, length = before.hyperparameters
        best = kind, width, 0, amplitude, ROUGHER * length
    else:
        best = searched(lambda one: attempt(*one)[-1], with_metric, len(candidates), candidates[0].widths)
    values, sums, _ = of_width(*best[:2])
    basis, start, evidence = attempt(*best)
    table, log_weights = values.at_nodes()
    weights, _ = maximise(basis(z), number, sums, table, log_weights, start)
    functions, chosen = basis.functions(weights), np.array([*best[:2], *best[3:]])
    return ExponentialFamily(basis.metric, functions, values, table, log_weights, np.array(evidence), chosen)


def searched(
    log_evidence: Callable[[Any], float], with_metric: Callable[[Any], Any], kinds: int, widths: Sequence[float]
) -> tuple[Any, ...]:
    """Find the metric, width, amplitude and length of each candidate that have the most evidence, one after another,
    and which candidate is best with its own."""
    found: list[tuple[Any, ...]] = []
    for kind in range(kinds):
        first = kind, widths[0], 0, AMPLITUDES[0], LENGTHS[0]
        found.append(max(first, with_metric(first), key=log_evidence))
    for place, grid in ((1, widths), (3, AMPLITUDES), (4, LENGTHS)):
        found = [
            max(((*best[:place], value, *best[place + 1 :]) for value in grid), key=log_evidence) for best in found
        ]
    return max(found, key=log_evidence)


def maximise(
    basis: np.ndarray,
    number: np.ndarray,
    sums: np.ndarray,
    table: np.ndarray,
    log_weights: np.ndarray,
    start: np.ndarray | None = None,
    enough: float = PRECISE,
) -> tuple[np.ndarray, float]:
    r"""Maximise the penalised log likelihood over the weights, `(f, b)`, by L-BFGS.

    The curvature is about `C = I + (F' N F) x E[Cov(phi)]`, with the mean over some of the coordinates. Variables are
    scaled by that where the search begins, in its eigenvectors: a quarter of the steps that Boehning's bound takes. At
    the maximum it gives Laplace's approximation to the evidence of the hyperparameters,
    $\max_W \{\log p(v \mid W) - \|W\|^2 / 2\} - \tfrac12 \log \det C$.

    Args:
        basis: `F` at the different coordinates, the intercept first, `(d, f)`.
        number: How many values there are of each, `(d,)`.
        sums: Sums of their features, `(d, b)`.
        table, log_weights: Of the nodes.
        start: Where the search begins; where left out, with the distribution that all values have together, which
            needs half of the steps that 0 does.
        enough: See `LOOSE`.
    Returns:
        The weights, and the log evidence, without `sum log h(v)`.
    """
    if start is None:
        start = np.zeros((basis.shape[1], table.shape[1]))
        of_all = basis[:1, :1], number.sum(keepdims=True), sums.sum(axis=0, keepdims=True)
        start[0] = maximise(*of_all, table, log_weights, start[:1], enough)[0]
    some = slice(None, None, 1 + len(basis) // 2000)
    weights_of_some = number[some, None] / number[some].sum()

    def spread(weights):
        """The mean covariance of the features of values."""
        shares = scipy.special.softmax(basis[some] @ weights @ table.T + log_weights, axis=1)
        means, mean_shares = shares @ table, np.sum(weights_of_some * shares, axis=0)
        return table.T @ (mean_shares[:, None] * table) - means.T @ (weights_of_some * means)

    sizes, left = np.linalg.eigh((basis.T * number) @ basis)
    curvatures, right = np.linalg.eigh(spread(start))
    scale = 1.0 / np.sqrt(1.0 + np.maximum(np.outer(sizes, curvatures), 0.0))
    begin = left.T @ start @ right / scale
    linear = left.T @ (basis.T @ (sums @ right))
    rows = np.asarray(basis @ left, np.float32)
    columns = np.concatenate([table @ right, np.ones((len(table), 1))], axis=1).astype(np.float32)
    fixed, count = log_weights.astype(np.float32), number.astype(np.float32)

    def loss(variables):
        weights = variables.reshape(scale.shape) * scale
        logs = rows @ weights.astype(np.float32) @ columns[:, :-1].T
        logs += fixed
        top = logs.max(axis=1)
        sums = np.exp(np.subtract(logs, top[:, None], out=logs), out=logs) @ columns
        value = number @ (top + np.log(sums[:, -1].astype(np.float64)))
        value += 0.5 * np.sum(np.square(weights)) - np.sum(linear * weights)
        means = sums[:, :-1] * (count / sums[:, -1])[:, None]
        return value, ((rows.T @ means - linear + weights) * scale).ravel()

    options = {"maxiter": 1000, "maxcor": 20, "ftol": enough, "gtol": 1e-3}
    found = scipy.optimize.minimize(loss, begin.ravel(), jac=True, method="L-BFGS-B", options=options)
    weights = left @ (found.x.reshape(scale.shape) * scale) @ right.T
    volume = np.sum(np.log1p(np.maximum(np.outer(sizes, np.linalg.eigvalsh(spread(weights))), 0.0)))
    return weights, -float(found.fun) - 0.5 * volume
