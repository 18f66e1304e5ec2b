"""Every kernel as one row of a table that runs every generic test; then what is special to each."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import rounded_products
from scipy.integrate import quad
from scipy.special import gamma, kv
from scipy.stats import multivariate_normal

import numpyro_kme as kme
from numpyro_kme import kernels as K

pytestmark = pytest.mark.x64

DIM = 2


def vectors(rng, n):
    return rng.normal(size=(n, DIM))


def data_sets(rng, n):
    return rng.normal(size=(n, 5, DIM))


def weighted_data_sets(rng, n):
    weights = rng.uniform(0.1, 1.0, size=(n, 4))
    return rng.normal(size=(n, 4, DIM)), weights / weights.sum(axis=1, keepdims=True)


def paths(rng, n):
    return np.sort(rng.uniform(0, 3, size=(n, 4)), axis=1)[:, :, None], rng.normal(size=(n, 4))


def rotations(rng, n):
    return np.linalg.qr(rng.normal(size=(n, 3, 3)))[0]


@dataclass(frozen=True)
class Row:
    """A kernel made from a length scale, and its formula for one pair in NumPy."""

    name: str
    make: Callable[[Any], K.Kernel]
    formula: Callable[[Any, Any, Any], float]
    points: Callable = vectors
    scaled: bool = True  # takes scalar and per-dimension length scales by the convention
    positive: bool = True  # has a logarithm
    definite: bool = True  # positive definite and symmetric
    integral: bool = False  # over R^dim
    curvature: float | None = None  # second derivative at r = 0 along an axis, at length scale 1, where smooth
    learnt: bool = True  # has a hyperparameter


def radius(a, b, l):
    return np.sqrt(np.sum(((a - b) / l) ** 2))


def gaussian(a, b, l):
    return np.exp(-0.5 * radius(a, b, l) ** 2)


def matern(order):
    def formula(a, b, l):
        u = np.sqrt(2 * order) * radius(a, b, l)
        return 1.0 if u == 0 else 2 ** (1 - order) / gamma(order) * u**order * kv(order, u)

    return formula


def rational(a, b, l):
    return (1 + radius(a, b, l) ** 2 / 3.4) ** -1.7


def dot(a, b, l):
    return np.sum(a * b / np.asarray(l) ** 2)


def distance_induced(a, b, l):
    origin = np.array([0.3, -0.2])
    return radius(a, origin, l) + radius(b, origin, l) - radius(a, b, l)


def double(a, b, l):
    (x, v), (y, w) = (p if isinstance(p, tuple) else (p, np.full(len(p), 1 / len(p))) for p in (a, b))

    def mean(p, s, q, t):
        return sum(si * tj * gaussian(pi, qj, 0.8) for pi, si in zip(p, s) for qj, tj in zip(q, t))

    return np.exp(-(mean(x, v, x, v) + mean(y, w, y, w) - 2 * mean(x, v, y, w)) / (2 * l**2))


def path_density(a, b, l):
    (t, y), (s, x) = a, b

    def h(u, v):
        return np.array([[2.0 * gaussian(p, q, l) for q in v] for p in u])

    gain = h(t, s) @ np.linalg.inv(h(s, s) + 0.3**2 * np.eye(len(s)))
    return multivariate_normal.pdf(y, gain @ x, h(t, t) + 0.3**2 * np.eye(len(t)) - gain @ h(s, t))


def tanh_features(a, b):
    return jnp.exp(jnp.sum(jnp.tanh(a) * jnp.tanh(b)))


def tanh_features_numpy(a, b, l=None):
    return float(np.exp(np.sum(np.tanh(a) * np.tanh(b))))


def signatures(rng, n):
    return K.Signature(1.0, 1.0, 2).points(data_sets(rng, n))


ON_HOST = K.FromCallable(tanh_features_numpy, host=True)
ROWS = [
    Row("Gaussian", K.Gaussian, gaussian, integral=True, curvature=-1.0),
    Row("Laplace", K.Laplace, lambda a, b, l: np.exp(-radius(a, b, l)), integral=True),
    Row("Matern12", K.Matern12, matern(0.5), integral=True),
    Row("Matern32", K.Matern32, matern(1.5), integral=True, curvature=-3.0),
    Row("Matern52", K.Matern52, matern(2.5), integral=True, curvature=-5 / 3),
    Row(
        "InverseMultiquadric",
        K.InverseMultiquadric,
        lambda a, b, l: 1 / np.sqrt(1 + radius(a, b, l) ** 2),
        curvature=-1.0,
    ),
    Row("RationalQuadratic", lambda l: K.RationalQuadratic(l, alpha=1.7), rational, integral=True, curvature=-1.0),
    Row("Energy", K.Energy, lambda a, b, l: -radius(a, b, l), positive=False, definite=False),
    Row("DistanceInduced", lambda l: K.DistanceInduced(np.array([0.3, -0.2]), l), distance_induced, scaled=False),
    Row("Linear", K.Linear, dot, positive=False),
    Row("Polynomial", lambda l: K.Polynomial(3, l, 0.7), lambda a, b, l: (dot(a, b, l) + 0.7) ** 3, positive=False),
    Row(
        "Sum",
        lambda l: K.Gaussian(l) + K.Laplace(l),
        lambda a, b, l: gaussian(a, b, l) + np.exp(-radius(a, b, l)),
        integral=True,
    ),
    Row(
        "Product",
        lambda l: K.Gaussian(l) * K.Matern32(l),
        lambda a, b, l: gaussian(a, b, l) * matern(1.5)(a, b, l),
        curvature=-1.0 - 3.0,
    ),
    Row(
        "Scaled",
        lambda l: 2.5 * K.Matern52(l),
        lambda a, b, l: 2.5 * matern(2.5)(a, b, l),
        integral=True,
        curvature=-2.5 * 5 / 3,
    ),
    Row(
        "GaussianScaleMixture",
        lambda l: K.GaussianScaleMixture(l * np.array([0.5, 4.0]), weights=np.array([0.2, 1.5])),
        lambda a, b, l: 0.2 * gaussian(a, b, 0.5 * l) + 1.5 * gaussian(a, b, 4 * l),
        scaled=False,
        integral=True,
        curvature=-0.2 * 4.0 - 1.5 / 16,
    ),
    Row("EmpiricalMeasure", lambda l: K.EmpiricalMeasure(K.Gaussian(0.8), l), double, data_sets, scaled=False),
    Row(
        "WithLength",
        lambda l: K.WithLength(K.EmpiricalMeasure(K.Gaussian(0.8), 0.6), l),
        lambda a, b, l: double(a[0], b[0], 0.6) * gaussian(a[1], b[1], l),
        lambda rng, n: (data_sets(rng, n), rng.normal(size=(n, 1))),
        scaled=False,
    ),
    Row(
        "weighted EmpiricalMeasure",
        lambda l: K.EmpiricalMeasure(K.Gaussian(0.8), l),
        double,
        weighted_data_sets,
        scaled=False,
    ),
    Row("Signature", lambda l: K.Signature(l, 1.0, 2), gaussian, signatures, scaled=False),
    Row(
        "GaussianProcessPath",
        lambda l: K.GaussianProcessPath(2.0 * K.Gaussian(l), 0.3),
        path_density,
        paths,
        scaled=False,
        definite=False,
    ),
    Row(
        "RotationTrace",
        lambda l: K.RotationTrace(),
        lambda a, b, l: np.trace(a @ b.T),
        rotations,
        scaled=False,
        positive=False,
        learnt=False,
    ),
    Row(
        "RotationGaussian",
        K.RotationGaussian,
        lambda a, b, l: np.exp(-np.sum((a - b) ** 2) / (2 * l**2)),
        rotations,
        scaled=False,
    ),
    Row("FromCallable", lambda l: K.FromCallable(tanh_features), tanh_features_numpy, scaled=False, learnt=False),
    Row("FromCallable on the host", lambda l: ON_HOST, tanh_features_numpy, scaled=False, learnt=False),
]
ONE_LINE = "Laplace", "Matern12", "Matern32", "Matern52", "InverseMultiquadric", "RationalQuadratic", "Energy"
"""Kernels that are, like the Gaussian, one function of the scaled distance."""
COMBINED = "Scaled", "Sum", "Product", "GaussianScaleMixture"
"""Kernels made of others."""
THE_SAME = (*ONE_LINE, "weighted EmpiricalMeasure")


def rows(condition=lambda row: True, slow=()):
    """Every row, or those that meet a condition; `slow` are those whose kernels go the way of another's."""
    chosen = [row for row in ROWS if condition(row)]
    marked = [pytest.param(row, id=row.name, marks=pytest.mark.slow if row.name in slow else ()) for row in chosen]
    return pytest.mark.parametrize("row", marked)


