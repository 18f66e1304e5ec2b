"""Gillespie's algorithm against a plain loop and exact moments, statistics against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme.simulators import lotka_volterra


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
    statistics = jax.jit(lotka_volterra.lotka_volterra_statistics)
    assert np.isnan(statistics(jax.random.key(0), np.array([-5.0, -5.0, 2.0, -5.0]))).all()


@pytest.mark.slow
def test_the_published_statistics_are_like_those_at_the_published_rates():
    log_theta = np.log(np.float32([0.01, 0.5, 1.0, 0.01]))
    simulate = jax.jit(jax.vmap(lambda key: lotka_volterra.lotka_volterra_statistics(key, log_theta)))
    found = np.asarray(simulate(jax.random.split(jax.random.key(0), 200)))
    spread = 5.0 * np.nanstd(found, axis=0) + 0.05
    np.testing.assert_array_less(np.abs(lotka_volterra.OBSERVED - np.nanmean(found, axis=0)), spread)


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
    statistics = jax.jit(lotka_volterra.statistics)
    found = np.asarray(statistics(series))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    expected = (np.array(expected) - lotka_volterra.PILOT_MEAN) / lotka_volterra.PILOT_SD
    np.testing.assert_allclose(lotka_volterra.normalise(found), expected)
    constant = statistics(np.ones((151, 2)))
    np.testing.assert_array_equal(constant[4:], np.zeros(5))
