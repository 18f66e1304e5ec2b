"""Learning with data sets: the inner kernel's Gram work is done once for each inner length scale."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core.host import on_host
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.empirical import EmpiricalMeasure
from numpyro_kme.likelihoods.published.learning import Learner, LearntHyperparameters, learn
from numpyro_kme.likelihoods.published.objectives import Hyperparameters, LearningObjective, TrainingSet

FACTOR = 2.0
COARSE_STEPS = (-4, -2, 0, 2, 4)


@register
class KnownDistances(Kernel):
    """Gaussian kernel whose "points" are the rows of a matrix of squared distances that is known already."""

    length_scale: ArrayLike

    def log_pair(self, a, b):
        """Not defined for single points."""
        raise TypeError("KnownDistances compares all simulations at once, by their squared distances.")

    def log_gram(self, x, y=None):
        """`-x / (2 eps^2)` for squared distances `x` `(m, m)`."""
        return -0.5 * x / jnp.square(self.length_scale)


def learn_empirical(
    objective: LearningObjective, training: TrainingSet, template: Hyperparameters, learner: Learner
) -> LearntHyperparameters:
    """Learn with an `EmpiricalMeasure` data kernel, its inner hyperparameters included.

    The inner kernel's hyperparameters are multiplied by a common factor `2^k`, the best of `k = -4, -2, 0, 2, 4` and
    its two neighbours; at each, squared MMDs between all simulated data sets are computed once, and `eps`, `beta` and
    `lam` learnt on them. `eps` starts at 0.4 of the median distance.

    Cost: half of `m^2 size^2` inner kernel evaluations for each of seven inner length scales.
    """
    objective.check(training, template)
    found: dict[int, LearntHyperparameters] = {}

    def at(step):
        if step not in found:
            found[step] = _at_inner(objective, training, template, learner, FACTOR**step)
        return found[step].score

    coarse = max(COARSE_STEPS, key=at)
    step = max((coarse - 1, coarse, coarse + 1), key=at)
    return found[step]


def _at_inner(objective, training, template, learner, factor) -> LearntHyperparameters:
    given = template.data_kernel
    inner = jax.tree.map(lambda leaf: factor * np.asarray(leaf, np.float64), given.inner)
    squared = on_host(EmpiricalMeasure.squared_mmd)(replace(given, inner=inner), training.data)
    start = 0.4 * np.sqrt(np.median(squared[np.triu_indices(len(squared), 1)]))
    known = replace(template, data_kernel=KnownDistances(np.array(start)))
    learnt = learn(objective, replace(training, data=squared), known, learner)
    [length_scale] = jax.tree.leaves(learnt.hyper.data_kernel)
    data_kernel = replace(given, inner=inner, length_scale=length_scale)
    return replace(learnt, hyper=replace(learnt.hyper, data_kernel=data_kernel))
