"""What KELFI learns from rounds of simulations: the likelihood of each simulator site, and the posterior of any
observation; and where the next round goes."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import numpy as np

from numpyro_kme._core import Recomputed, checks, frozen, host, numpy_rng, progress, robust_standard_deviation, split
from numpyro_kme.embeddings.measures import Measure, Points, standard_normal
from numpyro_kme.engines.base import learn_success
from numpyro_kme.engines.learnt_model import PARTICLES, LearntModel, PosteriorDraws, draw_in_coordinates, draw_in_model
from numpyro_kme.engines.learnt_posterior import LearntPosterior, describe, emit_warnings, plain
from numpyro_kme.engines.posterior import arviz_groups, sites_at
from numpyro_kme.likelihoods.adjusted import Adjusted
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.descent import ravel
from numpyro_kme.likelihoods.distribution import FittedLikelihood, default_form, fit_likelihood, with_halves
from numpyro_kme.likelihoods.posterior import learn_normal
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import StandardErrors
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.simulations import of_rows

Latents = Mapping[str, np.ndarray]

NARROW = 0.7
"""A proposal is narrow if the standard deviation of some number is below this fraction of the prior's."""


class Proposal(abc.ABC):
    """The parameters at which an engine simulates next.

    Attributes:
        power: `choose` gets draws of the prior times the likelihood to this power.
    """

    power: float = 1.0

    @abc.abstractmethod
    def choose(
        self, rng_key: jax.Array, draws: Latents, variance: Callable[[Latents], np.ndarray], size: int
    ) -> dict[str, np.ndarray]:
        """Latents of the next simulations, `{site: (size, *shape)}`.

        Args:
            rng_key: The only source of randomness.
            draws: Draws from the posterior of the last round, with the likelihood to the power `power`,
                `{site: (n, *shape)}`.
            variance: Variance of the surrogate at latents, `{site: (k, *shape)} -> (k,)`.
            size: How many.
        """


@frozen
class FromPosterior(Proposal):
    r"""Simulate at draws from the power posterior $p(\theta) q(y \mid \theta)^t$ of the last round.

    With the power `t = 1/2` they reach about 1.4 times as far as the posterior. So the likelihood is learnt around it,
    too, and the next round can correct a posterior that came out too narrow.

    Args:
        power: `t`, above 0 and at most 1; 1 is the posterior itself.
    """

    power: float = 0.5

    def __post_init__(self):
        checks.require(0.0 < self.power <= 1.0, f"`power` must lie above 0 and be at most 1; got {self.power}.")

    def choose(self, rng_key, draws, variance, size):
        """Draws without replacement."""
        return take(rng_key, draws, size)


@frozen
class FromVariance(Proposal):
    """Simulate at posterior draws, more often where the surrogate's Gaussian-process variance is large.

    Of `candidates * size` posterior draws, `size` are drawn without replacement with odds in proportion to the
    variance: the posterior says where it matters, the variance where nothing was simulated yet. For forms that have a
    variance (`KernelMeans`).

    Args:
        candidates: Posterior draws for each simulation.
    """

    candidates: int = 4

    def __post_init__(self):
        checks.whole("candidates", self.candidates, 1)

    def choose(self, rng_key, draws, variance, size):
        """Posterior draws with odds in proportion to the variance."""
        first_key, second_key = split(rng_key)
        among = take(first_key, draws, min(self.candidates * size, len(next(iter(draws.values())))))
        odds = np.maximum(np.asarray(variance(among), np.float64), 1e-12)
        return take(second_key, among, size, odds / odds.sum())


