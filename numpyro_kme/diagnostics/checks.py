"""Whether an observation is like what the model simulates, from the prior and at draws of the posterior; and all
diagnostics of an engine that has been run, by one call, with one rule for when to distrust it."""

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import scipy
from numpyro.infer import Predictive

from numpyro_kme._core import arviz, checks
from numpyro_kme._core.display import Card, brief, shown
from numpyro_kme._core.host import numpy_rng
from numpyro_kme._core.keys import split
from numpyro_kme.diagnostics.calibration import LEVEL, Calibration, calibrate
from numpyro_kme.engines._learnt_posterior import LearntPosterior
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.kernels.ragged import lengths
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.mcmc import handlers
from numpyro_kme.mcmc.chain_checks import SurrogateCheck, check_surrogate
from numpyro_kme.models import tracing
from numpyro_kme.models.problem import Arrays

NEIGHBOURS = 5
"""The distance to the neighbour of this number says how far out an output lies."""


@shown
@dataclass(frozen=True)
class MisspecificationTest:
    """A test of the model by one observation.

    Attributes:
        p_value: Fraction of the simulations, the observation counted among them, that are at least as far from the
            others. Under the model it is at most `a` with a probability of at most `a`, whatever the distance: the
            observation is one more simulation.
        score: Log distance of the observation to its nearest simulations.
        scores: The same for each simulation, `(m,)`.
        witness: The same p-value for each statistic by itself, by its distance from the median, `(n,)`: where it
            differs. With many statistics some are small by chance.
        names: Of the statistics, if they have any.
    """

    p_value: float
    score: float
    scores: np.ndarray = field(repr=False)
    witness: np.ndarray
    names: tuple[str, ...] = ()

    @property
    def by_statistic(self) -> dict[str, float]:
        """`witness` by name, or by number where statistics have no names, the smallest first."""
        labels = self.names or tuple(map(str, range(len(self.witness))))
        return {labels[i]: float(self.witness[i]) for i in np.argsort(self.witness, kind="stable")}

    def _card(self) -> Card:
        worst = list(self.by_statistic.items())[:5]
        kind = "" if self.names else "statistic "
        return Card(
            f"Is the observation like the simulations? p-value {self.p_value:.2g}",
            {
                "distance": f"log {self.score:.3g}; {len(self.scores)} simulations, {brief(self.scores)}",
                "most unlike": ", ".join(f"{kind}{name} ({p:.2g})" for name, p in worst),
                "": f"p-values of single statistics, of {len(self.witness)}: some are small by chance",
            },
            "plots.predictive draws the observation among simulations; `by_statistic` has all of them",
        )


def misspecification_test(x: Any, y: Any, names: Sequence[str] = ()) -> MisspecificationTest:
    """Test whether `y` can be another row of the simulations `x`.

    The distance is Euclidean, to the fifth nearest other simulation, after robust z-scores and arcsinh of each
    statistic, and whitening of their correlations.

    Args:
        x: Simulated outputs from the prior, `(m, *event)`, such as `kelfi.posterior.simulations.x["x"]`.
        y: The observation, `(*event)`, or a dictionary of a number for each of the `names`; statistics that are NaN,
            not observed, are left out, and their `witness` is 1.
        names: Of the statistics, such as `("mean", "max")`; `check` takes those of the simulator.
    Cost: `m^2 n` at most.
    """
    if isinstance(y, Mapping):
        checks.require(
            set(names) == set(y),
            f"`names` must give the entries of `y` in the order of the columns of `x`; got names={tuple(names)} for "
            f"{list(y)}. Pass names=posterior.statistics[site], or run `check`, which knows them.",
        )
        y = np.array([y[name] for name in names])
    checks.real("x", np.asarray(x))
    checks.real("y", np.asarray(y))
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    checks.require(
        x.ndim >= 1 and x.shape[1:] == y.shape and len(x) > NEIGHBOURS,
        f"`x` must hold more than {NEIGHBOURS} simulations of the shape of `y`; got shapes {x.shape} and {y.shape}.",
    )
    table, seen = x.reshape(len(x), -1), y.reshape(-1)
    checks.require(
        len(names) in (0, seen.size),
        f"`names` must name the {seen.size} statistics; got {len(names)}: {list(names)[:8]}.",
    )
    transform = StatisticsTransform.fit(table)
    if transform.lacks(seen):
        transform = transform.some(transform.numbers(~np.isnan(seen), np.zeros(seen.size, bool)))
    transform.check(seen)
    together = np.asarray(transform.forward(np.concatenate([table, seen[None]])), np.float64)
    centred = together - together.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    white = centred @ (vectors / np.sqrt(np.maximum(values, 1e-10)))
    distances, _ = scipy.spatial.KDTree(white).query(white, NEIGHBOURS + 1)  # the nearest of all is the row itself
    scores = np.log(np.maximum(distances[:, NEIGHBOURS], 1e-300))
    tails = np.abs(together - np.median(together, axis=0))
    witness = np.ones(table.shape[1])
    witness[list(transform.kept)] = np.mean(tails >= tails[-1:], axis=0)
    return MisspecificationTest(
        float(np.mean(scores >= scores[-1])), float(scores[-1]), scores[:-1], witness, tuple(names)
    )


