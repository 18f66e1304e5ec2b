"""Nicholson's blowflies: the score of the posterior mean against the number of simulations.

    python benchmarks/blowfly.py                       # 10 repeats at 300 and 1,000 simulations
    python benchmarks/blowfly.py --simulations 100 200 300 500 1000 --repeats 10
    python benchmarks/blowfly.py --make-denominators   # once: the stored errors under the prior

"As published: tied" is the protocol of Hsu and Ramos (2019): one epsilon for all standardised statistics and one
beta_0 maximise the marginal likelihood of all simulations, with lambda = 1e-3 beta_0. "Everything free" maximises it
over each length scale and lambda.

Writes `results/blowfly.md` and `results/blowfly.json` after each repeat. Fits of the same seed that are in the JSON
are not made again; move it away to begin anew. The tables say with which versions of JAX the rows were made.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import nmse
import numpy as np
import numpyro
import numpyro.distributions as dist
import report
from banks import first
from simulators.blowfly import OBSERVED, PRIOR_MEAN, PRIOR_SD, STATISTICS, blowfly_statistics

import numpyro_kme as kme

PRIOR_DRAWS = 50_000


def model(x=None):
    """The model of `examples/blowfly.py`."""
    log_theta = numpyro.sample("log_theta", dist.Normal(PRIOR_MEAN, PRIOR_SD).to_event(1))
    numpyro.sample("x", kme.Simulator(blowfly_statistics, log_theta), obs=x)


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
        "ten nearest": nearest(kelfi.simulations).mean(0),
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
        "estimates": estimates,
        "info": {name: value for name, value in kelfi.info.items()},
        "relevance": kelfi.posterior.relevance()["x"],
        "jax": jax.__version__,
    }


def main(budgets, repeats, seed):
    """All repeats at all budgets, for every way of learning."""
    denominators = nmse.stored_denominators()
    runs = made_before(seed)
    done = {(run["repeat"], run["simulations"], run["learnt by"]) for run in runs}
    text = ""
    for r in range(repeats):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), r))
        bank = kme.simulate(keys[0], kme.Problem.read(model, x=OBSERVED), max(budgets), progress_bar=False)
        for count in budgets:
            for name, form in FORMS.items():
                if (r, count, name) in done:
                    continue
                found = repeat(keys[1], first(bank, count), form, denominators)
                runs.append({"repeat": r, "simulations": count, "learnt by": name, **found})
                scores = ", ".join(f"{key} {100 * value:.2f}" for key, value in found["nmse"].items())
                print(
                    f"repeat {r}, {count} simulations, {name}: {scores} %, {found['seconds']:.0f} s",
                    flush=True,
                )
        text = report.write("blowfly", "Blowfly", sections(runs), {"seed": seed, "runs": runs})
    print(text)


def made_before(seed):
    """Runs of earlier calls with the same seed."""
    path = report.RESULTS / "blowfly.json"
    stored = json.loads(path.read_text()) if path.exists() else {"seed": None}
    return stored["runs"] if stored["seed"] == seed else []


FORMS = {
    "residual form": kme.ResidualKernelMeans(),
    "published form, leave-one-out": kme.KernelMeans(),
    "marginal likelihood, as published: tied": kme.KernelMeans(
        objective=kme.likelihoods.MarginalLikelihood(), learner=kme.likelihoods.Learner(tied=kme.likelihoods.Tied())
    ),
    "marginal likelihood, everything free": kme.KernelMeans(objective=kme.likelihoods.MarginalLikelihood()),
}


def sections(runs):
    """The tables: scores, what was learnt, relevance of each statistic."""
    groups = {
        (count, name): [run for run in runs if run["simulations"] == count and run["learnt by"] == name]
        for count in sorted({run["simulations"] for run in runs})
        for name in FORMS
    }
    groups = {group: chosen for group, chosen in groups.items() if chosen}
    versions = {group: " and ".join(sorted({run["jax"] for run in chosen})) for group, chosen in groups.items()}
    scores = [
        [*group, len(chosen), versions[group], estimate, *_spread([100 * run["nmse"][estimate] for run in chosen])]
        for group, chosen in groups.items()
        for estimate in chosen[0]["nmse"]
    ]
    eps = [[*group, *_mean(chosen, lambda run: run["info"]["eps"])] for group, chosen in groups.items()]
    relevance = [[*group, *_mean(chosen, lambda run: run["relevance"])] for group, chosen in groups.items()]
    seconds = [[*group, *_spread([run["seconds"] for run in chosen])] for group, chosen in groups.items()]
    numbered = ["simulations", "learnt by", *(f"s{i + 1}" for i in range(len(STATISTICS)))]
    spread = ["mean", "least", "median", "most"]
    legend = "; ".join(f"s{i + 1} {name}" for i, name in enumerate(STATISTICS)) + "."
    return [
        (
            "NMSE in %, at a point",
            report.table(["simulations", "learnt by", "repeats", "JAX", "point", *spread], scores),
        ),
        (
            "Relevance of the statistics",
            report.table(numbered, relevance) + "\n\nMean over repeats. " + legend,
        ),
        (
            "Learnt epsilon",
            report.table(numbered, eps) + "\n\nMean over repeats, of standardised statistics.",
        ),
        ("Seconds to learn and sample", report.table(["simulations", "learnt by", *spread], seconds)),
    ]


def _spread(values):
    return np.mean(values), np.min(values), np.median(values), np.max(values)


def _mean(runs, get):
    return np.mean([get(run) for run in runs], axis=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--make-denominators", action="store_true")
    options = parser.parse_args()
    if options.make_denominators:
        print(nmse.make_denominators())
    else:
        main(options.simulations, options.repeats, options.seed)
