"""Simulations at given latents."""

import jax
from tqdm.auto import tqdm

from numpyro_kme import _blocks
from numpyro_kme.problem import Arrays, Problem
from numpyro_kme.simulations import running
from numpyro_kme.simulations.bank import Simulations


def simulate_at(rng_key: jax.Array, problem: Problem, latents: Arrays) -> Simulations:
    """Simulate once at each of the given latents `{site: (m, *shape)}`, with the keys that `simulate` would use.

    Raises:
        SimulationError: If a simulation fails, with its number and latents.
    """
    draws = problem.evaluate(latents)
    x = {}
    with tqdm(disable=True) as bar:
        for name, site in problem.simulators.items():
            run = running.Run(
                rng_key,
                name,
                site.simulator,
                draws.arguments[name],
                block_size=_blocks.BLOCK,
                timeout=None,
                executor=None,
            )
            x[name], _ = run.all(0, running.Watch(name, draws.latents, True, bar, None))
    return Simulations(draws.arguments, x, draws.latents, draws.deterministics)
