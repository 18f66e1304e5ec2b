import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_t
from threadpoolctl import threadpool_info

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian
from numpyro_kme.likelihoods.published import learning, leave_one_out, solves
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.hyperparameters import Hyperparameters, TrainingSet, learn_normal
from numpyro_kme.likelihoods.published.learning import COMMON_SD, SEPARATE_SD, Learner, learn
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut, LeaveOneOutPredictive, MarginalLikelihood

M = 30
RNG = np.random.default_rng(11)
Z = RNG.normal(size=(M, 2))
S = np.c_[Z + 0.4 * RNG.normal(size=(M, 2)), RNG.normal(size=M)]
LOGS = np.log([0.8, 1.2, 0.5, 0.6, 0.9, 0.02])
TABLE = {
    "posterior": LeaveOneOut(),
    "predictive": LeaveOneOutPredictive(),
    "marginal": MarginalLikelihood(),
}


def hyper(logs):
    values = jnp.exp(logs)
    return Hyperparameters(Gaussian(values[:2]), Gaussian(values[2:5]), values[5])


def training_set():
    log_heavy_tailed = leave_one_out.log_heavy_tailed_density(S)
    return TrainingSet(Z, S, log_heavy_tailed, standard_normal(2), S[:1] + 0.1)


@functools.partial(jax.jit, static_argnums=0)
def value(objective, at, data):
    return objective.value(at, data)


def squared(a, b, scale):
    return np.sum(((a[:, None] - b[None]) / scale) ** 2, axis=-1)


@pytest.mark.x64
def test_adjoint_of_the_inverse_equals_autodiff():
    root = jnp.asarray(RNG.normal(size=(4, 4)))
    weights = jnp.asarray(RNG.normal(size=(4, 4)))
    matrix = lambda r: r @ r.T + jnp.eye(4)  # noqa: E731
    gradient = lambda f: jax.grad(lambda r: jnp.sum(weights * f(matrix(r))))  # noqa: E731
    both = jax.jit(lambda r: (gradient(solves.inverse_with_adjoint)(r), gradient(jnp.linalg.inv)(r)))
    np.testing.assert_allclose(*both(root), rtol=1e-10, atol=1e-12)


@pytest.mark.x64
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n != "posterior" else ()) for n in TABLE])
def test_gradients_of_objectives(name):
    """Against central differences; the adjoints in them are compared with autodiff above."""
    data = training_set()
    both = jax.jit(jax.value_and_grad(lambda logs: TABLE[name].value(hyper(logs), data)))
    found, step = np.asarray(both(LOGS)[1]), 1e-5
    differences = [(float(both(LOGS + d)[0]) - float(both(LOGS - d)[0])) / (2 * step) for d in step * np.eye(6)]
    np.testing.assert_allclose(found, differences, rtol=1e-5, atol=1e-8)