TRACES = []


def evaluate(kernel, x, y, logarithms):
    """All that a kernel computes."""
    values = dict(
        gram=kernel.gram(x, y), own=kernel.gram(x), diagonal=kernel.diagonal(x), pair=kernel(pick(x, 0), pick(y, 0))
    )
    if logarithms:
        values |= dict(log_gram=kernel.log_gram(x, y), log_pair=kernel.log_pair(pick(x, 0), pick(y, 0)))
    return values


@jax.jit
def gram(kernel, x, y):
    TRACES.append(kernel)
    return kernel.gram(x, y)


@functools.cache
def case(name):
    row = next(row for row in ROWS if row.name == name)
    rng = np.random.default_rng(1)
    x, y = row.points(rng, 6), row.points(rng, 4)
    kernel = row.make(0.9)
    return kernel, x, y, jax.tree.map(np.asarray, evaluate(kernel, x, y, row.positive))


def size(points):
    return len(jax.tree.leaves(points)[0])


def pick(points, i):
    return jax.tree.map(lambda leaf: leaf[i], points)


def double_loop(row, x, y, l=0.9):
    return np.array([[row.formula(pick(x, i), pick(y, j), l) for j in range(size(y))] for i in range(size(x))])


def test_the_table_is_complete():
    public = {name: getattr(K, name) for name in K.__all__}
    families = {name for name, value in public.items() if isinstance(value, type) and issubclass(value, K.Kernel)}
    families -= {"Kernel", "Stationary"}
    assert families <= {row.name for row in ROWS}


