"""What a person reads of a posterior under learnt likelihoods, and what is warned of."""

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from scipy import special

from numpyro_kme._core import checks, solves
from numpyro_kme.engines._learning import LearntLikelihoods
from numpyro_kme.engines._learnt_posterior import LearntPosterior, beyond_by_call, observation
from numpyro_kme.engines._sampling import Drawn
from numpyro_kme.engines.posterior import missing_entries
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.extrapolation import extrapolation_message
from numpyro_kme.likelihoods.locations import UNRESOLVED, moved_means
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.sites import SimulatorSite
from numpyro_kme.simulations import Simulations

AT, EXTREME = 200, 8
"""Draws, and smallest and largest of several observations, at which that is worked out."""

IN_TAILS = 0.05
"""A larger proportion of draws under which the observation is further out than all simulated residuals is warned of."""

SAYS_NOTHING = 0.05
"""Likelihoods of which the logarithm differs by a smaller standard deviation over the draws move means by no more of
their standard deviations, whatever their tails are: those of a site that counts to the power of a millionth."""

COARSE = 0.4
"""A published form's posterior that the default form moves by more standard deviations is warned of."""

UNSURE = 0.5
"""A posterior that half of the simulations move by more standard deviations is warned of."""

CONFIRMED = 0.5
"""A likelihood of whose information held-out simulations surely confirm a smaller proportion is warned of."""


def warn_of(posterior: LearntPosterior) -> None:
    """Warn of draws beyond the simulated parameters, and of too few simulations near them, at the end: a round that
    others follow may be far out."""
    for site, proportion in posterior.extrapolated.items():
        fitted = posterior.likelihoods[site]
        if proportion > fitted.negligible:
            by_call = beyond_by_call(posterior.problem, fitted, site, posterior.drawn.coordinates[site])
            far = np.argwhere(by_call > fitted.negligible)
            checks.warn(extrapolation_message(site, proportion, _more(posterior.simulations, posterior.problem), far))
    coarse = posterior.moved_by_default > COARSE  # so that its draws reach into the tails of the other form
    decided = not np.std(posterior.drawn.log_likelihood) <= SAYS_NOTHING
    for site, proportion in posterior.in_tails.items():
        if proportion > IN_TAILS and decided and not coarse:
            checks.warn(_tails_message(site, proportion, posterior.problem.simulators[site]))
    if coarse:
        checks.warn(_coarse_message(posterior.moved_by_default, len(posterior.simulations)))
    if posterior.moved_by_half > UNSURE and not unresolved(posterior):
        checks.warn(_unsure_message(posterior.moved_by_half, posterior.simulations, posterior.problem))
    if posterior.confirmed.at_most < CONFIRMED:
        checks.warn(_overconfident_message(posterior.confirmed.proportion))
    for site, fitted in posterior.likelihoods.items():
        if not fitted.surrogate.moves:
            checks.warn(_moving_shapes_message(site))
    for site in unresolved(posterior):
        found = site, posterior.location_error[site], posterior.simulations, posterior.problem
        checks.warn(_unresolved_message(*found))


def unresolved(posterior: LearntPosterior) -> list[str]:
    """Sites whose location is not known well enough at the draws."""
    return [site for site, error in posterior.location_error.items() if error > UNRESOLVED]


