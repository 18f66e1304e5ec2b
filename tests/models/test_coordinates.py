"""A simulator's coordinates: normal scores of its arguments, exact where the prior allows, else fitted to draws."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from jax import random
from jax.scipy.special import expit, logit
from scipy.linalg import solve_triangular

from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator

MEAN, COVARIANCE = np.array([1.0, 2.0]), np.array([[1.0, 0.5], [0.5, 2.0]])
TWO = dist.Categorical(probs=np.array([0.3, 0.7], np.float32))
CENTRES = np.array([-0.5, 1.0], np.float32)


def flat(key, *params):
    return sum(jnp.sum(param) for param in params) + random.normal(key)


def model_of(arguments, **priors):
    """A model whose simulator takes `arguments(**latents)`."""

    def model(x=None):
        latents = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        numpyro.sample("x", Simulator(flat, *arguments(**latents)), obs=x)

    return model


def but_slow(table, *names):
    """Each row of a table, those that compile most in the slow tests."""
    rows = [pytest.param(name, marks=pytest.mark.slow if name in names else ()) for name in table]
    return pytest.mark.parametrize("name", rows)


def alone(prior):
    return model_of(lambda t: (t,), t=prior)


UNIVARIATE = {
    "normal far from 0": (dist.Normal(1000.0, 1.0), st.norm(1000.0, 1.0)),
    "uniform": (dist.Uniform(-1.0, 3.0), st.uniform(-1.0, 4.0)),
    "log normal": (dist.LogNormal(0.0, 1.5), st.lognorm(1.5)),
    "gamma": (dist.Gamma(2.0, 0.5), st.gamma(2.0, scale=2.0)),
    "Cauchy far from 0": (dist.Cauchy(100.0, 1.0), st.cauchy(100.0, 1.0)),
    "bounded above": (dist.TruncatedNormal(0.0, 1.0, high=0.5), st.truncnorm(-np.inf, 0.5)),
}
Z = np.linspace(-4.0, 4.0, 81)[:, None]


@but_slow(UNIVARIATE, "gamma")
def test_normal_scores_of_one_latent(name):
    """Against SciPy's quantiles of the same prior, and far into the tails, where draws stay inside the support."""
    prior, same = UNIVARIATE[name]
    coordinates = Coordinates.from_prior(random.key(0), Problem.read(alone(prior)))
    assert coordinates.exact and coordinates.one_to_one and coordinates.names == ("t",)
    values = same.isf(st.norm.sf(Z))
    np.testing.assert_allclose(coordinates.table(values), Z, atol=2e-3)
    np.testing.assert_allclose(coordinates.table(coordinates.latents(Z)["t"][:, None]), Z, atol=3e-3)
    assert bool(np.all(prior.support(coordinates.latents(3.0 * Z)["t"].astype(np.float32))))


EXACT = {
    # name: (model, names of the coordinates, scores from latents)
    "affine functions of normals": (
        model_of(lambda t, s: (1.0 - 0.5 * t, s, 2.0), t=dist.Normal(np.zeros(2), 2.0).to_event(1), s=dist.Normal()),
        ("t[0]", "t[1]", "s"),
        lambda t, s: (t[:, 0] / 2.0, t[:, 1] / 2.0, s),
    ),
    "functions": (
        model_of(
            lambda r, p, q: (1.0 / r, logit(p), 5.0 * jnp.sinh(q) + 1.0),
            r=dist.LogNormal(0.0, 1.0),
            p=dist.Uniform(0.0, 1.0),
            q=dist.Normal(0.0, 1.0),
        ),
        ("r", "p", "q"),
        lambda r, p, q: (np.log(r), st.norm.ppf(p), q),
    ),
    "correlated": (
        alone(dist.MultivariateNormal(MEAN, COVARIANCE)),
        ("t[0]", "t[1]"),
        lambda t: solve_triangular(np.linalg.cholesky(COVARIANCE), (t - MEAN).T, lower=True),
    ),
    "of low rank": (
        alone(dist.LowRankMultivariateNormal(jnp.zeros(2), jnp.array([[0.8], [0.6]]), jnp.array([0.3, 0.5]))),
        ("t[0]", "t[1]"),
        lambda t: solve_triangular(np.linalg.cholesky([[0.94, 0.48], [0.48, 0.86]]), t.T, lower=True),
    ),
    "a part, permuted and repeated": (
        model_of(
            lambda t, u, b: (t[2], u, jnp.square(u), t[0]),
            t=dist.Laplace(0.0, 1.0).expand([3]).to_event(1),
            u=dist.Exponential(1.0),
            b=dist.Normal(0.0, 1.0).expand([3]).to_event(1),
        ),
        ("t[0]", "t[2]", "u"),
        lambda t, u, b: st.norm.ppf([*st.laplace.cdf(t[:, [0, 2]].T), st.expon.cdf(u)]),
    ),
    "a mixture": (
        alone(dist.MixtureSameFamily(TWO, dist.Normal(CENTRES, np.float32(0.5)))),
        ("t",),
        lambda t: st.norm.ppf(np.array([[0.3, 0.7]]) @ st.norm.cdf(t, CENTRES[:, None], 0.5)),
    ),
}


