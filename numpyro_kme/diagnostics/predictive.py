"""Data sets that a model simulates: at prior draws, where the truth is known, and at posterior draws, beside the
observation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import Card, arviz, checks, door, frozen, names_and_shapes, numbers, numpy_rng, split
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.kernels.data_sets import lengths
from numpyro_kme.models.problem import Arrays, Problem
from numpyro_kme.simulations import Retry, SimulatedMissing, Simulations
from numpyro_kme.simulations.simulate import OnFailure, Plan

Arguments = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]


@frozen
class PredictiveCheck:
    """The observation beside data simulated at posterior draws.

    Attributes:
        predicted: `{site: (draws, *batch, *event)}`; without masked outputs, which make it `(draws, outputs, *event)`.
            Of outputs of any length, with NaN behind their ends, `length of {site}` too.
        observed: `{site: (*batch, *event)}`, of the same outputs.
        names: Of the numbers of one output, by site, where they have any.
        failures: How many further predictions failed, by kind; they are left out.
    """

    predicted: Arrays
    observed: Arrays
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)

    def _card(self) -> Card:
        rows = {
            "predictions": f"{len(next(iter(self.predicted.values()))):,} data sets at posterior draws",
            "failed": ", ".join(f"{number} {reason}" for reason, number in self.failures.items()),
            "observed": names_and_shapes(self.observed, lead=0),
        }
        rows |= {f"smallest tail of {site}": tails for site, tails in self.smallest.items()}
        hint = "plots.predictive(check) draws the observation among the predictions; `by_statistic` has all tails"
        return Card(f"Predictive check of {', '.join(self.observed)}", rows, hint)

    @property
    def smallest(self) -> dict[str, str]:
        """The three smallest `tail_probabilities` of each site, in words."""
        found = {}
        for site, tails in self.by_statistic.items():
            by_chance = f", of {len(tails)}; chance alone makes the smallest about {1.0 / (len(tails) + 1):.2g}"
            smallest = ", ".join(f"{p:.2g} ({name})" for name, p in list(tails.items())[:3])
            found[site] = smallest + by_chance * (len(tails) > 3)
        return found

    @property
    def by_statistic(self) -> dict[str, dict[str, float]]:
        """`tail_probabilities` by name, the smallest first, without what is NaN: `{site: {name: tail}}`."""
        found = {}
        for site, tails in self.tail_probabilities().items():
            names = names_of_numbers(site, tails.shape, self.names.get(site, ()))
            known = [(name, p) for name, p in zip(names, tails.ravel().tolist()) if not np.isnan(p)]
            found[site] = dict(sorted(known, key=lambda pair: pair[1]))
        return found

    def tail_probabilities(self) -> dict[str, np.ndarray]:
        """Two-sided: twice the smaller fraction of predictions on either side of each observed number, ties counted
        half.

        NaN where nothing was observed or predicted. Of outputs of any length those predictions count that reach so far.

        Not a p-value of a test: the data were used twice, so that it is rarely small even where the model is wrong.
        """
        return {site: _tails(self.predicted[site], value) for site, value in self.observed.items()}

    @property
    def beyond(self) -> dict[str, float]:
        """Distances of numbers beyond all predictions of them, in standard deviations of these, by name, the farthest
        first; without those that are not."""
        found: dict[str, float] = {}
        for site, y in self.observed.items():
            x = self.predicted[site]
            with np.errstate(invalid="ignore", divide="ignore"):
                apart = np.maximum(np.min(x, axis=0) - y, y - np.max(x, axis=0)) / np.std(x, axis=0)
            names = names_of_numbers(site, y.shape, self.names.get(site, ()))
            found |= {name: d for name, d in zip(names, apart.ravel().tolist()) if d > 0.0}
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def to_inference_data(self):
        """An ArviZ object with the groups `posterior_predictive` and `observed_data`, for `az.plot_ppc` and others."""
        predicted = {site: value[None] for site, value in self.predicted.items()}
        return arviz.to_inference_data({"posterior_predictive": predicted, "observed_data": self.observed})


def _tails(predicted: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Two-sided tail probabilities of `(*shape)` observed numbers among predicted ones, `(draws, *shape)`."""
    number = np.sum(~np.isnan(predicted), axis=0)
    below = np.sum(predicted < observed, axis=0) + 0.5 * np.sum(predicted == observed, axis=0)
    below = below / np.maximum(number, 1)
    return np.where(np.isnan(observed) | (number == 0), np.nan, 2 * np.minimum(below, 1 - below))


