"""Two hyperparameters in place of all: `eps` for every statistic, and `beta_0`, with `lam` tied to it."""

import numpy as np
import pytest

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import Learner, Tied
from numpyro_kme.likelihoods.published.leave_one_out import MarginalLikelihood

M, DIM, STATISTICS = 80, 2, 3


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(3)
    z = rng.normal(size=(M, DIM))
    x = np.c_[z + 0.5 * rng.normal(size=(M, DIM)), rng.normal(size=M)]
    return z, x, np.array([0.4, -0.3, 0.1])


def log_marginal(z, x, y, eps, beta, lam):
    """`log q(y)` for a standard normal prior: `N(y | x_j, eps^2 I)` and a linear solve, in plain NumPy."""
    squares = lambda a, b: np.sum((a[:, None] - b[None]) ** 2, axis=-1)  # noqa: E731
    kappa = np.exp(-0.5 * squares(x, y[None])[:, 0] / eps**2) / (np.sqrt(2 * np.pi) * eps) ** x.shape[1]
    gram = np.exp(-0.5 * squares(z, z) / beta**2) + len(z) * lam * np.eye(len(z))
    embedding = np.prod(beta / np.sqrt(beta**2 + 1) * np.exp(-(z**2) / (2 * (beta**2 + 1))), axis=1)
    marginal = embedding @ np.linalg.solve(gram, kappa)
    return np.log(marginal) if marginal > 0 else -np.inf


def fit(simulated, **settings):
    z, x, y = simulated
    form = KernelMeans(MarginalLikelihood(), learner=Learner(**settings), standardise=False)
    return form.fit(z, x, measure=standard_normal(DIM), y=y)


def test_the_optimum_beats_a_grid(simulated):
    """On all simulations, however small the subset on which a free search begins, and whatever bounds a free `lam`
    has."""
    z, x, y = simulated
    surrogate = fit(simulated, tied=Tied(), subset=40, regularisation_bounds=(1e-9, 1e-8))
    hyper = surrogate.hyper
    eps, beta = hyper.data_kernel.length_scale, hyper.parameter_kernel.length_scale
    assert np.ptp(eps) < 1e-12 and np.ptp(beta) < 1e-12
    np.testing.assert_allclose(hyper.regularisation, 1e-3 * beta[0], rtol=1e-12)
    grid = [
        log_marginal(z, x, y, eps, beta, 1e-3 * beta)
        for eps in np.geomspace(0.05, 10, 40)
        for beta in np.geomspace(0.05, 100, 40)
    ]
    assert log_marginal(z, x, y, eps[0], beta[0], 1e-3 * beta[0]) >= max(grid)


def test_constant_regularisation(simulated):
    assert fit(simulated, tied=Tied(1e-4, power=0.0)).hyper.regularisation == pytest.approx(1e-4, rel=1e-12)
