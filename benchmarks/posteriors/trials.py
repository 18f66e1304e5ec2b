"""KELFI on trials, choices, counts and reaction times, beside NUTS on the exact density.

    python -m benchmarks trials [--cases NAME ...] [--keys 4]

Each key has a data set of its own, drawn from the prior. Errors of means are in exact posterior standard deviations;
"drift diffusion" uses 100,000 trials in all, and "negative binomial or zero-inflated" compares the evidence of two
models with 1,000 data sets of each. "Eight people" have a likelihood of 100,000 trials, a quarter of prior draws and
the others of where a chain of NUTS went before, three times; the next begins at its mean. Psychometric curves are
learnt from prior draws of three parameters and of a contrast; posteriors under them are weights of exact draws. The
last tables are of a learnt drift diffusion. Takes an hour.
"""

import time
import timeit
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.infer import MCMC, NUTS
from scipy.special import softmax

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.samplers.importance import StandardErrors
from numpyro_kme.simulators import drift_diffusion


class Case(NamedTuple):
    """Priors of the parameters, the exact distribution of a trial, how many there are, and simulations."""

    priors: dict[str, Any]
    law: Any
    trials: int
    simulations: int = 300


class Law(NamedTuple):
    """The distribution of a trial: `sample(key)` and `log_prob(value)`."""

    sample: Any
    log_prob: Any


def first_passage(*params):
    """Trials of a drift diffusion."""
    return Law(lambda key: drift_diffusion.trial(key, *params), lambda x: drift_diffusion.log_density(x, *params))


def zero_inflated(logit, mean):
    """A number that is 0 with a probability, and log-normal elsewhere."""
    positive = dist.LogNormal(mean, 0.5)

    def draw(key):
        zero_key, own_key = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(zero_key, jax.nn.sigmoid(logit)), 0.0, positive.sample(own_key))

    def log_prob(value):
        log_positive = jax.nn.log_sigmoid(-logit) + positive.log_prob(jnp.where(value > 0.0, value, 1.0))
        return jnp.where(value > 0.0, log_positive, jax.nn.log_sigmoid(logit))

    return Law(draw, log_prob)


def race(first, second, deadline=1.5, delay=0.2):
    """The first of two exponential clocks with a delay, `[which, time]`; an omission, `[2, -1]`, after the deadline."""
    rates = jnp.exp(jnp.stack([first, second]))

    def draw(key):
        times = delay + jax.random.exponential(key, (2,)) / rates
        trial = jnp.stack([jnp.argmin(times).astype(times.dtype), times.min()])
        return jnp.where(times.min() < deadline, trial, jnp.array([2.0, -1.0]))

    def log_prob(value):
        choice, total = value[..., 0].astype(int), rates.sum()
        answered = jnp.log(rates[jnp.minimum(choice, 1)]) - total * (value[..., 1] - delay)
        return jnp.where(choice == 2, -total * (deadline - delay), answered)

    return Law(draw, log_prob)


NORMAL = dist.Normal(0.0, 1.0)
DIFFUSION = {
    "drift": dist.Normal(0.0, 1.5),
    "boundary": dist.LogNormal(0.3, 0.3),
    "start": dist.Uniform(0.3, 0.7),
    "non_decision": dist.Uniform(0.1, 0.4),
}
KINDS = dist.Normal(0.0, 1.5).expand([3]).to_event(1)
CASES = {
    "drift diffusion": Case(DIFFUSION, first_passage, 150, 667),
    "yes or no": Case({"t": dist.Normal(0.0, 1.5)}, lambda t: dist.Bernoulli(logits=t), 50, 2000),
    "four kinds": Case({"t": KINDS}, lambda t: dist.Categorical(logits=jnp.append(0.0, t)), 50, 5000),
    "race with omissions": Case({"a": NORMAL, "b": NORMAL}, race, 25, 2500),
    "ordinal": Case({"t": NORMAL}, lambda t: dist.OrderedLogistic(2.0 * t, jnp.array([-1.0, 0.0, 1.5])), 50),
    "zero-inflated log-normal": Case({"p": NORMAL, "mean": NORMAL}, zero_inflated, 100),
}
for number in (20, 100, 500):
    CASES |= {
        f"binomial, {number}": Case({"t": NORMAL}, lambda t: dist.Binomial(20, logits=t), number),
        f"Poisson, {number}": Case({"t": dist.Normal(1.0, 0.7)}, lambda t: dist.Poisson(jnp.exp(t)), number),
        f"geometric, {number}": Case({"t": NORMAL}, lambda t: dist.Geometric(logits=t), number),
    }
