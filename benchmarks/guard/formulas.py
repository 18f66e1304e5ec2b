"""Rows of the guard: printed formulas, written out with NumPy in float64; the hierarchical model."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.polynomial.chebyshev import chebvander
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

import numpyro_kme as kme
from benchmarks.helpers.metrics import moments, normalised
from benchmarks.helpers.problems import Problem, along_a_plate, normal_draw
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.published.learning import Hyperparameters

NOISE, SCALE, EPSILON = 0.5, 0.7, 0.01
SEEN = np.array([0.8])
GROUPS, LOADING = 20, np.array([1.0, 0.5])


def gaussian(a, b, scale=SCALE):
    return np.exp(-0.5 * np.square((a[:, None] - b) / scale))


def shifted(key, theta):
    return theta + NOISE * jax.random.normal(key, (1,))


conjugate = Problem(dist.Normal(0.0, 1.0), shifted).model
repeated = along_a_plate(normal_draw, 20, theta=dist.Normal(0.0, 1.0))


def simulated(model, number):
    made = kme.simulate(jax.random.key(0), model, number, progress_bar=False)
    return made, np.asarray(made.latents["theta"], np.float64), np.squeeze(np.asarray(made.x["x"], np.float64))


def weights(engine, x):
    """Weights of the simulations."""
    engine.run(jax.random.key(0), x=x)
    return engine.posterior.get_weights()["weight"]


def apart(found, known):
    """Largest difference, relative to the largest value."""
    return float(np.max(np.abs(np.asarray(found) - known)) / np.max(np.abs(known)))


def kernel_abc():
    made, _, x = simulated(conjugate, 500)
    engine = kme.KernelABC(conjugate, simulations=made, kernel=Gaussian(SCALE), regularisation=EPSILON)
    known = np.linalg.solve(gaussian(x, x) + 500 * EPSILON * np.eye(500), gaussian(x, SEEN)[:, 0])
    return apart(weights(engine, SEEN), known / known.sum())


def kernel_bayes():
    made, theta, x = simulated(conjugate, 500)
    prior = np.random.default_rng(0).normal(size=300)
    kernels = dict(kernel=Gaussian(SCALE), parameter_kernel=Gaussian(SCALE))
    settings = dict(regularisation=EPSILON, delta=EPSILON, prior={"theta": prior})
    engine = kme.KernelBayes(conjugate, simulations=made, **kernels, **settings)
    embedded = gaussian(theta, prior).mean(axis=1)
    mu = np.linalg.solve(gaussian(theta, theta) + 500 * EPSILON * np.eye(500), embedded)
    product, right = mu[:, None] * gaussian(x, x), mu * gaussian(x, SEEN)[:, 0]
    known = product @ np.linalg.solve(product @ product + EPSILON * np.eye(500), right)
    return apart(weights(engine, SEEN), known / known.sum())


def double_sum(x, y):
    """The unbiased squared MMD of two samples of numbers."""
    within = [(gaussian(a, a).sum() - len(a)) / (len(a) * (len(a) - 1)) for a in (x, y)]
    return sum(within) - 2.0 * gaussian(x, y).mean()


def k2_abc():
    made, _, x = simulated(repeated, 400)
    y = 0.5 + np.random.default_rng(0).normal(size=20)
    estimator = kme.embeddings.Quadratic(Gaussian(SCALE))
    engine = kme.K2ABC(repeated, simulations=made, estimator=estimator, epsilon=0.05)
    known = np.exp(-np.array([double_sum(own, y) for own in x]) / 0.05)
    return apart(weights(engine, y), known / known.sum())


def mmd():
    x, y = np.random.default_rng(0).normal([[0.0], [0.3]], size=(2, 500))
    return apart(kme.squared_mmd(Gaussian(SCALE), x[:, None], y[:, None]), double_sum(x, y))


def herding():
    """Squared distance of the embedding reached, relative to that of a greedy loop."""
    points = np.random.default_rng(0).normal(size=300)
    gram, total, greedy = gaussian(points, points), np.zeros(300), []
    mu = gram.mean(axis=1)
    for s in range(50):
        greedy.append(np.argmax(mu - total / (s + 1)))
        total += gram[greedy[-1]]
    found = np.asarray(kme.herd(Gaussian(SCALE), mu, points[:, None], 50))
    reached = [gram[np.ix_(own, own)].mean() - 2.0 * mu[own].mean() + mu.mean() for own in (found, greedy)]
    return abs(reached[0] / reached[1] - 1.0)


def published():
    """Differences of the log likelihood of the kernel means form, whose statistics are standardised by arcsinh."""
    made, theta, x = simulated(conjugate, 200)
    regularisation, points = 1e-3, np.linspace(-0.5, 1.5, 9)
    hyperparameters = Hyperparameters(
        Gaussian(np.array([SCALE])), Gaussian(np.array([SCALE])), np.array(regularisation)
    )
    engine = kme.KELFI(conjugate, simulations=made, form=kme.KernelMeans(hyperparameters=hyperparameters))
    engine.run(jax.random.key(0), x=SEEN)
    model = kme.handlers.surrogate(conjugate, engine.likelihoods)
    found = [log_density(model, (jnp.asarray(SEEN),), {}, {"theta": jnp.asarray(t)})[0] for t in points]
    centre = np.median(x)
    s, y = (np.arcsinh((a - centre) / (1.4826 * np.median(np.abs(x - centre)))) for a in (x, SEEN))
    fit = np.linalg.solve(gaussian(theta, theta) + 200 * regularisation * np.eye(200), gaussian(s, y)[:, 0])
    known = np.log(gaussian(points, theta) @ fit) - 0.5 * points**2
    return apart(np.diff(found), np.diff(known))


def rounding(measure, options, limit=1e-4):
    error = measure()
    return f"{error:.1e}", f"{limit}", error <= limit


def pair_sums(points, reach=7.0, degree=80):
    """A function of two of several samples of the plane: the sum of the kernel over all pairs, by polynomials."""
    nodes = reach * np.polynomial.chebyshev.chebpts1(degree + 1)
    inverse = np.linalg.inv(chebvander(nodes / reach, degree))
    core = inverse @ gaussian(nodes, nodes) @ inverse.T
    moments = [chebvander(own[:, 0] / reach, degree).T @ chebvander(own[:, 1] / reach, degree) for own in points]
    return lambda a, b: np.vdot(moments[a], core @ moments[b] @ core.T)


def large_mmd(options):
    """The squared MMD of 100,000 points of the plane in this session's float32, against float64."""
    n = 100_000
    points = [np.random.default_rng(k).normal(size=(n, 2)).astype(np.float32) + np.float32(0.05 * k) for k in range(2)]
    found = float(kme.squared_mmd(Gaussian(SCALE), *map(jnp.asarray, points)))
    sums = pair_sums(np.asarray(points, np.float64))
    known = (sums(0, 0) + sums(1, 1) - 2.0 * n) / (n * (n - 1.0)) - 2.0 * sums(0, 1) / n**2
    return f"{found:.5g} for {known:.5g}", "four digits", abs(found / known - 1.0) <= 1e-4


