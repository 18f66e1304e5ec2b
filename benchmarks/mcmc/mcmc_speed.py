"""Effective samples a second of NUTS on a learnt likelihood of six parameters, four vectorised chains, after
compilation.

    python -m benchmarks mcmc_speed [--sizes 300 1000]

Takes two minutes.
"""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import four_chains
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.published.hyperparameters import Hyperparameters

NOISE = np.linspace(0.4, 1.0, 6)
Y = np.array([0.6, -0.4, 0.2, 0.9, -0.8, 0.1])


def simulate(key, theta):
    return theta + jnp.asarray(NOISE) * jax.random.normal(key, (6,))


def model(x, exact=False):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
    fn = dist.Normal(theta, jnp.asarray(NOISE)).to_event(1) if exact else kme.Simulator(simulate, theta)
    numpyro.sample("x", fn, obs=x)


def speed(target, draws, **kwargs):
    """Smallest effective sample size of a parameter a second, and divergences, of a run that is compiled."""
    mcmc = four_chains(target, 500, draws)
    mcmc.run(jax.random.key(0), Y, **kwargs)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), Y, **kwargs)
    mcmc.post_warmup_state = mcmc.last_state
    began, cpu = time.perf_counter(), time.process_time()
    mcmc.run(jax.random.key(2), Y, **kwargs)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    theta = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])
    least = float(np.min(effective_sample_size(theta)))
    fields = mcmc.get_extra_fields()
    return least / seconds, least / cpu, least, seconds, float(np.mean(fields["diverging"]))


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--draws", type=int, default=1000)
    arguments = parser.parse_args()
    exact = speed(model, arguments.draws, exact=True)
    rows = [("exact density", "", *exact, 1.0)]
    for size in arguments.sizes:
        rng = np.random.default_rng(size)
        theta = rng.normal(size=(size, 6))
        x = theta + NOISE * rng.normal(size=theta.shape)
        hyper = Hyperparameters(Gaussian(np.full(6, 2.5)), Gaussian(np.full(6, 0.8)), np.array(1e-3))
        fitted = kme.fit_likelihood(theta, x, form=kme.KernelMeans(hyperparameters=hyper))
        found = speed(kme.handlers.surrogate(model, {"x": fitted}), arguments.draws)
        rows.append(("learnt", size, *found, found[0] / exact[0]))
        print(rows[-1], flush=True)
    header = ("likelihood", "m", "ESS a second", "ESS a CPU second", "least ESS", "seconds", "divergent", "to exact")
    load = f"The machine's load average was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
    load += "CPU seconds do not depend on it."
    sections = [("Six parameters, four vectorised chains, float32", report.table(header, rows)), ("Load", load)]
    report.save("mcmc_speed", "Speed of NUTS on a learnt likelihood", sections)
