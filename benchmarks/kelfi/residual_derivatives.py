"""Whether derivatives of the simulator would help the residual form to learn the location of its statistics.

    python -m benchmarks residual_derivatives [--size 300] [--seeds 3] [--rows FILE]

A derivative by each of `p` parameters at fixed noise costs about `p` further simulations, and tells about the location
alone. The table holds the mean log density of 400 fresh simulations, in nats: as KELFI learns from `m` simulations;
with the location learnt beforehand by a Gaussian process (a constant, a linear and a Gaussian kernel, whose scales and
noise maximise the marginal likelihood; ten folds) and taken from the statistics, from `m` simulations, from
`m / (1 + p)`, and from as many with their derivatives, whose noise is learnt too; and with the exact location, the mean
of 4,000 simulations at each parameter. Takes five minutes.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import norm
from scipy.optimize import minimize
from scipy.special import ndtri

from benchmarks.helpers import report
from benchmarks.mcmc.soft_abc import ricker
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.simulators.gaussian_mixture import gaussian_mixture
from numpyro_kme.simulators.two_moons import two_moons

FRESH, AVERAGED, FOLDS = 400, 4000, 10


def growth(rng_key, theta):
    """Four sizes of a logistic growth curve, with measurement errors."""
    rate, capacity = theta
    times = jnp.array([1.0, 3.0, 5.0, 8.0])
    return capacity / (1.0 + 9.0 * jnp.exp(-rate * times)) + 0.3 * jax.random.normal(rng_key, (4,))


TASKS = {
    "two moons": (two_moons, [-1.0, -1.0], [1.0, 1.0]),
    "mixture of two widths": (gaussian_mixture, [-10.0, -10.0], [10.0, 10.0]),
    "Ricker map": (lambda rng_key, theta: ricker(rng_key, *theta), [0.2, 0.05], [1.8, 0.6]),
    "growth curve": (growth, [0.2, 2.0], [2.0, 8.0]),
}
"""Simulators with two parameters, uniform between two corners."""


def kernel(scales, a, b):
    """Of one pair of points in standard normal coordinates."""
    near = jnp.exp(2 * scales["curved"] - 0.5 * jnp.sum(jnp.square((a - b) / jnp.exp(scales["length"]))))
    return near + jnp.exp(2 * scales["linear"]) * (1.0 + a @ b)


def gram(scales, a, b, slopes):
    """Covariances of values at `a` and `b`; with `slopes`, of values and derivatives, `(1 + p) n` in order."""
    one = partial(kernel, scales)
    if slopes:

        def one(x, y):
            by_y = jax.grad(kernel, 2)
            top = jnp.concatenate([kernel(scales, x, y)[None], by_y(scales, x, y)])
            by_x, by_both = jax.grad(kernel, 1)(scales, x, y), jax.jacfwd(by_y, 1)(scales, x, y).T
            return jnp.concatenate([top[None], jnp.concatenate([by_x[:, None], by_both], axis=1)])

    found = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(a, b)
    return found.transpose(2, 0, 3, 1).reshape(found.shape[2] * len(a), -1) if slopes else found


def covariance(scales, z, slopes):
    """Of noisy observations."""
    noise = [jnp.full(len(z), scales["noise"]), jnp.full(len(z) * z.shape[1] * slopes, scales["slope noise"])]
    return gram(scales, z, z, slopes) + jnp.diag(jnp.exp(2 * jnp.concatenate(noise)) + 1e-8)


@partial(jax.jit, static_argnums=(3, 4))
def loss(flat, z, y, slopes, unflatten):
    """Minus the log marginal likelihood, with weak priors on the logarithms, and its gradient."""

    def value(flat):
        scales = unflatten(flat)
        factor = jnp.linalg.cholesky(covariance(scales, z, slopes))
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return 0.5 * white @ white + jnp.sum(jnp.log(jnp.diag(factor))) + 0.05 * jnp.sum(jnp.square(flat + 1.0))

    return jax.value_and_grad(value)(flat)


@partial(jax.jit, static_argnums=3)
def predicted(scales, z, y, slopes, at):
    """Posterior means at `(k, p)`."""
    across = gram(scales, at, z, slopes)[: len(at)]
    return across @ jnp.linalg.solve(covariance(scales, z, slopes), y)


START, UNFLATTEN = ravel_pytree(
    {"length": jnp.zeros(2), "curved": 0.0, "linear": 0.0, "noise": -1.5, "slope noise": -1.0}
)


def one_location(z, values, slopes, at, folds):
    """The location of one statistic at the simulations `(n,)`, each from the other folds, and at `at`."""

    def of(rows):
        return z[rows], values[rows].T.ravel()

    def search(flat):
        value, slope = loss(flat, *of(slice(None)), slopes, UNFLATTEN)
        return (float(value), np.asarray(slope)) if np.isfinite(value) else (1e10, np.zeros_like(flat))

    scales = UNFLATTEN(jnp.asarray(minimize(search, np.asarray(START), jac=True, method="L-BFGS-B").x))
    inside = np.zeros(len(z))
    for fold in range(FOLDS):
        out = folds == fold
        inside[out] = predicted(scales, *of(~out), slopes, z[out])
    return inside, np.asarray(predicted(scales, *of(slice(None)), slopes, at))


def locations(z, x, jacobian, slopes, at):
    """Locations `(n, d)` of the simulations, each from the other folds, and those at `at`."""
    folds = np.random.default_rng(0).permutation(len(z)) % FOLDS
    mean, sd = x.mean(axis=0), x.std(axis=0)
    values = np.concatenate([((x - mean) / sd)[:, :, None], jacobian / sd[:, None]], axis=2)[:, :, : 1 + slopes * 2]
    found = [one_location(z, values[:, i], slopes, at, folds) for i in range(len(sd))]
    return tuple(np.stack(columns, axis=1) * sd + mean for columns in zip(*found))


def score(z, x, fresh_z, fresh_x):
    """Mean log density of fresh simulations."""
    surrogate = ResidualKernelMeans().fit(z, x, measure=standard_normal(z.shape[1]))
    return float(np.mean([_log_density(surrogate.at(y), one) for y, one in zip(fresh_x, fresh_z)]))


@jax.jit
def _log_density(likelihood, z):
    return likelihood.signed_log(z)[1]


def measure(name, size, seed):
    """The scores of one set of simulations."""
    fn, *corners = TASKS[name]
    low, high = np.array(corners)
    z = ndtri(np.random.default_rng(seed).uniform(size=(size + FRESH, 2)))
    keys = jax.random.split(jax.random.key(seed), len(z))
    simulate = jax.jit(lambda key, z: fn(key, low + (high - low) * norm.cdf(z)))
    x, jacobian = (np.asarray(jax.vmap(one)(keys, z)) for one in (simulate, jax.jacfwd(simulate, 1)))
    many = jax.jit(lambda key, z: jax.vmap(simulate, (0, None))(jax.random.split(key, AVERAGED), z).mean(axis=0))
    exact = np.asarray(jax.lax.map(lambda pair: many(*pair), (keys, jnp.asarray(z))))
    m, fewer, fresh = slice(size), slice(size // 3), slice(size, None)

    def beside(rows, slopes):
        inside, beyond = locations(z[rows], x[rows], jacobian[rows], slopes, z[fresh])
        return score(z[rows], x[rows] - inside, z[fresh], x[fresh] - beyond)

    return {
        "KELFI, m": score(z[m], x[m], z[fresh], x[fresh]),
        "Gaussian process, m": beside(m, False),
        "m / (1 + p)": beside(fewer, False),
        "m / (1 + p) with derivatives": beside(fewer, True),
        "exact location, m / (1 + p)": score(z[fewer], (x - exact)[fewer], z[fresh], (x - exact)[fresh]),
    }


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for name in TASKS:
        with warnings.catch_warnings(action="ignore", category=UserWarning), jax.enable_x64(True):
            runs = [
                options.rows.get(partial(measure, name, options.size, seed), task=name, size=options.size, seed=seed)
                for seed in range(options.seeds)
            ]
        rows.append([name, *(f"{np.mean(c):.3f} ({np.std(c):.3f})" for c in zip(*(run.values() for run in runs)))])
    heading = f"Mean log density of fresh simulations, nats; m = {options.size}; mean and sd of {options.seeds} seeds"
    table = report.table(["task", *runs[0]], rows)
    return report.write("residual_derivatives", "What derivatives would tell", [(heading, table)])


if __name__ == "__main__":
    main()
