"""The table of samplers, NumPyro's arrays, and distributions made of others."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import transforms
from numpyro_rows import LOOP, NORMAL, by, entry, of
from sampler_rows import Mixture
from scipy import stats

COV = jnp.array([[2.0, 0.5], [0.5, 1.0]])
HALVES = dist.Categorical(probs=jnp.array([0.4, 0.6]))
MIXED = Mixture([0.4, 0.6], [stats.norm(0, 1), stats.norm(3, 0.5)])


def two(law):
    return lambda *at: [law(*at)] * 2


def walk(t, state):
    return -0.5 * state, 1.0 + 0.1 * state**2


def bivariate():
    return dist.SineBivariateVonMises(0.3, -0.2, 2.0, 1.5, 1.0)


ARRAYS = [
    by(
        "CAR",
        "2 normal",
        lambda r, t: dist.CAR(jnp.zeros(2), r, t, np.array([[0.0, 1.0], [1.0, 0.0]])),
        two(lambda r, t: stats.norm(0, (t * (1 - r**2)) ** -0.5)),
        0.5,
        2.0,
    ),
    by(
        "CirculantNormal",
        "4 normal",
        lambda m, v: dist.CirculantNormal(m * jnp.ones(4), jnp.array([v, 0.5, 0.1, 0.5])),
        lambda m, v: [stats.norm(m, np.sqrt(v))] * 4,
        1.0,
        2.0,
    ),
    of("Delta", "no noise", None, 1.5),
    by(
        "Dirichlet",
        "3 gamma",
        lambda a: dist.Dirichlet(jnp.array([1.0, 2.0, a])),
        lambda a: [stats.beta(1, 2 + a), stats.beta(2, 1 + a), stats.beta(a, 3)],
        1.5,
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
    by(
        "FoldedDistribution",
        "1 normal",
        lambda m, s: dist.FoldedDistribution(dist.Normal(m, s)),
        lambda m, s: stats.foldnorm(m / s, scale=s),
        *(1.0, 2.0),
    ),
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
    by(
        "Independent",
        "2 normal",
        lambda m: dist.Normal(m * jnp.ones(2), 2.0).to_event(1),
        two(lambda m: stats.norm(m, 2)),
        0.5,
    ),
    by("IntervalCensoredDistribution", "1 normal", lambda: dist.IntervalCensoredDistribution(NORMAL, 0, 0), stats.norm),
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
    by("LeftCensoredDistribution", "1 normal", lambda: dist.LeftCensoredDistribution(NORMAL, 0), stats.norm),
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
    by("ProjectedNormal", "2 normal", lambda a: dist.ProjectedNormal(jnp.array([a, 0.5])), None, 1.0),
    by("RightCensoredDistribution", "1 normal", lambda: dist.RightCensoredDistribution(NORMAL, 0), stats.norm),
    by("SineBivariateVonMises", LOOP, bivariate),
    by("SineBivariateVonMises", "60 normal, 30 uniform, 1 von Mises", bivariate, loops=30),
    by(
        "SineSkewed",
        "2 von Mises, 1 uniform",
        lambda a, c: dist.SineSkewed(dist.VonMises(jnp.array([0.5, a]), c).to_event(1), jnp.array([0.3, 0.4])),
        None,
        -0.5,
        2.0,
    ),
    by(
        "TransformedDistribution",
        "1 normal",
        lambda a: dist.TransformedDistribution(NORMAL, transforms.AffineTransform(a, 2.0)),
        lambda a: stats.norm(a, 2),
        0.5,
        tails=8,
    ),
    of("Unit", "no noise", None, 1.5),
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
    of("ZeroSumNormal", "2 normal", lambda s: [stats.norm(0, s * np.sqrt(2 / 3))] * 3, 2.0, event_shape=(3,)),
]