def _lengths(x: np.ndarray, axes: int) -> np.ndarray:
    """Count the rows of each of the outputs `(*lead, *event)`, of `axes` axes each, `(*lead,)`."""
    lead = x.shape[: x.ndim - axes]
    return lengths(x.reshape(-1, *x.shape[len(lead) :])).reshape(lead).astype(float)


@door
def predictive_check(rng_key: jax.Array, posterior: Posterior | Engine, num_draws: int = 200) -> PredictiveCheck:
    """Simulate at posterior draws, with the other observed sites as they were observed.

    Args:
        rng_key: The only source of randomness.
        posterior: Of an engine that works from simulations, or that engine, whose `executor` and `timeout` serve the
            predictions too; those of a posterior are made here, one by one, without a limit.
        num_draws: How many draws, each simulated once. Predictions that fail, after what `Retry` of the engine
            repeats, are left out and counted, whatever its `on_failure`, and none is written to its `store`.
    Raises:
        SimulationError: If all fail.
    """
    checks.whole("num_draws", num_draws, 1)
    given, posterior = posterior, posterior_of(posterior)
    problem, samples = problem_of(posterior), posterior.samples
    choose_key, simulate_key = split(rng_key)
    total = len(next(iter(samples.values())))
    rows = numpy_rng(choose_key).permutation(total)[:num_draws]
    latents = {name: np.asarray(samples[name])[rows] for name in problem.latents}
    shown = isinstance(given, Engine) and given.progress_bar
    simulations = plan_of_data(given, shown).simulate_at(simulate_key, problem, latents)
    predicted, observed = {}, {}
    for site, found in problem.simulators.items():
        if found.mask.any():
            both = found.counted(np.asarray(simulations.x[site]), 1), found.counted(problem.observations[site])
            predicted[site], observed[site] = both
            if found.simulator.ragged:
                axes = found.simulator.event_dim
                predicted[f"length of {site}"], observed[f"length of {site}"] = (_lengths(x, axes) for x in both)
    return PredictiveCheck(predicted, observed, posterior.statistics, simulations.failures)


