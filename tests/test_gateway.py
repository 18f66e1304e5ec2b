"""Arithmetic on the host is float64 NumPy, in JAX's defaults: whatever JAX has met before, traces, or runs in other
threads."""

import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme import kernels
from numpyro_kme._core import checks, host
from numpyro_kme._core.host import numpy_function
from numpyro_kme.embeddings.mmd import Quadratic
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.mcmc.noise import simulation_keys
from numpyro_kme.models.tracing import one_model_at_a_time

PACKAGE = Path(kme.__file__).parent
KEY = jax.random.key(0)
RNG = np.random.default_rng(3)
Z = RNG.normal(size=(24, 2))
X = Z @ np.array([[1.0, 0.3], [0.0, 1.0]]) + 0.3 * RNG.normal(size=(24, 2))
GAUSSIAN = kernels.Gaussian(1.0)


@pytest.mark.smoke
def test_nothing_switches_precision():
    """Code may name `enable_x64` in advice, between backticks or as NumPyro's, and read its value."""
    written = re.compile(r"(?<![`.])\bjax_enable_x64\b(?!`)|(?<!numpyro\.)\benable_x64\b(?!\.value)")
    assert not [path for path in PACKAGE.rglob("*.py") if written.search(path.read_text())]


class TestGateway:
    def test_floats_are_in_float64_and_the_rest_stays(self):
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

        @numpy_function
        def look(tree):
            seen.update(tree)
            return tree | {"third": jnp.ones(2) / 3}

        found = look(given)
        assert [seen[name].dtype for name in ("double", "single", "jax", "whole")] == [np.float64] * 3 + [np.int16]
        assert all(type(found[name]) is np.ndarray for name in ("double", "single", "jax", "whole", "third"))
        assert found["third"].dtype == np.float32
        assert seen["word"] == "same" and seen["number"] == 2 and found["key"] is KEY

    @pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda t: jax.vmap(f)(jnp.full(2, t))[0]])
    def test_whatever_jax_does_around_it(self, transform):
        """Programs, loops, derivatives and random numbers."""
        kernel, key = kernels.FromCallable(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2))), jax.random.key(3)
        work = numpy_function(lambda z: (kernel.gram(z), jax.lax.map(jnp.sin, z), jax.grad(jnp.sum)(z[0]), key))
        seen = []
        transform(lambda t: (seen.append((work(Z), jax.random.normal(work(Z)[3], (2,)))), t * 1.0)[1])(1.0)
        jax.tree.map(np.testing.assert_array_equal, seen[0][0][:3], work(Z)[:3])

    def test_programs_are_compiled_once(self, programs):
        work = numpy_function(jax.jit(lambda z: jnp.sum(z) + 17.0))
        jax.jit(lambda t: t * work(Z))(1.0)
        work(Z)
        before = len(programs)
        assert work(Z) == work(Z) and len(programs) == before

    def test_what_is_traced_is_named(self):
        def fit(points, scale):
            return points

        sentence = (
            r"^`scale` must be concrete: fits are made on the host, and here JAX traces it. "
            r"Fit outside `jax.jit`, `jax.vmap` and `jax.grad`, evaluate inside\.\n"
        )
        for transform in (jax.jit, jax.grad, jax.vmap):
            with pytest.raises(TypeError, match=sentence):
                transform(lambda t: numpy_function(fit)(np.ones(2), scale=t))(
                    jnp.ones(3) if transform is jax.vmap else 1.0
                )

    def test_blas_is_given_back_by_the_last(self):
        from threadpoolctl import ThreadpoolController

        def threads():
            return [lib.num_threads for lib in ThreadpoolController().select(user_api="blas").lib_controllers]

        before = threads()
        limit = host.one_blas_thread
        with ThreadPoolExecutor(1) as pool:
            limit.__enter__()
            pool.submit(limit.__enter__).result()
            limit.__exit__()
            assert set(threads()) == {1}
            pool.submit(limit.__exit__).result()
            assert threads() == before
            pool.submit(limit.__enter__).result()
            assert set(threads()) == {1}
            pool.submit(limit.__exit__).result()
        assert threads() == before


PUBLISHED = kme.KernelMeans(learner=kme.likelihoods.Learner(max_steps=2))
RESIDUAL = kme.ResidualKernelMeans(steps=3)


