"""Learnt likelihoods of trials against exact ones: probabilities of categories and counts, densities of numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from scipy.special import expit

import numpyro_kme as kme
from numpyro_kme.likelihoods import FittedLikelihood, KernelExponentialFamily
from numpyro_kme.likelihoods.distribution import default_form
from numpyro_kme.likelihoods.statistics import Entries
from numpyro_kme.likelihoods.trials.learning import Candidate, CoordinateFeatures, fit_family, maximise
from numpyro_kme.likelihoods.trials.values import Values

FORM = KernelExponentialFamily()
POINTS = np.array([[-1.2, 0.5], [0.0, 0.0], [0.9, -0.8]])


def choice_and_time(rng, z):
    """A choice and a log-normal time, `[0 or 1, time]`; one in ten is omitted, `[2, -1]`."""
    choice = (rng.random(len(z)) < expit(z[:, 0])).astype(float)
    time = np.exp(0.5 * z[:, 1] + 0.3 * choice + 0.4 * rng.normal(size=len(z)))
    omitted = rng.random((len(z), 1)) < 0.1
    return np.where(omitted, [2.0, -1.0], np.stack([choice, time], axis=1))


def log_choice_and_time(x, z):
    choice, time = x[:, 0], np.abs(x[:, 1])
    answered = scipy.stats.bernoulli(expit(z[0])).logpmf(np.minimum(choice, 1.0))
    answered += scipy.stats.lognorm(0.4, scale=np.exp(0.5 * z[1] + 0.3 * choice)).logpdf(time)
    return np.where(choice == 2.0, np.log(0.1), np.log(0.9) + answered)


def choice_and_two(rng, z):
    """A choice, and two numbers, of which the second depends on the first and on the choice."""
    choice, first, second = rng.random(len(z)) < expit(z[:, 0]), *rng.normal(size=(2, len(z)))
    first = z[:, 1] + first
    return np.stack([choice, first, 0.8 * first + choice + 0.6 * second], axis=1)


def log_choice_and_two(x, z):
    total = scipy.stats.bernoulli(expit(z[0])).logpmf(x[:, 0]) + scipy.stats.norm(z[1]).logpdf(x[:, 1])
    return total + scipy.stats.norm(0.8 * x[:, 1] + x[:, 0], 0.6).logpdf(x[:, 2])


def log_long(x, z):
    steps = [scipy.stats.norm(1.5 + z[0], 1.4).cdf(np.log(np.maximum(x[:, 0] + end, 1e-9))) for end in (0.5, -0.5)]
    return np.log(np.maximum(steps[0] - steps[1], 1e-300))


def column(law, log="logpmf"):
    """Draws `(m, 1)`, and log probabilities, of a distribution of SciPy given coordinates."""
    draw = lambda rng, z: law(z.T).rvs(random_state=rng).astype(float)[:, None]  # noqa: E731
    return draw, lambda x, z: getattr(law(z), log)(x[:, 0])


CASES = {
    "Bernoulli": (*column(lambda z: scipy.stats.bernoulli(expit(z[0]))), 0.3),
    "binomial": (*column(lambda z: scipy.stats.binom(20, expit(z[0]))), 0.7),
    "Poisson": (*column(lambda z: scipy.stats.poisson(np.exp(2.0 + 0.7 * z[0]))), 1.0),
    "geometric": (*column(lambda z: scipy.stats.geom(expit(z[0] - 1.0), loc=-1)), 0.6),
    "long counts": (lambda rng, z: np.rint(np.exp(1.5 + z[:, :1] + 1.4 * rng.normal(size=(len(z), 1)))), log_long, 0.6),
    "normal": (*column(lambda z: scipy.stats.norm(z[0], np.exp(0.3 * z[1])), "logpdf"), 0.6),
    "choice and time": (choice_and_time, log_choice_and_time, 0.9),
    "choice and two": (choice_and_two, log_choice_and_two, 1.3),
}
"""Simulator, exact log density, and the root mean square error allowed: three times the worst of five keys."""


@functools.cache
def learnt(name, key=0):
    """Of 150 simulations with 15 trials each."""
    rng = np.random.default_rng(key)
    z = np.repeat(rng.normal(size=(150, 2)), 15, axis=0)
    return FORM.fit(z, CASES[name][0](rng, z))


def density(surrogate, x, z):
    """Densities of trials `(k, n)` at one point."""
    return np.exp(np.asarray(surrogate.at_rows(x).log_density(np.tile(z, (len(x), 1)))))


@pytest.mark.parametrize("name", CASES)
def test_what_is_learnt_is_the_exact_distribution(name):
    """The root mean square error of the log density over new trials."""
    surrogate, (simulate, exact, most) = learnt(name), CASES[name]
    for z in POINTS:
        x = simulate(np.random.default_rng(1), np.tile(z, (1000, 1)))
        error = np.log(density(surrogate, x, z)) - exact(x, z)
        assert np.sqrt(np.mean(np.square(error))) < most, (name, z)


@pytest.mark.parametrize("name", ["Bernoulli", "binomial", "geometric", "Poisson"])
def test_probabilities_sum_to_one(name):
    values = np.arange({"Bernoulli": 2.0}.get(name, 300.0))[:, None]
    for z in POINTS:
        np.testing.assert_allclose(density(learnt(name), values, z).sum(), 1.0, rtol=2e-3)


def test_counts_beyond_the_largest_become_less_probable():
    z, largest = POINTS[0], learnt("geometric").trials.max()
    probability = density(learnt("geometric"), largest * np.array([[1.0], [2.0], [10.0]]), z)
    assert probability[2] < 0.5 * probability[1] < 0.25 * probability[0]


def test_a_rare_count_has_about_its_probability():
    """A Poisson count of 35 where the mean is 3.2, e^-55; without a count's own value as a feature it is e^-35."""
    rare = np.array([[35.0]])
    found = np.log(density(learnt("Poisson"), rare, POINTS[0]))
    np.testing.assert_allclose(found, CASES["Poisson"][1](rare, POINTS[0]), atol=13.0)


