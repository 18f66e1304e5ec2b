"""NUTS on a learnt likelihood: ten statistics, ten parameters, `handlers.surrogate`, four vectorised chains.

    python -m benchmarks residual_nuts [--simulations 300 1000] [--problems linear curved] [--observations 2]

Problems as in `residual_time.py`. After a run that compiles, warm-up (500 iterations) and 1,000 draws a chain are timed
apart; float32, as NumPyro's sessions are by default. The effective size is that of the worst parameter (at most the
number of draws counts), per second of the draws and of warm-up and draws together. Seconds are CPU seconds. Takes two
minutes.
"""

import time
import warnings

import jax
import numpy as np
from numpyro.diagnostics import summary

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import four_chains
from benchmarks.kelfi.residual_time import PARAMETERS, SIMULATORS, model_of

WARMUP, DRAWS = 500, 1000


def learnt(problem, size, seed):
    """A likelihood learnt from draws from the prior."""
    simulated = kme.simulate(jax.random.key(seed), model_of(SIMULATORS[problem]), size, progress_bar=False)
    return kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"], form=kme.ResidualKernelMeans())


def compiled(function, *args):
    """A function of arrays compiled for these, and the CPU seconds of one call."""
    function = jax.jit(function).lower(*args).compile()
    begun = time.process_time()
    found = jax.block_until_ready(function(*args))
    return found, time.process_time() - begun


def sampled(problem, fitted, seed):
    """Diagnostics and times of one posterior."""
    theta_key, noise_key, chain_key = jax.random.split(jax.random.key(100 + seed), 3)
    theta = jax.random.normal(theta_key, (PARAMETERS[SIMULATORS[problem]],))
    y = np.asarray(SIMULATORS[problem](noise_key, theta))
    model = kme.handlers.surrogate(model_of(SIMULATORS[problem]), {"x": fitted})
    mcmc = four_chains(model, WARMUP, DRAWS)

    def warm(key):
        mcmc.warmup(key, x=y)
        return mcmc.post_warmup_state

    def draw(state):
        mcmc.post_warmup_state = state
        mcmc.run(state.rng_key, x=y, extra_fields=("diverging", "num_steps"))
        return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()

    state, warmup = compiled(warm, chain_key)
    (samples, extra), draws = compiled(draw, state)
    found = summary(samples)["theta"]
    effective = float(np.minimum(found["n_eff"], 4 * DRAWS).min())
    return {
        "largest R-hat": float(found["r_hat"].max()),
        "divergences": float(np.mean(extra["diverging"])),
        "steps a draw": float(np.mean(extra["num_steps"])),
        "effective size": effective,
        "warm-up, s": warmup,
        "draws, s": draws,
        "effective a second": effective / draws,
        "with warm-up": effective / (warmup + draws),
    }


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--problems", nargs="+", default=["linear", "curved"], choices=SIMULATORS)
    parser.add_argument("--observations", type=int, default=2)
    options = parser.parse_args()
    rows, text = [], ""
    for problem in options.problems:
        for size in options.simulations:
            fitted = learnt(problem, size, 0)
            for seed in range(options.observations):
                with warnings.catch_warnings(action="ignore", category=UserWarning):
                    found = sampled(problem, fitted, seed)
                rows.append({"problem": problem, "simulations": size, "observation": seed + 1} | found)
                sections = [("Four chains", report.table_of(rows))]
                text = report.write("residual_nuts", "NUTS on the residual form", sections)
                print(rows[-1], flush=True)
    print(text)
