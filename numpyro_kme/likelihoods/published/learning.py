"""Hyperparameters of the published form, and how they are learnt: L-BFGS-B on their logarithms, in a box."""

import abc
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy

from numpyro_kme._core import Array, checks, frozen, host
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import Batched, Kernel, register
from numpyro_kme.kernels.data_sets import EmpiricalMeasure
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.descent import ravel, unravel

PARAMETER_BOUNDS = 0.05, 100.0
"""Bounds of `beta`, in coordinates (about standard normal under the prior): away from 0, so that the maximum cannot be
a spike."""

COMMON_SD = 1.5
"""Standard deviation of the normal prior on the mean of the logarithms of each group: at 1 it takes more than .002 nats
a simulation from the leave-one-out score of 150 simulations."""


@register
class Hyperparameters:
    """Everything the published form learns.

    Args:
        parameter_kernel: `l` on coordinates, length scales `beta` `(D,)`.
        data_kernel: `k` on standardised statistics (length scales `eps`), or on whatever the data are.
        regularisation: `lam`, for `(L + m lam I)^-1`.
    """

    parameter_kernel: Gaussian
    data_kernel: Kernel
    regularisation: Array

    def __post_init__(self):
        checks.positive("regularisation", self.regularisation)


@frozen
class TrainingSet:
    """Simulations as the kernels see them.

    Args:
        z: Coordinates, `(m, D)`.
        data: `m` data points: standardised statistics `(m, n)`, or a pytree that the data kernel understands.
        measure: The prior in coordinates; only for objectives that need it.
        y: The observation alone, as data of one simulation; only for objectives that need it.
    """

    z: np.ndarray
    data: Any
    measure: Measure | None = None
    y: Any = None

    @property
    def is_table(self) -> bool:
        """Tell whether the data are vectors of statistics."""
        return isinstance(self.data, np.ndarray) and self.data.ndim == 2

    def random_subset(self, size: int) -> "TrainingSet":
        """A fixed random choice of simulations where there are many more; what all share in the data stays as it is."""
        total = len(self.z)
        if total <= 1.3 * size:
            return self
        rows = np.random.default_rng(0).permutation(total)[:size]
        choose = lambda leaf: leaf[rows] if np.shape(leaf)[:1] == (total,) else leaf  # noqa: E731
        return replace(self, z=self.z[rows], data=jax.tree.map(choose, self.data))


class LearningObjective(abc.ABC):
    """A function of the hyperparameters to maximise, per simulation.

    Attributes:
        uses_priors: Whether the learner adds its weak priors on the logarithms of the hyperparameters.
    """

    uses_priors = True

    @abc.abstractmethod
    def value_and_gradient(self, hyper: Hyperparameters, training: TrainingSet) -> tuple[float, np.ndarray]:
        """The objective, and its derivatives by the logarithms of all hyperparameters, in the order of `ravel`; NaN
        where a factorisation fails."""


@frozen
class Tied:
    r"""Two hyperparameters in place of all: one `eps` for every statistic and one `beta_0`, which decides `lam` too.

        eps_i = eps,   beta_d = beta_0,   lam = ratio * beta_0 ** power

    The protocol of the papers, which let `beta = beta_0 sigma` with the prior's standard deviations `sigma`; those are
    1 in coordinates. `Tied()` is `lam = 1e-3 beta_0` (AISTATS), `Tied(1e-4, power=0.0)` the constant `lam = 1e-4` of
    the preprint. A data kernel with several hyperparameters keeps the ratios between them.

    Args:
        ratio: `lam` where `beta_0` is 1.
        power: How `lam` grows with `beta_0`.
    References:
        Hsu & Ramos (2019), AISTATS, section 5.
    """

    ratio: float = 1e-3
    power: float = 1.0

    def __post_init__(self):
        checks.positive_number("ratio", self.ratio)
        checks.non_negative("power", self.power)


@frozen
class Learner:
    """Settings of the search for hyperparameters; every number is in units of the template's values or of logarithms.

    Args:
        regularisation_bounds: Bounds of `lam`. The lower one keeps the surrogate from interpolating noise.
        data_factors: Bounds of each data hyperparameter as factors of its start.
        subset: Number of simulations for all but a last search.
        most: Largest number of simulations of the last search, chosen at random. Where there are more, `lam` is divided
            by as much as they are more: the noise variance `m lam` stays.
        max_steps: Evaluations of a search; a quarter of that for a last one with all simulations, where there are more
            than `subset`.
        tied: `Tied()` searches over one `eps` and one `beta_0` with all simulations up to `most`, without
            `regularisation_bounds`; when left out, everything is free.
    """

    regularisation_bounds: tuple[float, float] = (1e-3, 1.0)
    data_factors: tuple[float, float] = (0.02, 50.0)
    subset: int = 350
    most: int = 2000
    max_steps: int = 60
    tied: Tied | None = None

    def __post_init__(self):
        for name in ("regularisation_bounds", "data_factors"):
            low, high = getattr(self, name)
            checks.require(0 < low < high < np.inf, f"`{name}` must increase and be positive; got ({low}, {high}).")
        for name in ("subset", "most", "max_steps"):
            checks.whole(name, getattr(self, name), 1)
        checks.instance("tied", self.tied, Tied | None, "Tied() or None")