@pytest.mark.smoke
@pytest.mark.x64
def test_objectives_by_hand():
    """Each objective from its formula, with independent solves."""
    beta, eps, lam = np.exp(LOGS[:2]), np.exp(LOGS[2:5]), np.exp(LOGS[5])
    kappa = np.exp(-0.5 * squared(S, S, eps))
    norm = np.prod(np.sqrt(2 * np.pi) * eps)
    gram = np.exp(-0.5 * squared(Z, Z, beta))
    ratios = np.zeros((M, M))
    density = (kappa.sum(0) - 1) / (M - 1)
    for i in range(M):
        for j in range(M):
            rest = np.setdiff1d(np.arange(M), [i, j])
            weights = np.linalg.solve(gram[np.ix_(rest, rest)] + M * lam * np.eye(len(rest)), kappa[rest, i])
            ratios[j, i] = gram[j, rest] @ weights / density[i]
    part = lambda r: 0.5 * (r + np.hypot(r, 0.02))  # noqa: E731
    posterior = part(np.diag(ratios) / np.maximum(np.maximum(ratios, 0).mean(0), 0.02))
    data = training_set()
    np.testing.assert_allclose(
        value(LeaveOneOut(), hyper(LOGS), data), np.log(0.98 * posterior + 0.02).mean(), rtol=1e-8
    )
    predictive = part(np.diag(ratios) / np.maximum(np.maximum(ratios, 0).mean(1), 0.02)) * density / norm
    heavy_tailed = multivariate_t(S.mean(0), 2 * np.cov(S.T, bias=True) + 1e-6 * np.eye(3), df=3).pdf(S)
    expected = np.log(0.98 * predictive + 0.02 * heavy_tailed).mean()
    np.testing.assert_allclose(value(LeaveOneOutPredictive(), hyper(LOGS), data), expected, rtol=1e-8)
    seen = np.exp(-0.5 * squared(S[:1] + 0.1, S, eps)[0]) / norm
    embedding = np.prod(beta / np.sqrt(beta**2 + 1) * np.exp(-(Z**2) / (2 * (beta**2 + 1))), axis=1)
    expected = np.log(embedding @ np.linalg.solve(gram + M * lam * np.eye(M), seen))
    np.testing.assert_allclose(value(MarginalLikelihood(), hyper(LOGS), data), expected, rtol=1e-8)
    log_marginal = jax.jit(leave_one_out.leave_one_out_log_marginal)(np.log(kappa))
    np.testing.assert_allclose(
        log_marginal, logsumexp(np.where(np.eye(M), -np.inf, np.log(kappa)), axis=0) - np.log(M - 1)
    )


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(5)
    z = rng.normal(size=(120, 1))
    return z, np.c_[z[:, 0] + 0.3 * rng.normal(size=120), rng.normal(size=120)]


@pytest.fixture(scope="module")
def fitted(simulated):
    return KernelMeans().fit(*simulated)


def test_learns_and_says_what(fitted):
    """Inside the bounds, relevant statistics told from noise."""
    described = fitted.describe()
    assert described["at bounds"] == "none"
    assert described["leave-one-out score"] > 0.8
    assert 0 <= described["negative proportion"] < 0.3
    eps = described["eps"]
    assert eps[1] > 3 * eps[0]
    drop = fitted.informativeness()[1]
    assert drop[0] > 0.5 and abs(drop[1]) < 0.15
    np.testing.assert_allclose(fitted.learnt.score, described["leave-one-out score"], rtol=1e-9)


def test_the_search_ends_at_a_maximum(simulated, fitted):
    """No small step from the end is better, priors included, nor is the start, where these are 0."""
    data = TrainingSet(simulated[0], fitted.data)
    logs = np.log(
        [
            *fitted.hyper.parameter_kernel.length_scale,
            *fitted.hyper.data_kernel.length_scale,
            fitted.hyper.regularisation,
        ]
    )
    start = np.log([1.0, *np.full(2, 0.4 * np.sqrt(2)), 1e-2])

    @jax.jit
    def total(logs):
        values, offset = jnp.exp(logs), logs - start
        mean = offset[1:3].mean()
        prior = 0.5 * (offset[0] ** 2 + mean**2 + offset[3] ** 2) / COMMON_SD**2
        prior += 0.5 * jnp.sum((offset[1:3] - mean) ** 2) / SEPARATE_SD**2
        at = Hyperparameters(Gaussian(values[:1]), Gaussian(values[1:3]), values[3])
        return LeaveOneOut().value(at, data) - prior / 120

    best = total(logs)
    assert total(start) < best < fitted.learnt.score + 1e-4
    for direction in np.concatenate([np.eye(4), -np.eye(4)]):
        assert total(logs + 0.05 * direction) < best + 1e-6


