"""Embeddings of one-dimensional measures on a cubic B-spline grid, with inner products by FFT."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import in_blocks
from numpyro_kme.kernels import Kernel
from numpyro_kme.kernels.base import register

RAMP = 32.0
"""Cells at either end of a window over which points lose their weight."""


class Stencil(NamedTuple):
    """Where points fall on a grid: cell indices `(M, 4)` and spline weights `(M, 4)` with two derivatives."""

    cells: Any
    weights: Any
    first: Any
    second: Any


@register
class Grid:
    r"""A window of the line on which `int int k(a, b) P(da) Q(db)` is a product of Fourier coefficients.

    Each point gives its weight to four cells by the cubic B-spline (`charges`, as in particle-mesh methods); with the
    kernel's values on the grid interpolated by cubic splines, inner products of embeddings are sums over frequencies,
    `<mu_P, mu_Q> = sum_f spectrum_f Re(conj(P_f) Q_f)`. The error is that of cubic interpolation of the kernel, of
    order `(step / length scale)^4`. Points outside the window have no charge: they are taken to be too far from
    everything inside to matter.

    Attributes:
        low: Left end of the window.
        step: Width of a cell.
        spectrum: Kernel in Fourier space with the splines divided out, times the weights of a one-sided sum,
            `(size // 2 + 1,)`.
        cells: Number of cells that points can fall in.
        size: Even number of cells with the padding that keeps the FFT from wrapping round.
    """

    low: Any
    step: Any
    spectrum: Any
    cells: Any
    size: int = field(metadata=dict(static=True))

    def stencil(self, points: Any, derivatives: bool = True) -> Stencil:
        """Locate points `(..., M)` of JAX or NumPy; those outside the window get weight zero, those that are not
        numbers NaN. Over the last `RAMP` cells weights fall to it smoothly: a loss that jumps where a point leaves has
        no minimum to converge to.

        Args:
            points: Where; none of them counts for another.
            derivatives: Those of the weights too; otherwise nothing stands in their place.
        """
        xp = points.__array_namespace__()
        position = (points - self.low) / self.step
        inside = (position >= 2.0) & (position < self.cells - 3.0)
        left = xp.where(inside, xp.floor(position), 2.0)
        f = xp.where(inside, position - left, 0.0)
        g, f2 = 1 - f, f * f  # products: powers of three take NumPy ten times as long
        f3 = f2 * f
        to_left, to_right = position - 2.0, self.cells - 3.0 - position
        e = xp.clip(xp.minimum(to_left, to_right) / RAMP, 0.0, 1.0)[..., None]
        keep = e * e * e * (10.0 - 15.0 * e + 6.0 * e * e)
        weights = [g * g * g / 6, (3 * f3 - 6 * f2 + 4) / 6, (1 + 3 * f + 3 * f2 - 3 * f3) / 6, f3 / 6]
        splines = xp.stack(weights, axis=-1)
        cells = xp.stack([left.astype(xp.int32) + k for k in (-1, 0, 1, 2)], axis=-1)
        if not derivatives:
            return Stencil(cells, splines * keep, None, None)
        rise = 30.0 * (e * (1.0 - e)) ** 2 * xp.where(to_left < to_right, 1.0, -1.0)[..., None] / RAMP
        bend = 60.0 * e * (1.0 - e) * (1.0 - 2.0 * e) / RAMP**2
        first = [-g * g / 2, (3 * f2 - 4 * f) / 2, (1 + 2 * f - 3 * f2) / 2, f2 / 2]
        second = [g, 3 * f - 2, 1 - 3 * f, f]
        slopes, curvatures = (xp.stack(parts, axis=-1) for parts in (first, second))
        slope = (slopes * keep + splines * rise) / self.step
        curvature = (curvatures * keep + 2.0 * slopes * rise + splines * bend) / self.step**2
        return Stencil(cells, splines * keep, slope, curvature)

    def charges(self, stencil: Stencil, parts: jax.Array) -> jax.Array:
        """Sum what points put on their four cells: `(M, 4, ...)` to Fourier coefficients `(..., size // 2 + 1)`."""
        runs = jnp.zeros((self.size, *parts.shape[1:]), parts.dtype).at[stencil.cells[:, 0]].add(parts)
        cells = runs[:, 0] + sum(jnp.roll(runs[:, k], k, axis=0) for k in (1, 2, 3))
        return jnp.fft.rfft(jnp.moveaxis(cells, 0, -1))

    def embed(self, points: jax.Array, weights: jax.Array) -> jax.Array:
        """Fourier coefficients of the measure with the given points and weights `(M,)`."""
        stencil = self.stencil(points, derivatives=False)
        return self.charges(stencil, stencil.weights * weights[:, None])

    def inner(self, p: Any, q: Any) -> Any:
        """Inner products of embeddings given by Fourier coefficients: `(F,)` or `(R, F)` with `(F,)` or `(S, F)`."""
        scaled = p * p.__array_namespace__().asarray(self.spectrum)[(None,) * (p.ndim - 1)]
        return scaled.real @ q.real.T + scaled.imag @ q.imag.T

    def charges_of_rows(self, cells: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """The same for rows of stencils, by NumPy: `(R, M, 4)` to `(R, size // 2 + 1)`; cells `(1, M, 4)` are those of
        all rows."""
        places = cells + self.size * np.arange(len(parts))[:, None, None]
        sums = np.bincount(places.ravel(), parts.ravel(), len(parts) * self.size)
        return np.fft.rfft(sums.reshape(len(parts), self.size))

    def embed_rows(self, points: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """As `embed` for rows of points and weights `(R, m)`, by NumPy; points `(1, m)` are those of all rows."""
        stencil = self.stencil(points, derivatives=False)
        return self.charges_of_rows(stencil.cells, stencil.weights * weights[..., None])

    def potential(self, p: Any) -> Any:
        """Coefficients on the cells `(..., size)` of the witness `t -> int k(t, a) P(da)`, to be summed with a
        stencil."""
        ends = np.where(np.arange(self.size // 2 + 1) % (self.size // 2) == 0, 2.0, 1.0)
        return p.__array_namespace__().fft.irfft(0.5 * self.size * ends * self.spectrum * p, self.size)


def make_grid(
    kernel: Kernel, centre: float, width: float, step: float, reach: float, max_cells: int, least: int
) -> Grid:
    """Tabulate a kernel of `a - b` on a window of the line.

    Args:
        kernel: Compares two points `(1,)` and depends on their difference alone.
        centre: Middle of the window.
        width: Width of the window.
        step: Width of a cell.
        reach: Distance from which the kernel is zero for practical purposes, or infinity.
        max_cells: A window that needs more cells is cut to this many.
        least: Size with padding, at least.
    """
    cells = int(min(width / step + 16.0 + 2.0 * RAMP, max_cells))
    needed = max(cells + int(min(cells, reach / step + 8.0)), least)
    size = 1 << (needed - 1).bit_length()  # a power of two: few sizes, so that few programs are compiled
    lag = np.minimum(np.arange(size), size - np.arange(size)) * step
    splines = (4.0 + 2.0 * np.cos(2.0 * np.pi * np.arange(size // 2 + 1) / size)) / 6.0
    spectrum = np.fft.rfft(profile(kernel, lag)).real / splines**2 * 2.0 / size
    spectrum[[0, -1]] *= 0.5  # `size` is even
    return Grid(np.asarray(centre - 0.5 * cells * step), np.asarray(step), spectrum, np.asarray(float(cells)), size)


@on_host
def profile(kernel: Kernel, lag: np.ndarray, at: float = 0.0) -> np.ndarray:
    """Kernel values between the points `at + lag` and `at` on the line."""
    return in_blocks(lambda lag: _profile(kernel, lag, np.full((1, 1), at)), lag, 2048)


_profile = jax.jit(lambda kernel, lag, at: kernel.gram(lag[:, None] + at, at)[:, 0])


def find_step(kernel: Kernel, scale: float, table_error: float) -> tuple[float, float, float] | None:
    """Find the widest cell that represents a kernel, by trying, and the kernel's width.

    Args:
        kernel: Compares two points `(1,)`.
        scale: A typical distance between data points.
        table_error: Largest error of an interpolated kernel value, relative to `k(0, 0)`.
    Returns:
        `(step, half, reach)`: width of a cell, at most `half / 2`, and the distances at which the kernel has
        halved and is zero for practical purposes; or None if the kernel is not a function of the distance that a grid
        can hold: not stationary, or with a kink that fine cells do not resolve. The finest cells are for
        mixtures of narrow and wide smooth kernels, whose error falls as the fourth power of the step.
    """
    distance = scale * 2.0 ** np.arange(-20.0, 21.0, 0.25)
    decay = profile(kernel, np.concatenate([[0.0], distance]))
    if not decay[0] > 0.0:
        return None
    peak, decay = decay[0], decay[1:] / decay[0]
    lags = scale * np.array([0.0, 1.5])
    stationary = all(
        np.allclose(profile(kernel, sign * lags, at * scale), profile(kernel, lags), rtol=1e-6, atol=0.0)
        for sign, at in ((1.0, 3.0), (-1.0, 4.5))
    )
    if not (stationary and np.isfinite(decay).all() and decay[-1] < 1e-3):
        return None
    half = distance[np.argmax(decay < 0.5)]
    far = np.flatnonzero(np.abs(decay) > 1e-12)[-1]
    reach = float(distance[far + 1]) if far + 1 < len(distance) else np.inf
    for halvings in np.arange(1.0, 11.0, 0.5):
        step = half * 2.0**-halvings
        error = _interpolation_error(kernel, step)
        if error <= table_error * peak and (halvings < 7.0 or _interpolation_error(kernel, 0.5 * step) < error / 8.0):
            return float(step), float(half), reach
    return None


def _interpolation_error(kernel: Kernel, step: float) -> float:
    """Largest error of the kernel between points in general position on a small grid."""
    cells = 256
    grid = make_grid(kernel, 0.0, 240.0 * step, step, np.inf, cells, cells)
    a = step * np.array([0.0, 0.25, 0.5, 0.8])
    b = step * (np.arange(0.0, 40.0, 0.3))
    tabulated = grid.inner(*(grid.embed_rows(points[:, None], np.ones((len(points), 1))) for points in (a, b)))
    return float(np.abs(tabulated - profile(kernel, (a[:, None] - b[None]).ravel()).reshape(len(a), -1)).max())
