"""Whether a posterior predicts its observation, with the real simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import field

import jax
import numpy as np

from numpyro_kme._core import arviz, checks
from numpyro_kme._core.display import Card, frozen, names_and_shapes, numbers
from numpyro_kme._core.host import numpy_rng
from numpyro_kme._core.keys import split
from numpyro_kme.diagnostics.data_sets import plan_of_data
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.kernels.data_sets import lengths
from numpyro_kme.models.problem import Arrays


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
        tails = {site: list(found.items())[:3] for site, found in self.by_statistic.items()}
        return Card(
            f"Predictive check of {', '.join(self.observed)}",
            {
                "predictions": f"{len(next(iter(self.predicted.values()))):,} data sets at posterior draws",
                "failed": ", ".join(f"{number} {reason}" for reason, number in self.failures.items()),
                "observed": names_and_shapes(self.observed, lead=0),
                **{
                    f"smallest tail of {site}": ", ".join(f"{p:.2g} ({name})" for name, p in smallest)
                    for site, smallest in tails.items()
                },
            },
            "plots.predictive(check) draws the observation among the predictions; `by_statistic` has all tails",
        )

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
    checks.key(rng_key)
    checks.whole("num_draws", num_draws, 1)
    given, posterior = posterior, posterior_of(posterior)
    problem, samples = problem_of(posterior), posterior.samples
    choose_key, simulate_key = split(rng_key)
    total = len(next(iter(samples.values())))
    rows = numpy_rng(choose_key).permutation(total)[:num_draws]
    latents = {name: np.asarray(samples[name])[rows] for name in problem.latents}
    simulations = plan_of_data(given).simulate_at(simulate_key, problem, latents)
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
