"""Every engine of the package at equal simulation budgets on three problems, beside SMC-ABC by pyabc.

    python -m benchmarks all_engines --series path/to/blowfly.csv --rows rows.jsonl  # all three; `pip install pyabc`
    python -m benchmarks all_engines --problems exponential-gamma g-and-k --rows rows.jsonl

Exponential-gamma: Wasserstein-1 of 1,000 samples to the exact posterior in its standard deviations (of point estimates:
their distance from the posterior mean), a new observation each time. Blowfly: NMSE of `blowfly.py` at the posterior
mean, in %. g-and-k: 2,048 clean draws, uniform priors on (0, 10)^4, NMSE of the posterior mean on (a, b, g, log k).
Statistics: the log mean; the ten; 15 quantiles. Without statistics: 15 draws; 180 counts in thousands; the 2,048 draws,
whose MMD is by 300 Fourier features. The posterior bootstrap has no budget, and answers another question. The synthetic
likelihood starts at the nearest of a fifth of the budget; a pseudo-marginal chain spends the rest on as many steps,
half of them warmup, as there are sets of 2 (d + 5) simulations of d statistics. Seconds are CPU time with simulations
and what JAX compiles for a new data set, the least over repeats. Takes an hour for three repeats.
"""

import itertools
import logging
import time
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
from benchmarks.helpers.metrics import wasserstein
from benchmarks.helpers.problems import Problem, along_a_plate
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.simulators import blowfly, exponential_gamma, g_and_k

GK_TRUTH = np.array([*g_and_k.TRUTH[:3], np.log(g_and_k.TRUTH[3])])
QUANTILES = jnp.linspace(0.03, 0.97, 15)
BOOTSTRAP = "PosteriorBootstrap"


class ExponentialGamma:
    unit, priors = "W1, posterior sd", {"theta": ("gamma", 2.0, 0.0, 2.0)}
    prior = dist.Gamma(2.0, 0.5)

    def __init__(self, seed, series):
        self.raw = np.random.default_rng([seed, 71]).exponential(1 / exponential_gamma.TRUTH, 15)
        self.statistics = np.array([np.log(self.raw.mean())])
        self.exact = exponential_gamma.exact_posterior(self.raw.mean())

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
        return wasserstein(samples, self.exact, weights)


class Blowfly:
    unit, prior = "NMSE, %", dist.Normal(blowfly.PRIOR_MEAN, blowfly.PRIOR_SD).to_event(1)
    priors = {f"t{i}": ("norm", m, s) for i, (m, s) in enumerate(zip(blowfly.PRIOR_MEAN, blowfly.PRIOR_SD))}
    draw = staticmethod(nmse.in_thousands)
    from_noise = None  # the bootstrap reweights draws, and the counts are one series

    def __init__(self, seed, series):
        self.raw = nmse.series(series)
        self.statistics, self.key = blowfly.OBSERVED, jax.random.fold_in(jax.random.key(72), seed)

    @staticmethod
    def summarise(x):
        return blowfly.statistics(1000.0 * x)

    def score(self, samples, weights=None):
        theta = np.asarray(samples["theta"], np.float64)
        mean = theta if theta.ndim == 1 else np.average(theta, axis=0, weights=weights)
        return 100 * nmse.nmse_at(self.key, mean, nmse.stored_denominators())


class GAndK:
    unit, priors = "NMSE", {name: ("uniform", 0.0, 10.0) for name in "abgk"}
    prior = dist.Uniform(np.zeros(4), 10.0).to_event(1)

    def __init__(self, seed, series):
        self.raw = g_and_k.contaminated(jax.random.fold_in(jax.random.key(seed), 73), 0.0)
        self.statistics = np.asarray(self.summarise(jnp.asarray(self.raw)), np.float64)

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
        """Of the two equal parameters `(a, b, g, log k)` and `(a, -b, -g, log k)` the one with `b > 0` counts."""
        theta = np.atleast_2d(np.array(samples["theta"], np.float64))
        theta[:, 3] = np.log(np.maximum(theta[:, 3], 1e-6))
        theta[:, 1:3] *= np.where(theta[:, 1:2] < 0, -1.0, 1.0)
        return float(np.mean((np.average(theta, axis=0, weights=weights) - GK_TRUTH) ** 2) / 1.0767)


PROBLEMS = {"exponential-gamma": ExponentialGamma, "blowfly": Blowfly, "g-and-k": GAndK}


def statistics_of(cls):
    """A simulator of statistics: one function for each problem, so that JAX knows it again."""
    return lambda key, theta: cls.summarise(cls.draw(key, theta))


STATISTICS_OF = {cls: statistics_of(cls) for cls in PROBLEMS.values()}


