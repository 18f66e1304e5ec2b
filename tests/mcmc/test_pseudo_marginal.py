"""The pseudo-marginal kernel and noise as a latent against exact posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.mcmc.chain_checks import log_estimate_sd
from numpyro_kme.mcmc.densities import SyntheticLikelihood
from numpyro_kme.mcmc.handlers import generalized_bayes
from numpyro_kme.mcmc.noise import FreshNoise, LatentNoise, simulation_key, simulation_keys
from numpyro_kme.mcmc.pseudo_marginal import PseudoMarginal
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise

X = np.random.default_rng(0).normal(1.0, 1.0, 40)


def shift(noise, mean):
    return mean + noise


def model(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", 40):
        numpyro.sample("x", Simulator(FromNoise(shift, dist.Normal(0.0, 1.0)), mean), obs=x)


def loss_with(noise):
    return generalized_bayes(model, MMD(Gaussian(1.0)), weight=1.0, noise=noise)


def exact(draws=2000, simulated=16):
    """Mean and sd of prior x E exp(-n MMD^2), four times over, by draws of the noise at each point of a grid."""
    grid, found = np.linspace(-1.5, 3.5, 51), []
    for rng in np.random.default_rng(1).spawn(4):
        z = rng.normal(size=(draws // 4, simulated))
        pairs = np.exp(-0.5 * (z[:, :, None] - z[:, None]) ** 2).sum((1, 2)) - simulated
        within = pairs / (simulated * (simulated - 1))
        mean_kernel = np.array([np.exp(-0.5 * (m + z[:, :, None] - X) ** 2).mean((1, 2)) for m in grid])
        p = np.exp(-len(X) * (within - 2.0 * mean_kernel)).mean(1) * np.exp(-0.5 * (grid / 2.0) ** 2)
        mean = p @ grid / p.sum()
        found.append((mean, np.sqrt(p @ (grid - mean) ** 2 / p.sum())))
    return np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / 2.0


@pytest.fixture(scope="module")
def truth():
    return exact()


def standard_errors(samples, truth):
    """How many Monte Carlo standard errors mean and sd `(chains, draws)` are off."""
    (mean, sd), errors = truth
    ess, ess_square = (effective_sample_size(np.asarray(s)) for s in (samples, (samples - samples.mean()) ** 2))
    se_mean = np.hypot(samples.std() / np.sqrt(ess), errors[0])
    se_sd = np.hypot(((samples - samples.mean()) ** 2).std() / np.sqrt(ess_square) / 2.0 / sd, errors[1])
    return abs(samples.mean() - mean) / se_mean, abs(samples.std() - sd) / se_sd


def run(kernel, *args, num_samples=1000, num_warmup=400):
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=4, chain_method="vectorized",
                progress_bar=False)  # fmt: skip
    mcmc.run(random.key(0), *args)
    return mcmc, np.asarray(mcmc.get_samples(group_by_chain=True)["mean"])


@pytest.mark.slow
def test_fresh_noise_gives_the_exact_posterior(truth):
    mcmc, samples = run(PseudoMarginal(loss_with(FreshNoise(16))), X)
    assert max(standard_errors(samples, truth)) < 4.0
    assert samples.shape == (4, 1000) and 0.03 < float(mcmc.last_state.mean_accept_prob.mean()) < 0.5


@pytest.mark.slow  # its density is written out in test_generalized_bayes
def test_latent_noise_gives_the_exact_posterior(truth):
    _, samples = run(NUTS(loss_with(LatentNoise(16))), X, num_samples=300, num_warmup=200)
    assert max(standard_errors(samples, truth)) < 4.0


@pytest.mark.slow
def test_correlated_steps_of_latent_noise_give_the_exact_posterior(truth):
    _, samples = run(PseudoMarginal(loss_with(LatentNoise(16))), X, num_samples=4000, num_warmup=1000)
    assert max(standard_errors(samples, truth)) < 4.0


def half_noise(rng_key, mean):
    return mean + 0.5 * random.normal(rng_key, (1,), jnp.result_type(float, mean))


def synthetic(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    likelihood = SyntheticLikelihood(half_noise, mean, num_simulations=4, rng_key=simulation_key("y"))
    numpyro.sample("y", likelihood, obs=y)


def exact_synthetic(y, draws=160_000):
    """Mean and sd of prior x the mean of the estimated density, by draws of the noise, four times over."""
    grid, found = np.linspace(-2.5, 3.0, 111), []
    for rng in np.random.default_rng(2).spawn(4):
        z = 0.5 * rng.normal(size=(draws // 4, 4))
        centre, spread = z.mean(1), z.std(1, ddof=1)
        density = [np.mean(np.exp(-0.5 * ((y - m - centre) / spread) ** 2) / spread) for m in grid]
        p = np.array(density) * np.exp(-0.5 * grid**2)
        mean = p @ grid / p.sum()
        found.append((mean, np.sqrt(p @ (grid - mean) ** 2 / p.sum())))
    return np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / 2.0


def test_a_synthetic_likelihood_takes_its_parameters_as_a_whole_under_plates():
    with numpyro.plate("data", 3):
        made = SyntheticLikelihood(lambda rng_key, theta: theta.sum()[None], jnp.zeros(3))
    assert made.simulator.call_shapes == ((3,),) and made.event_shape == (1,)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 4])
def test_a_synthetic_likelihood_with_fresh_simulations(blocks):
    """The chain targets prior x the expected estimate, which is wider than one with many simulations."""
    kernel = PseudoMarginal(synthetic, blocks=blocks)
    _, samples = run(kernel, np.array([0.8]), num_samples=3000, num_warmup=800)
    truth = exact_synthetic(0.8)
    assert max(standard_errors(samples, truth)) < 4.0
    assert truth[0][1] > 1.05 * np.sqrt(0.2)


def estimated(y, spread):
    """Normal posterior N(y / 2, 1 / 2) whose likelihood is known up to an unbiased log-normal factor."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    key = simulation_key("y")
    noise = 0.0 if key is None else spread * standard_normal(key) - 0.5 * spread**2
    numpyro.factor("y", dist.Normal(mean, 1.0).log_prob(y) + noise)