@shown
@dataclass(frozen=True)
class PredictiveCheck:
    """The observation beside data simulated at posterior draws.

    Attributes:
        predicted: `{site: (draws, *batch, *event)}`; without masked outputs, which make it `(draws, outputs, *event)`.
        observed: `{site: (*batch, *event)}`, of the same outputs.
        names: Of the numbers of one output, by site, where they have any.
        ragged: Numbers of axes of one output, by site, where outputs are of any length, with NaN behind their ends.
    """

    predicted: Arrays = field(repr=False)
    observed: Arrays = field(repr=False)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    ragged: Mapping[str, int] = field(default_factory=dict, repr=False)

    def _card(self) -> Card:
        least = {site: np.nanmin(tails) for site, tails in self.tail_probabilities().items() if tails.size}
        return Card(
            f"Predictive check of {', '.join(self.observed)}",
            {f"smallest tail of {site}": f"{tail:.2g}" for site, tail in least.items()},
            "plots.predictive(check) draws the observation among the predictions",
        )

    def tail_probabilities(self) -> dict[str, np.ndarray]:
        """Two-sided: twice the smaller fraction of predictions on either side of each observed number, ties counted
        half.

        NaN where nothing was observed or predicted. Of outputs of any length those predictions count that reach so far,
        and how long the observed ones are is a number of its own, `length of` the site.

        Not a p-value of a test: the data were used twice, so that it is rarely small even where the model is wrong.
        """
        pairs = {site: (self.predicted[site], value) for site, value in self.observed.items()}
        for site, axes in self.ragged.items():
            pairs[f"length of {site}"] = (_lengths(pairs[site][0], axes), _lengths(pairs[site][1], axes))
        return {site: _tails(*pair) for site, pair in pairs.items()}

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
    """How many rows each of the outputs `(*lead, *event)` has, of `axes` axes each, `(*lead,)`."""
    lead = x.shape[: x.ndim - axes]
    return lengths(x.reshape(-1, *x.shape[len(lead) :])).reshape(lead).astype(float)


def predictive_check(rng_key: jax.Array, posterior: Posterior | Engine, num_draws: int = 200) -> PredictiveCheck:
    """Simulate at posterior draws.

    Args:
        rng_key: The only source of randomness.
        posterior: Of an engine that works from simulations, or that engine.
        num_draws: How many draws, each simulated once.
    """
    checks.key(rng_key)
    checks.whole("num_draws", num_draws, 1)
    posterior = posterior_of(posterior)
    problem, samples = problem_of(posterior), posterior.samples
    choose_key, simulate_key = split(rng_key)
    total = len(next(iter(samples.values())))
    rows = numpy_rng(choose_key).permutation(total)[:num_draws]
    latents = {name: np.asarray(samples[name])[rows] for name in problem.latents}
    observed = problem.observations
    unseen = {name: None if name in observed else value for name, value in problem.kwargs.items()}
    with tracing.one_model_at_a_time(), tracing.as_numpyro_does():
        predictive = Predictive(problem.model, latents, return_sites=list(observed), parallel=True)
        predicted = predictive(simulate_key, *problem.args, **unseen)
    for site, value in observed.items():
        checks.require(
            not np.array_equal(np.asarray(predicted[site])[0], value, equal_nan=True) or len(rows) == 1,
            f"The model keeps the observation at {site!r}: let it take it as a keyword argument of that name, so that "
            "leaving it out simulates.",
        )
    sites = {site: found for site, found in problem.simulators.items() if found.mask.any()}
    return PredictiveCheck(
        {site: found.counted(np.asarray(predicted[site]), 1) for site, found in sites.items()},
        {site: found.counted(observed[site]) for site, found in sites.items()},
        posterior.statistics,
        {site: found.simulator.event_dim for site, found in sites.items() if found.simulator.ragged},
    )


@shown
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

    def _card(self) -> Card:
        verdict = "FLAGGED: distrust this posterior" if self.flagged() else "not flagged"
        return Card(
            f"Diagnostics: {verdict} at level {LEVEL:g}",
            {
                "p-value": self.p_value,
                "calibration": f"p-value {self.calibration.p_value:.2g}, {len(self.calibration.tarp)} data sets",
                **{f"model at {site}": f"p-value {test.p_value:.2g}" for site, test in self.misspecification.items()},
                "found": "; ".join(self.findings()),
            },
            "print_summary(), plots.ranks(check.calibration), plots.predictive(check.predictive)",
        )

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
            f"statistics where it differs most ({', '.join(list(test.by_statistic)[:3])}; "
            f"`misspecification[{site!r}].by_statistic` has all), or use `PosteriorBootstrap`, which does not trust "
            "the model."
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
            print(f"{site}: smallest posterior predictive tail of {tails.size} observed numbers {np.nanmin(tails):.2g}")
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
    if simulations is None:
        raise checks.explained(
            f"`engine` must keep its simulations; {type(engine).__name__} does not. Call the diagnostics one by one.",
            TypeError,
        )
    predictive_key, calibrate_key = split(rng_key)
    predictive = predictive_check(predictive_key, posterior)
    tests = {}
    for site, y in problem.observations.items():
        found = problem.simulators[site]
        x = np.asarray(simulations.x[site])[: len(simulations) - simulations.proposed]
        if found.mask.any() and np.isfinite(x).all() and not np.isnan(y).all():
            names = found.simulator.labels if found.single else ()
            tests[site] = misspecification_test(found.counted(x, 1), found.counted(np.asarray(y)), names)
    surrogate: Mapping[str, SurrogateCheck] = {}
    if isinstance(posterior, LearntPosterior):
        latents = {name: posterior.samples[name] for name in problem.latents}
        learnt = handlers.surrogate(problem.model, posterior.likelihoods)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            surrogate = check_surrogate(learnt, latents, *problem.args, max_draws=200, **problem.kwargs)
    calibration = calibrate(calibrate_key, engine, num_datasets, **settings)
    return Check(calibration, tests, predictive, surrogate)
