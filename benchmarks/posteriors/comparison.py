"""Log Bayes factors of pairs of simulators, and probabilities of models, beside exact ones.

    python -m benchmarks comparison [--pairs NAME ...] [--keys 10] [--rounds 1]

Each key learns both models from 1,000 simulations at prior draws, and compares them on 10 data sets, half of each model
at prior draws; so many keys do so by rounds of 1,000 for each data set, as `KELFI` does by default. Exact evidence is
in closed form, by quadrature, for g-and-k by importance sampling, and for the maps by subset simulation, for two keys
at most. Beside it, where it is installed, pyABC's model choice on two data sets of each pair at ten times the
simulations: SMC, distances of sorted draws or of statistics, scaled by their spread. Takes two hours.
"""

import importlib
import itertools
import logging
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy
from scipy.special import gammaln, log_softmax, logsumexp
from scipy.stats import multivariate_normal

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.simulators import g_and_k

SETS, EVERY, DEAREST = 10, 5, 2


class Model(NamedTuple):
    """Priors, the simulator of one call, and the log evidence of data."""

    priors: dict[str, Any]
    call: Any
    evidence: Any


class Pair(NamedTuple):
    """Two models, and how many calls along a plate make a data set; 0 for one event of statistics."""

    models: dict[str, Model]
    draws: int


N = dist.Normal(0.0, 1.0)
U = np.linspace(-8.0, 8.0, 400)


def on_grid(log_likelihood, *sds):
    """The log integral of a likelihood of independent normal parameters with these standard deviations, by a grid."""
    grids = np.meshgrid(*(U[:: 4 if len(sds) > 1 else 1] for _ in sds), indexing="ij")
    log_p = sum(-0.5 * u**2 for u in grids)
    values = log_likelihood(*(sd * u[..., None] for sd, u in zip(sds, grids))) + log_p
    return float(logsumexp(values) - logsumexp(log_p))


def normal(sd):
    """Draws about a mean, of a known standard deviation."""

    def evidence(x):
        return multivariate_normal(np.zeros(len(x)), sd**2 * np.eye(len(x)) + 4.0).logpdf(x)

    return Model({"mean": dist.Normal(0.0, 2.0)}, lambda key, mean: mean + sd * jax.random.normal(key), evidence)


def exponential_evidence(x):
    return on_grid(lambda t: np.sum(t - x * np.exp(t), axis=-1), 1.0)


def log_normal_evidence(x):
    log_x = np.log(x)

    def log_likelihood(mean, log_sd):
        square = np.square((log_x - mean) / np.exp(log_sd))
        return np.sum(-0.5 * square - log_sd - log_x - 0.5 * np.log(2 * np.pi), axis=-1)

    return on_grid(log_likelihood, 1.0, 0.5)


EXPONENTIAL = Model({"t": N}, lambda key, t: jax.random.exponential(key) / jnp.exp(t), exponential_evidence)
LOG_NORMAL = Model(
    {"mean": N, "log_sd": dist.Normal(0.0, 0.5)},
    lambda key, mean, log_sd: jnp.exp(mean + jnp.exp(log_sd) * jax.random.normal(key)),
    log_normal_evidence,
)
TIMES = np.linspace(-1.0, 1.0, 30)
DESIGN = np.stack([np.ones(30), TIMES], axis=1)
ESTIMATES = np.linalg.pinv(DESIGN)


def regression(priors):
    """Least-squares estimates of 30 values; the slope is 0 where it has no prior."""
    number = len(priors)

    def call(key, *given):
        y = jnp.asarray(DESIGN[:, :number]) @ jnp.stack(given) + jax.random.normal(key, (30,))
        return jnp.asarray(ESTIMATES) @ y

    cov = ESTIMATES @ ESTIMATES.T + np.diag([4.0, 1.0][:number] + [0.0] * (2 - number))
    return Model(priors, call, multivariate_normal(np.zeros(2), cov).logpdf)


