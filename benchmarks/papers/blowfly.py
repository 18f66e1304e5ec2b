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

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import nmse, report
from numpyro_kme.plots._style import COLOURS, DARK, FILL, legend, panels
from numpyro_kme.samplers.importance import signed_logs
from numpyro_kme.simulators.blowfly import OBSERVED, PRIOR_MEAN, PRIOR_SD, STATISTICS, model, vector

PRIOR_DRAWS = 50_000
SCORES, LEARNT = "NMSE in %, at a point", "Learnt epsilon"
MARGINAL = kme.likelihoods.MarginalLikelihood()
FORMS = {
    "residual form": kme.ResidualKernelMeans(),
    "published form, leave-one-out": kme.KernelMeans(),
    "marginal likelihood, as published: tied": kme.KernelMeans(
        objective=MARGINAL, learner=kme.likelihoods.Learner(tied=kme.likelihoods.Tied())
    ),
    "marginal likelihood, everything free": kme.KernelMeans(objective=MARGINAL),
}
TOLD = (
    "Mean over repeats, in nats: mutual information with the parameters for the residual form, held-out drop for the "
    "others. "
) + "; ".join(f"s{i + 1} {name}" for i, name in enumerate(STATISTICS))


def point_estimates(kelfi, rng_key):
    """Posterior means of the log parameters by several definitions, and the mode; each `(6,)`."""
    fitted = kelfi.likelihoods["x"]
    theta = PRIOR_MEAN + PRIOR_SD * np.asarray(jax.random.normal(rng_key, (PRIOR_DRAWS, len(PRIOR_MEAN))), np.float64)
    sign, log_size = signed_logs(fitted.surrogate.at(OBSERVED), fitted.coordinates.table(theta))
    signed = sign * np.exp(log_size - log_size.max())
    return {
        "draws": np.mean(vector(kelfi.get_samples()), axis=0),
        "mode": np.asarray(vector(kelfi.posterior.mode())),
        "signed": signed @ theta / signed.sum(),
    }


def measured(repeat, simulations, learnt):
    """Learn from the first simulations of a set, and score every estimate."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), repeat))
    made = kme.simulate(keys[0], kme.Problem.read(model, x=OBSERVED), simulations, progress_bar=False)
    run_key, estimate_key, score_key = jax.random.split(keys[1], 3)
    kelfi = kme.KELFI(model, form=FORMS[learnt], simulations=made, progress_bar=False)
    _, seconds, _ = report.timed(kelfi.run, run_key, x=OBSERVED)
    points, denominators = point_estimates(kelfi, estimate_key), nmse.stored_denominators()
    return {
        "seconds": seconds,
        "nmse": {name: nmse.nmse_at(score_key, point, denominators) for name, point in points.items()},
        "eps": kelfi.info["eps"],
        "informativeness": kelfi.posterior.informativeness()[1]["x"],
        "jax": jax.__version__,
    }


def summary(values):
    return np.mean(values), np.min(values), np.median(values), np.max(values)


def sections(rows):
    """The tables: scores, what was learnt, informativeness of each statistic."""
    scores, eps, told, seconds = [], [], [], []
    for key in sorted(
        {(row["simulations"], row["learnt"]) for row in rows}, key=lambda key: (key[0], [*FORMS].index(key[1]))
    ):
        runs = rows.of(simulations=key[0], learnt=key[1])
        versions = " and ".join(sorted({run["jax"] for run in runs}))
        for point in runs[0]["nmse"]:
            scores.append([*key, len(runs), versions, point, *summary([100 * run["nmse"][point] for run in runs])])
        eps.append([*key, *np.broadcast_to(np.mean([run["eps"] for run in runs], axis=0), len(STATISTICS))])
        told.append([*key, *np.mean([run["informativeness"] for run in runs], axis=0)])
        seconds.append([*key, *summary([run["seconds"] for run in runs])])
    numbered = ["simulations", "learnt by", *(f"s{i + 1}" for i in range(len(STATISTICS)))]
    ends = ["mean", "least", "median", "most"]
    return [
        (SCORES, report.table(["simulations", "learnt by", "repeats", "JAX", "point", *ends], scores)),
        ("Informativeness of the statistics", report.table(numbered, told) + f"\n\n{TOLD}."),
        (LEARNT, report.table(numbered, eps) + "\n\nMean over repeats, of standardised statistics."),
        ("Seconds to learn and sample", report.table(["simulations", "learnt by", *ends], seconds)),
    ]


def draw():
    """NMSE against the number of simulations, and learnt bandwidths, from the kept table."""
    scores = [row for row in report.rows_of("blowfly", SCORES) if row["point"] == "draws"]
    drawn, (errors, bandwidths) = panels(2, None, (2.7, 1.4))
    sizes = sorted({int(row["simulations"]) for row in scores})
    for name, colour in zip(FORMS, COLOURS, strict=True):
        own = {int(row["simulations"]): row for row in scores if row["learnt by"] == name}
        mean, least, most = ([float(own[size][column]) for size in sizes] for column in ("mean", "least", "most"))
        errors.plot(sizes, mean, "o-", markersize=3.5, color=colour, label=name.replace("marginal likelihood, ", ""))
        errors.fill_between(sizes, least, most, color=colour, alpha=FILL / 2, linewidth=0)
        (eps,) = (row for row in report.rows_of("blowfly", LEARNT) if list(row.values())[:2] == [str(sizes[-1]), name])
        bandwidths.plot(np.arange(1, 11), [float(eps[f"s{i}"]) for i in range(1, 11)], "o", markersize=4, color=colour)
    errors.axhline(0.72, color=DARK, linewidth=0.8, linestyle="--", label="published best")
    errors.set(xscale="log", yscale="log", xlabel="simulations", ylabel="NMSE of the posterior mean, %")
    errors.set_xticks(sizes, [str(m) for m in sizes])
    errors.minorticks_off()
    bandwidths.set(yscale="log", xlabel="statistic", ylabel=f"learnt bandwidth at {sizes[-1]}", xticks=np.arange(1, 11))
    legend([errors], None)
    drawn.savefig(report.FIGURES / "blowfly_nmse.png", dpi=130)


def main(rows, simulations=(300, 1000), repeats=10, figure=False, make_denominators=False):
    if make_denominators:
        return nmse.make_denominators()
    if not figure:
        rows.fill(measured, repeat=range(repeats), simulations=simulations, learnt=FORMS)
        report.write("blowfly", "Blowfly", sections(rows), rows)
    draw()