@dataclass(frozen=True)
class LearntLikelihoods(Recomputed):
    """Likelihoods that were learnt from simulations, whatever the observation.

    Attributes:
        engine: The settings.
        problem: The model, as it was run.
        simulations: The simulations used for fitting.
        likelihoods: The learnt likelihood of each simulator site.
        measures: The prior of each simulator's coordinates.
        made: Numbers of simulations of the rounds.
    """

    engine: Any = field(repr=False)
    problem: Problem = field(repr=False)
    simulations: Simulations
    likelihoods: Mapping[str, FittedLikelihood]
    measures: Mapping[str, Measure]
    made: tuple[int, ...]

    @classmethod
    def learn(
        cls, engine: Any, rng_key: jax.Array, problem: Problem, simulations: Simulations, before: Self | None = None
    ) -> "LearntLikelihoods":
        """Learn from all simulations, with coordinates and settings of what was learnt `before` from the first of
        these."""
        likelihoods, measures, charts, made = {}, {}, {}, before.made if before else ()
        with progress.phase(f"learning from {len(simulations)} simulations", engine.progress_bar):
            for site in problem.observations:
                theta, x, form, further = training(engine, rng_key, problem, site, simulations)
                first = before.likelihoods[site].coordinates if before else None
                charts[site] = coordinates = (first or Coordinates.from_prior(rng_key, problem, site)).covering(theta)
                known = before if before and coordinates is first else None
                measures[site] = known.measures[site] if known else prior_measure(rng_key, problem, site, coordinates)
                if known and isinstance(form, Adjusted):
                    form = form.as_in(known.likelihoods[site].surrogate)
                how = {"coordinates": coordinates, "measure": measures[site], **further}
                fitted = fit_likelihood(theta, x, form=form, standard_errors=False, **how)
                fitted = replace(fitted, near=simulations.near.get(site))
                likelihoods[site] = fitted.after(known.likelihoods[site]) if known else fitted
        for site, success in learn_success(problem, simulations, charts).items():
            likelihoods[site] = replace(likelihoods[site], success=success)
        return cls(engine, problem, simulations, likelihoods, measures, (*made, len(simulations) - sum(made)))

    def with_halves(self, rng_key: jax.Array) -> Self:
        """Learn from halves of the simulations too, for standard errors."""
        found, problem = {}, self.problem
        with progress.phase("learning again from halves of the simulations", self.engine.progress_bar):
            for site, fitted in self.likelihoods.items():
                _, x, form, further = training(self.engine, rng_key, problem, site, self.simulations)
                found[site] = with_halves(fitted, x, form=form, measure=self.measures[site], y=further["y"])
        return replace(self, likelihoods=found)

    def posterior(self, rng_key: jax.Array, problem: Problem) -> LearntPosterior:
        """The posterior of the observation of a model."""
        self.require_amortised()
        return self.reported(problem, self.draw(rng_key, problem))

    def draw(self, rng_key: jax.Array, problem: Problem, power: float = 1.0) -> PosteriorDraws:
        """Draws from the posterior with the likelihood to this power."""
        for name, learnt in self.likelihoods.items():
            learnt.coordinates.require_simulated(problem.simulators[name].simulator.arguments)
        site, fitted = next(iter(self.likelihoods.items()))
        coordinates, measures, number = fitted.coordinates, dict(self.measures), self.engine.num_samples
        model = LearntModel(problem, self.likelihoods)
        seen = problem.simulators[site]
        shared = len(self.likelihoods) == 1 and not (problem.factors or seen.simulator.groups) and bool(seen.mask.any())
        determined = shared and coordinates.exact and coordinates.one_to_one  # by one simulator's coordinates
        if self.engine.learn_prior:
            checks.require(
                determined and plain(problem) and fitted.success is None,
                "`learn_prior` needs one simulator site, neither masked nor scaled, whose calls all succeed, no other "
                "observation, and a prior that is normal in the coordinates of the simulator's arguments. "
                f"{coordinates.note}",
            )
            measures[site] = learn_normal(fitted.at(problem.observations[site]))
        with progress.phase("sampling the posterior", self.engine.progress_bar):
            if determined:
                found = draw_in_coordinates(rng_key, model, measures[site], number, power)
            else:
                found = draw_in_model(rng_key, model, number, power)
        return found._replace(measures=measures)

    def variance(self, latents: Latents) -> np.ndarray:
        """Variance of the surrogate at latents `{site: (n, *shape)}`, relative to far from all simulations, `(n,)`."""
        site = self.problem.site()
        fitted = self.likelihoods[site]
        return fitted.surrogate.variance(fitted.coordinates.table(self.problem.arguments(latents)[site]))

    def reported(self, problem: Problem, drawn: PosteriorDraws) -> LearntPosterior:
        """The draws as a posterior, with what is reported of them; warns of what is wrong with it."""
        extrapolated = {}
        for site, fitted in self.likelihoods.items():
            outside = fitted.beyond(problem.observations[site], drawn.coordinates[site], problem.simulators[site].mask)
            extrapolated[site] = outside.mean(axis=0)
        posterior = LearntPosterior(
            engine=type(self.engine).__name__,
            samples=sites_at(problem, drawn.latents),
            fields={"lp": drawn.log_posterior},
            groups=arviz_groups(problem, self.simulations, sites_at(problem, self.simulations.latents)),
            problem=problem,
            simulations=self.simulations,
            likelihoods=self.likelihoods,
            learn_prior=self.engine.learn_prior,
            drawn=drawn,
            extrapolated=extrapolated,
            errors=self.standard_errors(problem, drawn),
        )
        emit_warnings(posterior)
        rounds = {"rounds": f"simulations {', '.join(map(str, self.made))}"} if len(self.made) > 1 else {}
        return replace(posterior, info=describe(posterior) | rounds)

    def standard_errors(self, problem: Problem, drawn: PosteriorDraws) -> StandardErrors | None:
        """Standard errors of the posterior; None where there is nothing to compare with."""
        known = max(self.likelihoods.values(), key=lambda fitted: len(fitted.others))
        if len(known.others) < 2:
            return None
        logs, table = [], ravel(drawn.latents, 1)
        with host.one_blas_thread, checks.collected_warnings():
            for number in range(len(known.others)):
                chosen = {
                    name: f.others[number] if len(f.others) == len(known.others) else f  # where halves lack a statistic
                    for name, f in self.likelihoods.items()
                }
                other = LearntModel(problem, chosen).log_likelihood(drawn.coordinates)
                logs.append(np.broadcast_to(other - drawn.log_likelihood, len(table)))
        return StandardErrors.of(np.array(logs), known.shares, drawn.info["effective sample size"], table)

    def require_amortised(self) -> None:
        """Raise an error unless they serve every observation."""
        checks.require(
            not self.simulations.near,
            f"The likelihood was learnt for the observation of `run`: {self.simulations.proposed} simulations "
            "were made where that posterior is. Run an engine with num_rounds=1, which serves every observation.",
        )


