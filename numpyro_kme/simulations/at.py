"""Simulations at given latents."""

from concurrent.futures import Executor

import jax
from tqdm.auto import tqdm

from numpyro_kme._core import batches, checks, compat
from numpyro_kme.models.problem import Arrays, Problem
from numpyro_kme.simulations import running
from numpyro_kme.simulations.bank import Simulations
from numpyro_kme.simulations.failures import OnFailure, check_policy, retries, stops
from numpyro_kme.simulations.simulate import check_execution, gather


def simulate_at(
    rng_key: jax.Array,
    problem: Problem,
    latents: Arrays,
    *,
    on_failure: OnFailure = "raise",
    timeout: float | None = None,
    executor: Executor | int | None = None,
    progress_bar: bool = False,
) -> Simulations:
    """Simulate once at each of the given latents `{site: (m, *shape)}`, with the keys that `simulate` would use.

    Args:
        rng_key: The only source of randomness.
        problem: The model, as `Problem.read` gives it.
        latents: Values of all latents.
        on_failure: As in `simulate`.
        timeout: As in `simulate`.
        executor: As in `simulate`.
        progress_bar: Show a bar.
    Raises:
        SimulationError: If a simulation fails, with its number and latents, or if all of them failed.
    """
    checks.key(rng_key)
    check_policy(on_failure)
    check_execution(problem, timeout, executor)
    draws = problem.evaluate(latents)
    x, errors = {}, {}
    total = len(next(iter(draws.latents.values()))) * len(problem.simulators)
    quiet = not (progress_bar and compat.progress_bars_allowed())
    with tqdm(total=total, desc="simulating", disable=quiet) as bar:
        for name, site in problem.simulators.items():
            run = running.Run(
                rng_key,
                name,
                site.simulator,
                draws.arguments[name],
                block_size=batches.BLOCK,
                timeout=timeout,
                executor=executor,
            )
            watch = running.Watch(name, draws.latents, stops(on_failure), bar, None)
            x[name], errors[name] = run.all(retries(on_failure), watch)
    return gather(draws, x, errors, on_failure)
