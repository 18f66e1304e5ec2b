"""Every engine of the package at equal simulation budgets on three problems, beside SMC-ABC by pyabc.

    python benchmarks/all_engines.py --problem exponential-gamma --repeats 20 [--runs rows.jsonl]
    python benchmarks/all_engines.py --problem blowfly --repeats 5
    python benchmarks/all_engines.py --problem g-and-k --repeats 5      # needs pip install pyabc

Exponential-gamma: Wasserstein-1 of 1,000 samples to the exact posterior in its standard deviations (of point estimates: their
distance from the posterior mean in the same units), a new observation each time. Blowfly: NMSE of `blowfly.py` at the
posterior mean, in %. g-and-k: 2,048 clean draws, uniform priors on (0, 10)^4, NMSE of the posterior mean on (a, b, g, log k).
Statistics: the log mean; the ten; 15 quantiles. Data sets without statistics: 15 draws; 180 counts in thousands; the 2,048 draws,
whose MMD is by 300 Fourier features. The posterior bootstrap differentiates the simulator and has no budget; it answers another
question (no prior, robust) and is shown with it. Seconds are CPU time with simulations, the least over repeats: without compilation, and
where the machine was least busy.
"""

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
import nmse
import report
from npl_models import GK_TRUTH, gk_data, upright
from simulators import blowfly, exponential_gamma

import numpyro_kme as kme
from numpyro_kme.kernels import Gaussian, median_heuristic

QUANTILES = jnp.linspace(0.03, 0.97, 15)
BUDGETS = (1000,)


class ExponentialGamma:
    name, engines_without = "exponential-gamma", ()

    def __init__(self, seed):
        self.raw = np.random.default_rng([seed, 71]).exponential(1 / exponential_gamma.TRUTH, 15)
        self.statistics = np.array([np.log(self.raw.mean())])
        self.exact = exponential_gamma.exact_posterior(self.raw.mean())

    priors = {"theta": ("gamma", 2.0, 0.0, 2.0)}

    @staticmethod
    def prior():
        return numpyro.sample("theta", dist.Gamma(2.0, 0.5))

    @staticmethod
    def draw(key, theta):
        return jax.random.exponential(key, (15,), jnp.result_type(theta, float)) / theta

    @staticmethod
    def summarise(x):
        return jnp.log(jnp.mean(x))[None]

    @staticmethod
    def from_noise(z, theta):
        return -jnp.log1p(-jax.scipy.stats.norm.cdf(z)) / theta

    def score(self, samples, weights=None):
        samples = np.asarray(samples["theta"], np.float64)
        if samples.ndim == 0:
            return abs(samples - self.exact.mean()) / self.exact.std()
        quantiles = self.exact.ppf((np.arange(20_000) + 0.5) / 20_000)
        return scipy.stats.wasserstein_distance(samples, quantiles, weights) / self.exact.std()


class Blowfly:
    name, engines_without = "blowfly", ("PosteriorBootstrap",)

    def __init__(self, seed):
        with open(SERIES) as file:
            rows = [line.split(",") for line in file if not line.startswith("#")]
        self.raw = np.array([float(row[rows[0].index("count")]) for row in rows[1:]]) / 1000.0
        self.statistics, self.key = blowfly.OBSERVED, jax.random.fold_in(jax.random.key(72), seed)
        self.denominators = nmse.stored_denominators()

    priors = {f"t{i}": ("norm", m, s) for i, (m, s) in enumerate(zip(blowfly.PRIOR_MEAN, blowfly.PRIOR_SD))}

    @staticmethod
    def prior():
        return numpyro.sample("theta", dist.Normal(blowfly.PRIOR_MEAN, blowfly.PRIOR_SD).to_event(1))

    @staticmethod
    def draw(key, theta):
        return blowfly.blowfly(key, theta) / 1000.0

    @staticmethod
    def summarise(x):
        return blowfly.statistics(1000.0 * x)

    def score(self, samples, weights=None):
        theta = np.asarray(samples["theta"], np.float64)
        mean = theta if theta.ndim == 1 else np.average(theta, axis=0, weights=weights)
        return 100 * nmse.nmse_at(self.key, mean, self.denominators)


class GAndK:
    name, engines_without = "g-and-k", ()

    def __init__(self, seed):
        self.raw = gk_data(np.random.default_rng([seed, 73]), 0.0)
        self.statistics = np.asarray(self.summarise(jnp.asarray(self.raw)), np.float64)

    priors = {name: ("uniform", 0.0, 10.0) for name in "abgk"}

    @staticmethod
    def prior():
        return numpyro.sample("theta", dist.Uniform(jnp.zeros(4), 10.0).to_event(1))

    @staticmethod
    def from_noise(z, theta):
        a, b, g, k = theta
        return a + b * (1.0 + 0.8 * jnp.tanh(0.5 * g * z)) * (1.0 + z**2) ** k * z

    @classmethod
    def draw(cls, key, theta):
        return cls.from_noise(jax.random.normal(key, (2048,), jnp.result_type(theta, float)), theta)

    @staticmethod
    def summarise(x):
        return jnp.quantile(x, QUANTILES)

    def score(self, samples, weights=None):
        theta = np.atleast_2d(np.array(samples["theta"], np.float64))
        theta[:, 3] = np.log(np.maximum(theta[:, 3], 1e-6))
        mean = np.average(upright(theta), axis=0, weights=weights)
        return float(np.mean((mean - GK_TRUTH) ** 2) / 1.0767)


