"""Draws from a posterior of which some latents are discrete, with few values: a sum over these, and then a draw."""

from math import prod

import jax
import numpy as np
from scipy.special import logsumexp

from numpyro_kme._core import checks, compat, solves
from numpyro_kme._core.host import numpy_rng, on_host
from numpyro_kme._core.keys import split
from numpyro_kme.engines._sampling import Drawn, LearntModel, as_drawn, num_particles, some_rows
from numpyro_kme.models.problem import Problem, discrete_message
from numpyro_kme.samplers.tempering import temper

MOST_VALUES = 100
"""Joint values of discrete latents that are summed over."""


def joint_values(problem: Problem) -> dict[str, np.ndarray]:
    """All joint values of the discrete latents, `{site: (k, *shape)}`.

    Raises:
        ValueError: If there are more than `MOST_VALUES`, or infinitely many.
    """
    sets = {}
    for name in problem.discrete:
        latent = problem.latents[name]
        fn, size = compat.innermost(latent.fn), latent.value.size
        checks.require(
            fn.has_enumerate_support and not fn.event_dim,
            discrete_message(name, latent, "it has infinitely many values: KELFI sums over values that it can list"),
        )
        one = np.ravel(fn.enumerate_support(expand=False))
        sets[name] = one, size
    total = prod(float(len(one)) ** size for one, size in sets.values())
    if total > MOST_VALUES:
        name = max(sets, key=lambda name: len(sets[name][0]) ** sets[name][1])
        why = f"the discrete latents have {total:g} joint values: KELFI sums over at most {MOST_VALUES}"
        raise checks.explained(discrete_message(name, problem.latents[name], why))
    entries = [one for one, size in sets.values() for _ in range(size)]
    table = np.stack([grid.ravel() for grid in np.meshgrid(*entries, indexing="ij")], axis=1)
    ends = np.cumsum([size for _, size in sets.values()])[:-1]
    parts = zip(sets, np.split(table, ends, axis=1), strict=True)
    latents = problem.latents
    return {n: part.reshape(-1, *latents[n].value.shape).astype(latents[n].value.dtype) for n, part in parts}


@on_host
def enumerated(rng_key: jax.Array, model: LearntModel, num_samples: int, power: float = 1.0) -> Drawn:
    r"""Draw all latents of a model of which some are discrete, with few joint values `k`.

    The others, unconstrained `u`, are drawn from `sum_k p(k) p(u | k) q(y | u, k)`, and `k` given them;
    likelihoods are raised to a power.
    """
    start_key, temper_key, pick_key = split(rng_key, 3)
    rng, problem = numpy_rng(pick_key), model.problem
    values = joint_values(problem)
    prior = problem.draw(start_key, num_particles(num_samples)).latents
    rows = [dict(zip(values, row)) for row in zip(*values.values(), strict=True)]
    start = model.flatten(prior)

    def at(u, k, brief=False):
        given = {name: np.broadcast_to(value, (len(u), *np.shape(value))) for name, value in rows[k].items()}
        return model.evaluate(u, brief, given)

    def at_each(u, brief):
        return [at(u, k, brief) for k in range(len(rows))]

    def log_joint(evaluated):
        """Log prior and log likelihood of each joint value, `(n, k)` each."""
        terms = [one.terms for one in evaluated]
        return (
            np.stack([t.log_prior + t.log_jacobian for t in terms], axis=1),
            power * np.stack([t.log_likelihood for t in terms], axis=1),
        )

    def log_densities(u):
        log_prior, log_likelihood = log_joint(at_each(u, brief=True))
        marginal = logsumexp(log_prior, axis=1)
        return marginal, logsumexp(log_prior + log_likelihood, axis=1) - marginal

    if start.shape[1]:
        with solves.one_blas_thread:
            found = temper(temper_key, log_densities, start)
        particles = found.particles[some_rows(pick_key, found, num_samples)]
    else:  # every latent is discrete, and the sum is the posterior
        found, particles = None, np.zeros((num_samples, 0))
    evaluated = at_each(particles, brief=False)
    log_prior, log_likelihood = log_joint(evaluated)
    total = log_prior + log_likelihood
    chosen = np.argmax(total + rng.gumbel(size=total.shape), axis=1)
    own = np.arange(len(chosen))
    latents, z, terms, learnt = jax.tree.map(lambda *leaves: np.stack(leaves)[chosen, own], *evaluated)
    log_posterior = terms.log_prior + power * terms.log_likelihood
    info = {"discrete latents": f"{', '.join(values)}: summed over, {total.shape[1]} joint values"}
    if found is None:
        log_evidence = float(logsumexp(total[0]))
        how = info | {"effective sample size": float(num_samples)}
        return Drawn(latents, z, log_posterior, learnt, log_evidence, how)
    drawn = as_drawn(latents, z, log_posterior, learnt, found)
    return drawn._replace(info=dict(drawn.info) | info)
