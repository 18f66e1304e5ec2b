"""Extrapolation in the parameters: bounds of statistics, the simulated region, what holds outside it, reports."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special, stats
from scipy.optimize import minimize

import numpyro_kme as kme
from numpyro_kme._core.solves import robust_standard_deviation
from numpyro_kme.likelihoods.extrapolation import Region
from numpyro_kme.likelihoods.residual.smoothness import Inputs
from numpyro_kme.likelihoods.residual.support import SupportBounds, fit_support_bounds, lower_line, robust_line

QUEUE_TRUTH = (1.0, 4.0, 0.2)


def queue(rng, theta1, width, rate):
    """Quantiles of 50 inter-departure times of an M/G/1 queue; none is shorter than the shortest service, `theta1`."""
    service, arrivals = theta1 + width * rng.uniform(size=50), np.cumsum(rng.exponential(size=50) / rate)
    departures = [0.0]
    for takes, arrival in zip(service, arrivals):
        departures.append(takes + max(arrival, departures[-1]))
    return np.quantile(np.diff(departures), np.linspace(0.0, 1.0, 5))


def queue_model(x=None):
    theta1 = numpyro.sample("theta1", dist.Uniform(0.0, 10.0))
    width = numpyro.sample("width", dist.Uniform(0.0, 10.0))
    rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0 / 3.0))
    numpyro.sample("x", kme.Simulator(queue, theta1, width, rate, shape=5, dtype=float), obs=x)


def noisy(rng_key, mean):
    return mean + 0.5 * jax.random.normal(rng_key, (2,))


def conjugate_model(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, mean), obs=x)


def beyond_warnings(caught):
    return [str(w.message) for w in caught if "beyond the simulated parameters" in str(w.message)]


@pytest.fixture(scope="module")
def learnt():
    """The likelihood of 400 simulations of the queue, and an observation."""
    rng = np.random.default_rng(0)
    theta = rng.uniform(size=(400, 3)) * [10.0, 10.0, 1.0 / 3.0]
    x = np.stack([queue(rng, *one) for one in theta])
    return kme.fit_likelihood(theta, x), queue(rng, *QUEUE_TRUTH)


def test_a_draw_beyond_a_bound_is_noticed_in_every_place(learnt):
    """`theta1` above the smallest time is impossible, whatever the rest."""
    fitted, x = learnt
    arguments = np.array([[x[0] + 0.5, 4.0, 0.2], [x[0] - 0.5, 4.0, 0.2]])
    assert fitted.beyond(x, fitted.coordinates.table(arguments)).tolist() == [True, False]
    draws = dict(zip(("theta1", "width", "rate"), arguments.T, strict=True))
    smodel = kme.handlers.surrogate(queue_model, {"x": fitted})
    warning = r"50.00% of the posterior draws lie beyond .* of site 'x'.*more, best at these draws"
    with pytest.warns(UserWarning, match=warning):
        assert kme.mcmc.check_surrogate(smodel, draws, x)["x"].beyond == 0.5


@pytest.mark.x64
def test_the_density_integrates_to_one_beside_a_bound(rng):
    """In the statistic, with `x >= theta` exactly, on nodes that follow the logarithm of the gap."""
    z = rng.normal(size=(200, 1))
    x = z + rng.exponential(size=(200, 1))
    surrogate = kme.ResidualKernelMeans().fit(z, x)
    assert surrogate.standardisation.support.side.tolist() == [1.0]
    t = np.linspace(-650.0, 650.0, 100_001)
    for point in (0.0, 2.0):
        nearest = float(surrogate.region.nearest(jnp.array([point]))[0])
        support, unit = surrogate.standardisation.support, surrogate.transform.scale
        features = np.array([nearest, np.sqrt(3.0) * special.erf(nearest / np.sqrt(2.0))])
        line, width = support.offset + np.asarray(support.linear) @ features, support.width
        y = surrogate.transform.centre + unit * (line + width * np.sinh(t[:, None]))
        log_step = np.log(unit * width * (t[1] - t[0])) + np.logaddexp(t, -t) - np.log(2.0)
        value = surrogate.at_rows(y).log_density(np.full((1, 1, 1), point))[0]
        assert abs(np.sum(np.exp(value + log_step)) - 1.0) < 5e-3


def test_outside_the_density_is_that_of_the_nearest_simulated_point(rng):
    """So it has no second peak there, and most of a posterior far beyond the edge is beyond the simulations."""
    theta = rng.normal(size=(300, 1))
    fitted = kme.fit_likelihood(theta, theta + 0.1 * rng.normal(size=(300, 1)))
    grid = np.linspace(-20.0, 20.0, 8001)[:, None]
    for y, share in ((theta.max() + 1.0, (0.9, 1.0)), (0.5, (0.0, 0.005))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logs = fitted.at(np.full(1, y)).log_density(fitted.coordinates.table(grid))
        assert np.ptp(logs[np.abs(grid[:, 0]) > 1.1 * np.abs(theta).max()][:10]) < 0.2
        weights = np.exp(logs - logs.max() - 0.5 * np.square(grid[:, 0] / 10.0))
        beyond = weights @ fitted.beyond(np.full(1, y), fitted.coordinates.table(grid)) / weights.sum()
        assert share[0] <= beyond <= share[1]


@pytest.fixture(scope="module")
def far():
    """Simulations in a narrow table, data far from it; and the warnings of the run."""
    rng = np.random.default_rng(2)
    mean = 0.1 * rng.normal(size=(300, 2))
    narrow = kme.Simulations({"x": mean}, {"x": mean + 0.5 * rng.normal(size=(300, 2))}, {"mean": mean})
    engine = kme.KELFI(conjugate_model, simulations=narrow, progress_bar=False)
    with pytest.warns(UserWarning) as caught:
        engine.run(jax.random.key(0), x=np.array([0.6, -0.6]))
    return engine, beyond_warnings(caught)


def test_parameters_far_from_the_simulations_are_reported(far):
    """Every draw is beyond, and the run says so; the observation is within what was simulated."""
    engine, (warning,) = far
    assert engine.posterior.info["observation"].startswith("within the simulated range of all statistics")
    assert "of the posterior draws lie beyond the simulated parameters of site 'x'" in warning
    assert "Simulate more (`num_simulations`), such as " in warning
    rounds = "or `refine` at draws of this posterior."
    alone = "for this observation alone in rounds around its posterior"
    assert (rounds if engine.posterior.simulations.proposed else alone) in warning
    assert "% of the draws lie beyond the simulated parameters" in engine.posterior.info["parameters"]
    inside, outside = np.zeros((1, 2)), np.full((1, 2), 3.0)
    assert engine.posterior.beyond({"mean": np.concatenate([inside, outside])}).tolist() == [False, True]


def test_the_limit_is_that_of_a_double_loop(rng):
    z, weights = rng.normal(size=(30, 3)), np.array([1.0, 0.0, 4.0])
    out = []
    for j in range(30):
        rest = np.delete(z, j, axis=0)
        gap = np.maximum(z[j] - rest.max(axis=0), 0.0) + np.maximum(rest.min(axis=0) - z[j], 0.0)
        out.append(np.sqrt(weights @ gap**2))
    np.testing.assert_allclose(Region.of(z, weights).limit, max(out))


def test_draws_that_share_coordinates_are_one_simulation(rng):
    z, weights = rng.normal(size=(30, 2)), np.array([1.0, 4.0])
    once, often = Region.of(z, weights), Region.of(np.repeat(z, 3, axis=0), weights)
    assert once.limit == often.limit > 0.01
    np.testing.assert_array_equal([once.low, once.high], [often.low, often.high])


def test_rounding_is_not_beyond(rng):
    """Several simulations have the largest coordinates, so that none is outside the box of the others."""
    z = np.stack(np.meshgrid(*rng.normal(size=(2, 6))), axis=-1).reshape(-1, 2)
    region = Region.of(z, np.array([1.0, 4.0]))
    assert not region.beyond(z * (1.0 + 1e-6)).any() and not region.beyond(z.astype(np.float32)).any()
    assert region.beyond(z.max(axis=0) + 1e-3)


def test_outside_the_support_is_below_a_lower_line_or_above_an_upper_one(rng):
    """Or nearer than a width; a statistic without a line has no outside."""
    sides, widths = np.array([1.0, -1.0, 0.0]), np.array([0.1, 0.3, 1.0])
    bounds = SupportBounds(np.array([-1.0, 1.0, 0.0]), rng.normal(size=(3, 4)), widths, sides)
    z, s = rng.normal(size=(60, 2)), 2.0 * rng.normal(size=(60, 3))
    found = bounds.outside_support(s, z)
    for row, point, outside in zip(s, z, found, strict=True):
        lower, upper, _ = bounds.offset + bounds.linear @ [*point, *(np.sqrt(12.0) * (stats.norm.cdf(point) - 0.5))]
        assert outside == (row[0] < lower + 0.1 or row[1] > upper - 0.3)
    assert 0 < found.sum() < 60


def test_an_end_that_stays_where_it_is_is_no_bound(rng):
    """It says nothing of the coordinates, and transformations of the statistic serve it."""
    at, s = Inputs.pivoted(rng.normal(size=(300, 1)), 50), rng.uniform(size=(300, 3))
    support, found = fit_support_bounds(at, s, np.arange(300), True)
    assert not support.side.any()
    np.testing.assert_array_equal(found, s)


def test_bounds_are_found_where_they_are_and_nowhere_else(rng):
    """Lower and upper ones; none for normal, Student and gamma noise whose ends are no lines that help."""
    z = rng.normal(size=(300, 1))
    noise = {
        1.0: rng.exponential(size=300),
        -1.0: -rng.exponential(size=300),
        0.0: rng.normal(size=300),
        0.5: rng.standard_t(4.0, size=300),
    }
    for kind, e in noise.items():
        surrogate = kme.ResidualKernelMeans().fit(z, z + e[:, None])
        assert surrogate.standardisation.support.side.tolist() == [kind if abs(kind) == 1.0 else 0.0]
        again = kme.ResidualKernelMeans().again(surrogate, z, z + e[:, None], np.arange(150))
        assert again.form.bounds == (abs(kind) == 1.0)


def test_bounds_are_not_looked_for_where_they_are_not_wanted(rng):
    """Where there is one the density falls by a factor of more than 20 from just inside to just outside."""
    z = rng.normal(size=(300, 1))
    x, line = z + rng.exponential(size=(300, 1)), np.linspace(-1.0, 1.0, 21)[:, None]
    for bounds in (True, False):
        surrogate = kme.ResidualKernelMeans(bounds=bounds).fit(z, x)
        inside, outside = (np.mean(surrogate.at_rows(line + d).log_density(line)) for d in (0.1, -0.1))
        assert surrogate.standardisation.support.side.tolist() == [float(bounds)]
        assert (inside - outside > np.log(20.0)) == bounds


def test_heavy_tails_around_a_line_are_those_of_the_noise(rng):
    """Cauchy noise of one scale, and no other: of normal, of Student's t with 5 degrees, or of a scale that changes."""
    z, few = rng.normal(size=(1300, 2)), slice(300)
    location = 3.0 * z[:, 0]
    noise = rng.standard_cauchy(1300)
    for side, x in (
        (2.0, location + noise),
        (0.0, location + rng.normal(size=1300)),
        (0.0, location + rng.standard_t(5.0, size=1300)),
        (0.0, location + np.exp(np.square(z[:, 1])) * noise),
    ):
        surrogate = kme.ResidualKernelMeans().fit(z[few], x[few, None])
        assert surrogate.standardisation.support.side.tolist() == [side]
        assert ("heavy tails around a line" in surrogate.describe()) == (side == 2.0)
        if side:
            assert not surrogate.outside_support(np.array([1e6]), z).any()
            found = surrogate.at_rows(x[300:, None]).log_density(z[300:])
            missing = stats.cauchy.logpdf(noise[300:]) - found
            assert np.mean(missing) < 0.08
            by_jax = [float(surrogate.at(y).log_density(p)) for y, p in zip(x[300:305, None], z[300:305])]
            np.testing.assert_allclose(by_jax, found[:5], atol=2e-3)


