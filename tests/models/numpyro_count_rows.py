"""The table of samplers, NumPyro's counts, and numbers with a probability of zero."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro_rows import GAMMA, LOOP, by, of
from sampler_rows import Gated, discrete, zero_or
from scipy import stats
from scipy.special import expit

P = jnp.array([0.2, 0.3, 0.5])
POISSON, LOG_NORMAL = dist.Poisson(2.0), dist.LogNormal(0.0, 0.5)
INFLATED = zero_or(0.3, stats.poisson(2.0), False)


def rates(concentration, rate):
    return stats.nbinom(concentration, rate / (1 + rate))


def ordered(predictor):
    below = expit(np.array([-1.0, 1.0]) - predictor)
    return discrete(below[0], below[1] - below[0], 1 - below[1])


COUNTS = [
    of("Bernoulli", "1 uniform", stats.bernoulli, 0.3),
    of("BernoulliLogits", "1 uniform", lambda a: stats.bernoulli(expit(a)), -0.5),
    of("BernoulliProbs", "1 uniform", stats.bernoulli, 0.3),
    of("BetaBinomial", "2 gamma, 1 binomial", lambda a, b: stats.betabinom(9, a, b), 2.0, 3.0, total_count=9),
    of("BetaNegativeBinomial", "3 gamma, 1 poisson", lambda a, b, n: stats.betanbinom(n, b, a), 2.0, 12.0, 4.0),
    by("Binomial", "1 binomial", lambda p: dist.Binomial(40, p), lambda p: stats.binom(40, p), 0.3, tails=8),
    of("BinomialLogits", "1 binomial", lambda a: stats.binom(9, expit(a)), -0.5, total_count=9, tails=8),
    of("BinomialProbs", "1 binomial", lambda p: stats.binom(9, p), 0.3, total_count=9, tails=8),
    by("Categorical", "1 uniform", lambda: dist.Categorical(probs=P), lambda: discrete(*np.asarray(P, float))),
    by("CategoricalLogits", "3 gumbel", lambda: dist.CategoricalLogits(jnp.log(P)), lambda: discrete(0.2, 0.3, 0.5)),
    by("CategoricalProbs", "1 uniform", lambda: dist.CategoricalProbs(P), lambda: discrete(0.2, 0.3, 0.5)),
    by(
        "DirichletMultinomial",
        "3 gamma, 5 uniform",
        lambda a: dist.DirichletMultinomial(jnp.array([1.0, 2.0, a]), 5),
        lambda a: [stats.betabinom(5, b, 3 + a - b) for b in (1, 2, a)],
        1.5,
    ),
    by("DiscreteUniform", "1 randint", lambda: dist.DiscreteUniform(-2, 8), lambda: stats.randint(-2, 9), tails=8),
    of("GammaPoisson", "1 gamma, 1 poisson", rates, 2.0, 0.5),
    of("Geometric", "1 uniform", lambda p: stats.geom(p, loc=-1), 0.3),
    of("GeometricLogits", "1 uniform", lambda a: stats.geom(expit(a), loc=-1), -0.5),
    of("GeometricProbs", "1 uniform", lambda p: stats.geom(p, loc=-1), 0.3),
    by(
        "HurdleDistribution",
        "1 uniform, 1 gamma",
        lambda: dist.HurdleDistribution(GAMMA, gate=0.3),
        lambda: Gated(0.3, stats.gamma(2)),
    ),
    by(
        "HurdleGamma",
        "1 uniform, 1 gamma",
        lambda a, r: dist.HurdleGamma(0.3, a, r),
        lambda a, r: Gated(0.3, stats.gamma(a, scale=1 / r)),
        *(2.0, 3.0),
    ),
    by(
        "HurdleLogits",
        "1 uniform, 1 normal",
        lambda: dist.HurdleLogits(LOG_NORMAL, 0.0),
        lambda: Gated(0.5, stats.lognorm(0.5)),
    ),
    by(
        "HurdleLogNormal",
        "1 uniform, 1 normal",
        lambda m, s: dist.HurdleLogNormal(0.3, m, s),
        lambda m, s: Gated(0.3, stats.lognorm(s, scale=np.exp(m))),
        *(0.5, 0.4),
    ),
    of("HurdleNegativeBinomial2", LOOP, None, 0.3, 2.0, 1.5),
    of("HurdlePoisson", LOOP, None, 0.3, 2.0),
    of("HurdlePoisson", "21 poisson, 1 uniform", lambda g, r: zero_or(g, stats.poisson(r), True), 0.3, 2.0, loops=20),
    by("HurdleProbs", "1 uniform, 1 gamma", lambda: dist.HurdleProbs(GAMMA, 0.3), lambda: Gated(0.3, stats.gamma(2))),
    by("HurdleProbs", LOOP, lambda: dist.HurdleProbs(POISSON, 0.3)),
    by(
        "Multinomial",
        "5 uniform",
        lambda: dist.Multinomial(5, probs=P),
        lambda: [stats.binom(5, p) for p in (0.2, 0.3, 0.5)],
    ),
    by(
        "MultinomialLogits",
        "5 uniform",
        lambda: dist.MultinomialLogits(jnp.log(P), 5),
        lambda: [stats.binom(5, p) for p in (0.2, 0.3, 0.5)],
    ),
    by(
        "MultinomialProbs",
        "5 uniform",
        lambda: dist.MultinomialProbs(P, 5),
        lambda: [stats.binom(5, p) for p in (0.2, 0.3, 0.5)],
    ),
    of("NegativeBinomial", "1 gamma, 1 poisson", lambda n, p: stats.nbinom(n, 1 - p), 3.0, 0.4),
    of("NegativeBinomial2", "1 gamma, 1 poisson", lambda m, c: stats.nbinom(c, c / (c + m)), 3.0, 2.5),
    of("NegativeBinomialLogits", "1 gamma, 1 poisson", lambda n, a: stats.nbinom(n, expit(-a)), 3.0, -0.5),
    of("NegativeBinomialProbs", "1 gamma, 1 poisson", lambda n, p: stats.nbinom(n, 1 - p), 3.0, 0.4),
    of("OrderedLogistic", "1 uniform", ordered, 0.3, cutpoints=jnp.array([-1.0, 1.0])),
    of("Poisson", "1 poisson", stats.poisson, 3.7, tails=8),
    by(
        "ZeroInflatedDistribution",
        "1 uniform, 1 poisson",
        lambda: dist.ZeroInflatedDistribution(POISSON, gate=0.3),
        lambda: INFLATED,
    ),
    by(
        "ZeroInflatedLogits",
        "1 uniform, 1 poisson",
        lambda: dist.ZeroInflatedLogits(POISSON, 0.0),
        lambda: zero_or(0.5, stats.poisson(2), False),
    ),
    of(
        "ZeroInflatedNegativeBinomial2",
        "1 uniform, 1 gamma, 1 poisson",
        lambda m, c: zero_or(0.3, stats.nbinom(c, c / (c + m)), False),
        2.0,
        3.0,
        gate=0.3,
    ),
    of("ZeroInflatedPoisson", "1 uniform, 1 poisson", lambda g, r: zero_or(g, stats.poisson(r), False), 0.3, 2.0),
    by("ZeroInflatedProbs", "1 uniform, 1 poisson", lambda: dist.ZeroInflatedProbs(POISSON, 0.3), lambda: INFLATED),
]