def quantile_evidence(free):
    """The evidence of g-and-k, with or without the weight of tails: importance sampling from a Student distribution
    with the moments of the posterior, by importance sampling from the prior."""
    sds = np.array([1.0, 0.5, 0.7, 0.5][: 4 if free else 3])
    z = jnp.sinh(jnp.linspace(-4.0, 4.0, 1001))

    def log_likelihood(u, x):
        a, log_b, g, k = [*(sds * u), *([] if free else [-jnp.inf])]
        curve = g_and_k.from_normal(z, a, jnp.exp(log_b), g, jnp.exp(k - 1.0))
        log_slope = jnp.log(jnp.maximum(jnp.gradient(curve, z), 1e-12))
        at = jnp.interp(x, curve, z)
        return jnp.sum(-0.5 * at**2 - jnp.interp(at, z, log_slope) - 0.5 * jnp.log(2 * jnp.pi))

    each = jax.jit(lambda u, x: jax.lax.map(lambda one: log_likelihood(one, x), u, batch_size=500))

    def evidence(x):
        u = np.random.default_rng(0).normal(size=(50_000, len(sds)))
        p = np.exp(log_softmax(np.asarray(each(u, x), np.float64)))
        mean = p @ u
        cov = 1.5 * ((u - mean).T * p) @ (u - mean) + 0.01 * np.eye(len(sds))
        proposal = scipy.stats.multivariate_t(mean, cov, df=5, seed=0)
        u = proposal.rvs(20_000)
        log_p = np.asarray(each(u, x), np.float64) + scipy.stats.norm.logpdf(u).sum(axis=1)
        return float(logsumexp(log_p - proposal.logpdf(u)) - np.log(len(u)))

    return evidence


def quantiles(free):
    priors = {"a": N, "log_b": dist.Normal(0.0, 0.5), "g": dist.Normal(0.0, 0.7), "log_k": dist.Normal(-1.0, 0.5)}
    priors = priors if free else {name: priors[name] for name in ("a", "log_b", "g")}

    def call(key, a, log_b, g, log_k=-jnp.inf):
        return g_and_k.g_and_k(key, a, jnp.exp(log_b), g, jnp.exp(log_k))

    return Model(priors, call, quantile_evidence(free))


def population(power):
    """Four statistics of the log of a population that grows by `exp(r (1 - N^power))`, with errors, over 100 steps."""

    def of_normals(u):
        log_r, log_sd, noise, errors = *(PRIOR[:, 0] + PRIOR[:, 1] * u[:2]), u[2:152], u[152:]

        def step(n, e):
            n = n * jnp.exp(jnp.exp(log_r) * (1.0 - n**power) + jnp.exp(log_sd) * e)
            return n, n

        y = jnp.log(jax.lax.scan(step, 0.5, noise)[1][50:] + 0.01) + 0.2 * errors
        centred = y - y.mean()
        lag = jnp.mean(centred[1:] * centred[:-1]) / jnp.mean(centred**2)
        return jnp.stack([y.mean(), jnp.log(y.std()), lag, jnp.median(y) - y.mean()])

    def call(key, *given):
        u = (jnp.stack(given) - PRIOR[:, 0]) / PRIOR[:, 1]
        return of_normals(jnp.concatenate([u, jax.random.normal(key, (250,))]))

    priors = {name: dist.Normal(*law) for name, law in zip(("log_r", "log_sd"), PRIOR.tolist())}
    return Model(priors, call, lambda x: rare(of_normals, 252, jnp.asarray(x)))


PRIOR = np.array([[0.6, 0.4], [-1.5, 0.5]])


def rare(function, dims, x, number=2000, moves=20, radius=0.05):
    """The log density at `x` of a function of standard normal numbers: the probability of a small ball, by subset
    simulation. Levels halve what is left; half of the moves keep all but the last hundred numbers (errors of
    measurement). Radii are in standard deviations of outputs."""
    scale = jax.vmap(function)(jax.random.normal(jax.random.key(0), (1000, dims))).std(axis=0)
    away = jax.vmap(lambda u: jnp.linalg.norm((function(u) - x) / scale))

    @jax.jit
    def within(key, u, distances, limit, width):
        key, own = jax.random.split(key)
        kept = jax.random.categorical(own, jnp.where(distances <= limit, 0.0, -jnp.inf), shape=(number,))

        def move(state, key):
            u, distances, width = state
            new_key, width_key, which_key = jax.random.split(key, 3)
            step = jnp.minimum(width * jnp.exp(jax.random.normal(width_key, (number, 1))), 1.0)
            every = jax.random.bernoulli(which_key, 0.5, (number, 1)) | (jnp.arange(dims) >= dims - 100)
            new = jnp.where(every, jnp.sqrt(1.0 - step**2) * u + step * jax.random.normal(new_key, u.shape), u)
            further = away(new)
            ok = further <= limit
            width = jnp.clip(width * jnp.exp(ok.mean() - 0.25), 0.01, 1.0)
            return (jnp.where(ok[:, None], new, u), jnp.where(ok, further, distances), width), None

        return jax.lax.scan(move, (u[kept], distances[kept], width), jax.random.split(key, moves))[0]

    key, own = jax.random.split(jax.random.key(1))
    u = jax.random.normal(own, (number, dims))
    distances, width, log_p = away(u), 0.5, 0.0
    for own in jax.random.split(key, 60):
        limit = jnp.maximum(jnp.median(distances), radius)
        log_p += float(jnp.log(jnp.mean(distances <= limit)))
        if limit == radius:
            break
        u, distances, width = within(own, u, distances, limit, width)
    size = len(x)
    log_ball = 0.5 * size * np.log(np.pi) - gammaln(0.5 * size + 1.0) + size * np.log(radius)
    return float(log_p - log_ball - jnp.sum(jnp.log(scale)))