def test_counts_with_heavy_tails_take_few_steps(monkeypatch):
    """Negative binomial ones of up to 300; with the value in robust standard deviations there are 299."""
    steps, minimize = [], scipy.optimize.minimize
    spied = lambda *args, **kwargs: steps.append(minimize(*args, **kwargs)) or steps[-1]  # noqa: E731
    monkeypatch.setattr(scipy.optimize, "minimize", spied)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1000, 3))
    counts = rng.poisson(rng.gamma(np.exp(z[:, 2])) * np.exp(1.5 * z[:, 0] + z[:, 1] - z[:, 2])).astype(float)
    fit_family(z, [Candidate(counts, functools.partial(Values.of_counts, counts))])
    assert np.median([found.nit for found in steps if found.x.size > 100]) < 220


def integral(surrogate, z, *first):
    """Over the last entry of trials between -30 and 30, which no simulation is beyond, with these entries before it."""
    values = np.linspace(-30.0, 30.0, 20_001)
    grid = np.concatenate([np.tile(first, (len(values), 1)), values[:, None]], axis=1)
    return scipy.integrate.trapezoid(density(surrogate, grid, z), values)


def test_probabilities_of_counts_too_large_to_be_counted_sum_to_one():
    """Overdispersed counts with a mean of 55 and one zero in twelve; without jitter they sum to up to 1.12."""
    rng = np.random.default_rng(2)
    z = np.repeat(rng.normal(size=(200, 2)), 40, axis=0) * [0.7, 0.5]
    conc = np.exp(z[:, 1] - 0.4)
    surrogate = FORM.fit(z, rng.poisson(np.exp(4.0 + z[:, 0]) * rng.gamma(conc) / conc)[:, None])
    at = surrogate.at_rows(np.arange(6000.0)[:, None])
    for point in ([0.0, 0.0], [0.7, -0.5], [-0.7, 0.5], [-1.0, -0.5]):
        assert abs(np.exp(at.log_density(np.array(point))).sum() - 1.0) < 0.08


