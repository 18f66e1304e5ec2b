"""Nicholson's blowflies: the score of the posterior mean against the number of simulations.

    python -m benchmarks blowfly                       # 10 repeats at 300 and 1,000 simulations
    python -m benchmarks blowfly --simulations 100 200 300 500 1000 --repeats 10
    python -m benchmarks blowfly --figure              # the figure alone, of the kept table
    python -m benchmarks blowfly --make-denominators   # once: the stored errors under the prior

"As published: tied" is the protocol of Hsu and Ramos (2019): one epsilon for all standardised statistics and one beta_0
maximise the marginal likelihood of all simulations, with lambda = 1e-3 beta_0. "Everything free" maximises it over each
length scale and lambda. Each row says with which version of JAX it was made. The figure is
`docs/_static/blowfly_nmse.png`. Takes half an hour.
"""

import itertools
import time

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import nmse, report
from benchmarks.helpers.subsets import first
from numpyro_kme.plots._style import COLOURS, DARK, FILL, legend, panels
from numpyro_kme.simulators.blowfly import OBSERVED, PRIOR_MEAN, PRIOR_SD, STATISTICS, model

PRIOR_DRAWS = 50_000
SCORES, LEARNT = "NMSE in %, at a point", "Learnt epsilon"


def point_estimates(kelfi, rng_key):
    """Posterior means of the log parameters by several definitions, and the mode; each `(6,)`."""
    fitted = kelfi.likelihoods["x"]
    z = np.asarray(jax.random.normal(rng_key, (PRIOR_DRAWS, len(PRIOR_MEAN))), np.float64)
    theta = PRIOR_MEAN + PRIOR_SD * z
    likelihood = fitted.surrogate.at(OBSERVED)
    with jax.enable_x64(True):
        logs = jax.vmap(_signed_log, (None, None, 0))(likelihood, fitted.coordinates, theta)
        sign, log_size = map(np.asarray, logs)
    signed = sign * np.exp(log_size - log_size.max())
    clipped = np.maximum(signed, 0)
    return {
        "draws": kelfi.get_samples()["log_theta"].mean(0),
        "mode": np.asarray(kelfi.mode()["log_theta"]),
        "clipped": clipped @ theta / clipped.sum(),
        "signed": signed @ theta / signed.sum(),
        "ten nearest": nearest(kelfi.posterior.simulations).mean(0),
    }


@jax.jit
def _signed_log(likelihood, coordinates, theta):
    return likelihood.signed_log(coordinates.forward(theta))


def nearest(simulations, count=10):
    """Parameters of the simulations nearest to the observation, statistics scaled robustly: `(count, 6)`."""
    x = np.asarray(simulations.x["x"], np.float64)
    centre = np.median(x, axis=0)
    scale = 1.4826 * np.median(np.abs(x - centre), axis=0)
    distance = np.sum((np.arcsinh((x - centre) / scale) - np.arcsinh((OBSERVED - centre) / scale)) ** 2, axis=1)
    return np.asarray(simulations.latents["log_theta"])[np.argsort(distance)[:count]]


def repeat(rng_key, simulations, form, denominators):
    """Learn from one set of simulations and score every estimate."""
    run_key, estimate_key, score_key = jax.random.split(rng_key, 3)
    begun = time.perf_counter()
    kelfi = kme.KELFI(model, form=form, simulations=simulations, progress_bar=False)
    kelfi.run(run_key, x=OBSERVED)
    seconds = time.perf_counter() - begun
    estimates = point_estimates(kelfi, estimate_key)
    return {
        "seconds": seconds,
        "nmse": {name: nmse.nmse_at(score_key, point, denominators) for name, point in estimates.items()},
        "eps": kelfi.info["eps"],
        "informativeness": kelfi.posterior.informativeness()[1]["x"],
        "jax": jax.__version__,
    }


def all_repeats(rows, budgets, repeats, seed):
    """All repeats at all budgets, for every way of learning."""
    denominators = nmse.stored_denominators()
    for r in range(repeats):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), r))
        simulated = kme.simulate(keys[0], kme.Problem.read(model, x=OBSERVED), max(budgets), progress_bar=False)
        for count, (name, form) in itertools.product(budgets, FORMS.items()):
            key = {"seed": seed, "repeat": r, "simulations": count, "learnt by": name}
            if not rows.has(**key):
                rows.add(**key, **repeat(keys[1], first(simulated, count), form, denominators))
        text = report.write("blowfly", "Blowfly", sections(rows), {"runs": rows.rows})
    print(text)


