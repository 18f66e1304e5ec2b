"""Whether the diagnostics see ten faults planted in KELFI and in kernel Bayes, and stay quiet without any.

    python -m benchmarks planted_faults [--null 60 140] [--seeds 3]

A conjugate model: two log-normal parameters, of whose logarithms two statistics are noisy copies with correlated normal
noise. Kernel Bayes has half the length scale of the median heuristic on data; with all of it posteriors are too wide,
which 150 data sets show. Each run fits an engine at a key of its own, calibrates it on 150 simulated data sets, tests
the observation, and applies the one rule of `diagnostics.Check` at level 0.001. Takes half an hour.
"""

import dataclasses
import time
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme import diagnostics
from numpyro_kme.embeddings.measures import Normal
from numpyro_kme.engines import EffectiveSampleSizeError, ReferenceTable, learnt_model
from numpyro_kme.engines.base import observed_anew
from numpyro_kme.kernels import Gaussian, register
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap

SD = 0.7
NOISE = SD * np.linalg.cholesky(np.array([[1.0, 0.6], [0.6, 1.0]]))
DRAWS = 250
PARTICLES = 1000
SIZES = {"KELFI": 150, "kernel Bayes": 1000}

FAULTS = {
    "sign of a residual": "KELFI: of the first statistic, before decorrelation; "
    "kernel Bayes: x + y in place of x - y there",
    "two parameters swapped": "draws of a under the name of b, and the reverse",
    "prior ignored": "KELFI: flat (sd 5); kernel Bayes: simulations and embedded prior of sd 2",
    "prior counted twice": "half the prior variance",
    "observation shifted": "by half a standard deviation of the noise",
    "eps three times too large": "bandwidth of the residuals; length scale of the kernel on data, six times",
    "half dropped by value": "the half with the larger first statistic",
    "one key for all": "every simulation of the engine has the same noise",
    "Jacobian left out": "of the logarithm, in both parameters",
    "chain thinned to its tail": "the last tenth of draws in the order of a chain of autocorrelation 0.98",
}


def noisy(rng_key, a, b):
    """Logarithms of both parameters, with correlated noise."""
    return jnp.log(jnp.stack([a, b])) + jnp.asarray(NOISE) @ jax.random.normal(rng_key, (2,))


def model(x=None, mean=0.0, sd=1.0):
    a = numpyro.sample("a", dist.LogNormal(mean, sd))
    b = numpyro.sample("b", dist.LogNormal(mean, sd))
    numpyro.sample("x", kme.Simulator(noisy, a, b), obs=x)


@register
class Flipped(TriangularMap):
    """A decorrelation that takes the first residual with the wrong sign."""

    def __call__(self, u, z, xp):
        return super().__call__(u * np.where(np.arange(u.shape[-1]) == 0, -1.0, 1.0), z, xp)


class KELFI(kme.KELFI):
    """KELFI with a fault, or `None`."""

    def __init__(self, fault, rng_key):
        settings = dict(num_samples=DRAWS, simulations=simulated(fault, rng_key, SIZES["KELFI"]), progress_bar=False)
        super().__init__(model, SIZES["KELFI"], **settings)
        self.fault = fault

    def _infer(self, rng_key, args, kwargs):
        learnt = self._faulty(super()._infer(rng_key, args, kwargs)[0])
        return learnt, self._spoilt(rng_key, learnt.problem, learnt)

    def _condition(self, rng_key, args, kwargs, learnt):
        return self._spoilt(rng_key, observed_anew(learnt.problem, args, kwargs), learnt)

    def _spoilt(self, rng_key, problem, learnt):
        seen = observing(problem, shift(self.fault))
        return spoilt(self.fault, rng_key, learnt.posterior(rng_key, seen))

    def _faulty(self, learnt):
        mean, variance = {
            "prior ignored": (0.0, 25.0),
            "prior counted twice": (0.0, 0.5),
            "Jacobian left out": (-1.0, 1.0),
        }.get(self.fault, (0.0, 1.0))
        surrogate = learnt.likelihoods["x"].surrogate
        if self.fault == "sign of a residual":
            surrogate = dataclasses.replace(surrogate, decorrelation=Flipped(**vars(surrogate.decorrelation)))
        if self.fault == "eps three times too large":
            density = dataclasses.replace(surrogate.density, factors=3.0 * np.asarray(surrogate.density.factors))
            surrogate = dataclasses.replace(surrogate, density=density)
        return dataclasses.replace(
            learnt,
            measures={"x": Normal(np.full(2, mean), variance * np.eye(2))},
            likelihoods={"x": dataclasses.replace(learnt.likelihoods["x"], surrogate=surrogate)},
        )


