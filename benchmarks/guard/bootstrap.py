"""Rows of the guard: the posterior bootstrap."""

import resource
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.optimize import minimize
from scipy.stats import norm, poisson

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.problems import along_a_plate, normal_draw
from numpyro_kme.kernels import Gaussian
from numpyro_kme.simulators import g_and_k, toggle_switch

SCALE = 2.0
"""Length scale of the kernels on data, and with covariates half of it on them."""


def run(model, loss, seed, data, num_samples=100, covariates=None, **settings):
    """The engine after a run, and its warnings."""
    settings |= dict(num_samples=num_samples, covariates=covariates and next(iter(covariates)), progress_bar=False)
    engine = kme.PosteriorBootstrap(model, loss, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(seed), x=jnp.asarray(data), **covariates or {})
    return engine, [one for one in caught if one.category is UserWarning]


def draws(engine, *names):
    return np.stack([engine.get_samples()[name] for name in names], axis=1)


def weights(engine):
    """Data weights of the replicates, `(B, n)`."""
    return engine.posterior.replicates.reweightings.weights


def minimisers(loss, w, *starts):
    """Minimisers `(B, p)` of `loss(u, weights)` by BFGS, the best from each row of several starts."""
    found = []
    for b, own in enumerate(w):
        tries = [minimize(lambda u, own=own: 1e3 * loss(u, own), start[b], method="BFGS") for start in starts]
        found.append(min(tries, key=lambda one: one.fun).x)
    return np.array(found)


def paired(ours, exact):
    """Root mean square difference of paired replicates in posterior standard deviations, the worst parameter's."""
    return float(np.sqrt(np.mean(np.square(ours - exact), axis=0) / exact.var(axis=0)).max())


def told(errors, limit):
    """A row of errors in standard deviations."""
    return f"{' / '.join(f'{error:.2g}' for error in errors)} sd", f"{limit} sd", max(errors) <= limit


ANY, POSITIVE = dist.Normal(0.0, 5.0), dist.LogNormal(0.0, 1.0)
normal_model = along_a_plate(normal_draw, loc=ANY, scale=POSITIVE)


def normal_loss(x, proportion):
    """The squared MMD of weighted data and a normal distribution of mean and log scale `u`, in closed form."""

    def loss(u, w):
        s2 = np.exp(2.0 * u[1])
        wide, own = SCALE**2 + s2, SCALE / np.sqrt(SCALE**2 + 2.0 * s2)
        cross = SCALE / np.sqrt(wide) * w @ np.exp(-0.5 * np.square(x - u[0]) / wide)
        c = min(cross / own, 1.0) if proportion else 1.0
        return c * (c * own - 2.0 * cross)

    return loss


def normal(n, limit, options):
    """Clean data, and a tenth of outliers with the proportion at one and fitted, against exact minimisers."""
    errors = []
    for seed in range(9 if options.full else 3):
        rng, outliers, proportion = np.random.default_rng(seed), seed % 3 > 0, seed % 3 > 1
        x = np.where(rng.random(n) < 0.1 * outliers, 30.0, rng.normal(1.0, 2.0, n))
        engine, _ = run(normal_model, kme.MMD(Gaussian(SCALE), fit_proportion=proportion), seed, x)
        ours = draws(engine, "loc", "scale")
        ours[:, 1] = np.log(ours[:, 1])
        start = np.tile([np.median(x), np.log(2.0)], (len(ours), 1))
        errors.append(paired(ours, minimisers(normal_loss(x, proportion), weights(engine), ours, start)))
    return told(errors, limit)


def g_and_k_draw(key, theta):
    return g_and_k.g_and_k(key, *theta[:3], jnp.exp(theta[3]))


PRIOR = dist.Uniform(np.array([0.0, 0.0, 0.0, -5.0]), np.array([10.0, 10.0, 10.0, 3.0])).to_event(1)
g_and_k_model = along_a_plate(g_and_k_draw, theta=PRIOR)


