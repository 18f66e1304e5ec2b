"""Coordinates: priors against SciPy, round trips, what is recognised, mixtures, dependence, and what is only about normal."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from jax import random
from numpyro.distributions import transforms

from numpyro_kme import _normalise
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.problem import Problem
from numpyro_kme.simulator import Simulator

Z = np.array([-6.0, -4.0, -2.0, -0.5, 0.0, 0.5, 2.0, 4.0, 6.0])

CORRELATION = np.array([[1.0, 0.5], [0.5, 2.0]])
TWO = dist.Categorical(probs=jnp.array([0.3, 0.7]))
MIXTURE = dist.MixtureSameFamily(TWO, dist.Normal(jnp.array([-2.0, 3.0]), jnp.array([1.0, 0.5])))


class Triangle(dist.Distribution):
    """A user's own distribution that has nothing but a distribution function: cdf x^2 on (0, 1)."""

    support = dist.constraints.unit_interval

    def sample(self, key, sample_shape=()):
        return jnp.sqrt(random.uniform(key, sample_shape))

    def cdf(self, value):
        return value**2

    def log_prob(self, value):
        return jnp.log(2.0 * value)


UNIVARIATE = {
    # name: (NumPyro, SciPy, +1 if z rises with the value)
    "Normal": (dist.Normal(1.0, 2.0), st.norm(1, 2), 1),
    "LogNormal": (dist.LogNormal(1.0, 0.5), st.lognorm(0.5, scale=np.e), 1),
    "Uniform": (dist.Uniform(-5.0, 2.0), st.uniform(-5, 7), 1),
    "LogUniform": (dist.LogUniform(0.1, 10.0), st.loguniform(0.1, 10), 1),
    "Exponential": (dist.Exponential(2.0), st.expon(scale=0.5), 1),
    "Gamma": (dist.Gamma(2.0, 0.5), st.gamma(2, scale=2), 1),
    "Gamma spike": (dist.Gamma(0.3, 0.5), st.gamma(0.3, scale=2), 1),
    "Chi2": (dist.Chi2(3.0), st.chi2(3), 1),
    "InverseGamma": (dist.InverseGamma(3.0, 2.0), st.invgamma(3, scale=2), -1),
    "Beta": (dist.Beta(2.0, 5.0), st.beta(2, 5), 1),
    "StudentT": (dist.StudentT(3.0, 1.0, 2.0), st.t(3, 1, 2), 1),
    "Cauchy": (dist.Cauchy(1.0, 2.0), st.cauchy(1, 2), 1),
    "HalfNormal": (dist.HalfNormal(2.0), st.halfnorm(scale=2), 1),
    "HalfCauchy": (dist.HalfCauchy(2.0), st.halfcauchy(scale=2), 1),
    "Laplace": (dist.Laplace(1.0, 2.0), st.laplace(1, 2), 1),
    "Logistic": (dist.Logistic(1.0, 2.0), st.logistic(1, 2), 1),
    "Gumbel": (dist.Gumbel(1.0, 2.0), st.gumbel_r(1, 2), 1),
    "Weibull": (dist.Weibull(2.0, 1.5), st.weibull_min(1.5, scale=2), 1),
    "Pareto": (dist.Pareto(2.0, 3.0), st.pareto(3, scale=2), 1),
    "truncated": (dist.TruncatedNormal(1.0, 2.0, low=0.0, high=4.0), st.truncnorm(-0.5, 1.5, 1, 2), 1),
    "left": (dist.TruncatedNormal(1.0, 2.0, low=5.0), st.truncnorm(2, np.inf, 1, 2), 1),
    "right": (dist.TruncatedNormal(1.0, 2.0, high=-3.0), st.truncnorm(-np.inf, -2, 1, 2), 1),
    "affine": (
        dist.TransformedDistribution(dist.Gamma(2.0, 1.0), transforms.AffineTransform(3.0, -2.0)),
        st.gamma(2, loc=-1.5),
        -1,
    ),
}
ROWS = pytest.mark.parametrize("row", list(UNIVARIATE), ids=list(UNIVARIATE))
"""`z` is compared at probabilities above 1e-9, or at the resolution of the value where that is coarser."""