@pytest.mark.parametrize("first", [0, 1])
def test_a_count_that_has_one_value_in_a_category(rng, first):
    """Purchases and the week of the last, 0 without any: the count is 0 exactly where the week is."""
    z = rng.normal(size=(1500, 1))
    count = rng.poisson(np.exp(0.5 + 0.5 * z[:, 0]))
    week = np.where(count > 0, 10.0 * rng.beta(np.maximum(count, 1), 1.0), 0.0)
    x = np.stack([count, week], axis=1)[:, [first, 1 - first]]
    at = KernelExponentialFamily().fit(z, x).at_rows(np.array([[0.0, 0.0], [3.0, 0.0]])[:, [first, 1 - first]])
    found = np.exp(at.log_density(np.array([[-1.0], [0.0], [1.0]])[:, None]))
    expected = np.exp(-np.exp(0.5 + 0.5 * np.array([-1.0, 0.0, 1.0])))
    np.testing.assert_allclose(found[:, 0], expected, atol=0.06)  # three standard errors of 200 draws
    assert np.all(found[:, 1] < 0.01)


def test_densities_integrate_to_one():
    """The category is summed over."""
    timed = learnt("choice and time")
    for z in POINTS:
        np.testing.assert_allclose(integral(learnt("normal"), z), 1.0, atol=0.02)
        shares = [integral(timed, z, choice) for choice in (0.0, 1.0)]
        np.testing.assert_allclose(sum(shares) + density(timed, np.array([[2.0, -1.0]]), z), 1.0, atol=0.02)


def test_the_maximum_has_no_gradient():
    """Of the penalised log likelihood, written again."""

    def objective(w, basis, table, log_weights, counts):
        logs = jax.nn.log_softmax(basis @ w @ table.T + log_weights[None], axis=1)
        return jnp.sum(counts * logs) - 0.5 * jnp.sum(jnp.square(w))

    gradient = jax.jit(jax.grad(objective))
    for seed in range(12):
        rng = np.random.default_rng(seed)
        basis, table, log_weights = rng.normal(size=(30, 4)), rng.normal(size=(7, 3)), rng.normal(size=7)
        counts = rng.multinomial(rng.integers(1, 9, 30), np.full(7, 1.0 / 7.0)).astype(float)
        weights, _ = maximise(basis, counts.sum(axis=1), counts @ table, table, log_weights)
        found, start = (gradient(w, basis, table, log_weights, counts) for w in (weights, 0.0 * weights))
        assert np.max(np.abs(found)) < 1e-3 * np.max(np.abs(start))


def test_the_evidence_is_the_integral_over_weights():
    """Of the likelihood times a standard normal, on a grid; where coordinates do not matter the curvature is exact."""
    table, log_weights = np.random.default_rng(0).normal(size=(5, 2)), np.random.default_rng(1).normal(size=5)
    line = np.linspace(-5.0, 5.0, 801)
    w = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    for amplitude in (0.5, 2.0):
        counts = np.random.default_rng(2).multinomial(4, [0.1, 0.3, 0.2, 0.3, 0.1], 50).astype(float)
        scaled = jax.nn.log_softmax(amplitude * w @ table.T + log_weights, axis=1)
        prior = scipy.stats.norm.logpdf(w).sum(axis=1) + 2.0 * np.log(line[1] - line[0])
        exact = scipy.special.logsumexp(np.asarray(scaled) @ counts.sum(axis=0) + prior)
        basis = np.full((50, 1), amplitude)
        found = maximise(basis, counts.sum(axis=1), counts @ table, table, log_weights)[1]
        np.testing.assert_allclose(found + counts.sum(axis=0) @ log_weights, exact, atol=0.05)