@rows()
def test_values_match_a_double_loop(row):
    _, x, y, values = case(row.name)
    expected = double_loop(row, x, y)
    np.testing.assert_allclose(values["gram"], expected, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(values["own"], double_loop(row, x, x), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(values["pair"], expected[0, 0], rtol=1e-9)
    np.testing.assert_allclose(values["diagonal"], np.diag(values["own"]), rtol=1e-9, atol=1e-13)


@rows(lambda row: row.definite)
def test_symmetric_and_positive_definite(row):
    own = case(row.name)[3]["own"]
    np.testing.assert_allclose(own, own.T, rtol=1e-12)
    assert np.linalg.eigvalsh(own).min() >= -1e-10


@rows(lambda row: row.positive)
def test_logarithms(row):
    values = case(row.name)[3]
    np.testing.assert_allclose(np.exp(values["log_gram"]), values["gram"], rtol=1e-12)
    np.testing.assert_allclose(np.exp(values["log_pair"]), values["pair"], rtol=1e-12)


@rows(lambda row: not row.positive)
def test_no_logarithm_of_negative_values(row):
    kernel, x, y, values = case(row.name)
    assert values["gram"].min() < 0
    with pytest.raises(ValueError, match="takes negative values, so it has no logarithm"):
        kernel.log_gram(x, y)


@rows(lambda row: row.curvature is not None, slow=(*THE_SAME, *COMBINED))
def test_hessians_at_coincident_points(row):
    hessian = jax.jit(jax.hessian(lambda a, kernel: kernel.pair(a, jnp.zeros(2))))(jnp.zeros(2), row.make(0.5))
    np.testing.assert_allclose(hessian, row.curvature / 0.25 * np.eye(2), rtol=1e-12, atol=1e-12)


@rows(
    lambda row: row.learnt,
    slow=(*THE_SAME, *COMBINED, "DistanceInduced", "WithLength", "EmpiricalMeasure", "GaussianProcessPath"),
)
def test_kernels_pass_through_jax_transformations(row):
    """Built under `jit` and `vmap` from a traced length scale; its gradient, of either sign, is a kernel."""
    kernel, x, y, values = case(row.name)

    @jax.jit
    def transform(kernel, l):
        slope = jax.grad(lambda kernel: kernel.gram(x, y).sum())(kernel)
        return jax.vmap(lambda l: row.make(l).gram(x, y))(l), slope, jax.tree.map(jnp.negative, slope)

    grams, *gradients = transform(kernel, jnp.array([0.5, 0.9]))
    np.testing.assert_allclose(grams[1], values["gram"], rtol=1e-12)
    for gradient in gradients:
        assert type(gradient) is type(kernel)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert isinstance(jax.tree.map(lambda leaf: object(), kernel), type(kernel))


def central_difference(function, x, step=1e-5):
    """Derivatives of a scalar function, in the shape of `x`."""
    shifts = [np.zeros_like(x) for _ in range(x.size)]
    for shift, index in zip(shifts, np.ndindex(x.shape)):
        shift[index] = step
    slopes = [(function(x + shift) - function(x - shift)) / (2 * step) for shift in shifts]
    return np.reshape(slopes, x.shape)


@rows(lambda row: row.points is vectors and row.name != "FromCallable on the host", slow=(*THE_SAME, *COMBINED))
def test_gradients_at_coincident_points(row, rng):
    """At a kink the symmetric difference, like the stated convention, is 0 along the kink."""
    x = vectors(rng, 4)
    x[1] = x[0]
    signs, (near, far) = rng.normal(size=(4, 4)), rng.normal(size=2)

    def ours(l, x):
        kernel = row.make(l)
        return jnp.sum(signs * kernel.gram(x)) + near * kernel.pair(x[0], x[1]) + far * kernel.pair(x[0], x[2])

    def formula(l, x):
        pairs = near * row.formula(x[0], x[1], l) + far * row.formula(x[0], x[2], l)
        return np.sum(signs * double_loop(row, x, x, l)) + pairs

    by_length, by_points = jax.jit(jax.grad(ours, argnums=(0, 1)))(0.9, x)
    expected = central_difference(lambda x: formula(0.9, x), x)
    np.testing.assert_allclose(by_points, expected, rtol=1e-6, atol=1e-7)
    expected = central_difference(lambda l: formula(l, x), np.array(0.9))
    np.testing.assert_allclose(by_length, expected, rtol=1e-6, atol=1e-7)


@rows(lambda row: row.scaled, slow=THE_SAME)
def test_length_scale_divides_the_distance(row, rng):
    x, y = vectors(rng, 5), vectors(rng, 3)
    both = jax.jit(lambda l: (row.make(l).gram(x, y), row.make(l).pair(x[0], y[0])))
    for l in (np.array([0.4, 2.5]), np.array([0.6, 0.6])):
        gram, pair = (np.asarray(value) for value in both(l))
        np.testing.assert_allclose(gram, double_loop(row, x, y, l), rtol=1e-9)
        np.testing.assert_allclose(pair, gram[0, 0], rtol=1e-10)


@rows(slow=THE_SAME)
def test_float32_and_new_hyperparameters_do_not_retrace(row):
    """The first ones give what is computed without a program, in float64."""
    _, x, y, values = case(row.name)
    with jax.enable_x64(False):
        low = row.make(0.9), *jax.tree.map(np.float32, (x, y))
        everything = jax.eval_shape(functools.partial(evaluate, logarithms=row.positive), *low)
        assert {leaf.dtype for leaf in jax.tree.leaves(everything)} == {jnp.dtype(jnp.float32)}
        found = np.asarray(gram(*low))
        TRACES.clear()
        for l in (0.5, 0.7) if row.learnt else ():
            assert np.abs(gram(row.make(l), *low[1:]) - found).max() > 1e-3
        assert not TRACES
    tolerance = 2e-3 if row.name == "GaussianProcessPath" else 2e-5
    np.testing.assert_allclose(found, values["gram"], rtol=tolerance, atol=tolerance)


@rows(slow=THE_SAME)
def test_no_product_is_rounded_on_a_gpu(row):
    _, x, y, _ = case(row.name)
    with jax.enable_x64(False):
        low = row.make(0.9), *jax.tree.map(np.float32, (x, y))
    assert not rounded_products(functools.partial(evaluate, logarithms=row.positive), *low)


@rows(lambda row: row.learnt)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_length_scale(row, bad):
    with pytest.raises(ValueError, match=r"`(length_scales?)` must be positive and finite; got"):
        row.make(bad)


def test_hyperparameters_as_sequences():
    for listed, array in (
        (K.Gaussian([0.5, 2.0]), K.Gaussian(np.array([0.5, 2.0]))),
        (
            K.GaussianScaleMixture((0.5, 2.0), weights=[1.0, 3.0]),
            K.GaussianScaleMixture(np.array([0.5, 2.0]), np.array([1.0, 3.0])),
        ),
        (K.DistanceInduced([0.1, 0.2]), K.DistanceInduced(np.array([0.1, 0.2]))),
    ):
        assert jax.tree.structure(listed) == jax.tree.structure(array)
        jax.tree.map(np.testing.assert_array_equal, listed, array)


@rows(lambda row: row.scaled)
def test_length_scale_of_another_dimension(row):
    with pytest.raises(ValueError, match=r"`length_scale` must be a scalar or have shape \(2,\).*got \(3,\)"):
        row.make(np.ones(3)).gram(np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"`x` must have shape \(points, dim\); got \(4,\)"):
        row.make(1.0).gram(np.zeros(4))
    with pytest.raises(ValueError, match=r"`y` must have 2 columns; got shape \(4, 3\)"):
        row.make(1.0).gram(np.zeros((4, 2)), np.zeros((4, 3)))


@rows(lambda row: row.integral)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_integral_by_quadrature(row, dim):
    kernel = row.make(0.7)
    sphere = 2 * np.pi ** (dim / 2) / math.gamma(dim / 2)

    def shell(r):
        return sphere * r ** (dim - 1) * row.formula(np.array([r]), np.zeros(1), 0.7)

    expected = quad(shell, 0, 5, epsabs=1e-11, epsrel=1e-11, limit=200)[0] + quad(shell, 5, np.inf, limit=200)[0]
    np.testing.assert_allclose(jnp.exp(kernel.log_integral(dim)), expected, rtol=1e-7)


@rows(lambda row: row.integral and row.scaled)
def test_integral_with_a_length_scale_per_dimension(row):
    l = np.array([0.3, 2.0, 1.1])
    expected = row.make(1.0).log_integral(3) + np.log(l).sum()
    np.testing.assert_allclose(row.make(l).log_integral(3), expected, rtol=1e-12)


@rows(lambda row: not row.integral and row.name != "GaussianProcessPath")
def test_kernels_without_a_density_say_so(row):
    with pytest.raises(ValueError, match="has no `log_integral`, so it cannot be normalised to a density"):
        row.make(0.9).log_integral(2)


# --- what is special to each ---------------------------------------------------------------


def test_logarithms_do_not_underflow():
    x, y = np.zeros((1, 1)), np.full((1, 1), 1e3)
    for kernel, expected in (
        (K.Gaussian(1.0), -5e5),
        (K.Gaussian(1.0) * K.Laplace(1.0), -5e5 - 1e3),
        (K.Gaussian(1.0) + K.Gaussian(0.5), -5e5),
        (K.GaussianScaleMixture(np.array([0.5, 1.0])), -5e5),
        (3.0 * K.Laplace(2.0), np.log(3.0) - 500),
    ):
        values = jax.jit(lambda k: (k.log_gram(x, y), k.log_pair(x[0], y[0])))(kernel)
        np.testing.assert_allclose(values[0], [[expected]], rtol=1e-12)
        np.testing.assert_allclose(values[1], expected, rtol=1e-12)


def test_rational_quadratic_needs_enough_alpha():
    with pytest.raises(ValueError, match=r"only for `alpha` above 1.0; got 0.9"):
        K.RationalQuadratic(1.0, alpha=0.9).log_integral(2)
    assert jax.jit(lambda alpha: K.RationalQuadratic(1.0, alpha).log_integral(2))(0.9) == np.inf


def test_points_whose_squared_distance_overflows_are_far_apart():
    x = np.array([[0.0, 0.0], [1e30, -1e30]], np.float32)
    kernels = K.Gaussian(1.0), K.Laplace(1.0), K.Matern32(1.0), K.Matern52(1.0), K.InverseMultiquadric(1.0)
    found = jax.jit(lambda x: [(kernel.gram(x), jax.grad(kernel)(x[0], x[1])) for kernel in kernels])(x)
    for kernel, (matrix, slope) in zip(kernels, found):
        np.testing.assert_allclose(matrix, np.eye(2), atol=1e-15, err_msg=str(kernel))
        assert np.isfinite(slope).all(), kernel


def test_energy_is_conditionally_definite_and_induces_the_same_mmd(rng):
    x = rng.normal(size=(20, 3))
    weights = rng.normal(size=20)
    weights -= weights.mean()
    negative, induced = (np.asarray(gram(k, x, x)) for k in (K.Energy(0.7), K.DistanceInduced(x[3], 0.7)))
    energy = weights @ negative @ weights
    assert energy > 0
    np.testing.assert_allclose(weights @ induced @ weights, energy, rtol=1e-10)
    assert np.linalg.eigvalsh(negative).min() < -1
    opposite = jax.vmap(lambda a: K.DistanceInduced().pair(a, -3.0 * a))(rng.normal(size=(1000, 3)))
    assert (opposite >= 0.0).all() and (opposite < 1e-5).all()  # zero but for rounding, which has either sign


def test_a_polynomial_with_the_default_offset_sees_moments_of_every_order_up_to_its_own():
    x, y = np.array([[-1.0], [1.0]]), np.array([[1.0], [1.0]])
    between = [kme.squared_mmd(K.Polynomial(2, **offset), x, y, unbiased=False) for offset in ({}, {"offset": 0.0})]
    np.testing.assert_allclose(between, [2.0, 0.0], atol=1e-12)  # `2 (E x - E y)^2`; second moments are equal


def test_data_sets_of_different_sizes_and_padding(rng):
    kernel = K.EmpiricalMeasure(K.Laplace(1.0), 0.4)
    short, long = rng.normal(size=(3, 4, 2)), rng.normal(size=(2, 7, 2))
    expected = np.asarray(gram(kernel, short, long))
    rows, weights = np.zeros((3, 7, 2)), np.zeros((3, 7))
    rows[:, :4], weights[:, :4] = short, 0.25
    np.testing.assert_allclose(gram(kernel, (rows, weights), long), expected, rtol=1e-12)
    pair = jax.jit(kernel.pair)
    np.testing.assert_allclose(pair(short[1], long[1]), expected[1, 1], rtol=1e-12)
    assert pair(short[0], short[0][::-1]) == pytest.approx(1.0, abs=1e-12)


def test_path_kernel_with_different_grids(rng):
    kernel = K.GaussianProcessPath(2.0 * K.Gaussian(0.9), 0.3)
    t, s = np.linspace(0, 3, 5)[:, None], np.linspace(0.2, 2.8, 7)[:, None]
    y, x = rng.normal(size=(2, 5)), rng.normal(size=(3, 7))
    expected = [[path_density((t, one), (s, other), 0.9) for other in x] for one in y]
    np.testing.assert_allclose(gram(kernel, (t, y), (s, x)), expected, rtol=1e-8)
    per_path = (np.broadcast_to(s, (3, 7, 1)), x)
    np.testing.assert_allclose(gram(kernel, (t, y), per_path), expected, rtol=1e-8)
    diagonal, own = jax.jit(lambda k: (k.diagonal((s, x)), k.gram((s, x))))(kernel)
    np.testing.assert_allclose(diagonal, np.diag(own), rtol=1e-8)


def test_path_kernel_is_a_density_in_its_first_argument(rng):
    kernel = K.GaussianProcessPath(2.0 * K.Gaussian(0.9), 0.3)
    grid = np.linspace(-12, 12, 2401)
    seen = (rng.uniform(0, 3, size=(6, 1)), rng.normal(size=(1, 6)))
    density = gram(kernel, (np.array([[1.3]]), grid[:, None]), seen)[:, 0]
    np.testing.assert_allclose(np.trapezoid(density, grid), np.exp(kernel.log_integral(1)), rtol=1e-8)


def test_trace_kernel_is_a_function_of_the_angle(rng):
    a = rotations(rng, 1)
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1.0]])
    np.testing.assert_allclose(K.RotationTrace().gram(a, a @ turn), [[1 + 2 * np.cos(angle)]], rtol=1e-12)