def group(rng, theta):
    """Two statistics of one group; nothing but NumPy."""
    return LOADING * theta + NOISE * rng.normal(size=2)


def grouped(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        theta = mean + scale * numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(group, theta, event_dims=0, shape=(2,), dtype=float), obs=x)


def one_group():
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    numpyro.sample("x", kme.Simulator(group, theta, shape=(2,), dtype=float))


def exact_mean(x):
    """Mean and sd of the population mean, the groups integrated out, on a grid."""
    size = LOADING @ LOADING
    estimate, variance = x @ LOADING / size, NOISE**2 / size
    mean, scale = np.meshgrid(np.linspace(-3, 3, 601), np.linspace(1e-3, 4, 600), indexing="ij")
    total = scale**2 + variance
    log_p = -0.5 * mean**2 - 0.5 * scale**2 - 0.5 * GROUPS * np.log(total)
    return moments(normalised(log_p - 0.5 * sum((e - mean) ** 2 for e in estimate) / total), mean)


def group_error(seed, simulations, draws):
    """Error of the population mean in exact posterior standard deviations, four vectorised chains."""
    rng = np.random.default_rng(seed)
    theta = 0.4 + 0.8 * rng.normal(size=GROUPS)
    x = theta[:, None] * LOADING + NOISE * rng.normal(size=(GROUPS, 2))
    simulated = kme.simulate(jax.random.key(seed), one_group, simulations, progress_bar=False)
    fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"])
    lengths = dict(num_warmup=300, num_samples=draws, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc = MCMC(NUTS(kme.handlers.surrogate(grouped, {"x": fitted})), **lengths)
    mcmc.run(jax.random.key(seed), x)
    mean, sd = exact_mean(x)
    return float(np.mean(mcmc.get_samples()["mean"]) - mean) / sd


def hierarchical(options):
    """The population mean under NUTS with a learnt likelihood of one group."""
    sets, number = (5, 700) if options.full else (1, 300)
    error = np.mean(np.abs([group_error(seed, 2000, number) for seed in range(sets)]))
    return f"{error:.2f} sd", "0.2 sd", error <= 0.2


ROWS = {
    "kernel ABC": partial(rounding, kernel_abc),
    "kernel Bayes": partial(rounding, kernel_bayes),
    "K2-ABC": partial(rounding, k2_abc),
    "squared MMD": partial(rounding, mmd),
    "herding": partial(rounding, herding, limit=0.01),
    "published form": partial(rounding, published),
    "squared MMD of 100,000 points, float32": large_mmd,
    "hierarchical model under NUTS, population mean": hierarchical,
}
