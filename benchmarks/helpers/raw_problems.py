"""Problems with raw outputs and statistics made by hand; parameters `z` are standard normal a priori."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm

import numpyro_kme as kme
from numpyro_kme.simulators import blowfly, lotka_volterra

SIDE, STEPS, INTERVAL = 28, 100, 0.2


@dataclass(frozen=True)
class RawProblem:
    """A simulator `fn(rng_key, z)` of `dim` parameters, statistics of an output, and whether outputs are counts."""

    dim: int
    simulator: Callable[..., Any]
    statistics: Callable[[Any], Any]
    counts: bool = False

    def model(self, statistics):
        """Of outputs, or of the hand-made statistics."""

        def made(rng_key, z):
            x = self.simulator(rng_key, z)
            return self.statistics(x) if statistics else x

        def model(x=None):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([self.dim]).to_event(1))
            numpyro.sample("x", kme.Simulator(made, z), obs=x)

        return model

    def draw(self, rng_key, number):
        """Parameters `(number, dim)`, outputs `(number, *event)` and their statistics, of runs that complete."""
        prior_key, key = jax.random.split(rng_key)
        z = jax.random.normal(prior_key, (2 * number, self.dim))
        x = jax.jit(jax.vmap(self.simulator))(jax.random.split(key, 2 * number), z)
        kept = np.flatnonzero(np.isfinite(np.asarray(x)).reshape(2 * number, -1).all(axis=1))[:number]
        return tuple(np.asarray(part) for part in (z[kept], x[kept], jax.vmap(self.statistics)(x[kept])))


def flies(rng_key, z):
    """The series of 180 counts of blowflies."""
    return blowfly.blowfly(rng_key, blowfly.PRIOR_MEAN + blowfly.PRIOR_SD * z)


def animals(rng_key, z):
    """Predators and prey at 151 times; the prior is uniform in the logarithms."""
    low, high = lotka_volterra.PRIOR_LOW, lotka_volterra.PRIOR_HIGH
    return lotka_volterra.lotka_volterra(rng_key, low + (high - low) * norm.cdf(z))


def path(rng_key, z):
    """An Ornstein-Uhlenbeck process at a hundred times, from 0; log rate of return, level and log diffusion."""
    rate, level, diffusion = jnp.exp(0.5 * z[0]), z[1], jnp.exp(0.5 * z[2] - 0.5)
    kept = jnp.exp(-rate * INTERVAL)
    sd = diffusion * jnp.sqrt((1.0 - kept**2) / (2.0 * rate))

    def step(x, noise):
        x = level + kept * (x - level) + sd * noise
        return x, x

    return jax.lax.scan(step, jnp.zeros_like(level), jax.random.normal(rng_key, (STEPS,), z.dtype))[1]


def path_statistics(x):
    """Least squares of a value on the one before: intercept, slope, log residual standard deviation; and the mean."""
    before, after = x[:-1], x[1:]
    slope = jnp.cov(before, after)[0, 1] / jnp.var(before, ddof=1)
    intercept = after.mean() - slope * before.mean()
    rest = after - intercept - slope * before
    return jnp.stack([intercept, slope, jnp.log(rest.std()), x.mean()])


def texture(rng_key, z):
    """A periodic Gaussian random field of variance 1, with noise; log length scale and log noise."""
    field_key, noise_key = jax.random.split(rng_key)
    length, noise = jnp.exp(1.0 + 0.5 * z[0]), jnp.exp(0.7 * z[1] - 0.5)
    frequency = 2.0 * np.pi * jnp.fft.fftfreq(SIDE)
    amplitude = jnp.exp(-0.25 * length**2 * (frequency[:, None] ** 2 + frequency[None, :] ** 2))
    amplitude /= jnp.sqrt(jnp.mean(amplitude**2))
    field = jnp.fft.ifft2(jnp.fft.fft2(jax.random.normal(field_key, (SIDE, SIDE))) * amplitude).real
    return field + noise * jax.random.normal(noise_key, (SIDE, SIDE))


def texture_statistics(image):
    """Log variance, and log variogram over 1, 2, 4 and 8 pixels along both axes."""
    lags = [
        jnp.square(image[lag:] - image[:-lag]).mean() + jnp.square(image[:, lag:] - image[:, :-lag]).mean()
        for lag in (1, 2, 4, 8)
    ]
    return jnp.log(jnp.stack([image.var(), *lags]))


PROBLEMS = {
    "blowflies, 180 counts": RawProblem(6, flies, blowfly.statistics, counts=True),
    "Ornstein-Uhlenbeck, 100 values": RawProblem(3, path, path_statistics),
    "Lotka-Volterra, 151 x 2 counts": RawProblem(4, animals, lotka_volterra.statistics, counts=True),
    "image, 28 x 28": RawProblem(2, texture, texture_statistics),
}
