"""What is learnt from simulations: the likelihood of each simulator site, and how."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import numpy_rng
from numpyro_kme.embeddings.measures import Measure, NormalMixture, Points
from numpyro_kme.engines._comparison import Half
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.fit import fit_likelihood
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations

PRIOR_DRAWS = 4000
"""Prior draws that stand in for a distribution of coordinates that is not known."""


class LearntLikelihoods(NamedTuple):
    """What was learnt from simulations, whatever the observation.

    Attributes:
        simulations: They.
        likelihoods: The learnt likelihood of each simulator site.
        measures: The prior of each simulator's coordinates.
        history: For each round, how many simulations it made and how far it moved the posterior.
        default: Likelihoods of the default form, with which those of the published form are compared; empty for others.
        half: What half of the simulations teach, with which likelihoods of the default form are compared.
        amortised: Whether they serve every observation: no round simulated where the posterior of one is.
        one_round: Why the engine made one round, where it chose to; otherwise empty.
    """

    simulations: Simulations
    likelihoods: Mapping[str, FittedLikelihood]
    measures: Mapping[str, Measure]
    history: tuple[tuple[int, float], ...]
    default: Mapping[str, FittedLikelihood] = {}
    half: Mapping[str, Half] = {}
    amortised: bool = True
    one_round: str = ""

    @property
    def half_likelihoods(self) -> dict[str, FittedLikelihood]:
        """The likelihoods of half of the simulations."""
        return {site: half.likelihood for site, half in self.half.items()}

    def require_amortised(self) -> None:
        """Raise an error unless they serve every observation."""
        checks.require(
            self.amortised,
            "Run an engine with num_rounds=1 for this, whose simulations are at prior draws alone and serve every "
            "observation; or `run` again for one other observation. The likelihood was learnt for the observation of "
            f"`run`: of {len(self.simulations)} simulations {self.simulations.proposed} were made where a posterior "
            "is.",
        )


Forms = Mapping[str, Form | None]
"""Form of the likelihood of each site."""


def learn(
    rng_key: jax.Array, problem: Problem, simulations: Simulations, forms: Forms, history=()
) -> LearntLikelihoods:
    """Learn from all simulations."""
    measures: dict[str, Measure] = {}
    likelihoods = {}
    for site, form in forms.items():
        theta, x = _table(rng_key, problem, simulations, site, form)
        coordinates = Coordinates.from_simulations(rng_key, problem, site, simulations).covering(theta)
        measures[site] = _measure(rng_key, problem, site, coordinates)
        how = _how(problem, site, coordinates, measures[site])
        likelihoods[site] = fit_likelihood(theta, x, form=form, **how)
    return LearntLikelihoods(simulations, likelihoods, measures, history or ((len(simulations), np.inf),))


def learn_others(
    rng_key: jax.Array, problem: Problem, learnt: LearntLikelihoods, forms: Forms, one: Callable[..., Any]
) -> dict[str, Any]:
    """Fit comparison likelihoods by `one` from the same simulations, for the sites where it finds something."""
    found = {}
    for site, fitted in learnt.likelihoods.items():
        theta, x = _table(rng_key, problem, learnt.simulations, site, forms[site])
        how = _how(problem, site, fitted.coordinates, learnt.measures[site])
        found[site] = one(fitted, forms[site], theta, x, **how)
    return {site: other for site, other in found.items() if other is not None}


def _table(rng_key: jax.Array, problem: Problem, simulations: Simulations, site: str, form: Form | None):
    """Arguments and outputs of the calls that the likelihood of a site is learnt from."""
    most = (ResidualKernelMeans if form is None else form).most_calls
    return training_table(rng_key, simulations, problem, site, most)


def _measure(rng_key: jax.Array, problem: Problem, site: str, coordinates: Coordinates) -> Measure:
    """Distribution of the coordinates under the prior."""
    if coordinates.exact:
        return NormalMixture(*coordinates.mixture)
    drawn = problem.draw(rng_key, PRIOR_DRAWS).arguments[site]
    arguments = drawn.reshape(-1, drawn.shape[-1])
    chosen = some_calls(rng_key, PRIOR_DRAWS, len(arguments) // PRIOR_DRAWS, PRIOR_DRAWS)
    return Points(coordinates.table(arguments[chosen]))


def _how(problem: Problem, site: str, coordinates: Coordinates, measure: Measure) -> dict[str, Any]:
    """How the likelihood of a site is learnt, beside its form."""
    found = problem.simulators[site]
    whole = found.simulator.ragged or not (found.weighted or found.missing)
    seen = None  # along plates there are many
    if found.mask.size == 1 and whole:
        seen = np.reshape(problem.observations[site], found.simulator.event_shape)
    return dict(coordinates=coordinates, measure=measure, y=seen, names=found.simulator.labels)


def training_table(
    rng_key: jax.Array, simulations: Simulations, problem: Problem, site: str, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Arguments `(r, p)` and outputs `(r, *event)` of single calls, from simulations that may run along plates.

    Draws that share parameters, and calls with parameters of their own, of groups or covariates, become rows: as many
    of each simulation as make `most` rows in all, and one at least. First stands one of each, then another of each.
    Calls are drawn at random, so that covariates are drawn from those simulated.
    """
    arguments, x = problem.simulators[site].rows(
        np.asarray(simulations.arguments[site]), np.asarray(simulations.x[site])
    )
    event_shape = problem.simulators[site].simulator.event_shape
    draws = x.reshape(len(x), -1, *event_shape)
    chosen = some_calls(rng_key, len(simulations), len(arguments) // len(simulations), most)
    arguments, draws = arguments[chosen], draws[chosen]
    used = int(np.clip(most // len(draws), 1, draws.shape[1]))
    return np.tile(arguments, (used, 1)), draws[:, :used].swapaxes(0, 1).reshape(-1, *event_shape)


def some_calls(rng_key: jax.Array, simulations: int, calls: int, rows: int) -> np.ndarray:
    """Numbers of some of the calls of each simulation, none twice, in a table with a row for each call of each: about
    `rows` in all, and one of each simulation at least."""
    used = int(np.clip(rows // simulations, 1, calls))
    if used == calls:
        return np.arange(simulations * calls)
    order = np.argsort(numpy_rng(rng_key).random((simulations, calls)), axis=1)[:, :used]
    return (calls * np.arange(simulations)[:, None] + np.sort(order, axis=1)).ravel()
