"""Standard errors of a posterior: against quadrature, calibrated, and what is warned of; hits and false alarms."""

import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import numpyro_kme as kme
from numpyro_kme.engines.learnt_posterior import emit_warnings, is_sure
from numpyro_kme.likelihoods import KernelMeans

SAID = "may be off by"


def waves(rng_key, theta):
    """Location bends several times over the prior, with little noise."""
    bent = jnp.stack([theta[0] + jnp.sin(4.0 * theta[0] + theta[1]), theta[1] + jnp.cos(4.0 * theta[1])])
    return bent + 0.02 * jax.random.normal(rng_key, (2,))


def lines(rng_key, theta):
    """`N(theta, 0.3^2 I)`."""
    return theta + 0.3 * jax.random.normal(rng_key, theta.shape)


def model(simulator, dim):
    def of(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([dim]).to_event(1))
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return of


def alarms(model, x, size, seed, **settings):
    """The engine, and what it warned of."""
    engine = kme.KELFI(model, size, progress_bar=False, **({"num_rounds": 1} | settings))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(seed), x=x)
    return engine, [str(one.message) for one in caught if SAID in str(one.message)]


def false_alarms(dim, size, keys):
    """Number of warnings by the default call where means are off by less than half of what is warned of."""
    found = 0
    for seed in range(keys):
        x = np.random.default_rng(seed).normal(size=dim) * np.sqrt(1.09)
        engine, said = alarms(model(lines, dim), x, size, 1000 * dim + seed, num_rounds=None)
        off = (engine.get_samples()["theta"].mean(axis=0) - x / 1.09) / np.sqrt(0.09 / 1.09)
        found += len(said) * bool(np.all(np.abs(off) < 0.25))
    return found


