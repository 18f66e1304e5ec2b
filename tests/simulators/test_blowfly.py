"""The recursion and its statistics against plain loops, its noise against exact moments."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest

from numpyro_kme.simulators import blowfly

SERIES = Path(__file__).parents[3] / "shared" / "data" / "blowfly.csv"


def plain_population(log_theta, births, deaths):
    growth, death, capacity, _, _, delay = np.exp(log_theta)
    lag = max(round(delay), 1)
    counts = []
    for t in range(len(births)):
        delayed = counts[t - lag] if t >= lag else 180.0
        previous = counts[t - 1] if t >= 1 else 180.0
        born = growth * delayed * np.exp(-delayed / capacity) * births[t]
        counts.append(born + previous * np.exp(-death * deaths[t]))
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
    np.testing.assert_allclose(jax.jit(blowfly.statistics)(counts), blowfly.OBSERVED, atol=5.1e-6)


gamma_draws = jax.jit(lambda key, log_sd: blowfly.mean_one_gamma(key, log_sd, 40_000))


@pytest.mark.parametrize("log_sd", [pytest.param(-1.5, marks=pytest.mark.slow), 0.0, 0.7])
def test_noise_has_mean_one_and_the_stated_variance(log_sd):
    draws = np.asarray(gamma_draws(jax.random.key(0), log_sd))
    variance = np.exp(2 * log_sd)
    kurtosis = 3 + 6 * variance
    assert abs(draws.mean() - 1) < 5 * np.sqrt(variance / draws.size)
    assert abs(draws.var() - variance) < 5 * variance * np.sqrt((kurtosis - 1) / draws.size)


@jax.jit
def simulate(keys, points):
    return jax.vmap(blowfly.blowfly)(keys, points)


@pytest.mark.slow
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


@pytest.mark.slow
def test_extreme_blowflies_are_finite():
    corners = np.array(np.meshgrid(*[[-6.0, 6.0]] * 6)).reshape(6, -1).T
    corners = blowfly.PRIOR_MEAN + blowfly.PRIOR_SD * corners
    points = np.concatenate([corners, np.full((1, 6), 500.0), np.full((1, 6), -500.0)])
    points = np.resize(points, (400, 6)).astype(np.float32)
    series = simulate(jax.random.split(jax.random.key(3), 400), points)
    assert np.isfinite(jax.jit(jax.vmap(blowfly.statistics))(series)).all()