class LearntHyperparameters(NamedTuple):
    """Result of a search.

    Attributes:
        hyper: The hyperparameters.
        score: The objective there, without priors; NaN where a factorisation failed at all that were tried.
        at_bounds: Which of them ended at a bound, in words.
    """

    hyper: Hyperparameters
    score: float
    at_bounds: str


class Space(NamedTuple):
    """Box of log hyperparameters: `beta` `(D,)`, those of the data kernel, `lam`.

    Attributes:
        start, lower, upper: Where the search starts, the centre of the priors, and the box, `(n,)`.
        groups: Which kernel a logarithm belongs to, 2 for `lam`; -1 where it follows from others and has no prior of
            its own.
        common: One direction for each group, `(n, groups)`: all of its logarithms at once.
    """

    start: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    groups: np.ndarray
    common: np.ndarray

    @classmethod
    def around(cls, template: Hyperparameters, learner: Learner, fixed: bool = False) -> "Space":
        """The box around a template; the data kernel may be `fixed`."""
        logs, dim = np.log(ravel(template)), np.size(template.parameter_kernel.length_scale)
        groups = np.repeat([0, 1, 2], [dim, len(logs) - dim - 1, 1])
        factors = (1.0, 1.0) if fixed else learner.data_factors
        bounds = np.log([PARAMETER_BOUNDS, factors, learner.regularisation_bounds])[groups]
        bounds[groups == 1] += logs[groups == 1, None]
        lower, upper = bounds.T
        start = np.clip(logs, lower, upper)
        common = (groups[:, None] == np.arange(3)).astype(float)
        if learner.tied is not None:
            start[:dim] = start[:dim].mean()
            start[-1] = np.log(learner.tied.ratio) + learner.tied.power * start[0]
            lower[-1], upper[-1], groups[-1] = -np.inf, np.inf, -1
            common[-1, 0] = learner.tied.power
            common = common[:, :-1]
        return cls(start, lower, upper, groups, common)

    def penalty(self, at: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus log priors: normal on the mean of the logarithms of each group, and standard normal on the differences
        from it, which is how much evidence it takes to treat dimensions differently."""
        member = (self.groups[:, None] == np.arange(self.common.shape[1])).astype(float)
        share = member / np.maximum(member.sum(axis=0), 1.0)  # a kernel may have no length scales
        offset = (at - self.start) * member.sum(axis=1)
        mean = offset @ share
        apart = offset - member @ mean
        penalty = 0.5 * (np.sum(np.square(mean / COMMON_SD)) + np.sum(np.square(apart)))
        return penalty, share @ mean / COMMON_SD**2 + apart

    def at_bounds(self, at: np.ndarray) -> str:
        """Name the logarithms at a bound of the search, in words."""
        names = []
        for kind, group in (("beta", 0), ("eps", 1)):
            names += [f"{kind}[{i}]" for i in range(np.count_nonzero(self.groups == group))]
        moves = self.lower < self.upper
        ends = {"lower": moves & (at < self.lower + 1e-6), "upper": moves & (at > self.upper - 1e-6)}
        hits = [f"{name} ({end})" for end, hit in ends.items() for name, met in zip([*names, "lam"], hit) if met]
        return ", ".join(hits) or "none"


@host.one_blas_thread  # two take twice the processor time, and on a busy machine 2 to 100 times one's (m = 2000 to 350)
def learn(
    objective: LearningObjective,
    training: TrainingSet,
    template: Hyperparameters,
    learner: Learner,
    fixed: bool = False,
) -> LearntHyperparameters:
    """Maximise an objective over the hyperparameters.

    A search with one factor per kernel from the best of a grid of them, then one with every length scale free from
    there; with many simulations these use a subset, and a last search uses all. Tied hyperparameters end with the first
    search, which uses all simulations: on a subset the maximum can be another.

    Args:
        objective: What to maximise.
        training: The simulations.
        template: Structure, starting values and centres of the priors.
        learner: Settings of the search.
        fixed: Whether the data kernel stays as it is in the template.
    """
    if isinstance(template.data_kernel, EmpiricalMeasure):
        return learn_empirical(objective, training, template, learner)
    space, total = Space.around(template, learner, fixed), len(training.z)
    training = training.random_subset(learner.most)
    small = training.random_subset(learner.subset) if training.is_table and learner.tied is None else training

    def search(training, begin, directions, starts, steps):
        """Maximise, with priors, over `begin + directions @ v` from the best start."""
        moved = directions > 0.0
        low = np.max(np.where(moved, (space.lower - begin)[:, None], -np.inf), axis=0)
        high = np.min(np.where(moved, (space.upper - begin)[:, None], np.inf), axis=0)

        def loss(v):
            at = begin + directions @ v
            value, gradient = objective.value_and_gradient(unravel(np.exp(at), template), training)
            penalty, slope = space.penalty(at)
            weight = 1.0 / len(training.z) if objective.uses_priors else 0.0
            if not (np.isfinite(value) and np.isfinite(gradient).all()):  # a factorisation failed
                return 1e6, directions.T @ slope
            return weight * penalty - value, directions.T @ (weight * slope - gradient)

        start = min((np.clip(v, low, high) for v in starts), key=lambda v: loss(v)[0])
        options = dict(maxfun=steps, maxiter=steps, ftol=1e-7, gtol=1e-5)
        bounds = scipy.optimize.Bounds(low, high)
        found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return begin + directions @ found.x

    grid = np.array(list(product(np.log([0.3, 1.0]), np.log([0.25, 0.7, 2.0]), [0.0])))[:, : space.common.shape[1]]
    each, none = np.eye(len(space.start)), np.zeros((1, len(space.start)))
    at = search(small, space.start, space.common, grid, learner.max_steps)
    if learner.tied is None and len(space.start) > space.common.shape[1]:
        at = search(small, at, each, none, learner.max_steps)
    if len(small.z) < len(training.z):
        at = search(training, at, each, none, max(learner.max_steps // 4, 1))
    score, (*values, lam) = objective.value_and_gradient(unravel(np.exp(at), template), training)[0], np.exp(at)
    hyper = unravel(np.array([*values, lam * len(training.z) / total]), template)
    return LearntHyperparameters(hyper, float(score), space.at_bounds(at))


@register
class KnownDistances(Batched):
    """Gaussian kernel whose "points" are the rows of a matrix of squared distances that is known already."""

    length_scale: Array

    def log_gram(self, x, y=None):
        """`-x / (2 eps^2)` for squared distances `x` `(m, m)`."""
        return -0.5 * x / self.length_scale / self.length_scale


def learn_empirical(
    objective: LearningObjective, training: TrainingSet, template: Hyperparameters, learner: Learner
) -> LearntHyperparameters:
    """Learn with an `EmpiricalMeasure` data kernel, its inner hyperparameters included.

    The inner kernel's hyperparameters are multiplied by a common factor `2^k`, the best of `k = -4, -2, 0, 2, 4`; at
    each, squared MMDs between all simulated data sets are computed once, and `eps`, `beta` and `lam` learnt on them.
    `eps` starts at 0.4 of the median distance. All this with `learner.subset` simulations, or `learner.most` where
    hyperparameters are tied.

    Cost: half of `m^2 size^2` inner kernel evaluations for each of five inner length scales.
    """
    given: Any = template.data_kernel
    total, training = len(training.z), training.random_subset(learner.most if learner.tied else learner.subset)
    learner = replace(learner, subset=len(training.z), most=len(training.z))  # distances have no further subsets

    def at(step: int) -> LearntHyperparameters:
        inner = jax.tree.map(lambda leaf: 2.0**step * np.asarray(leaf, np.float64), given.inner)
        squared = np.asarray(replace(given, inner=inner).squared_mmd(training.data), np.float64)
        start = 0.4 * np.sqrt(np.median(squared[np.triu_indices(len(squared), 1)]))
        known = replace(template, data_kernel=KnownDistances(np.array(start)))
        found = learn(objective, replace(training, data=squared), known, learner)
        learnt: Any = found.hyper.data_kernel
        data_kernel = replace(given, inner=inner, length_scale=learnt.length_scale)
        lam = found.hyper.regularisation * len(training.z) / total
        return found._replace(hyper=replace(found.hyper, data_kernel=data_kernel, regularisation=lam))

    return max(map(at, range(-4, 5, 2)), key=lambda found: np.nan_to_num(found.score, nan=-np.inf))