def g_and_k_row(outliers, options):
    """The published score of the posterior mean, with a fitted proportion."""
    scores, converged, sets = [], [], 40 if options.full else 10
    truth = np.array([*g_and_k.TRUTH[:3], np.log(g_and_k.TRUTH[3])])
    for seed in range(sets):
        x = g_and_k.contaminated(jax.random.key(seed), outliers)
        loss = kme.MMD(Gaussian(g_and_k.LENGTH_SCALE), fit_proportion=True)
        engine, _ = run(g_and_k_model, loss, seed, x, num_samples=200)
        scores.append(np.mean(np.square(engine.get_samples()["theta"].mean(axis=0) - truth)) / truth.mean())
        converged.append(engine.get_extra_fields()["converged"].mean())
    text = f"{np.mean(scores):.4f} (se {np.std(scores) / np.sqrt(sets):.4f}), {min(converged):.0%} converged"
    return text, "0.0075, all converged", np.mean(scores) <= 0.0075 and min(converged) == 1.0


def exponential(key, p, a, b):
    first, second = jax.random.split(key)
    return jnp.where(jax.random.uniform(first) < p, a, a + b) * jax.random.exponential(second)


exponentials_model = along_a_plate(exponential, p=dist.Uniform(0.0, 1.0), a=POSITIVE, b=POSITIVE)


def exponentials(options):
    """A mixture with a jump and a tenth of outliers: means by two keys, or a warning."""
    apart, warned, ok = [], [], []
    for seed in range(9 if options.full else 3):
        rng = np.random.default_rng(seed)
        x = np.where(rng.random(400) < 0.4, 0.5, 3.5) * rng.exponential(size=400)
        x = np.where(rng.random(400) < 0.1, 60.0, x)
        runs = [run(exponentials_model, None, key, x) for key in (seed, 100 + seed)]
        first, second = (draws(engine, "p", "a", "b") for engine, _ in runs)
        apart.append(np.max(np.abs(first.mean(axis=0) - second.mean(axis=0)) / first.std(axis=0)))
        warned.append(any(found for _, found in runs))
        ok.append(apart[-1] <= 0.25 or warned[-1])
    text = " / ".join(f"{move:.2g}{' told' * mark}" for move, mark in zip(apart, warned))
    return f"{text} sd", "0.25 sd, or told", all(ok)


def easy(options):
    """How often a run of the normal model on clean data warns."""
    number = 400 if options.full else 100
    warned = 0
    for seed in range(number):
        x = np.random.default_rng(seed).normal(1.0, 2.0, 100)
        warned += bool(run(normal_model, None, seed, x)[1])
    return f"{warned} of {number}", "5 %", warned <= 0.05 * number


def count(key, theta, t):
    return jax.random.poisson(key, jnp.exp(theta[0] + theta[1] * t))


def counts_model(x, t):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(count, theta, t, event_dims=(1, 0)), obs=x)