FORMS = {
    "residual form": kme.ResidualKernelMeans(),
    "published form, leave-one-out": kme.KernelMeans(),
    "marginal likelihood, as published: tied": kme.KernelMeans(
        objective=kme.likelihoods.MarginalLikelihood(), learner=kme.likelihoods.Learner(tied=kme.likelihoods.Tied())
    ),
    "marginal likelihood, everything free": kme.KernelMeans(objective=kme.likelihoods.MarginalLikelihood()),
}

MEASURES = (
    "Mean over repeats, in nats: mutual information with the parameters for the residual form, held-out drop for the "
    "others."
)


def sections(runs):
    """The tables: scores, what was learnt, informativeness of each statistic."""
    groups = {
        (count, name): [run for run in runs if run["simulations"] == count and run["learnt by"] == name]
        for count in sorted({run["simulations"] for run in runs})
        for name in FORMS
    }
    groups = {group: chosen for group, chosen in groups.items() if chosen}
    versions = {group: " and ".join(sorted({run["jax"] for run in chosen})) for group, chosen in groups.items()}
    scores = [
        [*group, len(chosen), versions[group], estimate, *_summary([100 * run["nmse"][estimate] for run in chosen])]
        for group, chosen in groups.items()
        for estimate in chosen[0]["nmse"]
    ]
    eps = [[*group, *_mean(chosen, lambda run: run["eps"])] for group, chosen in groups.items()]
    told = [[*group, *_mean(chosen, lambda run: run["informativeness"])] for group, chosen in groups.items()]
    seconds = [[*group, *_summary([run["seconds"] for run in chosen])] for group, chosen in groups.items()]
    numbered = ["simulations", "learnt by", *(f"s{i + 1}" for i in range(len(STATISTICS)))]
    summary = ["mean", "least", "median", "most"]
    legend = "; ".join(f"s{i + 1} {name}" for i, name in enumerate(STATISTICS)) + "."
    return [
        (SCORES, report.table(["simulations", "learnt by", "repeats", "JAX", "point", *summary], scores)),
        ("Informativeness of the statistics", report.table(numbered, told) + f"\n\n{MEASURES} {legend}"),
        (LEARNT, report.table(numbered, eps) + "\n\nMean over repeats, of standardised statistics."),
        ("Seconds to learn and sample", report.table(["simulations", "learnt by", *summary], seconds)),
    ]


def _summary(values):
    return np.mean(values), np.min(values), np.median(values), np.max(values)


def _mean(runs, get):
    return np.mean([get(run) for run in runs], axis=0)


def figure():
    """NMSE against the number of simulations, and learnt bandwidths, from the kept table."""
    scores = [row for row in report.rows_of("blowfly", SCORES) if row["point"] == "draws"]
    drawn, (errors, bandwidths) = panels(2, (9.0, 3.8))
    sizes = sorted({int(row["simulations"]) for row in scores})
    for name, colour in zip(FORMS, COLOURS, strict=True):
        own = {int(row["simulations"]): row for row in scores if row["learnt by"] == name}
        mean, least, most = ([float(own[size][column]) for size in sizes] for column in ("mean", "least", "most"))
        errors.plot(sizes, mean, "o-", markersize=3.5, color=colour, label=name)
        errors.fill_between(sizes, least, most, color=colour, alpha=FILL / 2, linewidth=0)
        (eps,) = (row for row in report.rows_of("blowfly", LEARNT) if list(row.values())[:2] == [str(sizes[-1]), name])
        bandwidths.plot(np.arange(1, 11), [float(eps[f"s{i}"]) for i in range(1, 11)], "o", markersize=4, color=colour)
    errors.axhline(0.72, color=DARK, linewidth=0.8, linestyle="--", label="published best")
    errors.set(xscale="log", yscale="log", xlabel="simulations", ylabel="NMSE of the posterior mean, %")
    errors.set_xticks(sizes, [str(m) for m in sizes])
    errors.minorticks_off()
    bandwidths.set(yscale="log", xlabel="statistic", ylabel=f"learnt bandwidth at {sizes[-1]}", xticks=np.arange(1, 11))
    legend([errors], None)
    report.save_figure(drawn, "blowfly_nmse")


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--make-denominators", action="store_true")
    parser.add_argument("--figure", action="store_true")
    options = parser.parse_args()
    if options.make_denominators:
        return print(nmse.make_denominators())
    if not options.figure:
        all_repeats(options.rows, options.simulations, options.repeats, options.seed)
    figure()