def test_nearest_rotation(rng):
    """Against SciPy's alignment of vectors; in the plane, by hand."""
    from scipy.spatial.transform import Rotation

    matrices = rng.normal(size=(20, 3, 3))
    found = K.nearest_rotation(matrices)
    np.testing.assert_allclose(found @ found.transpose(0, 2, 1), np.tile(np.eye(3), (20, 1, 1)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(found), 1.0, rtol=1e-12)
    for matrix, rotation in zip(matrices, found):
        aligned = Rotation.align_vectors(matrix.T, np.eye(3))[0].as_matrix()
        np.testing.assert_allclose(rotation, aligned, atol=1e-8)
    np.testing.assert_allclose(K.nearest_rotation(np.diag([1.0, -2.0])), -np.eye(2), atol=1e-12)


def test_a_log_gram_may_be_written_by_the_gram(rng):
    """Of a family of the user's own that implements `pair`; the Gram matrix then does not come from `log_gram`."""

    @K.base.register
    class Cauchy(K.Kernel):
        length_scale: float

        def pair(self, a, b):
            return 1.0 / (1.0 + jnp.sum(jnp.square((a - b) / self.length_scale)))

        def log_gram(self, x, y=None):
            return jnp.log(self.gram(x, y))

    x = rng.normal(size=(4, 2))
    by_hand = 1.0 / (1.0 + np.sum(np.square(x[:, None] - x[None]), axis=2) / 4.0)
    np.testing.assert_allclose(Cauchy(2.0).gram(x), by_hand, rtol=1e-5)
    np.testing.assert_allclose(Cauchy(2.0).log_gram(x), np.log(by_hand), rtol=1e-5, atol=1e-6)


def test_host_callables_compare_anything_by_number():
    words = ["owl", "owls", "fly"]

    def shared_letters(i, j):
        return float(len(set(words[int(i)]) & set(words[int(j)])))

    kernel = K.FromCallable(shared_letters, host=True)
    np.testing.assert_array_equal(kernel.gram(np.arange(3)), [[3, 3, 1], [3, 4, 1], [1, 1, 3]])
    assert kernel.pair(0, 1) == 3
    np.testing.assert_array_equal(jax.jit(kernel.diagonal)(np.arange(3)), [3, 4, 3])


# --- median heuristic -----------------------------------------------------------------------


def test_median_heuristic_matches_numpy(rng):
    x = rng.normal(size=(30, 3)) * [1.0, 5.0, 0.2]
    distances = [np.linalg.norm(x[i] - x[j]) ** 2 for i in range(30) for j in range(i + 1, 30)]
    np.testing.assert_allclose(K.median_heuristic(x), np.sqrt(np.median(distances)), rtol=1e-12)
    medians = [np.median([abs(x[i, d] - x[j, d]) for i in range(30) for j in range(i)]) for d in range(3)]
    per_dimension = K.median_heuristic_per_dimension(x)
    np.testing.assert_allclose(per_dimension / per_dimension[0], medians / medians[0], rtol=0.01)
    np.testing.assert_allclose(K.median_heuristic(x / per_dimension), 1.0, rtol=1e-12)
    np.testing.assert_allclose(K.median_heuristic_per_dimension(x[:, :1]), [K.median_heuristic(x[:, :1])], rtol=1e-12)


def test_median_heuristic_may_leave_out_pairs_that_coincide():
    """Counts 0, 0, 0, 1, 3: three pairs at 0, three at 1, three at 3, one at 2."""
    x = np.array([0.0, 0.0, 0.0, 1.0, 3.0])[:, None]
    assert K.median_heuristic(x) == 1.0 and K.median_heuristic(x, ties=False) == 2.0
    np.testing.assert_allclose(K.median_heuristic_per_dimension(x, ties=False), [2.0])
    assert kme.MedianHeuristic(ties=False)(x) == 2.0
    assert K.median_heuristic(3.0 * np.eye(5)[:, :1]) == 3.0


def test_median_heuristic_on_a_subset(rng):
    x = rng.normal(size=(3000, 2))
    exact = K.median_heuristic(x, max_points=None)
    np.testing.assert_allclose(exact, np.sqrt(4 * np.log(2)), rtol=0.1)  # |x - y|^2 is exponential with mean 4
    np.testing.assert_allclose(K.median_heuristic(x), exact, rtol=0.1)
    assert K.median_heuristic(x) == K.median_heuristic(x) != exact


# --- what is refused ------------------------------------------------------------------------

SETS, PATHS = K.EmpiricalMeasure(K.Gaussian(1.0), 1.0), K.GaussianProcessPath(K.Gaussian(1.0), 0.1)
SEEN = np.zeros((2, 4))
REFUSED = [
    (lambda: K.Polynomial(0), ValueError, "`degree` must be at least 1; got 0"),
    (lambda: K.Polynomial(2, 1.0, -1.0), ValueError, "`offset` must be finite and not negative"),
    (lambda: K.Sum((K.Gaussian(1.0), 2.0)), TypeError, "`kernels` of Sum must be a tuple"),
    (lambda: -1.0 * K.Gaussian(1.0), ValueError, "`scale` must be positive"),
    (lambda: K.RationalQuadratic(1.0, alpha=0.0), ValueError, "`alpha` must be positive"),
    (lambda: K.GaussianScaleMixture(1.0), ValueError, r"`length_scales` must have shape \(count,\); got shape \(\)"),
    (lambda: K.GaussianScaleMixture(np.ones(3), np.ones(2)), ValueError, "one per length scale"),
    (lambda: K.Gaussian(1e-300).gram(np.array([[0.0, 0.0], [3e30, -4e30]])), ValueError, "scale` has 2 entries that"),
    (lambda: ON_HOST.gram((np.zeros(3), np.zeros(4))), ValueError, "must be arrays that share their leading axis"),
    (lambda: type("Nothing", (K.Kernel,), {}), TypeError, "must implement `pair"),
    (lambda: K.FromCallable(3.0), TypeError, "`fn` must be callable"),
    (lambda: K.FromCallable(lambda a, b: a * b).gram(np.ones((3, 2))), ValueError, r"scalar for one pair; .* \(2,\)"),
    (lambda: K.FromCallable(dot_of_two).log_gram(np.array([[1.0], [-1.0]])), FloatingPointError, "negative or NaN for"),
    (lambda: SETS.gram(np.zeros((4, 2))), ValueError, r"data sets with shape \(count, size, dim\); got \(4, 2\)"),
    (lambda: SETS.gram(np.zeros((4, 0, 1))), ValueError, r"data sets with shape .* got \(4, 0, 1\)"),
    (lambda: SETS.gram((np.zeros((4, 2, 1)), np.ones(4))), ValueError, r"`weights of x` must have shape \(4, 2\)"),
    (lambda: SETS.gram((np.zeros((4, 2, 1)), np.ones((4, 2)))), ValueError, "must sum to one; got a sum of 2"),
    (lambda: K.EmpiricalMeasure(K.Gaussian(1.0), np.ones(2)), ValueError, "must be one number"),
    (lambda: K.GaussianProcessPath(K.Gaussian(1.0), 0.0), ValueError, "`noise` must be positive"),
    (lambda: PATHS.gram((np.zeros(4), SEEN)), ValueError, r"Times need a last axis: times\[:, None\]"),
    (lambda: PATHS.gram(SEEN), TypeError, "must be a tuple"),
    (lambda: replace(PATHS, noise=1e-9).gram((np.zeros((4, 1)), SEEN)), FloatingPointError, "1e-09 is not positive"),
    (lambda: K.RotationTrace().gram(np.zeros((3, 2, 4))), ValueError, "must hold rotation matrices"),
    (lambda: K.nearest_rotation(np.zeros((3, 2))), ValueError, r"shape \(..., size, size\); got \(3, 2\)"),
    (lambda: K.median_heuristic(np.ones((5, 2))), ValueError, "All points of `x` coincide"),
    (lambda: K.median_heuristic_per_dimension(np.eye(5, 2) * [1, 0]), ValueError, r"points of `x\[:, 1\]` coincide"),
    (lambda: K.median_heuristic(np.ones((1, 2))), ValueError, "`x` must have at least 2 rows"),
    (lambda: K.median_heuristic(np.array([[0.0], [np.nan]])), ValueError, "`x` has 1 entries that are not finite"),
    (lambda: jax.jit(K.median_heuristic)(np.ones((5, 2))), TypeError, "`x` must be concrete"),
]


def dot_of_two(a, b):
    return jnp.sum(a * b)


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
