"""What every loss must do: a new public loss is one row of `LOSSES`, with its formula written out a second time; and
embeddings, independent simulations, bad input."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial.distance import cdist
from scipy.stats import norm

from numpyro_kme import losses
from numpyro_kme.abc import discrepancies_to
from numpyro_kme.kernels import Gaussian, Matern52
from numpyro_kme.losses import MMD, Family, Loss, NegativeLogLikelihood, Nodes, Wasserstein

L, N, NODES = 0.7, 8, 16
U = np.array([0.3, -0.4])


def near(a, b):
    return np.exp(-0.5 * cdist(a, b, "sqeuclidean") / L**2)


def squared_mmd(x, w, y, v, log_density):
    """Double sums."""
    return w @ near(x, x) @ w - 2 * w @ near(x, y) @ v + v @ near(y, y) @ v


def transport_cost(p):
    """Least cost of a plan, by linear programming."""

    def formula(x, w, y, v, log_density):
        sums = np.concatenate([np.kron(np.eye(len(w)), np.ones(len(v))), np.kron(np.ones(len(w)), np.eye(len(v)))])
        exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        return linprog(np.ravel(cdist(x, y) ** p), A_eq=sums, b_eq=np.concatenate([w, v]), options=exact).fun

    return formula


def minus_log_likelihood(x, w, y, v, log_density):
    return -w @ log_density


@dataclass(frozen=True)
class Row:
    """What to know of a loss.

    Attributes:
        make: The loss.
        formula: `(x (n, dim), w, y (M, dim), v, log densities of x (n,)) -> value`, in NumPy, with covariates as the
            first columns of `x` and `y`.
        smooth: Whether solvers can minimise it.
        not_a_discrepancy: Why `RejectionABC` cannot take it, a part of the sentence.
    """

    make: Callable[[], Loss]
    formula: Callable
    smooth: bool = True
    not_a_discrepancy: str | None = None


LOSSES = {
    "MMD": Row(
        lambda: MMD(Gaussian(L), covariate_kernel=Gaussian(L)),
        squared_mmd,
        not_a_discrepancy="less where samples are more alike",
    ),
    "Wasserstein": Row(Wasserstein, transport_cost(2)),
    "Wasserstein, p = 1": Row(lambda: Wasserstein(1.0), transport_cost(1), smooth=False),
    "NegativeLogLikelihood": Row(
        NegativeLogLikelihood, minus_log_likelihood, not_a_discrepancy="a loss such as Wasserstein"
    ),
}


@dataclass(frozen=True)
class Case:
    """Data, the first two points equal, and a normal model with its log densities in NumPy."""

    data: Any
    family: Family
    log_density: Callable


X = np.random.default_rng(1).normal(0.5, 1.0, (N, 2))
X[1] = X[0]


def normal(x, mean, sd):
    return jax.scipy.stats.norm.logpdf(x, mean, sd)


CASES = {
    "scalars": Case(
        X[:, 0],
        Family(lambda u, z: u[0] + jnp.exp(u[1]) * z[0], 2, log_density=lambda u, x: normal(x, u[0], jnp.exp(u[1]))),
        lambda u: norm.logpdf(X[:, 0], u[0], np.exp(u[1])),
    ),
    "vectors": Case(
        X,
        Family(lambda u, z: u + z, 2, log_density=lambda u, x: normal(x, u[None], 1.0).sum(axis=1)),
        lambda u: norm.logpdf(X, u).sum(axis=1),
    ),
    "covariates": Case(
        (X[:, :1], X[:, 1:]),
        Family(
            lambda u, z, i: u[0] + u[1] * jnp.asarray(X[:, :1])[i] + z[:1],
            2,
            log_density=lambda u, x: normal(x[1], u[0] + u[1] * x[0], 1.0).sum(axis=1),
            covariates=X[:, :1],
        ),
        lambda u: norm.logpdf(X[:, 1], u[0] + u[1] * X[:, 0]),
    ),
}


def columns(points):
    """Scalars, vectors and pairs as `(n, dim)`."""
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(points)], axis=1)


def at_case(name, case):
    """`(w, u) -> value, gradient` of a loss on a case, and the same value by the formula."""
    if case == "vectors" and name.startswith("Wasserstein"):
        pytest.importorskip("ot")
    row, one = LOSSES[name], CASES[case]
    loss, data = row.make().for_data(one.data), one.data
    rows = np.repeat(np.arange(N), 2) if case == "covariates" else None
    nodes = Nodes(np.random.default_rng(3).normal(size=(NODES, 2)).astype(jnp.result_type(float)), rows)

    def formula(w, u):
        y, v = one.family.points(u, nodes), np.asarray(one.family.weights(nodes, w), np.float64)
        return row.formula(columns(one.data), w / w.sum(), columns(y), v / v.sum(), one.log_density(u))

    @jax.jit
    def slope(w, u):
        value = jax.value_and_grad(lambda t: loss.of_model(data, w, one.family, t, nodes))
        return jax.tree.map(jnp.add, value(u), (loss.offset(data, w), 0.0))

    return slope, formula


every_loss = pytest.mark.parametrize("name", LOSSES)
every_case = pytest.mark.parametrize("case", ["scalars", "vectors"])


def test_every_public_loss_has_a_row():
    public = {value for value in (getattr(losses, name) for name in losses.__all__) if inspect.isclass(value)}
    public = {value for value in public if issubclass(value, Loss) and value is not Loss}
    assert public == {type(row.make()) for row in LOSSES.values()}


@pytest.mark.x64
@every_case
@every_loss
def test_the_value_is_the_formula(name, case, rng):
    found, formula = at_case(name, case)
    w = rng.dirichlet(np.ones(N))
    np.testing.assert_allclose(found(w, U)[0], formula(w, U), atol=1e-9)


@pytest.mark.x64
@every_case
@every_loss
def test_weights_of_equal_points_add_up(name, case, rng):
    """Repeated points count like weights; and a point without weight does not count."""
    found, _ = at_case(name, case)
    apart = rng.dirichlet(np.ones(N))
    together = np.concatenate([[apart[0] + apart[1], 0.0], apart[2:]])
    for one, other in zip(found(apart, U), found(together, U)):
        np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.x64
@every_case
@pytest.mark.parametrize("name", [name for name, row in LOSSES.items() if row.smooth])
def test_the_gradient_is_the_limit_of_differences(name, case, rng):
    found, _ = at_case(name, case)
    w, h = rng.dirichlet(np.ones(N)), 1e-5
    differences = [(found(w, U + h * e)[0] - found(w, U - h * e)[0]) / (2 * h) for e in np.eye(2)]
    gradient = found(w, U)[1]
    assert np.abs(gradient).min() > 1e-4
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-7)


@pytest.mark.x64
@every_loss
def test_covariates_are_taken_or_refused(name, rng):
    loss, case = LOSSES[name].make(), CASES["covariates"]
    if loss.takes_covariates:
        found, formula = at_case(name, "covariates")
        w = rng.dirichlet(np.ones(N))
        np.testing.assert_allclose(found(w, U)[0], formula(w, U), atol=1e-9)
        return
    assert not loss.is_squared_distance(case.data)


@every_case
@every_loss
def test_discrepancies_of_abc_are_the_formula_or_refused(name, case, rng):
    if case == "vectors":
        pytest.importorskip("ot")
    row, y, equal = LOSSES[name], CASES[case].data, np.full(N, 1.0 / N)
    x = rng.normal(size=(3, *y.shape))
    if row.not_a_discrepancy:
        with pytest.raises(TypeError, match=row.not_a_discrepancy):
            discrepancies_to(y, x, row.make())
        return
    expected = [row.formula(columns(one), equal, columns(y), equal, None) for one in x]
    np.testing.assert_allclose(discrepancies_to(y, x, row.make()), expected, rtol=1e-5)


@pytest.mark.parametrize("case", ["scalars", pytest.param("vectors", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "Wasserstein, p = 1" else ()) for name in LOSSES]
)
def test_single_precision_is_enough(name, case, rng):
    """Float32, as users have it."""
    found, formula = at_case(name, case)
    w, u = np.float32(rng.dirichlet(np.ones(N))), np.float32(U)
    value, gradient = found(w, u)
    assert value.dtype == gradient.dtype == np.float32
    np.testing.assert_allclose(value, formula(np.float64(w), u), rtol=1e-4, atol=1e-5)
    assert np.isfinite(gradient).all()


def data(rng):
    return rng.normal(size=(40, 2)), rng.normal(0.3, 1.2, size=(3, 64, 2)), rng.dirichlet(np.ones(40), 5)


def test_embeddings_are_as_far_apart_as_the_loss_says(rng):
    """Against double sums; further points count with the data."""
    x, y, w = data(rng)
    embedding = MMD(Gaussian(L)).embedding(x, y.reshape(-1, 2), 500)
    model = embedding.model(y)
    assert model.shape[:2] == (3, 1)
    extra = rng.normal(size=(5, 6, 2))
    more = np.concatenate([0.7 * w, np.full((5, 6), 0.05)], axis=1)
    for weights, points in ((w, None), (more, extra)):
        found = embedding.data(weights, points)
        for r in range(5):
            z = x if points is None else np.concatenate([x, points[r]])
            for d in range(3):
                expected = weights[r] @ near(z, z) @ weights[r] - 2.0 * weights[r] @ near(z, y[d]).mean(axis=1)
                expected += near(y[d], y[d]).mean()
                np.testing.assert_allclose(np.square(found[r] - model[d, 0]).sum(), expected, atol=2e-4)


def test_independent_simulations_leave_out_pairs_with_themselves(rng):
    """The mean over many small samples is the squared distance of the distributions, in closed form of normals."""
    family = Family(lambda u, z: u + z, 1)
    x, w = np.float32(rng.normal(size=(30, 1))), np.full(30, np.float32(1 / 30))
    loss = MMD(Gaussian(1.0)).for_independent()

    def estimate(key):
        return loss.of_model(x, w, family, jnp.zeros(1), Nodes(jax.random.normal(key, (4, 1))))

    found = np.asarray(jax.lax.map(estimate, jax.random.split(jax.random.key(0), 20_000))) + loss.offset(x, w)
    exact = 1 / np.sqrt(3) - 2 * np.mean(np.exp(-0.25 * x**2)) / np.sqrt(2)
    exact += np.mean(np.exp(-0.5 * np.square(x - x.T)))
    assert abs(found.mean() - exact) < 5.0 * found.std() / np.sqrt(20_000)


class Energy(Loss):
    """Energy distance of scalars."""

    def value(self, x, w, y, v):
        def mean(a, p, b, q):
            return p @ jnp.abs(a[:, None] - b[None]) @ q

        return 2 * mean(x, w, y, v) - mean(x, w, x, w) - mean(y, v, y, v)


def test_a_loss_between_samples_is_one_method(rng):
    x, w = np.float32(rng.normal(size=9)), np.full(9, np.float32(1 / 9))
    family, nodes = Family(lambda u, z: u[0] + z, 1), Nodes(np.float32(rng.normal(size=16)))
    found = Energy().of_model(x, w, family, jnp.ones(1), nodes)
    expected = Energy().value(x, w, 1.0 + nodes.noise, np.full(16, np.float32(1 / 16)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(NotImplementedError, match=r"Loss must implement `value\(x, w, y, v\)`"):
        Loss().value(x, w, x, w)


def test_data_that_are_no_vectors_need_a_kernel():
    with pytest.raises(ValueError, match="`kernel` must be given for data that are not vectors"):
        MMD().for_data(np.zeros((4, 3, 2)))
    assert MMD(Matern52(1.0)).for_data(np.arange(4.0)).kernel == Matern52(1.0)


def test_length_scales_are_medians_of_the_data():
    x = np.array([0.0, 1.0, 3.0])
    assert float(MMD().for_data(x).kernel.length_scale) == 2.0
    pair = MMD().for_data((10.0 * x, x))
    assert float(pair.covariate_kernel.length_scale) == 20.0 and float(pair.kernel.length_scale) == 2.0
