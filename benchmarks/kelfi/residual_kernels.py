"""What the residual form would cost with the package's kernels, where it has its Gaussian kernels written out.

    python -m benchmarks residual_kernels [--simulations 300 1000] [--repeats 7]

Both are timed in turns in one process. `Gram matrices` are those of all simulations, twice a fit; `basis functions`
those of the regressions, in each step of learning; JAX compiles again for each `new size`. `values` and `gradients` are
of the log density of residuals at 4,000 points, compiled; their kernels are in its weights. User CPU seconds of all
threads, medians. Takes three minutes.
"""

import resource
from contextlib import ExitStack
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.residual import location_scale, smoothness, weights


def gaussian_gram(a, b, squared_length):
    return np.array(Gaussian(np.sqrt(squared_length)).gram(a, b), np.float64)


@jax.jit
def grams(lengths, a, b):
    return jax.vmap(lambda length: Gaussian(length).gram(a, b))(lengths)


def radial_basis(self, a, b):
    lengths = np.exp(self.length)
    found = grams(lengths.reshape(-1, lengths.shape[-1]), a, b)
    return np.array(found).reshape(*lengths.shape[:-1], len(a), len(b))


def gaussian(z, points, beta, log_divisor, xp):
    gram = Gaussian(beta).gram(jnp.atleast_2d(z), jnp.asarray(points)) * jnp.exp(-log_divisor)
    return gram.reshape(*z.shape[:-1], len(points))


PARTS = {
    "Gram matrices": [(module, "gaussian_gram", gaussian_gram) for module in (location_scale, smoothness, weights)],
    "basis functions": [(smoothness.Smoothness, "radial_basis", radial_basis)],
    "weights": [(weights, "_gaussian", gaussian)],
}


def seconds(part, function, *args):
    """User CPU seconds of a call, as it is or with one part by the package's kernels, and its result."""
    with ExitStack() as stack:
        for where, name, other in PARTS.get(part, ()):
            stack.enter_context(patch.object(where, name, other))
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        result = jax.block_until_ready(function(*args))
        return resource.getrusage(resource.RUSAGE_SELF).ru_utime - begun, result


def compared(part, what, size, calls):
    """A row: medians of calls, `which -> (function, *args)`, each as it is and with the package's kernels, in turns."""
    pairs = []
    for turn, call in enumerate(calls):
        order = (None, part) if turn % 2 else (part, None)
        found = {which: seconds(which, *call(which)) for which in order}
        (own, one), (packaged, other) = found[None], found[part]
        apart = max(float(np.max(np.abs(a - b))) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)))
        pairs.append((own, packaged, apart))
    own, packaged, _ = np.median(pairs, axis=0)
    apart = np.max(pairs, axis=0)[2]
    row = {"simulations": size, "part": part, "of": what, "written out": own, "kernels": packaged}
    return row | {"ratio": packaged / own, "largest difference": apart}


def simulated(size, dim=4, statistics=6):
    """Bent locations, and noise whose scale changes."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(size, dim))
    noise = 0.3 * rng.normal(size=(size, statistics)) * np.exp(0.3 * z[:, :1])
    return z, np.sin(z @ rng.normal(size=(dim, statistics))) + noise


def rows_of(size, repeats):
    form = kme.ResidualKernelMeans()
    density_of = form.fit(*simulated(size)).density

    def learn(size):
        return form.fit(*simulated(size)).density.eps

    for part in ("Gram matrices", "basis functions"):
        seconds(part, learn, size)
        yield compared(part, "learning", size, [lambda which: (learn, size)] * repeats)
        new = [lambda which, size=size + 1 + turn: (learn, size) for turn in range(repeats)]
        yield compared(part, "learning, new size", size, new)
    rng = np.random.default_rng(1)
    z, v = (rng.normal(size=(4000, n)).astype(np.float32) for n in (4, density_of.residuals.shape[1]))
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), density_of)
    for what, of in {"values": lambda f: f, "gradients": jax.grad}.items():
        log_densities = {
            which: jax.jit(jax.vmap(of(lambda p, q: single.log_density(q, p)))) for which in (None, "weights")
        }
        for which, function in log_densities.items():
            seconds(which, function, z, v)
        yield compared("weights", what, size, [lambda which, f=log_densities: (f[which], z, v)] * (5 * repeats))


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    rows = [row for size in options.simulations for row in rows_of(size, options.repeats)]
    print(report.write("residual_kernels", "Kernels of the residual form", [("Seconds", report.table_of(rows))]))
