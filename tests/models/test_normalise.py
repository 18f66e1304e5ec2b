"""Maps between priors and standard normals, against SciPy's distribution functions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from jax import random
from numpyro.distributions import transforms

from numpyro_kme.models import normalise, prior_maps
from numpyro_kme.models.normalise import from_normal, to_normal

pytestmark = pytest.mark.x64

Z = np.array([-6.0, -4.0, -2.0, -0.5, 0.0, 0.5, 2.0, 4.0, 6.0])
TWO = dist.Categorical(probs=jnp.array([0.3, 0.7]))


class Triangle(dist.Distribution):
    """A user's own distribution with nothing but `x^2`, its distribution function on the unit interval."""

    support = dist.constraints.unit_interval

    def sample(self, key, sample_shape=()):
        return jnp.sqrt(random.uniform(key, sample_shape))

    def cdf(self, value):
        return value**2


class NormalMixture:
    """Distribution function of .3 N(-2, 1) + .7 N(3, 1/4) by SciPy."""

    parts = ((0.3, st.norm(-2, 1)), (0.7, st.norm(3, 0.5)))

    def __getattr__(self, name):
        return lambda x: sum(weight * getattr(part, name)(x) for weight, part in self.parts)


UNIVARIATE = {
    "Normal": (dist.Normal(1.0, 2.0), st.norm(1, 2)),
    "LogNormal": (dist.LogNormal(1.0, 0.5), st.lognorm(0.5, scale=np.e)),
    "Uniform": (dist.Uniform(-5.0, 2.0), st.uniform(-5, 7)),
    "LogUniform": (dist.LogUniform(0.1, 10.0), st.loguniform(0.1, 10)),
    "Exponential": (dist.Exponential(2.0), st.expon(scale=0.5)),
    "Gamma": (dist.Gamma(2.0, 0.5), st.gamma(2, scale=2)),
    "Gamma, small shape": (dist.Gamma(0.3, 0.5), st.gamma(0.3, scale=2)),
    "InverseGamma": (dist.InverseGamma(3.0, 2.0), st.invgamma(3, scale=2)),
    "Beta": (dist.Beta(2.0, 5.0), st.beta(2, 5)),
    "StudentT": (dist.StudentT(3.0, 1.0, 2.0), st.t(3, 1, 2)),
    "Cauchy": (dist.Cauchy(1.0, 2.0), st.cauchy(1, 2)),
    "HalfNormal": (dist.HalfNormal(2.0), st.halfnorm(scale=2)),
    "HalfCauchy": (dist.HalfCauchy(2.0), st.halfcauchy(scale=2)),
    "Laplace": (dist.Laplace(1.0, 2.0), st.laplace(1, 2)),
    "Logistic": (dist.Logistic(1.0, 2.0), st.logistic(1, 2)),
    "Gumbel": (dist.Gumbel(1.0, 2.0), st.gumbel_r(1, 2)),
    "Weibull": (dist.Weibull(2.0, 1.5), st.weibull_min(1.5, scale=2)),
    "Gompertz": (dist.Gompertz(2.0, 0.5), st.gompertz(2.0, scale=2.0)),
    "Kumaraswamy": (dist.Kumaraswamy(1.0, 3.0), st.beta(1, 3)),
    "Pareto": (dist.Pareto(2.0, 3.0), st.pareto(3, scale=2)),
    "truncated": (dist.TruncatedNormal(1.0, 2.0, low=0.0, high=4.0), st.truncnorm(-0.5, 1.5, 1, 2)),
    "truncated left": (dist.TruncatedNormal(1.0, 2.0, low=5.0), st.truncnorm(2, np.inf, 1, 2)),
    "truncated right": (dist.TruncatedNormal(1.0, 2.0, high=-3.0), st.truncnorm(-np.inf, -2, 1, 2)),
    "affine": (
        dist.TransformedDistribution(dist.Exponential(1.0), transforms.AffineTransform(3.0, 2.0)),
        st.expon(3, 2),
    ),
    "mixture": (
        dist.MixtureSameFamily(TWO, dist.Normal(jnp.array([-2.0, 3.0]), jnp.array([1.0, 0.5]))),
        NormalMixture(),
    ),
    "own": (Triangle(), st.beta(2, 1)),
}
FALLING = ("InverseGamma",)