def prior(z):
    return kme.embeddings.MeanEmbedding(GAUSSIAN, z)


def settings():
    return kme.embeddings.kernel_bayes_candidates(GAUSSIAN, GAUSSIAN, [0.1], scales_x=(1.0,), scales_y=(1.0,))


FITS = {
    "fit_likelihood": kme.fit_likelihood,
    "KernelMeans.fit": PUBLISHED.fit,
    "ResidualKernelMeans.fit": RESIDUAL.fit,
    "Coordinates.standardise": lambda z, x: kme.models.Coordinates.standardise(z),
    "Coordinates.table": lambda z, x: kme.models.Coordinates.standardise(Z).table(z),
    "KernelBayesRule.fit": lambda z, x: kme.embeddings.KernelBayesRule.fit(GAUSSIAN, z, x, prior(z), 0.1),
    "kernel_sum_rule": lambda z, x: kme.embeddings.kernel_sum_rule(GAUSSIAN, prior(z), z, x, 0.1),
    "conditional_embedding": lambda z, x: kme.embeddings.conditional_embedding(GAUSSIAN, GAUSSIAN, z, x, x[:1], 0.1),
    "KernelBayesFilter.fit": lambda z, x: kme.embeddings.KernelBayesFilter.fit(
        GAUSSIAN, GAUSSIAN, z, x, 0.1, delta=0.1
    ),
    "LowRank.fit": lambda z, x: LowRank.fit(GAUSSIAN, z),
    "ConditionalMeanEmbedding.fit": lambda z, x: kme.embeddings.ConditionalMeanEmbedding.fit(GAUSSIAN, z, 0.1),
    "DistributionRegression.fit": lambda z, x: kme.abc.DistributionRegression.fit(GAUSSIAN, x, z, 0.1),
    "discrepancies_to, a function": lambda z, x: kme.abc.discrepancies_to(
        x[0], x, lambda a, b: jnp.sum(jnp.square(a - b))
    ),
    "discrepancies_to, an estimator": lambda z, x: kme.abc.discrepancies_to(
        z, x.reshape(2, 12, 2), Quadratic(GAUSSIAN)
    ),
    "discrepancies_to, a loss": lambda z, x: kme.abc.discrepancies_to(z[:, :1], x[None, :, :1], kme.Wasserstein()),
    "mmd_test": lambda z, x: kme.mmd_test(KEY, GAUSSIAN, z, x, num_permutations=9),
    "hsic_test": lambda z, x: kme.embeddings.hsic_test(KEY, GAUSSIAN, GAUSSIAN, z, x, num_permutations=9),
    "learn_length_scale": lambda z, x: kme.kernels.learn_length_scale(KEY, z, num_landmarks=5),
    "farthest_point_design": lambda z, x: kme.kernels.farthest_point_design(KEY, z, 4),
    "choose_by_folds": lambda z, x: kme.embeddings.choose_by_folds(KEY, z, x, settings(), num_folds=2),
    "choose_by_prediction": lambda z, x: kme.embeddings.choose_by_prediction(KEY, z, x, settings(), num_folds=2),
    "recursive_abc_step": lambda z, x: kme.abc.recursive_abc_step(KEY, GAUSSIAN, z, x, x[0], 40, regularisation=0.1),
    "MeanEmbedding.mode": lambda z, x: prior(z).mode(),
    "soft_abc_weights": lambda z, x: kme.abc.soft_abc_weights(z[:, 0], 1.0),
    "rejection_weights": lambda z, x: kme.abc.rejection_weights(z[:, 0], quantile=0.5),
    "a kernel of traced length scale": lambda z, x: LowRank.fit(kernels.Gaussian(z[0] ** 2 + 1.0), X),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", FITS)
def test_fits_under_jit_raise_one_sentence(door):
    with pytest.raises(TypeError, match=r"must be concrete: fits are made on the host.*Fit outside `jax.jit`"):
        jax.jit(FITS[door])(Z, X)


def shift(key, b):
    return b + jax.random.normal(key, b.shape)


def model(x=None):
    b = numpyro.sample("b", dist.Normal(0.0, jnp.ones(2)).to_event(1))
    numpyro.sample("x", kme.Simulator(shift, b), obs=x)


OBSERVED = np.array([0.8, -0.4])


def test_runs_and_fits_of_a_model_under_jit_raise_one_sentence():
    engine = kme.KELFI(model, num_simulations=40, progress_bar=False)
    for run in (
        lambda x: engine.run(KEY, x=x),
        lambda x: kme.RejectionABC(model).run(jax.random.key(x[0]), x=OBSERVED),
    ):
        with pytest.raises(TypeError, match=r"^`(x|rng_key)` must be concrete: fits are made on the host"):
            jax.jit(run)(np.array([1, 2]))


def test_a_kernel_and_a_discrepancy_that_were_called_before():
    """What a user's function closes over is read in the session's precision alone."""
    weights = np.array([0.5, 2.0])

    @jax.jit
    def kernel(a, b):
        return jnp.exp(-jnp.sum(weights * jnp.square(a - b)))

    @jax.jit
    def discrepancy(a, b):
        return jnp.sum(weights * jnp.square(a - b))

    single = kernel(jnp.zeros(2), jnp.ones(2)), discrepancy(jnp.zeros(2), jnp.ones(2))
    squared = np.sum(weights * np.square(Z[:, None] - Z), axis=2)
    gram = LowRank.fit(kernels.FromCallable(kernel), Z).values
    np.testing.assert_allclose(gram @ gram.T, np.exp(-squared), rtol=0.0, atol=1e-6)  # float32, as it was written
    found = kme.abc.discrepancies_to(Z[0], Z, discrepancy)
    np.testing.assert_allclose(found, squared[0], rtol=1e-6, atol=1e-15)
    assert single == (kernel(jnp.zeros(2), jnp.ones(2)), discrepancy(jnp.zeros(2), jnp.ones(2)))


@pytest.mark.slow
def test_two_threads_give_what_one_after_the_other_gives():
    def rejection():
        engine = kme.RejectionABC(model, 800, quantile=0.05, progress_bar=False)
        engine.run(jax.random.key(2), x=OBSERVED)
        return engine.get_samples()["b"]

    def kernel_abc():
        engine = kme.KernelABC(model, 100, progress_bar=False)
        engine.run(KEY, x=OBSERVED)
        return engine.get_samples()["b"]

    jobs = [lambda: jax.tree.leaves(kme.fit_likelihood(Z, X)), kernel_abc, rejection] * 2
    alone = [job() for job in jobs[:3]] * 2
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = [thread.result() for thread in [pool.submit(job) for job in jobs]]
    for found, expected in zip(together, alone, strict=True):
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_models_run_one_at_a_time_and_the_gateway_passes_the_turn_on():
    inside, most = [], []

    @one_model_at_a_time()
    def run(_):
        inside.append(1)
        most.append(len(inside))
        again = jax.jit(lambda t: t + numpy_function(one_model_at_a_time()(lambda: np.ones(())))())(1.0)
        inside.pop()
        return float(again)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(20))) == [2.0] * 20
    assert max(most) == 1