def test_the_metric_is_the_fisher_information_of_a_value():
    """By automatic derivatives, as the mean over points and values of the squared score."""
    rng = np.random.default_rng(0)
    z, points, table, log_weights = (rng.normal(size=size) for size in ((60, 3), (5, 3), (6, 2), 6))
    basis = CoordinateFeatures(np.diag([1.0, 0.5, 1.2]), points, 2.0, 0.8)
    weights = rng.normal(size=(1 + 6 + 5, 2))
    functions = basis.functions(weights)
    log_shares = lambda one: jax.nn.log_softmax(functions(one @ basis.metric) @ table.T + log_weights)  # noqa: E731
    scores = jax.vmap(jax.jacfwd(log_shares))(z)
    information = np.einsum("mki,mkj,mk->ij", scores, scores, np.exp(jax.vmap(log_shares)(z)))
    root = basis.metric_of(weights, z, table, log_weights)
    np.testing.assert_allclose(root @ root.T, information / np.trace(information) * 3, rtol=1e-3, atol=2e-3)


def test_an_answer_that_follows_a_difference_of_coordinates_is_learnt_beside_others():
    """Same or different, of two coordinates in five; smooth in all of them alike it is .05 nats a trial off."""
    rng, same = np.random.default_rng(0), lambda z: 0.1 + 0.8 * np.exp(-2.0 * np.square(z[:, 0] - z[:, 1]))
    z, at = rng.normal(size=(2, 6000, 5))
    surrogate = FORM.fit(z, rng.binomial(1, same(z)).astype(float)[:, None])
    p, log_q = same(at), surrogate.choice.log_shares(at, np)
    log_p = np.log(np.stack([1.0 - p, p], axis=1))
    assert np.mean(np.sum(np.exp(log_p) * (log_p - log_q), axis=1)) < 0.015


@pytest.mark.x64
def test_numpy_and_jax_agree_and_traced_observations_are_as_concrete_ones():
    name = "choice and time"
    surrogate, x = learnt(name), CASES[name][0](np.random.default_rng(2), np.tile(POINTS[0], (20, 1)))
    z = 2.0 * np.random.default_rng(3).normal(size=(20, 2))
    expected = surrogate.at_rows(x).log_density(z)
    traced = jax.jit(jax.vmap(lambda y, point: surrogate.at(y).log_density(point)))(x, z)
    np.testing.assert_allclose(traced, expected, rtol=1e-8)
    np.testing.assert_allclose(surrogate.at(x[0]).log_density(z[0]), expected[0], rtol=1e-8)


def test_a_value_in_float32_is_the_category_of_float64():
    x = np.random.default_rng(0).choice([-1.0, 0.1, 1.0 / 3.0, 2e5 + 0.3], (500, 1))
    entries = Entries.of(x)
    np.testing.assert_array_equal(entries.agree(x.astype(np.float32), np), entries.agree(x, np))
    assert np.all(entries.agree(x, np).sum(axis=0) > 0) and entries.agree(np.array([0.11]), np).sum() == 0


def test_what_was_not_observed_of_a_trial_leaves_the_probability_of_the_rest():
    surrogate = learnt("choice and time")
    found = [np.exp(surrogate.at(np.array([1.0, np.nan])).log_density(z)) for z in POINTS]
    np.testing.assert_allclose(found, 0.9 * expit(POINTS[:, 0]), atol=0.12)
    time, both = np.array([np.nan, 0.9]), np.array([[0.0, 0.9], [1.0, 0.9]])
    for z in POINTS:
        summed = np.logaddexp(*surrogate.at_rows(both).log_density(z))
        np.testing.assert_allclose(surrogate.at(time).log_density(z), summed, rtol=1e-12)


