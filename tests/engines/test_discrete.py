"""Discrete latents: probabilities against sums over their values, and what says no."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, DiscreteHMCGibbs
from scipy import stats

import numpyro_kme as kme
from numpyro_kme import diagnostics

KEY = jax.random.key(6)
X = np.array([0.4, 0.9], np.float32)
SD = np.array([0.8, 0.5], np.float32)


def places(states):
    return np.linspace(-0.6, 0.6, states)


def chances(states):
    return np.arange(1.0, states + 1.0) / (states * (states + 1) / 2)


def around(rng_key, place, shift):
    """Two numbers around a place between 0 and 1."""
    return 1.2 * place - 0.6 + shift + jnp.asarray(SD) * jax.random.normal(rng_key, (2,))


def mixture(x=None, states=2):
    """A state and a continuous shift."""
    k = numpyro.sample("k", dist.Categorical(jnp.asarray(chances(states))))
    shift = numpyro.sample("shift", dist.Normal(0.0, 0.5))
    numpyro.sample("x", kme.Simulator(around, k / (states - 1), shift), obs=x)


def exact(states):
    """Probabilities of the states, and the posterior mean of the shift, by quadrature."""
    shift = np.linspace(-3.0, 3.0, 2001)
    centre = places(states)[:, None] + shift
    joint = chances(states)[:, None] * stats.norm.pdf(shift, 0.0, 0.5)
    joint = joint * stats.norm.pdf(X[0], centre, SD[0]) * stats.norm.pdf(X[1], centre, SD[1])
    return joint.sum(axis=1) / joint.sum(), (joint * shift).sum() / joint.sum()


def probabilities(engine, states):
    return engine.posterior.expectation(lambda sites: np.eye(states)[np.asarray(sites["k"])])


@pytest.mark.parametrize("states", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kelfi_sums_over_the_states(states):
    engine = kme.KELFI(mixture, 600, num_rounds=1, num_samples=4000, progress_bar=False)
    engine.run(KEY, X, states)
    wanted, shift = exact(states)
    assert np.abs(probabilities(engine, states) - wanted).max() < 0.03
    assert abs(engine.get_samples()["shift"].mean() - shift) < 0.08
    assert "10 joint values" in engine.info["discrete latents"] or states == 2
    with pytest.raises(ValueError, match=r"\['k'\] are discrete. Use the draws"):
        engine.posterior.mode()


SLOW = (kme.KernelABC, kme.KernelBayes, kme.DistributionRegressionABC)


@pytest.mark.parametrize("engine", [kme.RejectionABC, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)])
def test_engines_that_weight_simulations(engine):
    fitted = engine(mixture, 4000, progress_bar=False)
    fitted.run(KEY, X)
    effective = float(fitted.info["effective sample size"])
    error = np.abs(probabilities(fitted, 2) - exact(2)[0]).max()
    assert error < 0.03 + 4.0 * np.sqrt(0.06 / effective)
    assert fitted.get_samples()["k"].dtype.kind == "i"


def coin(rng_key, p):
    return 1.0 * (jax.random.uniform(rng_key) < p)


def coins(x=None):
    p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    with numpyro.plate("n", 7):
        numpyro.sample("x", kme.Simulator(coin, p), obs=x)


def test_data_that_many_simulations_have_exactly():
    """Seven coins in any order: Beta(1 + heads, 8 - heads). A summary without its own simulation tells that one."""
    engine = kme.DistributionRegressionABC(coins, 1500, progress_bar=False)
    engine.run(KEY, x=np.arange(7.0) < 0)
    for heads in (0, 5):
        found = engine.condition(KEY, x=np.arange(7.0) < heads).get_samples()["p"]
        exact = stats.beta(1 + heads, 8 - heads)
        assert abs(found.mean() - exact.mean()) < 0.3 * exact.std()
        assert 0.75 < found.std() / exact.std() < 1.3


def only_discrete(x=None):
    b = numpyro.sample("b", dist.Bernoulli(0.3).expand([2]).to_event(1))
    c = numpyro.sample("c", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
    numpyro.sample("x", kme.Simulator(three, b, c), obs=x)


def three(rng_key, b, c):
    return jnp.stack([b[0] + 2.0 * b[1] + c, 1.0 * c]) + jax.random.normal(rng_key, (2,))


@pytest.mark.slow
def test_nothing_but_discrete_latents():
    x = np.array([2.0, 1.5], np.float32)
    engine = kme.KELFI(only_discrete, 600, num_rounds=1, num_samples=4000, progress_bar=False)
    engine.run(KEY, x)
    first, second, c = (part.ravel() for part in np.meshgrid([0, 1], [0, 1], [0, 1, 2], indexing="ij"))
    weights = np.where(first, 0.3, 0.7) * np.where(second, 0.3, 0.7) * np.array([0.2, 0.5, 0.3])[c]
    weights *= stats.norm.pdf(x[0], first + 2 * second + c) * stats.norm.pdf(x[1], c)
    evidence, weights = weights.sum(), weights / weights.sum()
    samples = engine.get_samples()
    np.testing.assert_allclose(samples["b"].mean(axis=0), [weights @ first, weights @ second], atol=0.08)
    np.testing.assert_allclose(samples["c"].mean(), weights @ c, atol=0.1)
    assert abs(engine.posterior.log_marginal_likelihood() - np.log(evidence)) < 0.2
    rejection = kme.RejectionABC(only_discrete, 2000, progress_bar=False)
    rejection.run(KEY, x)
    mode = rejection.posterior.mode()
    assert mode["b"].shape == (2,) and mode["c"].dtype.kind == "i"


@pytest.mark.slow
def test_surrogates_under_discrete_gibbs():
    engine = kme.KELFI(mixture, 600, num_rounds=1, num_samples=100, progress_bar=False)
    engine.run(KEY, X, 3)
    kernel = DiscreteHMCGibbs(NUTS(kme.handlers.surrogate(mixture, engine.likelihoods)))
    mcmc = MCMC(kernel, num_warmup=500, num_samples=6000, progress_bar=False)
    mcmc.run(KEY, X, 3)
    found = np.mean(np.eye(3)[np.asarray(mcmc.get_samples()["k"])], axis=0)
    assert np.abs(found - exact(3)[0]).max() < 0.03


def of_each(x=None):
    """A state of each trial, which NumPyro can sum over."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 0.5))
    with numpyro.plate("trials", len(x)):
        k = numpyro.sample("k", dist.Bernoulli(0.7), infer={"enumerate": "parallel"})
        numpyro.sample("x", kme.Simulator(around, k, shift, event_dims=0), obs=x)