class KernelBayes(kme.KernelBayes):
    """Kernel Bayes with a fault, or `None`."""

    def __init__(self, fault, rng_key):
        settings = dict(
            num_samples=DRAWS, simulations=simulated(fault, rng_key, SIZES["kernel Bayes"]), progress_bar=False
        )
        super().__init__(model, SIZES["kernel Bayes"], **settings)
        self.fault = fault

    def _fit(self, rng_key, problem, simulations):
        scale = 3.0 if self.fault == "eps three times too large" else 0.5
        table = ReferenceTable.found(rng_key, problem, simulations)
        self.kernel = Gaussian(scale * np.asarray(table.kernels(None, None)[0].length_scale))
        mean, sd = {
            "prior ignored": (0.0, 2.0),
            "prior counted twice": (0.0, 0.5**0.5),
            "Jacobian left out": (-1.0, 1.0),
        }.get(self.fault, (0.0, 1.0))
        return super()._fit(rng_key, kme.Problem.read(partial(model, mean=mean, sd=sd)), simulations)

    def _infer(self, rng_key, args, kwargs):
        learnt = super()._infer(rng_key, args, kwargs)[0]
        return learnt, self._spoilt(rng_key, learnt.problem, learnt)

    def _condition(self, rng_key, args, kwargs, learnt):
        return self._spoilt(rng_key, observed_anew(learnt.problem, args, kwargs), learnt)

    def _spoilt(self, rng_key, problem, learnt):
        sign = np.array([-1.0, 1.0]) if self.fault == "sign of a residual" else 1.0
        seen = observing(problem, shift(self.fault), sign)
        return spoilt(self.fault, rng_key, learnt.posterior(rng_key, seen))


ENGINES = {"KELFI": KELFI, "kernel Bayes": KernelBayes}


def shift(fault):
    return 0.5 * SD if fault == "observation shifted" else 0.0


def simulated(fault, rng_key, size):
    """Simulations from the prior, or with a fault."""
    problem = kme.Problem.read(model)
    if fault == "half dropped by value":
        made = kme.simulate(rng_key, problem, 2 * size, progress_bar=False)
        kept = np.argsort(made.x["x"][:, 0])[:size]
        return kme.Simulations.from_latents(problem, {k: v[kept] for k, v in made.latents.items()}, made.x["x"][kept])
    if fault == "one key for all":
        latents = problem.draw(rng_key, size).latents
        x = jax.vmap(noisy, in_axes=(None, 0, 0))(jax.random.fold_in(rng_key, 1), latents["a"], latents["b"])
        return kme.Simulations.from_latents(problem, latents, np.asarray(x))
    made = kme.simulate(rng_key, problem, size, progress_bar=False)
    if fault == "prior ignored":
        widened = {name: np.asarray(value) ** 2 for name, value in made.latents.items()}
        keys = jax.random.split(jax.random.fold_in(rng_key, 1), size)
        return kme.Simulations.from_latents(
            problem, widened, np.asarray(jax.vmap(noisy)(keys, widened["a"], widened["b"]))
        )
    return made


def observing(problem, by, sign=1.0):
    """The model with its observation shifted, or with another sign."""
    site = problem.simulators["x"]
    moved = dataclasses.replace(site, observed=sign * (np.asarray(site.observed, np.float64) + by))
    return dataclasses.replace(problem, simulators={"x": moved})


