"""The NPL-MMD experiments: models, data, the published algorithm, scores."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import ndtri

from numpyro_kme.bootstrap import Settings, posterior_bootstrap
from numpyro_kme.losses import Generator, NormalNoise, UniformNoise
from numpyro_kme.simulators import g_and_k as gk
from numpyro_kme.simulators import toggle_switch

GK_TRUTH = np.array([*gk.TRUTH[:3], np.log(gk.TRUTH[3])])


def g_and_k(u, z):
    """One draw of the g-and-k distribution with `u = (a, b, g, log k)`."""
    a, b, g, log_k = u
    return gk.from_normal(z[0], a, b, g, jnp.exp(log_k))


def upright(u):
    """Of the two equal parameters `(a, b, g, log k)` and `(a, -b, -g, log k)` of g-and-k the one with `b > 0`."""
    u = np.array(u)
    u[..., 1:3] *= np.where(u[..., 1:2] < 0, -1.0, 1.0)
    return u


def location(u, z):
    """One draw of N(u, I)."""
    return u + z


GK = Generator(g_and_k, NormalNoise(1), 4)
LOCATION = Generator(location, NormalNoise(4), 4)
LINE = Generator(location, NormalNoise(1), 1)


def gk_data(rng, outliers, n=gk.SIZE):
    """`n` draws at the truth; a fraction `outliers` of them shifted by 50, half to each side."""
    x = np.array(jax.vmap(lambda z: g_and_k(GK_TRUTH, z))(rng.normal(size=(n, 1))), np.float64)
    return gk.outlying(x, outliers)


def gk_starts(rng, num=512):
    """Draws of the published prior U(0, 10)^4 on (a, b, g, k), on (a, b, g, log k)."""
    start = rng.uniform(0.0, 10.0, (num, 4))
    start[:, 3] = np.log(start[:, 3])
    return start


def location_data(rng, outliers, n=200, dim=4):
    """`n` draws of N(1, I), a fraction `outliers` of them from N(20, I)."""
    x = rng.normal(1.0, 1.0, (n, dim))
    far = int(outliers * n)
    x[:far] += 19.0
    return x


def adam(simulate, kernel_sums, x, w, noise, start, rate, steps):
    """The published algorithm: Adam on the unbiased squared MMD with frozen noise, in the precision of
    `x`."""

    def loss(u):
        y = jax.vmap(lambda z: simulate(u, z))(noise)
        return kernel_sums(y, x, w)

    optimiser = optax.adam(rate)

    def step(carry, _):
        u, state = carry
        updates, state = optimiser.update(jax.grad(loss)(u), state, u)
        return (u + updates, state), None

    return jax.lax.scan(step, (start, optimiser.init(start)), length=steps)[0][0]


def published_loss(length_scales):
    """Unbiased squared MMD, up to its constant, for a sum of Gaussian kernels, by plain broadcasting."""

    def gram(a, b):
        a, b = (v[:, None] if v.ndim == 1 else v for v in (a, b))
        squared = sum(jnp.square(a[:, d, None] - b[None, :, d]) for d in range(a.shape[1]))
        return sum(jnp.exp(-squared / (2.0 * scale**2)) for scale in length_scales)

    def loss(y, x, w):
        m, own = len(y), gram(y, y)
        return (jnp.sum(own) - jnp.trace(own)) / (m * (m - 1)) - 2.0 * jnp.mean(w @ gram(x, y))

    return loss


def gk_nmse(mean):
    """The published score of a posterior mean of (a, b, g, log k); its divisor is the mean of the truth."""
    return float(np.mean((mean - GK_TRUTH) ** 2) / np.mean(GK_TRUTH))


def toggle(u, levels):
    """One cell of the toggle switch from 601 uniform levels, in float32; `u` are normal scores of the box prior."""
    low, high = jnp.asarray(toggle_switch.LOW, u.dtype), jnp.asarray(toggle_switch.HIGH, u.dtype)
    theta = low + (high - low) * jax.scipy.special.ndtr(u)
    return toggle_switch.cell(levels.astype(jnp.float32), theta).astype(u.dtype)


def toggle_generator():
    """The toggle switch as a family of distributions, without derivatives: its draws switch basin."""
    return Generator(toggle, UniformNoise(toggle_switch.LEVELS), 7, differentiable=False)


def toggle_data(rng, n=toggle_switch.CELLS, outliers=0.1):
    """`n` cells at the truth, a fraction `outliers` of them with added Cauchy noise of scale 10."""
    u = ndtri(jnp.asarray((toggle_switch.TRUTH - toggle_switch.LOW) / (toggle_switch.HIGH - toggle_switch.LOW)))
    draw = jax.jit(lambda z: jax.vmap(lambda cell: toggle(u, cell))(z))
    x = np.array(draw(jnp.asarray(rng.uniform(size=(n, toggle_switch.LEVELS)))), np.float64)
    far = int(outliers * n)
    x[:far] += 10.0 * rng.standard_cauchy(far)
    return x


def bootstrap(seed, objective, starts, num_samples, **settings):
    """A posterior bootstrap with default settings but for the number of draws."""
    return posterior_bootstrap(
        jax.random.key(seed), objective, starts, settings=Settings(num_samples=num_samples, **settings)
    )