def test_lines_below_are_those_of_brute_force(rng):
    """Every line through two points below all others, the highest in the mean; NaN where the steepest is none."""
    t, s = rng.normal(size=(25, 1)), rng.normal(size=25)
    columns = np.concatenate([np.ones((25, 1)), t], axis=1)

    def brute(columns, s):
        best = (-np.inf, None)
        for i in range(len(s)):
            for j in range(i):
                line = np.linalg.solve(columns[[i, j]], s[[i, j]])
                if np.all(columns @ line <= s + 1e-9):
                    best = max(best, (np.mean(columns @ line), tuple(line)))
        return np.array(best[1])

    np.testing.assert_allclose(lower_line(columns, s), brute(columns, s), atol=1e-7)
    assert np.isnan(lower_line(columns, np.where(t[:, 0] > 0.0, 1e9, -1e9))).all()


def test_the_line_in_the_middle_maximises_a_cauchy_likelihood(rng):
    """At the scale that the gaps have; and the gaps are those of lines without each simulation."""
    columns = np.concatenate([np.ones((40, 1)), rng.normal(size=(40, 2))], axis=1)
    s = columns @ [1.0, 2.0, -1.0] + rng.standard_cauchy(40)
    found, held_out = robust_line(columns, s)
    scale = robust_standard_deviation(s - columns @ found)

    def fitted(rows):
        loss = lambda c: np.sum(np.log1p(np.square((s - columns @ c)[rows] / scale)))  # noqa: E731
        return minimize(loss, found, method="Nelder-Mead", options=dict(xatol=1e-8, fatol=1e-10)).x

    np.testing.assert_allclose(found, fitted(np.arange(40)), atol=2e-3)
    refits = np.array([s[j] - columns[j] @ fitted(np.arange(40) != j) for j in range(40)])
    near = np.abs(s - columns @ found) < 3.0 * scale
    plain = np.abs(refits - s + columns @ found)[near]
    assert np.mean(np.abs(held_out - refits)[near]) < 0.5 * np.mean(plain)


