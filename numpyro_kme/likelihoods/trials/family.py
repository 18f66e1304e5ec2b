r"""The kernel conditional exponential family: the distribution of one entry of an output given coordinates.

$$ p(v \mid z) = h(v) \exp \big( \phi(v)^\top \theta(z) - A(z) \big), \qquad
   A(z) = \log \sum_k w_k h(v_k) \exp \big( \phi(v_k)^\top \theta(z) \big), $$

with natural parameters $\theta(z) = W F(z)$. Features `F` are an intercept, those of a straight function, and radial
basis functions of the coordinates; $\phi$ are indicators of values that repeat, radial basis functions of a number, and
of a count its own value too, which Poisson, binomial and geometric distributions are made of. Both are roots of
kernels: the log density is a function in the space of their product, and the prior of `W` is standard normal.
Simulations enter by their mean embedding $\sum_j \phi(v_j) F(z_j)^\top$ alone, and the penalised log likelihood is
concave.

Distances between coordinates are in the metric of the Fisher information of one value,
$\mathbb E_z[J^\top \operatorname{Cov}(\phi) J]$ with $J = \partial \theta / \partial z$ of a first fit: functions are
smooth along what hardly changes the distribution, and follow what does, be it one coordinate or the difference of two.
All hyperparameters have the most evidence, the integral of likelihood times prior over `W`, by Laplace's approximation
with a Kronecker product in place of the curvature: all simulations speak, where a held-out part has noise of its own.

The sum `A` runs over the values of a category, over the whole numbers of a count, and for a number it is a quadrature:
nothing is jittered, and what is evaluated does not grow with the number of simulations.

References: Canu and Smola (2006), Neurocomputing 69; Arbel and Gretton (2018), AISTATS; Radhakrishnan et al. (2024),
Science 383, for the metric.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import logsumexp
from scipy.special import ndtr, ndtri

from numpyro_kme._core import Array, robust_standard_deviation
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.likelihoods.extrapolation import Repeats
from numpyro_kme.likelihoods.residual.ridge import RidgeFunctions, features, inverse_root
from numpyro_kme.likelihoods.residual.smoothness import INTERCEPT, RIDGE, Inputs
from numpyro_kme.likelihoods.statistics import COUNTS

DEGREES = 5.0
"""Degrees of freedom of the Student distribution `h` of a count."""

KNOTS, FEWEST, BEYOND = 40, 3.0, 5.0
"""Quantiles of a number over all simulations, how many of these are below the first, and by how many of the first steps
another knot is farther out."""

NODES = COUNTS
"""Nodes of the quadrature, and values of a count that have a node each; those beyond stand for several."""

OFTEN = 0.02
"""Share of the simulations from which a value of a count has an indicator, as the zero of zero-inflated ones needs."""

WIDTHS, AMPLITUDES, LENGTHS = (1.2, 0.6), (1.0, 3.0, 10.0), (1.0, 2.0, 0.7, 0.5)
"""Length scales of values, amplitudes of the radial basis functions of coordinates, and their length scales times
`sqrt(D)`: that of each with the most evidence is taken, one after another, from the first of each."""

SAME = 0.01
"""Steps, or numbers of categories, that a value may be off by for rounding."""

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


@register
class Values:
    """Features `phi` of the values of an entry.

    Attributes:
        atoms: Values that have an indicator, `(a,)`.
        same: What a value may be off by from these, for rounding.
        knots: Values between which scores, and the logarithm of `h`, are straight lines, `(k,)`.
        scores: What radial basis functions take; of numbers their normal scores over all simulations, `(k,)`.
        log_base: `log h`: of numbers the density of all simulations, `(k,)`.
        log_tail: Log weight in `h` of a Cauchy density, so that no number is impossible; minus infinity for others.
        points: Centres of radial basis functions, scores, `(r,)`.
        length: Their length scale.
        root: Inverse root of their kernel matrix, `(r, r)`.
        factor: Of the value itself as a feature, of counts, `(1,)`; `(0,)` for others.
        nodes: `v_k`, `(K,)`.
        log_weights: `log w_k`, `(K,)`.
    """

    atoms: Array
    same: Array
    knots: Array
    scores: Array
    log_base: Array
    log_tail: Array
    points: Array
    length: Array
    root: Array
    factor: Array
    nodes: Array
    log_weights: Array

    @classmethod
    def of_categories(cls, number: int) -> "Values":
        """Take so many categories, by their numbers: an indicator of each."""
        every, zeros, level = np.arange(float(number)), np.zeros(number), np.zeros(2)
        unused = np.array(-np.inf), np.zeros(0), np.array(1.0), np.zeros((0, 0)), np.zeros(0)
        return cls(every, np.array(SAME), np.arange(2.0), level, level, *unused, every, zeros)

    @classmethod
    def of_counts(cls, v: np.ndarray, length: float) -> "Values":
        """Take values `(m,)` on a lattice, with a length scale; where there is one, of whole numbers."""
        start, step = v.min(), np.diff(np.unique(v)).min(initial=np.inf)
        step = step if np.isfinite(step) else 1.0
        v = np.rint((v - start) / step)
        values, repeats = np.unique(v, return_counts=True)
        edges = np.append(np.arange(NODES), np.geomspace(NODES, max(values[-1], NODES) + 1.0, NODES))
        edges = np.unique(np.rint(edges))
        gaps = np.diff(edges)
        nodes = edges[:-1] + 0.5 * (gaps - 1.0)  # in the middle of several
        scores = np.arcsinh((nodes - np.median(v)) / (robust_standard_deviation(v) or 1.0))
        log_base = -0.5 * (DEGREES + 1.0) * np.log1p(np.square(np.sinh(scores)) / DEGREES)
        often, nodes = start + step * values[repeats > OFTEN * len(v)], start + step * nodes
        tail, factor = -np.inf, np.ones(1)
        return cls._with_basis(often, SAME * step, factor, nodes, scores, log_base, tail, nodes, np.log(gaps), length)

    @classmethod
    def of_numbers(cls, v: np.ndarray, length: float) -> "Values":
        """Take standardised numbers `(m,)`, with a length scale."""
        top = -ndtri(FEWEST / len(v))
        scores = np.linspace(-top, top, KNOTS)
        knots = np.quantile(v, ndtr(scores))
        rises = np.maximum(np.diff(knots), 1e-9 * np.ptp(knots))  # of atoms
        scores = np.concatenate([[-top - 1.0], scores, [top + 1.0]])
        knots = knots[0] + np.cumsum([-BEYOND * rises[0], BEYOND * rises[0], *rises, BEYOND * rises[-1]])
        log_base = -0.5 * np.square(scores) - np.log(np.gradient(knots, scores))
        nodes = np.interp(np.linspace(scores[0], scores[-1], NODES), scores, knots)
        log_weights = np.log(np.gradient(nodes))
        none, log_tail = np.zeros(0), -np.log(len(v))
        return cls._with_basis(none, SAME, none, knots, scores, log_base, log_tail, nodes, log_weights, length)

    @classmethod
    def _with_basis(cls, atoms, same, factor, knots, scores, log_base, log_tail, nodes, log_weights, length):
        number = int(np.clip(np.ptp(scores) / (0.7 * length), 4, NODES // 2))
        points = np.linspace(scores.min(), scores.max(), number)
        root = inverse_root(gaussian_gram(points[:, None], points[:, None], length**2) + RIDGE * np.eye(number)).T
        same, log_tail, length = np.array(same), np.array(log_tail), np.array(length)
        return cls(atoms, same, knots, scores, log_base, log_tail, points, length, root, factor, nodes, log_weights)

    def __call__(self, v: Any, xp: Any = jnp) -> Any:
        """`phi(v)` of values `(...)`, `(..., b)`."""
        same, near = self._near(v, xp)
        return xp.concatenate([same, near @ xp.asarray(self.root)], axis=-1)

    def product(self, v: Any, theta: Any, xp: Any = jnp) -> Any:
        """`phi(v)^T theta` of values `(...)` and parameters `(..., b)`."""
        same, near = self._near(v, xp)
        of_same, of_near = theta[..., : same.shape[-1]], theta[..., same.shape[-1] :]
        return xp.sum(same * of_same, axis=-1) + xp.sum(near * (of_near @ xp.asarray(self.root).T), axis=-1)

    def _near(self, v: Any, xp: Any) -> tuple[Any, Any]:
        """Indicators of the atoms, and a count itself, `(..., a + 1)`, and Gaussians of the scores around the points,
        `(..., r)`."""
        points, length, atoms, factor = map(xp.asarray, (self.points, self.length, self.atoms, self.factor))
        score = self.score(v, xp)[..., None]
        near = xp.exp(-0.5 * xp.square((score - points) / length))
        same = (xp.abs(v[..., None] - atoms) < self.same).astype(near.dtype)
        return xp.concatenate([same, factor * xp.sinh(score)], axis=-1), near

    def at_nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """`phi(v_k)`, `(K, b)`, and `log (w_k h(v_k))`, `(K,)`."""
        return self(self.nodes, np), self.log_weights + self.log_h(self.nodes, np)

    def score(self, v: Any, xp: Any = jnp) -> Any:
        """Scores of values; beyond the knots that of the nearest."""
        return between(xp.clip(v, self.knots[0], self.knots[-1]), self.knots, self.scores, xp)

    def log_h(self, v: Any, xp: Any = jnp) -> Any:
        """`log h(v)`, without its constant; beyond the knots it goes on as it ends."""
        log_base = between(v, self.knots, self.log_base, xp)
        return xp.logaddexp(log_base, self.log_tail - xp.log1p(xp.square(v)))


def between(v: Any, knots: Any, values: Any, xp: Any) -> Any:
    """The straight lines between values at knots, `(k,)` each, of which the first and the last go on."""
    how = {"method": "compare_all"} if xp is jnp else {}  # a loop takes JAX ten times as long
    knots, values = xp.asarray(knots), xp.asarray(values)
    left = xp.searchsorted(knots[1:-1], v, side="right", **how)
    slopes = xp.diff(values) / xp.diff(knots)
    return values[left] + slopes[left] * (v - knots[left])


@register
class ExponentialFamily:
    """The learnt distribution of one entry given coordinates.

    Attributes:
        metric: Root of the metric of the coordinates, `(D, D)`.
        functions: `theta` of what it makes of these, `(D,) -> (b,)`.
        values: `phi`, and the nodes.
        table: `phi(v_k)`, `(K, b)`.
        log_weights: `log (w_k h(v_k))`, `(K,)`.
        log_evidence: Of the hyperparameters in the search, nats.
        chosen: Which candidate it is of, and the width, amplitude and length, `(4,)`.
    """

    metric: Array
    functions: RidgeFunctions
    values: Values
    table: Array
    log_weights: Array
    log_evidence: Array
    chosen: Array

    @property
    def hyperparameters(self) -> tuple[int, float, float, float]:
        """These as numbers, by `fit_family`."""
        kind, *others = map(float, self.chosen)
        return int(kind), *others  # type: ignore[return-value]

    def log_density(self, v: Any, z: Any, xp: Any = jnp) -> Any:
        """`log p(v | z)` of values `(...)` at coordinates `(..., D)`, by JAX or NumPy."""
        theta = self.functions(z @ xp.asarray(self.metric), xp)
        log_sum = added(theta @ xp.asarray(self.table).T + xp.asarray(self.log_weights), xp)
        return self.values.product(v, theta, xp) + self.values.log_h(v, xp) - log_sum

    def log_shares(self, z: Any, xp: Any = jnp) -> Any:
        """Log probabilities of the nodes, `(..., K)`, which are the values of a category."""
        logs = self.functions(z @ xp.asarray(self.metric), xp) @ xp.asarray(self.table).T + xp.asarray(self.log_weights)
        return logs - added(logs, xp)[..., None]


def added(logs: Any, xp: Any) -> Any:
    """Logarithm of the sum over the last axis; on the host in a tenth of the time that SciPy takes for small sums."""
    if xp is jnp:
        return logsumexp(logs, axis=-1)
    top = np.maximum(logs.max(axis=-1), np.finfo(logs.dtype).min)
    with np.errstate(divide="ignore"):
        return top + np.log(np.exp(logs - top[..., None]).sum(axis=-1))


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
        if basis.shape[1] > 1:
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
