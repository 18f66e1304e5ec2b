"""Every engine of the package at equal simulation budgets on three problems, beside SMC-ABC by pyabc.

    python -m benchmarks all_engines --series path/to/blowfly.csv --rows rows.jsonl  # all three; `pip install pyabc`
    python -m benchmarks all_engines --problems exponential-gamma g-and-k --rows rows.jsonl
    python -m benchmarks all_engines --problems --rows rows.jsonl  # the table alone

Exponential-gamma: Wasserstein-1 of 1,000 samples to the exact posterior in its standard deviations (of point estimates:
their distance from the posterior mean in the same units), a new observation each time. Blowfly: NMSE of `blowfly.py` at
the posterior mean, in %. g-and-k: 2,048 clean draws, uniform priors on (0, 10)^4, NMSE of the posterior mean on (a, b,
g, log k). Statistics: the log mean; the ten; 15 quantiles. Data sets without statistics: 15 draws; 180 counts in
thousands; the 2,048 draws, whose MMD is by 300 Fourier features. The posterior bootstrap differentiates the simulator
and has no budget; it answers another question (no prior, robust) and is shown with it.

The synthetic likelihood and BOLFI start from a fifth of the budget, simulations of the prior that the other engines
have too: the first from the nearest of them, the second with all as evidence. A pseudo-marginal chain spends the rest
on as many steps, half of them warmup, as there are sets of 2 (d + 5) simulations of d statistics. BOLFI is ELFI's with
its defaults (a virtual environment for it is made at the first call), on the log distance of the statistics, each over
its median absolute deviation; its Gaussian process is refitted every ten simulations at cubic cost, so that it is run
up to 300 simulations only.

Seconds are CPU time of the process with simulations (of BOLFI, of both processes), the least over repeats. They include
what JAX compiles for a new data set, 1 to 3 seconds of most rows and more where engines or chains do (kernel recursive
ABC, the synthetic likelihood). Takes an hour for three repeats.
"""

import itertools
import json
import logging
import subprocess
import time
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
from numpyro.infer import MCMC, init_to_value

import numpyro_kme as kme
from benchmarks.helpers import nmse, report
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.simulators import blowfly, exponential_gamma, g_and_k

GK_TRUTH = np.array([*g_and_k.TRUTH[:3], np.log(g_and_k.TRUTH[3])])


def upright(u):
    """Of the two equal parameters `(a, b, g, log k)` and `(a, -b, -g, log k)` of g-and-k the one with `b > 0`."""
    u = np.array(u)
    u[..., 1:3] *= np.where(u[..., 1:2] < 0, -1.0, 1.0)
    return u


QUANTILES = jnp.linspace(0.03, 0.97, 15)
BUDGETS = (300, 1000, 3000)
ELFI_LIMIT = 300
ORDER = (
    "KELFI, residual form",
    "KernelABC",
    "KernelBayes",
    "DistributionRegressionABC",
    "KernelRecursiveABC (point)",
    "SyntheticLikelihood, pseudo-marginal",
    "RejectionABC, statistics",
    "RejectionABC, Wasserstein",
    "RejectionABC, MMD",
    "K2ABC",
    "SMC-ABC (pyabc), Wasserstein",
    "SMC-ABC (pyabc), MMD",
    "BOLFI (ELFI), statistics",
    "PosteriorBootstrap",
)


class ExponentialGamma:
    name, engines_without = "exponential-gamma", {}

    def __init__(self, seed, series):
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
    name = "blowfly"
    engines_without = {
        "PosteriorBootstrap": "not run: it reweights draws, and the counts are one series; taken for draws, one count "
        "of a simulated series against each, the search for the first minimum alone (64 nodes, 16 starts) took over 4 "
        "minutes"
    }

    def __init__(self, seed, series):
        self.raw = nmse.series(series)
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
    name, engines_without = "g-and-k", {}

    def __init__(self, seed, series):
        self.raw = g_and_k.contaminated(jax.random.fold_in(jax.random.key(seed), 73), 0.0)
        self.statistics = np.asarray(self.summarise(jnp.asarray(self.raw)), np.float64)

    priors = {name: ("uniform", 0.0, 10.0) for name in "abgk"}

    @staticmethod
    def prior():
        return numpyro.sample("theta", dist.Uniform(jnp.zeros(4), 10.0).to_event(1))

    @staticmethod
    def from_noise(z, theta):
        return g_and_k.from_normal(z, *theta)

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
    return (
        kme.embeddings.Quadratic(kernel)
        if len(problem.raw) < 1000
        else kme.embeddings.Fourier.draw(jax.random.key(7), kernel, 1, 300)
    )


def wasserstein(a, b):
    return jnp.mean(jnp.abs(jnp.sort(a) - jnp.sort(b)))


