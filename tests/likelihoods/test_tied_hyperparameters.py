"""Two hyperparameters in place of all: `eps` for every statistic, and `beta_0`, with `lam` tied to it."""

import numpy as np
import pytest

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.descent import unravel
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import COMMON_SD, Hyperparameters, Learner, Space, Tied, TrainingSet
from numpyro_kme.likelihoods.published.leave_one_out import MarginalLikelihood

M, DIM, STATISTICS = 80, 2, 3
TIES = {"AISTATS": Tied(), "preprint": Tied(1e-4, power=0.0), "square root": Tied(2e-3, power=0.5)}


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


@pytest.mark.x64
@pytest.mark.parametrize("name", TIES)
def test_value_and_gradient_on_the_ties(simulated, name):
    """Two numbers move everything; objective, weak priors and slopes are those of the formulas."""
    (z, x, y), tied = simulated, TIES[name]
    learner, step = Learner(tied=tied), 1e-5
    template = Hyperparameters(Gaussian(np.full(DIM, 1.5)), Gaussian(np.full(STATISTICS, 0.7)), np.array(1e-2))
    space = Space.around(template, learner)
    assert space.common.shape == (DIM + STATISTICS + 1, 2)
    training = TrainingSet(z, x, standard_normal(DIM), y[None])

    def expected(factors):
        beta, eps = np.array([1.5, 0.7]) * np.exp(factors)
        return log_marginal(z, x, y, eps, beta, tied.ratio * beta**tied.power)

    for factors in np.array([[0.0, 0.0], [-0.4, 0.3], [0.6, 0.5]]):
        at = space.start + space.common @ factors
        value, slope = MarginalLikelihood().value_and_gradient(unravel(np.exp(at), template), training)
        differences = [(expected(factors + step * e) - expected(factors - step * e)) / (2 * step) for e in np.eye(2)]
        np.testing.assert_allclose(value, expected(factors), rtol=1e-9)
        np.testing.assert_allclose(space.common.T @ slope, differences, rtol=1e-5, atol=1e-7)
        penalty, slope = space.penalty(at)
        np.testing.assert_allclose(penalty, 0.5 * np.sum(factors**2) / COMMON_SD**2, rtol=1e-12)
        np.testing.assert_allclose(space.common.T @ slope, factors / COMMON_SD**2, rtol=1e-12)


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


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Tied(0.0), ValueError, "`ratio`"),
        (lambda: Tied(power=-1.0), ValueError, "`power` must be finite and not negative; got -1.0"),
        (lambda: Learner(tied=1e-3), TypeError, r"`tied` must be Tied\(\) or None; got 0.001"),
    ],
)
def test_bad_ties(make, error, match):
    with pytest.raises(error, match=match):
        make()
