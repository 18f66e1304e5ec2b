r"""A drift diffusion: choices between two answers, and the times that they take.

Evidence begins at $a w$ and moves with the drift $v$ and unit diffusion until it reaches 0 or the boundary $a$; the
reaction time is the first passage time plus the non-decision time $t_0$. One call is one trial: `[choice, time]`, with
the choice 1 at the upper boundary, and times in seconds. The density of the first passage time at the lower boundary is
$f(t) = a^{-2} e^{-v a w - v^2 t / 2} g(t / a^2)$, with the series of Feller (1968) for `g` in short and in long times.

References: Ratcliff (1978), Psychological Review 85; Navarro and Fuss (2009), J. Math. Psychology 53. The priors are
ours.
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import random

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("drift", "boundary", "start", "non_decision")
TRUTH = {"drift": 0.8, "boundary": 1.4, "start": 0.45, "non_decision": 0.25}
"""Parameters at which choices and times may be simulated."""

TERMS = 7
"""Terms of each series on either side of 0: enough for nine digits."""

NODES, LONGEST = 400, 12.0
"""Nodes of the times that draws are interpolated between, and the longest, in units of the squared boundary."""


def log_density(trial, drift, boundary, start, non_decision):
    """Log density of a trial `[choice, time]`; minus infinity before the non-decision time."""
    choice, time = trial[..., 0], trial[..., 1] - non_decision
    drift, start = jnp.where(choice == 1, -drift, drift), jnp.where(choice == 1, 1.0 - start, start)
    known = jnp.where(time > 0.0, time, 1.0)
    log_g = _log_passage(known / boundary**2, start)
    found = log_g - drift * boundary * start - 0.5 * drift**2 * known - 2.0 * jnp.log(boundary)
    return jnp.where(time > 0.0, found, -jnp.inf)


@jnp.vectorize
def _log_passage(s, w):
    """`log g(s)` at the boundary below a start `w`, without drift."""
    early = jnp.arange(-TERMS, TERMS + 1.0)
    short = (w + 2.0 * early) * jnp.exp(-2.0 * early * (w + early) / s)
    late = jnp.pi * jnp.arange(1.0, 2 * TERMS + 1)
    long = late * jnp.exp(-0.5 * (late**2 - late[0] ** 2) * s) * jnp.sin(late * w)
    log_short = jnp.log(jnp.maximum(short.sum(), 1e-30)) - 0.5 * w**2 / s - 0.5 * jnp.log(2 * jnp.pi * s**3)
    log_long = jnp.log(jnp.maximum(long.sum(), 1e-30)) - 0.5 * late[0] ** 2 * s
    return jnp.where(s < 0.3, log_short, log_long)


def trial(rng_key, drift, boundary, start, non_decision):
    """One trial, `[choice, time]`: the choice by its probability, and the time by the inverse of its distribution."""
    choice_key, time_key = random.split(rng_key)
    exponent = -2.0 * drift * boundary
    small = jnp.abs(exponent) < 1e-4
    safe = jnp.where(small, 1.0, exponent)
    lower = jnp.where(small, 1.0 - start, (jnp.expm1(safe) - jnp.expm1(safe * start)) / jnp.expm1(safe))
    choice = (random.uniform(choice_key) > lower).astype(jnp.result_type(float))
    times = jnp.square(jnp.linspace(0.0, 1.0, NODES + 1)) * LONGEST * boundary**2
    middle, gaps = 0.5 * (times[1:] + times[:-1]), jnp.diff(times)
    trials = jnp.stack([jnp.full(NODES, choice), middle], axis=-1)
    density = jnp.exp(log_density(trials, drift, boundary, start, 0.0))
    cumulative = jnp.append(0.0, jnp.cumsum(density * gaps))
    time = jnp.interp(random.uniform(time_key) * cumulative[-1], cumulative, times)
    return jnp.stack([choice, non_decision + time])


def model(x=None, num_trials=150):
    """The four parameters, and trials `x`, `(num_trials, 2)`."""
    drift = numpyro.sample("drift", dist.Normal(0.0, 1.5))
    boundary = numpyro.sample("boundary", dist.LogNormal(0.3, 0.3))
    start = numpyro.sample("start", dist.Uniform(0.3, 0.7))
    non_decision = numpyro.sample("non_decision", dist.Uniform(0.1, 0.4))
    with numpyro.plate("trials", num_trials):
        numpyro.sample("x", Simulator(trial, drift, boundary, start, non_decision), obs=x)