SLOPE = {"intercept": dist.Normal(0.0, 2.0), "slope": N}
PAIRS = {
    "normal or wider": Pair({"sd 1": normal(1.0), "sd 1.5": normal(1.5)}, 20),
    "exponential or log-normal": Pair({"exponential": EXPONENTIAL, "log-normal": LOG_NORMAL}, 30),
    "regression without or with a slope": Pair(
        {"level": regression({"intercept": SLOPE["intercept"]}), "slope": regression(SLOPE)}, 0
    ),
    "g-and-k without or with kurtosis": Pair({"g": quantiles(False), "g and k": quantiles(True)}, 50),
    "Ricker maps": Pair({"Ricker": population(1.0), "theta-Ricker": population(2.0)}, 0),
}


def written(pair, name):
    """The NumPyro model of one of a pair."""
    model = pair.models[name]

    def numpyro_model(x=None):
        params = [numpyro.sample(name, prior) for name, prior in model.priors.items()]
        if not pair.draws:
            return numpyro.sample("x", kme.Simulator(model.call, *params), obs=x)
        with numpyro.plate("draws", pair.draws):
            return numpyro.sample("x", kme.Simulator(model.call, *params), obs=x)

    return numpyro_model


def data(pair, key):
    """Data sets, half of each model, `(SETS, ...)`."""
    each = [
        numpyro.infer.Predictive(written(pair, name), num_samples=SETS // 2)(jax.random.key(500 + 10 * key + k))["x"]
        for k, name in enumerate(pair.models)
    ]
    return np.concatenate(each).astype(np.float64)


def measured(name, key, simulated="at prior draws"):
    """Stated log Bayes factors of the first model over the second, stated errors, and seconds."""
    pair, begun, rows = PAIRS[name], time.perf_counter(), []
    sets, once = data(pair, key), simulated == "at prior draws"
    settings = dict(progress_bar=False) | ({"num_rounds": 1} if once else {})
    engines = {model: kme.KELFI(written(pair, model), 1000, **settings) for model in pair.models}
    for j, x in enumerate(sets):
        for engine in engines.values() if j == 0 or not once else ():
            engine.run(jax.random.key(key), x=x)
        own = {m: engine.condition(jax.random.key(j), x=x) for m, engine in engines.items()} if once else engines
        rows.append(kme.compare(own).log_bayes_factor(*pair.models))
    stated, errors = zip(*rows)
    return {"stated": stated, "errors": errors, "seconds": time.perf_counter() - begun}


def exact(of, key):
    """Exact log Bayes factors of the data sets of a key."""
    models = PAIRS[of].models.values()
    return {"exact": [float(np.subtract(*(model.evidence(x) for model in models))) for x in data(PAIRS[of], key)]}


def by_pyabc(peer, name, budget=20_000, each=200):
    """Log Bayes factors of the first model over the second by pyABC's SMC, and seconds."""
    import pyabc

    logging.getLogger("ABC").setLevel(logging.ERROR)
    np.random.seed(0)  # noqa: NPY002 (pyabc draws from it)
    pair, seeds = PAIRS[name], itertools.count()

    def simulator(model):
        def one(seed, *given):
            key = jax.random.key(seed)
            if not pair.draws:
                return model.call(key, *given)
            return jnp.sort(jax.vmap(lambda k: model.call(k, *given))(jax.random.split(key, pair.draws)))

        fast = jax.jit(one)
        return lambda parameters: {"x": np.asarray(fast(next(seeds), *(parameters[p] for p in model.priors)))}

    def prior(model):
        own = {p: pyabc.RV("norm", float(law.loc), float(law.scale)) for p, law in model.priors.items()}
        return pyabc.Distribution(**own)

    models, found, begun = list(pair.models.values()), [], time.perf_counter()
    simulators, priors = [simulator(model) for model in models], [prior(model) for model in models]
    for x in data(pair, 0)[::EVERY]:
        abc = pyabc.ABCSMC(
            simulators,
            priors,
            pyabc.AdaptivePNormDistance(p=2),
            population_size=each,
            sampler=pyabc.sampler.SingleCoreSampler(),
        )
        abc.new("sqlite://", {"x": np.sort(x) if pair.draws else x})
        history = abc.run(max_total_nr_simulations=budget, max_nr_populations=30, min_acceptance_rate=0.02)
        shares = history.get_model_probabilities().iloc[-1]
        found.append(float(np.log(shares.get(0, 0.0) + 1e-9) - np.log(shares.get(1, 0.0) + 1e-9)))
    return {"found": found, "seconds": time.perf_counter() - begun}


def beside_pyabc(rows, pairs):
    """Errors of the probability of the first model: ours on the same data, and those of pyABC."""
    lines = []
    for name in pairs:
        (own,), (other,) = rows.of(name=name, simulated="in rounds", key=0), rows.of(name=name, peer="pyABC")
        values = rows.of(of=name, key=0)[0]["exact"][::EVERY], own["stated"][::EVERY], other["found"]
        true, ours, theirs = map(scipy.special.expit, values)
        errors = [float(np.mean(np.abs(p - true))) for p in (ours, theirs)]
        gone = f"{np.mean(np.abs(other['found']) > 15.0):.0%}"
        lines.append([name, *errors, gone, own["seconds"] / SETS, other["seconds"] * EVERY / SETS])
    header = ["pair", "mean error of the probability, KELFI in rounds", "pyABC, ten times the simulations"]
    return report.table([*header, "a model died out", "seconds a data set", "seconds of pyABC"], lines)


def line(name, own, true):
    """What the table says of one pair."""
    stated, errors = (np.concatenate([row[part] for row in own]) for part in ("stated", "errors"))
    true = np.concatenate([row["exact"] for row in true])
    off, usual = stated - true, np.abs(true) < 10.0
    rms = [float(np.sqrt(np.mean(np.square(off[some])))) for some in (usual, np.ones_like(usual))]
    covered = f"{np.mean(np.abs(off) < 1.645 * errors):.0%}"
    p = 1.0 / (1.0 + np.exp(-np.clip(stated, -700, 700)))
    first = np.tile(np.repeat([1.0, 0.0], SETS // 2), len(own))
    spread = np.sum(np.square(1 - 2 * p) * p * (1 - p))
    z = float(np.sum((first - p) * (1 - 2 * p)) / np.sqrt(max(spread, 1e-12)))
    right, seconds = f"{np.mean((p > 0.5) == first):.0%}", float(np.median([row["seconds"] for row in own]))
    return [name, len(stated), *rms, f"{np.mean(~usual):.0%}", covered, right, z, seconds]


def main(rows, pairs=(), keys=10, rounds=1):
    pairs = tuple(pairs) or tuple(PAIRS)
    header = ["pair", "data sets", "rms error where the exact is within 10 nats", "rms error of all", "beyond 10 nats"]
    header += ["within 90% interval", "right model more probable", "Spiegelhalter's z", f"seconds for {SETS}"]
    sections = []
    for simulated, number in (("at prior draws", keys), ("in rounds", rounds)):
        if not number:
            continue
        lines = []
        for name in pairs:
            known = range(min(number, DEAREST) if name == "Ricker maps" else number)
            true = rows.fill(exact, of=[name], key=known)
            found = rows.fill(measured, name=[name], key=known, simulated=[simulated])
            lines.append(line(name, found, true))
        sections.append((f"Simulated {simulated}", report.table(header, lines)))
    if importlib.util.find_spec("pyabc") and rounds:
        rows.fill(by_pyabc, peer=["pyABC"], name=pairs)
        sections.append((f"Beside pyABC, {SETS // EVERY} data sets", beside_pyabc(rows, pairs)))
    return "Comparison of models", sections
