"""Kernel recursive ABC."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, progress
from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import numpy_rng
from numpyro_kme._core.keys import split
from numpyro_kme.abc.weighting import with_unit_sum
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding, MeanEmbedding
from numpyro_kme.kernels import low_rank, median_heuristic, median_heuristic_per_dimension
from numpyro_kme.kernels.base import Kernel, num_points
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.samplers.importance import effective_size

NAME = "Kernel recursive ABC"

ADVICE = "Start where the observation is reached, with more simulations or a wider kernel."


@shown
class RecursiveABC(NamedTuple):
    """Result of kernel recursive ABC.

    Attributes:
        theta: The points after the last iteration, `(m, dim)`.
        path: The first point that each herding chose, `(iterations, dim)`; the last one is the estimate.
        standard_deviations: Of the points after each iteration, `(iterations, dim)`.
    """

    theta: np.ndarray
    path: np.ndarray
    standard_deviations: np.ndarray


def kernel_recursive_abc(
    rng_key: jax.Array,
    simulate: Callable[[jax.Array, np.ndarray], Any],
    theta: ArrayLike,
    observed: ArrayLike,
    *,
    kernel: Kernel | None = None,
    num_iterations: int = 10,
    regularisation: float | None = None,
    tolerance: float = low_rank.TOLERANCE,
    progress_bar: bool = True,
) -> RecursiveABC:
    r"""Close in on the maximum of a likelihood: simulate, take a `recursive_abc_step`, and again from where it ends.

    The `t`-th set of points follows $p(\theta) \ell(\theta)^t$, where `p` is the distribution of the first.

    Args:
        rng_key: The only source of randomness.
        simulate: `simulate(rng_key, theta)` gives an output `(m, *event)` for each row of `theta` `(m, dim)`.
        theta: Where to begin, such as prior draws, `(m, dim)`, on a scale on which distances mean the same in each
            column.
        observed: `y`, `(*event)`.
        kernel: On outputs; when left out, a Gaussian with the median distance of each number, anew in each iteration;
            pairs that coincide, as counts do, are left out.
        num_iterations: How often.
        regularisation, tolerance: As in `recursive_abc_step`.
        progress_bar: Show a bar of the iterations, except where the environment variable `CI` is set.
    Raises:
        RuntimeError: As `recursive_abc_step`.
    References: Kajihara, Kanagawa, Yamazaki & Fukumizu (2018), ICML.
    """
    checks.concrete(rng_key=rng_key, theta=theta, observed=observed)
    checks.key(rng_key)
    checks.whole("num_iterations", num_iterations, 1)
    checks.table("theta", theta, min_rows=2)
    checks.require(
        callable(simulate), f"`simulate` must be a function of a key and `theta`; got {simulate!r:.200}.", TypeError
    )
    theta = np.asarray(theta, np.float64)
    path, deviations, number = [], [], len(theta)
    for key in progress.progress(split(rng_key, num_iterations), "iterations", progress_bar):
        simulate_key, herd_key = split(key)
        x = simulate(simulate_key, theta)
        checks.require(
            np.shape(x)[:1] == (number,),
            f"`simulate` must give one output for each of the {number} rows of `theta`; it gave shape {np.shape(x)}.",
        )
        checks.sound("simulate(rng_key, theta)", x, "Check the simulator.")
        x = np.asarray(x, np.float64)
        chosen = kernel or Gaussian(median_heuristic_per_dimension(x.reshape(len(x), -1), ties=False))
        theta = recursive_abc_step(
            herd_key, chosen, theta, x, observed, number, regularisation=regularisation, tolerance=tolerance
        )
        path.append(theta[0])
        deviations.append(theta.std(axis=0))
    return RecursiveABC(theta, np.stack(path), np.stack(deviations))


def recursive_abc_step(
    rng_key: jax.Array,
    kernel: Kernel,
    theta: ArrayLike,
    x: ArrayLike,
    observed: ArrayLike,
    number: int,
    *,
    regularisation: float | None = None,
    tolerance: float = low_rank.TOLERANCE,
) -> np.ndarray:
    r"""One iteration: points that follow the posterior whose prior the given points follow, by kernel ABC and herding.

    The embedding $\sum_j v_j k_\Theta(\cdot, \theta_j)$, $v = (G_X + m \varepsilon I)^{-1} k_X(y)$, with a Gaussian
    $k_\Theta$ whose length scale is the median distance of the points, and weights divided by their sum. Candidates of
    `herd` are the points and ten others close to them for each point that is asked for.

    Args:
        rng_key: Makes the candidates.
        kernel: `k_X`, on outputs.
        theta: `(m, dim)`.
        x: Simulated there, `(m, *event)`.
        observed: `y`, `(*event)`.
        number: How many points come out.
        regularisation: `eps`; `0.01 / sqrt(m)` when left out.
        tolerance: Of the low-rank factor of `G_X`.
    Returns:
        `(number, dim)`, in the order in which they were chosen.
    Raises:
        RuntimeError: If the weights vanish or cancel, or the points come together in one place, because the observation
            lies far from all that was simulated.
    Cost: `m r^2` for a factor of rank `r`, and `11 number^2` for herding.
    References: Kajihara, Kanagawa, Yamazaki & Fukumizu (2018), ICML.
    """
    checks.concrete(rng_key=rng_key, theta=theta, x=x, observed=observed)
    checks.key(rng_key)
    checks.table("theta", theta, min_rows=2)
    checks.whole("number", number, 1)
    checks.instance("kernel", kernel, Kernel, "a kernel on outputs, such as Gaussian(length_scale)")
    checks.real("x", x)
    checks.real("observed", observed)
    theta, points, point = np.asarray(theta, np.float64), kernel.points(np.asarray(x)), np.asarray(observed)[None]
    y = kernel.points(point)
    checks.sound("x", points)
    checks.sound("observed", y)
    weights = _weights(theta, points, y, kernel, regularisation, tolerance)
    on_theta = Gaussian(median_heuristic(theta, ties=False))
    # candidates of herding for each point
    candidates = _candidates(rng_key, theta, float(np.asarray(on_theta.length_scale)), 10 * number)
    values = MeanEmbedding(on_theta, theta, weights)(candidates)
    chosen = np.asarray(herd(on_theta, values, candidates, number))
    places = effective_size(np.bincount(chosen))
    checks.require(
        bool(places >= 2.0),
        f"{NAME}: the {number} points of an iteration have come together in {places:.1f} places. {ADVICE}",
        EffectiveSampleSizeError,
    )
    return candidates[chosen]


def _weights(theta, x, y, kernel, regularisation, tolerance) -> np.ndarray:
    m = len(theta)
    checks.require(num_points(x) == m, f"`theta` and `x` must have as many rows; got {m} and {num_points(x)}.")
    epsilon = 0.01 / np.sqrt(m) if regularisation is None else regularisation
    fitted = ConditionalMeanEmbedding.fit(kernel, x, epsilon, tolerance=tolerance)
    return with_unit_sum(np.asarray(fitted.weights(y)[0], np.float64), NAME, ADVICE)


def _candidates(rng_key, theta, scale, number) -> np.ndarray:
    """The points themselves, and others at a tenth, a third and all of the length scale from them."""
    rng = numpy_rng(rng_key)
    near, steps = rng.integers(len(theta), size=number), rng.normal(size=(number, theta.shape[1]))
    reach = scale / np.sqrt(theta.shape[1]) * np.resize([0.1, 0.3, 1.0], (number, 1))
    return np.concatenate([theta, theta[near] + reach * steps])