@pytest.mark.slow
def test_one_round_of_a_bent_simulator_asks_for_rounds():
    """Of eight observations some, and those whose standard errors are large."""
    engine, said = alarms(model(waves, 2), np.array([0.5, 1.2]), 60, 0)
    told = [(is_sure(engine.posterior.errors, engine.posterior.samples), said)]
    for x in np.array([[0.4, 1.1], [-0.5, 1.2], [1.5, 0.5], [-1.0, -1.0], [0.0, 0.0], [2.0, 1.0], [-1.5, 2.0]]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            posterior = engine.condition(jax.random.key(1), x=x)
        said = [str(one.message) for one in caught if SAID in str(one.message)]
        told.append((is_sure(posterior.errors, posterior.samples), said))
    assert all(len(said) == (not sure) for sure, said in told)
    messages = [said[0] for _, said in told if said]
    assert len(messages) >= 2
    assert all("pass num_rounds=5" in message and "`refine`" in message for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("dim, size", [(1, 300), (2, 300), (5, 300), (5, 1000)])
def test_linear_problems_are_silent_in_nineteen_of_twenty_keys(dim, size):
    assert false_alarms(dim, size, 20) <= 1


def moments_under(fitted, y, z):
    """Mean and standard deviation of a standard normal parameter under a learnt likelihood, by quadrature."""
    log_density = fitted.surrogate.at(y).log_density(z[:, None]) - 0.5 * z**2
    weights = np.exp(log_density - log_density.max())
    mean = np.average(z, weights=weights)
    return np.array([mean, np.sqrt(np.average((z - mean) ** 2, weights=weights))])


def test_standard_errors_are_what_halves_and_rounds_move_by():
    """Against quadrature under the likelihood of each half and of the round before, at five observations."""
    engine = kme.KELFI(model(lines, 1), 150, num_rounds=1, num_samples=4000, progress_bar=False)
    z = np.linspace(-6.0, 6.0, 2001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of some of these
        engine.run(jax.random.key(0), x=np.zeros(1))
        fitted = engine.method.likelihoods["x"]
        first, second, *_ = fitted.others
        assert sorted(np.concatenate([first.simulated, second.simulated]).ravel()) == sorted(fitted.simulated.ravel())
        for y in np.linspace(-1.5, 1.5, 5)[:, None]:
            posterior = engine.condition(jax.random.key(1), x=y)
            (mean, sd), others = moments_under(fitted, y, z), [moments_under(f, y, z) for f in fitted.others]
            of_mean = np.mean([((other - mean) / sd) ** 2 for other, _ in others])
            of_sd = np.mean([(spread / sd - 1.0) ** 2 for _, spread in others])
            size = posterior.info["effective sample size"]
            expected = np.sqrt([of_mean + 1.0 / size, of_sd + 0.5 / size])
            found = np.array([posterior.error_of_mean["theta"][0] / sd, posterior.error_of_sd["theta"][0]])
            np.testing.assert_allclose(found, expected, rtol=0.25, atol=0.03)
        engine.refine(jax.random.key(2), {"theta": np.linspace(-0.5, 0.5, 20)[:, None]})
    again = engine.method.likelihoods["x"]
    assert again.shares == (0.25, 0.25, 0.25, 0.25, 1.0) and again.others[-1].num_simulations == 150
    np.testing.assert_array_equal(again.others[-1].simulated, fitted.simulated)


@pytest.mark.slow
def test_standard_errors_are_calibrated():
    """Of normal posteriors that are known, over 60 data sets: within twice the error in 88 to 99%."""
    inside, ratio = [], []
    for seed in range(20):
        for dim, size in ((1, 100), (2, 300), (5, 300)):
            x = np.random.default_rng(seed).normal(size=dim) * np.sqrt(1.09)
            posterior = alarms(model(lines, dim), x, size, seed)[0].posterior
            off = posterior.samples["theta"].mean(axis=0) - x / 1.09
            inside += list(np.abs(off) <= 2.0 * posterior.error_of_mean["theta"])
            ratio += list(posterior.error_of_mean["theta"] / np.abs(off))
    assert np.mean(inside) >= 0.88 and 0.7 < np.median(ratio) < 2.5


def test_what_is_learnt_well_asks_for_nothing_and_what_is_not_asks_for_more():
    engine = alarms(model(lines, 2), np.array([0.5, -1.0]), 1000, 0)[0]
    posterior = engine.posterior
    sd = posterior.samples["theta"].std(axis=0)
    assert np.all(posterior.error_of_mean["theta"] < 0.3 * sd) and np.all(posterior.error_of_sd["theta"] < 0.2)
    off = replace(posterior.errors, typical=np.array([1.0, 0.0]))
    with pytest.warns(UserWarning, match=r"mean of theta\[\d\] may be off by .*, 0.7\d* posterior standard") as said:
        emit_warnings(replace(posterior, errors=off))
    assert len(said) == 1 and "about 2,000 suffice" in str(said[0].message)
    for few, settings in ((15, {}), (300, {"standard_errors": False})):
        bare = alarms(model(lines, 1), np.zeros(1), few, 0, **settings)[0]
        assert bare.posterior.errors is None and "standard_errors" not in groups_of(bare)
        with pytest.raises(NotImplementedError, match="has no standard errors"):
            bare.posterior.error_of_expectation(lambda sites: sites["theta"])


def test_what_was_warned_of_stays_with_the_posterior(capsys):
    """Of `run`, `condition` and `refine`, and of super-samples; a true or false number is summarised, too."""

    def far(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.deterministic("positive", theta > 0.0)
        numpyro.sample("x", kme.Simulator(lambda key, t: t + jax.random.normal(key, (2,)), theta), obs=x)

    engine = kme.KELFI(far, 100, num_rounds=1, form=KernelMeans(), progress_bar=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(0), x=np.array([9.0, -9.0]))
        first = engine.posterior
        other = engine.condition(jax.random.key(1), x=np.array([9.0, -9.0]))
        engine.refine(jax.random.key(2), {"theta": np.linspace(-0.5, 0.5, 20)})
        herded = first.herd(jax.random.key(3), 5)
    outside = [str(one.message) for one in caught if "outside all simulations" in str(one.message)]
    assert len(outside) >= 3
    for posterior in (first, other, engine.posterior, herded):
        assert any(line.startswith(one) for one in posterior.warned for line in outside), posterior.warned
        posterior.print_summary()
        printed = " ".join(capsys.readouterr().out.split())
        assert all(" ".join(one.split()) in printed for one in posterior.warned) and "positive" in printed


def groups_of(engine):
    data = engine.to_inference_data()
    return data.groups() if callable(data.groups) else list(data.children)


def test_standard_errors_are_in_the_summary_in_arviz_and_of_any_expectation(capsys):
    posterior = alarms(model(lines, 2), np.array([0.5, -1.0]), 300, 0)[0].posterior
    posterior.print_summary()
    title, first = capsys.readouterr().out.strip().splitlines()[2:4]
    assert title.split()[:4] == ["mean", "error", "std", "error"]
    error, samples = posterior.error_of_mean["theta"], posterior.samples["theta"]
    np.testing.assert_allclose(float(first.split()[2]), error[0], rtol=0.01)
    of_sd = posterior.error_of_sd["theta"][0] * samples[:, 0].std()
    np.testing.assert_allclose(float(first.split()[4]), of_sd, rtol=0.01)
    _, of_mean, sd, beyond, _ = posterior.checks
    np.testing.assert_allclose(of_mean.value, np.max(error / samples.std(axis=0)), rtol=0.01)
    np.testing.assert_allclose(sd.value, np.max(posterior.error_of_sd["theta"]), rtol=0.01)
    assert of_mean.ok == (of_mean.value <= 0.5) and beyond.value == float(np.max(posterior.extrapolated["x"]))
    kept = posterior.to_inference_data()["standard_errors"]["theta"]
    np.testing.assert_allclose(kept.sel(moment="mean"), error)
    table = posterior.summary()
    np.testing.assert_allclose(table["mcse_mean"], error)
    np.testing.assert_allclose(table["mcse_sd"], posterior.error_of_sd["theta"] * samples.std(axis=0), rtol=0.01)
    twice = posterior.error_of_expectation(lambda sites: 2.0 * sites["theta"])
    np.testing.assert_allclose(twice, 2.0 * error)


def test_a_site_whose_halves_lack_a_statistic_counts_as_it_is():
    """In rounds, beside a site that has halves: errors are those that the other site alone leaves."""

    def two(x=None, y=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
        numpyro.sample("x", kme.Simulator(lines, theta), obs=x)
        numpyro.sample("y", kme.Simulator(lines, theta), obs=y)

    engine = kme.KELFI(two, 100, num_rounds=2, progress_bar=False)
    engine.run(jax.random.key(0), x=np.zeros(1), y=np.zeros(1))
    method, posterior = engine.method, engine.posterior
    x, y = (method.likelihoods[name] for name in ("x", "y"))
    for others in ((), y.others[-1:]):
        bare = replace(y, others=others, shares=y.shares[: len(others)])
        found = replace(method, likelihoods={"y": bare, "x": x}).standard_errors(posterior.problem, posterior.drawn)
        assert len(found.shares) == len(x.others) and np.isfinite(found.weights).all()
        assert found.of_moments(posterior.samples["theta"])[0, 0] > 0.0


def of_two(rng_key, log_odds):
    """Four draws at -1.5 or 1.5, of which the parameter says how often they are at -1.5."""
    side_key, noise_key = jax.random.split(rng_key)
    left = jax.random.bernoulli(side_key, jax.nn.sigmoid(log_odds), (4,))
    return jnp.where(left, -1.5, 1.5) + 0.5 * jax.random.normal(noise_key, (4,))


@pytest.mark.slow
def test_statistics_whose_values_become_more_or_less_probable_are_named():
    """The number of draws on one side, in their place, has the exact posterior by Bernoulli's formula."""

    def model(simulator, x):
        log_odds = numpyro.sample("log_odds", dist.Normal(0.0, 1.5))
        numpyro.sample("x", kme.Simulator(simulator, log_odds), obs=x)

    draws = kme.KELFI(partial(model, of_two), 500, num_rounds=1, progress_bar=False)
    with pytest.warns(UserWarning, match="The parameters change how probable values of all statistics of 'x'"):
        draws.run(jax.random.key(0), x=np.array([-1.4, -1.7, -1.0, 1.3]))
    counting = kme.KELFI(partial(model, how_many), 500, num_rounds=1, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        counting.run(jax.random.key(0), x=np.array([3.0]))
    at = np.linspace(-8.0, 8.0, 2001)
    p = stats.norm.pdf(at, 0.0, 1.5) / (1.0 + np.exp(-at)) ** 3 / (1.0 + np.exp(at))
    mean = np.average(at, weights=p)
    sd = np.sqrt(np.average(np.square(at - mean), weights=p))
    found = np.asarray(counting.get_samples()["log_odds"])
    assert abs(found.mean() - mean) < 0.35 * sd and 0.85 < found.std() / sd < 1.2


def how_many(rng_key, log_odds):
    """The number of draws at -1.5."""
    return jnp.sum(of_two(rng_key, log_odds) < 0.0).astype(float)[None]
