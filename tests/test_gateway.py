"""Arithmetic on the host goes through one gateway, in JAX's defaults: whatever JAX has met before, traces, or runs in other threads."""

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.linalg import solve_triangular

import numpyro_kme as kme
from numpyro_kme import _host, _linalg, kernels
from numpyro_kme._host import on_host
from numpyro_kme._reading import one_model_at_a_time
from numpyro_kme.herding import polish
from numpyro_kme.low_rank import LowRank
from numpyro_kme.mmd_estimators import Quadratic

PACKAGE = Path(kme.__file__).parent
KEY = jax.random.key(0)
RNG = np.random.default_rng(3)
Z = RNG.normal(size=(24, 2))
X = Z @ np.array([[1.0, 0.3], [0.0, 1.0]]) + 0.3 * RNG.normal(size=(24, 2))
SETS = RNG.normal(size=(24, 6, 1)) + Z[:, :1, None]
GAUSSIAN = kernels.Gaussian(1.0)


def switches(source: str) -> list[int]:
    """Lines that switch the precision."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr == "enable_x64" and not _is_read(node, source))
        or (isinstance(node, ast.Name) and node.id == "enable_x64")
        or (isinstance(node, ast.alias) and node.name == "enable_x64")
        or (isinstance(node, ast.Constant) and node.value == "jax_enable_x64")
    ]


def _is_read(node, source):
    return source.splitlines()[node.end_lineno - 1][node.end_col_offset :].startswith(".value")


def test_nothing_but_the_gateway_switches_precision():
    found = {path.relative_to(PACKAGE).as_posix(): switches(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert [name for name, lines in found.items() if lines] == ["_host.py"]
    assert len(found["_host.py"]) == 1


def test_any_way_to_switch_is_seen():
    for line in (
        "with jax.enable_x64(True): pass",
        "from jax.experimental import enable_x64",
        "numpyro.enable_x64()",
        "jax.config.update('jax_enable_x64', True)",
    ):
        assert switches(line) == [1], line
    assert not switches("where = jax.enable_x64.value")


class TestGateway:
    def test_floats_are_copied_in_float64_and_the_rest_stays(self):
        given = {
            "double": np.ones(3),
            "single": np.ones(3, np.float32),
            "jax": jnp.ones(3),
            "whole": np.arange(3, dtype=np.int16),
            "word": "same",
            "number": 2,
            "key": KEY,
        }
        seen = {}

        @on_host
        def look(tree):
            seen.update(tree)
            for name in ("double", "single", "whole"):
                tree[name][0] = 7
            return jax.tree.map(lambda leaf: leaf, tree)

        found = look(given)
        assert [seen[name].dtype for name in ("double", "single", "jax", "whole")] == [np.float64] * 3 + [np.int16]
        assert all(type(seen[name]) is np.ndarray for name in ("double", "single", "jax", "whole"))
        assert given["double"][0] == given["single"][0] == 1.0 and given["whole"][0] == 0
        assert seen["word"] == "same" and seen["number"] == 2 and found["key"] is KEY

    def test_numpy_comes_out_in_float64_and_the_session_stays_as_it_was(self):
        third = on_host(lambda a: {"b": jnp.asarray(a) / 3})(np.ones(2, np.float32))["b"]
        assert type(third) is np.ndarray and third.dtype == np.float64
        np.testing.assert_allclose(third, 1 / 3, rtol=1e-16)
        assert jnp.ones(()).dtype == np.float32
        with pytest.raises(ZeroDivisionError):
            on_host(lambda: 1 / 0)()
        assert jnp.ones(()).dtype == np.float32

    def test_inside_another_it_is_a_call(self):
        seen = []

        @on_host
        def inner(a):
            seen.append(a)
            return jnp.asarray(a) + 1

        @on_host
        def outer(a):
            single = a.astype(np.float32)
            assert type(inner(single)) is np.ndarray
            assert seen[0] is single
            return jax.jit(lambda t: t + inner(single)[0])(jnp.ones(()))

        assert outer(np.zeros(2)) == 2.0
        assert seen[1] is not seen[0] and seen[1].dtype == np.float64

    def test_while_jax_traces_it_works_at_once_on_concrete_arguments(self):
        found = []

        @on_host
        def root(a):
            value = jnp.sqrt(jnp.asarray(a))
            found.append(float(value))
            return value

        @jax.jit
        def traced(t):
            return t * root(np.array(2.0))

        assert traced(1.0).dtype == np.float32
        assert found == [np.sqrt(2.0)]
        np.testing.assert_allclose(jax.vmap(lambda t: t * root(np.array(2.0)))(jnp.ones(2)), np.sqrt(2.0), rtol=1e-6)

    def test_no_thread_is_opened_where_nothing_is_traced(self, monkeypatch):
        monkeypatch.setattr(_host, "ThreadPoolExecutor", None)
        assert on_host(lambda a: a + 1)(np.zeros(1)) == 1.0

    def test_what_is_traced_is_named(self):
        def fit(points, scale):
            return points

        sentence = (
            "^`scale` must be concrete: fits are made on the host, and here JAX traces it. "
            "Fit outside `jax.jit`, `jax.vmap` and `jax.grad`, and evaluate what was fitted inside.$"
        )
        for transform in (jax.jit, jax.grad, jax.vmap):
            with pytest.raises(TypeError, match=sentence):
                transform(lambda t: on_host(fit)(np.ones(2), scale=t))(jnp.ones(3) if transform is jax.vmap else 1.0)

    def test_programs_are_traced_once(self):
        count = []

        @on_host
        @jax.jit
        def program(kernel, x):
            count.append(1)
            return kernel.gram(x)

        for _ in range(3):
            program(GAUSSIAN, Z.copy())
        assert len(count) == 1

    def test_threads(self):
        found = _host.in_threads(lambda i: jnp.asarray(i) / 3, np.arange(4.0))
        assert [(type(a), a.dtype) for a in map(np.asarray, found)] == [(np.ndarray, np.float64)] * 4
        np.testing.assert_allclose(found, np.arange(4) / 3, rtol=1e-15)

    def test_constants_have_the_present_precision(self):
        def look():
            leaf = _host.constants({"a": np.ones(2)})["a"]
            assert not isinstance(leaf, jax.core.Tracer)
            return leaf.dtype

        seen = []
        jax.jit(lambda t: seen.append(look()) or t)(1.0)
        on_host(lambda: jax.jit(lambda t: seen.append(look()) or t)(1.0))()
        assert [look(), *seen] == [np.float32, np.float32, np.float64]

    def test_blas_is_given_back_by_the_last(self):
        from threadpoolctl import ThreadpoolController

        def threads():
            return [lib.num_threads for lib in ThreadpoolController().select(user_api="blas").lib_controllers]

        before = threads()
        first, second = _linalg.one_blas_thread, _linalg.one_blas_thread
        first.__enter__()
        second.__enter__()
        first.__exit__()
        assert set(threads()) == {1}
        second.__exit__()
        assert threads() == before


def coordinates_of(z):
    return kme.Coordinates.standardise(z)


def surrogate(z, x, form):
    return kme.fit_likelihood(z, x, form=form)


PUBLISHED = kme.KernelMeans(learner=kme.Learner(max_steps=2))
RESIDUAL = kme.ResidualKernelMeans(steps=3)


def prior(z):
    return kme.MeanEmbedding(GAUSSIAN, z)


def simulator_of_sets(key, theta):
    return theta[:, None, :1] + jax.random.normal(key, (len(theta), 4, 1))


def settings():
    return kme.kernel_bayes_candidates(GAUSSIAN, GAUSSIAN, [0.1], scales_x=(1.0,), scales_y=(1.0,))


DOORS = {
    "fit_likelihood": lambda z, x: surrogate(z, x, None).at(x[0]).log_density(jnp.zeros(2)),
    "KernelMeans.fit": lambda z, x: PUBLISHED.fit(z, x).at(x[0]).expansion().weights,
    "ResidualKernelMeans.fit": lambda z, x: RESIDUAL.fit(z, x).information(),
    "Coordinates.standardise": lambda z, x: coordinates_of(z).rest,
    "Coordinates.table": lambda z, x: coordinates_of(Z).table(z),
    "KernelBayesRule.fit": lambda z, x: kme.KernelBayesRule.fit(z, x, GAUSSIAN, prior(z), 0.1).weights(x[:2]),
    "kernel_sum_rule": lambda z, x: kme.kernel_sum_rule(prior(z), z, x, GAUSSIAN, 0.1).weights,
    "conditional_embedding": lambda z, x: kme.conditional_embedding(z, x, GAUSSIAN, GAUSSIAN, x[0], 0.1).weights,
    "kernel_bayes_rule": lambda z, x: kme.kernel_bayes_rule(prior(z), z, x, GAUSSIAN, x[0], 0.1).weights,
    "KernelBayesFilter.fit": lambda z, x: (
        kme.KernelBayesFilter.fit(z, x, GAUSSIAN, GAUSSIAN, 0.1, delta=0.1).filter(x[:2])
    ),
    "LowRank.fit": lambda z, x: LowRank.fit(GAUSSIAN, z).values,
    "LowRankRidge.fit": lambda z, x: kme.LowRankRidge.fit(z, GAUSSIAN, 0.1).weights(z[:2]),
    "ConditionalMeanEmbedding.fit": lambda z, x: kme.ConditionalMeanEmbedding.fit(z, GAUSSIAN, 0.1).factor,
    "DistributionRegression.fit": lambda z, x: kme.DistributionRegression.fit(x, z, GAUSSIAN, (0.1,)).predict(x[:2]),
    "discrepancies_to, a function": lambda z, x: kme.discrepancies_to(x[0], x, lambda a, b: jnp.sum(jnp.square(a - b))),
    "discrepancies_to, NumPy": lambda z, x: kme.discrepancies_to(x[0], x, lambda a, b: np.linalg.norm(np.asarray(a) - b)),
    "discrepancies_to, an estimator": lambda z, x: kme.discrepancies_to(z, np.stack([x, z]), Quadratic(GAUSSIAN)),
    "discrepancies_to, a loss": lambda z, x: kme.discrepancies_to(z[:, :1], x[None, :, :1], kme.Wasserstein()),
    "mmd_test": lambda z, x: kme.mmd_test(KEY, GAUSSIAN, z, x, num_permutations=9).null,
    "hsic_test": lambda z, x: kme.hsic_test(KEY, GAUSSIAN, z, GAUSSIAN, x, num_permutations=9).null,
    "learn_length_scale": lambda z, x: kme.learn_length_scale(KEY, z, num_landmarks=5).candidates,
    "shrunk_embedding": lambda z, x: kme.shrunk_embedding(z, x, 1.0, 0.5, 2.0),
    "spread_out": lambda z, x: kme.spread_out(KEY, z, 4),
    "choose_by_folds": lambda z, x: kme.choose_by_folds(KEY, z, x, settings(), num_folds=2).errors,
    "choose_by_prediction": lambda z, x: kme.choose_by_prediction(KEY, z, x, settings(), num_folds=2).errors,
    "recursive_abc_step": lambda z, x: kme.recursive_abc_step(KEY, z, x, x[0], GAUSSIAN, 5, regularisation=0.1),
    "pre_image": lambda z, x: kme.pre_image(prior(z)),
    "polish": lambda z, x: polish(prior(z), GAUSSIAN, x[:4], max_steps=5),
    "soft_abc_weights": lambda z, x: kme.soft_abc_weights(np.abs(z[:, 0]), 1.0).weights,
    "rejection_weights": lambda z, x: kme.rejection_weights(np.abs(z[:, 0]), quantile=0.5).weights,
    "MeanEmbedding": lambda z, x: prior(z)(x),
    "squared_mmd": lambda z, x: kme.squared_mmd(GAUSSIAN, z, x),
    "herd": lambda z, x: kme.herd(np.abs(z[:, 0]), GAUSSIAN, z, 3),
    "Gaussian(length_scale=z)": lambda z, x: kme.ConditionalMeanEmbedding.fit(
        x, kernels.Gaussian(np.abs(z[0]) + 1.0), 0.1
    ).factor,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_arrays_that_a_living_program_closes_over(door):
    fresh = DOORS[door](Z.copy(), X.copy())
    z, x = Z.copy(), X.copy()
    living = jax.jit(lambda t: jnp.sum(t * z) + jnp.sum(t * x))
    assert np.isfinite(living(1.0))
    found = DOORS[door](z, x)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), found, fresh)
    assert np.isfinite(living(2.0))


FITS = {name: door for name, door in DOORS.items() if name not in ("MeanEmbedding", "squared_mmd", "herd")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", FITS)
def test_fits_under_jit_raise_one_sentence(door):
    with pytest.raises(TypeError, match="must be concrete: fits are made on the host.*Fit outside `jax.jit`"):
        jax.jit(FITS[door])(Z, X)