def location_errors(problem: Problem, likelihoods: Mapping[str, FittedLikelihood], drawn: Drawn) -> dict[str, float]:
    """How far a posterior mean may be off by errors of the location at some of the draws, for sites whose form says it.

    `Surrogate.location_error` where calls share their parameters and lack the same entries: errors of one call's
    location add up over the calls. Elsewhere the largest of `moved_means` over the latents.
    """
    found: dict[str, float] = {}
    for site, fitted in likelihoods.items():
        at, rows = problem.simulators[site], slice(None, None, max(1, len(drawn.log_posterior) // AT))
        z, y, counts = drawn.coordinates[site][rows], observation(problem, site), at.scale * at.mask
        if at.alike:
            y = at.counted(y).reshape(-1, *fitted.event_shape)[0]
            power = float(np.sum(np.broadcast_to(counts, at.simulator.batch_shape)))
            with solves.one_blas_thread:  # thirty times faster for matrices as small as these
                learnt = fitted.marginal(~np.isnan(y)).surrogate
                error = learnt.location_error(learnt.point(y), z.reshape(len(z), -1), power)
        else:
            changes = fitted.location_changes(y, z, counts)
            latents = [np.reshape(drawn.latents[name][rows], (len(z), -1)) for name in problem.latents]
            moved = np.nan if changes is None else moved_means(np.concatenate(latents, axis=1), changes)
            error = float(np.max(moved))
        found |= {} if np.isnan(error) else {site: error}
    return found


def in_tails(problem: Problem, likelihoods: Mapping[str, FittedLikelihood], drawn: Drawn) -> dict[str, float]:
    """Proportion of the draws under which more observations are further from their prediction than all simulations are
    from theirs than chance allows: one, where there is one. Where calls have parameters of their own, each has its own
    proportion, and the largest is told beyond as many as chance allows.

    Of heavy tails one in `m` is beyond all of `m` simulations on either side; of several observations as many as a
    Poisson number with this mean reaches once in a thousand times are let pass.
    """
    found = {}
    for site, fitted in likelihoods.items():
        at, learnt = problem.simulators[site], fitted.surrogate
        calls, z = _calls(at, observation(problem, site), drawn.coordinates[site])
        some = np.flatnonzero(~np.isnan(calls).all(axis=tuple(range(1, calls.ndim))))
        if not len(some) or at.simulator.ragged:
            continue
        mean = 2.0 * calls[some].size / len(fitted.simulated)
        allowed = int(np.ceil(special.pdtrik(0.999, mean))) if len(some) > 1 else 0
        z = z[:: max(1, len(z) // AT)]
        beyond = [learnt.beyond_residuals(learnt.point(calls[i]), z[:, i]) for i in some[_extreme(calls[some])]]
        if at.alike:
            found[site] = float(np.mean(np.sum(beyond, axis=0) > allowed))
        else:
            found[site] = float(np.sort(np.append(np.mean(beyond, axis=1), np.zeros(allowed + 1)))[-1 - allowed])
    return found


def _calls(at: SimulatorSite, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The observations that count `(R, *event)`, and their coordinates `(n, R, D)` at draws `(n, *groups, D)`."""
    event, (size, *groups, dim) = at.simulator.event_shape, z.shape
    full = np.broadcast_shapes(y.shape[: y.ndim - len(event)], tuple(groups))
    counts = np.broadcast_to(at.mask, full).ravel()
    calls = np.broadcast_to(y, full + event).reshape(-1, *event)[counts]
    z = z.reshape(size, *(1,) * (len(full) - len(groups)), *groups, dim)
    return calls, np.broadcast_to(z, (size, *full, dim)).reshape(size, -1, dim)[:, counts]


def _extreme(calls: np.ndarray) -> np.ndarray:
    """Numbers of the calls `(R, *event)` that are among the smallest or largest in an entry, `EXTREME` in all of either
    kind, or one for each entry where there are more."""
    table = calls.reshape(len(calls), -1)
    order, each = np.argsort(table, axis=0, kind="stable"), max(1, EXTREME // table.shape[1])
    return np.unique(np.concatenate([order[:each], order[-each:]]))


def _tails_message(site: str, proportion: float, at: SimulatorSite) -> str:
    """The warning of a posterior that the tails of the learnt density decide."""
    several, power = prod(at.simulator.batch_shape) > 1, np.max(at.scale)
    beyond = (
        f"more observations of site {site!r} than chance allows are further from what they predict"
        if several
        else f"the observation of site {site!r} is further from what they predict"
    )
    why = (
        f"The site counts to the power {power:.2g}, so that draws matter under which it is improbable"
        if power < 1.0
        else "They may be outliers, or the model cannot produce them: the posterior follows them less than under the "
        "model's own density"
        if several
        else "The prior holds the draws away from where this observation is usual, or the model cannot produce it"
    )
    return (
        f"Under {proportion:.0%} of the posterior draws {beyond} than any simulation is from its own prediction: the "
        "tails of the likelihood decide, and they are learnt from no simulation. The posterior may be too wide. "
        f"{why}. Ask `kme.diagnostics.misspecification_test` first: more simulations (`num_simulations`) help where "
        "the model makes such data, if rarely, and not where it never does."
    )


def _how_far(moved: float, unit: str = "standard deviations") -> str:
    """By how much a posterior moves, in words."""
    return f"by about {moved:.2g} {unit}" if np.isfinite(moved) else "beyond nearly all of its draws"


def _coarse_message(moved: float, simulations: int) -> str:
    """The warning of a posterior of the published form that the default form contradicts."""
    return (
        f"The posterior is coarse: the default form, learnt from the same {simulations} simulations, moves it "
        f"{_how_far(moved)} (a mean, or a log standard deviation). The published form smooths the "
        "likelihood over its kernel on data. Leave `form` out, or simulate more (`num_simulations`)."
    )


def _unresolved_message(site: str, error: float, simulations: Simulations, problem: Problem) -> str:
    """The warning of a location that is not known well enough at the draws."""
    calls = prod(problem.simulators[site].simulator.batch_shape)
    return (
        f"The {len(simulations)} simulations do not resolve this posterior: the location of site {site!r} "
        f"{f'counts {calls} times' if calls > 1 else 'is curved'}, and is known there only to an error that moves the "
        f"posterior mean by about {error:.2g} of its standard deviations, where {UNRESOLVED} is usual at most; the "
        f"posterior may be off by more, and too wide. {_more(simulations, problem)}"
    )


def _unsure_message(moved: float, simulations: Simulations, problem: Problem) -> str:
    """The warning of a posterior that other simulations would move."""
    several = any(prod(at.simulator.batch_shape) > 1 for at in problem.simulators.values())
    fewer = any(prod(at.simulator.event_shape) >= MANY for at in problem.simulators.values())
    leave = " Fewer statistics need fewer simulations: leave out those that nearly follow from others."
    test = " This does not help where the model cannot make the draws: `kme.diagnostics.misspecification_test` tells."
    return (
        f"The posterior depends on which {len(simulations)} simulations were made: learnt from half of them it moves "
        f"{_how_far(moved)} (a mean, or a log standard deviation), and from all of them it may be off by about as "
        f"much. {_more(simulations, problem)}{leave if fewer else ''}{test if several else ''}"
    )


def _overconfident_message(proportion: float) -> str:
    """The warning of a likelihood that claims more information than held-out simulations confirm."""
    share = max(proportion, 0.0)
    return (
        f"Simulations that were held out confirm {share:.0%} of the information that the likelihood claims: standard "
        f"deviations of the posterior may be as little as {np.sqrt(share):.2g} times what they should be. Statistics "
        "that nearly follow from one another are one cause. Give fewer statistics, or let one be learnt for each "
        "parameter, `statistics=SemiAutomaticStatistics()`; more simulations help where they are few."
    )


def _moving_shapes_message(site: str) -> str:
    """The warning of statistics whose values the parameters make more or less probable, and do not move."""
    return (
        f"The parameters change how probable values of all statistics of {site!r} are, as in a mixture, and do not "
        "move them: the likelihood embeds these as they are, and the posterior may be too wide. Give statistics that "
        "count in their place, such as the proportion of values beyond a point."
    )


MANY = 10
"""Of so many numbers in an output some may be left out."""

EACH = 100
"""So many simulations for each call along plates whose calls are alike are enough, as a rule of thumb."""


def _more(simulations: Simulations, problem: Problem) -> str:
    """What to do where there are too few simulations."""
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


def described(posterior: LearntPosterior, learnt: LearntLikelihoods) -> dict[str, Any]:
    """What a person reads; of learnt priors too."""
    problem, errors, confirmed = posterior.problem, posterior.location_error, posterior.confirmed
    info: dict[str, Any] = {"simulations": len(learnt.simulations)}
    for site, fitted in learnt.likelihoods.items():
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
        if site in errors:
            found["error of the location"] = f"moves the posterior mean by about {errors[site]:.2g} sd"
        prefix = f"{site}: " if len(learnt.likelihoods) > 1 else ""
        info |= {prefix + name: value for name, value in found.items()}
    for site, measure in posterior.measures.items() if posterior.learn_prior else ():
        mean, covariance = measure.moments()
        info[f"prior mean of {site}"] = np.asarray(mean)
        info[f"prior sd of {site}"] = np.sqrt(np.diagonal(covariance))
    if not np.isnan(posterior.moved_by_default):
        info["default form"] = f"moves the posterior {_how_far(posterior.moved_by_default, 'sd')}"
    if not np.isnan(posterior.moved_by_half):
        info["half of the simulations"] = f"move the posterior {_how_far(posterior.moved_by_half, 'sd')}"
    if not np.isnan(confirmed.proportion):
        share = f"{max(confirmed.proportion, 0.0):.0%}" if confirmed.at_most < 1.0 else "all"
        info["held-out simulations"] = f"confirm {share} of the information that the likelihood claims"
    if learnt.simulations.failures or learnt.simulations.repeated:
        info["simulations that failed"] = learnt.simulations.describe_failures()
    info |= posterior.drawn.info
    with suppress(ValueError):
        for fitted in learnt.likelihoods.values():
            fitted.surrogate.require_density()
        info["log marginal likelihood"] = posterior.drawn.log_evidence
    if learnt.one_round:
        info["rounds"] = f"one: {learnt.one_round}"
    return info