def standard_normal(key):
    """Of one key, or of several."""
    return jnp.sum(jax.vmap(random.normal)(jnp.atleast_1d(key))) / np.sqrt(key.size)


def test_any_estimated_density_can_be_sampled_with_one_chain():
    mcmc = MCMC(PseudoMarginal(estimated), num_warmup=500, num_samples=2000, progress_bar=False)
    mcmc.run(random.key(1), 2.0, spread=1.0)
    one = np.asarray(mcmc.get_samples()["mean"])[None]
    assert max(standard_errors(one, ((1.0, np.sqrt(0.5)), (0.0, 0.0)))) < 4.0


@pytest.mark.slow  # blocks: the synthetic likelihood with 4
def test_noise_renewed_in_blocks_gives_the_exact_posterior_where_all_of_it_would_make_the_chain_stick():
    sizes = {}
    for blocks in (1, 16):
        _, samples = run(PseudoMarginal(estimated, blocks=blocks), 2.0, 3.0, num_samples=4000)
        sizes[blocks] = effective_sample_size(samples)
    assert max(standard_errors(samples, ((1.0, np.sqrt(0.5)), (0.0, 0.0)))) < 4.0
    assert sizes[16] > 10 * sizes[1]


def test_a_rejected_proposal_leaves_point_estimate_and_key_as_they_are():
    kernel = PseudoMarginal(estimated)
    state = kernel.init(random.key(0), 0, {"mean": jnp.array(0.3)}, (2.0, 1.0), {})
    same = kernel.refresh(state, (2.0, 1.0), {})
    assert float(same.potential_energy) == float(state.potential_energy)
    step = jax.jit(lambda s: kernel.sample(s, (2.0, 1.0), {}))
    moves = 0
    for _ in range(20):
        new = step(state)
        stayed = float(new.z["mean"]) == float(state.z["mean"])
        assert stayed == (float(new.potential_energy) == float(state.potential_energy))
        assert stayed == bool((random.key_data(new.noise_key) == random.key_data(state.noise_key)).all())
        moves, state = moves + (not stayed), new
    assert 0 < moves < 20
    again = PseudoMarginal(lambda *_: None).wrap_model(lambda _: estimated)
    assert again.model is estimated


def test_the_spread_of_an_estimate_is_that_of_its_logarithm():
    draws = {"mean": np.linspace(-1.0, 1.0, 30)}
    found = log_estimate_sd(random.key(0), estimated, draws, 2.0, 1.0)
    assert found == pytest.approx(1.0, abs=5 / np.sqrt(2 * 49 * 20))
    with pytest.warns(UserWarning, match=r"standard deviation of .*; above 2 a PseudoMarginal chain sticks"):
        log_estimate_sd(random.key(0), estimated, draws, 2.0, 3.0)


def test_settings_are_checked():
    with pytest.raises(TypeError, match="`rng_key` must be a random key of JAX"):
        simulation_keys(estimated)
    with pytest.raises(TypeError, match="`rng_key` must be a random key of JAX; got 3"):
        PseudoMarginal(estimated).init(3, 1, None, (2.0, 1.0), {})
    with pytest.raises(ValueError, match="multiple of the number of blocks; got 16 and 3"):
        run(PseudoMarginal(loss_with(FreshNoise(16)), blocks=3), X, num_samples=1, num_warmup=1)
