import numpy as np
import pytest

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian, Laplace
from numpyro_kme.likelihoods.descent import ravel
from numpyro_kme.likelihoods.posterior import KernelMeansPosterior, learn_normal
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import COMMON_SD, Hyperparameters, Learner, TrainingSet, learn
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut, MarginalLikelihood

M = 30
RNG = np.random.default_rng(11)
Z = RNG.normal(size=(M, 2))
S = np.c_[Z + 0.4 * RNG.normal(size=(M, 2)), RNG.normal(size=M)]
LOGS = np.log([0.8, 1.2, 0.5, 0.6, 0.9, 0.02])
TABLE = {"posterior": LeaveOneOut(), "marginal": MarginalLikelihood()}


def hyper(logs, data_kernel=Gaussian):
    values = np.exp(logs)
    return Hyperparameters(Gaussian(values[:2]), data_kernel(values[2:5]), values[5])


TRAINING = TrainingSet(Z, S, standard_normal(2), S[:1] + 0.1)


def squared(a, b, scale):
    return np.sum(((a[:, None] - b[None]) / scale) ** 2, axis=-1)


@pytest.mark.x64
@pytest.mark.parametrize("data_kernel", [Gaussian, Laplace])
@pytest.mark.parametrize("name", TABLE)
def test_gradients_of_objectives(name, data_kernel):
    """Against central differences."""
    value_and_gradient, step = TABLE[name].value_and_gradient, 1e-5
    values = [
        value_and_gradient(hyper(LOGS + s * d, data_kernel), TRAINING)[0] for d in np.eye(6) for s in (step, -step)
    ]
    differences = -np.diff(np.reshape(values, (6, 2)))[:, 0] / (2 * step)
    found = value_and_gradient(hyper(LOGS, data_kernel), TRAINING)[1]
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
    value = lambda objective: objective.value_and_gradient(hyper(LOGS), TRAINING)[0]  # noqa: E731
    np.testing.assert_allclose(value(LeaveOneOut()), np.log(0.98 * posterior + 0.02).mean(), rtol=1e-8)
    seen = np.exp(-0.5 * squared(S[:1] + 0.1, S, eps)[0]) / norm
    embedding = np.prod(beta / np.sqrt(beta**2 + 1) * np.exp(-(Z**2) / (2 * (beta**2 + 1))), axis=1)
    expected = np.log(embedding @ np.linalg.solve(gram + M * lam * np.eye(M), seen))
    np.testing.assert_allclose(value(MarginalLikelihood()), expected, rtol=1e-8)


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


def test_the_search_ends_at_a_maximum(simulated, fitted):
    """No small step from the end is better, priors included, nor is the start, where these are 0."""
    data = TrainingSet(simulated[0], fitted.data)
    logs = np.log(ravel(fitted.hyper))
    start = np.log([1.0, *np.full(2, 0.4 * np.sqrt(2)), 1e-2])

    def total(logs):
        values, offset = np.exp(logs), logs - start
        mean = offset[1:3].mean()
        common = np.sum(np.square([offset[0], mean, offset[3]])) / COMMON_SD**2
        prior = 0.5 * (common + np.sum((offset[1:3] - mean) ** 2))
        at = Hyperparameters(Gaussian(values[:1]), Gaussian(values[1:3]), values[3])
        return LeaveOneOut().value_and_gradient(at, data)[0] - prior / 120

    best = total(logs)
    assert total(start) < best < fitted.summary.score + 1e-4
    for direction in np.concatenate([np.eye(4), -np.eye(4)]):
        assert total(logs + 0.05 * direction) < best + 1e-6


def test_published_objective_differs_and_spikes(simulated):
    z, x = simulated
    with pytest.raises(ValueError, match="needs `y=`"):
        KernelMeans(MarginalLikelihood()).fit(z, x)
    published = KernelMeans(MarginalLikelihood()).fit(z, x[:, :1], y=np.array([0.4]), measure=standard_normal(1))
    assert "lower" in published.describe()["at bounds"]
    assert published.hyper.data_kernel.length_scale[0] < 0.1


def test_failed_factorisations_do_not_end_the_search():
    """Duplicated parameters and bounds that allow no regularisation: the search stays where factors exist."""
    z, s = np.repeat(Z[:10], 2, axis=0), S[:20]
    template = Hyperparameters(Gaussian(np.ones(2)), Gaussian(np.full(3, 0.5)), np.array(1e-2))
    learnt = learn(LeaveOneOut(), TrainingSet(z, s), template, Learner(regularisation_bounds=(1e-30, 1.0)))
    assert np.isfinite(learnt.score)


@pytest.mark.slow
def test_learns_the_inner_length_scale():
    """Variances differ, means do not: a useful inner length scale is near the data's, wherever the search starts.

    From far below it goes up by the largest factor, 16.
    """
    rng = np.random.default_rng(2)
    z = rng.normal(size=(40, 1))
    sets = np.exp(0.5 * z)[:, None] * rng.normal(size=(40, 25, 1))
    learner = Learner(max_steps=30)
    kernels = [EmpiricalMeasure(Gaussian(scale), 0.3) for scale in (1 / 128, 8.0)]
    fits = [KernelMeans(data_kernel=kernel, learner=learner).fit(z, sets) for kernel in kernels]
    scales = [float(fit.hyper.data_kernel.inner.length_scale) for fit in fits]
    assert scales[0] == 1 / 8 and scales[1] < 8.0
    assert all(fit.summary.score > 0.3 for fit in fits)


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
    learnt = learn_normal(fitted.at(y))
    before, after = (KernelMeansPosterior(fitted, y, measure).log_marginal()[1] for measure in (start, learnt))
    assert after > before and abs(learnt.means[0, 0] - 1.1) < 0.4 and 0.04 <= learnt.covariances[0, 0, 0] < 0.6