def mmd_of(problem):
    """The MMD to the observed data: by all pairs, or by features where there are many."""
    kernel = Gaussian(median_heuristic(problem.raw[:, None]))
    if len(problem.raw) < 1000:
        return kme.embeddings.Quadratic(kernel)
    return kme.embeddings.Fourier.draw(jax.random.key(7), kernel, 1, 300)


def compared(a, b):
    """Wasserstein-1 of two samples of one size."""
    return jnp.mean(jnp.abs(jnp.sort(a) - jnp.sort(b)))


def as_sample(theta):
    """A row of parameters as the site takes it: one number alone is no vector."""
    return jnp.asarray(theta if len(theta) > 1 else theta[0])


def by_engine(engine, key, y):
    """Weighted simulations where they may be resampled, otherwise draws; points for engines of points."""
    engine.run(key, x=y)
    if isinstance(engine, kme.KernelRecursiveABC):
        return engine.posterior.mode(), None, {}
    if hasattr(engine, "get_weights"):
        found = engine.posterior.get_weights()
        if (found["weight"] >= 0).all() or found["theta"].ndim > 1:
            return found, found["weight"], {}
    return engine.get_samples(), None, {}


def smc(problem, budget, seed):
    """The last population of SMC-ABC within the budget, and how many simulations it took."""
    import pyabc

    logging.getLogger("ABC").setLevel(logging.ERROR)
    np.random.seed(seed)  # noqa: NPY002 (pyabc draws from it)
    draw, keys, names = jax.jit(problem.draw), itertools.count(), list(problem.priors)

    def simulate(parameters):
        key = jax.random.fold_in(jax.random.key(seed), next(keys))
        return {"x": np.asarray(draw(key, as_sample(np.array([parameters[name] for name in names]))), np.float64)}

    distance = jax.jit(compared)
    abc = pyabc.ABCSMC(
        simulate,
        pyabc.Distribution(**{name: pyabc.RV(*spec) for name, spec in problem.priors.items()}),
        lambda x, y: float(distance(x["x"], y["x"])),
        population_size=max(30, budget // 15),
        sampler=pyabc.sampler.SingleCoreSampler(),
    )
    abc.new("sqlite://", {"x": problem.raw})
    history = abc.run(minimum_epsilon=-1.0, max_total_nr_simulations=budget, max_nr_populations=30)
    counts = history.get_all_populations()
    used = counts[counts.t >= -1].samples.cumsum()
    last = max(int(counts.t[used <= 1.05 * budget].max()), 0)
    frame, weights = history.get_distribution(m=0, t=last)
    theta = frame[names].to_numpy()
    draws = {"theta": theta if len(names) > 1 else theta[:, 0]}
    return draws, np.asarray(weights), {"used": int(used[counts.t == last].iloc[0])}


def synthetic(problem, budget, simulated, key):
    """Draws of a pseudo-marginal chain on the Gaussian synthetic likelihood, and the simulations that it took."""
    both = (np.asarray(values, np.float64) for values in (simulated.latents["theta"], simulated.x["x"]))
    theta, x = (values.reshape(len(values), -1)[: len(values) // 5] for values in both)
    scale = scipy.stats.median_abs_deviation(x, axis=0, scale="normal")
    nearest = theta[np.argmin(np.sum(((x - problem.statistics) / scale) ** 2, axis=1))]
    count = 2 * (len(scale) + 5)
    steps = (budget - len(theta)) // count - 2  # the kernel looks at its first point twice

    def model(x=None):
        settings = dict(num_simulations=count, rng_key=kme.mcmc.simulation_key("x"))
        sampled = numpyro.sample("theta", problem.prior)
        likelihood = kme.SyntheticLikelihood(STATISTICS_OF[type(problem)], sampled, **settings)
        numpyro.sample("x", likelihood, obs=x)

    kernel = kme.PseudoMarginal(model, init_strategy=init_to_value(values={"theta": as_sample(nearest)}))
    chain = MCMC(kernel, num_warmup=steps // 2, num_samples=steps - steps // 2, progress_bar=False)
    chain.run(key, jnp.asarray(problem.statistics))
    return chain.get_samples(), None, {"used": len(theta) + (steps + 2) * count}


def finders(problem, seed, budget, peers):
    """`{name: (function that finds a posterior, seconds of the simulations it is given)}`."""
    key = jax.random.fold_in(jax.random.key(76), 1000 * seed + budget)
    if budget == 0 and problem.from_noise is None:
        return {}
    if budget == 0:
        model = along_a_plate(kme.FromNoise(problem.from_noise, dist.Normal(0.0, 1.0)), theta=problem.prior)
        engine = kme.PosteriorBootstrap(model, loss=kme.MMD(), num_samples=500)
        return {BOOTSTRAP: (partial(by_engine, engine, key, problem.raw), 0.0)}
    simulate_key, kept = jax.random.fold_in(jax.random.key(74), 1000 * seed + budget), max(0.02, 20 / budget)
    by_statistics = {
        "KELFI, residual form": kme.KELFI,
        "KernelABC": kme.KernelABC,
        "KernelBayes": kme.KernelBayes,
        "DistributionRegressionABC": kme.DistributionRegressionABC,
        "RejectionABC, statistics": partial(kme.RejectionABC, quantile=kept),
    }
    by_data = {
        "RejectionABC, Wasserstein": partial(kme.RejectionABC, discrepancy=compared, quantile=kept),
        "RejectionABC, MMD": partial(kme.RejectionABC, discrepancy=mmd_of(problem), quantile=kept),
        "K2ABC": partial(kme.K2ABC, estimator=mmd_of(problem)),
    }
    found = {}
    for simulator, observed, engines in (
        (problem.draw, problem.raw, by_data),
        (STATISTICS_OF[type(problem)], problem.statistics, by_statistics),
    ):
        model = Problem(problem.prior, simulator).model
        read = kme.Problem.read(model, x=observed)
        made, _, before = report.timed(kme.simulate, simulate_key, read, budget, progress_bar=False)
        fitted = {name: engine(model, simulations=made, progress_bar=False) for name, engine in engines.items()}
        found = {name: (partial(by_engine, one, key, observed), before) for name, one in fitted.items()} | found
    recursive = kme.KernelRecursiveABC(model, max(20, budget // 10), num_iterations=10)
    found["KernelRecursiveABC (point)"] = partial(by_engine, recursive, key, problem.statistics), 0.0
    found["SyntheticLikelihood, pseudo-marginal"] = partial(synthetic, problem, budget, made, key), before / 5
    if peers:
        found["SMC-ABC (pyabc), Wasserstein"] = partial(smc, problem, budget, seed), 0.0
    return found


def scored(problem, find, before):
    begun = time.process_time() - before
    try:
        samples, weights, more = find()
        seconds = time.process_time() - begun
        found = {"score": problem.score(samples, weights), **more}
    except (RuntimeError, ValueError, np.linalg.LinAlgError) as error:
        seconds, found = time.process_time() - begun, {"refused": f"{type(error).__name__}: {error}"[:150]}
    return {**found, "seconds": seconds}


def cells(chosen, budget):
    """Mean with standard error, median, and least seconds of some rows."""
    if not chosen:
        return ["not run", "", ""]
    scores = np.array([row["score"] for row in chosen if "score" in row])
    error = f" ({scores.std(ddof=1) / np.sqrt(len(scores)):.2g})" if len(scores) > 1 else ""
    text = f"{scores.mean():.3g}{error}" if len(scores) else "-"
    used = np.mean([row.get("used", budget) for row in chosen])
    if abs(used - budget) > 0.05 * budget:
        text += f", {used:.0f} simulations"
    if len(scores) < len(chosen):
        text += f", {len(chosen) - len(scores)} of {len(chosen)} refused"
    return [text, np.median(scores) if len(scores) else "", min(row["seconds"] for row in chosen)]


def main(rows, problems=tuple(PROBLEMS), repeats=3, budgets=(300, 1000, 3000), series=None, without_peers=False):
    for name, seed, budget in itertools.product(problems, range(repeats), (*budgets, 0)):
        problem = PROBLEMS[name](seed, series)
        for label, (find, before) in finders(problem, seed, budget, not without_peers).items():
            key = dict(problem=[name], seed=[seed], budget=[budget], engine=[label])
            rows.fill(lambda find=find, before=before, known=problem, **_: scored(known, find, before), **key)
    sections = []
    for name in problems:
        labels = dict.fromkeys(row["engine"] for row in rows.of(problem=name) if row["budget"] > 0)
        of = lambda label, budget, name=name: cells(rows.of(problem=name, engine=label, budget=budget), budget)  # noqa: E731
        lines = [[label, *(cell for budget in budgets for cell in of(label, budget))] for label in labels]
        lines.append([f"{BOOTSTRAP}, no budget", *of(BOOTSTRAP, 0), *[""] * (3 * len(budgets) - 3)])
        header = ["engine"]
        for budget in budgets:
            header += [f"{budget} simulations, {repeats} runs: mean (s.e.)", "median", "least s"]
        sections.append((f"{name}: {PROBLEMS[name].unit}", report.table(header, lines)))
    return "Every engine at equal simulation budgets", sections, rows