COUNTS = {
    "negative binomial": lambda m, r: dist.NegativeBinomial2(jnp.exp(m), jnp.exp(r)),
    "zero-inflated": lambda m, r: dist.ZeroInflatedPoisson(jax.nn.sigmoid(r), rate=jnp.exp(m)),
}
COUNTED = {name: Case({"m": dist.Normal(1.0, 0.5), "r": NORMAL}, law, 120, 1000) for name, law in COUNTS.items()}


OBSERVER = {"threshold": NORMAL, "log_slope": dist.Normal(1.0, 0.5), "lapse": dist.Beta(2.0, 20.0)}
CONTRASTS = np.linspace(-2.0, 2.0, 7)[:, None]


def learnt(case, exact=False):
    """The model with a simulator, or with the exact density."""
    dims = tuple(len(prior.event_shape) for prior in case.priors.values())

    def call(key, *given):
        return case.law(*given).sample(key)

    def model(x=None):
        params = [numpyro.sample(name, prior) for name, prior in case.priors.items()]
        if exact:
            return numpyro.factor("x", jnp.sum(case.law(*params).log_prob(x)))
        with numpyro.plate("trials", case.trials):
            return numpyro.sample("x", kme.Simulator(call, *params, event_dims=dims), obs=x)

    return model


def data(case, key):
    own, *keys = jax.random.split(jax.random.key(1000 + key), 1 + len(case.priors))
    params = [prior.sample(k) for prior, k in zip(case.priors.values(), keys)]
    return np.asarray(jax.vmap(lambda k: case.law(*params).sample(k))(jax.random.split(own, case.trials)))


def columns(samples, case):
    return np.concatenate([np.asarray(samples[name]).reshape(len(samples[name]), -1) for name in case.priors], axis=1)


def run(case, key, x):
    engine = kme.KELFI(learnt(case), case.simulations, progress_bar=False)
    return engine, report.timed(engine.run, jax.random.key(key), x=x)[2]


def measured(name, key):
    """Errors of means and ratios of standard deviations of one run, what it stated, and seconds."""
    case = CASES[name]
    x = data(case, key)
    engine, seconds = run(case, key, x)
    start = jax.tree.map(lambda v: np.median(v, axis=0), engine.get_samples())
    true = columns(chain(learnt(case, exact=True), jax.random.key(key), x, start, 500, 4000), case)
    found = columns(engine.get_samples(), case)
    stated = engine.posterior.errors.of_moments(found.astype(np.float64))[0]
    sd = true.std(axis=0)
    error = (found.mean(axis=0) - true.mean(axis=0)) / sd
    return {"mean": error, "ratio": found.std(axis=0) / sd, "stated": stated / sd, "seconds": seconds}


def evidence(of, key):
    """The error of the log Bayes factor of two models of counts, which are exact by sums over prior draws."""
    case = list(COUNTED.values())[key % 2]
    x, logs, sums, seconds = data(case, key), [], [], 0.0
    for other in COUNTED.values():
        engine, own = run(other, key, x)
        seconds += own
        logs.append(engine.posterior.log_marginal_likelihood())
        draws = {name: p.sample(jax.random.key(i), (100_000,)) for i, (name, p) in enumerate(other.priors.items())}
        total = lambda params, law=other.law: jnp.sum(law(*params).log_prob(x))  # noqa: E731
        sums.append(float(logsumexp(jax.lax.map(total, tuple(draws.values()), batch_size=2000))))
    return {"error": logs[0] - logs[1] - (sums[0] - sums[1]), "exact": sums[0] - sums[1], "seconds": seconds}


