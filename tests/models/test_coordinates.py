"""A simulator's coordinates: exact where the prior allows, standardised for a reason elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from jax import random
from jax.scipy.special import expit, logit
from scipy import special

from numpyro_kme.models import matching
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Draws, Problem
from numpyro_kme.models.simulator import Simulator

COVARIANCE = jnp.array([[1.0, 0.5], [0.5, 2.0]])
TWO = dist.Categorical(probs=jnp.array([0.3, 0.7]))
CENTRES = jnp.array([-2.0, 3.0])
THREE, SPREAD = dist.Categorical(probs=jnp.array([0.3, 0.5, 0.2])), jnp.array([-2.0, 0.0, 3.0])


def flat(key, *params):
    return sum(jnp.sum(param) for param in params) + random.normal(key)


def model_of(arguments, **priors):
    """A model whose simulator takes `arguments(**latents)`."""

    def model(x=None):
        latents = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        numpyro.sample("x", Simulator(flat, *arguments(**latents)), obs=x)

    return model


def dependent(x=None):
    location = numpyro.sample("location", dist.Normal(1.0, 2.0))
    scale = numpyro.sample("scale", dist.HalfNormal(jnp.exp(0.3 * location)))
    rate = numpyro.sample("rate", dist.Exponential(1.0 + scale).expand([2]).to_event(1))
    numpyro.sample("x", Simulator(flat, location, jnp.log(scale), rate), obs=x)


def plated(x=None):
    with numpyro.plate("k", 3):
        theta = numpyro.sample("theta", dist.Normal(jnp.array([0.0, 1.0, 2.0]), 2.0).mask(True))
    numpyro.sample("x", Simulator(flat, theta), obs=x)


def exact():
    """Rows made anew: what a test in 64 bits reads, JAX remembers in these."""
    return {
        # name: (model, names of the coordinates, whether they determine all latents)
        "independent": (
            model_of(
                lambda t, s: (jnp.exp(1.0 + 0.5 * t), s, 2.0),
                t=dist.Normal(0.0, 2.0).expand([2]).to_event(1),
                s=dist.Uniform(-1.0, 3.0),
            ),
            ("t[0]", "t[1]", "s"),
            True,
        ),
        "skewed": (
            model_of(
                lambda r, p, q: (1.0 / r, logit(p), 5.0 * q + 1.0),
                r=dist.LogNormal(0.0, 1.0),
                p=dist.Uniform(0.0, 1.0),
                q=dist.HalfNormal(1.0),
            ),
            ("r", "p", "q"),
            True,
        ),
        "correlated": (
            model_of(lambda t: (t,), t=dist.MultivariateNormal(jnp.array([1.0, 2.0]), COVARIANCE)),
            ("t[0]", "t[1]"),
            True,
        ),
        "dependent": (dependent, ("location", "scale", "rate[0]", "rate[1]"), True),
        "plated": (plated, ("theta[0]", "theta[1]", "theta[2]"), True),
        "a part, permuted and repeated": (
            model_of(
                lambda t, u, b: (t[2], u, jnp.square(u), t[0]),
                t=dist.Laplace(0.0, 1.0).expand([3]).to_event(1),
                u=dist.Exponential(1.0),
                b=dist.Normal(0.0, 1.0).expand([3]).to_event(1),
            ),
            ("t[0]", "t[2]", "u"),
            False,
        ),
        "mixture": (
            model_of(
                lambda t, s: (t, s),
                t=dist.MixtureSameFamily(TWO, dist.Normal(CENTRES, 0.5)),
                s=dist.Normal(0.0, 3.0),
            ),
            ("t", "s"),
            True,
        ),
        "mixtures": (
            model_of(
                lambda s, t, u: (s, t[0], t[1], u[1]),
                s=dist.Exponential(1.0),
                t=dist.MixtureSameFamily(TWO, dist.MultivariateNormal(jnp.stack([CENTRES, -CENTRES]), COVARIANCE)),
                u=dist.MixtureSameFamily(TWO, dist.Normal(CENTRES, 1.0)).expand([2]).to_event(1),
            ),
            ("s", "t[0]", "t[1]", "u[1]"),
            False,
        ),
        "many components": (
            model_of(lambda t: (t,), t=dist.MixtureSameFamily(THREE, dist.Normal(SPREAD, 0.5)).expand([4]).to_event(1)),
            tuple(f"t[{i}]" for i in range(4)),
            True,
        ),
    }


EXACT = tuple(exact())


PARTS = "independent", "skewed", "correlated", "plated", "mixture", "many components"
"""What the other rows have too; joint normal priors are in test_gateway, and functions of latents below."""


each_kind = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in PARTS else ()) for n in EXACT]
)


@pytest.mark.x64
@each_kind
def test_exact_coordinates(name):
    model, names, one_to_one = exact()[name]
    problem = Problem.read(model)
    coordinates = Coordinates.from_prior(random.key(0), problem, num_draws=200)
    assert coordinates.exact and coordinates.names == names and coordinates.dim == len(names)
    assert coordinates.one_to_one is one_to_one
    weights, means, covariances = coordinates.mixture
    law = "standard normal" if len(weights) == 1 else f"a mixture of {len(weights)} normals"
    assert coordinates.note.endswith(f"the prior is exactly {law}.")
    assert len(weights) == {"mixture": 2, "mixtures": 4}.get(name, 1)

    draws = problem.draw(random.key(1), 640)
    a = draws.arguments["x"]
    z, back = there_and_back(coordinates, a)
    np.testing.assert_allclose(back, a, rtol=1e-8, atol=1e-8)
    for k in range(coordinates.dim):  # the marginal law of each coordinate, by Kolmogorov's statistic

        def cdf(t, k=k):
            return sum(w * st.norm.cdf(t, m[k], np.sqrt(c[k, k])) for w, m, c in zip(weights, means, covariances))

        assert np.sqrt(640) * st.kstest(z[:, k], cdf).statistic < 2.5
    np.testing.assert_allclose(z.mean(0), 0.0, atol=5 / np.sqrt(640))
    np.testing.assert_allclose(np.cov(z.T), np.eye(coordinates.dim), atol=5 * np.sqrt(5 / 640))
    if one_to_one:
        _check_density(problem, coordinates, draws, z)
    else:
        with pytest.raises(ValueError, match="do not determine the latents"):
            coordinates.latents(z[0])


def there_and_back(coordinates, a):
    z, back = jax.jit(jax.vmap(lambda a: ((z := coordinates.forward(a)), coordinates.inverse(z))))(a)
    return np.asarray(z), np.asarray(back)


def _check_density(problem, coordinates, draws, z):
    """The law of `z` and the derivative of the map give the density that the model gives."""
    latents = {name: value[:3] for name, value in draws.latents.items()}
    assert [name for name, _ in coordinates.sites] == list(latents)

    def ravelled(z):
        return jnp.concatenate([jnp.ravel(value) for value in coordinates.latents(z).values()])

    steps = 1e-5 * np.concatenate([np.zeros((1, z.shape[1])), np.eye(z.shape[1]), -np.eye(z.shape[1])])
    points = np.asarray(jax.jit(jax.vmap(jax.vmap(ravelled)))(z[:3, None] + steps))
    point, (ahead, behind) = points[:, 0], np.split(points[:, 1:], 2, axis=1)
    derivative = ((ahead - behind) / 2e-5).transpose(0, 2, 1)
    expected = np.concatenate([value.reshape(3, -1) for value in latents.values()], axis=1)
    np.testing.assert_allclose(point, expected, rtol=1e-8, atol=1e-10)
    law = sum(w * st.multivariate_normal(m, c).pdf(z[:3]) for w, m, c in zip(*coordinates.mixture))
    found = np.log(law) - np.linalg.slogdet(derivative)[1]
    np.testing.assert_allclose(found, problem.log_prior(latents), rtol=1e-6, atol=1e-6)


def groups(x=None):
    with numpyro.plate("g", 3):
        theta = numpyro.sample("theta", dist.LogNormal(0.0, 2.0))
        numpyro.sample("x", Simulator(flat, theta, event_dims=0), obs=x)


def hidden_parent(x=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, scale))
    numpyro.sample("x", Simulator(flat, theta), obs=x)


def part_of_parent(x=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Normal(0.0, scale[1]))
    numpyro.sample("x", Simulator(flat, theta, scale[0]), obs=x)


INEXACT = {
    "sum": (
        model_of(
            lambda m, s, e: (m + s * e, jnp.exp(m)),
            m=dist.Normal(0.0, 2.0),
            s=dist.HalfNormal(1.0),
            e=dist.Normal(0.0, 1.0),
        ),
        "argument 0 was not recognised as an elementwise function of one latent",
    ),
    "unknown function": (
        model_of(lambda m: (m**3,), m=dist.Normal(0.0, 1.0)),
        "argument 0 was not recognised",
    ),
    "hidden parent": (hidden_parent, "their prior depends on scale, which the simulator does not take"),
    "part of a parent": (part_of_parent, "takes only a part of scale, whose entries belong together"),
    "part of a correlated prior": (
        model_of(lambda t: (t[0],), t=dist.MultivariateNormal(jnp.zeros(2), COVARIANCE)),
        "takes only a part of t",
    ),
    "no map": (
        model_of(lambda p: (p,), p=dist.ZeroSumNormal(1.0, (3,))),
        "of p: the entries of a ZeroSumNormal are tied",
    ),
    "groups": (groups, "the simulator's parameters vary along plates"),
}


def arguments_at(coordinates):
    """What coordinates give at twenty normal points, `(20, p)`."""
    z = np.random.default_rng(0).normal(size=(20, coordinates.dim)).astype(np.float32)
    return np.asarray(jax.jit(jax.vmap(coordinates.inverse))(z))


@each_kind
def test_simulations_show_the_coordinates_that_prior_draws_show(name, monkeypatch):
    """Nothing is drawn for them."""
    problem = Problem.read(exact()[name][0])
    draws, expected = problem.draw(random.key(1), 150), Coordinates.from_prior(random.key(0), problem)
    monkeypatch.delattr(Problem, "draw")
    found = Coordinates.from_simulations(random.key(0), problem, "x", draws)
    assert found.exact and found.names == expected.names
    np.testing.assert_allclose(arguments_at(found), arguments_at(expected), rtol=2e-5)


def test_a_table_of_the_latents_shows_the_coordinates_that_prior_draws_show(monkeypatch):
    """Nothing is drawn, where the arguments are the latents in their order; else they are, as where one is constant."""
    in_order = model_of(lambda a, b: (a, *b), a=dist.Gamma(2.0), b=dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    turned = model_of(lambda a, b: (*b, a), a=dist.Gamma(2.0), b=dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    drawn = []
    monkeypatch.setattr(Problem, "draw", lambda *a, own=Problem.draw: drawn.append(a) or own(*a))
    for model, varies, needs in ((in_order, True, 0), (turned, True, 1), (in_order, False, 1)):
        problem = Problem.read(model)
        expected, table = Coordinates.from_prior(random.key(0), problem), problem.draw(random.key(1), 150)
        theta = np.array(table.arguments["x"])
        theta[:, 1] = theta[:, 1] if varies else 0.5
        drawn.clear()
        found = Coordinates.from_simulations(random.key(0), problem, "x", Draws({}, {"x": theta}))
        assert len(drawn) == needs and found.exact and found.names == expected.names
        np.testing.assert_allclose(arguments_at(found), arguments_at(expected), rtol=2e-5)


def other(**changes):
    """A model of two latents and a covariate, as it is or changed, and simulations from it."""
    settings = {"function": jnp.exp, "covariate": 2.0} | changes
    model = model_of(
        lambda a, b: (settings["function"](a), b, settings["covariate"]), a=dist.Normal(0.0, 1.0), b=dist.Gamma(2.0)
    )
    problem = Problem.read(model)
    return problem, problem.draw(random.key(1), 150)


@pytest.mark.parametrize(
    "changed",
    [{"function": jnp.expm1}, pytest.param({"function": jnp.negative}, marks=pytest.mark.slow), {"covariate": 3.0}],
)
def test_simulations_of_a_model_that_was_another_do_not_tell(changed):
    """Another function of a latent since, or another covariate: the model as it is now counts."""
    problem, (_, simulated) = other()[0], other(**changed)
    found = Coordinates.from_simulations(random.key(0), problem, "x", simulated)
    a, _, covariate = arguments_at(found).T
    assert np.all(a > 0.0) and np.all(covariate == 2.0)  # exp(a) and 2, not exp(a) - 1, -a or 3


def test_a_model_that_was_bounded_since_is_not_that_of_its_simulations():
    """Where few of them show it."""
    problem, (_, simulated) = other(function=lambda a: jnp.minimum(jnp.exp(a), 8.0))[0], other()
    assert 0 < np.sum(simulated.arguments["x"][:, 0] > 8.0) < 10
    assert not Coordinates.from_simulations(random.key(0), problem, "x", simulated).exact


def test_too_few_simulations_and_those_without_latents_do_not_tell(monkeypatch):
    problem, draws = other()
    drawn = []
    monkeypatch.setattr(Problem, "draw", lambda *a, own=Problem.draw: drawn.append(a) or own(*a))
    for latents, rows in ((draws.latents, 90), ({}, 150), ({"a": draws.latents["a"]}, 150)):
        some = Draws({name: values[:rows] for name, values in latents.items()}, {"x": draws.arguments["x"][:rows]})
        assert Coordinates.from_simulations(random.key(0), problem, "x", some).exact
    assert len(drawn) == 3


@pytest.mark.x64
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "unknown function" else ()) for n in INEXACT]
)
def test_coordinates_that_are_only_about_normal_say_why(name):
    model, reason = INEXACT[name]
    problem = Problem.read(model)
    coordinates = Coordinates.from_prior(random.key(0), problem, num_draws=400)
    assert not coordinates.exact and not coordinates.one_to_one
    assert "only about standard normal" in coordinates.note and reason in coordinates.note
    a = problem.draw(random.key(1), 400).arguments["x"]
    a = a.reshape(-1, a.shape[-1])
    z, back = there_and_back(coordinates, a)
    np.testing.assert_allclose(back, a, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.median(z, axis=0), 0.0, atol=0.35)  # 5 standard errors of each of two medians
    np.testing.assert_allclose(np.mean(np.abs(z) < 1.0, axis=0), 0.683, atol=0.17)


def test_skewed_arguments_are_standardised_on_their_scale():
    problem = Problem.read(
        model_of(
            lambda m, e: (jnp.exp(m + e), expit(2.0 * m + e), m + e),
            m=dist.Normal(0.0, 1.0),
            e=dist.Normal(0.0, 1.0),
        )
    )
    coordinates = Coordinates.from_prior(random.key(0), problem)
    assert [column.link for column in coordinates.columns] == ["exp", "expit", "identity"]


MIDDLES = (np.arange(500) + 0.5) / 500
POSITIVE = {
    "half-normal": (dist.HalfNormal(0.3), st.halfnorm(scale=0.3)),
    "gamma": (dist.Gamma(2.0, 5.0), st.gamma(2.0, scale=0.2)),
    "exponential": (dist.Exponential(0.1), st.expon(scale=10.0)),
}


def around_a_dose(rng_key, sd, dose):
    return dose + sd * random.normal(rng_key)


@pytest.mark.parametrize("name", POSITIVE)
def test_a_positive_argument_beside_a_covariate_is_about_normal_down_to_zero(name):
    prior, same = POSITIVE[name]

    def model(dose, y=None):
        sd = numpyro.sample("sd", prior)
        with numpyro.plate("trials", len(dose)):
            numpyro.sample("y", Simulator(around_a_dose, sd, dose, event_dims=0), obs=y)

    coordinates = Coordinates.from_prior(random.key(0), Problem.read(model, np.linspace(0.0, 4.0, 5, dtype=np.float32)))
    sd = np.concatenate([[0.0], same.ppf(MIDDLES)])
    z = coordinates.table(np.stack([sd, np.ones_like(sd)], axis=1))[:, 0]
    assert np.isfinite(z).all() and np.all(np.diff(z) > 0.0)
    assert np.corrcoef(z[1:], st.norm().ppf(MIDDLES))[0, 1] > 0.985


LINKS = {
    "identity": (lambda t: t, st.norm()),
    "exp": (np.exp, st.norm(0, 2)),
    "log": (np.log, st.gamma(2)),
    "expit": (special.expit, st.norm(0, 1.5)),
    "logit": (special.logit, st.beta(2, 2)),
    "reciprocal": (lambda t: 1 / t, st.gamma(3)),
    "square": (lambda t: t * t, st.halfnorm()),
    "sqrt": (np.sqrt, st.halfnorm()),
    "log1p": (np.log1p, st.halfnorm(scale=3)),
    "expm1": (np.expm1, st.norm()),
    "softplus": (lambda t: np.logaddexp(t, 0.0, dtype=t.dtype), st.norm()),
}


@pytest.mark.x64
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(LINKS))
def test_functions_are_recognised_with_affine_maps_around_them(name, dtype, rng):
    h, prior = LINKS[name]
    t = prior.rvs(300, random_state=rng).astype(dtype)
    inside = np.abs(t) * dtype(0.25) + dtype(0.1)  # in the domain of every function
    for a, s, plain in (
        (h(t), t, True),
        (h(inside), np.abs(t), False),
        (dtype(2.0) * h(t) - dtype(7.0), t, False),
    ):
        assert a.dtype == dtype
        column = matching.find(a, s)
        assert column is not None
        assert not plain or column.link == name
        tolerance = 1e-3 if dtype is np.float32 else 1e-6
        np.testing.assert_allclose(column.solve(a), s, atol=tolerance * s.std())


def test_a_straight_line_is_recognised_whatever_its_range_but_a_constant_is_none():
    t = np.linspace(-1.0, 1.0, 50)
    for slope in (0.5, 1.0, -1.0, -2.0):
        np.testing.assert_allclose(matching.find(3.0 + slope * t, t).solve(3.0 + slope * t), t, atol=1e-6)
    assert matching.find(np.full(50, 3.0), t) is None


@pytest.mark.parametrize("a", [lambda t: t**3, np.sin, lambda t: np.exp(t) + t], ids=["cube", "sine", "sum"])
def test_other_functions_are_not_taken_for_one_of_the_list(a, rng):
    t = rng.normal(size=300).astype(np.float32)
    assert matching.find(a(t), t) is None


@pytest.mark.smoke
@pytest.mark.x64
def test_standardising_a_table():
    table = np.random.default_rng(0).normal([1.0, -50.0, 0.0], [2.0, 0.1, 0.0], (500, 3)) + np.array([0.0, 0.0, 4.0])
    coordinates = Coordinates.standardise(table)
    assert coordinates.dim == 2 and not coordinates.exact and "no prior is known" in coordinates.note
    z = jax.vmap(coordinates.forward)(table)
    np.testing.assert_allclose(np.median(z, axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(np.mean(np.abs(z) < 1.0, axis=0), 0.683, atol=0.03)
    np.testing.assert_allclose(jax.vmap(coordinates.inverse)(z), table, rtol=1e-12)
    low, median, high = np.quantile(table[:, 0], [0.158655, 0.5, 0.841345])
    np.testing.assert_allclose(z[:, 0], (table[:, 0] - median) / ((high - low) / 2), rtol=1e-12, atol=1e-12)


@pytest.mark.x64
def test_coordinates_are_a_pytree_with_derivatives():
    problem = Problem.read(dependent)
    coordinates = Coordinates.from_prior(random.key(0), problem, num_draws=100)
    a = problem.draw(random.key(2), 1).arguments["x"][0]
    inside = jax.jit(lambda c, a: jax.jacobian(c.forward)(a))(coordinates, a)
    steps = 1e-6 * np.kron([[1.0], [-1.0]], np.eye(4))
    ends = jax.jit(jax.vmap(coordinates.forward))(a + steps)
    np.testing.assert_allclose(inside, (ends[:4] - ends[4:]).T / 2e-6, rtol=1e-5, atol=1e-5)
    leaves = jax.tree.leaves(coordinates)
    assert leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves)


@pytest.fixture(scope="module")
def correlated():
    problem = Problem.read(exact()["correlated"][0])
    return Coordinates.from_prior(random.key(0), problem, num_draws=50), problem


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda c, p: c.forward(np.zeros((4, 2))),
            r"`a` must be one point of shape \(2,\); got \(4, 2\). Use jax.vmap",
        ),
        (lambda c, p: c.inverse(np.zeros(3)), r"`z` must be one point of shape \(2,\); got \(3,\)"),
        (lambda c, p: Coordinates.standardise(np.ones(3)), r"`table` must have shape \(points, dim\)"),
        (lambda c, p: Coordinates.standardise(np.ones((1, 2))), "`table` must have at least 2 rows"),
        (lambda c, p: Coordinates.standardise(np.ones((3, 1))), "All rows of `table` are the same"),
        (
            lambda c, p: Coordinates.standardise(np.array([[np.nan], [1.0]])),
            "`table` has 1 entries that are not finite",
        ),
        (lambda c, p: Coordinates.from_prior(random.key(0), p, "y"), r"simulator sites, \['x'\], by `site=`; got 'y'"),
        (
            lambda c, p: Coordinates.from_prior(
                random.key(0), Problem.read(model_of(lambda t: (0.0 * t,), t=dist.Normal()))
            ),
            "are the same in all prior draws",
        ),
        (
            lambda c, p: Coordinates.from_prior(
                random.key(0),
                Problem.read(model_of(lambda t: (jnp.exp(jnp.exp(t)),), t=dist.Normal(0.0, 9.0))),
            ),
            r"arguments of the simulator at 'x'` has .* not finite.*Narrow the prior",
        ),
    ],
)
def test_bad_input_is_explained(correlated, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(*correlated)


def numpy_prior(x=None):
    """JAX remembers the precision in which it first met a NumPy array; this prior has one."""
    t = numpyro.sample("t", dist.Normal(MEAN, 0.5).to_event(1))
    r = numpyro.sample("r", dist.HalfNormal(jnp.exp(t[0])))
    numpyro.sample("x", Simulator(flat, 3.0 * jnp.exp(0.5 + t), r))


MEAN = np.array([0.0, 5.0])


def test_single_precision_and_priors_of_numpy_arrays():
    problem = Problem.read(numpy_prior)
    coordinates = Coordinates.from_prior(random.key(0), problem)
    assert coordinates.exact, coordinates.note
    draws = problem.draw(random.key(1), 100)
    a = draws.arguments["x"]
    z, back = there_and_back(coordinates, a)
    assert z.dtype == back.dtype == np.float32
    np.testing.assert_allclose(back, a, rtol=1e-5)
    with jax.enable_x64(True):
        z64, _ = there_and_back(coordinates, np.asarray(a, np.float64))
        assert z64.dtype == np.float64
    np.testing.assert_allclose(z, z64, atol=2e-5)
    assert np.isfinite(jax.jit(jax.grad(lambda a: coordinates.forward(a).sum()))(jnp.asarray(a[0]))).all()
    t, r = (np.asarray(draws.latents[name], np.float64) for name in ("t", "r"))
    log_prior = st.norm.logpdf(t, MEAN, 0.5).sum(1) + st.halfnorm.logpdf(r, scale=np.exp(t[:, 0]))
    np.testing.assert_allclose(problem.log_prior(draws.latents), log_prior, rtol=1e-4, atol=1e-4)