@but_slow(EXACT, "of low rank", "a mixture")
def test_exact_coordinates(name):
    (model, names, scores), one_to_one = EXACT[name], not name.startswith("a part")
    problem = Problem.read(model)
    coordinates = Coordinates.from_prior(random.key(0), problem, num_draws=200)
    assert coordinates.exact and coordinates.names == names and coordinates.dim == len(names)
    assert coordinates.one_to_one is one_to_one and "the prior is standard normal" in coordinates.note
    draws = problem.draw(random.key(1), 300)
    expected = np.transpose(scores(**{n: np.asarray(v, np.float64) for n, v in draws.latents.items()}))
    found = coordinates.table(draws.arguments["x"])
    np.testing.assert_allclose(found, expected, atol=2e-3)
    traced = jax.jit(jax.vmap(coordinates.forward))(draws.arguments["x"])
    np.testing.assert_allclose(traced, found, atol=2e-3)
    if not one_to_one:
        with pytest.raises(ValueError, match="do not determine the latents"):
            coordinates.latents(found)
        return
    latents = coordinates.latents(found)
    assert list(latents) == list(draws.latents)
    for site, values in draws.latents.items():
        np.testing.assert_allclose(latents[site], values, atol=2e-3 * np.std(values))


def test_affine_functions_of_normal_latents_are_exact_to_rounding():
    """Far out too: the closed forms need it."""
    coordinates = Coordinates.from_prior(random.key(0), Problem.read(EXACT["affine functions of normals"][0]))
    z = np.random.default_rng(0).normal(size=(20, 3)) * 10.0
    t, s = coordinates.latents(z).values()
    np.testing.assert_allclose(np.column_stack([t, s]), z * [2.0, 2.0, 1.0], rtol=1e-6)
    arguments = np.column_stack([1.0 - 0.5 * t, s, np.full(20, 2.0)])
    np.testing.assert_allclose(coordinates.table(arguments), z, rtol=1e-5, atol=1e-5)


def groups(x=None):
    with numpyro.plate("g", 3):
        theta = numpyro.sample("theta", dist.LogNormal(0.0, 2.0))
        numpyro.sample("x", Simulator(flat, theta, event_dims=0), obs=x)


def hierarchy(x=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, scale))
    numpyro.sample("x", Simulator(flat, theta, scale), obs=x)


INEXACT = {
    "sum": (
        model_of(lambda m, e: (m + e, expit(2.0 * m + e)), m=dist.Normal(0.0, 2.0), e=dist.Normal(0.0, 1.0)),
        "argument `arguments[0]` is no monotone function of one number",
    ),
    "not monotone": (
        model_of(lambda m: (m**2,), m=dist.Normal(0.0, 1.0)),
        "argument `arguments[0]` is no monotone function",
    ),
    "hierarchy": (hierarchy, "argument `arguments[0]` is no monotone function of one number with a prior of its own"),
    "no cdf": (alone(dist.Dirichlet(np.ones(3, np.float32))), "no latent has a prior of its own"),
    "groups": (groups, "the simulator's parameters vary along plates"),
}


@but_slow(INEXACT, "no cdf")
def test_coordinates_that_are_fitted_to_draws_say_why(name):
    model, reason = INEXACT[name]
    problem = Problem.read(model)
    coordinates = Coordinates.from_prior(random.key(0), problem)
    assert not coordinates.exact and not coordinates.one_to_one
    assert "only about standard normal" in coordinates.note and reason in coordinates.note
    a = problem.draw(random.key(1), 1000).arguments["x"]
    a = a.reshape(-1, a.shape[-1])
    z = coordinates.table(a)
    assert np.all(np.diff(np.take_along_axis(z, np.argsort(a, axis=0), axis=0), axis=0) >= 0.0)
    for k in range(coordinates.dim):  # Kolmogorov's distance of two samples, one of which made the map
        assert st.kstest(z[:, k], st.norm.cdf).statistic < 2.5 * np.sqrt(2.0 / 1000)


def around_a_dose(rng_key, sd, dose):
    return dose + sd * random.normal(rng_key)


