"""Noise lifted out of simulators: quantile functions, program structure, refusals; `test_samplers` has all samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax, random
from sampler_rows import exact
from scipy import integrate, stats
from scipy.special import i0e

from numpyro_kme.models import lift_noise, quantiles, special_quantiles
from numpyro_kme.models.lifting import NoiseNotLifted
from numpyro_kme.models.playing import Player

Z = np.array([-8.0, -6.0, -4.0, -1.0, 0.5, 4.0, 6.0, 8.0])


@pytest.fixture(scope="module")
def log_gamma():
    """Logarithm of a gamma draw at `(z, shape)` and its derivatives."""
    lifted = lift_noise(lambda k, a: random.loggamma(k, a), 1.0)
    return jax.jit(jax.vmap(jax.value_and_grad(lambda z, a: lifted(z[None], a), argnums=(0, 1)), (0, None)))


@pytest.mark.x64
@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 6.0, 400.0])
def test_quantiles_of_the_gamma_distribution_and_their_derivatives(log_gamma, shape):
    h = 1e-5
    value, (by_z, by_a) = log_gamma(Z, shape)
    with np.errstate(divide="ignore"):
        log_exact = lambda a, z: np.log(exact(stats.gamma(a), z))  # noqa: E731
        found = np.isfinite(log_exact(shape, Z))
        of_z = (log_exact(shape, Z + h) - log_exact(shape, Z - h)) / (2 * h)
        of_a = (log_exact(shape * (1 + h), Z) - log_exact(shape * (1 - h), Z)) / (2 * h * shape)
        np.testing.assert_allclose(value[found], log_exact(shape, Z)[found], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(by_z[found], of_z[found], rtol=1e-5)
    np.testing.assert_allclose(by_a[found], of_a[found], rtol=1e-5)
    assert np.isfinite(value).all() and np.isfinite(by_a).all()


slope = jax.jit(jax.vmap(jax.grad(lambda a, z: special_quantiles.log_gamma(z, a)), (None, 0)))
slope_by_shape = jax.jit(jax.jacfwd(slope))


@pytest.mark.x64
@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0, 6.0])
def test_second_derivatives_of_gamma_quantiles_at_whole_shapes_too(shape):
    """Where the continued fraction of the upper tail ends early, and its derivatives do not."""
    z, h = np.array([-6.0, -1.0, 0.3, 0.6, 1.0, 1.2, 2.0, 6.0]), 1e-4
    by_shape = slope_by_shape(shape, z)
    by_differences = (slope(shape * (1.0 + h), z) - slope(shape * (1.0 - h), z)) / (2.0 * h * shape)
    np.testing.assert_allclose(by_shape, by_differences, rtol=1e-5)


@pytest.mark.x64
def test_poisson_numbers_of_many_rates_by_one_program():
    """Exact up to rates of 10,000, and one off at most above."""
    z, rates = np.linspace(-6.01, 6.02, 40), np.array([0.01, 3.0, 200.0, 4000.0, 2e4, 3e6])
    found = jax.jit(special_quantiles.poisson)(np.tile(z, (len(rates), 1)), rates[:, None])
    for at, rate in zip(found[:4], rates):
        np.testing.assert_array_equal(at, exact(stats.poisson(rate), z))
    for at, rate in zip(found[4:], rates[4:]):
        law = stats.poisson(rate)
        expected = np.where(z < 0, law.ppf(stats.norm.cdf(z)), law.isf(stats.norm.sf(z)))
        np.testing.assert_allclose(at, expected, atol=1.0, rtol=0.0)


whole_numbers = jax.jit(quantiles.randint)


@pytest.mark.parametrize("high", [7, 70_001, 2**31 - 1])
def test_whole_numbers_are_the_upper_word_of_an_exact_product(high, rng):
    z = np.float32(rng.normal(size=500))
    found = np.asarray(whole_numbers(z, np.int32(-3), np.int32(high - 3))).astype(np.int32)  # modulo 2^32
    exact = [-3 + int(word) * high // 2**32 for word in quantiles.words(z, 32)]
    np.testing.assert_array_equal(found, exact)


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


@pytest.mark.x64
@pytest.mark.parametrize("concentration", [0.01, 2.0, 10.0, 300.0])
def test_quantiles_of_the_von_mises_distribution_and_their_derivatives(concentration):
    """By quadrature; SciPy's has no relative precision, and takes a normal distribution from 50 on."""
    lifted, z, h = lift_noise(lambda k, c: dist.VonMises(0.0, c).sample(k), concentration), Z[1:-1], 1e-5
    both = jax.jit(jax.vmap(jax.value_and_grad(lambda z, c: lifted(z[None], c), argnums=(0, 1)), (0, None)))
    x, (by_z, by_c) = (np.asarray(found) for found in both(z, concentration))

    def below(x, c=concentration):
        least = max(-np.pi, -abs(x) - 12 / np.sqrt(c))
        density = lambda t: np.exp(c * (np.cos(t) - 1)) / (2 * np.pi * i0e(c))  # noqa: E731
        return integrate.quad(density, least, -abs(x), epsabs=0.0, epsrel=1e-12, limit=200)[0], density(x)

    (mass, density), up, down = (
        np.array([below(x, c)[:2] for x in x]).T for c in concentration * np.array([1, 1 + h, 1 - h])
    )
    np.testing.assert_allclose(mass, stats.norm.cdf(-np.abs(z)), rtol=1e-6)
    np.testing.assert_allclose(by_z, stats.norm.pdf(z) / density, rtol=1e-6)
    by_hand = np.sign(x) * (up[0] - down[0]) / (2 * h * concentration * density)
    np.testing.assert_allclose(by_c, by_hand, rtol=1e-4, atol=1e-9)


