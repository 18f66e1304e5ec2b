"""Simulators of published counts against exact recursions, other solvers and plain loops, and the counts' own sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from test_simulators import drawn

from numpyro_kme.simulators import boarding_school, fluctuation, lynx_hare, smallpox, tuberculosis


def occur_with(draws, p):
    """Whether each thing of `draws`, `(n, things)`, happened as often as `p` says, within five standard errors."""
    error = np.sqrt(p * (1 - p) / len(draws))
    np.testing.assert_array_less(np.abs(draws.mean(0) - p), 5 * error + 1e-9)


def test_published_sums():
    """Isolates and clusters, cases and their days, mutants of experiment 16, boys in bed."""
    assert tuberculosis.CLUSTERS.sum() == tuberculosis.TYPED and len(tuberculosis.CLUSTERS) == 326
    assert len(smallpox.DAYS) == 30 and smallpox.DAYS[-1] == 76
    assert fluctuation.EXPERIMENT_16.sum() == 227 and (fluctuation.EXPERIMENT_16 == 0).sum() == 11
    assert boarding_school.OBSERVED.sum() == 1559
    assert len(lynx_hare.HARE) == len(lynx_hare.LYNX) == len(lynx_hare.YEARS)


statistics_of_both = jax.jit(lynx_hare.statistics)


def test_observed_statistics_are_those_of_the_counts():
    np.testing.assert_allclose(smallpox.OBSERVED, jax.jit(smallpox.statistics)(np.float32(smallpox.DAYS)), atol=1e-5)
    logs = np.log(np.stack([lynx_hare.HARE, lynx_hare.LYNX], 1)[1:])
    np.testing.assert_allclose(lynx_hare.OBSERVED, statistics_of_both(logs), atol=1e-4)


@pytest.mark.slow
def test_influenza_peaks_and_dies_out_as_it_should():
    """Large outbreaks peak as the differential equations do, and small ones end as a branching process does."""
    beta, gamma, n = 1.5, 0.4, boarding_school.BOYS
    stay = np.exp(-gamma / 4)
    x = drawn(boarding_school.influenza, 4_000, beta, gamma)
    solved = scipy.integrate.solve_ivp(
        lambda _, s: [-beta * s[0] * s[1] / n, beta * s[0] * s[1] / n - gamma * s[1]], (0, 14), [n - 1.0, 1.0]
    )
    large = x[x.max(1) > 50]
    assert abs(large.max(1).mean() / solved.y[1].max() - 1) < 0.1  # steps of a quarter day lag a little
    # a branching process at first: extinction within a day, four steps of its generating function
    q = 0.0
    for _ in range(4):
        q = (1 - stay + stay * q) * np.exp(-beta * (n - 1) / (4 * n) * (1 - q))
    occur_with(x[:, :1] == 0, np.array([q]))


def test_fluctuations_follow_their_recursion():
    m = 1.3
    x = drawn(fluctuation.mutants, 4_000, jnp.log(m))
    sizes = np.array([0, 1, 2, 3, 5, 10, 40])
    below = np.cumsum(fluctuation.probabilities(m, 41))[sizes]
    occur_with(x[:, None] <= sizes, below)
    first = np.exp(-m) * np.array([1, m / 2, m / 6 + m * m / 8])  # by hand
    np.testing.assert_allclose(fluctuation.probabilities(m, 3), first, rtol=1e-12)


def exact_final_sizes(beta, gamma, most):
    """Probabilities of 1 to `most` removals in all, from the embedded chain of infections and removals."""
    n = smallpox.PEOPLE
    p = np.zeros((most + 2, most + 2))  # infections so far, infectious now
    p[1, 1] = 1.0
    final = np.zeros(most)
    for infected in range(1, most + 1):
        for now in range(infected, 0, -1):
            up = beta * (n - infected) / n
            up = up / (up + gamma)
            p[infected + 1, now + 1] += up * p[infected, now]
            p[infected, now - 1] += (1 - up) * p[infected, now]
        final[infected - 1] = p[infected, 0]
    return final


def test_final_sizes_of_smallpox():
    times = drawn(smallpox.removals, 4_000, 0.12, 0.1)
    sizes = np.isfinite(times).sum(1)
    occur_with(sizes[:, None] == np.arange(1, 13), exact_final_sizes(0.12, 0.1, 12))
    assert abs(exact_final_sizes(0.12, 0.1, 120).sum() - 1) < 1e-12
    assert (times[:, 0] == 0).all() and (times[:, 1:] >= times[:, :-1]).all()


def test_removals_take_their_time():
    """Two removals without infection between: the second waits exponentially, at rate gamma."""
    times = drawn(smallpox.removals, 4_000, 0.02, 0.25)
    pairs = times[np.isfinite(times).sum(1) == 2][:, 1]
    # given two cases, either both infectious at the first removal, or the second infected before: the rest is gamma's
    assert abs(pairs.mean() - 4.0) < 5 * pairs.std() / np.sqrt(len(pairs))


def test_statistics_of_smallpox():
    times = np.full(120, np.inf)
    times[:4] = [0.0, 3.0, 4.0, 9.0]
    np.testing.assert_allclose(jax.jit(smallpox.statistics)(times), np.log([4, 10, 5, 1 + 2.5]), rtol=1e-6)


def test_tuberculosis_without_deaths_has_the_genotypes_of_infinite_alleles(rng):
    """A pure birth process with mutation: events are births with a fixed probability, so that the number of mutations
    before the last case is negative binomial."""
    cases, birth, mutation = 300, 0.7, 0.2
    kinds = [max(tuberculosis.genotypes(rng, birth, 0.0, mutation, cases)) for _ in range(300)]
    p = birth / (birth + mutation)
    variance = (cases - 1) * (1 - p) / p**2  # the highest genotype may have been lost to a later mutation, seldom
    assert abs(np.mean(kinds) - (cases - 1) * (1 - p) / p) < 5 * np.sqrt(variance / 300) + 0.5


def test_tuberculosis_statistics_and_failures(rng):
    np.testing.assert_allclose(tuberculosis.statistics([3, 1, 1]), np.log([3 / 5, 11 / 25, 3, 2 / 5]), rtol=1e-12)
    with pytest.raises(RuntimeError, match="in a row died out"):
        tuberculosis.genotypes(rng, 0.1, 10.0, 0.1, 50)


def test_lynx_and_hare_solve_their_equations_without_noise():
    theta = np.array([0.55, 0.028, 0.84, 0.026, 0.0])

    def slope(_, s):
        return [s[0] * (0.55 - 0.028 * s[1]), s[1] * (0.026 * s[0] - 0.84)]

    solved = scipy.integrate.solve_ivp(slope, (0, 5), [30.0, 4.0], t_eval=np.arange(1, 6), rtol=1e-9)
    found = drawn(lynx_hare.lynx_hare, 4_000, theta)[0, :5]
    np.testing.assert_allclose(found, np.log(solved.y.T), atol=0.15)  # Euler's steps of a twentieth of a year


def test_noise_of_lynx_and_hare_is_brownian():
    walks = drawn(lynx_hare.lynx_hare, 4_000, np.array([0.0, 0.0, 0.0, 0.0, 0.3])) - np.log([30.0, 4.0])
    years = np.arange(1.0, 21.0)[:, None]
    np.testing.assert_array_less(np.abs(walks.var(0) / (0.09 * years) - 1), 5 * np.sqrt(2 / 4_000))
    assert abs((walks[:, -1, 0] * walks[:, -1, 1]).mean()) < 5 * 0.09 * 20 / np.sqrt(4_000)


def test_statistics_of_lynx_and_hare(rng):
    logs = rng.normal(size=(20, 2))
    z = (logs - logs.mean(0)) / logs.std(0)
    lags = [sum(z[t, i] * z[t + lag, i] for t in range(20 - lag)) / (20 - lag) for i in (0, 1) for lag in (1, 2, 3)]
    across = [sum(z[t, 0] * z[t + lag, 1] for t in range(20 - lag)) / (20 - lag) for lag in (0, 1, 2)]
    expected = [*logs.mean(0), *np.log(logs.std(0)), *lags, *across]
    np.testing.assert_allclose(statistics_of_both(logs), expected, rtol=1e-3, atol=1e-4)