def spoilt(fault, rng_key, posterior):
    """A posterior whose draws have a fault."""
    draws = dict(posterior.samples)
    if fault == "two parameters swapped":
        draws["a"], draws["b"] = draws["b"], draws["a"]
    if fault == "chain thinned to its tail":
        rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
        size, path = len(draws["a"]), [rng.normal()]
        while len(path) < size:
            path.append(0.98 * path[-1] + np.sqrt(1.0 - 0.98**2) * rng.normal())
        visited = np.argsort(draws["a"])[np.argsort(np.argsort(path))][-(size // 10) :]
        draws = {name: value[visited] for name, value in draws.items()}
    return dataclasses.replace(posterior, samples=draws, fields={})


def first_served(fitted, run_key, observations):
    """Run at the first observation that the engine does not refuse."""
    for y in observations:
        try:
            fitted.run(run_key, x=y)
        except EffectiveSampleSizeError:
            continue
        return y
    raise RuntimeError("The engine refused all observations.")


def one_run(engine, fault, seed, datasets):
    """Fit, calibrate, test the observation, and apply the rule."""
    begun = time.process_time()
    # keys of a run follow from its engine, fault and seed alone
    number = 1000 * (1 + list(FAULTS).index(fault) if fault else 0) + seed
    key = jax.random.fold_in(jax.random.key(list(ENGINES).index(engine)), number)
    simulate_key, run_key, truth_key, calibrate_key = jax.random.split(key, 4)
    observations = kme.simulate(truth_key, kme.Problem.read(model), 20, progress_bar=False).x["x"]
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        fitted = ENGINES[engine](fault, simulate_key)
        y = first_served(fitted, run_key, observations)
        calibration = diagnostics.calibrate(calibrate_key, fitted, datasets, progress_bar=False)
    found = diagnostics.Check(
        calibration, {"x": diagnostics.misspecification_test(fitted.posterior.simulations.x["x"], np.asarray(y))}
    )
    tests = {f"{name} {test}": p for name, tests in calibration.tests.items() for test, p in tests.items()}
    least = min(tests, key=tests.get)
    return {
        "engine": engine,
        "fault": fault or "none",
        "seed": seed,
        "data sets": datasets,
        "flagged": bool(found.flagged()),
        "p": found.p_value,
        "smallest": least,
        "misspecification p": found.misspecification["x"].p_value,
        "coverage": float(np.mean(list(calibration.coverage(0.9).values()))),
        "refused": calibration.refused,
        "seconds": time.process_time() - begun,
        "p-values": tests,
    }


def write(rows):
    """One line for each fault, and one for the runs without any."""
    header = ["fault", "how", *(f"{engine}: flagged" for engine in ENGINES), *(f"{engine}: p" for engine in ENGINES)]
    lines = []
    for fault, how in FAULTS.items():
        own = {e: [row for row in rows if row["engine"] == e and row["fault"] == fault] for e in ENGINES}
        counts = [f"{sum(row['flagged'] for row in runs)} of {len(runs)}" for runs in own.values()]
        lines.append([fault, how, *counts])
        lines[-1] += [
            f"{np.median([row['p'] for row in runs]):.1g} ({runs[0]['smallest']})" if runs else "-"
            for runs in own.values()
        ]
    null = {e: [row for row in rows if row["engine"] == e and row["fault"] == "none"] for e in ENGINES}
    quiet = []
    for engine, runs in null.items():
        if runs:
            names = ("p", "flagged", "coverage", "refused", "seconds")
            column = {name: np.array([row[name] for row in runs]) for name in names}
            low = [np.mean(column["p"] < level) for level in (0.01, 0.05)]
            quiet.append([engine, len(runs), int(column["flagged"].sum()), *low])
            quiet[-1] += [column["coverage"].mean(), int(column["refused"].sum()), np.median(column["seconds"])]
    names = ["engine", "runs", "flagged at 0.001", "fraction with p < 0.01", "p < 0.05", "coverage of 90%"]
    names += ["refused", "CPU s"]
    note = "\n\nThe p-value is the median over seeds, with the test it is from."
    sections = [("Ten faults", report.table(header, lines) + note), ("Without a fault", report.table(names, quiet))]
    report.save("planted_faults", "Planted faults", sections)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--table", action="store_true", help="write the table of what is kept, and run nothing")
    parser.add_argument("--null", type=int, default=[60, 140], nargs=2, help="runs of either engine without a fault")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each engine with each fault")
    parser.add_argument("--datasets", type=int, default=150)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    options = parser.parse_args()
    # the same sampler with fewer particles: 100 draws of each posterior are looked at
    learnt_model.PARTICLES = PARTICLES
    kept = options.rows
    null = dict(zip(ENGINES, options.null, strict=True))
    runs = [(engine, fault, 0) for engine in ENGINES for fault in FAULTS]
    runs += [(engine, None, seed) for seed in range(max(options.null)) for engine in ENGINES if seed < null[engine]]
    runs += [(engine, fault, seed) for seed in range(1, options.seeds) for engine in ENGINES for fault in FAULTS]
    for engine, fault, seed in runs:
        wanted = {"engine": engine, "fault": fault or "none", "seed": seed, "data sets": options.datasets}
        if engine in options.engines and not kept.has(**wanted) and not options.table:
            kept.add(**one_run(engine, fault, seed, options.datasets))
    write(kept.rows)
