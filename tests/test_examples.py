"""Simulators against plain loops and exact moments, the score against a double loop."""

import itertools
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulators import blowfly, exponential_gamma, lotka_volterra

from benchmarks.helpers import nmse

ROOT = Path(__file__).parents[1]
SERIES = ROOT.parent / "shared" / "data" / "blowfly.csv"


# --- blowfly ------------------------------------------------------------------------------------------------


def plain_population(log_theta, births, deaths):
    growth, death, capacity, _, _, delay = np.exp(log_theta)
    lag = max(round(delay), 1)
    counts = []
    for t in range(len(births)):
        delayed = counts[t - lag] if t >= lag else 180.0
        previous = counts[t - 1] if t >= 1 else 180.0
        counts.append(
            growth * delayed * np.exp(-delayed / capacity) * births[t] + previous * np.exp(-death * deaths[t])
        )
    return np.array(counts)


def plain_maxima(series, drop):
    """The highest value so far, a maximum once undercut by `drop`; then the same upside down."""
    count, i = 0, 0
    while i < len(series):
        highest = series[i]
        while i < len(series) and series[i] >= highest - drop:
            highest = max(highest, series[i])
            i += 1
        if i == len(series):
            break
        count, lowest = count + 1, series[i]
        while i < len(series) and series[i] <= lowest + drop:
            lowest = min(lowest, series[i])
            i += 1
    return count


