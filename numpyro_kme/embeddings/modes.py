"""The mode of an embedding: the point whose feature is nearest to it."""

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.kernels.rotations import RotationGaussian, RotationTrace, nearest_rotation
from numpyro_kme.kernels.stationary import Gaussian


def embedding_mode(embedding: MeanEmbedding, start: ArrayLike | None = None, *, max_steps: int = 200) -> np.ndarray:
    r"""The mode of an embedding (its pre-image): `x` with the nearest feature, `min_x |k(., x) - m|`.

    For a Gaussian kernel, by the fixed point
    $x \leftarrow \sum_i \rho_i k(X_i, x) X_i / \sum_i \rho_i k(X_i, x)$, kept where the embedding increases; it ends at
    a local maximum of the embedding, the mode of a smooth density. On rotations each step goes to the rotation nearest
    to that mean; for the trace kernel the first is exact.

    Args:
        embedding: With `Gaussian` and points `(n, dim)`, or with `RotationTrace` or `RotationGaussian` and points
            `(n, size, size)`.
        start: Such a point; the sample point at which the embedding is largest, when left out.
        max_steps: Largest number of steps.
    Returns:
        `x`, `(dim,)` or `(size, size)`.
    Raises:
        FloatingPointError: If all weights are zero, or a Gaussian embedding is nowhere positive on the sample or at
            `start`.
    References: Mika et al. (1999); Fukumizu, Song & Gretton (2013), section 5.1.
    """
    checks.concrete(embedding=embedding, start=start)
    points, weights = np.asarray(embedding.points, np.float64), np.asarray(embedding.weights, np.float64)
    kernel = embedding.kernel
    checks.require(
        bool(weights.any()), f"All {len(weights)} weights are zero: the embedding has no mode.", FloatingPointError
    )
    if isinstance(kernel, RotationTrace):
        return nearest_rotation(np.tensordot(weights, points, axes=1))
    if not isinstance(kernel, Gaussian | RotationGaussian):
        raise ValueError(f"A mode needs a Gaussian kernel, or one on rotations; got {type(kernel).__name__}.")
    scale = np.asarray(kernel.length_scale, np.float64)
    project = nearest_rotation if isinstance(kernel, RotationGaussian) else np.asarray

    def height(x):
        near = np.exp(-0.5 * np.sum(np.square((points - x) / scale), axis=tuple(range(1, points.ndim))))
        return weights @ near, near

    if start is None:
        start = points[int(np.argmax(on_host(MeanEmbedding.__call__)(embedding, points)))]
    x = np.asarray(start, np.float64)
    checks.require(
        x.shape == points.shape[1:], f"`start` must be one point of shape {points.shape[1:]}; got {x.shape}."
    )
    checks.finite("start", x)
    value, near = height(x)
    checks.require(
        value > 0,
        f"The embedding is {value:.3g} at the start of the search, where it must be positive: its weights, with a sum "
        f"of {weights.sum():.3g}, have no mode there.",
        FloatingPointError,
    )
    for _ in range(max_steps):
        step = np.tensordot(weights * near, points, axes=1) / value - x
        for shorter in (1.0, 0.5, 0.1, 0.01):
            moved = project(x + shorter * step)
            new_value, new_near = height(moved)
            if new_value >= value:
                break
        else:
            break
        done = np.max(np.abs(moved - x) / scale) < 1e-9
        x, value, near = moved, new_value, new_near
        if done:
            break
    return x
