"""What NUTS should follow where the published surrogate is negative: positive versions of a signed likelihood.

    python -m benchmarks mcmc_signed [--seeds 3] [--sizes 100 300]

Two parameters, N(0, I) prior, two statistics N(theta, 0.3^2) observed at (1.0, -0.5), m simulations from the prior.
References: `max(q, 0)` times the prior on a grid, and the exact posterior. Takes half an hour.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from scipy.spatial import cKDTree

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import four_chains, moments, normalised
from numpyro_kme.likelihoods.published.surrogate import DEGREES

NOISE, Y = 0.3, np.array([1.0, -0.5])
AXIS = np.linspace(-4.0, 4.0, 161)
GRID = np.stack(np.meshgrid(AXIS, AXIS, indexing="ij"), -1).reshape(-1, 2)
HEIGHT = 0.01


def leading_floor(at, z, simulated, reach):
    """The default: a smooth positive part whose floor is a bell about the simulations that look like the data."""
    return at.log_density(z)


def wall(z, simulated, reach):
    """0 within reach of a simulation, and steeply down beyond."""
    nearest = jnp.sqrt(jnp.min(jnp.sum(jnp.square(simulated - z), axis=1)) + 1e-12)
    return -50.0 * jnp.square(jnp.maximum(nearest / reach - 1.0, 0.0))


def restricted(at, z, simulated, reach):
    """The default, and a quadratic wall outside the simulated region."""
    return at.log_density(z) + wall(z, simulated, reach)


def flat_floor_restricted(at, z, simulated, reach):
    """A flat floor, and the wall."""
    return flat_floor(at, z, simulated, reach) + wall(z, simulated, reach)


def flat_floor(at, z, simulated, reach):
    """`log max(q, c)` with `c` a hundredth of the largest value."""
    sign, size = at.signed_log(z)
    floor = at.log_largest + at.terms.log_scale + jnp.log(HEIGHT)
    return jnp.where((sign > 0) & (size > floor), size, floor)


def absolute(at, z, simulated, reach):
    """`log |q|`."""
    return at.signed_log(z)[1]


def squared(at, z, simulated, reach):
    """`log (q^2 + c^2) / 2`, with the default's floor as `c`."""
    _, size = at.signed_log(z)
    white = jnp.linalg.solve(jnp.asarray(at.cholesky_factor), z - jnp.asarray(at.centre))
    shape = -0.5 * (DEGREES + len(Y)) * jnp.log1p(white @ white / DEGREES)
    floor = at.log_largest + at.terms.log_scale + jnp.log(HEIGHT) + shape
    return 0.5 * jnp.logaddexp(2.0 * size, 2.0 * floor)


VERSIONS = {
    "smooth positive part, floor leads back (default)": leading_floor,
    "the same, and a wall around the simulations": restricted,
    "flat floor": flat_floor,
    "flat floor, and a wall around the simulations": flat_floor_restricted,
    "root of q² + floor²": squared,
    "absolute value of q": absolute,
    "residual form, positive by construction": leading_floor,
}


def exact():
    variance = NOISE**2 / (1.0 + NOISE**2)
    return Y / (1.0 + NOISE**2), np.full(2, np.sqrt(variance))


def reach_of(fitted):
    """Distance to the nearest other simulation that 99 % of the simulations are within."""
    return float(np.quantile(cKDTree(fitted.simulated).query(fitted.simulated, k=2)[0][:, 1], 0.99))


def learn(size, seed, form):
    rng = np.random.default_rng([seed, size])
    theta = rng.normal(size=(size, 2))
    return kme.fit_likelihood(theta, theta + NOISE * rng.normal(size=theta.shape), form=form)


def sampler(version):
    def model(at, coordinates, simulated, reach):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.factor("y", version(at, coordinates.forward(theta), simulated, reach))

    return four_chains(model, 500, 1000, max_tree_depth=8)


def run(fitted, version, seed):
    at, forward = fitted.at(Y), fitted.coordinates.forward
    mcmc = sampler(version)
    mcmc.run(jax.random.key(seed), at, fitted.coordinates, fitted.simulated, reach_of(fitted))
    chains = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])
    draws = chains.reshape(-1, 2)
    signs, log_sizes = jax.jit(jax.vmap(lambda t: at.signed_log(forward(t))))(GRID)
    log_p = np.where(signs > 0, log_sizes, -np.inf) - 0.5 * np.sum(GRID**2, axis=1)
    z = np.asarray(jax.jit(jax.vmap(forward))(draws))
    nearest = np.sqrt(((z[:, None] - fitted.simulated[None]) ** 2).sum(-1).min(1))
    row = {
        "divergent": float(np.mean(mcmc.get_extra_fields()["diverging"])),
        "rhat": float(np.max(split_gelman_rubin(chains))),
        "ess": float(np.min(effective_sample_size(chains))),
        "negative": float(np.mean(np.asarray(jax.jit(jax.vmap(at.signed_log))(z)[0]) < 0)),
        "outside": float(np.mean(nearest > reach_of(fitted))),
    }
    own = np.transpose([moments(normalised(log_p), column) for column in GRID.T])
    for name, (mean, sd) in (("own", own), ("exact", exact())):
        row[f"mean error, {name}"] = float(np.mean(np.abs(draws.mean(0) - mean) / sd))
        row[f"sd ratio, {name}"] = float(np.mean(draws.std(0) / sd))
    return row


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rows = {}
    forms = {"published": kme.KernelMeans(), "residual": kme.ResidualKernelMeans()}
    for seed in range(arguments.seeds):
        for size in arguments.sizes:
            learnt = {}

            def score(name, form):
                if form not in learnt:  # noqa: B023
                    learnt[form] = learn(size, seed, forms[form])  # noqa: B023
                return run(learnt[form], VERSIONS[name], seed)  # noqa: B023

            for name in VERSIONS:
                compute = partial(score, name, "residual" if name.startswith("residual") else "published")
                rows[size, name, seed] = arguments.rows.get(compute, size=size, version=name, seed=seed)
                text = save(rows)
    print(text)


def save(rows):
    table = []
    for size, name in sorted({key[:2] for key in rows}, key=lambda key: (key[0], list(VERSIONS).index(key[1]))):
        mine = [row for (other, version, _), row in rows.items() if (other, version) == (size, name)]
        column = {key: np.array([row[key] for row in mine]) for key in mine[0]}
        errors = [column[f"{kind}, {of}"].mean() for of in ("own", "exact") for kind in ("mean error", "sd ratio")]
        table.append(
            (
                size,
                name,
                len(mine),
                *errors,
                column["divergent"].mean(),
                f"{column['rhat'].max():.3f}",
                f"{np.sum(column['rhat'] > 1.05)} of {len(mine)}",
                column["ess"].min(),
                column["negative"].mean(),
                column["outside"].mean(),
            )
        )
    header = ("m", "version", "seeds", "mean error / sd, to max(q, 0)", "sd ratio", "mean error / sd, to exact")
    header += ("sd ratio", "divergent", "worst R-hat", "R-hat > 1.05", "least ESS", "negative", "outside")
    sections = [("Four chains of 500 + 1,000 draws, trees of depth 8 at most", report.table(header, table))]
    return report.write("mcmc_signed", "Positive versions of a signed surrogate under NUTS", sections)