def people():
    """Parameters of eight people, `(8,)` each, who share the starting point."""
    drift = numpyro.sample("drift", NORMAL) + numpyro.sample("spread", dist.HalfNormal(0.7)) * each("v", NORMAL)
    boundary = jnp.exp(numpyro.sample("log_boundary", dist.Normal(0.3, 0.3)) + 0.2 * each("a", NORMAL))
    start = jnp.full(8, numpyro.sample("start", dist.Uniform(0.3, 0.7)))
    return numpyro.deterministic("params", jnp.stack([drift, boundary, start, each("t", dist.Uniform(0.1, 0.4))]))


def each(name, prior):
    with numpyro.plate(f"{name} of people", 8):
        return numpyro.sample(name, prior)


def hierarchy(x=None):
    params = people()[..., None]
    with numpyro.plate("trials", 150, dim=-1), numpyro.plate("people", 8, dim=-2):
        numpyro.sample("x", kme.Simulator(drift_diffusion.trial, *params, event_dims=0), obs=x)


def exact_hierarchy(x):
    params = people()[..., None]
    numpyro.factor("x", jnp.sum(jnp.maximum(drift_diffusion.log_density(x, *params), -1e4)))


def prior_draws(rng, m):
    """Parameters of drift diffusions, `(m, 4)`."""
    first = rng.normal(0.0, 1.5, m), rng.lognormal(0.3, 0.35, m)
    return np.stack([*first, rng.uniform(0.3, 0.7, m), rng.uniform(0.1, 0.4, m)], axis=1)


def trials_at(key, params):
    """150 trials `(m, 150, 2)` of each of the parameters `(m, 4)`."""
    own = jax.random.split(key, (len(params), 150))
    return np.asarray(jax.vmap(jax.vmap(lambda k, p: drift_diffusion.trial(k, *p), (0, None)))(own, params))


def chain(model, key, x, start, warmup=400, number=600):
    """Samples of NUTS."""
    init = numpyro.infer.init_to_value(values=start)
    mcmc = MCMC(NUTS(model, init_strategy=init), num_warmup=warmup, num_samples=number, progress_bar=False)
    mcmc.run(key, x=x)
    return jax.tree.map(np.asarray, mcmc.get_samples())


START = {"t": jnp.full(8, 0.15), "drift": 0.5, "start": 0.5, "spread": 0.5}


def hierarchical(of, key):
    """Errors of means of what eight people share, of their own parameters, and CPU seconds."""
    jax.clear_caches()  # programs of hundreds of chains exceed the memory maps that Linux gives a process
    rng, m = np.random.default_rng(key), 167
    first_key, key, own_key = jax.random.split(jax.random.key(key), 3)
    x = trials_at(key, numpyro.infer.Predictive(people, num_samples=1)(own_key)["params"][0].T)
    begun, params, trials, known, start = time.process_time(), prior_draws(rng, m), [], None, START
    for own in jax.random.split(first_key, 4):
        trials.append(trials_at(own, params[-m:]))
        how = {"coordinates": known and known.coordinates, "standard_errors": False}
        known = kme.fit_likelihood(np.repeat(params, 150, axis=0), np.concatenate(trials).reshape(-1, 2), **how)
        found = chain(kme.handlers.surrogate(hierarchy, {"x": known}), own, x, start)
        start = {name: v.mean(axis=0) for name, v in found.items() if name != "params"}
        visited = found["params"].swapaxes(1, 2).reshape(-1, 4)
        params = np.concatenate([params, visited[rng.choice(len(visited), m, replace=False)]])
    seconds, true = time.process_time() - begun, chain(exact_hierarchy, key, x, START)
    error = {n: (found[n].mean(axis=0) - v.mean(axis=0)) / v.std(axis=0) for n, v in true.items()}
    return {"shared": [float(error[n]) for n in SHARED], "own": error["params"][[0, 1, 3]], "seconds": seconds}


