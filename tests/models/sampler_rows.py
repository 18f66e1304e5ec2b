"""The table of samplers, `jax.random`'s part: how each is called, what its lift reports, its distribution elsewhere."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random
from scipy import stats


class Row(NamedTuple):
    """One sampler.

    Attributes:
        draw: `(key, *at)`, a number or an array.
        drawn: The report of its lift, but for its end, or a regular expression for the sentence of its refusal.
        law: `(*at)`, a distribution, or one for each number; None where only its own draws from keys are known.
        at: Numbers by which there is a derivative, that of a count being zero.
        tails: Its one number is SciPy's quantile for `abs(z)` so far.
        most_loops: As in `lift_noise`.
    """

    draw: Callable
    drawn: str
    law: Callable[..., Any] | None = None
    at: tuple[float, ...] = ()
    tails: int = 0
    most_loops: int | None = None

    @property
    def refused(self) -> bool:
        return "draws" in self.drawn


class Mixture:
    """Of several distributions."""

    def __init__(self, weights, laws):
        self.weights, self.laws = np.asarray(weights), laws

    def cdf(self, x):
        return sum(weight * law.cdf(x) for weight, law in zip(self.weights, self.laws))

    def mean(self):
        return sum(weight * law.mean() for weight, law in zip(self.weights, self.laws))

    def std(self):
        second = sum(weight * (law.var() + law.mean() ** 2) for weight, law in zip(self.weights, self.laws))
        return np.sqrt(second - self.mean() ** 2)


class Gated:
    """Zero with a probability, or of a continuous distribution."""

    def __init__(self, gate, law):
        self.gate, self.law = gate, law

    def mean(self):
        return (1.0 - self.gate) * self.law.mean()

    def std(self):
        return np.sqrt((1.0 - self.gate) * (self.law.var() + self.law.mean() ** 2) - self.mean() ** 2)


class Truncated:
    """A continuous distribution between bounds, precise in both tails; its moments by quadrature."""

    def __init__(self, law, low, high):
        self.law, self.low, self.high = law, low, high
        self.at_low, self.at_high = law.cdf(low), law.cdf(high)

    def cdf(self, x):
        return np.clip((self.law.cdf(x) - self.at_low) / (self.at_high - self.at_low), 0.0, 1.0)

    def ppf(self, u):
        return self.law.ppf(self.at_low + u * (self.at_high - self.at_low))

    def isf(self, u):
        return self.law.isf(self.law.sf(self.high) + u * (self.at_high - self.at_low))

    def mean(self):
        return self.law.expect(lb=self.low, ub=self.high, conditional=True)

    def std(self):
        return np.sqrt(self.law.expect(lambda x: (x - self.mean()) ** 2, lb=self.low, ub=self.high, conditional=True))


def discrete(*probabilities):
    """On 0, 1, ..."""
    return stats.rv_discrete(values=(np.arange(len(probabilities)), probabilities))


def exact(law, z):
    """Quantiles at `ndtr(z)`, by the smaller tail; those of counts as the probabilities say, which SciPy may miss."""
    found = np.where(z < 0, law.ppf(stats.norm.cdf(z)), law.isf(stats.norm.sf(z)))
    if not hasattr(law, "pmf"):
        return found

    def reached(k):
        return np.where(z < 0, law.cdf(k) >= stats.norm.cdf(z), law.sf(k) <= stats.norm.sf(z))

    found = found + ~reached(found)
    assert reached(found).all()
    return found - reached(found - 1) * (found > law.support()[0])


def zero_or(gate, law, truncated):
    """Zero with a probability more, or of a count's distribution, which `truncated` has no zero of its own."""
    p = law.pmf(np.arange(60))
    p[0] = 0.0 if truncated else p[0]
    p = (1.0 - gate) * p / p.sum()
    p[0] += gate
    return discrete(*p)


def by_quantile(drawn, draw, law, *at):
    return Row(draw, f"1 {drawn}", law, at, tails=8)


def made(drawn, draw, law, *at):
    return Row(draw, drawn, law, at)


def whole(k):
    bits = random.bits(k)
    return bits.astype(float) * 2.0 ** (-8 * bits.dtype.itemsize)


def correlated(k, a):
    return random.multivariate_normal(k, jnp.array([1.0, a]), jnp.array([[2.0, 0.5], [0.5, a]])) @ jnp.ones(2)


P = (0.2, 0.3, 0.5)