def test_arguments_at_the_ends_of_their_ranges_give_what_jax_gives():
    nan = np.nan

    def simulate(k, a, b, c, d):
        k = random.split(k, 5)
        return jnp.concatenate(
            [
                random.uniform(k[0], (3,), jnp.float32, minval=a, maxval=1.0),
                random.poisson(k[1], b).astype(jnp.float32),
                random.binomial(k[2], 10.0, c),
                random.binomial(k[3], d, jnp.array([1.0, 1.0, 1.0, 0.3])),
                random.gamma(k[4], 0.0 * jnp.ones(1)),
            ]
        )

    at = (
        np.float32([3.0, nan, 1.0]),
        np.float32([-1.0, nan, 0.0]),
        np.float32([1.2, -0.1, nan]),
        np.float32([10.7, -1.0, nan, np.inf]),
    )
    lifted = lift_noise(simulate, *at)
    found = jax.jit(lifted)(random.normal(random.key(0), (lifted.dim,)), *at)
    np.testing.assert_array_equal(found, jax.jit(simulate)(random.key(1), *at))
    whole = lift_noise(lambda k, low: random.uniform(k, minval=low, maxval=5), 2)
    np.testing.assert_allclose(whole(np.float32([1.0]), 2), 2 + 3 * stats.norm.cdf(1), rtol=1e-6)


def test_far_tails_and_high_concentrations_in_single_precision():
    far = lift_noise(lambda k, a: random.truncated_normal(k, a, a + 1.0), 1.0)
    z = np.float32([[-3.0], [0.0], [3.0]])
    value, slope = (fn(z, np.float32(40.0)) for fn in on_rows(far))
    np.testing.assert_allclose(value, 40.0, rtol=1e-6)
    np.testing.assert_allclose(slope, 1.0)
    narrow = lift_noise(lambda k, c: dist.VonMises(0.0, c, validate_args=False).sample(k), 1e7)
    found = jax.jit(jax.vmap(narrow, (0, None)))(z, 1e7)
    np.testing.assert_allclose(found, z[:, 0] / np.sqrt(1e7), rtol=1e-3, atol=1e-9)


def test_draws_keep_to_the_ranges_that_those_of_jax_keep_to():
    """Though `ndtr(8)` rounds to 1."""

    def simulate(k, high):
        a, b, c, d, e = random.split(k, 5)
        tail = random.uniform(a, (), jnp.float32, 2.0, high)
        certain = random.bernoulli(b, jnp.float32(1.0))
        above = random.truncated_normal(c, jnp.float32(1.0), jnp.inf)
        empty = random.randint(d, (), jnp.int32(3), jnp.int32(1))
        whole = random.randint(e, (), jnp.float32(-4.0), jnp.float32(0.0))
        return jnp.stack([tail, certain, above, empty, whole])

    lifted = lift_noise(simulate, np.float32(3.0))
    (low, high), slope = (
        fn(np.float32([[-8.0], [8.0]]) * np.ones(5, np.float32), np.float32(3.0)) for fn in on_rows(lifted)
    )
    assert low[0] == 2.0 and high[0] == np.nextafter(np.float32(3), np.float32(2))
    np.testing.assert_allclose(slope[:, 0], [0.0, 1.0], atol=1e-6)
    assert low[1] == high[1] == 1.0 and low[2] > 1.0 and np.isfinite(high[2])
    assert low[3] == high[3] == 3.0 and (low[4], high[4]) == (-4.0, -1.0)


