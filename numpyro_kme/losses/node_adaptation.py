"""Node adaptation: quadrature nodes for one-dimensional noise, placed where a given model needs them."""

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host
from numpyro_kme.losses.generator import REACH, Generator, NormalNoise, QuadratureNodes

FINE = 4097
"""Points on which the simulator's speed is measured."""

EDGE = 4.3
"""Tails of the noise beyond this many standard deviations get fewer and fewer nodes."""


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
    noise = generator.noise
    if not (isinstance(noise, NormalNoise) and noise.dim == 1) or generator.covariates is not None:
        return None
    z = np.linspace(-REACH, REACH, FINE)
    fine = QuadratureNodes(_push(noise, z), jnp.ones(FINE))
    y = np.ravel(np.asarray(_simulated(generator, u, fine)))
    if not np.isfinite(y).all():
        return None
    density = _density(z, y, resolution)
    along = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(z))])
    doublings = max(int(np.ceil(np.log2(along[-1] / least))), 0)  # few sizes, few programs
    num = min(least * 2**doublings, 16_384)
    adapted = np.interp((np.arange(num) + 0.5) / num * along[-1], along, z)
    weights = np.exp(-0.5 * adapted**2) / np.interp(adapted, z, density)
    return QuadratureNodes(_push(noise, adapted, lead=True), jnp.asarray(weights / weights.sum())[None])


def _density(z: np.ndarray, y: np.ndarray, resolution: float) -> np.ndarray:
    """Nodes wanted per unit of `z`: the smoothed speed over the resolution, fading in the tails, and never under 8."""
    step = z[1] - z[0]
    width = int(0.15 / step)
    window = np.exp(-0.5 * (np.arange(-3 * width, 3 * width + 1) / width) ** 2)
    speed = np.convolve(
        np.pad(np.abs(np.gradient(y, step)), 3 * width, mode="edge"), window / window.sum(), mode="valid"
    )
    fading = 1.0 / (1.0 + np.exp(np.minimum(0.5 * (z**2 - EDGE**2), 500.0)))
    return 8.0 + speed / resolution * fading


def _push(noise, z, lead=False):
    values = jax.vmap(noise.transform)(jnp.asarray(z)[:, None])
    return jax.tree.map(lambda leaf: leaf[None], values) if lead else values


@jax.jit
def _simulated(generator, u, nodes):
    return generator.points(u, nodes)