PROBLEM = kme.Problem.read(model)


KEYED = {
    "run": lambda key: kme.KELFI(model).run(key, x=OBSERVED),
    "BayesianKernelLearning": kme.BayesianKernelLearning,
    "CrossValidation": kme.CrossValidation,
    "Coordinates.from_prior": lambda key: kme.models.Coordinates.from_prior(key, PROBLEM),
    "Fourier.draw": lambda key: kme.embeddings.Fourier.draw(key, GAUSSIAN, 2),
    "Problem.draw": lambda key: PROBLEM.draw(key, 3),
    "choose_by_folds": lambda key: kme.embeddings.choose_by_folds(key, Z, X, settings()),
    "choose_by_prediction": lambda key: kme.embeddings.choose_by_prediction(key, Z, X, settings()),
    "log_estimate_sd": lambda key: kme.mcmc.log_estimate_sd(key, model, {"b": Z}),
    "noise_sensitivity": lambda key: kme.mcmc.noise_sensitivity(key, model, {"b": Z}),
    "hsic_test": lambda key: kme.embeddings.hsic_test(key, GAUSSIAN, GAUSSIAN, Z, X),
    "mmd_test": lambda key: kme.mmd_test(key, GAUSSIAN, Z, X),
    "recursive_abc_step": lambda key: kme.abc.recursive_abc_step(key, GAUSSIAN, Z, X, X[0], 5),
    "learn_length_scale": lambda key: kme.kernels.learn_length_scale(key, Z),
    "farthest_point_design": lambda key: kme.kernels.farthest_point_design(key, Z, 3),
    "simulate": lambda key: kme.simulate(key, PROBLEM, 3),
    "CommonNoise": lambda key: kme.CommonNoise(10, key),
    "simulation_keys": lambda key: simulation_keys(model, rng_key=key),
    "Normal.sample": lambda key: kme.embeddings.measures.standard_normal(2).sample(key, 3),
    "Points.sample": lambda key: kme.embeddings.measures.Points(Z).sample(key, 3),
    "refine": lambda key: kme.KELFI(model).refine(key, {"b": Z}),
    "SyntheticLikelihood": lambda key: kme.SyntheticLikelihood(shift, jnp.zeros(2), num_simulations=100, rng_key=key),
}


