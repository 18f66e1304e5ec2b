"""Discrepancies of simulations from an observation, and whether it lies out of their distribution."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jax.typing import ArrayLike

from numpyro_kme._core import checks, numpy_function, shown
from numpyro_kme.embeddings.mmd import Estimator
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.losses.base import Loss
from numpyro_kme.losses.mmd import MMD

Discrepancy = Callable[[Any, Any], Any]


@numpy_function
def discrepancies_to(
    observed: Any, simulated: Any, discrepancy: Estimator | Loss | Discrepancy, *, ragged: bool = False
) -> np.ndarray:
    r"""Discrepancies $d(x_i, y)$ of simulated outputs from an observed one, `(m,)`.

    Args:
        observed: `y`, `(*event)`; for estimators and losses a data set `(n, dim)`.
        simulated: `x`, `(m, *event)`.
        discrepancy: An estimator of the squared MMD such as `Quadratic(kernel)`, a loss between samples such as
            `Wasserstein()`, or a function of a simulation and the observation that gives one number.
        ragged: Whether outputs may end before their last row, with NaN behind the end, which the function gets too.
    Raises:
        TypeError: If `discrepancy` is none of these; a kernel is not one, since it is larger where samples are more
            alike.
        ValueError: If the discrepancy fails, gives anything but one finite number, or shapes disagree.
    Cost: `m` discrepancies, compiled if JAX can trace the function, one by one in Python if not.
    """
    check_discrepancy(discrepancy)
    for name, value in {"simulated": simulated, "observed": observed}.items():
        (checks.real if ragged else checks.sound)(name, value)
    x, y = np.asarray(simulated, np.float64), np.asarray(observed, np.float64)
    checks.require(
        x.ndim >= 1 and len(x) >= 1 and x.ndim == y.ndim + 1,
        f"`simulated` must be outputs (m, *event), and `observed` (*event); got shapes {x.shape} and {y.shape}.",
    )
    checks.require(
        not isinstance(discrepancy, Estimator | Loss) or x.shape[2:] == y.shape[1:],
        f"Points of `simulated` and `observed` must be alike; got shapes {x.shape[2:]} and {y.shape[1:]}.",
    )
    try:
        found = np.asarray(_called(discrepancy, x, y), np.float64)
    except Exception as error:
        if isinstance(discrepancy, Estimator | Loss):
            raise
        name = getattr(discrepancy, "__name__", type(discrepancy).__name__)
        raise checks.explained(f"The discrepancy `{name}` failed: {error}") from error
    single = found.shape == (len(x),)
    checks.require(single, f"The discrepancy must give one number of two outputs; it gave shape {found.shape[1:]}.")
    checks.sound("discrepancies", found, "Check the discrepancy and the simulations.")
    return found


def check_discrepancy(given: Any) -> None:
    """Require an estimator, a loss between samples or a function; not a kernel, which is larger for like samples."""
    checks.require(
        not isinstance(given, Kernel | MMD),
        f"`discrepancy` must be less where samples are more alike; got {type(given).__name__}. Use Quadratic(kernel).",
        TypeError,
    )
    checks.require(
        callable(given) or (isinstance(given, Loss) and type(given).value is not Loss.value),
        "`discrepancy` must be a function of a simulation and the observation, an estimator of the MMD, or a loss such "
        f"as Wasserstein(); got {given!r:.200}.",
        TypeError,
    )


def _called(discrepancy, x, y):
    function = discrepancy.between if isinstance(discrepancy, Loss) else discrepancy
    try:
        return _compiled(function if isinstance(function, Estimator) else Partial(function), x, y)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        return np.stack([np.asarray(function(one, y), np.float64) for one in x])


@jax.jit
def _compiled(function, x, y):
    return jax.lax.map(lambda one: jnp.asarray(function(one, y)), x)


@shown
class OutOfDistributionCheck(NamedTuple):
    """Distance of an observation from simulations.

    Attributes:
        nearest: Distance of the observation from the nearest of the simulations, a proportion `proportion` of all.
        threshold: Distance that three in four pairs of simulations do not exceed, or that every simulation has a
            neighbour within, whichever is larger.
        proportion: `1 / 2k` for `k` simulations that were compared with one another.
    """

    nearest: float
    threshold: float
    proportion: float

    @property
    def is_out_of_distribution(self) -> bool:
        """True if the nearest simulations are farther from the observation than simulations are from one another."""
        return self.nearest > self.threshold


@numpy_function
def out_of_distribution_check(to_observation: ArrayLike, between: ArrayLike) -> OutOfDistributionCheck:
    """Check if an observation lies outside the distribution of simulations, by any distance or discrepancy.

    Weights of the simulations that are nearest to an observation say nothing of how near those are. This compares the
    distance of the nearest `1 / 2k` of the simulations with the distances of `k` simulations from one another. The
    observation is out of distribution if the first exceeds three in four of the others, and the distance of every one
    of the `k` from its nearest neighbour. An observation that the prior and the simulator explain is no farther from
    its neighbours than a simulation is, so the check is wrong about it once in `k + 1` times at most, about, whatever
    the distribution; where tails are light, hardly ever.

    Args:
        to_observation: Distances of the simulations from the observation, `(m,)`.
        between: Distances of some of the simulations from one another, `(k, k)`, `k >= 2`; the diagonal is passed over.
    Raises:
        ValueError: If shapes disagree, or distances are not finite.
    """
    for name, value in {"to_observation": to_observation, "between": between}.items():
        checks.sound(name, value)
    checks.table("between", between)
    distance, between = np.asarray(to_observation, np.float64), np.asarray(between, np.float64)
    k = len(between)
    checks.require(
        distance.ndim == 1 and len(distance) >= k >= 2 and between.shape == (k, k),
        f"`to_observation` must be (m,) and `between` (k, k), k from 2 to m; got {distance.shape} and {between.shape}.",
    )
    off = ~np.eye(k, dtype=bool)
    nearest_other = np.min(between, axis=1, initial=np.inf, where=off)
    threshold = max(float(np.quantile(between[off], 0.75)), float(nearest_other.max()))
    nearest = float(np.sort(distance)[max(1, len(distance) // (2 * k)) - 1])
    return OutOfDistributionCheck(nearest, threshold, 0.5 / k)


@numpy_function
def dissimilarities(estimator: Estimator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Minus the log of the cosine between mean embeddings of data sets `(k, n, d)` and `(s, n, d)`, `(s, k)`.

    $-\log E k(X_i, Y_j) + \tfrac12 \log E k(X_i, X_i') + \tfrac12 \log E k(Y_j, Y_j')$: about 0 for samples of one
    distribution, however wide it is, and bounded: beyond the length scale of the kernel all samples are equally far.
    """
    least = np.finfo(np.float64).tiny
    found = _similarities(estimator, x, y)
    alike, of_x, of_y = (np.maximum(part, least) for part in found)
    return np.where(alike > least, 0.5 * (np.log(of_x) + np.log(of_y)[:, None]), 0.0) - np.log(alike)


@jax.jit
def _similarities(estimator, x, y):
    def own(sets):
        return jax.lax.map(lambda one: estimator.similarity(one, one), sets)

    return jax.lax.map(lambda b: jax.lax.map(lambda a: estimator.similarity(a, b), x), y), own(x), own(y)