JAX = {
    "ball": made(
        "2 gamma, 2 uniform, 1 exponential", lambda k: random.ball(k, 2), lambda: [stats.beta(1.5, 1.5, -1, 2)] * 2
    ),
    "bernoulli": made("1 uniform", random.bernoulli, stats.bernoulli, 0.3),
    "beta": made("2 gamma", random.beta, stats.beta, 2.0, 3.0),
    "binomial": by_quantile("binomial", lambda k, p: random.binomial(k, 12, p), lambda p: stats.binom(12, p), 0.3),
    "bits": made("1 random bits", whole, stats.uniform),
    "categorical": [
        made("3 gumbel", lambda k: random.categorical(k, jnp.log(jnp.array(P))), lambda: discrete(*P)),
        made(
            "3 gumbel",
            lambda k: random.categorical(k, jnp.log(jnp.array(P)), shape=(2,), replace=False),
            lambda: [discrete(*P), discrete(*(p * sum(q / (1 - q) for q in P if q != p) for p in P))],
        ),
    ],
    "cauchy": by_quantile("cauchy", random.cauchy, stats.cauchy),
    "chisquare": by_quantile("gamma", random.chisquare, stats.chi2, 3.0),
    "choice": [
        made("1 randint", lambda k: random.choice(k, 4), lambda: stats.randint(0, 4)),
        made("4 random bits", lambda k: random.choice(k, 4, (2,), replace=False), lambda: [stats.randint(0, 4)] * 2),
        made("1 uniform", lambda k: random.choice(k, 3, p=jnp.array(P)), lambda: discrete(*P)),
    ],
    "dirichlet": made(
        "3 gamma",
        lambda k, a: random.dirichlet(k, jnp.array([a, 2.0, 3.0]))[:2],
        lambda a: [stats.beta(a, 5.0), stats.beta(2.0, 3.0 + a)],
        1.5,
    ),
    "double_sided_maxwell": made("3 normal, 1 uniform", random.double_sided_maxwell, None, 0.5, 2.0),
    "exponential": by_quantile("exponential", random.exponential, stats.expon),
    "f": made("2 gamma", random.f, stats.f, 5.0, 30.0),
    "gamma": [
        by_quantile("gamma", random.gamma, stats.gamma, 2.3),
        by_quantile("gamma", random.gamma, stats.gamma, 0.2),
    ],
    "generalized_normal": made("1 gamma, 1 uniform", random.generalized_normal, stats.gennorm, 1.5),
    "geometric": by_quantile("geometric", random.geometric, stats.geom, 0.3),
    "gumbel": by_quantile("gumbel", random.gumbel, stats.gumbel_r),
    "laplace": by_quantile("laplace", random.laplace, stats.laplace),
    "loggamma": by_quantile("gamma", random.loggamma, stats.loggamma, 2.3),
    "logistic": by_quantile("logistic", random.logistic, stats.logistic),
    "lognormal": by_quantile("normal", random.lognormal, stats.lognorm, 0.5),
    "maxwell": made("3 normal", random.maxwell, stats.maxwell),
    "multinomial": made(
        "3 binomial",
        lambda k, p: random.multinomial(k, 9.0, jnp.array([p, 0.3, 0.7 - p])),
        lambda p: [stats.binom(9, q) for q in (p, 0.3, 0.7 - p)],
        0.2,
    ),
    "multivariate_normal": made("2 normal", correlated, lambda a: stats.norm(1 + a, np.sqrt(3 + a)), 1.5),
    "normal": by_quantile("normal", random.normal, stats.norm),
    "orthogonal": made("4 normal", lambda k: random.orthogonal(k, 2), lambda: [stats.beta(0.5, 0.5, -1, 2)] * 4),
    "pareto": by_quantile("exponential", random.pareto, stats.pareto, 9.5),
    "permutation": made("4 random bits", lambda k: random.permutation(k, 4), lambda: [stats.randint(0, 4)] * 4),
    "poisson": [
        by_quantile("poisson", random.poisson, stats.poisson, 3.7),
        made("1 poisson", random.poisson, stats.poisson, 300.0),
    ],
    "rademacher": made("1 uniform", lambda k: random.rademacher(k, (), float) / 2 + 0.5, lambda: stats.bernoulli(0.5)),
    "randint": by_quantile("randint", lambda k: random.randint(k, (), -2, 9), lambda: stats.randint(-2, 9)),
    "rayleigh": by_quantile("rayleigh", random.rayleigh, lambda scale: stats.rayleigh(scale=scale), 2.0),
    "t": made("1 normal, 1 gamma", random.t, stats.t, 15.0),
    "triangular": made(
        "1 uniform", lambda k, m: random.triangular(k, -1.0, m, 2.0), lambda m: stats.triang((m + 1) / 3, -1, 3), 0.5
    ),
    "truncated_normal": [
        by_quantile("truncated normal", random.truncated_normal, stats.truncnorm, -1.0, 2.0),
        by_quantile("truncated normal", random.truncated_normal, stats.truncnorm, 3.0, 4.0),
        by_quantile("truncated normal", random.truncated_normal, lambda a, b: Truncated(stats.norm(), a, b), -9.0, 7.0),
        by_quantile(
            "truncated normal",
            lambda k: random.truncated_normal(k, 1.0, jnp.inf),
            lambda: Truncated(stats.norm(), 1, np.inf),
        ),
    ],
    "uniform": by_quantile(
        "uniform", lambda k, a, b: random.uniform(k, (), float, a, b), lambda a, b: stats.uniform(a, b - a), -1.0, 3.0
    ),
    "wald": made("1 normal, 1 uniform", random.wald, stats.invgauss, 0.5),
    "weibull_min": by_quantile("weibull", random.weibull_min, lambda a, c: stats.weibull_min(c, scale=a), 2.0, 1.5),
}
"""By name; a sampler whose parts differ with its arguments has several rows."""

JAX_OTHERS = {
    *("Key", "PRNGKey", "clone", "fold_in", "key", "key_data", "key_dtype", "key_impl", "split", "wrap_key_data"),
    "random_gamma_p",
}
"""What else `jax.random` has: keys, and the operation that `gamma` is made of."""
