"""Soft ABC by MCMC over parameters and noise: its density by hand, its posterior where it is known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.util import log_density
from scipy import stats

from numpyro_kme.kernels import Energy, Gaussian, Laplace
from numpyro_kme.mcmc.handlers import soft_abc, uncondition_simulators
from numpyro_kme.mcmc.pseudo_marginal import PseudoMarginal
from numpyro_kme.models import FromNoise, Simulator

X = np.float32([0.9, 1.7, -0.2])


DECLARED = FromNoise(lambda z, m, s: m + s * z, dist.Normal(0, 1).expand([3]).to_event(1))
SHIFTED = FromNoise(lambda z, mean: mean + z, dist.Normal(0, 1))


def model(x=None, simulator=DECLARED, **declared):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("x", Simulator(simulator, mean, 0.8, **declared), obs=x)


def groups(x=None):
    with numpyro.plate("groups", 3):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        numpyro.sample("x", Simulator(SHIFTED, mean, event_dims=0), obs=x)


@pytest.mark.parametrize("kernel", [Gaussian(np.float32([0.5, 1.0, 2.0])), Laplace(0.7)])
def test_the_density_is_that_of_parameters_and_noise(kernel):
    z = np.float32([0.3, -1.0, 0.4])
    at = {"mean": np.float32(0.5), "x_noise": z}
    found = jax.jit(lambda at: log_density(soft_abc(model, kernel), (X,), {}, at)[0])(at)
    r = np.linalg.norm((X - 0.5 - 0.8 * z) / kernel.length_scale)
    log_kernel = -0.5 * r**2 if isinstance(kernel, Gaussian) else -r
    expected = stats.norm(0, 2).logpdf(0.5) + stats.norm.logpdf(z).sum() + log_kernel
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_each_call_under_a_plate_has_noise_of_its_own_and_masks_count():
    z, mean, counted = np.float32([0.3, -1.0, 0.4]), np.float32([0.5, 0.0, 1.0]), np.array([True, False, True])
    masked = handlers.mask(soft_abc(handlers.mask(groups, mask=counted), Gaussian(0.5)), mask=True)
    found, trace = log_density(masked, (X,), {}, {"mean": jnp.asarray(mean), "x_noise": jnp.asarray(z)})
    terms = stats.norm(0, 2).logpdf(mean) - 0.5 * ((X - mean - z) / 0.5) ** 2
    assert trace["x_noise"]["fn"].shape() == (3,)
    np.testing.assert_allclose(found, terms[counted].sum() + stats.norm.logpdf(z).sum(), rtol=1e-5)


def posterior(epsilon):
    """Mean and standard deviation under a normal likelihood of variance `0.8^2 + epsilon^2`."""
    precision = 1 / 4 + 3 / (0.8**2 + epsilon**2)
    return X.sum() / (0.8**2 + epsilon**2) / precision, precision**-0.5


def run_without_derivatives(model, *args, num_samples=4000):
    mcmc = MCMC(PseudoMarginal(model), num_warmup=1000, num_samples=num_samples, num_chains=4,
                chain_method="vectorized", progress_bar=False)  # fmt: skip
    mcmc.run(random.key(0), *args)
    return mcmc, mcmc.get_samples(group_by_chain=True)


def errors(found, mean, sd):
    """How far mean and standard deviation of draws are from exact ones, in Monte Carlo standard errors."""
    found = np.asarray(found)
    sizes = [numpyro.diagnostics.effective_sample_size(values) for values in (found, (found - mean) ** 2)]
    return np.abs([found.mean() - mean, found.std() - sd]) * np.sqrt(sizes) / sd


@pytest.mark.slow
def test_correlated_steps_of_the_noise_find_it_too():
    mcmc, draws = run_without_derivatives(soft_abc(model, Gaussian(0.4)), X)
    assert np.all(errors(draws["mean"], *posterior(0.4)) < 5.0)
    assert -2.0 < float(mcmc.last_state.adapted.log_step.mean()) < -0.2
    assert 0.1 < float(mcmc.last_state.mean_accept_prob.mean()) < 0.3


def poisson(z, mean):
    """Two counts by the quantiles of their distribution."""
    k = jnp.arange(60)
    log_p = k * jnp.log(mean) - mean - jax.scipy.special.gammaln(k + 1.0)
    return jnp.searchsorted(jnp.cumsum(jnp.exp(log_p)), jax.scipy.special.ndtr(z))


POISSON = FromNoise(poisson, dist.Normal(0, 1).expand([2]).to_event(1))


def counts(x=None):
    mean = numpyro.sample("mean", dist.Gamma(4.0, 1.0))
    numpyro.sample("x", Simulator(POISSON, mean), obs=x)


COUNTED = np.array([3, 6])


def test_counts_have_no_derivative():
    soft = soft_abc(counts, Gaussian(0.8))
    with pytest.raises(NotImplementedError, match=r"returns int32, whose draws have no.*PseudoMarginal samples this"):
        MCMC(NUTS(soft), num_warmup=1, num_samples=1, progress_bar=False).run(random.key(0), COUNTED)


def test_noise_that_is_not_standard_normal_is_refused_by_correlated_steps():
    declared = FromNoise(lambda z, m, s: m + s * z, dist.Exponential().expand([3]).to_event(1))
    kernel = PseudoMarginal(soft_abc(model, Gaussian(0.4)))
    with pytest.raises(ValueError, match=r"noise 'x_noise' is declared as Exponential\. Declare standard normals"):
        MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False).run(random.key(0), X, declared)


def test_simulators_that_are_not_observed_stay_in_place():
    soft = soft_abc(model, Gaussian(0.3))
    for replicates, given in ((soft, ()), (soft_abc(uncondition_simulators(model), Gaussian(0.3)), (X,))):
        drawn = Predictive(replicates, {"mean": jnp.zeros(4)})(random.key(0), *given)
        assert drawn["x"].shape == (4, 3) and "x_noise" not in drawn and np.ptp(drawn["x"], axis=0).min() > 0


def in_numpy(rng, mean, sd):
    return mean + sd * rng.normal(size=3)


@pytest.mark.parametrize(
    "given, declared, sentence",
    [
        (Gaussian(0.3), dict(simulator=in_numpy, shape=(3,), dtype=float), "`in_numpy` is needed .* Declare it"),
        (Energy(), {}, "takes negative values, so it has no logarithm"),
    ],
)
def test_what_does_not_fit_is_explained(given, declared, sentence):
    at = {"mean": jnp.float32(0.5), "x_noise": jnp.zeros(3)}
    with pytest.raises(ValueError, match=sentence):
        log_density(soft_abc(model, given), (X,), declared, at)


def test_a_scaled_site_is_refused():
    with pytest.raises(ValueError, match=r"The site 'x' is scaled by 3\.0, which has no meaning for soft_abc"):
        handlers.seed(soft_abc(handlers.scale(model, scale=3.0), Gaussian(0.3)), 0)(X)


def test_what_is_missing_is_masked_or_refused():
    missing = X.copy()
    missing[1] = np.nan
    at = {"mean": np.float32([0.5, 0.0, 1.0]), "x_noise": np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match=r"The observation at 'x' has NaN in 1 outputs of `<lambda>`"):
        log_density(soft_abc(groups, Gaussian(0.3)), (missing,), {}, at)
    known = handlers.mask(groups, mask=~np.isnan(missing))
    slope = jax.grad(lambda mean: log_density(soft_abc(known, Gaussian(0.3)), (missing,), {}, at | {"mean": mean})[0])
    np.testing.assert_allclose(slope(at["mean"])[1], 0.0, atol=1e-6)