@pytest.mark.parametrize("kind", ["exponential", pytest.param("uniform", marks=pytest.mark.slow)])
def test_a_bound_makes_the_likelihood_better(kind, rng):
    """Held-out log density against the exact one, in nats a simulation."""
    z = rng.normal(size=(700, 1))
    noise = {"exponential": stats.expon(), "uniform": stats.uniform()}[kind]
    x = z + noise.ppf(rng.uniform(size=(700, 1)))
    surrogate = kme.ResidualKernelMeans().fit(z[:300], x[:300])
    found = surrogate.at_rows(x[300:]).log_density(z[300:])
    missing = np.mean(noise.logpdf(x[300:, 0] - z[300:, 0])) - np.mean(found)
    assert missing < 0.25


def test_a_parameter_of_the_scale_alone_can_be_beyond(rng):
    """The region weighs a coordinate by the Fisher information of a normal: `mu'^2 / sigma^2 + 2 (log sigma)'^2`."""
    z = rng.normal(size=(1000, 2))
    x = 0.5 * z[:, :1] + np.exp(0.5 * z[:, 1:]) * rng.normal(size=(1000, 1))
    region = kme.ResidualKernelMeans().fit(z, x).region
    expected = np.array([0.25 * np.mean(np.exp(-z[:, 1])), 2.0 * 0.25])
    np.testing.assert_allclose(region.weights, expected, rtol=0.4)
    beyond = region.beyond(np.array([[0.0, 8.0], [0.0, -8.0], [8.0, 0.0], [2.5, -2.5]]))
    assert beyond.tolist() == [True, True, True, False]