def on_rows(fn):
    return [jax.jit(jax.vmap(one, (0, None))) for one in (fn, jax.jacfwd(fn, argnums=1))]


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


LOW = np.array([0.0, 10.0, 100.0], np.float32)


def mapped_over_columns(k, t):
    low = jnp.asarray(LOW + np.arange(3, dtype=np.float32)[:, None])
    return jax.vmap(lambda k, low: random.uniform(k, (3,), minval=low, maxval=low + t), (0, 1))(random.split(k, 3), low)


def mapped_twice(k, t):
    """Bounds of the inner calls, each of which draws as many numbers as there are calls."""
    draw = jax.vmap(lambda k, low: random.uniform(k, (3,), minval=low, maxval=low + t), (0, 0))
    return jax.vmap(lambda k: draw(k, jnp.asarray(LOW)))(random.split(k, (2, 3)))


def slopes_of_draws(k, t):
    return jax.value_and_grad(lambda low: random.uniform(k, minval=low, maxval=3.0) ** 2)(t)[1]


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


def columns(z, t):
    return uniforms(z.reshape(3, 3), LOW[:, None] + np.arange(3.0), t)


def doubles(z, t):
    return uniforms(z.reshape(2, 3, 3), LOW[:, None], t)


def slopes(z, t):
    u = stats.norm.cdf(z[0])
    return 2.0 * (t + (3.0 - t) * u) * (1.0 - u)


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
        (mapped_over_columns, 9, columns),
        (mapped_twice, 18, doubles),
        (slopes_of_draws, 1, slopes),
        (switched, 2, lambda z, t: [z[0], 5 + 2 * z[1], t][int(t)]),
    ],
)
@pytest.mark.parametrize("t", [0.5, 1.5])
def test_programs_of_all_kinds_by_hand(fn, dim, by_hand, t):
    lifted = lift_noise(fn, t)
    z = np.linspace(-1.3, 1.1, dim).astype(np.float32)
    assert lifted.dim == dim
    np.testing.assert_allclose(jax.jit(lifted)(z, t), by_hand(z, t), rtol=1e-5, atol=1e-6)


def test_a_loop_of_unknown_length_ends_or_says_so():
    with pytest.raises(NoiseNotLifted, match=r"draws random numbers inside a `while` loop \(.*until.*`most_loops`"):
        lift_noise(until, 1.0)
    lifted, z = lift_noise(until, 1.0, most_loops=4), np.float32([0.4, -0.5, 0.3, 9.0])
    assert lifted.dim == 4
    np.testing.assert_allclose(lifted(z, 1.0), 1.2, rtol=1e-6)
    assert np.isnan(lifted(0.1 * z[[0, 1, 2, 0]], 1.0))
    with pytest.raises(ValueError, match="`most_loops` must be at least 1; got 0"):
        lift_noise(until, 1.0, most_loops=0)


def test_a_loop_whose_condition_draws_does_not_go_on_after_its_end():
    def trials(k):
        return lax.while_loop(lambda i: random.uniform(random.fold_in(k, i)) < 0.5, lambda i: i + 1, 0)

    lifted = lift_noise(trials, most_loops=4)
    for z, found in [([-1, -1, 1, -1], 2), ([1, -1, -1, -1], 0), ([-1, -1, -1, -1], np.iinfo(np.int32).max)]:
        assert lifted(np.float32(z)) == found


FIXED = random.key(5)


def between_branches(condition):
    """One key for a draw, and for another in a branch that is taken at some parameters or draws only."""

    def simulate(k, t):
        x = random.normal(k)
        return lax.cond(condition(x, t), lambda: x + random.normal(k), lambda: x)

    return simulate


def from_key_and_children(draw):
    """JAX makes further keys of the key of such a draw."""
    return lambda k, t: draw(k, t) + random.normal(random.fold_in(k, 1))


def of_chosen_key(k, t):
    k = random.split(k, 4)
    return random.normal(k[random.randint(k[3], (), 0, 3)]) + random.normal(k[0])


def two_of_one_branch(k, t):
    b = random.fold_in(k, 0)
    return lax.cond(t > 2.0, lambda: random.normal(b), lambda: random.normal(b) + random.uniform(b))


