"""Seeded fuzz over the public functions: a sentence of ours or a finite answer, within a minute."""

import warnings

import jax
import numpy as np
import pytest
from fuzz_models import limited
from test_bad_inputs import all_finite, is_ours

import numpyro_kme as kme
from numpyro_kme import diagnostics, kernels
from numpyro_kme.embeddings import measures
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.likelihoods.published.learning import Hyperparameters
from numpyro_kme.likelihoods.statistics import StatisticsTransform

KEY = jax.random.key(0)
CASES, LIMIT = 1000, 60
FAMILIES = [kernels.Gaussian, kernels.Laplace, kernels.Matern32, kernels.Matern52]
FAMILIES += [kernels.InverseMultiquadric, kernels.RationalQuadratic, kernels.Energy]


class Fuzz:
    """Arguments, most of them sound and some of them not."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def one(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def spoil(self, array):
        """The array, or in one case of three something wrong with it."""
        array, row = np.array(array), self.rng.integers(len(array))
        kind = self.rng.integers(30)
        if kind < 3:
            array[row] = (np.nan, np.inf, 1e30)[kind]
        if kind in (3, 10):
            array[:: 1 if kind == 3 else 2] = array[row]
        shapes = {4: array[:0], 5: array[:1], 6: array[..., None], 11: array[:, :0] if array.ndim > 1 else array[:0]}
        types = {7: str, 8: complex, 9: object}
        return array.astype(types[kind]) if kind in types else shapes.get(kind, array)

    def points(self, n=8, dim=2):
        return self.spoil(self.rng.normal(size=(n, dim)))

    def column(self, n=8):
        return self.spoil(self.rng.normal(size=n))

    def weights(self, n=8):
        weights = self.rng.uniform(0.1, 1.0, n)
        return self.one(None, None, self.spoil(weights / weights.sum()), weights)

    def positive(self):
        sound = [0.5, 1.0, 2.0] * 4
        return self.one(*sound, 0.0, -1.0, np.nan, np.inf, 1e-30, 1e30, "1", None, np.array([0.5, 0.7]), np.ones(3))

    def whole(self):
        return self.one(2, 3, 5, 2, 3, 5, 0, -1, 2.5, "3", None)

    def kernel(self):
        return self.one(*FAMILIES)(self.positive())


def fit(f):
    hyper = Hyperparameters(kernels.Gaussian(np.ones(2)), kernels.Gaussian(np.ones(2)), f.positive())
    fitted = kme.fit_likelihood(f.points(), f.points(), form=kme.KernelMeans(hyperparameters=hyper))
    return fitted(np.zeros(2)).log_prob(f.column(2))


def bayes(f):
    prior = kme.embeddings.MeanEmbedding(kernels.Gaussian(1.0), f.points(), f.weights())
    rule = kme.embeddings.KernelBayesRule.fit(
        f.kernel(), f.points(), f.points(), prior, f.positive(), delta=f.positive()
    )
    return rule.weights(f.points(1))


def sum_rule(f):
    prior = kme.embeddings.MeanEmbedding(kernels.Gaussian(1.0), f.points(), f.weights())
    return kme.embeddings.kernel_sum_rule(f.kernel(), prior, f.points(), f.points(), f.positive()).weights


def ridge(f):
    fitted = kme.embeddings.ConditionalMeanEmbedding.fit(f.kernel(), f.points(), f.positive())
    return fitted.expectation(f.column(), f.points(3))


def embedding(f):
    found = kme.embeddings.MeanEmbedding(f.kernel(), f.points(), f.weights())
    return found(f.points(3)), found.inner(found), found.expectation(f.column())


def measure(f):
    made = f.one(
        lambda: measures.Normal(f.column(2), f.points(2)),
        lambda: measures.Normal(f.column(2), np.eye(2)),
        lambda: measures.Points(f.points(), f.weights()),
    )()
    return made.mean_embedding(kernels.Gaussian(f.positive()), f.points(3))


def table(f):
    bank = kme.Simulations.from_table(f.points(), f.points())
    return bank.x, bank.arguments


FUNCTIONS = [
    lambda f: f.kernel().gram(f.points(), f.points(3)),
    lambda f: kme.squared_mmd(f.kernel(), f.points(), f.points(), x_weights=f.weights(), unbiased=f.one(True, False)),
    lambda f: kme.embeddings.LinearTime(f.kernel())(f.points(), f.points()),
    lambda f: kme.embeddings.Fourier.draw(KEY, kernels.Gaussian(f.positive()), 2, f.whole())(f.points(), f.points()),
    lambda f: tuple(kme.mmd_test(KEY, f.kernel(), f.points(), f.points(), num_permutations=f.whole())),
    lambda f: tuple(
        kme.embeddings.hsic_test(KEY, f.kernel(), f.kernel(), f.points(), f.points(), num_permutations=f.whole())
    ),
    lambda f: kme.embeddings.hsic(f.kernel(), f.kernel(), f.points(), f.points()),
    lambda f: kernels.median_heuristic(f.points()),
    lambda f: kernels.median_heuristic_per_dimension(f.points()),
    lambda f: kme.herd(f.kernel(), f.column(), f.points(), f.whole()),
    lambda f: LowRank.fit(f.kernel(), f.points(), tolerance=f.positive(), max_rank=f.whole()).values,
    lambda f: kme.embeddings.MeanEmbedding(kernels.Gaussian(f.positive()), f.points(), f.weights()).mode(),
    lambda f: diagnostics.misspecification_test(f.points(), f.column(2)).p_value,
    lambda f: kernels.EmpiricalMeasure(f.kernel(), f.positive()).gram(f.spoil(f.rng.normal(size=(3, 4, 2)))),
    lambda f: (kme.Retry(f.whole()).times, kme.Penalise(f.positive()).value),
    fit,
    lambda f: StatisticsTransform.fit(f.points()).forward(f.points(3)),
    *(bayes, sum_rule, ridge, embedding, measure, table),
    lambda f: kme.models.Coordinates.standardise(f.points()).table(f.points(3)),
]


def fault(seed) -> str:
    """What is wrong with how a case was answered; empty if nothing is."""
    f = Fuzz(seed)
    place = int(f.rng.integers(len(FUNCTIONS)))
    with warnings.catch_warnings(record=True) as caught, limited(LIMIT):
        warnings.simplefilter("always")
        try:
            answer = FUNCTIONS[place](f)
        except Exception as error:
            return "" if is_ours(error) else f"case {seed}, function {place}: {type(error).__name__}: {error!s:.150}"
    foreign = [w for w in caught if issubclass(w.category, RuntimeWarning)]
    if not all_finite(answer) or foreign:
        return f"case {seed}, function {place}: {answer} {[str(w.message) for w in foreign]}"
    return ""


def test_a_sample():
    assert not [found for seed in range(CASES, CASES + 20) if (found := fault(seed))]


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(CASES // 100))
def test_all(hundred):
    seeds = range(100 * hundred, 100 * (hundred + 1))
    assert not [found for seed in seeds if (found := fault(seed))]
