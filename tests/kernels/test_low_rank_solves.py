"""Many simulations: the low-rank solve against dense algebra by hand, its tolerance, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme import fit_likelihood
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import Hyperparameters, Learner, TrainingSet, learn
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut
from numpyro_kme.likelihoods.published.solves import DenseSolve, LowRankSolve

M, D, N = 60, 2, 3
BETA, EPS, LAM = np.array([0.7, 1.1]), np.array([0.5, 0.3, 0.8]), 1e-3
HYPER = Hyperparameters(Gaussian(BETA), Gaussian(EPS), np.array(LAM))
RNG = np.random.default_rng(3)
Z = RNG.normal(size=(M, D))
X = np.c_[Z, Z[:, 0] * Z[:, 1]] + 0.3 * RNG.normal(size=(M, N))
Y = X[0] + 0.1
POINTS = RNG.normal(size=(7, D))


def fit(solve=None, **settings):
    return KernelMeans(hyperparameters=HYPER, solve=solve, **settings).fit(Z, X)


@pytest.fixture(scope="module")
def dense():
    return fit()


@pytest.fixture(scope="module")
def rough():
    """Rank 8, where nothing agrees with the dense solve by chance."""
    with pytest.warns(UserWarning, match=r"ended at rank 8 with .* Raise `max_rank`"):
        return fit(LowRankSolve(max_rank=8))


@jax.jit
def on_points(likelihood, points):
    sign, log_size = jax.vmap(likelihood.signed_log)(points)
    return sign * jnp.exp(log_size)


def values(likelihood, points=POINTS):
    return np.asarray(on_points(likelihood, points))


def gram(a, b):
    return np.exp(-0.5 * np.sum(((a[:, None] - b[None]) / BETA) ** 2, axis=-1))


def test_the_tolerance_bounds_what_is_left_out(dense):
    """Errors shrink with it, and the fit says what was reached."""
    exact, scale = values(dense.at(Y)), np.abs(values(dense.at(Y), Z)).max()
    for tolerance in (1.0, 1e-4):
        low = fit(LowRankSolve(tolerance=tolerance))
        assert np.abs(values(low.at(Y)) - exact).max() < tolerance * scale
        found = low.solution
        left = 1 - np.sum((gram(Z, found.pivots) @ found.inverse.T) ** 2, axis=1)
        np.testing.assert_allclose(found.residual, left.max(), atol=1e-12)
        assert 0 < left.max() < 2 * tolerance * LAM
        assert f"{len(found.pivots)} pivots" in low.describe()["solve"]


@pytest.mark.x64
def test_low_rank_by_hand(rough):
    """The formulas with `l(a, P) l(P, P)^-1 l(P, b)` in the place of `l(a, b)`, by dense matrices."""
    pivots = rough.solution.pivots
    inverse = np.linalg.inv(gram(pivots, pivots))
    matrix = gram(Z, pivots) @ inverse @ gram(pivots, Z) + M * LAM * np.eye(M)
    cross = gram(Z, pivots) @ inverse @ gram(pivots, POINTS)
    kappa = np.exp(rough.hyper.data_kernel.log_gram(rough.transform.forward(Y)[None], rough.data))[0]
    likelihood = rough.at(Y)
    scale = np.exp(likelihood.terms.log_scale) / kappa.max()
    np.testing.assert_allclose(values(likelihood), scale * np.linalg.solve(matrix, kappa) @ cross, rtol=1e-9)
    np.testing.assert_allclose(
        rough.variance(POINTS), 1 - np.sum(cross * np.linalg.solve(matrix, cross), axis=0), atol=1e-10
    )
    weights = np.linalg.solve(matrix, kappa)
    fitted = (kappa - M * LAM * weights).max() / kappa.max()
    np.testing.assert_allclose(likelihood.log_largest, np.log(fitted), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.x64
def test_traced_and_in_single_precision(rough):
    traced = jax.jit(lambda y: on_points(rough.at(y), POINTS))(Y)
    np.testing.assert_allclose(traced, values(rough.at(Y)), rtol=1e-9)
    low = fit(LowRankSolve())
    exact = values(low.at(Y))
    with jax.enable_x64(False):
        single = values(low.at(Y))
    np.testing.assert_allclose(single, exact, atol=1e-4 * np.abs(exact).max())


def test_pivots_from_a_part_are_completed_from_the_rest():
    """Two clusters, one of which the part does not see."""
    z = np.concatenate([Z, Z + 40.0])
    solution = LowRankSolve(subset=20).fit(HYPER, z)
    assert solution.residual < 2 * 0.01 * LAM
    assert (solution.pivots[:, 0] > 20).any() and (solution.pivots[:, 0] < 20).any()


def test_learning_from_a_part_keeps_the_noise_variance():
    """As if the part were all there is, but for `lam`, whose product with the number of simulations stays."""
    learner = Learner(most=30, subset=30, max_steps=3)
    bank = TrainingSet(Z, X)
    whole, small = (learn(LeaveOneOut(), b, HYPER, learner).hyper for b in (bank, bank.random_subset(30)))
    np.testing.assert_allclose(whole.regularisation * M, small.regularisation * 30, rtol=1e-12)
    np.testing.assert_array_equal(whole.parameter_kernel.length_scale, small.parameter_kernel.length_scale)


@pytest.mark.parametrize("number, form", [(9, "Hsu and Ramos"), (10, "location-scale")])
def test_the_choice_by_size(number, form):
    theta = np.random.default_rng(0).normal(size=(number, 1))
    assert form in fit_likelihood(theta, theta + 0.1 * theta**2).surrogate.describe()["form"].partition(",")[0]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: DenseSolve().fit(HYPER, np.zeros((100_000, 2))), "100000 simulations takes about 80 GB"),
        (lambda: LowRankSolve(tolerance=0.0), "`tolerance` must be positive"),
        (lambda: LowRankSolve(max_rank=0), "`max_rank` must be at least 1"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
