"""The table of samplers, NumPyro's part: continuous numbers, and what the others are made with; see `sampler_rows`."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from sampler_rows import Row, Truncated
from scipy import stats

LOOP = r"draws random numbers inside a `while` loop \(.*\): how many is not known beforehand"
"""Of samplers that reject; their rows with `most_loops` follow."""

GAMMA, NORMAL = dist.Gamma(2.0, 1.0), dist.Normal(0.0, 1.0)


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


def asymmetric(loc, scale, quantile):
    kappa = np.sqrt(quantile / (1 - quantile))
    return stats.laplace_asymmetric(kappa, loc, scale * kappa / quantile)


NUMBERS = [
    of("AsymmetricLaplace", "2 exponential", lambda m, s, a: stats.laplace_asymmetric(a, m, s), 0.5, 2.0, 1.3),
    of("AsymmetricLaplaceQuantile", "2 exponential", asymmetric, 0.5, 2.0, 0.3),
    of("Beta", "2 gamma", stats.beta, 2.0, 3.0),
    of("BetaProportion", "2 gamma", lambda m, c: stats.beta(m * c, (1 - m) * c), 0.4, 5.0),
    of("Cauchy", "1 cauchy", stats.cauchy, 0.5, 2.0, tails=8),
    of("Chi2", "1 gamma", stats.chi2, 3.0, tails=8),
    of("Dagum", "1 uniform", lambda c, a, b: stats.burr(a, c, scale=b), 2.0, 9.0, 1.5, tails=4),
    of(
        "DoublyTruncatedPowerLaw",
        "1 uniform",
        lambda a, low, high: stats.truncpareto(-a - 1, high / low, scale=low),
        *(-2.5, 1.5, 6.0),
        tails=4,
    ),
    of("Exponential", "1 exponential", lambda r: stats.expon(scale=1 / r), 2.0, tails=8),
    of("Gamma", "1 gamma", lambda a, r: stats.gamma(a, scale=1 / r), 2.0, 3.0, tails=8),
    of("Gompertz", "1 uniform", lambda c, r: stats.gompertz(c, scale=1 / r), 1.5, 2.0, tails=4),
    of("Gumbel", "1 gumbel", stats.gumbel_r, 0.5, 2.0, tails=8),
    of("HalfCauchy", "1 cauchy", lambda s: stats.halfcauchy(scale=s), 2.0),
    of("HalfNormal", "1 normal", lambda s: stats.halfnorm(scale=s), 2.0),
    of("InverseGamma", "1 gamma", lambda a, r: stats.invgamma(a, scale=r), 9.0, 2.0),
    entry(
        "Kumaraswamy", "1 uniform", lambda b: dist.Kumaraswamy(2.0, b), lambda x: x**2, lambda b: stats.beta(1, b), 3.0
    ),
    of("Laplace", "1 laplace", stats.laplace, 0.5, 2.0, tails=8),
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
    of("Logistic", "1 logistic", stats.logistic, 0.5, 2.0, tails=8),
    of("LogNormal", "1 normal", lambda m, s: stats.lognorm(s, scale=np.exp(m)), 0.5, 0.4, tails=8),
    of("LogUniform", "1 uniform", stats.loguniform, 0.5, 3.0, tails=8),
    of("LowerTruncatedPowerLaw", "1 uniform", lambda a, low: stats.pareto(-a - 1, scale=low), -10.5, 2.0, tails=4),
    of("Normal", "1 normal", stats.norm, 0.5, 2.0, tails=8),
    of("Pareto", "1 exponential", lambda s, a: stats.pareto(a, scale=s), 2.0, 9.5, tails=8),
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
    of("SoftLaplace", "1 uniform", stats.hypsecant, 0.5, 2.0, tails=4),
    of("StudentT", "1 normal, 1 gamma", stats.t, 15.0, 0.5, 2.0),
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
        lambda a, b: dist.TwoSidedTruncatedDistribution(dist.Logistic(), a, b),
        lambda a, b: Truncated(stats.logistic(), a, b),
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
    by("VonMises", "1 von Mises", lambda c: dist.VonMises(0.0, c), stats.vonmises, 2.0, tails=4),
    of("Weibull", "1 weibull", lambda s, c: stats.weibull_min(c, scale=s), 2.0, 1.5, tails=8),
]
"""`(name, row)`; a distribution whose sampler differs with its arguments has several."""

NO_SAMPLER = {
    "ImproperUniform": (lambda: dist.ImproperUniform(constraints.real, (), ()), NotImplementedError),
    "GaussianCopulaBeta": (lambda: dist.GaussianCopulaBeta(jnp.ones(2), jnp.ones(2), jnp.eye(2)), ImportError),
}
"""Distributions that cannot draw: an improper one, and one that needs tensorflow_probability, not a dependency here."""

OTHERS = {"Distribution", "biject_to", "constraints", "kl_divergence", "transforms"}
"""What else `numpyro.distributions` exports."""
