"""The squared MMD for scalar data, on a grid, with its exact Hessian and with quadrature nodes that suit the model."""

from dataclasses import field
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from numpyro_kme._core.host import on_host
from numpyro_kme.kernels import Kernel
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.length_scales import median_absolute_deviation
from numpyro_kme.kernels.stationary import Stationary
from numpyro_kme.losses import grid_rows, mixing
from numpyro_kme.losses.base import WIDER, EmbeddingObjective, widened
from numpyro_kme.losses.generator import REACH, Generator, NormalNoise, QuadratureNodes, join
from numpyro_kme.losses.grid import Grid, make_grid, profile

FINE = 4097
"""Points on which the simulator's speed is measured."""


@register
class GridMMD(EmbeddingObjective):
    r"""Squared MMD between weighted scalars and simulated scalars, by a `Grid`.

    With `q = |mu_u|^2`, `s = <mu_w, mu_u>` and `L(q, s)` of `mixing.py`, simulated points `y_m(u)` and witness
    `psi = 2 L_q mu_u + L_s mu_w`, the Hessian is
    `L_q 2 <d_a mu, d_b mu> + sum_m v_m [psi'(y_m) d_ab y_m + psi''(y_m) d_a y_m d_b y_m]`, plus the rank-two part by
    the Hessian of `L` (`grid_rows`).

    Build it with `bind`.
    """

    generator: Generator
    grid: Grid
    data: Any
    peak: Any
    window: tuple
    kernel: Kernel
    fit_proportion: bool = field(metadata=dict(static=True))
    max_cells: int = field(metadata=dict(static=True))

    has_cheap_hessian: ClassVar[bool] = True
    by_numpy: ClassVar[bool] = True

    @classmethod
    @on_host
    def bind(
        cls,
        generator: Generator,
        kernel: Kernel,
        data: np.ndarray,
        window: tuple[float, ...],
        fit_proportion: bool,
        max_cells: int,
        # smallest grid: samples of one distribution then share one size, and the programs compiled for it
        least: int = 2048,
    ) -> "GridMMD":
        """Tabulate the kernel on `window = (centre, width, step, half, reach)`, see `find_step`, and keep the data; the
        grid's size is at least `least`."""
        kernel = jax.tree.map(np.asarray, kernel)
        centre, width, step, _, reach = window
        peak = profile(kernel, np.zeros(1))[0]
        grid = make_grid(kernel, centre, width, step, reach, max_cells, least)
        return cls(generator, grid, np.ravel(data), peak, window, kernel, fit_proportion, max_cells)

    def smoothed(self):
        """Widen a stationary kernel, but not beyond twice the median absolute deviation of the data, to which all
        models of that width are alike; the grid keeps its size, and with it the compiled programs."""
        if not isinstance(self.kernel, Stationary):
            return self
        centre, width, step, half, reach = self.window
        times = min(WIDER, max(2.0 * float(median_absolute_deviation(self.data, centre)) / half, 1.0))
        window = (centre, width + 4.0 * times * half, times * step, times * half, times * reach)
        settings = (self.fit_proportion, self.max_cells, self.grid.size)
        return GridMMD.bind(self.generator, widened(self.kernel, times), self.data, window, *settings)

    def refined(self):
        """Halve the cells."""
        centre, width, step, half, reach = self.window
        window = (centre, width, 0.5 * step, half, reach)
        return GridMMD.bind(self.generator, self.kernel, self.data, window, self.fit_proportion, 2 * self.max_cells)

    def adapt_nodes(self, u, least):
        """Quadrature nodes whose simulated points at `u` are no further apart than the kernel resolves."""
        return adapted_nodes(self.generator, u, float(self.window[3]), least)

    def reduce(self, weights, extra=None):
        """Fourier coefficients of the weighted data, and `|mu_w|^2`."""
        data = join(self.data, None if extra is None else jnp.ravel(extra))
        coefficients = self.grid.embed(jnp.asarray(data), weights)
        return coefficients, self.grid.inner(coefficients, coefficients)

    def value(self, reduced, u, nodes):
        """Squared MMD at `u`."""
        data, norm = reduced
        model = self.grid.embed(self._scalars(u, nodes), nodes.weights)
        q, s = self._energy(self.grid.inner(model, model), nodes), self.grid.inner(model, data)
        return mixing.discrepancy(q, s, self.fit_proportion) + norm

    def slope(self, reduced, u, nodes):
        """Squared MMD and gradient: one witness read off at the simulated points."""
        data, norm = reduced
        points, pull = jax.vjp(lambda t: self._scalars(t, nodes), u)
        stencil = self.grid.stencil(points)
        model = self.grid.charges(stencil, stencil.weights * nodes.weights[:, None])
        q, pairs = jax.value_and_grad(self._energy)(self.grid.inner(model, model), nodes)
        value, (by_q, by_s), _ = mixing.derivatives(q, self.grid.inner(model, data), self.fit_proportion)
        witness = self.grid.potential(2.0 * pairs * by_q * model + by_s * data)
        by_points = nodes.weights * jnp.sum(witness[stencil.cells] * stencil.first, axis=1)
        return value + norm, pull(by_points)[0]

    def gram(self, reduced, points, nodes):
        """Inner products of several embeddings with one another and with the data, from points `(R, M)`."""
        data, norm = reduced
        models = jax.vmap(lambda y: self.grid.embed(jnp.ravel(y), nodes.weights))(points)
        return self.grid.inner(models, models), self.grid.inner(models, data), norm

    def witnesses(self, reduced, u, nodes):
        """`mu_u` and `mu_w` at the simulated points, the weights of these, and their energy alone."""
        stencil, v = self.grid.stencil(self._scalars(u, nodes), derivatives=False), nodes.weights
        embeddings = self.grid.charges(stencil, stencil.weights * v[:, None]), reduced[0]
        cells = (self.grid.potential(embedding)[stencil.cells] for embedding in embeddings)
        return *(jnp.sum(values * stencil.weights, axis=1) for values in cells), v, self._coincident(v)

    def _scalars(self, u: jax.Array, nodes: Any) -> jax.Array:
        return jnp.ravel(self.generator.points(u, nodes))

    def _energy(self, q, nodes):
        return self.energy(q, self._coincident(nodes.weights), nodes.weights)

    def _coincident(self, weights):
        return self.peak * jnp.sum(jnp.square(weights))