SHARED = ("drift", "spread", "log_boundary", "start")


def curve(threshold, log_slope, lapse, contrast):
    """The probability that the right one of two alternatives is chosen."""
    return 0.5 + 0.5 * (1.0 - lapse) * jax.nn.sigmoid(jnp.exp(log_slope) * (contrast - threshold))


def draws(priors, key, number):
    """Draws of several priors, one after another, `(p, number)`."""
    keys = jax.random.split(key, len(priors))
    return np.stack([np.asarray(prior.sample(k, (number,))) for prior, k in zip(priors, keys)])


def steep(answers, key):
    """Errors of means, and stated ones, of four observers with 48 answers to each contrast, by one table of answers."""
    table_key, answer_key, *keys = jax.random.split(jax.random.key(key), 6)
    table = draws([*OBSERVER.values(), dist.Uniform(-2.2, 2.2)], table_key, answers)
    x = np.asarray(jax.random.bernoulli(answer_key, curve(*table)), float)
    known, _, seconds = report.timed(kme.fit_likelihood, table.T, x)
    found = []
    for seed, own in enumerate(keys):
        params, rng = draws(OBSERVER.values(), own, 200_000), np.random.default_rng([key, seed])
        right = rng.binomial(48, np.asarray(curve(*params[:, 0], CONTRASTS)))
        total = lambda yes, no: np.sum(right * yes + (48 - right) * no, axis=0, dtype=float)  # noqa: B023, E731
        p = np.asarray(curve(*params, CONTRASTS), float)
        exact = total(np.log(p), np.log1p(-p))
        exact = np.exp(exact - logsumexp(exact))
        params = params[:, rng.choice(len(exact), 2000, p=exact / exact.sum())]
        p = np.asarray(curve(*params, CONTRASTS), float)
        calls = [one(*np.broadcast_arrays(*params, CONTRASTS)) for one in (known, *known.others)]
        logs = np.array([total(*(np.asarray(one.log_prob(y), float) for y in (1.0, 0.0))) for one in calls])
        weights = softmax(logs[0] - total(np.log(p), np.log1p(-p)))
        some = rng.choice(2000, 2000, p=weights)
        errors = StandardErrors.of((logs[1:] - logs[0])[:, some], known.shares, 2000.0, params[:, some].T)
        mean, sd = params.mean(axis=1), params.std(axis=1)
        found.append([(params @ weights - mean) / sd, errors.of_moments(params[:, some].T)[0] / sd])
    return {"mean": [one for one, _ in found], "stated": [one for _, one in found], "seconds": seconds}


def gradient(simulations, trials):
    """Milliseconds of a log density of so many trials and its gradient, and microseconds of a step of NUTS that has
    run before; learnt from data sets of 150, or exact (0)."""
    jax.clear_caches()
    case = CASES["drift diffusion"]._replace(trials=trials)
    model, x = learnt(case, exact=not simulations), data(case, 0)
    if simulations:
        params = prior_draws(np.random.default_rng(0), simulations)
        table = trials_at(jax.random.key(0), params).reshape(-1, 2)
        known = kme.fit_likelihood(np.repeat(params, 150, axis=0), table, standard_errors=False)
        model = kme.handlers.surrogate(model, {"x": known})
    at = jax.jit(jax.value_and_grad(lambda u: numpyro.infer.util.log_density(model, (), {"x": x}, u)[0]))
    u = {"drift": 0.5, "boundary": 1.3, "start": 0.5, "non_decision": 0.15}
    jax.block_until_ready(at(u))
    times = timeit.repeat(lambda: jax.block_until_ready(at(u)), number=20, repeat=20)
    init = numpyro.infer.init_to_value(values=u)
    mcmc, steps = MCMC(NUTS(model, init_strategy=init), num_warmup=300, num_samples=500, progress_bar=False), []
    mcmc.run(jax.random.key(0), x=x)
    for key in jax.random.split(jax.random.key(1), 4):
        mcmc.post_warmup_state = mcmc.last_state
        begun = time.perf_counter()
        mcmc.run(key, x=x, extra_fields=("num_steps",))
        jax.block_until_ready(mcmc.last_state)
        steps.append(1e6 * (time.perf_counter() - begun) / int(mcmc.get_extra_fields()["num_steps"].sum()))
    return {"milliseconds": 50.0 * float(np.median(times)), "step": float(np.median(steps[1:]))}