@pytest.mark.parametrize("omission", [[2.0, np.nan], [np.nan, np.nan]])
def test_nan_in_the_simulations_is_a_category(omission):
    """It has the probability that any number in its place would have."""
    known, x = learnt("choice and time"), np.array([[0.0, 0.7], [1.0, 0.9], [2.0, -1.0]])
    lost = lambda rows: np.where(rows[:, :1] == 2.0, omission, rows)  # noqa: E731
    found = FORM.fit(known.simulated, lost(known.trials))
    assert found.records and not known.records
    for z in POINTS:
        expected = known.at_rows(x).log_density(z)
        np.testing.assert_allclose(found.at_rows(lost(x)).log_density(z), expected, rtol=1e-6)
        np.testing.assert_allclose(found.at(lost(x)[2]).log_density(z), expected[2], rtol=1e-6)
        of_one = lambda surrogate, z: surrogate.at_rows(jnp.asarray(lost(x)[2]), 0).log_density(z)  # noqa: E731
        value, gradient = jax.jit(jax.value_and_grad(of_one, argnums=1))(found, jnp.asarray(z))
        np.testing.assert_allclose(value, expected[2], rtol=1e-5)
        assert np.all(np.isfinite(gradient))
    with pytest.raises(ValueError, match="of a category that none"):
        found.at_rows(np.array([1.0, np.nan]), 0)


def test_the_onset_of_times_moves_with_a_parameter():
    """The root mean square error of the log density; without a line below the times it is above .34."""
    rng = np.random.default_rng(0)
    z = np.repeat(rng.normal(size=(150, 2)), 20, axis=0)
    gaps = 0.2 * np.exp(0.3 * z[:, 1]) * rng.gamma(3.0, size=len(z))
    surrogate = FORM.fit(z, np.stack([rng.integers(0, 2, len(z)), 1.0 + z[:, 0] + gaps], axis=1))
    gaps = 0.2 * rng.gamma(3.0, size=1000)
    for first in (-1.0, 1.0):
        found = density(surrogate, np.stack([np.ones(1000), 1.0 + first + gaps], axis=1), np.array([first, 0.0]))
        error = np.log(2.0 * found) - scipy.stats.gamma(3, scale=0.2).logpdf(gaps)
        assert np.sqrt(np.mean(np.square(error))) < 0.25


def test_errors():
    surrogate, x = learnt("choice and time"), np.random.default_rng(0).integers(0, 2, (500, 8)).astype(float)
    with pytest.raises(ValueError, match=r"none of 2250 simulated trials has: these have \[0, any\], \[1, any\]"):
        surrogate.at_rows(np.array([3.0, 0.5]), 0)
    with pytest.raises(ValueError, match="joint categories, and this form learns probabilities of at most 50"):
        FORM.fit(x[:, :1], x)


def test_numbers_between_fixed_ends_keep_these():
    """Times of an exponential clock with a delay, up to a deadline, have both ends whatever the rate."""
    rng = np.random.default_rng(0)
    z = np.repeat(rng.normal(size=(600, 1)), 20, axis=0)
    times = lambda u, rate: 0.2 - np.log1p(u * np.expm1(-1.3 * rate)) / rate  # noqa: E731
    surrogate = FORM.fit(z, times(rng.uniform(size=z.shape), np.exp(z)))
    grid, width = np.linspace(0.21, 1.49, 65), 0.02
    for at in (-1.0, 0.0, 1.0):
        exact = np.exp(at) * np.exp(-np.exp(at) * (grid - 0.2)) / -np.expm1(-1.3 * np.exp(at))
        found = density(surrogate, grid[:, None], np.array([at]))
        assert width * np.sum(exact * np.abs(np.log(found / exact))) < 0.06
        beyond = density(surrogate, np.array([[0.15], [1.55]]), np.array([at]))
        assert np.all(beyond < 0.02 * exact[[0, -1]])


