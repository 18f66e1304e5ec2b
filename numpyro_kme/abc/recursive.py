"""Kernel recursive ABC."""

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme._core.host import numpy_rng
from numpyro_kme.abc.weighting import with_unit_sum
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding, MeanEmbedding, herd
from numpyro_kme.kernels import low_rank, median_heuristic
from numpyro_kme.kernels.base import Kernel, num_points
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.samplers.importance import effective_size

NAME = "Kernel recursive ABC"

ADVICE = "Start where the observation is reached, with more simulations or a wider kernel."


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
    m = len(theta)
    checks.require(
        num_points(points) == m, f"`theta` and `x` must have as many rows; got {m} and {num_points(points)}."
    )
    epsilon = 0.01 / np.sqrt(m) if regularisation is None else regularisation
    fitted = ConditionalMeanEmbedding.fit(kernel, points, epsilon, tolerance=tolerance)
    weights = with_unit_sum(np.asarray(fitted.weights(y)[0], np.float64), NAME, ADVICE)
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


def _candidates(rng_key, theta, scale, number) -> np.ndarray:
    """The points themselves, and others at a tenth, a third and all of the length scale from them."""
    rng = numpy_rng(rng_key)
    near, steps = rng.integers(len(theta), size=number), rng.normal(size=(number, theta.shape[1]))
    reach = scale / np.sqrt(theta.shape[1]) * np.resize([0.1, 0.3, 1.0], (number, 1))
    return np.concatenate([theta, theta[near] + reach * steps])