@pytest.mark.parametrize(
    "fn, sentence",
    [
        (lambda k: random.normal(k) + random.normal(k), "draws twice from one random key"),
        (lambda k: random.normal(k) + random.uniform(k), "draws twice from one random key"),
        (lambda k: lax.fori_loop(0, 2, lambda i, x: x + random.normal(k), 0.0), "draws twice from one random key"),
        (lambda k: jax.vmap(random.normal)(jnp.stack([k, k])), "draws twice from one random key"),
        (lambda k: random.normal(random.key(3)) + random.normal(k), r"makes a key of a seed \(.*test_lifting"),
        (lambda k: jnp.sum(random.key_data(k)).astype(float), "reads the numbers of a key"),
        (lambda k: dist.HurdlePoisson(0.3, 2.0).sample(k), "inside a `while` loop"),
        (
            lambda k: lax.custom_linear_solve(lambda x: 2.0 * x + random.normal(k), 1.0, lambda f, b: b),
            "inside `custom_linear_solve`",
        ),
        (lambda k: random.normal(FIXED) + random.normal(k), "has a key of its own"),
    ],
)
def test_what_no_normals_can_stand_for_is_refused_with_a_sentence(fn, sentence):
    with pytest.raises(NoiseNotLifted, match=sentence):
        lift_noise(fn)


@pytest.mark.parametrize(
    "fn, t, sentence",
    [
        (between_branches(lambda x, t: t > 2.0), 1.0, "draws twice from one random key"),
        (between_branches(lambda x, t: x > t), 1.0, "draws twice from one random key"),
        (two_of_one_branch, 5.0, "draws twice from one random key"),
        (from_key_and_children(random.poisson), 2.0, "draws twice from one random key"),
        (from_key_and_children(lambda k, t: random.gamma(k, t * jnp.ones(2)).sum()), 2.0, "draws twice"),
        (of_chosen_key, 1.0, "takes other random keys with other parameters, or with other draws"),
        (
            lambda k, n: random.normal(random.fold_in(k, n)) + random.normal(random.fold_in(k, 0)),
            np.int32(1),
            "takes other random keys with other parameters, or with other draws",
        ),
    ],
)
def test_keys_that_are_shared_somewhere_else_are_noticed(fn, t, sentence):
    with pytest.raises(NoiseNotLifted, match=sentence):
        lift_noise(fn, t)


def test_counts_that_vmap_mixes_are_refused_by_their_name():
    def simulate(k, t):
        rates = t * jnp.ones((3, 3))
        return jax.vmap(lambda k, rate: random.poisson(k, rate, (3,)), (0, 1))(random.split(k, 3), rates)

    with pytest.raises(NoiseNotLifted, match=r"draws poisson numbers \(.*test_lifting.* inside a `vmap` in a way"):
        lift_noise(simulate, 1.0)


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


def test_programs_inside_programs_are_looked_at_once(monkeypatch):
    seen = []
    monkeypatch.setattr(
        quantiles, "kind", lambda equation, kind=quantiles.kind: seen.append(equation) or kind(equation)
    )

    def simulate(k):
        return random.normal(k) + 1.0

    for _ in range(8):
        simulate = jax.jit(lambda k, inner=simulate: inner(k) + 1.0)
    program = jax.make_jaxpr(simulate)(random.key(0))
    player = Player("simulate", None)
    assert player.needs(program) == {"normal": 1}
    first = len(seen)
    np.testing.assert_allclose(player.run(program, [random.key(0)], jnp.float32([0.5]))[0], [9.5])
    assert first < 25 and len(seen) < 3 * first


def test_a_simulators_own_error_is_told_from_one_of_lifting(monkeypatch):
    def wrong(k, t):
        return random.normal(k) + jnp.ones(3) @ jnp.ones(2)

    with pytest.raises(
        ValueError, match=r"Simulator `wrong` fails, called .* of shapes \[\(\)\]: TypeError: .*dot_general"
    ) as own:
        lift_noise(wrong, 1.0)
    assert not isinstance(own.value, NoiseNotLifted)
    monkeypatch.setattr(quantiles, "drawn", lambda *_: 1 / 0)
    with pytest.raises(
        NoiseNotLifted, match=r"`nested` runs, and its noise cannot be lifted \(ZeroDivisionError: division"
    ):
        lift_noise(nested, 17.0)


def test_a_traced_number_that_is_no_parameter_is_refused():
    def outer(a):
        with pytest.raises(NoiseNotLifted, match="refers to a number that JAX is tracing"):
            lift_noise(lambda k, t: t + a + random.normal(k), 0.0)
        return a

    jax.jit(outer)(1.0)