def test_few_simulations_are_learnt_from_with_one_blas_thread(monkeypatch):
    threads = []

    def spy(_, at, *rest):
        threads.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return 0.0, np.zeros_like(at)

    monkeypatch.setattr(learning, "_value_and_gradient", spy)
    learn(LeaveOneOut(), training_set(), hyper(LOGS), Learner(max_steps=1))
    assert set(threads[: len(threads) // 2]) == {1}


def test_published_objective_differs_and_spikes(simulated):
    z, x = simulated
    with pytest.raises(ValueError, match="needs `y=`"):
        KernelMeans(MarginalLikelihood()).fit(z, x)
    published = KernelMeans(MarginalLikelihood()).fit(z, x[:, :1], y=np.array([0.4]), measure=standard_normal(1))
    assert "lower" in published.describe()["at bounds"]
    assert published.hyper.data_kernel.length_scale[0] < 0.1


def test_subset_and_last_steps(simulated, fitted, monkeypatch):
    """Most of the search on a subset, the rest on all: about the same score."""
    sizes, evaluate = [], learning._value_and_gradient

    def spy(objective, at, training, template):
        sizes.append(len(training.z))
        return evaluate(objective, at, training, template)

    monkeypatch.setattr(learning, "_value_and_gradient", spy)
    quick = KernelMeans(learner=Learner(subset=60, last_steps=12)).fit(*simulated)
    assert set(sizes) == {60, len(simulated[0])} and sizes.count(len(simulated[0])) <= 20
    assert quick.learnt.score > fitted.learnt.score - 0.05


def test_failed_factorisations_do_not_end_the_search():
    """Duplicated parameters and bounds that allow no regularisation: the search stays where factors exist."""
    z, s = np.repeat(Z[:10], 2, axis=0), S[:20]
    template = Hyperparameters(Gaussian(np.ones(2)), Gaussian(np.full(3, 0.5)), np.array(1e-2))
    learnt = learn(LeaveOneOut(), TrainingSet(z, s), template, Learner(regularisation_bounds=(1e-30, 1.0)))
    assert np.isfinite(learnt.score)


@pytest.mark.slow
def test_learns_the_inner_length_scale():
    """Variances differ, means do not: a useful inner length scale is near the data's, wherever the search starts.

    From far below it goes up by the largest factor, 32.
    """
    rng = np.random.default_rng(2)
    z = rng.normal(size=(40, 1))
    sets = np.exp(0.5 * z)[:, None] * rng.normal(size=(40, 25, 1))
    learner = Learner(num_starts=1, max_steps=30)
    kernels = [EmpiricalMeasure(Gaussian(scale), 0.3) for scale in (1 / 128, 8.0)]
    fits = [KernelMeans(data_kernel=kernel, learner=learner).fit(z, sets) for kernel in kernels]
    scales = [float(fit.hyper.data_kernel.inner.length_scale) for fit in fits]
    assert scales[0] == 1 / 4 and scales[1] < 8.0
    assert all(fit.learnt.score > 0.3 for fit in fits)
    with pytest.raises(ValueError, match="LeaveOneOutPredictive needs"):
        KernelMeans(LeaveOneOutPredictive(), data_kernel=EmpiricalMeasure(Gaussian(1.0), 0.3)).fit(z, sets)


def test_many_data_sets_are_learnt_from_a_subset_of_them():
    """As from these alone, with the noise variance `m lam` that they have."""
    z = np.random.default_rng(2).normal(size=(40, 1))
    sets = z[:, None] + np.random.default_rng(3).normal(size=(40, 4, 1))
    form = KernelMeans(data_kernel=EmpiricalMeasure(Gaussian(1.0), 0.3), learner=Learner(subset=20, max_steps=3))
    few = TrainingSet(z, sets).random_subset(20)
    all_of_them, some = form.fit(z, sets).hyper, form.fit(few.z, few.data).hyper
    np.testing.assert_allclose(all_of_them.regularisation, some.regularisation / 2, rtol=1e-6)
    np.testing.assert_allclose(all_of_them.data_kernel.length_scale, some.data_kernel.length_scale, rtol=1e-6)


@pytest.mark.slow  # test_kelfi learns one by quadrature
def test_learns_a_prior(fitted):
    """The prior moves to the observation and narrows; the marginal likelihood grows."""
    y, start = np.array([1.2, 0.0]), standard_normal(1)
    learnt = learn_normal(fitted.at(y), start)
    before, after = (fitted.at(y).log_mean(measure)[1] for measure in (start, learnt))
    assert after > before and abs(learnt.means[0, 0] - 1.1) < 0.4 and 0.04 <= learnt.covariances[0, 0, 0] < 0.6


@pytest.mark.parametrize("make", [lambda: LeaveOneOut(0.0), lambda: LeaveOneOutPredictive(1.0)])
def test_bad_floor(make):
    with pytest.raises(ValueError, match="between 0 and 1"):
        make()
