"""Losses of the posterior bootstrap against closed forms, double loops and automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from numpyro_kme.bootstrap import Reweightings
from numpyro_kme.bootstrap.newton import Problems
from numpyro_kme.kernels import FromCallable, Gaussian, Kernel, Laplace, Linear, Matern52, RationalQuadratic
from numpyro_kme.kernels.base import register
from numpyro_kme.losses import MMD, DrawnNoise, Generator, Loss, NormalNoise, UniformNoise, grid_rows
from numpyro_kme.losses.base import Differenced
from numpyro_kme.losses.grid import find_step, make_grid
from numpyro_kme.losses.grid_mmd import GridMMD, _density, adapted_nodes
from numpyro_kme.losses.mmd import SOURCES, DirectMMD, field_at, potential

L = 0.7


def normal(u, noise):
    """Scalar normal with mean `u[0]` and log standard deviation `u[1]`."""
    return u[0] + jnp.exp(u[1]) * noise[0]


def shifted(u, noise):
    """Normal vector around `u` with a skewed second coordinate."""
    return jnp.stack([u[0] + noise[0], u[1] + jnp.exp(0.3 * u[0] * noise[1])])


def keyed(u, rng_key):
    """The same skewed distribution from a key."""
    return shifted(u, jax.random.normal(rng_key, (2,)))


SCALARS = Generator(normal, NormalNoise(1), 2)
VECTORS = Generator(shifted, NormalNoise(2), 2)
DRAWN = Generator(shifted, DrawnNoise(lambda rng_key: jax.random.normal(rng_key, (2,))), 2)
KEYED = Generator(keyed, DrawnNoise(), 2)


def one_set(generator, num):
    return generator.draw_nodes(jax.random.key(3), num)


def with_derivatives(function):
    """The function, its gradient and its Hessian by automatic differentiation."""

    def gradient(u):
        value, slope = jax.value_and_grad(function)(u)
        return slope, (value, slope)

    def all_three(u):
        hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(u)
        return value, slope, hessian

    return all_three


def exact_energies(x, w, u):
    """|mu_u|^2 and <mu_w, mu_u> of a normal model under the Gaussian kernel, and |mu_w|^2 by a double sum."""
    s2 = np.exp(2 * u[1])
    q = L / np.sqrt(L**2 + 2 * s2)
    s = np.sum(w * L / np.sqrt(L**2 + s2) * np.exp(-((x - u[0]) ** 2) / (2 * (L**2 + s2))))
    return q, s, w @ np.exp(-((x[:, None] - x) ** 2) / (2 * L**2)) @ w


@jax.jit
def loss_at(bound, w, u, nodes, extra=None):
    """The whole loss, with what parameters do not change."""
    own = None if extra is None else extra[None]
    return bound.value(bound.reduce(w, extra), u, nodes) + bound.offsets(w[None], own)[0]


@pytest.fixture(scope="module")
def scalars():
    rng = np.random.default_rng(1)
    x = np.append(rng.normal(1.0, 1.3, 60), [25.0, -31.0])
    return x, rng.dirichlet(np.ones(len(x)))


@pytest.mark.x64
@pytest.mark.parametrize("u", [np.array([0.8, 0.4]), np.array([30.0, -0.5])], ids=["near", "on an outlier"])
@pytest.mark.parametrize("route", ["grid", "direct"])
def test_squared_mmd_of_a_normal_model_is_the_closed_form(scalars, route, u):
    x, w = scalars
    q, s, norm = exact_energies(x, w, u)
    proportions = np.linspace(0.0, 1.0, 100_001)
    for fit_proportion, exact in (
        (False, norm - 2 * s + q),
        (True, np.min(norm - 2 * proportions * s + proportions**2 * q)),
    ):
        loss = MMD(Gaussian(L), fit_proportion=fit_proportion, table_error=1e-6)
        bound = loss.objective(x, SCALARS) if route == "grid" else DirectMMD(SCALARS, Gaussian(L), x, fit_proportion)
        assert isinstance(bound, GridMMD if route == "grid" else DirectMMD)
        np.testing.assert_allclose(loss_at(bound, w, u, one_set(SCALARS, 257)), exact, atol=3e-6)


@pytest.mark.x64
@pytest.mark.parametrize(
    ("case", "fit_proportion"),
    [
        ("drawn scalars", True),
        ("independent draws", True),
        ("covariates", False),
        pytest.param("grid", False, marks=pytest.mark.slow),
        pytest.param("grid", True, marks=pytest.mark.slow),
        pytest.param("drawn scalars", False, marks=pytest.mark.slow),
        pytest.param("direct", False, marks=pytest.mark.slow),  # as covariates, whose kernel is a product
        pytest.param("direct", True, marks=pytest.mark.slow),
        pytest.param("independent draws", False, marks=pytest.mark.slow),
        pytest.param("covariates", True, marks=pytest.mark.slow),
    ],
)
def test_slopes_and_hessians_are_the_derivatives_of_the_value(case, fit_proportion, rng):
    u = np.array([0.3, -0.4])
    if case in ("grid", "drawn scalars"):
        noise = NormalNoise(1) if case == "grid" else DrawnNoise(lambda key: jax.random.normal(key, (1,)))
        generator = Generator(normal, noise, 2)
        x = rng.normal(0.5, 1.0, 20)
    elif case == "covariates":
        c = rng.normal(size=(10, 1))
        generator = Generator(lambda u, z, i: u[0] + u[1] * jnp.asarray(c)[i] + z, NormalNoise(1), 2, covariates=c)
        x = (c, rng.normal(size=(10, 1)) + c)
    else:
        generator = VECTORS if case == "direct" else DRAWN
        x = rng.normal(0.5, 1.0, (20, 2))
    bound = MMD(Gaussian(L), fit_proportion=fit_proportion, covariate_kernel=Gaussian(0.5)).objective(x, generator)
    assert isinstance(bound, GridMMD) == (case in ("grid", "drawn scalars"))
    weights, nodes = rng.dirichlet(np.ones(len(jax.tree.leaves(x)[0]))), one_set(generator, 25)
    reduced = jax.jit(bound.reduce)(weights)

    exact = with_derivatives(lambda t: bound.value(reduced, t, nodes))

    @jax.jit
    def everything(u):
        return exact(u), bound.slope(reduced, u, nodes), bound.expand(reduced, u, nodes)

    (value, gradient, hessian), slope, expansion = everything(u)
    found = [slope, expansion]
    sets, row = jax.tree.map(lambda leaf: leaf[None], nodes), Reweightings(weights[None], None, np.array([0]))
    problems = Problems(bound, sets, row)
    np.testing.assert_allclose(problems.hessians(u, np.ones(2))[0], hessian, atol=1e-8)
    if isinstance(bound, GridMMD):  # and by NumPy, for all rows at once
        found += [(problems.values(u)[0],), [part[0] for part in problems.slopes(u)]]
        found.append([part[0] for part in problems.expand(u)])
    for parts in found:
        for got, want in zip(parts, (value, gradient, hessian)):
            np.testing.assert_allclose(got, want, atol=1e-11)
    assert np.abs(hessian).max() > 1e-3


@pytest.mark.x64
@pytest.mark.parametrize("dim", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_fitted_mixing_proportion_does_not_reward_simulations_that_scatter(dim, rng):
    x = rng.normal(size=15) if dim == 1 else rng.normal(size=(15, 2))
    noise = DrawnNoise(lambda key: jax.random.normal(key, (dim,)))
    generator = Generator(lambda u, z: jnp.squeeze(jnp.exp(u[0]) * z), noise, 1)
    bound = MMD(Gaussian(L), fit_proportion=True).objective(x, generator)
    assert isinstance(bound, GridMMD) == (dim == 1)
    reduced, nodes = bound.reduce(np.full(15, 1 / 15)), one_set(generator, 25)
    value = jax.jit(lambda u: bound.value(reduced, u, nodes))
    assert np.argmin([value(np.array([log_scale])) for log_scale in np.linspace(0.0, 5.0, 51)]) < 10
    slopes = jax.jit(lambda u: (bound.slope(reduced, u, nodes)[1], jax.grad(value)(u)))
    for u in (np.array([0.1]), np.array([3.0])):
        slope, gradient = slopes(u)
        np.testing.assert_allclose(slope, gradient, atol=1e-12)


@pytest.mark.x64
def test_independent_nodes_leave_out_pairs_with_themselves(rng):
    x, w, nodes = rng.normal(size=(15, 2)), rng.dirichlet(np.ones(15)), one_set(KEYED, 12)
    u = np.array([0.2, 0.1])
    bound = MMD(Gaussian(L)).objective(x, KEYED)
    y = np.stack([np.asarray(keyed(u, key)) for key in nodes.values])
    kernel = lambda a, b: np.exp(-np.sum((a - b) ** 2) / (2 * L**2))  # noqa: E731
    own = sum(kernel(y[i], y[j]) for i in range(12) for j in range(12) if i != j) / (12 * 11)
    cross = sum(w[i] * kernel(x[i], y[j]) for i in range(15) for j in range(12)) / 12
    reduced = bound.reduce(w)
    np.testing.assert_allclose(jax.jit(bound.value)(reduced, u, nodes), own - 2 * cross, rtol=1e-10)
    gram, to_data, _ = jax.jit(bound.gram)(reduced, np.stack([y, y + 1.0]), nodes)
    shifted_own = sum(kernel(y[i], y[j] + 1.0) for i in range(12) for j in range(12)) / 144
    np.testing.assert_allclose(gram[0, 1], shifted_own, rtol=1e-10)
    np.testing.assert_allclose(to_data[0], cross, rtol=1e-10)
    scalar = Generator(normal, DrawnNoise(lambda key: jax.random.normal(key, (1,))), 2)
    bound, nodes = MMD(Gaussian(L), table_error=1e-6).objective(x[:, 0], scalar), one_set(scalar, 12)
    assert isinstance(bound, GridMMD)
    y = 0.2 + np.exp(0.1) * np.asarray(nodes.values)[:, 0]

    def matrix(a, b):
        return np.exp(-((a[:, None] - b) ** 2) / (2 * L**2))

    expected = (matrix(y, y).sum() - 12) / (12 * 11) - 2 * w @ matrix(x[:, 0], y).mean(1)
    expected += w @ matrix(x[:, 0], x[:, 0]) @ w
    np.testing.assert_allclose(loss_at(bound, w, u, nodes), expected, atol=3e-6)


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(Gaussian(L), marks=pytest.mark.slow),
        pytest.param(Gaussian(0.3) + 0.5 * Gaussian(2.0), marks=pytest.mark.slow),
        pytest.param(RationalQuadratic(L, 3.0), marks=pytest.mark.slow),
        Matern52(L),
    ],
    ids=str,
)
def test_grid_inner_products_are_kernel_double_sums(kernel, rng):
    found = find_step(kernel, 1.0, 1e-4)
    assert found is not None
    grid = make_grid(kernel, 1.0, 30.0, found[0], found[2], 100_000, 512)
    a, b = rng.normal(0.0, 3.0, 40), rng.normal(2.0, 1.0, 30)
    v, w = rng.normal(size=40), rng.normal(size=30)
    tabulated = jax.jit(lambda a, b: grid.inner(grid.embed(a, v), grid.embed(b, w)))(a, b)
    exact = v @ np.asarray(kernel.gram(a[:, None], b[:, None])) @ w
    np.testing.assert_allclose(tabulated, exact, atol=3e-4 * np.sum(np.abs(v)) * np.sum(np.abs(w)) ** 0.5)

    @jax.jit
    def witness_at(a, b):
        stencil = grid.stencil(a)
        return jnp.sum(grid.potential(grid.embed(b, w))[stencil.cells] * stencil.weights, axis=1)

    witness = witness_at(a, b)
    np.testing.assert_allclose(witness, kernel.gram(a[:, None], b[:, None]) @ w, atol=3e-4 * np.abs(w).sum())


@pytest.mark.x64
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_points_leave_the_window_smoothly(side):
    """A loss that jumps there has no minimum: first and second derivatives are those of what a point has left."""
    kernel = Gaussian(L)
    step, _, reach = find_step(kernel, 1.0, 1e-4)
    grid = make_grid(kernel, 0.0, 20.0, step, reach, 100_000, 512)
    half, h = 0.5 * float(grid.cells) * step, 1e-3 * step
    t = side * np.linspace(half - 45.0 * step, half + 5.0 * step, 301) + 0.137 * step

    def read(points):
        stencil = grid.stencil(points)
        at_cells = grid.potential(grid.embed(jnp.array([side * (half - 20.0 * step)]), jnp.ones(1)))[stencil.cells]
        return [jnp.sum(at_cells * part, axis=1) for part in stencil[1:]], jnp.sum(stencil.weights, axis=1)

    (value, first, second), weight = jax.jit(read)(t)
    (before, *_), (after, *_) = (jax.jit(read)(t + by)[0] for by in (-h, h))
    size = np.abs(value).max()
    np.testing.assert_allclose((after - before) / (2.0 * h), first, atol=1e-4 * size / step)
    np.testing.assert_allclose((after - 2.0 * value + before) / h**2, second, atol=1e-2 * size / step**2)
    assert weight[0] > 1.0 - 1e-12 and weight[-1] == 0.0 and (np.diff(weight) <= 1e-12).all()


def test_grids_are_tabulated_in_float64_whatever_the_session(scalars):
    x, _ = scalars
    for change in ("smoothed", "refined"):
        with jax.enable_x64(False):
            low = getattr(MMD(Gaussian(L)).objective(x, SCALARS), change)()
        high = getattr(MMD(Gaussian(L)).objective(x, SCALARS), change)()
        np.testing.assert_array_equal(low.grid.spectrum, high.grid.spectrum)


def test_samples_of_one_distribution_share_the_size_of_a_grid():
    rng = np.random.default_rng(2)
    bound = [MMD(Gaussian(0.2)).objective(rng.normal(0.0, sd, 300), SCALARS) for sd in (1.0, 1.2, 2.0)]
    assert {one.grid.size for one in bound} == {one.smoothed().grid.size for one in bound} == {2048}
    far = MMD(Gaussian(0.2)).objective(np.append(rng.normal(size=300), [70.0, 81.0]), SCALARS)
    assert far.grid.size == far.smoothed().grid.size == 4096
    assert far.refined().grid.size == 8192


def test_the_window_of_a_widened_kernel_is_as_much_wider():
    bound = MMD(Gaussian(0.2)).objective(np.random.default_rng(2).normal(0.0, 2.0, 300), SCALARS)
    wide = bound.smoothed()
    times = float(wide.kernel.length_scale) / 0.2
    assert times > 2.0
    np.testing.assert_allclose(wide.window[2:], times * np.array(bound.window[2:]))
    half = wide.window[3]
    np.testing.assert_allclose(np.exp(-0.5 * (half / (0.2 * times)) ** 2), 0.5, atol=0.1)


@pytest.mark.smoke
def test_kernels_that_a_grid_cannot_hold_are_summed_directly(scalars):
    x, _ = scalars
    assert find_step(Linear(), 1.0, 1e-4) is None
    assert find_step(Laplace(L), 1.0, 1e-6) is None
    assert isinstance(MMD(Laplace(L), table_error=1e-6).objective(x, SCALARS), DirectMMD)


def test_cells_resolve_a_narrow_part_of_a_kernel_and_the_window_reaches_to_its_end():
    kernel = Gaussian(1.0) + 0.1 * Gaussian(0.005)
    exact = lambda distance: np.exp(-(distance**2) / 2) + 0.1 * np.exp(-(distance**2) / 5e-5)  # noqa: E731
    step, half, reach = find_step(kernel, 1.0, 1e-3)
    assert exact(half) < 0.55 < exact(half / 1.2) and exact(reach) < 1.1e-12 < exact(reach / 1.5)
    grid = make_grid(kernel, 0.0, 4.0, step, reach, 100_000, 512)
    one, apart = jnp.ones(1), np.linspace(0.0, 0.02, 81)
    tabulated = jax.jit(jax.vmap(lambda b: grid.inner(grid.embed(jnp.zeros(1), one), grid.embed(b[None], one))))(apart)
    np.testing.assert_allclose(tabulated, exact(apart), atol=2e-3)
    step, half, _ = find_step(Gaussian(1.0), 1.0, 1.0)  # no wider, however coarse it may be
    assert step == half / 2
    assert find_step(Gaussian(1.0) + 0.1 * FromCallable(lambda a, b: 1.0), 1.0, 1e-3) is None  # never falls to zero


@register
class Plain(Kernel):
    """Inverse multiquadric written by a user."""

    def pair(self, a, b):
        return 1.0 / jnp.sqrt(1.0 + jnp.sum((a - b) ** 2))


@pytest.mark.x64
@pytest.mark.parametrize(
    "kernel",
    [Gaussian(np.array([0.5, 2.0])), pytest.param(Matern52(0.9), marks=pytest.mark.slow), Plain()],
    ids=["gaussian", "matern", "user"],
)
def test_blocked_witness_functions_are_sums_over_all_sources(kernel, rng):
    y, z, c = rng.normal(size=(7, 2)), rng.normal(size=(SOURCES + 40, 2)), rng.normal(size=SOURCES + 40)
    value, force = jax.jit(field_at)(kernel, y, z, c)
    one = lambda a: c @ jax.vmap(lambda b: kernel.pair(a, b))(z)  # noqa: E731
    exact, slope = jax.jit(jax.vmap(jax.value_and_grad(one)))(y)
    np.testing.assert_allclose(value, exact, rtol=1e-10)
    np.testing.assert_allclose(value, jax.jit(potential)(kernel, y, z, c), rtol=1e-10)
    np.testing.assert_allclose(force, slope, rtol=1e-8, atol=1e-10)
    both = jax.jit(potential)(kernel, y, z, np.column_stack([c, -2.0 * c]))
    np.testing.assert_allclose(both, np.outer(exact, [1.0, -2.0]), rtol=1e-10)


@pytest.mark.x64
def test_the_mixing_proportion_is_that_of_the_points_which_the_model_explains(rng):
    x = np.append(rng.normal(0.0, 1.0, 900), rng.normal(60.0, 1.0, 100))
    bound = MMD(Gaussian(0.5), fit_proportion=True).objective(x, SCALARS)
    reduced, nodes = jax.jit(bound.reduce)(np.full(1000, 1e-3)), one_set(SCALARS, 129)
    proportion = jax.jit(lambda u: bound.report(reduced, u, nodes)["mixing_proportion"])
    assert abs(float(proportion(np.zeros(2))) - 0.9) < 5 * np.sqrt(1.0 / 1000)
    assert proportion(np.array([-30.0, 0.0])) < 1e-6


def test_witness_functions_never_hold_a_matrix_of_all_sources(rng):
    def shapes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (var.aval.shape for var in equation.outvars)
            for value in equation.params.values():
                if hasattr(inner := getattr(value, "jaxpr", value), "eqns"):
                    yield from shapes(inner)

    y, z, c = rng.normal(size=(7, 2)), rng.normal(size=(3 * SOURCES, 2)), rng.normal(size=3 * SOURCES)
    found = list(shapes(jax.make_jaxpr(potential)(Gaussian(L), y, z, c).jaxpr))
    assert (7, SOURCES) in found and (7, 3 * SOURCES) not in found


@pytest.mark.x64
@pytest.mark.parametrize(
    ("route", "fit_proportion"),
    [
        ("grid", True),
        ("direct", False),
        pytest.param("grid", False, marks=pytest.mark.slow),
        pytest.param("direct", True, marks=pytest.mark.slow),
    ],
)
def test_error_of_the_loss_by_hand(route, fit_proportion, rng):
    """By loops over the simulated points: each moves both energies, pairs of them the first; and data the second."""
    x, u = rng.normal(size=30), np.array([0.4, 0.1])
    generator = Generator(lambda u, key: normal(u, jax.random.normal(key, (1,))), DrawnNoise(), 2)
    loss = MMD(Gaussian(L), fit_proportion=fit_proportion, table_error=1e-7)
    bound = loss.objective(x, generator) if route == "grid" else DirectMMD(generator, Gaussian(L), x, fit_proportion)
    assert isinstance(bound, GridMMD) == (route == "grid")
    w, nodes = rng.dirichlet(np.ones(30)), one_set(generator, 25)
    found = [jax.jit(lambda w: bound.report(bound.reduce(w), u, nodes))(w)]
    if route == "grid":  # and by NumPy, for all rows at once
        sets, row = jax.tree.map(lambda leaf: leaf[None], nodes), Reweightings(w[None], None, np.array([0]))
        rows = grid_rows.evaluate("report", bound, sets, row, u[None])
        found.append({name: numbers[0] for name, numbers in rows.items()})
    y = np.asarray(generator.points(u, nodes))
    kernel = lambda a, b: np.exp(-((a - b) ** 2) / (2 * L**2))  # noqa: E731
    own, data = (np.array([np.mean(kernel(a, y)) for a in y]), np.array([w @ kernel(a, x) for a in y]))
    s, pairs = np.mean(data), [kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j]
    q = max(np.mean(pairs), 1 / 25) if fit_proportion else np.mean(pairs)

    def variance(by_q, by_s):
        return np.var(2 * by_q * own + by_s * data) / 25 + 2 * (by_q / 25) ** 2 * q

    c = min(s / q, 1.0) if fit_proportion else 1.0
    by = (c**2, -2 * c)
    expected = {"loss_error": np.sqrt(variance(*by))}
    if fit_proportion:
        expected |= {"mixing_proportion": c}
    for numbers in found:
        assert set(numbers) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(numbers[name], value, rtol=1e-4, err_msg=name)


@pytest.mark.x64
def test_extra_points_are_weighed_with_the_data(scalars):
    x, _ = scalars
    extra, w = np.array([0.0, 40.0, 2.0]), np.random.default_rng(5).dirichlet(np.ones(len(x) + 3))
    q, s, norm = exact_energies(np.append(x, extra), w, np.array([0.8, 0.4]))
    for bound in (
        MMD(Gaussian(L), table_error=1e-6).objective(x, SCALARS, extra),
        DirectMMD(SCALARS, Gaussian(L), x, False),
    ):
        value = loss_at(bound, w, np.array([0.8, 0.4]), one_set(SCALARS, 257), extra)
        np.testing.assert_allclose(value, norm - 2 * s + q, atol=3e-6)


def test_nodes_stand_for_the_distribution_of_the_noise():
    scalar = NormalNoise(1).nodes(jax.random.key(0), 64, 5)
    assert scalar.values.shape == (1, 64, 1)
    z, weights = (np.ravel(np.asarray(leaf)) for leaf in (scalar.values, scalar.weights))
    moments = [weights @ z**k for k in range(5)]
    np.testing.assert_allclose(moments, [1.0, 0.0, 1.0, 0.0, 3.0], atol=1e-6)
    first, second = np.asarray(NormalNoise(3).nodes(jax.random.key(0), 128, 2).values, np.float64)
    assert first.shape == second.shape == (128, 3)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_allclose(first.mean(axis=0), np.zeros(3), atol=1e-12)
    np.testing.assert_allclose(np.cov(second.T), np.eye(3), atol=0.15)
    uniform = np.asarray(UniformNoise(2).nodes(jax.random.key(0), 256, 1).values[0])
    np.testing.assert_allclose(np.mean(uniform**2, axis=0), [1 / 3, 1 / 3], atol=0.01)


@pytest.mark.x64
def test_adapted_nodes_leave_no_gaps_that_the_kernel_could_see():
    heavy = Generator(lambda u, z: u[0] * z[0] * jnp.sqrt(1.0 + z[0] ** 2), NormalNoise(1), 1)
    nodes = adapted_nodes(heavy, np.array([3.0]), 0.2, 128)
    z, y = nodes.values[0, :, 0], 3.0 * nodes.values[0, :, 0] * np.sqrt(1 + nodes.values[0, :, 0] ** 2)
    assert np.diff(y[np.abs(z) < 3.8]).max() <= 0.2
    even = np.linspace(-6.5, 6.5, len(z))
    assert np.diff(3.0 * even * np.sqrt(1 + even**2))[np.abs(even[1:]) < 3.8].max() > 0.2
    np.testing.assert_allclose(nodes.weights[0] @ np.cos(z), np.exp(-0.5), atol=1e-5)
    np.testing.assert_allclose(nodes.weights[0] @ z**2, 1.0, atol=1e-4)
    assert adapted_nodes(VECTORS, np.zeros(2), 0.2, 128) is None
    assert adapted_nodes(heavy, np.array([3.0]), 50.0, 128).weights.shape == (1, 128)  # enough for a wide kernel


def test_nodes_are_wanted_where_simulations_move_fast_but_for_the_tails():
    """The speed jumps from 1 to 3, smoothed by a normal of 0.15; it fades beyond 4.3; and eight nodes are anywhere."""
    z = np.linspace(-6.5, 6.5, 4097)
    speed = 1.0 + 2.0 * norm.cdf(z / 0.15)
    expected = 8.0 + speed / 0.2 / (1.0 + np.exp(0.5 * (z**2 - 4.3**2)))
    np.testing.assert_allclose(_density(z, np.where(z > 0.0, 3.0 * z, z), 0.2), expected, rtol=0.01)


@pytest.mark.x64
@pytest.mark.parametrize("fit_proportion", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_differences_over_small_steps_are_the_derivatives(fit_proportion, rng):
    """Off the diagonal the Hessian is that of Gauss and Newton: without the mixed derivatives of the embedding."""
    x, u = rng.normal(size=(12, 2)), np.array([0.3, -0.2])
    inner = DirectMMD(Generator(lambda u, z: u + z, NormalNoise(2), 2), Gaussian(L), x, fit_proportion)
    reduced, nodes = inner.reduce(np.full(12, 1 / 12)), one_set(inner.generator, 20)
    value = lambda t: inner.value(reduced, t, nodes)  # noqa: E731
    found = jax.jit(lambda u: Differenced(inner, np.array([1e-3, 2e-3])).expand(reduced, u, nodes))(u)
    at, gradient, hessian = jax.jit(with_derivatives(value))(u)
    np.testing.assert_allclose(found.value, at, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.diag(found.hessian), np.diag(hessian), rtol=1e-3)
    y = np.asarray(inner.generator.points(u, nodes))
    v = np.asarray(inner.generator.weights(nodes, reduced[1]))
    kernel = lambda a, b: np.exp(-np.sum((a[:, None] - b) ** 2, axis=2) / (2 * L**2))  # noqa: E731
    jacobians = [lambda b, e=e: (kernel(y + 1e-4 * e, b) - kernel(y - 1e-4 * e, b)).T @ v / 2e-4 for e in np.eye(2)]
    tangent = [jacobians[0](y + 1e-4 * s * np.eye(2)[1]) @ v for s in (1, -1)]
    mixed = (tangent[0] - tangent[1]) / 2e-4
    if not fit_proportion:
        np.testing.assert_allclose(found.hessian[0, 1], 2.0 * mixed, rtol=1e-3, atol=1e-6)


class SquaredMeans(Loss):
    """A quadratic in the parameters of a location."""

    def value(self, x, w, y, v):
        return jnp.sum(jnp.square(w @ x - v @ y)) + jnp.prod(w @ x - v @ y)


@pytest.mark.x64
def test_differences_of_a_quadratic_are_exact_for_every_step(rng):
    generator = Generator(lambda u, z: u + z, NormalNoise(2), 2)
    inner = SquaredMeans().objective(rng.normal(size=(12, 2)), generator)
    reduced, nodes, u = inner.reduce(np.full(12, 1 / 12)), one_set(generator, 20), np.array([0.3, -0.2])
    found = jax.jit(lambda u: Differenced(inner, np.array([0.5, 2.0])).expand(reduced, u, nodes))(u)
    slope = jax.jit(jax.grad(lambda t: inner.value(reduced, t, nodes)))(u)
    np.testing.assert_allclose(found.gradient, slope, rtol=1e-10)
    np.testing.assert_allclose(found.hessian, [[2.0, 1.0], [1.0, 2.0]], rtol=1e-10)


@pytest.mark.x64
def test_covariates_are_weighed_as_the_data_weigh_them():
    rng = np.random.default_rng(8)
    c, w = rng.normal(size=12), rng.dirichlet(np.ones(12))
    generator = Generator(lambda u, z, i: u[0] * jnp.asarray(c)[i] + z[0], NormalNoise(1), 1, covariates=c)
    nodes = generator.draw_nodes(jax.random.key(0), 1024)
    points, v = jax.jit(lambda u: (generator.points(u, nodes), generator.weights(nodes, w)))(np.array([2.0]))
    covariate, response = map(np.asarray, points)
    np.testing.assert_allclose(v @ np.cos(covariate), w @ np.cos(c), rtol=1e-10)
    np.testing.assert_allclose(v @ (covariate * response), 2.0 * w @ c**2, atol=0.02)
    np.testing.assert_allclose(v @ (response - 2.0 * covariate) ** 2, 1.0, atol=0.05)


class Energy(Loss):
    """Energy distance written by a user."""

    def value(self, x, w, y, v):
        distance = lambda a, b: jnp.sqrt(jnp.sum((a[:, None] - b[None]) ** 2, axis=-1) + 1e-12)  # noqa: E731
        return 2 * w @ distance(x, y) @ v - v @ distance(y, y) @ v


@pytest.mark.x64
def test_a_loss_between_samples_is_one_method(rng):
    x, u = rng.normal(size=(9, 2)), np.array([0.1, 0.3])
    bound, nodes = Energy().objective(x, VECTORS), one_set(VECTORS, 16)
    w = rng.dirichlet(np.ones(9))
    y = np.asarray(VECTORS.points(u, nodes))
    expected = 2 * sum(w[i] * np.linalg.norm(x[i] - b) for i in range(9) for b in y) / 16
    expected -= sum(np.linalg.norm(a - b) for a in y for b in y) / 256
    value, gradient = jax.jit(lambda u: bound.slope(bound.reduce(w), u, nodes))(u)
    np.testing.assert_allclose(value, expected, atol=1e-5)
    assert gradient.shape == (2,)


@pytest.mark.parametrize(
    ("data", "kernel", "sentence"),
    [
        (np.zeros((1, 2)), Gaussian(1.0), "at least two points"),
        (np.array([[0.0, 1.0], [np.nan, 2.0]]), Gaussian(1.0), r"`data` has 1 entries that are not finite"),
        (
            np.zeros((5, 3)),
            Gaussian(1.0),
            r"one data point has shape \[\(3,\)\] and one simulated point \[\(2,\)\]",
        ),
        (np.ones((5, 2)), None, "median"),
        (np.eye(5, 2), Linear(), "`kernel` must be bounded"),
    ],
)
def test_bad_input_is_named(data, kernel, sentence):
    with pytest.raises(ValueError, match=sentence):
        MMD(kernel).objective(data, VECTORS)


@pytest.mark.x64
def test_a_smoothed_loss_has_a_kernel_eight_times_as_wide(scalars):
    x, w = scalars
    nodes, u = one_set(SCALARS, 257), np.array([0.8, 0.4])
    narrow, mad = 0.05, np.median(np.abs(x - np.median(x)))
    for smoothed, width in (
        (MMD(Gaussian(narrow), table_error=1e-6).objective(x, SCALARS).smoothed(), 8.0 * narrow),
        (DirectMMD(SCALARS, Gaussian(L), x, False).smoothed(), 8.0 * L),
    ):
        wide = DirectMMD(SCALARS, Gaussian(width), x, False)
        np.testing.assert_allclose(loss_at(smoothed, w, u, nodes), loss_at(wide, w, u, nodes), atol=1e-5)
    broad = MMD(Gaussian(3.0 * mad)).objective(x, SCALARS)  # wider than the data already
    np.testing.assert_allclose(broad.smoothed().kernel.length_scale, 3.0 * mad)
    plain = DirectMMD(SCALARS, Plain(), x, False)
    assert plain.smoothed() is plain