def reference(scipy, x, name):
    """`z` by SciPy, from the smaller tail."""
    lower, upper = scipy.cdf(x), scipy.sf(x)
    if name in FALLING:
        lower, upper = upper, lower
    return np.where(lower < upper, st.norm.ppf(lower), -st.norm.ppf(upper))


@jax.jit
def there_and_back(fn, z):
    """The values, and the coordinates of these with their slopes."""

    def one(z):
        x = from_normal(fn, z)
        return x, *jax.jvp(lambda x: to_normal(fn, x), (x,), (jnp.ones_like(x),))

    return jax.vmap(one)(z)


forward, inverse = jax.jit(to_normal), jax.jit(from_normal)


OTHERS = "Gamma", "LogUniform", "affine", "truncated right"
"""As the gamma of a small shape, and as other transformed priors."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in OTHERS else ()) for n in UNIVARIATE])
def test_univariate_priors_against_scipy(name):
    fn, scipy = UNIVARIATE[name]
    normalise.check(fn)
    x, z, slope = (np.asarray(part) for part in there_and_back(fn, Z))
    np.testing.assert_allclose(z, Z, atol=1e-6)
    np.testing.assert_allclose(z, reference(scipy, x, name), atol=1e-6)
    sign = -1.0 if name in FALLING else 1.0
    np.testing.assert_allclose(slope, sign * scipy.pdf(x) / st.norm.pdf(Z), rtol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [dist.Cauchy(1.0, 2.0), pytest.param(dist.Laplace(0.0, 1.0), marks=pytest.mark.slow), dist.HalfNormal(2.0)],
    ids=["by bisection", "at a kink", "in two halves"],
)
def test_derivatives(fn):
    """First and second derivatives of either map, in the value and in the parameters, against differences."""
    leaves, tree = jax.tree.flatten(fn)
    z = jnp.array([-1.3, 0.0, 0.7])
    x = jax.jit(jax.vmap(from_normal, (None, 0)))(fn, z)

    def sums_and_slopes(scale):
        """Sums, so that one gradient covers all points."""
        scaled = jax.tree.unflatten(tree, [leaf * scale for leaf in leaves])
        forward, slope = jax.value_and_grad(lambda x: jnp.sum(jax.vmap(lambda x: to_normal(scaled, x))(x)))(x)
        inverse, inverse_slope = jax.value_and_grad(lambda z: jnp.sum(jax.vmap(lambda z: from_normal(scaled, z))(z)))(z)
        return jnp.concatenate([slope, inverse_slope, jnp.stack([forward, inverse])])

    first = jax.jit(lambda scale: jax.jvp(sums_and_slopes, (scale,), (jnp.ones_like(scale),)))
    h = 1e-4
    (at, found), (ahead, _), (behind, _) = (jax.tree.map(np.asarray, first(s)) for s in (1.0, 1 + h, 1 - h))
    np.testing.assert_allclose(found, (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-6)
    slope, inverse_slope = at[:3], at[3:6]
    np.testing.assert_allclose(slope * inverse_slope, 1.0, rtol=1e-9)


@pytest.mark.parametrize(
    ("fn", "scipy"),
    [(dist.Beta(5.0, 1.0), st.beta(5, 1)), (dist.Beta(1.0, 5.0), st.beta(1, 5)), UNIVARIATE["StudentT"]],
    ids=["mean below median", "mean above median", "a centre known by its density"],
)
def test_both_tails_near_the_centre(fn, scipy):
    middle = scipy.median()
    x = np.concatenate([scipy.ppf(np.linspace(0.35, 0.65, 31)), middle + np.array([-1e-9, 0.0, 1e-9])])
    lower, upper = jax.jit(normalise.tails)(fn, x)
    np.testing.assert_allclose(lower, scipy.cdf(x), rtol=1e-9)
    np.testing.assert_allclose(upper, scipy.sf(x), rtol=1e-9)


@pytest.mark.parametrize("name", ["Laplace", "Logistic"])
def test_exponential_tails_are_known_where_their_probability_is_below_all_numbers(name):
    """Their logarithm is not: as far out the log density is that of the tail, but for the scale."""
    fn, _ = UNIVARIATE[name]
    for z in (-40.0, 40.0):
        x = inverse(fn, z)
        assert np.sign(x) == np.sign(z)
        np.testing.assert_allclose(fn.log_prob(x) + np.log(fn.scale), st.norm.logcdf(-40.0), rtol=1e-9)


def test_far_tails_saturate_without_nan():
    slope = jax.jit(jax.value_and_grad(lambda x: to_normal(dist.Uniform(0.0, 1.0), x)))
    for value in (0.0, 1.0, -3.0, 4.0):
        z, dz = slope(value)
        assert np.isfinite(z) and abs(z) > 37 and np.isfinite(dz)


COVARIANCE = np.array([[1.0, 0.5], [0.5, 2.0]])
MEANS = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])


@pytest.mark.parametrize(
    ("fn", "loc", "covariance"),
    [
        (dist.MultivariateNormal(MEANS[0], COVARIANCE), MEANS[0], COVARIANCE),
        (dist.MultivariateNormal(MEANS, COVARIANCE), MEANS, COVARIANCE),
        (dist.MultivariateNormal(MEANS[0], COVARIANCE).expand([3]), MEANS[0], COVARIANCE),
        (dist.MultivariateNormal(MEANS[:, None], COVARIANCE).expand([3, 4]), MEANS[:, None], COVARIANCE),
        (dist.MultivariateNormal(MEANS, COVARIANCE).to_event(1).mask(jnp.array(True)), MEANS, COVARIANCE),
        (
            dist.LowRankMultivariateNormal(jnp.zeros(3), jnp.array([[1.0], [0.5], [0.2]]), jnp.array([1.0, 2.0, 3.0])),
            np.zeros(3),
            np.outer([1.0, 0.5, 0.2], [1.0, 0.5, 0.2]) + np.diag([1.0, 2.0, 3.0]),
        ),
    ],
    ids=["one", "batch", "expanded", "expanded inside", "wrapped", "low rank"],
)
def test_multivariate_normals_by_their_cholesky_factor(fn, loc, covariance):
    normalise.check(fn)
    value = loc + np.random.default_rng(0).normal(size=fn.shape())
    expected = np.linalg.solve(np.linalg.cholesky(covariance), (value - loc)[..., None])[..., 0]
    np.testing.assert_allclose(forward(fn, value), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(inverse(fn, expected), value, rtol=1e-12)


def test_wrapped_and_expanded_priors_are_mapped_entry_by_entry():
    base = dist.Exponential(jnp.array([1.0, 2.0, 3.0]))
    value = np.arange(1.0, 13.0).reshape(4, 3) / 5.0
    wrapped = base.expand([4, 3]).mask(jnp.ones((4, 3), bool)).to_event(1)
    expected = st.norm.ppf(st.expon.cdf(value * np.array([1.0, 2.0, 3.0])))
    np.testing.assert_allclose(forward(wrapped, value), expected, rtol=1e-12)
    np.testing.assert_allclose(inverse(wrapped, expected), value, rtol=1e-12)


def test_a_batch_of_mixtures():
    fn = dist.MixtureSameFamily(TWO, dist.Normal(jnp.stack([jnp.array([-2.0, 3.0])] * 3), jnp.array([[1.0, 0.5]])))
    value = jnp.array([-1.0, 0.5, 3.2])
    expected = reference(NormalMixture(), np.asarray(value), "mixture")
    np.testing.assert_allclose(forward(fn, value), expected, rtol=1e-9)


def test_a_transformed_multivariate_prior():
    fn = dist.TransformedDistribution(dist.MultivariateNormal(MEANS[0], COVARIANCE), transforms.ExpTransform())
    z = np.array([0.3, -1.2])
    value = inverse(fn, z)
    np.testing.assert_allclose(value, np.exp(MEANS[0] + np.linalg.cholesky(COVARIANCE) @ z), rtol=1e-12)
    np.testing.assert_allclose(forward(fn, value), z, rtol=1e-12)


@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        (dist.Dirichlet(jnp.ones(3)), "no map between Dirichlet and normals is known"),
        (dist.VonMises(0.0, 1.0), "no map between VonMises"),
        (dist.FoldedDistribution(dist.Normal(0.0, 1.0)), "folded"),
        (dist.LKJCholesky(3), "no map between LKJCholesky"),
        (dist.ZeroSumNormal(1.0, (3,)), "the entries of a ZeroSumNormal are tied"),
    ],
)
def test_priors_without_a_map_say_so(fn, sentence):
    with pytest.raises(normalise.NoNormalMap, match=sentence):
        normalise.check(fn)


def density(mixture, z):
    return sum(weight * st.multivariate_normal(mean, covariance).pdf(z) for weight, mean, covariance in zip(*mixture))


MIXTURES = {
    "univariate": dist.MixtureSameFamily(TWO, dist.Normal(jnp.array([-2.0, 3.0]), jnp.array([1.0, 0.5]))),
    "general": dist.MixtureGeneral(TWO, [dist.Normal(-2.0, 1.0), dist.Normal(3.0, 0.5)]),
    "unnormalised": dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.array([3.0, 7.0]), validate_args=False),
        dist.Normal(jnp.array([-2.0, 3.0]), jnp.array([1.0, 0.5])),
    ),
    "multivariate": dist.MixtureSameFamily(TWO, dist.MultivariateNormal(MEANS[:2], COVARIANCE)),
    "independent": dist.MixtureSameFamily(TWO, dist.Normal(MEANS[:2], 0.5).to_event(1)),
    "general multivariate": dist.MixtureGeneral(
        TWO, [dist.MultivariateNormal(MEANS[0], COVARIANCE), dist.MultivariateNormal(MEANS[1], np.eye(2))]
    ),
    "expanded": dist.MixtureSameFamily(TWO, dist.Normal(jnp.array([-2.0, 3.0]), 1.0)).expand([2]).to_event(1),
    "transformed": dist.TransformedDistribution(
        dist.MixtureSameFamily(TWO, dist.Normal(jnp.array([-2.0, 3.0]), 1.0)), transforms.ExpTransform()
    ),
}


@pytest.mark.parametrize("name", list(MIXTURES))
def test_mixtures_of_normals_keep_their_density(name):
    fn = MIXTURES[name]
    with jax.numpy_rank_promotion("allow"):  # NumPyro's mixtures
        value = fn.sample(random.key(1))
        expected = float(fn.log_prob(value))
    affine, parts = prior_maps.read(fn)
    mixture = prior_maps.product(parts)
    z = np.ravel(forward(affine, value))
    jacobian = jax.jit(jax.jacfwd(to_normal, argnums=1))(affine, value).reshape(z.size, z.size)
    found = np.log(density(mixture, z)) + np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    mean = mixture.weights @ mixture.means
    second = np.einsum(
        "k,kde->de", mixture.weights, mixture.covariances + np.einsum("kd,ke->kde", *[mixture.means] * 2)
    )
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(second, np.eye(len(z)), atol=1e-12)
    assert len(mixture.weights) == (4 if name == "expanded" else 2)


@pytest.mark.parametrize(
    "fn",
    [
        dist.Normal(0.0, 1.0),
        dist.MixtureSameFamily(TWO, dist.Gamma(jnp.array([1.0, 2.0]), 1.0)),
        dist.MixtureSameFamily(TWO, dist.Dirichlet(jnp.ones((2, 3)))),
        dist.MixtureGeneral(TWO, [dist.Normal(0.0, 1.0), dist.Cauchy(0.0, 1.0)]),
        dist.FoldedDistribution(MIXTURES["univariate"]),
    ],
)
def test_other_priors_are_no_mixtures_of_normals(fn):
    assert prior_maps.read(fn) is None


def test_single_precision():
    with jax.enable_x64(False):
        z = np.array([-4.5, -2.0, 0.0, 2.0, 4.5], np.float32)
        for fn in (dist.Gamma(2.0, 0.5), dist.HalfNormal(1.0)):
            x, back, slope = there_and_back(fn, z)
            assert x.dtype == back.dtype == np.float32
            np.testing.assert_allclose(back, z, atol=1e-4, err_msg=str(fn))
            assert np.all(np.isfinite(slope) & (np.asarray(slope) > 0))
