"""Every simulator of the package against a closed form, another solver or a plain loop, and what all have in common."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

import numpyro_kme as kme
from numpyro_kme import simulators
from numpyro_kme.simulators import (
    bernoulli_glm,
    drift_diffusion,
    exponential_gamma,
    g_and_k,
    gaussian_linear,
    gaussian_mixture,
    predator_prey,
    sir,
    slcp,
    toggle_switch,
    two_moons,
)

MODULES = [importlib.import_module(f"numpyro_kme.simulators.{name}") for name in simulators.__all__]


@functools.partial(jax.jit, static_argnums=0)
def simulated(simulator, keys, *params):
    return jax.vmap(lambda key: simulator(key, *params))(keys)


def drawn(simulator, number, *params):
    """Draws in float64, `(number, ...)`."""
    return np.asarray(simulated(simulator, jax.random.split(jax.random.key(0), number), *params), np.float64)


def assert_has_mean(draws, mean):
    """Within five standard errors of the mean."""
    np.testing.assert_array_less(np.abs(draws.mean(0) - mean), 5 * draws.std(0, ddof=1) / np.sqrt(len(draws)) + 1e-7)


# --- what all have in common --------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_model_draws_what_is_observed_and_names_its_source(module):
    assert "References:" in module.__doc__ and isinstance(module.PARAMETERS, tuple)
    observed = vars(module).get("OBSERVED")

    def run(key):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(module.model, key)).get_trace()
        return {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}

    latents = jax.eval_shape(run, jax.random.key(0))
    x = latents.pop("x")
    assert observed is None or (observed.shape == x.shape and np.isfinite(observed).all())
    problem = kme.Problem.read(module.model, x=np.zeros(x.shape, x.dtype) if observed is None else observed)
    assert list(problem.simulators) == ["x"]
    assert sum(latent.size for latent in latents.values()) == len(module.PARAMETERS)
    if problem.simulators["x"].simulator.black_box:  # what JAX computes is the same each time
        first, again = (jax.jit(run)(jax.random.key(0))["x"] for _ in range(2))
        np.testing.assert_array_equal(first, again)


PRIORS = {
    "bernoulli_glm": None,  # its precision is written out below
    "blowfly": [scipy.stats.norm(m, s) for m, s in ((2, 2), (-1.5, 0.5), (6, 0.5), (-1, 1), (-1, 1))]
    + [scipy.stats.norm(np.log(15), np.log(5))],
    "boarding_school": [scipy.stats.lognorm(0.5, scale=m) for m in (1.5, 0.5)],
    "drift_diffusion": [
        scipy.stats.norm(0.0, 1.5),
        scipy.stats.lognorm(0.3, scale=np.exp(0.3)),
        scipy.stats.uniform(0.3, 0.4),
        scipy.stats.uniform(0.1, 0.3),
    ],
    "exponential_gamma": [scipy.stats.gamma(2.0, scale=2.0)],
    "fluctuation": [scipy.stats.norm(0.0, 1.5)],
    "g_and_k": [scipy.stats.uniform(0.0, 10.0)] * 4,
    "gaussian_linear": [scipy.stats.norm(0.0, np.sqrt(0.1))] * 10,
    "gaussian_mixture": [scipy.stats.uniform(-10.0, 20.0)] * 2,
    "lotka_volterra": [scipy.stats.uniform(-5.0, 7.0)] * 4,
    "lynx_hare": [scipy.stats.lognorm(0.4, scale=m) for m in (0.6, 0.03, 0.8, 0.025)]
    + [scipy.stats.lognorm(0.5, scale=0.2)],
    "predator_prey": [scipy.stats.lognorm(0.5, scale=np.exp(m)) for m in (-0.125, -3.0, -0.125, -3.0)],
    "sir": [scipy.stats.lognorm(s, scale=m) for m, s in ((0.4, 0.5), (0.125, 0.2))],
    "slcp": [scipy.stats.uniform(-3.0, 6.0)] * 5,
    "smallpox": [scipy.stats.gamma(10.0, scale=0.01)] * 2,
    "toggle_switch": [scipy.stats.uniform(a, b - a) for a, b in ((0, 50), (0, 50), (0, 5), (0, 5), (250, 450))]
    + [scipy.stats.uniform(0.0, b) for b in (0.5, 0.4)],
    "tuberculosis": [
        scipy.stats.norm(-0.5, 0.7),
        scipy.stats.uniform(0.0, 0.9),
        scipy.stats.truncnorm(-0.198 / 0.06735, np.inf, 0.198, 0.06735),
    ],
    "two_moons": [scipy.stats.uniform(-1.0, 2.0)] * 2,
}
"""The priors, written out a second time with SciPy, one for each number: those of the papers, or our own."""


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_priors_are_the_published_ones(module, rng):
    marginals = PRIORS[module.__name__.rpartition(".")[2]]
    values = rng.normal(size=10) if marginals is None else [marginal.rvs(random_state=rng) for marginal in marginals]
    values = np.array(values, np.float32)
    left = iter(values)

    def given(site):
        if site["type"] != "sample":
            return None
        shape = site["fn"].shape()
        of_prior = (next(left) for _ in range(np.prod(shape, dtype=int)))
        return np.zeros(shape, np.float32) if site["name"] == "x" else np.reshape([*of_prior], shape)

    model = numpyro.handlers.seed(numpyro.handlers.substitute(module.model, substitute_fn=given), 0)
    sites = numpyro.handlers.trace(model).get_trace()
    latents = [site for name, site in sites.items() if site["type"] == "sample" and name != "x"]
    found = sum(float(np.sum(site["fn"].log_prob(site["value"]))) for site in latents)
    if marginals is None:  # sbibm: B' (F' F) B, F = D + diag(sqrt(lag / 9)), D the second differences
        d = np.eye(9) - np.eye(9, k=-1)
        f = d @ d + np.diag([np.sqrt(lag / 9) for lag in range(9)])
        expected = scipy.stats.norm(0.0, np.sqrt(2.0)).logpdf(values[0])
        expected += scipy.stats.multivariate_normal(np.zeros(9), np.linalg.inv(f.T @ f)).logpdf(values[1:])
    else:
        expected = sum(marginal.logpdf(value) for marginal, value in zip(marginals, values, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# --- closed forms -------------------------------------------------------------------------------------------


def test_exponential_gamma_moments_and_posterior():
    draws = drawn(exponential_gamma.sample_mean, 4_000, 4.0)
    assert abs(draws.mean() - 1 / 4) < 5 / 4 / np.sqrt(15 * draws.size)
    assert abs(draws.var() - 1 / 16 / 15) < 5 / 16 / 15 * np.sqrt(2.4 / draws.size)
    grid = np.linspace(1e-4, 30, 40_001)
    unnormalised = grid * np.exp(-0.5 * grid) * grid**15 * np.exp(-15 * 0.3 * grid)
    density = unnormalised / np.trapezoid(unnormalised, grid)
    np.testing.assert_allclose(exponential_gamma.exact_posterior(0.3).pdf(grid), density, atol=1e-6)


@pytest.mark.parametrize("params", [(0.8, 1.4, 0.45, 0.25), (-1.7, 0.7, 0.6, 0.1), (0.0, 2.2, 0.35, 0.3)])
def test_drift_diffusion_has_its_density(params):
    """By quadrature, over time; the choice probability and the mean time by closed forms too."""
    drift, boundary, start, delay = params
    times = delay + np.linspace(0.0, np.sqrt(60.0), 6_001)[1:] ** 2
    trials = np.stack(np.broadcast_arrays(np.array([[0.0], [1.0]]), times), axis=-1).astype(np.float32)
    density = np.exp(drift_diffusion.log_density(trials, *(jnp.full(trials.shape[:2], p) for p in params)))
    shares, means = scipy.integrate.trapezoid([density, density * times], times, axis=-1)
    upper, passage = start, boundary**2 * start * (1.0 - start)
    if drift:
        upper = np.expm1(-2.0 * drift * boundary * start) / np.expm1(-2.0 * drift * boundary)
        passage = boundary * (upper - start) / drift
    np.testing.assert_allclose(shares, [1.0 - upper, upper], atol=1e-4)
    np.testing.assert_allclose(means.sum(), delay + passage, rtol=1e-3)
    draws = drawn(drift_diffusion.trial, 4_000, *params)
    assert_has_mean(draws[:, 0], upper)
    for choice in (0, 1):
        assert_has_mean(draws[draws[:, 0] == choice, 1], means[choice] / shares[choice])
    assert draws[:, 1].min() > delay and np.isneginf(drift_diffusion.log_density(np.array([1.0, 0.9 * delay]), *params))


def test_normals_have_their_moments():
    theta = jnp.array([1.0, -2.0])
    mixed = drawn(gaussian_mixture.gaussian_mixture, 4_000, theta) - np.asarray(theta)
    assert_has_mean(mixed, 0.0)
    assert_has_mean(mixed**2, (1.0 + 0.01) / 2)
    assert_has_mean(mixed**4, 3.0 * (1.0 + 0.01**2) / 2)
    inside = scipy.special.erf(1.5 / 2**0.5) + scipy.special.erf(0.15 / 2**0.5)
    assert_has_mean(np.abs(mixed) < 0.15, 0.5 * inside)
    assert_has_mean(mixed.prod(1), 0.0)
    assert_has_mean(mixed[:, 0] ** 2 * mixed[:, 1] ** 2, (1.0 + 0.01**2) / 2)  # one coin for both
    ten = jnp.linspace(-1.0, 1.0, 10)
    linear = drawn(gaussian_linear.gaussian_linear, 4_000, ten) - np.asarray(ten)
    assert_has_mean(linear, 0.0)
    assert_has_mean(linear**2, 0.1)


@pytest.mark.parametrize("theta", [[0.3, -0.6], [-0.4, -0.5]])
def test_two_moons_has_the_moments_of_its_density(theta):
    theta = jnp.array(theta)
    centre = np.asarray(two_moons.shift(theta)) + np.array([0.25, 0.0])
    ends = np.linspace(-0.15, 0.15, 601)
    points = centre + np.stack(np.meshgrid(ends, ends, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = jax.jit(jax.vmap(two_moons.log_density, (None, 0)))(theta, points)
    p = np.exp(np.asarray(log_p, np.float64)) * (0.3 / 600) ** 2
    assert abs(p.sum() - 1.0) < 5e-3  # the density jumps at the edge of the half-plane
    draws = drawn(two_moons.two_moons, 4_000, theta)
    for power in (1, 2):
        at = p @ (points - centre) ** power / p.sum()
        error = ((draws - centre) ** power).std(0) / np.sqrt(len(draws))
        np.testing.assert_array_less(np.abs(((draws - centre) ** power).mean(0) - at), 5 * error + 3e-4)
    radius = np.hypot(*(draws - centre).T)
    assert_has_mean(radius, 0.1)
    assert_has_mean((radius - 0.1) ** 2, 0.01**2)


def test_two_moons_are_shifted_alike_by_two_points():
    exact = np.array([-0.3, -0.9]) / 2**0.5
    for theta in ([0.3, -0.6], [0.6, -0.3]):
        np.testing.assert_allclose(two_moons.shift(jnp.array(theta)), exact, atol=1e-6)


def test_slcp_is_the_normal_that_it_says():
    theta = jnp.array([0.7, -2.9, -1.0, -0.9, 0.6])
    a, b, r = 1.0, 0.81, np.tanh(0.6)
    exact = scipy.stats.multivariate_normal([0.7, -2.9], [[a * a, r * a * b], [r * a * b, b * b]])
    draws = drawn(slcp.points, 4_000, theta).reshape(-1, 4, 2)
    rest = draws.reshape(-1, 2) - exact.mean
    assert_has_mean(rest, 0.0)
    assert_has_mean(rest[:, :, None] * rest[:, None], exact.cov)
    assert_has_mean(rest[::4] * rest[1::4], 0.0)
    found = jax.jit(slcp.log_density)(np.tile(theta, (50, 1)), draws[:50])
    np.testing.assert_allclose(found, exact.logpdf(draws[:50]).sum(1), rtol=1e-4, atol=1e-4)


def test_g_and_k_follows_its_quantile_function(rng):
    a, b, g, k = 3.0, 1.0, 1.0, 0.5
    assert tuple(g_and_k.TRUTH) == (a, b, g, k)  # Dellaporta et al. (2022), with log k = -log 2
    z = rng.normal(size=50)
    skew = (1 - np.exp(-g * z)) / (1 + np.exp(-g * z))
    quantile = jax.jit(g_and_k.from_normal)
    np.testing.assert_allclose(quantile(z, a, b, g, k), a + b * (1 + 0.8 * skew) * (1 + z * z) ** k * z, rtol=1e-5)
    draws, p = drawn(g_and_k.g_and_k, 4_000, a, b, g, k), np.array([0.05, 0.3, 0.5, 0.9, 0.99])
    below = np.mean(draws[:, None] < np.asarray(quantile(scipy.stats.norm.ppf(p), a, b, g, k)), axis=0)
    assert (np.abs(below - p) < 5 * np.sqrt(p * (1 - p) / len(draws))).all()


def test_octile_statistics_and_outliers(rng):
    draws = rng.gamma(2.0, size=357)
    e1, e2, e3, e4, e5, e6, e7 = np.quantile(draws, np.arange(1, 8) / 8)
    tails = (e7 - e5 + e3 - e1) / (e6 - e2)
    expected = [e4, np.log(e6 - e2), (e6 + e2 - 2 * e4) / (e6 - e2), np.log(tails)]
    np.testing.assert_allclose(jax.jit(g_and_k.octile_statistics)(draws), expected, rtol=1e-4)
    x, clean = (g_and_k.contaminated(jax.random.key(0), part, 1000) for part in (0.1, 0.0))
    np.testing.assert_allclose(x - clean, np.repeat([50.0, -50.0, 0.0], [50, 50, 900]), atol=1e-4)


# --- other solvers and plain loops --------------------------------------------------------------------------


@pytest.mark.slow
def test_sir_solves_its_equations_and_counts_binomially():
    beta, gamma = 0.5, 0.15

    def slope(_, state):
        new = beta * state[0] * state[1] / 1e6
        return [-new, new - gamma * state[1]]

    exact = scipy.integrate.solve_ivp(slope, (0, 153), [1e6 - 1, 1.0], t_eval=sir.DAYS, rtol=1e-9, atol=1e-6).y[1] / 1e6
    theta = jnp.array([beta, gamma])
    np.testing.assert_allclose(jax.jit(sir.infected_fractions)(theta), exact, rtol=2e-3, atol=1e-6)
    draws = drawn(sir.epidemic, 2_000, theta)
    error = np.sqrt(exact * (1 - exact) / (1000 * len(draws)))
    np.testing.assert_array_less(np.abs(draws.mean(0) / 1000 - exact), 5 * error + 2e-3 * exact + 1e-5)


def test_predators_and_prey_solve_their_equations():
    alpha, beta, gamma, delta = 0.9, 0.05, 0.8, 0.045

    def slope(_, state):
        return [alpha * state[0] - beta * state[0] * state[1], delta * state[0] * state[1] - gamma * state[1]]

    solved = scipy.integrate.solve_ivp(slope, (0, 19), [30.0, 1.0], t_eval=predator_prey.TIMES, rtol=1e-9, atol=1e-9)
    theta = jnp.array([alpha, beta, gamma, delta])
    found = np.asarray(jax.jit(predator_prey.populations)(theta))
    np.testing.assert_allclose(found, solved.y.ravel(), rtol=2e-3)
    errors = np.log(drawn(predator_prey.predator_prey, 2_000, theta) / found)
    assert_has_mean(errors, 0.0)
    assert_has_mean(errors**2, 0.01)


def test_spikes_sum_the_design_where_the_neuron_fires():
    design, theta = bernoulli_glm.design(), np.linspace(-1.0, 1.0, 10)
    assert np.array_equal(design[:, 0], np.ones(100)) and np.array_equal(design[5:, 6], design[:-5, 1])
    p = scipy.special.expit(design @ theta)
    draws = drawn(bernoulli_glm.spikes, 4_000, jnp.asarray(theta))
    assert_has_mean(draws, design.T @ p)
    rest = draws - design.T @ p
    assert_has_mean(rest[:, :, None] * rest[:, None], (design.T * (p * (1 - p))) @ design)


@pytest.mark.x64
def test_a_cell_of_the_toggle_switch_equals_a_plain_loop(rng):
    cell = jax.jit(toggle_switch.cell)
    few = np.array([1.0, 30.0, 2.0, 3.0, 20.0, 1.5, 0.0])  # the truncation of the last noise counts
    for theta in (toggle_switch.TRUTH, np.array([10.0, 30.0, 2.0, 3.0, 300.0, 0.4, 0.1]), few):
        levels = rng.uniform(size=toggle_switch.LEVELS)
        found = cell(levels, np.asarray(theta))
        np.testing.assert_allclose(found, plain_cell(levels, *theta), rtol=1e-6)


def plain_cell(levels, alpha1, alpha2, beta1, beta2, mu, sigma, gamma):
    def truncated(level, low):
        return scipy.stats.norm.isf((1 - level) * scipy.stats.norm.sf(low))

    u = v = 10.0
    for t in range(300):
        new_u = u + alpha1 / (1 + v**beta1) - (1 + 0.03 * u)
        new_v = v + alpha2 / (1 + u**beta2) - (1 + 0.03 * v)
        u = new_u + 0.5 * truncated(levels[2 * t], -2 * new_u)
        v = new_v + 0.5 * truncated(levels[2 * t + 1], -2 * new_v)
    width = mu * sigma / u**gamma
    return u + mu + width * truncated(levels[600], -(u + mu) / width)