def plain_statistics(series):
    n = len(series)
    cuts = [0, n // 4, n // 2, 3 * n // 4, n]
    levels, changes = sorted(series), sorted(series[i + 1] - series[i] for i in range(n - 1))
    quarters = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    return np.array(
        [np.log(np.mean(levels[q]) / 1000 + 1e-12) for q in quarters]
        + [np.mean(changes[q]) / 1000 for q in quarters]
        + [plain_maxima(np.asarray(series) / np.std(series), drop) for drop in (0.5, 1.5)]
    )


@pytest.mark.x64
def test_blowfly_recursion_equals_a_plain_loop(rng):
    points = blowfly.PRIOR_MEAN + blowfly.PRIOR_SD * rng.normal(size=(20, 6))
    points[:3, 5] = np.log([0.3, 229.0, 4000.0])  # a lag of one, the longest that matters, and one beyond
    noise = rng.gamma(2.0, 0.5, size=(20, 2, 230))
    found = jax.jit(jax.vmap(blowfly.population))(points, noise[:, 0], noise[:, 1])
    for k in range(20):
        np.testing.assert_allclose(found[k], plain_population(points[k], *noise[k]), rtol=1e-9, atol=1e-200)


@pytest.mark.x64
def test_blowfly_statistics_equal_a_plain_loop(rng):
    walks = np.exp(np.cumsum(0.4 * rng.normal(size=(20, 180)), axis=1))
    found = jax.jit(jax.vmap(blowfly.statistics))(walks)
    np.testing.assert_allclose(found, [plain_statistics(walk) for walk in walks], rtol=1e-9)
    assert len(set(np.asarray(found)[:, 9])) > 3


@pytest.mark.skipif(not SERIES.exists(), reason="Nicholson's series is kept outside the project, in ../shared/data")
def test_statistics_of_nicholsons_series():
    counts = np.loadtxt(SERIES, delimiter=",", skiprows=2)[:, 1]
    np.testing.assert_allclose(blowfly.statistics(jnp.asarray(counts)), blowfly.OBSERVED, atol=5.1e-6)


@pytest.mark.parametrize("log_sd", [-1.5, 0.0, 0.7])
def test_noise_has_mean_one_and_the_stated_variance(log_sd):
    draws = np.asarray(blowfly.mean_one_gamma(jax.random.key(0), jnp.asarray(log_sd), 40_000))
    variance = np.exp(2 * log_sd)
    kurtosis = 3 + 6 * variance
    assert abs(draws.mean() - 1) < 5 * np.sqrt(variance / draws.size)
    assert abs(draws.var() - variance) < 5 * variance * np.sqrt((kurtosis - 1) / draws.size)


@jax.jit
def simulate(keys, points):
    return jax.vmap(blowfly.blowfly)(keys, points)


def test_noise_reaches_the_right_place():
    """Births and deaths have their own spreads: without noise in one of them, the other is all there is."""
    quiet = np.array([3.0, -1.0, 5.5, -12.0, -12.0, 2.0], np.float32)
    keys = jax.random.split(jax.random.key(1), 400)
    still = plain_population(quiet, np.ones(230), np.ones(230))[50:]
    np.testing.assert_allclose(simulate(keys, np.tile(quiet, (400, 1))), np.tile(still, (400, 1)), rtol=0.02)
    no_births = np.array(
        [-20.0, -1.0, 5.5, 0.0, -12.0, 2.0], np.float32
    )  # P ~ 0: N falls by exp(-delta eps_t), E exp(-d e) = 1 / (1 + d)
    falls = np.asarray(simulate(jax.random.split(jax.random.key(2), 400), np.tile(no_births, (400, 1))))
    ratio = np.asarray(falls[:, 1:4] / falls[:, :3]).ravel()
    delta = np.exp(-1.0)
    sd = np.sqrt(1 / (1 + 2 * delta) - 1 / (1 + delta) ** 2)
    assert abs(ratio.mean() - 1 / (1 + delta)) < 5 * sd / np.sqrt(ratio.size) + 1e-3


def test_extreme_blowflies_are_finite():
    corners = np.array(np.meshgrid(*[[-6.0, 6.0]] * 6)).reshape(6, -1).T
    points = np.concatenate(
        [blowfly.PRIOR_MEAN + blowfly.PRIOR_SD * corners, np.full((1, 6), 500.0), np.full((1, 6), -500.0)]
    )
    points = np.resize(points, (400, 6)).astype(np.float32)
    series = simulate(jax.random.split(jax.random.key(3), 400), points)
    assert np.isfinite(jax.jit(jax.vmap(blowfly.statistics))(series)).all()


# --- Lotka-Volterra -----------------------------------------------------------------------------------------


def plain_gillespie(rng, theta, times):
    state, time, records = np.array([50, 100]), 0.0, []
    while len(records) < len(times):
        x, y = state
        rates = theta * np.array([x * y, x, y, x * y])
        total = rates.sum()
        wait = rng.exponential() / total if total > 0 else np.inf
        while len(records) < len(times) and time + wait > times[len(records)]:
            records.append(state.copy())
        time += wait
        if total > 0:
            state += [(1, 0), (-1, 0), (0, 1), (0, -1)][rng.choice(4, p=rates / total)]
    return np.array(records)


def within_five_standard_errors(a, b):
    """Compare two samples' means, `(draws, ...)` each."""
    error = np.sqrt(a.var(0, ddof=1) / len(a) + b.var(0, ddof=1) / len(b))
    np.testing.assert_array_less(np.abs(a.mean(0) - b.mean(0)), 5 * error + 1e-12)


@pytest.mark.slow  # moments: below
def test_gillespie_equals_a_plain_one_in_distribution(rng):
    times, theta = np.array([0.0, 0.3, 0.6, 1.0]), np.array([0.004, 0.5, 0.8, 0.01])
    simulate = jax.jit(jax.vmap(lambda key: lotka_volterra.lotka_volterra(key, jnp.log(theta), times=times)))
    found = np.asarray(simulate(jax.random.split(jax.random.key(0), 4_000)))
    plain = np.array([plain_gillespie(rng, theta, times) for _ in range(300)])
    np.testing.assert_array_equal(found[:, 0], np.tile([50, 100], (4_000, 1)))
    within_five_standard_errors(found[:, 1:], plain[:, 1:])
    centred = [a[:, 1:] - found[:, 1:].mean(0)[None] for a in (found, plain)]
    within_five_standard_errors(*(a**2 for a in centred))
    within_five_standard_errors(*(a[..., 0] * a[..., 1] for a in centred))


def test_gillespie_without_encounters_has_the_exact_moments():
    """Predators then die binomially and prey double as a Yule process."""
    times, death, birth, runs = np.array([0.0, 0.5, 1.5]), 0.7, 0.4, 4_000
    log_theta = jnp.log(jnp.asarray([0.0, death, birth, 0.0]))
    simulate = jax.jit(jax.vmap(lambda key: lotka_volterra.lotka_volterra(key, log_theta, times=times)))
    found = np.asarray(simulate(jax.random.split(jax.random.key(1), runs)))
    alive, grown = np.exp(-death * times[1:]), np.exp(birth * times[1:])
    mean = np.stack([50 * alive, 100 * grown], -1)
    variance = np.stack([50 * alive * (1 - alive), 100 * grown * (grown - 1)], -1)
    assert np.all(np.abs(found[:, 1:].mean(0) - mean) < 5 * np.sqrt(variance / runs))
    assert np.all(np.abs(found[:, 1:].var(0) - variance) < 5 * variance * np.sqrt(2.2 / runs))


def test_gillespie_aborts_with_nan_and_survives_extinction():
    program = jax.jit(jax.vmap(lambda key, at: lotka_volterra.lotka_volterra(key, at, max_reactions=300), (0, None)))

    def simulate(log_theta):
        return program(jax.random.split(jax.random.key(2), 20), np.array(log_theta))

    assert np.isnan(simulate([-20.0, -20.0, 2.0, -20.0])).all()
    everything_dies = np.asarray(simulate([-np.inf, 2.0, -np.inf, 2.0]))
    assert np.isfinite(everything_dies).all() and (everything_dies[:, -1, 0] == 0).all()
    assert np.isnan(
        lotka_volterra.lotka_volterra_statistics(jax.random.key(0), jnp.asarray([-5.0, -5.0, 2.0, -5.0]))
    ).all()


@pytest.mark.x64
def test_lotka_volterra_statistics_equal_numpy(rng):
    series = np.cumsum(rng.normal(size=(151, 2)), axis=0)
    x, y = (series - series.mean(0)).T
    sx, sy = x.std(ddof=1), y.std(ddof=1)
    expected = [
        *series.mean(0),
        np.log(sx**2 + 1),
        np.log(sy**2 + 1),
        *[sum(x[t] * x[t + lag] for t in range(151 - lag)) / 150 / sx**2 for lag in (1, 2)],
        *[sum(y[t] * y[t + lag] for t in range(151 - lag)) / 150 / sy**2 for lag in (1, 2)],
        np.corrcoef(x, y)[0, 1],
    ]
    found = lotka_volterra.statistics(jnp.asarray(series))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(
        lotka_volterra.normalise(found),
        (np.array(expected) - lotka_volterra.PILOT_MEAN) / lotka_volterra.PILOT_SD,
    )
    constant = lotka_volterra.statistics(jnp.ones((151, 2)))
    np.testing.assert_array_equal(constant[4:], np.zeros(5))


# --- exponential-gamma --------------------------------------------------------------------------------------


def test_exponential_gamma_moments_and_posterior():
    draws = np.asarray(
        jax.vmap(exponential_gamma.sample_mean, (0, None))(jax.random.split(jax.random.key(0), 20_000), 4.0)
    )
    assert abs(draws.mean() - 1 / 4) < 5 / 4 / np.sqrt(15 * draws.size)
    assert abs(draws.var() - 1 / 16 / 15) < 5 / 16 / 15 * np.sqrt(2.4 / draws.size)
    grid = np.linspace(1e-4, 30, 40_001)
    unnormalised = grid * np.exp(-0.5 * grid) * grid**15 * np.exp(-15 * 0.3 * grid)
    density = unnormalised / np.trapezoid(unnormalised, grid)
    np.testing.assert_allclose(exponential_gamma.exact_posterior(0.3).pdf(grid), density, atol=1e-6)


# --- the blowfly score --------------------------------------------------------------------------------------


def test_nmse_equals_a_double_loop(rng):
    simulated, observed, denominators = (
        rng.normal(size=(7, 10)),
        rng.normal(size=10),
        rng.uniform(1, 3, size=10),
    )
    total = 0.0
    for i in range(10):
        total += sum((simulated[j, i] - observed[i]) ** 2 for j in range(7)) / 7 / denominators[i]
    errors = nmse.squared_errors(simulated, observed)
    np.testing.assert_allclose(np.mean(errors / denominators), total / 10)
    shifted = simulated - observed + blowfly.OBSERVED
    np.testing.assert_allclose(nmse.nmse(shifted, denominators), total / 10)
    np.testing.assert_allclose(nmse.nmse(shifted, errors), 1.0)


@pytest.mark.slow
def test_a_published_point_scores_about_one_percent():
    """The published synthetic-likelihood point; a direct search reaches about a tenth of its score."""
    denominators = nmse.stored_denominators()
    with jax.enable_x64(False):
        published = nmse.nmse_at(jax.random.key(0), [3.765, -1.033, 5.466, -0.401, -0.963, np.log(7)], denominators)
        searched = nmse.nmse_at(jax.random.key(0), [3.7, -1.3, 5.3, -1.4, -1.5, 1.8], denominators)
    assert 0.006 < published < 0.012
    assert 0.0005 < searched < 0.002


# --- the main job -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_main_job_writes_its_files(tmp_path):
    command = [sys.executable, "examples/blowfly.py", "--num-simulations", "60", "--output", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "log_theta[5]" in printed and "maxima, threshold 1.5" in printed
    assert (tmp_path / "blowfly.png").stat().st_size > 10_000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz as az
    idata = az.from_netcdf(str(tmp_path / "blowfly.nc"))
    assert idata["posterior"]["log_theta"].dims == ("chain", "draw", "parameter")
    assert idata["prior_predictive"]["x"].sizes["statistic"] == 10
