"""Learning hyperparameters: L-BFGS-B on logarithms, from several starts, with bounds, weak priors and adjoints."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from numpyro_kme._core import checks, solves
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import in_present_precision, on_host, to_host
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.descent import ravel, unravel
from numpyro_kme.likelihoods.published.hyperparameters import Hyperparameters, TrainingSet
from numpyro_kme.likelihoods.published.leave_one_out import LearningObjective

PARAMETER_BOUNDS = 0.05, 100.0
"""Bounds of `beta`, in coordinates (about standard normal under the prior): away from 0, so that the maximum cannot be
a spike."""

COMMON_SD, SEPARATE_SD = 1.5, 1.0
"""Standard deviations of the normal priors on the mean of the log length scales of one kernel, and of each about that
mean: how much evidence it takes to treat dimensions differently."""


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
        checks.positive("ratio", self.ratio)
        checks.require(0 <= self.power < np.inf, f"`power` must be finite and not negative; got {self.power}.")


@frozen
class Learner:
    """How hyperparameters are searched; every number is in units of the template's values or of logarithms.

    Args:
        regularisation_bounds: Bounds of `lam`. The lower one keeps the surrogate from interpolating noise.
        data_factors: Bounds of each data hyperparameter as factors of its start.
        num_starts: Isotropic starts that are followed to their optimum, the best of a small grid.
        subset: Number of simulations for all but the last steps.
        last_steps: Evaluations of a last search with all simulations, where there are more than `subset`.
        most: Largest number of simulations of the last search, chosen at random. Where there are more, `lam` is divided
            by as much as they are more: the noise variance `m lam` stays.
        max_steps: Evaluations of every other search.
        tied: `Tied()` searches over one `eps` and one `beta_0` with all simulations up to `most`, without
            `regularisation_bounds`; when left out, everything is free.
    """

    regularisation_bounds: tuple[float, float] = (1e-3, 1.0)
    data_factors: tuple[float, float] = (0.02, 50.0)
    num_starts: int = 2
    subset: int = 350
    last_steps: int = 15
    most: int = 2000
    max_steps: int = 60
    tied: Tied | None = None

    def __post_init__(self):
        for name in ("regularisation_bounds", "data_factors"):
            low, high = getattr(self, name)
            checks.require(0 < low < high < np.inf, f"`{name}` must increase and be positive; got ({low}, {high}).")
        for name in ("num_starts", "subset", "last_steps", "most", "max_steps"):
            checks.whole(name, getattr(self, name), 1)
        checks.instance("tied", self.tied, Tied | None, "Tied() or None")


@register
class LearntHyperparameters:
    """What a search found.

    Attributes:
        hyper: The hyperparameters.
        score: The objective there, without priors.
        at_lower: For each logarithm (`beta`, then the data kernel's, then `lam`) whether it ended at its lower bound.
        at_upper: The same for upper bounds.
    """

    hyper: Hyperparameters
    score: float
    at_lower: np.ndarray
    at_upper: np.ndarray

    def at_bounds(self, dim: int) -> str:
        """Which hyperparameters ended at a bound of the search, in words; `dim` is the number of coordinates."""
        eps = [f"eps[{i}]" for i in range(len(self.at_lower) - dim - 1)]
        names = [*(f"beta[{i}]" for i in range(dim)), *eps, "lam"]
        ends = {"lower": self.at_lower, "upper": self.at_upper}
        hits = [f"{name} ({end})" for end, masks in ends.items() for name, hit in zip(names, masks, strict=True) if hit]
        return ", ".join(hits) or "none"


class Space(NamedTuple):
    """Box of log hyperparameters: `beta` `(D,)`, the leaves of the data kernel, `lam`; and what moves in it.

    Attributes:
        start, lower, upper: Where the search starts, and the box, `(n,)`.
        groups: Which kernel a logarithm belongs to, 2 for `lam`; -1 where it follows from others and has no prior of
            its own.
        common: One direction for each group, `(n, groups)`: all of its logarithms at once.
    """

    start: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    groups: np.ndarray
    common: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """The groups that are searched."""
        return np.unique(self.groups[self.groups >= 0])

    @classmethod
    def around(cls, template: Hyperparameters, learner: Learner) -> "Space":
        """The box around a template, whose values are the centres of the priors."""
        logs = np.log(ravel(template))
        dim = np.size(template.parameter_kernel.length_scale)
        groups = np.repeat([0, 1, 2], [dim, len(logs) - dim - 1, 1])
        bounds = np.log([PARAMETER_BOUNDS, learner.data_factors, learner.regularisation_bounds])[groups]
        bounds[groups == 1] += logs[groups == 1, None]
        lower, upper = bounds.T
        start = np.clip(logs, lower, upper)
        common = (groups[:, None] == np.unique(groups)).astype(float)
        if learner.tied is not None:
            start[:dim] = start[:dim].mean()
            start[-1] = np.log(learner.tied.ratio) + learner.tied.power * start[0]
            lower[-1], upper[-1], groups[-1] = -np.inf, np.inf, -1
            common = common[:, :-1]
            common[-1, 0] = learner.tied.power
        return cls(start, lower, upper, groups, common)


@on_host
def learn(
    objective: LearningObjective, training: TrainingSet, template: Hyperparameters, learner: Learner
) -> LearntHyperparameters:
    """Maximise an objective over the hyperparameters.

    A grid of isotropic settings, searches from the best of them with one factor per kernel, then one search with every
    length scale free from there; with many simulations these use a subset, and a last search uses all. Tied
    hyperparameters end with the first searches, which use all simulations: on a subset the maximum can be another.

    Args:
        objective: What to maximise.
        training: The simulations.
        template: Structure, starting values and centres of the priors.
        learner: Settings of the search.
    """
    objective.check(training, template)
    space, total = Space.around(template, learner), len(training.z)
    training = training.random_subset(learner.most)
    small = training.random_subset(learner.subset) if training.is_table and learner.tied is None else training
    training, small = in_present_precision((training, small))
    search = _Search(objective, template, space, learner)
    # up to there the threads of OpenBLAS wait for each other longer than they save: at 350 simulations that doubles
    # the processor time on a quiet machine, and takes nine times as much on a busy one
    with solves.threads_for(len(small.z)):
        at = search.isotropic(small)
        if learner.tied is None and len(space.start) > space.common.shape[1]:
            at = search.free(small, at, learner.max_steps)
    if len(small.z) < len(training.z):
        at = search.free(training, at, learner.last_steps)
    score = search.value_and_gradient(at, training)[0]
    hyper = to_host(unravel(np.exp(at), template))
    hyper = replace(hyper, regularisation=hyper.regularisation * len(training.z) / total)
    return LearntHyperparameters(hyper, score, at < space.lower + 1e-6, at > space.upper - 1e-6)


@dataclass
class _Search:
    objective: LearningObjective
    template: Hyperparameters
    space: Space
    learner: Learner

    def value_and_gradient(self, at, training):
        """The objective and its gradient on the host; `-inf` where a factorisation failed."""
        value, gradient = _value_and_gradient(self.objective, at, training, self.template)
        value, gradient = float(value), np.asarray(gradient)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return -np.inf, np.zeros_like(at)
        return value, gradient

    def loss(self, at, training):
        """Minus the objective, plus minus log priors per simulation."""
        value, gradient = self.value_and_gradient(at, training)
        penalty, slope = self._penalty(at)
        weight = 1.0 / len(training.z) if self.objective.uses_priors else 0.0
        if not np.isfinite(value):
            return 1e6, slope
        return weight * penalty - value, weight * slope - gradient

    def _penalty(self, at):
        """Normal priors on the mean of the logs of each group, and on the differences from it."""
        penalty, slope = 0.0, np.zeros_like(at)
        offset = at - self.space.start
        for group in self.space.present:
            rows = self.space.groups == group
            mean = offset[rows].mean()
            apart = offset[rows] - mean
            penalty += 0.5 * (mean / COMMON_SD) ** 2 + 0.5 * np.sum(apart**2) / SEPARATE_SD**2
            slope[rows] += mean / COMMON_SD**2 / rows.sum() + apart / SEPARATE_SD**2
        return penalty, slope

    def isotropic(self, training):
        """Search over one factor for each kernel and `lam`, from the best points of a grid."""
        space = self.space
        tie = space.common
        low = [np.max((space.lower - space.start)[column > 0]) for column in tie.T]
        high = [np.min((space.upper - space.start)[column > 0]) for column in tie.T]

        def loss(factors):
            value, slope = self.loss(space.start + tie @ factors, training)
            return value, tie.T @ slope

        grid = np.array(list(product(np.log([0.3, 1.0]), np.log([0.25, 0.7, 2.0]), [0.0])))[:, space.present]
        starts = sorted(np.clip(grid, low, high), key=lambda factors: loss(factors)[0])[: self.learner.num_starts]
        results = [_minimise(loss, start, low, high, self.learner.max_steps) for start in starts]
        return space.start + tie @ min(results, key=lambda result: result.fun).x

    def free(self, training, start, steps):
        """Search with every hyperparameter free."""
        space = self.space
        return _minimise(lambda at: self.loss(at, training), start, space.lower, space.upper, steps).x


def _minimise(loss, start, lower, upper, steps):
    options = dict(maxfun=steps, maxiter=steps, ftol=1e-7, gtol=1e-5)
    bounds = scipy.optimize.Bounds(lower, upper)
    return scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)


@partial(jax.jit, static_argnums=0)
def _value_and_gradient(objective, at, training, template):
    return jax.value_and_grad(lambda logs: objective.value(unravel(jnp.exp(logs), template), training))(at)