def test_halves_are_learnt_anew_with_the_categories_of_all():
    whole, rows, at = learnt("choice and time"), np.arange(0, 2250, 2), np.array([[0.3]])
    z, x = np.asarray(whole.simulated), np.asarray(whole.trials)
    trial = x[0]
    half, alone = FORM.again(whole, z, x, rows), FORM.fit(z[rows], x[rows])
    found = [float(one.at(trial).log_density(at)[0]) for one in (half, alone, whole)]
    assert abs(found[0] - found[1]) < 0.3 and found[0] != found[2]
    chosen = [np.array([family.chosen for g in one.given for family in g.families]) for one in (half, whole)]
    np.testing.assert_array_equal(chosen[0][:, :-1], chosen[1][:, :-1])
    np.testing.assert_allclose(chosen[0][:, -1], 0.5 * chosen[1][:, -1])  # rougher
    others = FORM.again(whole, z, x, np.flatnonzero(x[:, 0] != trial[0]))
    assert np.isfinite(others.at_rows(trial, 0).log_density(at))


def test_a_likelihood_is_saved_and_described(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 2))
    x = choice_and_time(rng, z)
    fitted = kme.fit_likelihood(z, x)
    fitted.save(tmp_path / "likelihood.kme")
    loaded = FittedLikelihood.load(tmp_path / "likelihood.kme")
    np.testing.assert_array_equal(loaded(z[:9]).log_prob(x[0]), fitted(z[:9]).log_prob(x[0]))
    said = fitted.surrogate.named(["choice", "time"]).describe()
    assert said["trials"] == "500, of 3 categories" and said["numbers"] == "time" and "counts" not in said
    assert "500, of 3 categories" in str(loaded)


R = np.random.default_rng(0)
CHOICE, TIME = R.integers(0, 2, 2000), R.gamma(2.0, size=2000)
OUTPUTS = {
    "answers": (CHOICE, True),
    "booleans": (CHOICE == 1, True),
    "counts": (R.poisson(30.0, 2000), True),
    "often zero": (np.where(CHOICE == 0, 0.0, TIME), True),
    "choice and time": (np.stack([CHOICE, TIME], axis=1), True),
    "five answers": (R.integers(0, 2, (2000, 5)), True),
    "three counts": (R.poisson(30.0, (2000, 3)), True),
    "four counts": (R.poisson(30.0, (2000, 4)), False),
    "eight answers": (R.integers(0, 2, (2000, 8)), False),
    "numbers": (R.normal(size=(2000, 2)), False),
    "logarithms of counts": (np.log1p(R.poisson(30.0, 2000)), False),
    "large counts": (R.poisson(1e4, 2000), False),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_which_outputs_are_trials(kind):
    x, trials = OUTPUTS[kind]
    assert default_form(x) == (FORM if trials else kme.ResidualKernelMeans())
    assert default_form(x, once=True) == (FORM if trials and "count" not in kind else kme.ResidualKernelMeans())
    if kind != "numbers":  # of which the best form is chosen
        one = kind in ("large counts", "logarithms of counts")
        assert default_form(x, repeated=True) == (FORM if trials or one else kme.ResidualKernelMeans())


def answer(rng_key, logit):
    return jax.random.bernoulli(rng_key, jax.nn.sigmoid(logit))


def answers(x=None):
    logit = numpyro.sample("logit", dist.Normal(0.0, 1.5))
    with numpyro.plate("trials", 50):
        numpyro.sample("x", kme.Simulator(answer, logit), obs=x)


def test_fifty_answers_have_the_exact_posterior():
    engine = kme.KELFI(answers, 300, progress_bar=False)
    engine.run(jax.random.key(0), x=np.arange(50) < 20)
    grid = np.linspace(-8.0, 8.0, 4001)
    log_posterior = scipy.stats.norm(0.0, 1.5).logpdf(grid) + scipy.stats.binom(50, expit(grid)).logpmf(20)
    weights = np.exp(log_posterior) / np.exp(log_posterior).sum()
    mean = weights @ grid
    sd, draws = np.sqrt(weights @ np.square(grid - mean)), engine.get_samples()["logit"]
    assert abs(draws.mean() - mean) < 0.3 * sd and 0.8 < draws.std() / sd < 1.25
