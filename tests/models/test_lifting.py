"""Noise lifted out of simulators: the law against SciPy's, tails, derivatives, program structure, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax, random
from scipy import stats

from numpyro_kme.models import lift_noise
from numpyro_kme.models.lifting import NoiseNotLifted

NUMBER = 65_536
Z = np.array([-8.0, -6.0, -4.0, -1.0, 0.5, 4.0, 6.0, 8.0])

LAWS = {
    "normal": (lambda k: random.normal(k), stats.norm()),
    "uniform": (lambda k: random.uniform(k, minval=-1.0, maxval=3.0), stats.uniform(-1.0, 4.0)),
    "exponential": (lambda k: random.exponential(k), stats.expon()),
    "laplace": (lambda k: random.laplace(k), stats.laplace()),
    "logistic": (lambda k: random.logistic(k), stats.logistic()),
    "cauchy": (lambda k: random.cauchy(k), stats.cauchy()),
    "gumbel": (lambda k: random.gumbel(k), stats.gumbel_r()),
    "truncated normal": (lambda k: random.truncated_normal(k, -1.0, 2.0), stats.truncnorm(-1.0, 2.0)),
    "far truncated normal": (lambda k: random.truncated_normal(k, 3.0, 4.0), stats.truncnorm(3.0, 4.0)),
    "weibull": (lambda k: random.weibull_min(k, 2.0, 1.5), stats.weibull_min(1.5, scale=2.0)),
    "rayleigh": (lambda k: random.rayleigh(k, 2.0), stats.rayleigh(scale=2.0)),
    "pareto": (lambda k: random.pareto(k, 2.5), stats.pareto(2.5)),
    "lognormal": (lambda k: random.lognormal(k, 0.5), stats.lognorm(0.5)),
    "gamma": (lambda k: random.gamma(k, 2.3), stats.gamma(2.3)),
    "gamma of small shape": (lambda k: random.gamma(k, 0.2), stats.gamma(0.2)),
    "poisson": (lambda k: random.poisson(k, 3.7), stats.poisson(3.7)),
    "binomial": (lambda k: random.binomial(k, 12.0, 0.3), stats.binom(12, 0.3)),
    "geometric": (lambda k: random.geometric(k, 0.3), stats.geom(0.3)),
    "randint": (lambda k: random.randint(k, (), -2, 9), stats.randint(-2, 9)),
}
"""What takes one number by its quantile function."""

MADE = {
    "beta": (lambda k: random.beta(k, 2.0, 3.0), stats.beta(2.0, 3.0), 2),
    "chi-square": (lambda k: random.chisquare(k, 3.0), stats.chi2(3.0), 1),
    "t": (lambda k: random.t(k, 3.0), stats.t(3.0), 2),
    "f": (lambda k: random.f(k, 3.0, 7.0), stats.f(3.0, 7.0), 2),
    "maxwell": (lambda k: random.maxwell(k), stats.maxwell(), 3),
    "triangular": (lambda k: random.triangular(k, 0.0, 0.3, 1.0), stats.triang(0.3), 1),
    "wald": (lambda k: random.wald(k, 2.0), stats.invgauss(2.0), 2),
    "generalised normal": (lambda k: random.generalized_normal(k, 1.5), stats.gennorm(1.5), 2),
    "bernoulli": (lambda k: random.bernoulli(k, 0.3), stats.bernoulli(0.3), 1),
    "rademacher": (lambda k: (random.rademacher(k, ()) + 1) // 2, stats.bernoulli(0.5), 1),
    "categorical": (lambda k: random.categorical(k, jnp.log(jnp.array([0.7, 0.3]))), stats.bernoulli(0.3), 2),
    "choice": (lambda k: random.choice(k, 4), stats.randint(0, 4), 1),
    "without replacement": (lambda k: random.choice(k, 4, (2,), replace=False)[1], stats.randint(0, 4), 4),
    "permutation": (lambda k: random.permutation(k, 4)[2], stats.randint(0, 4), 4),
    "multivariate normal": (
        lambda k: random.multivariate_normal(k, jnp.ones(2), jnp.array([[2.0, 0.5], [0.5, 1.0]])).sum(),
        stats.norm(2.0, 2.0),
        2,
    ),
    "dirichlet": (lambda k: random.dirichlet(k, jnp.array([1.0, 2.0, 3.0]))[1], stats.beta(2.0, 4.0), 3),
    "words": (lambda k: random.bits(k).astype(float) * 2.0**-32, stats.uniform(), 1),
    "NumPyro's binomial": (lambda k: dist.Binomial(40, 0.3).sample(k), stats.binom(40, 0.3), 1),
    "NumPyro's gamma": (lambda k: dist.Gamma(2.0, 3.0).sample(k), stats.gamma(2.0, scale=1 / 3), 1),
    "NumPyro's t": (lambda k: dist.StudentT(5.0, 1.0, 2.0).sample(k), stats.t(5.0, 1.0, 2.0), 2),
    "negative binomial": (lambda k: dist.NegativeBinomialProbs(3.0, 0.4).sample(k), stats.nbinom(3.0, 0.6), 2),
    "beta-binomial": (lambda k: dist.BetaBinomial(2.0, 3.0, 9).sample(k), stats.betabinom(9, 2.0, 3.0), 3),
    "half-cauchy": (lambda k: dist.HalfCauchy(2.0).sample(k), stats.halfcauchy(scale=2.0), 1),
    "inverse gamma": (lambda k: dist.InverseGamma(3.0, 2.0).sample(k), stats.invgamma(3.0, scale=2.0), 1),
}
"""What is made of several draws, and how many numbers it takes."""

QUICK = ("normal", "gamma", "poisson", "randint", "beta", "without replacement")


def draws(fn):
    lifted = lift_noise(fn)
    return lifted, np.asarray(jax.jit(jax.vmap(lifted))(random.normal(random.key(1), (NUMBER, lifted.dim))))


def agrees(x, law):
    """The p-value of a Kolmogorov-Smirnov test, or of a chi-square test of counts."""
    assert np.isfinite(x).all()
    if hasattr(law.dist, "pdf"):
        return stats.kstest(x, law.cdf).pvalue
    low, high = (int(q) for q in law.ppf([1e-3, 1 - 1e-3]))
    observed = np.bincount(np.clip(x.astype(int), low, high) - low, minlength=high - low + 1)
    expected = law.pmf(np.arange(low, high + 1))
    expected[0], expected[-1] = law.cdf(low), law.sf(high - 1)
    return stats.chisquare(observed, NUMBER * expected).pvalue if high > low else 1.0


def cases(table):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in table]


@pytest.mark.parametrize("name", cases(LAWS))
def test_a_draw_by_its_quantile_function_has_its_law(name):
    fn, law = LAWS[name]
    lifted, x = draws(fn)
    assert lifted.dim == 1 and len(lifted.drawn) == 1
    assert agrees(x, law) > 1e-6


@pytest.mark.parametrize("name", cases(MADE))
def test_what_is_made_of_draws_has_its_law(name):
    fn, law, dim = MADE[name]
    lifted, x = draws(fn)
    assert lifted.dim == dim
    assert agrees(x, law) > 1e-6


def exact(law, z):
    """Quantiles at `ndtr(z)`, by the smaller tail; those of counts as the probabilities say, which SciPy may miss."""
    found = np.where(z < 0, law.ppf(stats.norm.cdf(z)), law.isf(stats.norm.sf(z)))
    if hasattr(law.dist, "pdf"):
        return found

    def reached(k):
        return np.where(z < 0, law.cdf(k) >= stats.norm.cdf(z), law.sf(k) <= stats.norm.sf(z))

    found = found + ~reached(found)
    assert reached(found).all()
    return found - reached(found - 1) * (found > law.support()[0])


def quantiles(fn):
    return np.asarray(jax.jit(jax.vmap(lift_noise(fn)))(jnp.asarray(Z, float)[:, None]), np.float64)


@pytest.mark.x64
@pytest.mark.parametrize("name", cases(LAWS))
def test_tails_in_64_bits(name):
    fn, law = LAWS[name]
    np.testing.assert_allclose(quantiles(fn), exact(law, Z), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", cases(LAWS))
def test_tails_in_32_bits(name):
    fn, law = LAWS[name]
    tolerance = 2e-3 if name == "gamma of small shape" else 2e-4  # x = u^(1 / a) multiplies rounding by 1 / a
    np.testing.assert_allclose(quantiles(fn), exact(law, Z), rtol=tolerance, atol=1e-6)


@pytest.mark.x64
@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 6.0, 400.0])
def test_quantiles_of_the_gamma_distribution_and_their_derivatives(shape):
    def log_draw(k, a):
        return random.loggamma(k, a)

    lifted, h = lift_noise(log_draw, shape), 1e-5
    both = jax.jit(jax.vmap(jax.value_and_grad(lambda z, a: lifted(z[None], a), argnums=(0, 1)), (0, None)))
    value, (by_z, by_a) = both(jnp.asarray(Z), shape)
    with np.errstate(divide="ignore"):
        log_exact = lambda a, z: np.log(exact(stats.gamma(a), z))  # noqa: E731
        found = np.isfinite(log_exact(shape, Z))
        of_z = (log_exact(shape, Z + h) - log_exact(shape, Z - h)) / (2 * h)
        of_a = (log_exact(shape * (1 + h), Z) - log_exact(shape * (1 - h), Z)) / (2 * h * shape)
        np.testing.assert_allclose(value[found], log_exact(shape, Z)[found], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(by_z[found], of_z[found], rtol=1e-5)
    np.testing.assert_allclose(by_a[found], of_a[found], rtol=1e-5)
    assert np.isfinite(value).all() and np.isfinite(by_a).all()


@pytest.mark.x64
@pytest.mark.slow
@pytest.mark.parametrize(
    "law, at, fn",
    [
        (stats.poisson, (0.01,), random.poisson),
        (stats.poisson, (30.0,), random.poisson),
        (stats.poisson, (4000.0,), random.poisson),
        (stats.binom, (1, 0.5), random.binomial),
        (stats.binom, (5000, 0.01), random.binomial),
        (stats.binom, (80, 0.97), random.binomial),
    ],
)
def test_counts_are_smallest_numbers_that_reach_their_probability(law, at, fn):
    z = np.concatenate([Z, np.linspace(-3.01, 3.02, 50)])
    lifted = lift_noise(lambda k, *at: fn(k, *at), *map(float, at))
    found = jax.vmap(lambda z: lifted(z[None], *map(float, at)))(z)
    np.testing.assert_array_equal(found, exact(law(*at), z))


def test_derivatives_by_parameters_are_those_of_the_quantile_function():
    def simulate(k, a, scale):
        one, two = random.split(k)
        return scale * random.gamma(one, a) + random.normal(two)

    lifted, z = lift_noise(simulate, 2.0, 3.0), jnp.array([0.7, -1.2])
    by_a, by_scale = jax.jit(jax.grad(lifted, argnums=(1, 2)))(z, 2.0, 3.0)
    ppf = lambda a: stats.gamma(a).ppf(stats.norm.cdf(0.7))  # noqa: E731
    np.testing.assert_allclose(by_a, 3.0 * (ppf(2.001) - ppf(1.999)) / 0.002, rtol=1e-3)
    np.testing.assert_allclose(by_scale, ppf(2.0), rtol=1e-4)
    counts = lift_noise(lambda k, rate: random.poisson(k, rate).astype(float), 3.0)
    assert jax.grad(counts, argnums=1)(z[:1], 3.0) == 0.0


def nested(k, t):
    inner = jax.jit(lambda k, t: t * random.normal(k))
    return inner(k, t) + 1.0


def with_checkpoint(k, t):
    return jax.checkpoint(lambda k: t * random.normal(k))(k) + 1.0


def with_rule(k, t):
    @jax.custom_jvp
    def noisy(t):
        return t * random.normal(k)

    noisy.defjvps(lambda dt, value, t: dt)
    return noisy(t) + 1.0


def scanned(k, t):
    return lax.scan(lambda x, k: (t * x + random.normal(k), x), 1.0, random.split(k, 3))[0]


def backwards(k, t):
    return lax.scan(lambda x, k: (t * x + random.normal(k), x), 1.0, random.split(k, 3), reverse=True)[0]


def carrying_a_key(k, t):
    def step(state, _):
        k, x = state
        k, now = random.split(k)
        return (k, t * x + random.normal(now)), None

    return lax.scan(step, (k, 1.0), None, 3)[0][1]


def in_a_loop(k, t):
    return lax.fori_loop(0, 3, lambda i, x: t * x + random.normal(random.fold_in(k, i)), 1.0)


def of_a_map(k, t):
    return jax.vmap(lambda k, a: a * random.normal(k))(random.split(k, 3), t * jnp.arange(1.0, 4.0))


def mapped_bounds(k, t):
    low = jnp.array([0.0, 1.0])
    return jax.vmap(lambda k, low: random.uniform(k, (2,), minval=low, maxval=low + t))(random.split(k), low)


def shared_noise(k, t):
    """One draw for all bounds."""
    return jax.vmap(lambda high: random.uniform(k, maxval=high))(t * jnp.array([1.0, 2.0]))


def switched(k, t):
    branches = [lambda k: random.normal(k), lambda k: 5.0 + 2.0 * random.normal(k), lambda k: t]
    return lax.switch(jnp.int32(t), branches, k)


def until(k, t):
    def more(state):
        return state[1] < t

    def step(state):
        i, x = state
        return i + 1, x + jnp.abs(random.normal(random.fold_in(k, i)))

    return lax.while_loop(more, step, (0, 0.0))[1]


def uniforms(z, low, width):
    return low + width * stats.norm.cdf(z)


@pytest.mark.parametrize(
    "fn, dim, by_hand",
    [
        (nested, 1, lambda z, t: 1 + t * z[0]),
        (with_checkpoint, 1, lambda z, t: 1 + t * z[0]),
        (with_rule, 1, lambda z, t: 1 + t * z[0]),
        (scanned, 3, lambda z, t: t * (t * (t + z[0]) + z[1]) + z[2]),
        (backwards, 3, lambda z, t: t * (t * (t + z[2]) + z[1]) + z[0]),
        (carrying_a_key, 3, lambda z, t: t * (t * (t + z[0]) + z[1]) + z[2]),
        (in_a_loop, 3, lambda z, t: t * (t * (t + z[0]) + z[1]) + z[2]),
        (of_a_map, 3, lambda z, t: t * np.arange(1, 4) * z),
        (mapped_bounds, 4, lambda z, t: uniforms(z.reshape(2, 2), np.array([[0.0], [1.0]]), t)),
        (shared_noise, 1, lambda z, t: uniforms(z[0], 0.0, t * np.array([1.0, 2.0]))),
        (switched, 2, lambda z, t: [z[0], 5 + 2 * z[1], t][int(t)]),
    ],
)
@pytest.mark.parametrize("t", [0.5, 1.5])
def test_programs_of_all_kinds_by_hand(fn, dim, by_hand, t):
    lifted = lift_noise(fn, t)
    z = np.linspace(-1.3, 1.1, dim).astype(np.float32)
    assert lifted.dim == dim
    np.testing.assert_allclose(lifted(z, t), by_hand(z, t), rtol=1e-5, atol=1e-6)


def test_a_loop_of_unknown_length_ends_or_says_so():
    with pytest.raises(NoiseNotLifted, match=r"draws random numbers inside a `while` loop \(.*until.*`most_loops`"):
        lift_noise(until, 1.0)
    lifted, z = lift_noise(until, 1.0, most_loops=4), np.float32([0.4, -0.5, 0.3, 9.0])
    assert lifted.dim == 4
    np.testing.assert_allclose(lifted(z, 1.0), 1.2, rtol=1e-6)
    assert np.isnan(lifted(0.1 * z[[0, 1, 2, 0]], 1.0))
    with pytest.raises(ValueError, match="`most_loops` must be at least 1; got 0"):
        lift_noise(until, 1.0, most_loops=0)


FIXED = random.key(5)


@pytest.mark.parametrize(
    "fn, sentence",
    [
        (lambda k: random.normal(k) + random.normal(k), "draws twice from one random key"),
        (lambda k: random.normal(k) + random.uniform(k), "draws twice from one random key"),
        (lambda k: lax.fori_loop(0, 2, lambda i, x: x + random.normal(k), 0.0), "draws twice from one random key"),
        (lambda k: jax.vmap(random.normal)(jnp.stack([k, k])), "draws twice from one random key"),
        (lambda k: random.normal(random.key(3)) + random.normal(k), r"makes a key of a seed \(.*test_lifting"),
        (lambda k: jnp.sum(random.key_data(k)).astype(float), "reads the numbers of a key"),
        (lambda k: dist.VonMises(0.0, 2.0).sample(k), "inside a `while` loop"),
        (lambda k: random.normal(FIXED) + random.normal(k), "has a key of its own"),
    ],
)
def test_what_no_normals_can_stand_for_is_refused_with_a_sentence(fn, sentence):
    with pytest.raises(NoiseNotLifted, match=sentence):
        lift_noise(fn)


def test_one_key_in_two_branches_is_drawn_from_once():
    lifted = lift_noise(lambda k, t: lax.cond(t > 0, random.normal, lambda k: -random.normal(k), k), 1.0)
    np.testing.assert_allclose(lifted(np.float32([0.3, 0.7]), 1.0), 0.7)  # a program lists the other branch first
    np.testing.assert_allclose(lifted(np.float32([0.3, 0.7]), -1.0), -0.3)


def test_no_function_of_the_users_is_taken_for_one_of_jax():
    @jax.jit
    def _gamma(k, a):
        return a + random.normal(k)

    lifted = lift_noise(lambda k, a: _gamma(k, a), 2.0)
    assert str(lifted) == "1 normal a draw, lifted"
    np.testing.assert_allclose(lifted(np.float32([0.3]), 2.0), 2.3)


def test_a_lifted_simulator_says_what_it_draws_and_what_it_takes():
    def simulate(k, t):
        one, two = random.split(k)
        return t + random.normal(one, (2,)).sum() + random.poisson(two, 3.0)

    lifted = lift_noise(simulate, 1.0)
    assert lifted.drawn == (("normal", 2), ("poisson", 1)) and lifted.dim == 3
    assert str(lifted) == "2 normal, 1 poisson a draw, lifted" and lifted.__name__ == "simulate"
    assert str(lift_noise(lambda k: random.uniform(k, (5,), maxval=2.0))) == "5 uniform a draw, lifted"
    assert str(lift_noise(lambda k: jnp.ones(2))) == "no noise a draw, lifted"
    with pytest.raises(ValueError, match=r"`z` must have shape \(3,\), .*got \(2,\)"):
        lifted(np.zeros(2), 1.0)


def test_it_is_found_while_jax_traces_and_in_either_precision():
    def simulate(k, t):
        return t + random.normal(k, (2,))

    dims = []

    @jax.jit
    def traced(t):
        lifted = lift_noise(simulate, np.float32(1.0))
        dims.append(lifted.dim)
        return lifted(jnp.zeros(2), t)

    np.testing.assert_array_equal(traced(2.0), [2.0, 2.0])
    with jax.enable_x64(True):
        assert lift_noise(simulate, 1.0)(jnp.zeros(2), 1.0).dtype == jnp.float64
    assert dims == [2]


def test_a_simulator_may_insist_on_its_precision_and_keys_on_their_kind():
    """As those do that JAX cannot trace in another precision; keys of four words are told apart as well."""

    def simulate(k, t):
        return lax.scan(lambda x, k: (lax.add(x, t * random.normal(k, dtype=jnp.float32)), None), jnp.float32(0), k)[0]

    lifted = lift_noise(lambda k, t: simulate(random.split(k, 2), t), np.float32(2.0))
    np.testing.assert_allclose(lifted(np.float32([0.3, 0.4]), np.float32(2.0)), 1.4, rtol=1e-6)
    with jax.default_prng_impl("rbg"):
        assert lift_noise(lambda k: random.normal(k) + random.normal(random.split(k)[0])).dim == 2
        with pytest.raises(NoiseNotLifted, match="draws twice"):
            lift_noise(lambda k: random.normal(k) + random.normal(k))