def test_an_argument_beside_a_covariate_is_about_normal_down_to_zero():
    def model(dose, y=None):
        sd = numpyro.sample("sd", dist.HalfNormal(0.3))
        with numpyro.plate("trials", len(dose)):
            numpyro.sample("y", Simulator(around_a_dose, sd, dose, event_dims=0), obs=y)

    doses = np.linspace(0.0, 4.0, 5, dtype=np.float32)
    coordinates = Coordinates.from_prior(random.key(0), Problem.read(model, doses))
    sd = np.concatenate([[0.0], st.halfnorm.ppf((np.arange(500) + 0.5) / 500, scale=0.3)])
    z = coordinates.table(np.stack([sd, np.ones_like(sd)], axis=1))
    assert np.isfinite(z).all() and np.all(np.diff(z[:, 0]) > 0.0)
    assert np.corrcoef(z[1:, 0], st.norm().ppf((np.arange(500) + 0.5) / 500))[0, 1] > 0.985
    scores = coordinates.table(np.stack([np.full(5, 0.2), doses], axis=1))[:, 1]
    assert np.all(np.diff(scores) > 0.2) and np.abs(scores).max() < 4.0


def test_arguments_that_do_not_vary_in_the_model():
    """They are left out; others that were simulated are refused, or learnt where they vary."""
    problem = Problem.read(model_of(lambda t: (t, 2.0), t=dist.Normal(0.0, 1.0)))
    coordinates = Coordinates.from_prior(random.key(0), problem)
    assert coordinates.dim == 1
    coordinates.require_simulated(np.array([[7.0, 2.0]]))
    with pytest.raises(
        ValueError, match=r"Argument `arguments\[1\]` of the simulator is 3, and was 2 in all simulations"
    ):
        coordinates.require_simulated(np.array([[7.0, 3.0]]))
    table = np.random.default_rng(0).normal(2.0, 1.0, (100, 2))
    assert coordinates.covering(np.column_stack([table[:, 0], np.full(100, 2.0)])) is coordinates
    covering = coordinates.covering(table)
    assert covering.dim == 2 and not covering.exact and "covariates that the data do not have" in covering.note


@pytest.mark.smoke
@pytest.mark.x64
def test_standardising_a_table():
    table = np.random.default_rng(0).normal([1.0, -50.0, 0.0], [2.0, 0.1, 0.0], (500, 3)) + np.array([0.0, 0.0, 4.0])
    coordinates = Coordinates.standardise(table)
    assert coordinates.dim == 2 and not coordinates.exact and "no prior is known" in coordinates.note
    z = jax.jit(jax.vmap(coordinates.forward))(table)
    low, median, high = np.quantile(table[:, :2], [0.158655, 0.5, 0.841345], axis=0)
    np.testing.assert_allclose(z, (table[:, :2] - median) / ((high - low) / 2), rtol=1e-5, atol=1e-5)


def test_coordinates_are_a_pytree_with_derivatives():
    problem = Problem.read(EXACT["functions"][0])
    coordinates = Coordinates.from_prior(random.key(0), problem, num_draws=200)
    a = problem.draw(random.key(1), 300).arguments["x"][0].astype(float)
    inside = jax.jit(lambda c, a: jax.jacobian(c.forward)(a))(coordinates, a)
    steps = 1e-6 * np.kron([[1.0], [-1.0]], np.eye(3))
    ends = coordinates.table(a + steps)
    np.testing.assert_allclose(inside, (ends[:3] - ends[3:]).T / 2e-6, rtol=1e-3, atol=1e-3)
    leaves = jax.tree.leaves(coordinates)
    assert leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves)


def read(arguments, **priors):
    return Coordinates.from_prior(random.key(0), Problem.read(model_of(arguments, **priors)))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Coordinates.standardise(np.eye(2)).forward(np.eye(2)), r"shape \(2,\); got \(2, 2\). Use jax.vmap"),
        (lambda: Coordinates.standardise(np.ones(3)), r"`table` must have shape \(points, dim\)"),
        (lambda: Coordinates.standardise(np.ones((1, 2))), "`table` must have at least 2 rows"),
        (lambda: Coordinates.standardise(np.array([[np.nan], [1.0]])), "`table` has 1 entries that are not finite"),
        (lambda: Coordinates.from_prior(random.key(0), Problem.read(hierarchy), "y"), r"\['x'\], by `site=`; got 'y'"),
        (lambda: read(lambda t: (0.0 * t,), t=dist.Normal()), "are the same in all prior draws"),
        (lambda: read(lambda t: (jnp.exp(jnp.exp(t)),), t=dist.Normal(0.0, 9.0)), "at 'x'` has .* not finite.*Narrow"),
    ],
)
def test_bad_input_is_explained(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