PROBLEMS = {problem.name: problem for problem in (ExponentialGamma, Blowfly, GAndK)}


def statistics_of(cls):
    """A simulator of statistics: one function for each problem, so that JAX knows it again."""
    return lambda key, theta: cls.summarise(cls.draw(key, theta))


STATISTICS_OF = {cls: statistics_of(cls) for cls in PROBLEMS.values()}


def models(problem):
    def on_statistics(x=None):
        numpyro.sample("x", kme.Simulator(STATISTICS_OF[type(problem)], problem.prior()), obs=x)

    def on_data(x=None):
        numpyro.sample("x", kme.Simulator(problem.draw, problem.prior()), obs=x)

    return on_statistics, on_data


def mmd_of(problem):
    """The MMD to the observed data: by all pairs, or by features where there are many."""
    kernel = Gaussian(median_heuristic(problem.raw[:, None]))
    return kme.Quadratic(kernel) if len(problem.raw) < 1000 else kme.Fourier.draw(jax.random.key(7), kernel, 1, 300)


def wasserstein(a, b):
    return jnp.mean(jnp.abs(jnp.sort(a) - jnp.sort(b)))


def engines(problem, budget, banks):
    """`{name: (engine, observation, seconds of its simulations)}`, those that share simulations on the same ones."""
    statistics, data = models(problem)
    on_statistics, on_data = (dict(simulations=bank, progress_bar=False) for bank, _ in banks)
    kept = max(0.02, 20 / budget)
    made = {
        "KELFI, residual form": kme.KELFI(statistics, **on_statistics),
        "KernelABC": kme.KernelABC(statistics, **on_statistics),
        "KernelBayes": kme.KernelBayes(statistics, **on_statistics),
        "DistributionRegressionABC": kme.DistributionRegressionABC(statistics, **on_statistics),
        "RejectionABC, statistics": kme.RejectionABC(statistics, quantile=kept, **on_statistics),
    }
    made = {name: (engine, problem.statistics, banks[0][1]) for name, engine in made.items()}
    recursive = kme.KernelRecursiveABC(statistics, max(20, budget // 10), num_iterations=10)
    made["KernelRecursiveABC (point)"] = recursive, problem.statistics, 0.0
    without = {
        "RejectionABC, Wasserstein": kme.RejectionABC(data, discrepancy=wasserstein, quantile=kept, **on_data),
        "RejectionABC, MMD": kme.RejectionABC(data, discrepancy=mmd_of(problem), quantile=kept, **on_data),
        "K2ABC": kme.K2ABC(data, estimator=mmd_of(problem), **on_data),
    }
    return made | {name: (engine, problem.raw, banks[1][1]) for name, engine in without.items()}


def simulations(problem, budget, key):
    """Statistics and data sets, each with its seconds."""
    found = []
    for model, y in zip(models(problem), (problem.statistics, problem.raw)):
        begun = time.process_time()
        bank = kme.simulate(key, kme.Problem.read(model, x=y), budget, progress_bar=False)
        found.append((bank, time.process_time() - begun))
    return found


def bootstrap(problem):
    simulator = kme.FromNoise(problem.from_noise, dist.Normal(0.0, 1.0))

    def model(x):
        theta = problem.prior()
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return kme.PosteriorBootstrap(model, loss=kme.MMD(), num_samples=500)


def result(engine):
    """Weighted simulations where they may be resampled, otherwise draws; points for engines of points."""
    if isinstance(engine, kme.KernelRecursiveABC):
        return engine.estimate(), None
    if hasattr(engine, "get_weights"):
        found = engine.get_weights()
        if (found["weight"] >= 0).all() or found["theta"].ndim > 1:
            return found, found["weight"]
    return engine.get_samples(), None


def smc(problem, budget, distance, seed):
    """The last population of SMC-ABC within the budget, and how many simulations it took."""
    import pyabc

    logging.getLogger("ABC").setLevel(logging.ERROR)
    np.random.seed(seed)  # noqa: NPY002 (pyabc draws from it)
    draw = jax.jit(problem.draw)
    keys = iter(range(10**9))
    names = list(problem.priors)

    def simulate(parameters):
        theta = np.array([parameters[name] for name in names])
        key = jax.random.fold_in(jax.random.key(seed), next(keys))
        return {"x": np.asarray(draw(key, jnp.asarray(theta if len(theta) > 1 else theta[0])), np.float64)}

    compared = jax.jit(wasserstein) if distance == "Wasserstein" else jax.jit(lambda a, b: mmd(a[:, None], b[:, None]))
    mmd = mmd_of(problem)
    prior = pyabc.Distribution(**{name: pyabc.RV(*spec) for name, spec in problem.priors.items()})
    abc = pyabc.ABCSMC(
        simulate,
        prior,
        lambda x, y: float(compared(x["x"], y["x"])),
        population_size=max(30, budget // 15),
        sampler=pyabc.sampler.SingleCoreSampler(),
    )
    abc.new("sqlite://", {"x": problem.raw})
    history = abc.run(minimum_epsilon=-1.0, max_total_nr_simulations=budget, max_nr_populations=30)
    counts = history.get_all_populations()
    used = counts[counts.t >= -1].samples.cumsum()
    last = int(counts.t[used <= 1.05 * budget].max())
    frame, weights = history.get_distribution(m=0, t=max(last, 0))
    theta = frame[names].to_numpy()
    return (
        {"theta": theta if len(names) > 1 else theta[:, 0]},
        np.asarray(weights),
        int(used[counts.t == max(last, 0)].iloc[0]),
    )


def run(rows, name, repeats, peers):
    for seed in range(repeats):
        problem = PROBLEMS[name](seed)
        for budget in BUDGETS:
            banks = simulations(problem, budget, jax.random.fold_in(jax.random.key(74), 1000 * seed + budget))
            for label, (engine, y, seconds) in engines(problem, budget, banks).items():
                if rows.has(problem=name, seed=seed, budget=budget, engine=label):
                    continue
                key = jax.random.fold_in(jax.random.key(76), 1000 * seed + budget)
                find = lambda engine=engine, key=key, y=y: (engine.run(key, x=y), *result(engine))[1:]  # noqa: E731
                keep(rows, problem, seed, budget, label, find, seconds)
            for distance in ("Wasserstein", "MMD") if peers else ():
                label = f"SMC-ABC (pyabc), {distance}"
                if not rows.has(problem=name, seed=seed, budget=budget, engine=label):
                    keep(
                        rows,
                        problem,
                        seed,
                        budget,
                        label,
                        lambda d=distance, p=problem, b=budget, s=seed: smc(p, b, d, s),
                    )
        if "PosteriorBootstrap" not in problem.engines_without and not rows.has(
            problem=name, seed=seed, engine="PosteriorBootstrap"
        ):
            engine, key = bootstrap(problem), jax.random.fold_in(jax.random.key(75), seed)
            keep(
                rows,
                problem,
                seed,
                None,
                "PosteriorBootstrap",
                lambda e=engine, k=key, p=problem: (e.run(k, x=p.raw), e.get_samples(), None)[1:],
            )
        print(name, seed, flush=True)


def keep(rows, problem, seed, budget, label, find, before=0.0):
    begun = time.process_time() - before
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples, weights, *used = find()
        found = {"score": problem.score(samples, weights)}
        if used:
            found["used"] = used[0]
    except (RuntimeError, ValueError, np.linalg.LinAlgError) as error:
        found = {"refused": f"{type(error).__name__}: {error}"[:150]}
    rows.add(problem=problem.name, seed=seed, budget=budget, engine=label, seconds=time.process_time() - begun, **found)
    print(rows.rows[-1], flush=True)


UNITS = {"exponential-gamma": "W1, posterior sd", "blowfly": "NMSE, %", "g-and-k": "NMSE"}


def write(rows):
    sections = []
    for name in PROBLEMS:
        order = list(dict.fromkeys(r["engine"] for r in rows if r["problem"] == name))
        lines = []
        for label in order:
            line = [label]
            for budget in (*BUDGETS,) if label != "PosteriorBootstrap" else (None,):
                chosen = [r for r in rows if (r["problem"], r["engine"], r["budget"]) == (name, label, budget)]
                scores = np.array([r["score"] for r in chosen if "score" in r])
                refused = len(chosen) - len(scores)
                used = [r["used"] for r in chosen if "used" in r]
                cell = f"{scores.mean():.3g} ({scores.std() / np.sqrt(len(scores)):.2g})" if len(scores) else "-"
                cell += f", {np.mean(used):.0f} simulations" if used else ""
                line += [
                    cell + (f", {refused} of {len(chosen)} refused" if refused else ""),
                    np.median(scores) if len(scores) else "",
                ]
                line += [min(r["seconds"] for r in chosen) if chosen else ""]
            lines.append(line + [""] * (1 + 3 * len(BUDGETS) - len(line)))
        if lines:
            runs = len({r["seed"] for r in rows if r["problem"] == name})
            header = ["engine"]
            for budget in BUDGETS:
                header += [f"mean (s.e.), {budget}", "median", "least seconds"]
            sections.append((f"{name}: {UNITS[name]}, {runs} repeats", report.table(header, lines)))
    report.save("all_engines", "Every engine at equal simulation budgets", sections, {"rows": rows.rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=tuple(PROBLEMS), default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--series", default=None, help="CSV with a column `count`, for blowfly")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--runs", default=None)
    options = parser.parse_args()
    SERIES = options.series
    kept_rows = report.Rows(options.runs)
    if options.problem:
        run(kept_rows, options.problem, options.repeats, not options.without_peers)
    write(kept_rows)
