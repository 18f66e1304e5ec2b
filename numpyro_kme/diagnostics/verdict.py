"""All diagnostics of an engine that has been run, by one call, and one rule for when to distrust it."""

import textwrap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.diagnostics.calibration import LEVEL, Calibration, calibrate
from numpyro_kme.diagnostics.goodness_of_fit import (
    MisspecificationTest,
    PredictiveCheck,
    misspecification_test,
    predictive_check,
)
from numpyro_kme.engines._learnt_posterior import LearntPosterior
from numpyro_kme.engines.base import Engine
from numpyro_kme.engines.posterior import problem_of
from numpyro_kme.mcmc import handlers
from numpyro_kme.mcmc.chain_checks import SurrogateCheck, check_surrogate
from numpyro_kme.simulations import Simulations


@dataclass(frozen=True)
class Check:
    """What the diagnostics found.

    The rule: distrust the engine on this model if `p_value` is below 0.001. It is twice the smaller of the p-values of
    the calibration and of the misspecification tests (times the number of these), so that an engine whose posteriors
    are off by less than the margin of the calibration, on a model that is right, is flagged with a probability of at
    most 0.001. The predictive check and the surrogate check are no tests: look at them.

    Attributes:
        calibration: From `calibrate`.
        misspecification: From `misspecification_test`, `{site: test}`.
        predictive: From `predictive_check`.
        surrogate: From `check_surrogate`, `{site: check}`; empty for engines without a learnt likelihood.
    """

    calibration: Calibration
    misspecification: Mapping[str, MisspecificationTest] = field(default_factory=dict)
    predictive: PredictiveCheck | None = None
    surrogate: Mapping[str, SurrogateCheck] = field(default_factory=dict)

    @property
    def p_value(self) -> float:
        """One for all tests."""
        of_model = [test.p_value * len(self.misspecification) for test in self.misspecification.values()]
        return min(1.0, 2.0 * min([self.calibration.p_value, *of_model]))

    def flagged(self, level: float = LEVEL) -> bool:
        """Whether to distrust the engine on this model, or the model."""
        return self.p_value < level

    def findings(self, level: float = LEVEL) -> list[str]:
        """What is wrong at a level, and what to do next; then what else to look at: data sets that were refused, the
        surrogate."""
        unlike = [
            f"{site} (p-value {test.p_value:.2g}): the model hardly makes this observation. Mend the model, leave out "
            f"the statistic that `misspecification[{site!r}].witness` names, or use `PosteriorBootstrap`, which does "
            "not trust the model."
            for site, test in self.misspecification.items()
            if 2 * len(self.misspecification) * test.p_value < level
        ]
        of_surrogate = [sentence for site, found in self.surrogate.items() for sentence in found.findings(site)]
        return unlike + self.calibration.findings(level / 2) + of_surrogate

    def print_summary(self) -> None:
        """Print what was found, the verdict, and what to do next."""
        self.calibration.print_summary()
        for site, test in self.misspecification.items():
            print(f"{site}: is the observation like the simulations? p-value {test.p_value:.2g}")
        for site, tails in ({} if self.predictive is None else self.predictive.tail_probabilities()).items():
            print(f"{site}: smallest posterior predictive tail of {tails.size} observed numbers {tails.min():.2g}")
        for site, found in self.surrogate.items():
            print(
                f"{site}: {found.beyond:.1%} of draws beyond the simulated parameters, {found.negative:.0%} with a "
                "negative surrogate"
            )
        verdict = "FLAGGED, distrust this posterior" if self.flagged() else "not flagged"
        print(f"p-value {self.p_value:.2g}: {verdict} at level {LEVEL:g}")
        for sentence in self.findings():
            print(textwrap.fill(sentence, 80, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))


def check(rng_key: jax.Array, engine: Engine, num_datasets: int = 200, **settings: Any) -> Check:
    """Run every diagnostic on an engine that has been run.

    The engine stays as it is, with the posterior of its own observation.

    Args:
        rng_key: The only source of randomness.
        engine: One that has been run.
        num_datasets: Data sets that `calibrate` simulates.
        **settings: Further settings of `calibrate`.
    Raises:
        ValueError: As `calibrate`.
    """
    checks.key(rng_key)
    checks.instance("engine", engine, Engine, "an engine, such as KELFI(model)")
    posterior = engine.posterior
    problem, simulations = problem_of(posterior), posterior.simulations
    kept = f"kept, which {type(engine).__name__} does not: call the diagnostics one by one"
    checks.instance("engine.simulations", simulations, Simulations, kept)
    assert simulations is not None
    predictive_key, calibrate_key = jax.random.split(rng_key)
    predictive = predictive_check(predictive_key, posterior)
    tests = {}
    for site, y in problem.observations.items():
        found = problem.simulators[site]
        x = np.asarray(simulations.x[site])[: len(simulations) - simulations.proposed]
        if found.mask.any():
            tests[site] = misspecification_test(found.counted(x, 1), found.counted(np.asarray(y)))
    surrogate: Mapping[str, SurrogateCheck] = {}
    if isinstance(posterior, LearntPosterior):
        latents = {name: posterior.samples[name] for name in problem.latents}
        learnt = handlers.surrogate(problem.model, posterior.likelihoods)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            surrogate = check_surrogate(learnt, latents, *problem.args, max_draws=200, **problem.kwargs)
    calibration = calibrate(calibrate_key, engine, num_datasets, **settings)
    return Check(calibration, tests, predictive, surrogate)