def training(
    engine: Any, rng_key: jax.Array, problem: Problem, site: str, simulations: Simulations
) -> tuple[np.ndarray, np.ndarray, Form, dict[str, Any]]:
    """Arguments `(r, p)` and outputs `(r, *event)` of the single calls that a site's likelihood is learnt from, its
    form, and what was observed, with names: along plates there are many observations.

    Draws that share parameters, and calls with parameters of their own, of groups or covariates, become rows: as many
    of each simulation as the form takes in all, and one at least. First stands one of each, then another of each.
    Calls are drawn at random, so that covariates are drawn from those simulated.
    """
    found, number = problem.simulators[site], len(simulations)
    simulator = found.simulator
    arguments, x = found.rows(np.asarray(simulations.arguments[site]), np.asarray(simulations.x[site]))
    if not (simulator.ragged or engine.missing):
        checks.sound("x", x, "Leave out the simulations that failed.")
    draws = x.reshape(len(x), -1, *simulator.event_shape)
    outputs, once = x.reshape(-1, *simulator.event_shape), found.mask.size == 1
    default = default_form(outputs, draws.shape[1] > 1, simulator.bounds, once)
    calls = len(arguments) // number
    form = engine.form_at(site, found) or default
    if isinstance(form, Adjusted):
        form = form.known(x[: calls * (number - simulations.proposed)])
    chosen = some_calls(rng_key, number, calls, form.most_calls)
    arguments, draws = arguments[chosen], draws[chosen]
    used = int(np.clip(form.most_calls // len(draws), 1, draws.shape[1]))
    theta, x = np.tile(arguments, (used, 1)), draws[:, :used].swapaxes(0, 1).reshape(-1, *simulator.event_shape)
    whole = found.mask.size == 1 and (simulator.ragged or not (found.weighted or found.missing))
    observed = np.reshape(problem.observations[site], simulator.event_shape) if whole else None
    return theta, x, form, {"y": observed, "names": simulator.labels_at(site)}


def prior_measure(rng_key: jax.Array, problem: Problem, site: str, coordinates: Coordinates) -> Measure:
    """Distribution of the coordinates under the prior."""
    if coordinates.exact:
        return standard_normal(coordinates.dim)
    drawn = problem.draw(rng_key, PARTICLES).arguments[site]  # which stand in for what is not known
    arguments = drawn.reshape(-1, drawn.shape[-1])
    chosen = some_calls(rng_key, PARTICLES, len(arguments) // PARTICLES, PARTICLES)
    return Points(coordinates.table(arguments[chosen]))


def some_calls(rng_key: jax.Array, simulations: int, calls: int, rows: int) -> np.ndarray:
    """Numbers of some of the calls of each simulation, none twice, in a table with a row for each call of each: about
    `rows` in all, and one of each simulation at least."""
    used = int(np.clip(rows // simulations, 1, calls))
    order = np.argsort(numpy_rng(rng_key).random((simulations, calls)), axis=1)[:, :used]
    return (calls * np.arange(simulations)[:, None] + np.sort(order, axis=1)).ravel()


def take(rng_key: jax.Array, latents: Latents, size: int, odds: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """`size` draws, none twice unless there are too few."""
    number = len(next(iter(latents.values())))
    index = numpy_rng(rng_key).choice(number, size, replace=size > number, p=odds)
    return of_rows(latents, index)


def is_narrow(draws: Latents, prior: Latents) -> bool:
    """True if the robust standard deviation of some number is below `NARROW` of the prior's."""
    tables = ravel(draws, 1), ravel(prior, 1)
    varying = np.ptp(tables[1], axis=0) > 1e-6 * np.max(np.abs(tables[1]), axis=0)  # by more than rounding in float32
    own, other = [np.apply_along_axis(robust_standard_deviation, 0, table) for table in tables]
    return bool(np.any(varying & (own < NARROW * other)))
