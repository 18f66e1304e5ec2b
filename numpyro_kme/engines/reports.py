"""What a person reads of a posterior under learnt likelihoods, and what is warned of."""

from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.engines.learnt_posterior import LearntPosterior, beyond_by_call, observation
from numpyro_kme.engines.posterior import missing_entries
from numpyro_kme.likelihoods.extrapolation import extrapolation_message
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations

UNSURE = 0.5
"""A posterior that half of the simulations move by more standard deviations is warned of."""

MANY = 10
"""Of this many numbers in an output some may be left out."""

EACH = 100
"""Simulations for each call along plates whose calls are alike, as a rule of thumb."""


def emit_warnings(posterior: LearntPosterior) -> None:
    """Warn of draws outside the simulated parameters, and of too few simulations, at the end: a round that others
    follow may be far out."""
    problem, simulations = posterior.problem, posterior.simulations
    for site, proportion in posterior.extrapolated.items():
        fitted = posterior.likelihoods[site]
        if proportion > fitted.negligible:
            by_call = beyond_by_call(problem, fitted, site, posterior.drawn.coordinates[site])
            far = np.argwhere(by_call > fitted.negligible)
            checks.warn(extrapolation_message(site, proportion, remedy(simulations, problem), far))
        if not fitted.surrogate.moves:
            checks.warn(
                f"The parameters change how probable values of all statistics of {site!r} are, as in a mixture, and do "
                "not move them: the likelihood embeds these as they are, and the posterior may be too wide. Give "
                "statistics that count in their place, such as the proportion of values beyond a point."
            )
    if posterior.moved_by_half > UNSURE:
        sites = [at.simulator for at in problem.simulators.values()]
        fewer = " Fewer statistics need fewer simulations: leave out those that nearly follow from others."
        test = " This does not help where the model cannot make the draws: `kme.diagnostics.misspecification_test`."
        checks.warn(
            f"The posterior depends on which {len(simulations)} simulations were made: learnt from half of them it "
            f"moves {how_far(posterior.moved_by_half, 'standard deviations')} (a mean, or a log standard deviation), "
            f"and from all of them it may be off by about as much. {remedy(simulations, problem)}"
            f"{fewer if any(prod(one.event_shape) >= MANY for one in sites) else ''}"
            f"{test if any(prod(one.batch_shape) > 1 for one in sites) else ''}"
        )


def how_far(moved: float, unit: str = "sd") -> str:
    """By how much a posterior moves, in words."""
    return f"by about {moved:.2g} {unit}" if np.isfinite(moved) else "beyond nearly all of its draws"


def remedy(simulations: Simulations, problem: Problem) -> str:
    """Advice where there are too few simulations."""
    alike = all(at.alike for at in problem.simulators.values())
    calls = max(prod(at.simulator.batch_shape) for at in problem.simulators.values())
    enough = EACH * calls
    how = f"such as {2 * len(simulations):,}"
    if alike and calls > 1 and enough > len(simulations):
        how = f"by a rule of thumb {EACH} for each of {calls} calls along plates, {enough:,} in all"
    if simulations.proposed:
        return f"Simulate more (`num_simulations`), {how}, or `refine` at draws of this posterior."
    if not alike and calls > 1:
        return f"Simulate more (`num_simulations`), {how}."
    return (
        f"Simulate more (`num_simulations`), {how}, or for this observation alone in rounds around its posterior: pass "
        "num_rounds=5; where simulations or a `store` are given, `refine` at its draws."
    )


def describe(posterior: LearntPosterior, rounds: str) -> dict[str, Any]:
    """Lines of the summary: what was learnt, how the draws were found, and which `rounds` were made, if any."""
    problem, simulations = posterior.problem, posterior.simulations
    info: dict[str, Any] = {"simulations": len(simulations)}
    for site, fitted in posterior.likelihoods.items():
        found = {"coordinates": fitted.coordinates.note, **fitted.surrogate.describe()}
        found |= missing_entries(problem.simulators[site])
        if problem.simulators[site].single:
            place = fitted.surrogate.describe_observation(fitted.surrogate.point(observation(problem, site)))
            found |= {"observation": place} if place else {}
        outside = posterior.extrapolated[site]
        found["parameters"] = "all draws within the simulated parameters"
        if outside:
            far = f"{outside:.2%} of the draws lie beyond the simulated parameters"
            found["parameters"] = f"{far}: no simulation supports the likelihood there"
        prefix = f"{site}: " if len(posterior.likelihoods) > 1 else ""
        info |= {prefix + name: value for name, value in found.items()}
    for site, measure in posterior.measures.items() if posterior.learn_prior else ():
        mean, covariance = measure.moments()
        info[f"prior mean of {site}"] = np.asarray(mean)
        info[f"prior sd of {site}"] = np.sqrt(np.diagonal(covariance))
    if not np.isnan(posterior.moved_by_half):
        info["half of the simulations"] = f"move the posterior {how_far(posterior.moved_by_half)}"
    if simulations.failures or simulations.repeated:
        info["simulations that failed"] = simulations.describe_failures()
    info |= posterior.drawn.info
    with suppress(ValueError):
        for fitted in posterior.likelihoods.values():
            fitted.surrogate.require_density()
        info["log marginal likelihood"] = posterior.drawn.log_evidence
    return info | ({"rounds": rounds} if rounds else {})