def fit_counts(seed, n, outliers, num_samples):
    """A Poisson regression: covariates, counts, the engine after its run, and seconds."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(-1.0, 1.0, n)
    x = np.where(rng.random(n) < outliers, 30, rng.poisson(np.exp(1.0 + 0.8 * t)))
    loss = kme.MMD(Gaussian(SCALE), covariate_kernel=Gaussian(0.5 * SCALE))
    (engine, _), seconds, _ = report.timed(run, counts_model, loss, seed, x, num_samples, {"t": t})
    return t, x, engine, seconds


def counts_loss(t, x):
    """The squared MMD of joint distributions by sums over counts."""
    k = np.arange(80)
    gram = np.exp(-0.5 * np.square((k[:, None] - k) / SCALE))
    near = np.exp(-0.5 * np.square((t[:, None] - t) / (0.5 * SCALE)))

    def loss(u, w):
        p = poisson.pmf(k, np.exp(np.clip(u[0] + u[1] * t, -5.0, 4.0))[:, None])
        smooth = p @ gram
        return w @ (near * (smooth @ p.T - 2.0 * smooth[:, x])) @ w

    return loss


def small_counts():
    """Error against exact minimisers, and the seconds of a first run."""
    t, x, engine, seconds = fit_counts(0, 120, 0.08, 50)
    ours = engine.get_samples()["theta"]
    start = np.tile([1.0, 0.8], (len(ours), 1))
    return paired(ours, minimisers(counts_loss(t, x), weights(engine), ours, start)), seconds


def large_counts():
    """Distance from the truth in standard deviations, seconds and GB."""
    engine, seconds = fit_counts(0, 2000, 0.0, 500)[2:]
    theta = engine.get_samples()["theta"]
    off = np.max(np.abs(theta.mean(axis=0) - [1.0, 0.8]) / theta.std(axis=0))
    return float(off), seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def counts(options):
    error, seconds = report.in_a_process(small_counts, timeout=60)
    return f"{error:.2g} sd, {seconds:.1f} s", "0.1 sd, 10 s", error <= 0.1 and seconds <= 10


def many_counts(options):
    off, seconds, memory = report.in_a_process(large_counts, timeout=120)
    text = f"{seconds:.1f} s, {memory:.2g} GB ({off:.2g} sd from the truth)"
    return text, "60 s, 2 GB (4 sd)", seconds <= 60 and memory <= 2 and off <= 4


def toggle(options):
    """The published score with the prior as an anchor, proportion at one."""
    kernel, truth, scores = Gaussian(toggle_switch.LENGTH_SCALES[0]), jnp.asarray(toggle_switch.TRUTH), []
    for scale in toggle_switch.LENGTH_SCALES[1:]:
        kernel = kernel + Gaussian(scale)
    cells = jax.jit(jax.vmap(toggle_switch.toggle_switch, (0, None)))
    for seed in range(5 if options.full else 2):
        x = np.array(cells(jax.random.split(jax.random.key(seed), toggle_switch.CELLS), truth))
        x[:200] += 10.0 * np.random.default_rng(seed).standard_cauchy(200)
        engine, _ = run(toggle_switch.model, kme.MMD(kernel), seed, x, 500, prior_weight=1.0, prior_draws=500)
        mean = engine.get_samples()["theta"].mean(axis=0)
        scores.append(np.mean(np.square(mean - toggle_switch.TRUTH)) / np.mean(toggle_switch.TRUTH))
    return f"{np.mean(scores):.3f} ({len(scores)} sets)", "0.30", np.mean(scores) <= 0.3


location_model = along_a_plate(normal_draw, mean=ANY)


def location_density(x):
    mean = numpyro.sample("mean", ANY)
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def weighted_mean(x, w):
    return w @ x


def weighted_median(x, w):
    """Minimisers of W1 to a unit normal: medians over levels of quantiles of the data less those of the normal."""
    order, levels = np.argsort(x), (np.arange(20_000) + 0.5) / 20_000
    steps = np.cumsum(w[:, order], axis=1)
    rows = [x[order][np.minimum(np.searchsorted(own, levels), len(x) - 1)] for own in steps]
    return np.median(np.array(rows) - norm.ppf(levels), axis=1)


def location(loss, exact, options, model=location_model):
    """A location by another loss, a twentieth of outliers, against exact minimisers."""
    errors = []
    for seed in range(9 if options.full else 3):
        rng = np.random.default_rng(seed)
        x = rng.normal(1.0, 1.0, 200) + 5.0 * (np.arange(200) < 10)
        engine, _ = run(model, loss, seed, x)
        ours, known = engine.get_samples()["mean"], exact(x, weights(engine))
        shift, spread = abs(ours.mean() - known.mean()) / known.std(), abs(ours.std() / known.std() - 1.0)
        errors.append(max(shift, spread))
    return told(errors, 0.1)


ROWS = {
    "normal, n = 400, rms against exact minimisers": partial(normal, 400, 0.005),
    "normal, n = 30, rms against exact minimisers": partial(normal, 30, 0.1),
    "g-and-k, no outliers, NMSE": partial(g_and_k_row, 0.0),
    "g-and-k, 5 % outliers, NMSE": partial(g_and_k_row, 0.05),
    "g-and-k, 10 % outliers, NMSE": partial(g_and_k_row, 0.1),
    "mixture of exponentials, between keys": exponentials,
    "easy runs that warn": easy,
    "Poisson regression, n = 120, rms against exact minimisers": counts,
    "Poisson regression, n = 2,000": many_counts,
    "Wasserstein-2, mean and sd against exact minimisers": partial(location, kme.Wasserstein(2.0), weighted_mean),
    "Wasserstein-1, mean and sd against exact minimisers": partial(location, kme.Wasserstein(1.0), weighted_median),
    "negative log likelihood, mean and sd against exact minimisers": partial(
        location, kme.NegativeLogLikelihood(), weighted_mean, model=location_density
    ),
    "toggle switch, published metric": toggle,
}
