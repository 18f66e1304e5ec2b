"""Rules for length scales where a kernel is chosen from data: the same as the kernel that the rule names."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import one_draw
from scipy.spatial.distance import pdist

import numpyro_kme as kme
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.published.learning import TrainingSet
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut

KEY = jax.random.key(0)


def shift(noise, mean):
    return mean + noise


SHIFTED = kme.FromNoise(shift, dist.Normal(0.0, 1.0))


def two_numbers(rng_key, mean):
    noise = jax.random.normal(rng_key, (2,), jnp.result_type(mean))
    return mean * jnp.array([1.0, 30.0]) + jnp.array([0.5, 60.0]) * noise


def model(x=None, simulator=SHIFTED, size=40):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", size):
        numpyro.sample("x", kme.Simulator(simulator, mean), obs=x)


def statistics(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(two_numbers, mean), obs=x)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).choice([-2.0, 2.0], 40) + 0.3 * np.random.default_rng(0).normal(size=40)


class Third(kme.kernels.LengthScaleRule):
    """A third of the median distance, by SciPy."""

    def __call__(self, x, targets=None):
        return np.median(pdist(x)) / 3


RULES = {"third": Third(), "kernel learning": kme.BayesianKernelLearning(KEY, num_landmarks=10)}


@pytest.mark.x64
@pytest.mark.parametrize("name", ["third", pytest.param("kernel learning", marks=pytest.mark.slow)])
def test_bootstrap(name, x):
    """By the engine, which leaves it to the loss, and by the kernel."""
    rule = RULES[name]
    for points in (x, 2.0 * x):
        bound = kme.MMD(length_scale=rule).for_data(points)
        np.testing.assert_allclose(float(bound.kernel.length_scale), float(rule(points.reshape(40, 1))), rtol=1e-9)
    assert abs(bound.kernel.length_scale / kme.MMD().for_data(2.0 * x).kernel.length_scale - 1) > 1e-3


def test_each_kernel_of_a_joint_distribution(x, rng):
    """With covariates, the kernels that are left out."""
    covariates = rng.normal(size=(40, 1)) * 7
    for given in (None, Gaussian(0.2)):
        loss = kme.MMD(covariate_kernel=given, length_scale=Third()).for_data((covariates, x[:, None]))
        expected = np.median(pdist(covariates)) / 3 if given is None else 0.2
        assert float(loss.covariate_kernel.length_scale) == pytest.approx(expected, rel=1e-12)
        assert float(loss.kernel.length_scale) == pytest.approx(np.median(pdist(x[:, None])) / 3, rel=1e-12)


@pytest.mark.filterwarnings("ignore:.*the posterior is coarse")
def test_rejection(x):
    simulations = kme.simulate(KEY, kme.Problem.read(model, x, one_draw), 200, progress_bar=False)
    kept = []
    for settings in (
        {"length_scale": Third()},
        {"discrepancy": kme.embeddings.Quadratic(Gaussian(np.median(pdist(x[:, None])) / 3))},
        {"length_scale": kme.MedianHeuristic()},
    ):
        engine = kme.RejectionABC(model, simulations=simulations, quantile=0.1, **settings)
        engine.run(KEY, x, one_draw)
        kept.append(engine.posterior.get_weights()["weight"])
    np.testing.assert_array_equal(kept[0], kept[1])
    assert (kept[0] != kept[2]).any()
    again = np.linspace(-1.5, 2.5, 40)
    posterior = engine.condition(KEY, again, one_draw)
    other = kme.RejectionABC(
        model,
        simulations=simulations,
        quantile=0.1,
        discrepancy=kme.embeddings.Quadratic(Gaussian(np.median(pdist(again[:, None])))),
    )
    other.run(KEY, again, one_draw)
    np.testing.assert_array_equal(posterior.get_weights()["weight"], other.posterior.get_weights()["weight"])


@pytest.mark.x64
@pytest.mark.parametrize(
    "rule", [pytest.param(kme.CrossValidation(KEY), marks=pytest.mark.slow), kme.MedianHeuristic(per_dimension=True)]
)
def test_kelfi_with_fixed_widths(rule):
    """The data kernel is what the rule gives for standardised statistics; `beta` and `lam` maximise the objective."""
    form = kme.KernelMeans(length_scale=rule)
    simulations = kme.simulate(KEY, statistics, 150, progress_bar=False)
    surrogate = kme.fit_likelihood(simulations.arguments["x"], simulations.x["x"], form=form).surrogate
    scale = np.broadcast_to(rule(surrogate.data, surrogate.z), 2)
    np.testing.assert_array_equal(surrogate.hyper.data_kernel.length_scale, scale)
    np.testing.assert_array_equal(surrogate.describe()["eps"], scale)
    assert "eps" not in surrogate.describe()["at bounds"]
    training, value = TrainingSet(surrogate.z, surrogate.data), LeaveOneOut().value_and_gradient

    def score(beta, lam):
        hyper = replace(surrogate.hyper, parameter_kernel=Gaussian(beta), regularisation=lam)
        return float(value(hyper, training)[0])

    beta, lam = surrogate.hyper.parameter_kernel.length_scale, surrogate.hyper.regularisation
    beta, lam = np.asarray(beta), np.float64(lam)
    best = score(beta, lam)
    assert all(score(beta * a, np.clip(lam * b, 1e-3, 1)) < best + 2e-3 for a in (0.6, 1, 1.6) for b in (0.4, 1, 2.5))


bootstrap, rejection = partial(kme.PosteriorBootstrap, model), partial(kme.RejectionABC, model)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: bootstrap(kme.MMD(), length_scale=Third()), ValueError, "`loss` or `length_scale`, not"),
        (lambda x: bootstrap(length_scale=0.3), TypeError, "`length_scale` must be a rule"),
        (lambda x: bootstrap(kme.MMD(Gaussian(1.0), length_scale=Third())).run(KEY, x), ValueError, "`kernel` or"),
        (lambda x: bootstrap(length_scale=kme.CrossValidation(KEY)).run(KEY, x), ValueError, "CrossValidation asks"),
        (lambda x: rejection(discrepancy=np.subtract, length_scale=Third()), ValueError, "`discrepancy` or"),
        (lambda x: kme.KernelMeans(data_kernel=Gaussian(1.0), length_scale=Third()), ValueError, "or `data_kernel`"),
        (lambda x: kme.KernelMeans(length_scale=1.0), TypeError, "`length_scale` must be a rule"),
    ],
)
def test_bad_input_raises(call, error, message, x):
    with pytest.raises(error, match=message):
        call(x)