def without_anything_else(function):
    """A call with a key, and None for whatever else it needs: the key is looked at first."""
    _, *others = (p for p in inspect.signature(function).parameters.values() if p.default is p.empty)
    return lambda key: function(key, **{p.name: None for p in others if p.kind is p.POSITIONAL_OR_KEYWORD})


KEYED |= {
    name: without_anything_else(function)
    for name, function in vars(kme.diagnostics).items()
    if inspect.isfunction(function) and "rng_key" in inspect.signature(function).parameters and name not in KEYED
}


@pytest.mark.parametrize("door", KEYED)
def test_what_is_no_key_is_refused(door):
    for value in (0, np.int64(3), 0.5, [0, 1], None if door != "SyntheticLikelihood" else "seed", np.arange(2)):
        with pytest.raises(
            TypeError, match=r"^`rng_key` must be a random key of JAX; got .*Make one with jax\.random\.key\(0\)"
        ):
            KEYED[door](value)


def test_raw_keys_of_the_other_generators_are_taken():
    key = jax.random.key(0, impl="rbg")
    data = jax.random.key_data(key)
    with jax.default_prng_impl("rbg"):
        assert checks.key(data) == key
        assert kme.kernels.farthest_point_design(data, Z, 3).shape == (3, 2)
    with pytest.raises(TypeError, match="must be a random key"):
        checks.key(np.zeros(3, np.uint32))


def test_a_key_of_another_kind_than_the_sessions_is_refused():
    other = jax.random.key(0, impl="rbg")
    with pytest.raises(ValueError, match=r"is of the kind 'rbg', .* 'threefry2x32'\. Make it with"):
        kme.KELFI(lambda x: None).run(other, x=0.0)
    with jax.default_prng_impl("rbg"):
        checks.key(other)
        with pytest.raises(ValueError, match="is of the kind 'threefry2x32'"):
            checks.key(jax.random.key(0, impl="threefry2x32"))


def test_keys_of_both_kinds_are_taken():
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert kme.kernels.farthest_point_design(key, Z, 3).shape == (3, 2)
        assert PROBLEM.draw(key, 3).latents["b"].shape == (3, 2)
        assert 0.0 < kme.mmd_test(key, GAUSSIAN, Z, X, num_permutations=9).p_value <= 1.0


def operands(jaxpr):
    """What callbacks of a program are handed."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pure_callback":
            yield from (var.aval for var in equation.invars)
        for value in equation.params.values():
            if hasattr(inner := getattr(value, "jaxpr", value), "eqns"):
                yield from operands(inner)


@pytest.mark.parametrize("how", ["sequential", "broadcast_all"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_argument_of_a_callback_is_larger_than_what_jax_copies_at_once(how, dtype):
    def total(x):
        return host.call_back(np.sum, (), dtype, x, vmap_method=how)

    with jax.enable_x64(dtype is np.float64):
        x = jnp.arange(30_000, dtype=dtype)
        found = list(operands(jax.make_jaxpr(total)(x).jaxpr))
        assert found and max(a.size * a.dtype.itemsize for a in found) <= host.AT_ONCE
        assert sum(a.size * a.dtype.itemsize for a in found) == x.nbytes
        np.testing.assert_allclose(jax.jit(total)(x), np.sum(np.arange(30_000.0)), rtol=1e-6)
