"""No product of float32 matrices is rounded on a GPU, at any door through which users evaluate in float32.

GPUs round factors to 11 bits and TPUs to 8 unless JAX is told: a learnt log density was off by nats on one. CPUs do
not, so that what JAX was told is what is tested.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from precision import rounded_products

import numpyro_kme as kme
from numpyro_kme import embeddings, kernels, losses
from numpyro_kme.embeddings.measures import NormalMixture, Points
from numpyro_kme.embeddings.mmd import Fourier, LinearTime, Quadratic
from numpyro_kme.kernels import gram
from numpyro_kme.kernels.kernel_learning import log_pseudo_likelihood
from numpyro_kme.mcmc.handlers import generalized_bayes, surrogate
from numpyro_kme.simulators import bernoulli_glm, lotka_volterra

KEY, GAUSSIAN = jax.random.key(0), kernels.Gaussian(1.0)
RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(12, 2)).astype(np.float32) for _ in range(2))
WEIGHTS = np.full(12, 1 / 12, np.float32)
EQUAL = jnp.full(12, 1 / 12, np.float32)
MIXTURE = np.array([0.5, 0.5], np.float32), X[:2], np.stack([np.eye(2, dtype=np.float32)] * 2)


def drawn(key, t):
    return t + jax.random.normal(key, (2,))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(drawn, theta), obs=x)


def several(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("n", 12):
        numpyro.sample("x", kme.Simulator(drawn, theta), obs=x)


def of_embedding(x):
    found = embeddings.MeanEmbedding(GAUSSIAN, x, WEIGHTS)
    return found(Y), found.inner(found), found.expectation(Y)


def of_measure(measure):
    energy = kernels.Laplace(1.0)
    return [measure.mean_embedding(k, Y) for k in (GAUSSIAN, energy)], measure.product_embedding(GAUSSIAN, X, energy, Y)


FEW = {"num_simulations": 20, "rng_key": KEY}
FOURIER = Fourier.draw(KEY, GAUSSIAN, 2)
PUBLISHED = kme.KernelMeans(learner=kme.likelihoods.Learner(max_steps=2))
FORMS = {"residual": kme.ResidualKernelMeans(), "published": PUBLISHED}


@pytest.fixture(scope="module", params=FORMS)
def learnt(request):
    z = RNG.normal(size=(100, 2))
    return kme.fit_likelihood(z, z + RNG.normal(size=(100, 2)), form=FORMS[request.param])


DOORS = {
    "matrix times vector": lambda x: gram.matvec(GAUSSIAN, x, jnp.asarray(Y), jnp.asarray(WEIGHTS)),
    "squared MMD": lambda x: embeddings.squared_mmd(GAUSSIAN, x, Y),
    "weighted squared MMD": lambda x: embeddings.squared_mmd(GAUSSIAN, x, Y, x_weights=WEIGHTS, unbiased=False),
    "mean embedding": of_embedding,
    "points": lambda x: of_measure(Points(x, WEIGHTS)),
    "Quadratic": lambda x: (Quadratic(GAUSSIAN)(x, Y), Quadratic(GAUSSIAN).similarity(x, Y)),
    "LinearTime": lambda x: (LinearTime(GAUSSIAN)(x, Y), LinearTime(GAUSSIAN).similarity(x, Y)),
}

SLOPES = {
    **{name: (lambda x, door=door: sum(map(jnp.sum, jax.tree.leaves(door(x)))), X) for name, door in DOORS.items()},
    "transport": (lambda y: losses.Wasserstein().value(y + 1.0, EQUAL, y, EQUAL), jnp.asarray(Y[:, :1])),
    "density of a mixture": (lambda mean: NormalMixture(MIXTURE[0], mean, MIXTURE[2]).log_densities(X[:1])[0], X[:2]),
    "synthetic likelihood": (lambda t: kme.SyntheticLikelihood(drawn, t, **FEW).log_prob(X[0]), X[1]),
    "kernel learning": (lambda length: log_pseudo_likelihood(X, X[:5], length, 0.3, 1.0), 1.0),
}
"""Functions of which users take derivatives, and points."""

DOORS |= {
    "mixture of normals": lambda x: of_measure(NormalMixture(MIXTURE[0], x[:2], MIXTURE[2], num_points=64)),
    "random features": lambda x: (FOURIER(x, Y), FOURIER.similarity(x, Y), FOURIER.features(x)),
    "statistics of Lotka and Volterra": lotka_volterra.statistics,
    "spikes": lambda x: bernoulli_glm.spikes(KEY, x.ravel()[:10]),
}


@pytest.mark.parametrize("door", DOORS)
def test_values(door):
    assert not rounded_products(DOORS[door], X)


@pytest.mark.parametrize("door", SLOPES)
def test_derivatives(door):
    function, at = SLOPES[door]
    assert not rounded_products(jax.grad(jax.jit(function)), at)


def test_a_learnt_likelihood(learnt):
    likelihood = learnt.at(X[0])
    for function in (likelihood.log_density, lambda z: likelihood.signed_log(z)[1]):
        assert not rounded_products(jax.grad(jax.jit(function)), X[1])
    assert not rounded_products(lambda y, z: learnt.at(y).log_density(z), X[0], X[1])
    over = jax.vmap(lambda theta: kme.KernelMeansLikelihood(learnt, theta).log_prob(X[0]))
    assert not rounded_products(over, X)


def test_a_model_with_a_learnt_likelihood(learnt):
    with_density = surrogate(model, {"x": learnt})
    density = lambda theta: log_density(with_density, (), {"x": X[0]}, {"theta": theta})[0]  # noqa: E731
    assert not rounded_products(jax.grad(jax.jit(density)), X[1])


def test_a_model_with_a_loss():
    with_loss = generalized_bayes(several, losses.MMD(), weight=1.0, noise=kme.CommonNoise(16))
    trace = numpyro.handlers.trace(numpyro.handlers.seed(with_loss, KEY)).get_trace(X)
    latent = {n: s["value"] for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
    density = lambda given: log_density(with_loss, (X,), {}, given)[0]  # noqa: E731
    assert not rounded_products(jax.grad(jax.jit(density)), latent)
