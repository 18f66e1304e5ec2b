"""Herding: time per candidate-step against a plain `argmax` scan, and the MMD reached against random draws.

    python -m benchmarks herding

Target: a mixture of two normals in two dimensions, whose embedding under a Gaussian kernel is known in closed form.
Takes a minute.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.helpers import report
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.kernels import Gaussian

CANDIDATES, SAMPLES = 10_000, 1_000
MEANS = np.array([[-1.0, 0.5], [1.5, -0.5]])
SDS = np.array([0.6, 1.0])
MIXTURE_WEIGHTS = np.array([0.4, 0.6])
SCALE = 0.5
KERNEL = Gaussian(SCALE)


def _overlap(distance, variance):
    """`int N(u | a, variance_a) exp(-|u - v|^2 / (2 l^2)) N(v | b, variance_b)` in two dimensions."""
    total = SCALE**2 + variance
    return SCALE**2 / total * jnp.exp(-0.5 * distance / total)


def embedding(t):
    """Closed-form `mu(t)`, `(r,)`."""
    squares = jnp.sum(jnp.square(t[:, None, :] - MEANS[None]), axis=-1)
    return _overlap(squares, jnp.asarray(SDS**2)[None]) @ MIXTURE_WEIGHTS


def squared_norm():
    """Closed-form `|mu|^2`."""
    squares = np.sum(np.square(MEANS[:, None] - MEANS[None]), axis=-1)
    return float(MIXTURE_WEIGHTS @ np.asarray(_overlap(squares, SDS[:, None] ** 2 + SDS[None] ** 2)) @ MIXTURE_WEIGHTS)


def mmd(points):
    """Distance between the equally weighted points and the target, in float64."""
    with jax.enable_x64(True):
        points = jnp.asarray(np.asarray(points, dtype=np.float64))
        squared = jnp.mean(KERNEL.gram(points)) - 2.0 * jnp.mean(embedding(points)) + squared_norm()
        return float(jnp.sqrt(jnp.maximum(squared, 0.0)))


def draw(rng, n):
    component = rng.choice(2, size=n, p=MIXTURE_WEIGHTS)
    return MEANS[component] + SDS[component, None] * rng.normal(size=(n, 2))


@functools.partial(jax.jit, static_argnames="num_samples")
def naive_herd(kernel, values, candidates, num_samples):
    """The textbook loop: one `argmax` over all candidates a step."""

    def choose(total, size):
        chosen = jnp.argmax(values - total / size)
        return total + kernel.gram(candidates[chosen][None], candidates)[0], chosen

    return jax.lax.scan(choose, jnp.zeros_like(values), jnp.arange(1.0, num_samples + 1.0))[1]


def seconds(function, repeats=40):
    """Compile time, and the best of several runs after it."""
    start = time.perf_counter()
    function().block_until_ready()
    first = time.perf_counter() - start
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        function().block_until_ready()
        runs.append(time.perf_counter() - start)
    return first, min(runs)


def main():
    report.parser(__doc__).parse_args()
    rng = np.random.default_rng(0)
    candidates = jnp.asarray(draw(rng, CANDIDATES))
    values = embedding(candidates)
    rates = []
    for name, function in (("naive argmax", naive_herd), ("herd", herd)):
        first, best = seconds(functools.partial(function, values, KERNEL, candidates, SAMPLES))
        rates.append([name, best / SAMPLES / CANDIDATES * 1e9, best, first - best])

    order = np.asarray(herd(KERNEL, values, candidates, SAMPLES))
    naive = np.asarray(naive_herd(KERNEL, values, candidates, SAMPLES))
    pool, errors = np.asarray(candidates), []
    for size in (25, 100, 400, SAMPLES):
        iid = np.mean([mmd(draw(rng, size)) for _ in range(20)])
        errors.append([size, iid, mmd(pool[naive[:size]]), mmd(pool[order[:size]])])
    heading = f"{SAMPLES} samples among {CANDIDATES} candidates in two dimensions, {values.dtype}"
    rate_header = ["method", "ns a candidate-step", "seconds, best of 40", "compilation, s"]
    error_header = ["samples", "independent draws", "naive", "herd"]
    sections = [(heading, report.table(rate_header, rates)), ("MMD to the target", report.table(error_header, errors))]
    report.save("herding", "Herding", sections)