@on_host
def adapted_nodes(generator: Generator, u: np.ndarray, resolution: float, least: int) -> QuadratureNodes | None:
    r"""Quadrature nodes for which neighbouring simulated scalars are at most `resolution` apart.

    Equal steps of the noise `z` crowd the middle of a heavy-tailed model and leave gaps in its tails that are wider
    than the kernel; the loss then sees separate points there, which adds false curvature and narrows a posterior by a
    third. The nodes are those of the trapezoidal rule in a variable whose density follows the speed `|dy/dz|` at
    parameters `u`; they are a quadrature rule for every other parameter too.

    Args:
        generator: A simulator of scalars.
        u: Parameters of the model to adapt to.
        resolution: Distance that the kernel resolves, in units of the data.
        least: Number of nodes, at least; more if they are needed.
    Returns:
        One set of nodes, `(1, M, ...)`, or None unless the noise is one standard normal.
    """
    if not generator.by_quadrature:
        return None
    noise = cast(NormalNoise, generator.noise)
    z = np.linspace(-REACH, REACH, FINE)
    fine = QuadratureNodes(noise.push(z[None, :, None]), jnp.asarray(np.ones((1, FINE))))
    y = grid_rows.scalars(generator, fine, u)
    if not np.isfinite(y).all():
        return None
    density = _density(z, y, resolution)
    along = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(z))])
    doublings = max(int(np.ceil(np.log2(along[-1] / least))), 0)  # few sizes, few programs
    num = min(least * 2**doublings, 16_384)
    adapted = np.interp((np.arange(num) + 0.5) / num * along[-1], along, z)
    weights = np.exp(-0.5 * adapted**2) / np.interp(adapted, z, density)
    nodes = QuadratureNodes(noise.push(adapted[:, None]), jnp.asarray(weights / weights.sum()))
    return jax.tree.map(lambda leaf: leaf[None], nodes)


def _density(z: np.ndarray, y: np.ndarray, resolution: float) -> np.ndarray:
    """Nodes wanted per unit of `z`: the smoothed speed over the resolution, fading in the tails, and never under 8."""
    step = z[1] - z[0]
    speed = scipy.ndimage.gaussian_filter1d(
        np.abs(np.gradient(y, step)), int(0.15 / step), mode="nearest", truncate=3.0
    )
    # tails of the noise beyond this many standard deviations get fewer and fewer nodes
    fading = 1.0 / (1.0 + np.exp(np.minimum(0.5 * (z**2 - 4.3**2), 500.0)))
    return 8.0 + speed / resolution * fading