def engines(problem, budget, pairs):
    """`{name: (engine, observation, seconds of its simulations)}`, those that share simulations on the same ones."""
    statistics, data = models(problem)
    on_statistics, on_data = (dict(simulations=simulated, progress_bar=False) for simulated, _ in pairs)
    kept = max(0.02, 20 / budget)
    made = {
        "KELFI, residual form": kme.KELFI(statistics, **on_statistics),
        "KernelABC": kme.KernelABC(statistics, **on_statistics),
        "KernelBayes": kme.KernelBayes(statistics, **on_statistics),
        "DistributionRegressionABC": kme.DistributionRegressionABC(statistics, **on_statistics),
        "RejectionABC, statistics": kme.RejectionABC(statistics, quantile=kept, **on_statistics),
    }
    made = {name: (engine, problem.statistics, pairs[0][1]) for name, engine in made.items()}
    recursive = kme.KernelRecursiveABC(statistics, max(20, budget // 10), num_iterations=10)
    made["KernelRecursiveABC (point)"] = recursive, problem.statistics, 0.0
    without = {
        "RejectionABC, Wasserstein": kme.RejectionABC(data, discrepancy=wasserstein, quantile=kept, **on_data),
        "RejectionABC, MMD": kme.RejectionABC(data, discrepancy=mmd_of(problem), quantile=kept, **on_data),
        "K2ABC": kme.K2ABC(data, estimator=mmd_of(problem), **on_data),
    }
    return made | {name: (engine, problem.raw, pairs[1][1]) for name, engine in without.items()}


def simulations(problem, budget, key):
    """Statistics and data sets, each with its seconds."""
    found = []
    for model, y in zip(models(problem), (problem.statistics, problem.raw)):
        begun = time.process_time()
        simulated = kme.simulate(key, kme.Problem.read(model, x=y), budget, progress_bar=False)
        found.append((simulated, time.process_time() - begun))
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
        return engine.mode(), None
    if hasattr(engine, "get_weights"):
        found = engine.posterior.get_weights()
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
        {"used": int(used[counts.t == max(last, 0)].iloc[0])},
    )


def pilot(simulated):
    """The first fifth of the simulations: parameters `(n, p)`, statistics `(n, d)`, and the scale of each."""
    both = (np.asarray(values, np.float64) for values in (simulated.latents["theta"], simulated.x["x"]))
    theta, x = (values.reshape(len(values), -1)[: len(values) // 5] for values in both)
    return theta, x, scipy.stats.median_abs_deviation(x, axis=0, scale="normal")


def synthetic(problem, budget, simulated, key):
    """Draws of a pseudo-marginal chain on the Gaussian synthetic likelihood, and the simulations that it took."""
    theta, x, scale = pilot(simulated)
    nearest = theta[np.argmin(np.sum(((x - problem.statistics) / scale) ** 2, axis=1))]
    count = 2 * (len(scale) + 5)
    steps = (budget - len(theta)) // count - 2  # the kernel looks at its first point twice

    def model(x=None):
        fn = kme.SyntheticLikelihood(
            STATISTICS_OF[type(problem)], problem.prior(), num_simulations=count, rng_key=kme.mcmc.simulation_key("x")
        )
        numpyro.sample("x", fn, obs=x)

    start = init_to_value(values={"theta": jnp.asarray(nearest if len(nearest) > 1 else nearest[0])})
    kernel = kme.PseudoMarginal(model, init_strategy=start)
    chain = MCMC(kernel, num_warmup=steps // 2, num_samples=steps - steps // 2, progress_bar=False)
    chain.run(key, jnp.asarray(problem.statistics))
    return chain.get_samples(), None, {"used": len(theta) + (steps + 2) * count}


def bolfi(problem, budget, simulated, seed):
    """Draws of BOLFI by ELFI in a process of its own, which asks this one for simulations."""
    command = [report.environment("elfi", "elfi==0.8.8"), report.__file__.replace("report", "elfi_worker")]
    theta, x, scale = (values.tolist() for values in pilot(simulated))
    task = {"priors": problem.priors, "observed": problem.statistics.tolist(), "theta": theta, "x": x, "scale": scale}
    simulate, made = jax.jit(STATISTICS_OF[type(problem)]), 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    ) as worker:
        print(json.dumps(task | {"budget": budget, "seed": seed}), file=worker.stdin)
        for line in worker.stdout:
            asked = json.loads(line)
            if "samples" in asked:
                break
            at = jnp.asarray(asked["theta"] if len(asked["theta"]) > 1 else asked["theta"][0])
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(77), seed), made)
            print(json.dumps(np.asarray(simulate(key, at), float).tolist()), file=worker.stdin)
            made += 1
        else:
            raise RuntimeError("ELFI ended without a posterior.")
    samples = np.array(asked["samples"]).T
    return (
        {"theta": samples if samples.shape[1] > 1 else samples[:, 0]},
        None,
        {"used": len(theta) + made, "seconds": asked["seconds"]},
    )


def by_engine(engine, key, y):
    """Run an engine of the package; its posterior."""
    engine.run(key, x=y)
    return result(engine)


def finders(problem, seed, budget, peers):
    """`{name: (function that finds a posterior, seconds of the simulations it is given)}`."""
    number = 1000 * seed + budget
    pairs = simulations(problem, budget, jax.random.fold_in(jax.random.key(74), number))
    key = jax.random.fold_in(jax.random.key(76), number)
    simulated, seconds = pairs[0]
    found = {
        label: (partial(by_engine, engine, key, y), before)
        for label, (engine, y, before) in engines(problem, budget, pairs).items()
    }
    found["SyntheticLikelihood, pseudo-marginal"] = partial(synthetic, problem, budget, simulated, key), seconds / 5
    if peers:
        for distance in ("Wasserstein", "MMD"):
            found[f"SMC-ABC (pyabc), {distance}"] = partial(smc, problem, budget, distance, seed), 0.0
    if peers and budget <= ELFI_LIMIT:
        found["BOLFI (ELFI), statistics"] = partial(bolfi, problem, budget, simulated, seed), seconds / 5
    return found


def run(options, name, seed):
    """All engines on one data set of a problem; what rows hold already is left out."""
    rows, only, problem = options.rows, options.engine, PROBLEMS[name](seed, options.series)
    for budget in options.budgets:
        for label, (find, before) in finders(problem, seed, budget, not options.without_peers).items():
            if only in label and not rows.has(problem=name, seed=seed, budget=budget, engine=label):
                keep(rows, problem, seed, budget, label, find, before)
    label = "PosteriorBootstrap"
    if only in label and label not in problem.engines_without and not rows.has(problem=name, seed=seed, engine=label):
        key = jax.random.fold_in(jax.random.key(75), seed)
        keep(rows, problem, seed, None, label, partial(by_engine, bootstrap(problem), key, problem.raw))


def keep(rows, problem, seed, budget, label, find, before=0.0):
    begun = time.process_time() - before
    try:
        with warnings.catch_warnings(action="ignore"):
            samples, weights, *more = find()
        seconds = time.process_time() - begun
        found = {"score": problem.score(samples, weights), **(more[0] if more else {})}
    except (RuntimeError, ValueError, np.linalg.LinAlgError) as error:
        seconds, found = time.process_time() - begun, {"refused": f"{type(error).__name__}: {error}"[:150]}
    seconds += found.pop("seconds", 0.0)
    rows.add(problem=problem.name, seed=seed, budget=budget, engine=label, seconds=seconds, **found)


UNITS = {"exponential-gamma": "W1, posterior sd", "blowfly": "NMSE, %", "g-and-k": "NMSE"}


def cells(chosen, budget, runs):
    """Mean with standard error, median, and least seconds of some rows, of which there may be fewer than `runs`."""
    if not chosen:
        return ["not run", "", ""]
    scores = np.array([row["score"] for row in chosen if "score" in row])
    text = "-"
    if len(scores):
        error = f" ({scores.std(ddof=1) / np.sqrt(len(scores)):.2g})" if len(scores) > 1 else ""
        text = f"{scores.mean():.3g}{error}"
    used = np.mean([row.get("used", budget or 0) for row in chosen])
    if budget and abs(used - budget) > 0.05 * budget:
        text += f", {used:.0f} simulations"
    if len(chosen) < runs:
        text += f", runs: {len(chosen)}"
    if len(scores) < len(chosen):
        text += f", {len(chosen) - len(scores)} of {len(chosen)} refused"
    return [text, np.median(scores) if len(scores) else "", min(row["seconds"] for row in chosen)]


def write(rows):
    """The table of each problem."""
    sections = []
    for name, problem in PROBLEMS.items():
        found = [row for row in rows if row["problem"] == name]
        budgets = [budget for budget in BUDGETS if any(row["budget"] == budget for row in found)]
        runs = [len({row["seed"] for row in found if row["budget"] == budget}) for budget in (*budgets, None)]
        lines = []
        for label in sorted({row["engine"] for row in found}, key=ORDER.index):
            chosen = [[row for row in found if (row["engine"], row["budget"]) == (label, b)] for b in (*budgets, None)]
            line = [cell for of, *more in zip(chosen, budgets, runs) for cell in cells(of, *more)]
            if chosen[-1]:
                line = [*cells(chosen[-1], None, runs[-1]), *["no budget", "", ""] * len(budgets)][: 3 * len(budgets)]
            lines.append([label, *line])
        lines += [[label, "see below", *[""] * (3 * len(budgets) - 1)] for label in problem.engines_without]
        if lines:
            header = ["engine"]
            for budget, number in zip(budgets, runs):
                header += [f"{budget} simulations, {number} runs: mean (s.e.)", "median", "least s"]
            notes = [f"\n\n{label}: {reason}." for label, reason in problem.engines_without.items()]
            sections.append((f"{name}: {UNITS[name]}", report.table(header, lines) + "".join(notes)))
    report.save("all_engines", "Every engine at equal simulation budgets", sections, {"rows": rows.rows})


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--problems", choices=tuple(PROBLEMS), nargs="*", default=tuple(PROBLEMS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budgets", type=int, nargs="+", choices=BUDGETS, default=BUDGETS)
    parser.add_argument("--engine", default="", help="only those with this in their name")
    parser.add_argument("--series", help="CSV with a column `count`, for blowfly")
    parser.add_argument("--without-peers", action="store_true", help="neither pyabc nor ELFI")
    options = parser.parse_args()
    for seed, name in itertools.product(range(options.repeats), options.problems):
        run(options, name, seed)
    write(options.rows)
