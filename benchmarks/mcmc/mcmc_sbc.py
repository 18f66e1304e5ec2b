"""Ranks of the truth under NUTS on a learnt likelihood, on a conjugate model, against the number of simulations.

    python -m benchmarks mcmc_sbc    # 300 data sets for each of 3 training sets of each size

theta ~ N(0, I) in two dimensions, x ~ N(theta, 0.7^2). The data sets are groups of one model, each with parameters of
its own, so that one run of NUTS on `handlers.surrogate` serves all. Takes some hours.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report

NOISE, DATASETS, THIN = 0.7, 300, 3
FORMS = {"exact": None, "residual": kme.ResidualKernelMeans(), "published": kme.KernelMeans()}


def noisy(rng_key, theta):
    """A normal draw around theta."""
    return theta + NOISE * jax.random.normal(rng_key, theta.shape)


def single():
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta))


def groups(x, exact=False):
    with numpyro.plate("data sets", len(x)):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        fn = dist.Normal(theta, NOISE).to_event(1) if exact else kme.Simulator(noisy, theta, event_dims=1)
        numpyro.sample("x", fn, obs=x)


def run(seed, form, size, draws):
    """Ranks of 300 truths under the posteriors that one training set gives, and how wide those are."""
    rng = np.random.default_rng([seed, 1])
    truth = rng.normal(size=(DATASETS, 2))
    x = truth + NOISE * rng.normal(size=truth.shape)
    if form == "exact":
        model, kwargs = groups, {"exact": True}
    else:
        simulated = kme.simulate(jax.random.key(seed), single, size, progress_bar=False)
        fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"], form=FORMS[form])
        model, kwargs = kme.handlers.surrogate(groups, {"x": fitted}), {}
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=draws * THIN, thinning=THIN, progress_bar=False)
    mcmc.run(jax.random.key(seed), jnp.asarray(x), **kwargs)
    theta = np.asarray(mcmc.get_samples()["theta"])
    ranks = (np.sum(theta < truth[None], axis=0) + rng.uniform(size=truth.shape)) / (draws + 1)
    precision = 1.0 + NOISE**-2
    mean, sd = x * NOISE**-2 / precision, precision**-0.5
    return {
        "p": [float(stats.kstest(column, "uniform").pvalue) for column in ranks.T],
        "coverage": float(np.mean(np.abs(2.0 * ranks - 1.0) <= 0.9)),
        "middle": float(np.mean(np.abs(2.0 * ranks - 1.0) <= 0.5)),
        "error": float(np.sqrt(np.mean((theta.mean(0) - mean) ** 2)) / sd),
        "sd ratio": float(np.mean(theta.std(0)) / sd),
        "divergent": float(np.mean(mcmc.get_extra_fields()["diverging"])),
        "ranks": ranks,
    }


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--draws", type=int, default=99)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    cases = [("exact", 0), *((form, size) for size in arguments.sizes for form in FORMS if form != "exact")]
    rows = {case: [] for case in cases}
    for seed in range(arguments.seeds):
        for form, size in cases:
            key = {"seed": seed, "form": form, "size": size, "draws": arguments.draws}
            rows[form, size].append(arguments.rows.get(partial(run, **key), **key))
            text = save(rows, arguments.draws)
    print(text)


def save(rows, draws):
    table = []
    for (form, size), mine in rows.items():
        if mine:
            mean = [np.mean([row[k] for row in mine]) for k in ("coverage", "middle", "sd ratio", "error", "divergent")]
            p_values = [p for row in mine for p in row["p"]]
            pooled = np.concatenate([row["ranks"] for row in mine])
            all_of = [stats.kstest(column, "uniform").pvalue for column in pooled.T]
            table.append((form, size or "", len(mine), min(p_values), min(all_of), *mean))
    header = ("likelihood", "simulations", "training sets", "least p-value of one", "of all", "coverage of 90 %")
    header += ("of 50 %", "posterior sd / exact", "rms error of means / sd", "divergent")
    text = report.table(header, table) + (
        f"\n\n{DATASETS} data sets for each training set, {draws} draws of each, every {THIN}rd; p-values are "
        "Kolmogorov-Smirnov's, the least of two parameters."
    )
    title = "Simulation-based calibration of NUTS on a learnt likelihood"
    return report.write("mcmc_sbc", title, [("Conjugate normal model", text)])