def test_surrogates_take_the_values_that_numpyro_enumerates():
    """All values of a latent stand along a dimension in front of the plates, as the package funsor has them."""
    arguments, outputs = np.random.default_rng(0).normal(size=(60, 2)), np.random.default_rng(1).normal(size=(60, 2))
    fitted = kme.fit_likelihood(arguments, outputs)
    smodel = kme.handlers.surrogate(of_each, {"x": fitted})
    x = np.random.default_rng(2).normal(size=(5, 2)).astype(np.float32)

    data = {"k": jnp.array([[0.0], [1.0]]), "shift": jnp.float32(0.1)}
    site = numpyro.handlers.trace(numpyro.handlers.substitute(smodel, data)).get_trace(x)["x"]
    points = fitted.coordinates.table(np.array([[0.0, 0.1], [1.0, 0.1]]))
    by_numpy = np.stack([fitted.at(row).log_density(points) for row in x], axis=1)
    np.testing.assert_allclose(site["fn"].log_prob(site["value"]), by_numpy, rtol=1e-4, atol=1e-4)


def counted(x=None):
    n = numpyro.sample("n", dist.Poisson(4.0))
    numpyro.sample("x", kme.Simulator(near, n), obs=x)


def near(rng_key, n):
    return n + jax.random.normal(rng_key)


def many(x=None):
    with numpyro.plate("bits", 8):
        b = numpyro.sample("b", dist.Bernoulli(0.3))
    numpyro.sample("x", kme.Simulator(near, jnp.sum(b)), obs=x)


def test_infinite_support_is_for_engines_that_weight():
    n = np.arange(60)
    weights = stats.poisson.pmf(n, 4.0) * stats.norm.pdf(5.0, n)
    engine = kme.RejectionABC(counted, 4000, progress_bar=False)
    engine.run(KEY, np.float32(5.0))
    effective = float(engine.info["effective sample size"])
    mean = weights @ n / weights.sum()
    sd = np.sqrt(weights @ (n - mean) ** 2 / weights.sum())
    assert abs(engine.posterior.expectation(lambda sites: sites["n"]) - mean) < 0.1 * sd + 4.5 * sd / np.sqrt(effective)


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (kme.KELFI(counted), "'n' is discrete .Poisson.*infinitely many.*RejectionABC"),
        (kme.KELFI(many), "256 joint values: KELFI sums over at most 100"),
        (kme.KernelABC(counted, 100, regression_adjustment=True), "`regression_adjustment`, which moves latents, "),
        (kme.KernelRecursiveABC(counted), "KernelRecursiveABC, which herds points"),
    ],
)
def test_what_takes_no_discrete_latent_says_what_does(engine, sentence):
    with pytest.raises(ValueError, match=sentence):
        engine.run(KEY, np.float32(5.0))


@pytest.mark.slow
def test_calibration_of_discrete_latents_breaks_ties():
    engine = kme.RejectionABC(counted, 400, quantile=0.1, num_samples=100, progress_bar=False)
    engine.run(KEY, x=np.float32(5.0))
    found = diagnostics.calibrate(KEY, engine, 200)
    assert stats.kstest(found.ranks["n"], "uniform").pvalue > 1e-4
