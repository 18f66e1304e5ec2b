"""How an engine simulates: one value for the settings of all its simulations."""

from concurrent.futures import Executor
from dataclasses import dataclass
from os import PathLike

import jax

from numpyro_kme._core import checks
from numpyro_kme.models.problem import Arrays, Problem
from numpyro_kme.simulations.at import simulate_at
from numpyro_kme.simulations.bank import Simulations
from numpyro_kme.simulations.failures import OnFailure, check_policy
from numpyro_kme.simulations.simulate import simulate


@dataclass(frozen=True)
class Plan:
    """How an engine simulates; engines take these as keywords of their own.

    Args:
        num_simulations: Number of simulations.
        simulations: Simulations made elsewhere, instead of new ones.
        on_failure: What to do when a simulation fails, as in `simulate`.
        executor: Where black-box simulators run, as in `simulate`.
        store: A folder to write results to as they come, and to go on from, as in `simulate`.
        version: Of the simulator, as in `simulate`.
        timeout: Seconds for one simulation of a black-box simulator.
        progress_bar: Whether to show the progress.
    """

    num_simulations: int
    simulations: Simulations | None = None
    on_failure: OnFailure = "raise"
    executor: Executor | int | None = None
    store: str | PathLike | None = None
    version: str | int | None = None
    timeout: float | None = None
    progress_bar: bool = True

    def __post_init__(self):
        checks.instance("simulations", self.simulations, Simulations | None, "a set of simulations (Simulations)")
        check_policy(self.on_failure)
        checks.require(
            self.simulations is None or self.store is None,
            "Give `simulations` or `store`, not both: what is given is not simulated.",
        )

    def simulate(self, rng_key: jax.Array, problem: Problem, number: int | None = None) -> Simulations:
        """The given simulations, or `number` new ones from the prior, all of them when left out."""
        if self.simulations is not None:
            return self.simulations
        return simulate(
            rng_key,
            problem,
            self.num_simulations if number is None else number,
            on_failure=self.on_failure,
            timeout=self.timeout,
            executor=self.executor,
            store=self.store,
            version=self.version,
            progress_bar=self.progress_bar,
        )

    def simulate_at(self, rng_key: jax.Array, problem: Problem, latents: Arrays) -> Simulations:
        """Simulations at given latents `{site: (m, *shape)}`."""
        return simulate_at(
            rng_key,
            problem,
            latents,
            on_failure=self.on_failure,
            timeout=self.timeout,
            executor=self.executor,
            progress_bar=self.progress_bar,
        )