def names_of_numbers(site: str, shape: tuple[int, ...], labels: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the numbers of an array: the labels of one output, `label[call]` along plates; else `site[i,j]`."""
    if not labels:
        return tuple(numbers({site: np.zeros(shape)}, lead=0))
    calls = range(int(np.prod(shape)) // len(labels))
    return tuple(f"{label}[{call}]" if len(calls) > 1 else label for call in calls for label in labels)


def plan_of_data(found: Engine | Posterior, progress_bar: bool) -> Plan:
    """Plan by which data sets are simulated: on the executor of the engine, within its time limit, with what it takes
    for missing.

    Of a posterior alone, which knows no engine: here, one by one; NaN is what was not recorded if its simulations have
    some. What fails, after the repetitions of `Retry`, is no data set that could be observed, whatever the policy of
    the engine: it is left out and counted. Its store stays as it is, and simulations that it was given are not taken:
    these are what it learnt from.
    """
    if isinstance(found, Engine):
        plan = found.plan
    else:
        sites = problem_of(found).simulators
        known = {} if found.simulations is None else found.simulations.x
        lost = any(np.isnan(x).any() for site, x in known.items() if not sites[site].simulator.ragged)
        plan = Plan(1, missing=SimulatedMissing() if lost else None)
    policy: OnFailure = replace(plan.on_failure, then="skip") if isinstance(plan.on_failure, Retry) else "skip"
    return replace(plan, simulations=None, store=None, version=None, on_failure=policy, progress_bar=progress_bar)


def data_sets(
    rng_key: jax.Array, posterior: Posterior, number: int, plan: Plan, arguments: Arguments | None
) -> tuple[Simulations, dict[str, np.ndarray], list[dict[str, Any]]]:
    """Draw every observed site: simulators by simulation, others from their own distributions.

    Args:
        rng_key: The only source of randomness.
        posterior: Of the model, as it was run.
        number: Of data sets; fewer where simulations fail.
        plan: How to simulate, as `plan_of_data` gives it.
        arguments: As in `calibrate`.
    Returns:
        The simulations with the parameters, what was drawn and is not masked, `{site: (N, *event)}`, and keyword
        arguments of the model for each data set.
    """
    problem = problem_of(posterior)
    first = {name: latent.value[None] for name, latent in problem.latents.items()}
    problem.draw_factors(rng_key, first)  # which refuses what cannot be drawn before anything is simulated
    if arguments is None:
        absent = [site for site in (*problem.simulators, *problem.factors) if site not in problem.kwargs]
        checks.require(
            not absent,
            f"The model was not run with keyword arguments named like its sites {absent}: {sorted(problem.kwargs)}. "
            "Rename its arguments, or pass `arguments=lambda x: dict(...)`, which turns what was drawn into arguments.",
        )
    simulations = posterior.with_shifts(plan.simulate(rng_key, problem, number))
    others = problem.draw_factors(rng_key, simulations.latents)
    given = []
    for j in range(len(simulations)):
        drawn = {site: _as_observed(np.asarray(value[j]), problem, site) for site, value in simulations.x.items()}
        drawn |= {site: value[j] for site, value in others.items()}
        made = drawn if arguments is None else arguments(drawn)
        checks.instance("arguments(outputs)", made, Mapping, "a dictionary of keyword arguments of the model")
        given.append({**problem.kwargs, **made})
    _require_passed_on(rng_key, problem.with_data(*problem.args, **given[0]), simulations, others)
    data = {site: problem.simulators[site].counted(np.asarray(value), 1) for site, value in simulations.x.items()}
    return simulations, data | others, given


def _require_passed_on(rng_key: jax.Array, again: Problem, simulations: Simulations, others: Arrays) -> None:
    """Raise where the model `again` observes something else than the first data set, or draws another."""
    drawn = {site: np.asarray(value[0]) for site, value in (*simulations.x.items(), *others.items())}
    for site, value in (again.observations | again.factor_observations).items():
        x = drawn[site]
        seen = value.shape == x.shape and np.isfinite(x) & np.isfinite(value)  # the others are missing or censored
        checks.require(
            value.shape == x.shape and np.allclose(value[seen], x[seen], rtol=1e-4),
            f"The model does not observe at {site!r} what is passed to it, but {checks.line(value)} where "
            f"{checks.line(x)} was drawn. Pass `arguments=lambda x: dict(...)`, which turns that into its arguments.",
        )
    first = {name: np.asarray(value)[:1] for name, value in simulations.latents.items()}
    for site, value in again.draw_factors(rng_key, first).items():
        checks.require(
            np.allclose(value[0], drawn[site], rtol=1e-4, equal_nan=True),
            f"The distribution of site {site!r} changes with the data that are passed to the model, so that no data "
            "sets can be drawn. Let it depend on latents and covariates alone, or put the whole into a simulator.",
        )


def _as_observed(x: np.ndarray, problem: Problem, site: str) -> np.ndarray:
    """An output without the entries that were not observed in the engine's own data."""
    found, simulator = problem.simulators[site], problem.simulators[site].simulator
    missing = np.isnan(np.asarray(problem.observations[site])) & bool(found.missing)
    if simulator.bounds is not None:  # by the same limits, each data set on its own
        low, high = (np.broadcast_to(end, missing.shape) for end in simulator.bounds)
        missing = np.where(np.isfinite(low) | np.isfinite(high), (low <= x) & (x <= high), missing)
    return np.where(missing, np.nan, x) if missing.any() else x
