"""The table of samplers, NumPyro's part; rows as in `sampler_rows`."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints, transforms
from sampler_rows import Gated, Mixture, Row, Truncated, discrete, zero_or
from scipy import stats
from scipy.special import expit

LOOP = r"draws random numbers inside a `while` loop \(.*\): how many is not known beforehand"
"""Of samplers that reject; their rows with `most_loops` follow."""

P = jnp.array([0.2, 0.3, 0.5])
COV = jnp.array([[2.0, 0.5], [0.5, 1.0]])


def of(kind, drawn, law=None, *at, tails=0, loops=None, **fixed):
    """A distribution by its name, which takes `at` and what is fixed."""

    def draw(k, *at):
        return getattr(dist, kind)(*at, **fixed).sample(k)

    return kind, Row(draw, drawn, law, at, tails, loops)


def by(kind, drawn, make, law=None, *at, tails=0, loops=None):
    """A distribution made of `at` by a function."""
    return kind, Row(lambda k, *at: make(*at).sample(k), drawn, law, at, tails, loops)


def entry(kind, drawn, make, read, law, *at):
    """A number or more of an array."""
    return kind, Row(lambda k, *at: read(make(*at).sample(k)), drawn, law, at)


def two(law):
    return lambda *at: [law(*at)] * 2


def asymmetric(loc, scale, quantile):
    kappa = np.sqrt(quantile / (1 - quantile))
    return stats.laplace_asymmetric(kappa, loc, scale * kappa / quantile)


def rates(concentration, rate):
    return stats.nbinom(concentration, rate / (1 + rate))


def walk(t, state):
    return -0.5 * state, 1.0 + 0.1 * state**2


def ordered(predictor):
    below = expit(np.array([-1.0, 1.0]) - predictor)
    return discrete(below[0], below[1] - below[0], 1 - below[1])


def bivariate():
    return dist.SineBivariateVonMises(0.3, -0.2, 2.0, 1.5, 1.0)


POISSON, GAMMA, NORMAL, LOG_NORMAL = (
    dist.Poisson(2.0),
    dist.Gamma(2.0, 1.0),
    dist.Normal(0.0, 1.0),
    dist.LogNormal(0.0, 0.5),
)
HALVES = dist.Categorical(probs=jnp.array([0.4, 0.6]))
MIXED = Mixture([0.4, 0.6], [stats.norm(0, 1), stats.norm(3, 0.5)])
POSITIVE = zero_or(0.3, stats.poisson(2.0), True)
INFLATED = zero_or(0.3, stats.poisson(2.0), False)

ROWS = [
    of("AsymmetricLaplace", "2 exponential", lambda m, s, a: stats.laplace_asymmetric(a, m, s), 0.5, 2.0, 1.3),
    of("AsymmetricLaplaceQuantile", "2 exponential", asymmetric, 0.5, 2.0, 0.3),
    of("Bernoulli", "1 uniform", stats.bernoulli, 0.3),
    of("BernoulliLogits", "1 uniform", lambda a: stats.bernoulli(expit(a)), -0.5),
    of("BernoulliProbs", "1 uniform", stats.bernoulli, 0.3),
    of("Beta", "2 gamma", stats.beta, 2.0, 3.0),
    of("BetaBinomial", "2 gamma, 1 binomial", lambda a, b: stats.betabinom(9, a, b), 2.0, 3.0, total_count=9),
    of("BetaNegativeBinomial", "3 gamma, 1 poisson", lambda a, b, n: stats.betanbinom(n, b, a), 2.0, 12.0, 4.0),
    of("BetaProportion", "2 gamma", lambda m, c: stats.beta(m * c, (1 - m) * c), 0.4, 5.0),
    by("Binomial", "1 binomial", lambda p: dist.Binomial(40, p), lambda p: stats.binom(40, p), 0.3, tails=8),
    of("BinomialLogits", "1 binomial", lambda a: stats.binom(9, expit(a)), -0.5, total_count=9, tails=8),
    of("BinomialProbs", "1 binomial", lambda p: stats.binom(9, p), 0.3, total_count=9, tails=8),
    by(
        "CAR",
        "2 normal",
        lambda r, t: dist.CAR(jnp.zeros(2), r, t, np.array([[0.0, 1.0], [1.0, 0.0]])),
        two(lambda r, t: stats.norm(0, (t * (1 - r**2)) ** -0.5)),
        0.5,
        2.0,
    ),
    by("Categorical", "1 uniform", lambda: dist.Categorical(probs=P), lambda: discrete(*np.asarray(P, float))),
    by("CategoricalLogits", "3 gumbel", lambda: dist.CategoricalLogits(jnp.log(P)), lambda: discrete(0.2, 0.3, 0.5)),
    by("CategoricalProbs", "1 uniform", lambda: dist.CategoricalProbs(P), lambda: discrete(0.2, 0.3, 0.5)),
    of("Cauchy", "1 cauchy", stats.cauchy, 0.5, 2.0, tails=8),
    of("Chi2", "1 gamma", stats.chi2, 3.0, tails=8),
    by(
        "CirculantNormal",
        "4 normal",
        lambda m, v: dist.CirculantNormal(m * jnp.ones(4), jnp.array([v, 0.5, 0.1, 0.5])),
        lambda m, v: [stats.norm(m, np.sqrt(v))] * 4,
        1.0,
        2.0,
    ),
    of("Dagum", "1 uniform", lambda c, a, b: stats.burr(a, c, scale=b), 2.0, 9.0, 1.5, tails=4),
    of("Delta", "no noise", None, 1.5),
    by(
        "Dirichlet",
        "3 gamma",
        lambda a: dist.Dirichlet(jnp.array([1.0, 2.0, a])),
        lambda a: [stats.beta(1, 2 + a), stats.beta(2, 1 + a), stats.beta(a, 3)],
        1.5,
    ),
    by(
        "DirichletMultinomial",
        "3 gamma, 5 uniform",
        lambda a: dist.DirichletMultinomial(jnp.array([1.0, 2.0, a]), 5),
        lambda a: [stats.betabinom(5, b, 3 + a - b) for b in (1, 2, a)],
        1.5,
    ),
    by("DiscreteUniform", "1 randint", lambda: dist.DiscreteUniform(-2, 8), lambda: stats.randint(-2, 9), tails=8),
    of(
        "DoublyTruncatedPowerLaw",
        "1 uniform",
        lambda a, low, high: stats.truncpareto(-a - 1, high / low, scale=low),
        *(-2.5, 1.5, 6.0),
        tails=4,
    ),
    by(
        "EulerMaruyama",
        "4 normal",
        lambda s: dist.EulerMaruyama(jnp.arange(4.0) / 3, walk, dist.Normal(0.0, s)),
        None,
        2.0,
    ),
    by(
        "ExpandedDistribution",
        "2 normal",
        lambda m: dist.Normal(m, 2.0).expand([2]),
        two(lambda m: stats.norm(m, 2)),
        0.5,
    ),
    of("Exponential", "1 exponential", lambda r: stats.expon(scale=1 / r), 2.0, tails=8),
    by(
        "FoldedDistribution",
        "1 normal",
        lambda m, s: dist.FoldedDistribution(dist.Normal(m, s)),
        lambda m, s: stats.foldnorm(m / s, scale=s),
        *(1.0, 2.0),
    ),
    of("Gamma", "1 gamma", lambda a, r: stats.gamma(a, scale=1 / r), 2.0, 3.0, tails=8),
    of("GammaPoisson", "1 gamma, 1 poisson", rates, 2.0, 0.5),
    by(
        "GaussianCopula",
        "2 normal",
        lambda r: dist.GaussianCopula(dist.Exponential(r), jnp.array([[1.0, 0.5], [0.5, 1.0]])),
        two(lambda r: stats.expon(scale=1 / r)),
        2.0,
    ),
    of(
        "GaussianRandomWalk", "3 normal", lambda s: [stats.norm(0, s * np.sqrt(i)) for i in (1, 2, 3)], 2.0, num_steps=3
    ),
    by(
        "GaussianStateSpace",
        "3 normal",
        lambda s: dist.GaussianStateSpace(3, 0.5 * jnp.eye(1), scale_tril=s * jnp.eye(1)),
        lambda s: [stats.norm(0, s), stats.norm(0, s * 1.25**0.5), stats.norm(0, s * 1.3125**0.5)],
        2.0,
    ),
    of("Geometric", "1 uniform", lambda p: stats.geom(p, loc=-1), 0.3),
    of("GeometricLogits", "1 uniform", lambda a: stats.geom(expit(a), loc=-1), -0.5),
    of("GeometricProbs", "1 uniform", lambda p: stats.geom(p, loc=-1), 0.3),
    of("Gompertz", "1 uniform", lambda c, r: stats.gompertz(c, scale=1 / r), 1.5, 2.0, tails=4),
    of("Gumbel", "1 gumbel", stats.gumbel_r, 0.5, 2.0, tails=8),
    of("HalfCauchy", "1 cauchy", lambda s: stats.halfcauchy(scale=s), 2.0),
    of("HalfNormal", "1 normal", lambda s: stats.halfnorm(scale=s), 2.0),
    by(
        "HurdleDistribution",
        "1 uniform, 1 gamma",
        lambda: dist.HurdleDistribution(GAMMA, gate=0.3),
        lambda: Gated(0.3, stats.gamma(2)),
    ),
    of("HurdleGamma", "1 uniform, 1 gamma", lambda a, r: Gated(0.3, stats.gamma(a, scale=1 / r)), 2.0, 3.0),
    by(
        "HurdleLogits",
        "1 uniform, 1 normal",
        lambda: dist.HurdleLogits(LOG_NORMAL, 0.0),
        lambda: Gated(0.5, stats.lognorm(0.5)),
    ),
    of("HurdleLogNormal", "1 uniform, 1 normal", lambda m, s: Gated(0.3, stats.lognorm(s, scale=np.exp(m))), 0.5, 0.4),
    of("HurdleNegativeBinomial2", LOOP, None, 0.3, 2.0, 1.5),
    of("HurdlePoisson", LOOP, None, 0.3, 2.0),
    of("HurdlePoisson", "61 poisson, 1 uniform", lambda g, r: zero_or(g, stats.poisson(r), True), 0.3, 2.0, loops=60),
    by("HurdleProbs", "1 uniform, 1 gamma", lambda: dist.HurdleProbs(GAMMA, 0.3), lambda: Gated(0.3, stats.gamma(2))),
    by("HurdleProbs", LOOP, lambda: dist.HurdleProbs(POISSON, 0.3)),
    by(
        "Independent",
        "2 normal",
        lambda m: dist.Normal(m * jnp.ones(2), 2.0).to_event(1),
        two(lambda m: stats.norm(m, 2)),
        0.5,
    ),
    by("IntervalCensoredDistribution", "1 normal", lambda: dist.IntervalCensoredDistribution(NORMAL, 0, 0), stats.norm),
    of("InverseGamma", "1 gamma", lambda a, r: stats.invgamma(a, scale=r), 9.0, 2.0),
    entry(
        "InverseWishart",
        "2 gamma, 1 normal",
        lambda n: dist.InverseWishart(n, COV),
        lambda x: jnp.diag(x),
        lambda n: [stats.invgamma((n - 1) / 2, scale=c / 2) for c in (2, 1)],
        20.0,
    ),
    entry(
        "InverseWishartCholesky",
        "2 gamma, 1 normal",
        lambda n: dist.InverseWishartCholesky(n, COV),
        lambda x: jnp.diag(x @ x.T),
        lambda n: [stats.invgamma((n - 1) / 2, scale=c / 2) for c in (2, 1)],
        20.0,
    ),
    entry(
        "Kumaraswamy", "1 uniform", lambda b: dist.Kumaraswamy(2.0, b), lambda x: x**2, lambda b: stats.beta(1, b), 3.0
    ),
    of("Laplace", "1 laplace", stats.laplace, 0.5, 2.0, tails=8),
    by("LeftCensoredDistribution", "1 normal", lambda: dist.LeftCensoredDistribution(NORMAL, 0), stats.norm),
    by(
        "LeftTruncatedDistribution",
        "1 uniform",
        lambda low: dist.LeftTruncatedDistribution(NORMAL, low),
        lambda low: stats.truncnorm(low, np.inf),
        -0.5,
        tails=4,
    ),
    by(
        "LeftTruncatedGamma",
        "1 uniform",
        lambda low: dist.LeftTruncatedGamma(GAMMA, low),
        lambda low: Truncated(stats.gamma(2), low, np.inf),
        0.5,
        tails=4,
    ),
    of("Levy", "1 uniform", stats.levy, 0.5, 2.0, tails=4),
    entry(
        "LKJ",
        "4 gamma, 3 normal",
        lambda c: dist.LKJ(3, c),
        lambda x: x[1:, 0],
        two(lambda c: stats.beta(c + 0.5, c + 0.5, -1, 2)),
        2.0,
    ),
    entry(
        "LKJ",
        "6 gamma",
        lambda c: dist.LKJ(3, c, "cvine"),
        lambda x: x[2, :2],
        two(lambda c: stats.beta(c + 0.5, c + 0.5, -1, 2)),
        2.0,
    ),
    entry(
        "LKJCholesky",
        "4 gamma, 3 normal",
        lambda c: dist.LKJCholesky(3, c),
        lambda x: x[1:, 0],
        two(lambda c: stats.beta(c + 0.5, c + 0.5, -1, 2)),
        2.0,
    ),
    of("Logistic", "1 logistic", stats.logistic, 0.5, 2.0, tails=8),
    of("LogNormal", "1 normal", lambda m, s: stats.lognorm(s, scale=np.exp(m)), 0.5, 0.4, tails=8),
    of("LogUniform", "1 uniform", stats.loguniform, 0.5, 3.0, tails=8),
    of("LowerTruncatedPowerLaw", "1 uniform", lambda a, low: stats.pareto(-a - 1, scale=low), -10.5, 2.0, tails=4),
    by(
        "LowRankMultivariateNormal",
        "3 normal",
        lambda m: dist.LowRankMultivariateNormal(m * jnp.ones(2), jnp.array([[1.0], [2.0]]), jnp.ones(2)),
        lambda m: [stats.norm(m, np.sqrt(2)), stats.norm(m, np.sqrt(5))],
        0.5,
    ),
    by("MaskedDistribution", "1 normal", lambda m: dist.Normal(m, 2.0).mask(False), lambda m: stats.norm(m, 2), 0.5),
    by(
        "MatrixNormal",
        "4 normal",
        lambda m: dist.MatrixNormal(m * jnp.ones((2, 2)), 2.0 * jnp.eye(2), jnp.array([[3.0, 0.0], [0.0, 1.0]])),
        lambda m: [stats.norm(m, 6), stats.norm(m, 2)] * 2,
        0.5,
    ),
    by(
        "Mixture",
        "2 normal, 1 uniform",
        lambda s: dist.Mixture(HALVES, [NORMAL, dist.Normal(3.0, s)]),
        lambda s: MIXED,
        0.5,
    ),
    by(
        "MixtureGeneral",
        "2 normal, 1 uniform",
        lambda s: dist.MixtureGeneral(HALVES, [NORMAL, dist.Normal(3.0, s)]),
        lambda s: MIXED,
        0.5,
    ),
    by(
        "MixtureSameFamily",
        "2 normal, 1 uniform",
        lambda s: dist.MixtureSameFamily(HALVES, dist.Normal(jnp.array([0.0, 3.0]), jnp.array([1.0, s]))),
        lambda s: MIXED,
        0.5,
    ),
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
    by(
        "MultivariateNormal",
        "2 normal",
        lambda m: dist.MultivariateNormal(m * jnp.ones(2), COV),
        lambda m: [stats.norm(m, np.sqrt(2)), stats.norm(m)],
        0.5,
    ),
    by(
        "MultivariateStudentT",
        "2 normal, 1 gamma",
        lambda n: dist.MultivariateStudentT(n, jnp.ones(2), jnp.diag(jnp.array([1.0, 3.0]))),
        lambda n: [stats.t(n, 1, 1), stats.t(n, 1, 3)],
        15.0,
    ),
    of("NegativeBinomial", "1 gamma, 1 poisson", lambda n, p: stats.nbinom(n, 1 - p), 3.0, 0.4),
    of("NegativeBinomial2", "1 gamma, 1 poisson", lambda m, c: stats.nbinom(c, c / (c + m)), 3.0, 2.5),
    of("NegativeBinomialLogits", "1 gamma, 1 poisson", lambda n, a: stats.nbinom(n, expit(-a)), 3.0, -0.5),
    of("NegativeBinomialProbs", "1 gamma, 1 poisson", lambda n, p: stats.nbinom(n, 1 - p), 3.0, 0.4),
    of("Normal", "1 normal", stats.norm, 0.5, 2.0, tails=8),
    of("OrderedLogistic", "1 uniform", ordered, 0.3, cutpoints=jnp.array([-1.0, 1.0])),
    of("Pareto", "1 exponential", lambda s, a: stats.pareto(a, scale=s), 2.0, 9.5, tails=8),
    of("Poisson", "1 poisson", stats.poisson, 3.7, tails=8),
    by("ProjectedNormal", "2 normal", lambda a: dist.ProjectedNormal(jnp.array([a, 0.5])), None, 1.0),
    entry(
        "RelaxedBernoulli",
        "1 logistic",
        lambda p: dist.RelaxedBernoulli(2.0, p),
        lambda x: jnp.log(x / (1 - x)),
        lambda p: stats.logistic(np.log(p / (1 - p)) / 2, 0.5),
        0.3,
    ),
    entry(
        "RelaxedBernoulliLogits",
        "1 logistic",
        lambda a: dist.RelaxedBernoulliLogits(2.0, a),
        lambda x: jnp.log(x / (1 - x)),
        lambda a: stats.logistic(a / 2, 0.5),
        -0.5,
    ),
    by("RightCensoredDistribution", "1 normal", lambda: dist.RightCensoredDistribution(NORMAL, 0), stats.norm),
    by(
        "RightTruncatedDistribution",
        "1 uniform",
        lambda high: dist.RightTruncatedDistribution(NORMAL, high),
        lambda high: stats.truncnorm(-np.inf, high),
        0.5,
        tails=4,
    ),
    by(
        "RightTruncatedGamma",
        "1 uniform",
        lambda high: dist.RightTruncatedGamma(GAMMA, high),
        lambda high: Truncated(stats.gamma(2), 0, high),
        2.5,
        tails=4,
    ),
    by("SineBivariateVonMises", LOOP, bivariate),
    by("SineBivariateVonMises", "120 normal, 60 uniform, 1 von Mises", bivariate, loops=60),
    by(
        "SineSkewed",
        "2 von Mises, 1 uniform",
        lambda a, c: dist.SineSkewed(dist.VonMises(jnp.array([0.5, a]), c).to_event(1), jnp.array([0.3, 0.4])),
        None,
        -0.5,
        2.0,
    ),
    of("SoftLaplace", "1 uniform", stats.hypsecant, 0.5, 2.0, tails=4),
    of("StudentT", "1 normal, 1 gamma", stats.t, 15.0, 0.5, 2.0),
    by(
        "TransformedDistribution",
        "1 normal",
        lambda a: dist.TransformedDistribution(NORMAL, transforms.AffineTransform(a, 2.0)),
        lambda a: stats.norm(a, 2),
        0.5,
        tails=8,
    ),
    of(
        "TruncatedCauchy",
        "1 uniform",
        lambda m, s: Truncated(stats.cauchy(m, s), -3, 5),
        0.5,
        2.0,
        low=-3.0,
        high=5.0,
        tails=4,
    ),
    by(
        "TruncatedDistribution",
        "1 uniform",
        lambda s: dist.TruncatedDistribution(dist.Laplace(0.5, s), -2.0, 3.0),
        lambda s: Truncated(stats.laplace(0.5, s), -2, 3),
        1.5,
        tails=4,
    ),
    of(
        "TruncatedGamma",
        "1 uniform",
        lambda a, r: Truncated(stats.gamma(a, scale=1 / r), 0.5, 3),
        2.0,
        1.5,
        low=0.5,
        high=3.0,
        tails=4,
    ),
    of(
        "TruncatedNormal",
        "1 uniform",
        lambda m, s: Truncated(stats.norm(m, s), -1, 4),
        0.5,
        2.0,
        low=-1.0,
        high=4.0,
        tails=4,
    ),
    by("TruncatedPolyaGamma", "8 gamma", lambda: dist.TruncatedPolyaGamma()),
    by(
        "TwoSidedTruncatedDistribution",
        "1 uniform",
        lambda a, b: dist.TwoSidedTruncatedDistribution(dist.StudentT(4.0), a, b),
        lambda a, b: Truncated(stats.t(4), a, b),
        -1.0,
        2.0,
        tails=4,
    ),
    by(
        "TwoSidedTruncatedGamma",
        "1 uniform",
        lambda a, b: dist.TwoSidedTruncatedGamma(GAMMA, a, b),
        lambda a, b: Truncated(stats.gamma(2), a, b),
        0.5,
        3.0,
        tails=4,
    ),
    of("Uniform", "1 uniform", lambda a, b: stats.uniform(a, b - a), -1.0, 3.0, tails=8),
    of("Unit", "no noise", None, 1.5),
    of("VonMises", "1 von Mises", lambda c: stats.vonmises(c), 2.0, loc=0.0, tails=8),
    of("Weibull", "1 weibull", lambda s, c: stats.weibull_min(c, scale=s), 2.0, 1.5, tails=8),
    entry(
        "Wishart",
        "2 gamma, 1 normal",
        lambda n: dist.Wishart(n, COV),
        jnp.diag,
        lambda n: [stats.chi2(n, scale=c) for c in (2, 1)],
        4.0,
    ),
    entry(
        "WishartCholesky",
        "2 gamma, 1 normal",
        lambda n: dist.WishartCholesky(n, COV),
        lambda x: jnp.diag(x @ x.T),
        lambda n: [stats.chi2(n, scale=c) for c in (2, 1)],
        4.0,
    ),
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
    of("ZeroSumNormal", "2 normal", lambda s: [stats.norm(0, s * np.sqrt(2 / 3))] * 3, 2.0, event_shape=(3,)),
]
"""`(name, row)`; a distribution whose sampler differs with its arguments has several."""

NO_SAMPLER = {
    "ImproperUniform": (lambda: dist.ImproperUniform(constraints.real, (), ()), NotImplementedError),
    "GaussianCopulaBeta": (lambda: dist.GaussianCopulaBeta(jnp.ones(2), jnp.ones(2), jnp.eye(2)), ImportError),
}
"""Distributions that cannot draw: an improper one, and one that needs tensorflow_probability, not a dependency here."""

OTHERS = {"Distribution", "biject_to", "constraints", "kl_divergence", "transforms"}
"""What else `numpyro.distributions` exports."""
