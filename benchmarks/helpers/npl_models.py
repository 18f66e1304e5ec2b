"""The NPL-MMD experiments: models, data, the published algorithm, scores."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import ndtri

from numpyro_kme.bootstrap import Settings, posterior_bootstrap
from numpyro_kme.losses import Generator, NormalNoise, UniformNoise

GK_TRUTH = np.array([3.0, 1.0, 1.0, -np.log(2.0)])
GK_LENGTH_SCALE = 0.15
TOGGLE_TRUTH = np.array([22.0, 12.0, 4.0, 4.5, 325.0, 0.25, 0.15])
TOGGLE_LOW = np.array([0.0, 0.0, 0.0, 0.0, 250.0, 0.0, 0.0])
TOGGLE_HIGH = np.array([50.0, 50.0, 5.0, 5.0, 450.0, 0.5, 0.4])
TOGGLE_LENGTH_SCALES = (1.0, 10.0, 20.0, 40.0, 80.0, 100.0, 130.0, 200.0, 400.0, 800.0, 1000.0)
TOGGLE_STEPS = 300


def g_and_k(u, z):
    """One draw of the g-and-k distribution with `u = (a, b, g, log k)`."""
    a, b, g, log_k = u
    z = z[0]
    return a + b * (1.0 + 0.8 * jnp.tanh(0.5 * g * z)) * (1.0 + z**2) ** jnp.exp(log_k) * z


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


def gk_data(rng, outliers, n=2048):
    """`n` draws at the truth; a fraction `outliers` of them shifted by 50, half to each side."""
    x = np.array(jax.vmap(lambda z: g_and_k(GK_TRUTH, z))(rng.normal(size=(n, 1))), np.float64)
    far = int(outliers * n)
    x[: far // 2] += 50.0
    x[far // 2 : far] -= 50.0
    return x


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
    kind, levels = u.dtype, levels.astype(jnp.float32)
    alpha1, alpha2, beta1, beta2, mu, sigma, gamma = toggle_parameters(u).astype(jnp.float32)

    def step(state, level):
        first, second = state
        new_first = first + alpha1 / (1.0 + second**beta1) - (1.0 + 0.03 * first)
        new_second = second + alpha2 / (1.0 + first**beta2) - (1.0 + 0.03 * second)
        moved = (
            new_first + 0.5 * truncated(level[0], -2.0 * new_first),
            new_second + 0.5 * truncated(level[1], -2.0 * new_second),
        )
        return jax.tree.map(lambda count: jnp.maximum(count, 1e-6), moved), None  # rounding can end below zero

    start = (jnp.full((), 10.0, jnp.float32), jnp.full((), 10.0, jnp.float32))
    (first, _), _ = jax.lax.scan(step, start, levels[:-1].reshape(TOGGLE_STEPS, 2))
    width = mu * sigma / first**gamma
    return (first + mu + width * truncated(levels[-1], -(first + mu) / width)).astype(kind)


def toggle_parameters(u):
    """Parameters in the box prior at normal scores `u`."""
    low, high = jnp.asarray(TOGGLE_LOW, u.dtype), jnp.asarray(TOGGLE_HIGH, u.dtype)
    return low + (high - low) * jax.scipy.special.ndtr(u)


def truncated(level, low):
    """Standard normal truncated below at `low`, by the inverse CDF of a level in (0, 1)."""
    below = jax.lax.erf(low * np.float32(0.5**0.5))  # on (-1, 1)
    odd = below + level * (1.0 - below)
    return np.float32(2.0**0.5) * jax.lax.erf_inv(jnp.clip(odd, -1.0 + 1e-6, 1.0 - 1e-6))


def toggle_generator():
    """The toggle switch as a family of distributions, without derivatives: its draws switch basin."""
    return Generator(toggle, UniformNoise(2 * TOGGLE_STEPS + 1), 7, differentiable=False)


def toggle_data(rng, n=2000, outliers=0.1):
    """`n` cells at the truth, a fraction `outliers` of them with added Cauchy noise of scale 10."""
    u = ndtri(jnp.asarray((TOGGLE_TRUTH - TOGGLE_LOW) / (TOGGLE_HIGH - TOGGLE_LOW)))
    draw = jax.jit(lambda z: jax.vmap(lambda cell: toggle(u, cell))(z))
    x = np.array(draw(jnp.asarray(rng.uniform(size=(n, 2 * TOGGLE_STEPS + 1)))), np.float64)
    far = int(outliers * n)
    x[:far] += 10.0 * rng.standard_cauchy(far)
    return x


def bootstrap(seed, objective, starts, num_samples, **settings):
    """A posterior bootstrap with default settings but for the number of draws."""
    return posterior_bootstrap(
        jax.random.key(seed), objective, starts, settings=Settings(num_samples=num_samples, **settings)
    )