def main(rows, cases=(), keys=4):
    cases = tuple(cases) or tuple(CASES)
    rows.fill(measured, name=cases, key=range(keys))
    lines = []
    for case in cases:
        own = rows.of(name=case)
        mean, ratio, stated = (np.abs(np.array([row[part] for row in own])) for part in ("mean", "ratio", "stated"))
        error, shares = mean.max(axis=1), np.mean(mean < 2.0 * stated)
        row = [float(np.median(error)), float(error.max()), f"{ratio.min():.2f} to {ratio.max():.2f}", f"{shares:.0%}"]
        lines.append([case, *row, float(np.median([row["seconds"] for row in own]))])
    header = [
        "trials",
        "largest error of a mean, sd",
        "worst run",
        "sd ratios",
        "within twice the stated",
        "CPU seconds",
    ]
    sections = [(f"{keys} data sets each", report.table(header, lines))]
    if cases == tuple(CASES):
        found = rows.fill(evidence, of=["negative binomial or zero-inflated"], key=range(20))
        errors, exact, seconds = (np.array([row[part] for row in found]) for part in ("error", "exact", "seconds"))
        near = errors[np.abs(exact) < 10.0]
        rms = [float(np.sqrt(np.mean(np.square(some)))) for some in (near, errors)]
        row = [float(np.median(np.abs(errors))), rms[0], len(near), rms[1], float(np.median(seconds))]
        header = ["median error of the log Bayes factor", "rms error where the exact is within 10 nats", "of these"]
        table = report.table([*header, "rms error of all", "CPU seconds for both"], [row])
        sections.append(("Negative binomial or zero-inflated Poisson, 120 counts, 20 data sets", table))
        found = rows.fill(hierarchical, of=["eight people"], key=range(keys))
        lines = [[i, *row["shared"], float(np.max(np.abs(row["own"]))), row["seconds"]] for i, row in enumerate(found)]
        header = ["data set", *SHARED, "largest of a person's", "CPU seconds"]
        sections.append(("Eight people of 150 trials of the same, errors of means, sd", report.table(header, lines)))
        lines = []
        for answers in (6000, 20_000):
            own = rows.fill(steep, answers=[answers], key=range(keys))
            error, stated = (np.reshape([row[part] for row in own], (-1, 3)) for part in ("mean", "stated"))
            rms = [float(np.sqrt(np.mean(np.square(column)))) for column in error.T]
            inside, ratio = np.mean(np.abs(error) < 2.0 * stated), np.median(stated / np.abs(error))
            seconds = float(np.median([row["seconds"] for row in own]))
            lines.append([answers, *rms, float(np.abs(error).max()), f"{inside:.0%}", float(ratio), seconds])
        header = ["answers", *(f"rms error of {name}, sd" for name in OBSERVER), "largest"]
        header += ["within twice the stated", "median of stated over true", "CPU seconds"]
        title = f"Psychometric curves of four observers of 336 answers, by each of {keys} tables from wide priors"
        sections.append((title, report.table(header, lines)))
        sizes, trials = (10, 67, 667, 0), (15, 150, 1500)
        rows.fill(gradient, simulations=sizes, trials=trials)
        header = ["simulated trials", *(f"{n} observed" for n in trials)]
        for part, title in (
            ("milliseconds", "Milliseconds of a log density and its gradient"),
            ("step", "Microseconds of a step of NUTS, later runs"),
        ):
            lines = [[f"{150 * m:,}" if m else "exact density", *rows.column(part, simulations=m)] for m in sizes]
            sections.append((title, report.table(header, lines)))
    return "Trials", sections
