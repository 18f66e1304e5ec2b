"""Which of several simulators made the data: evidence, Bayes factors and probabilities of models, with their errors;
and a check of these on data simulated from each model."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np
from scipy.special import log_softmax, ndtr, ndtri

from numpyro_kme._core import Card, arviz, checks, child, door, frozen, progress
from numpyro_kme.diagnostics.calibration import LEVEL
from numpyro_kme.diagnostics.checks import misspecification_tests
from numpyro_kme.diagnostics.predictive import Arguments, data_sets, plan_of_data
from numpyro_kme.engines.base import Engine, each_outcome, posterior_of
from numpyro_kme.engines.learnt_posterior import LearntPosterior
from numpyro_kme.engines.posterior import problem_of
from numpyro_kme.likelihoods.residual.surrogate import ResidualSurrogate
from numpyro_kme.likelihoods.trials.form import TrialsSurrogate

BINS = 5
"""Groups of stated probabilities in a table of reliability."""

UNLIKE = 0.01
"""A model of which the observation has a smaller p-value hardly makes such data."""

REACH = float(ndtri(0.95))
"""Standard errors on either side of the odds that are told: intervals of a probability of 0.9."""

UNCLEAR = 3.0
"""Odds below which data hardly tell models apart, "not worth more than a bare mention" (Kass and Raftery, 1995)."""


@frozen
class Comparison:
    r"""Models compared by how probable each, with its prior, makes the same data.

    The log evidence $\log q(y)$ of a model has a standard error, which covers what was learnt and how it was sampled,
    and those of different models are independent. A Bayes factor is a ratio of evidences.

    Attributes:
        log_evidence: By name of the model, nats.
        standard_errors: Of these, nats.
        p_values: Of `misspecification_test`: how a model that makes such data compares with one that does not is of
            little use where no model makes them.
        posteriors: What was compared.
    """

    log_evidence: Mapping[str, float]
    standard_errors: Mapping[str, float]
    p_values: Mapping[str, float]
    posteriors: Mapping[str, LearntPosterior]

    def _card(self) -> Card:
        rows = {"verdict": self.verdict}
        for name in self.order:
            about = f"log evidence {self.log_evidence[name]:.2f}, standard error {self.standard_errors[name]:.2g}"
            p = self.p_values[name]
            unlike = f"; hardly makes such data, p-value {p:.2g}" * (p < UNLIKE)
            rows[name] = f"{about}; probability {_share(self.probabilities[name])}{unlike}"
        problems = map(problem_of, self.posteriors.values())
        if not all(site.simulator.batch_shape for problem in problems for site in problem.simulators.values()):
            rows["not known"] = "whether the simulator's output tells the models apart: check_comparison"
        return Card(
            f"Comparison of {len(self.log_evidence)} models",
            rows,
            "log_bayes_factor(a, b), leave_one_out(), probabilities",
        )

    @property
    def order(self) -> list[str]:
        """Names of the models, the largest evidence first."""
        return sorted(self.log_evidence, key=lambda name: -self.log_evidence[name])

    @property
    def probabilities(self) -> dict[str, float]:
        """Probabilities of the models where all are as probable before the data: $q_k(y) / \\sum_j q_j(y)$."""
        shares = np.exp(log_softmax([*self.log_evidence.values()]))
        return dict(zip(self.log_evidence, shares.tolist()))

    def log_bayes_factor(self, first: str, second: str) -> tuple[float, float]:
        """Log Bayes factor of the first model over the second, and its standard error, nats."""
        for name in (first, second):
            checks.require(name in self.log_evidence, f"Name two of the models {self.order}; got {name!r}.")
        errors = self.standard_errors[first], self.standard_errors[second]
        return self.log_evidence[first] - self.log_evidence[second], float(np.hypot(*errors))

    @property
    def verdict(self) -> str:
        """The model that the data favour over the next, by what odds, and which odds the simulations leave."""
        first, second, *_ = self.order
        log_ratio, error = self.log_bayes_factor(first, second)
        low, high = (_odds(log_ratio + side * REACH * error) for side in (-1.0, 1.0))
        decided, none = log_ratio > REACH * error, max(self.p_values.values()) < UNLIKE
        left = f"the simulations leave {low} to {high}" if low != high else "whatever the simulations leave"
        if none:
            left += ". But no model makes such data (misspecification_test)"
        if decided:
            return f"{first} is favoured over {second}, {_odds(log_ratio)}; {left}"
        alike = log_ratio + REACH * error < np.log(UNCLEAR)
        advice = "The data hardly tell these models apart" if alike else "Simulate more"
        return f"undecided: {_odds(log_ratio)} for {first} over {second}, and {left}. {advice}"

    def leave_one_out(self) -> Any:
        """`arviz.compare` of the models, by the leave-one-out predictive densities of calls along plates.

        Raises:
            ValueError: If no site stands along a plate.
        """
        return arviz.compare({name: p.to_inference_data(log_likelihood=True) for name, p in self.posteriors.items()})


def _share(p: float) -> str:
    return f"{p:.3f}" if 0.001 <= p <= 0.999 else "below 0.001" if p < 0.5 else "above 0.999"


def _odds(log_ratio: float) -> str:
    """Odds in words: `8 to 1`, `1 to 3`."""
    size = np.exp(min(abs(log_ratio), np.log(1e6)))
    told = "over a million" if size > 0.999e6 else f"{size:.2g}" if size < 10.0 else f"{float(f'{size:.2g}'):,.0f}"
    return f"{told} to 1" if log_ratio >= 0.0 else f"1 to {told}"


@door
def compare(models: Mapping[str, Engine | LearntPosterior]) -> Comparison:
    r"""Compare models by the log evidence of the same data, $\log q(y) = \log \int q(y \mid \theta) p(d \theta)$.

    A Bayes factor compares models *with their priors*; a wider prior lowers the evidence. If the simulator returns
    summary statistics, it is the Bayes factor of the statistics, which may differ from that of the data, however many
    data there are (Robert et al., 2011): `check_comparison` shows whether the statistics tell the models apart.

    Args:
        models: `KELFI` engines that have been run, or their posteriors, by name.
    Raises:
        ValueError: If they are not comparable: other data, statistics, masks or kinds of likelihood, a likelihood that
            is no density or is raised to a power (`numpyro.handlers.scale`), a prior that was learnt from the data, or
            errors that are not known (`standard_errors=False`).
    References: Robert, Cornuet, Marin and Pillai (2011), PNAS 108.
    Example:
        >>> kme.compare({"Poisson": poisson, "negative binomial": negative_binomial})
    """
    posteriors = comparable(models)
    found, errors, p_values = {}, {}, {}
    for name, posterior in posteriors.items():
        tests = misspecification_tests(posterior).values()
        p_values[name] = min([1.0, *(len(tests) * test.p_value for test in tests)])
        found[name] = posterior.log_marginal_likelihood()
        known = checks.given(posterior.errors, f"Model {name!r} has no standard errors: run it with these.")
        errors[name] = known.of_log_evidence
    return Comparison(found, errors, p_values, posteriors)


def comparable(models: Mapping[str, Engine | LearntPosterior]) -> dict[str, LearntPosterior]:
    """The posteriors of models, which have densities of the same data; raises an error that says what differs."""
    several = isinstance(models, Mapping) and len(models) > 1
    checks.require(several, f"`models` must be a dictionary of two or more models by name; got {checks.line(models)}.")
    posteriors: dict[str, Any] = {name: posterior_of(found) for name, found in models.items()}
    for name, posterior in posteriors.items():
        checks.require(
            isinstance(posterior, LearntPosterior),
            f"Model {name!r} is a posterior of {posterior.engine}, which has no evidence. Use KELFI, or compare "
            "predictions by `predictive_check`.",
        )
        checks.require(not posterior.learn_prior, f"The prior of {name!r} was learnt from the data. Leave it out.")
        for site, fitted in posterior.likelihoods.items():
            try:
                fitted.surrogate.require_density()
            except ValueError as error:
                error.add_note(f"This is of model {name!r}.")
                raise
            scaled = bool(np.any(problem_of(posterior).simulators[site].scale != 1.0))
            checks.require(
                not scaled,
                f"The likelihood of {name!r} at {site!r} is raised to a power, and no density: leave `scale` out.",
            )
    (first, own), *others = posteriors.items()
    for name, other in others:
        for what, mine, theirs in _differences(own, other):
            raise checks.explained(
                f"The models {first!r} and {name!r} cannot be compared: {what}, {mine} and {theirs}. Both must "
                "have the same data, statistics and masks, under the same names of sites, and likelihoods of one kind."
            )
    return posteriors


def _differences(one: LearntPosterior, other: LearntPosterior):
    """Yield what two posteriors do not have in common: the thing, and what each has."""
    problems = problem_of(one), problem_of(other)
    for what in ("simulators", "factors"):
        names = [sorted(getattr(problem, what)) for problem in problems]
        if names[0] != names[1]:
            yield f"they observe other sites by {what}", *names
            return
    for site, mine in problems[0].simulators.items():
        theirs = problems[1].simulators[site]
        values = [np.asarray(problem.observations[site], np.float64) for problem in problems]
        if values[0].shape != values[1].shape or not np.array_equal(values[0], values[1], equal_nan=True):
            yield f"other data at {site!r}", *map(checks.line, values)
        if not np.array_equal(mine.mask, theirs.mask):
            yield f"other masks at {site!r}", *(f"{m.sum()} calls count" for m in (mine.mask, theirs.mask))
        if mine.simulator.labels and theirs.simulator.labels and mine.simulator.labels != theirs.simulator.labels:
            yield f"other statistics at {site!r}", mine.simulator.labels, theirs.simulator.labels
        ends = [site.simulator.bounds or (-np.inf, np.inf) for site in (mine, theirs)]
        if not all(np.all(np.asarray(end) == other) for end, other in zip(*ends)):
            yield f"other intervals at {site!r}", *map(checks.line, ends)
        kinds = [_kind(posterior.likelihoods[site].surrogate) for posterior in (one, other)]
        if kinds[0] != kinds[1]:
            yield f"likelihoods of other kinds at {site!r}", *kinds
    observed = [problem.factor_observations if problem.factors else {} for problem in problems]
    for site in observed[0]:
        if not np.array_equal(observed[0][site], observed[1][site], equal_nan=True):
            yield f"other data at {site!r}", *(checks.line(found[site]) for found in observed)


def _kind(surrogate: Any) -> str:
    """Tell what its densities are relative to: probabilities of values, or densities of numbers."""
    if not isinstance(surrogate, TrialsSurrogate):
        return "a density of all entries" if isinstance(surrogate, ResidualSurrogate) else type(surrogate).__name__
    entries = surrogate.entries
    if len(entries.categories) == 1 and len(entries.numbers) == len(entries.atoms):
        return "a density of all entries"
    numbers = [surrogate.transform.label(i) for i in entries.numbers]
    return f"probabilities and a density of {', '.join(numbers)}" if numbers else "probabilities"


@frozen
class ComparisonCheck:
    """Probabilities of models on data that were simulated from each.

    Attributes:
        names: Of the models.
        truth: Number of the model that made each data set, `(N,)`; each made as many.
        log_evidence: Of each data set under each model, `(N, K)`.
        refused: How many further data sets an engine refused, or could not be simulated.
    References: Spiegelhalter (1986), Statistics in Medicine 5.
    """

    names: tuple[str, ...]
    truth: np.ndarray
    log_evidence: np.ndarray
    refused: int = 0

    def _card(self) -> Card:
        each = [f"{share:.0%} of those by {name}" for name, share in zip(self.names, np.diag(self.confusion))]
        rows = {
            "told right": ", ".join(each),
            "probabilities": f"p-value {self.p_value:.2g} that they are calibrated",
            **{f"stated {row[0]:.2f}": f"true {row[1]:.2f} of {row[2]:.0f}" for row in self.reliability},
            "refused": f"{self.refused} further data sets" if self.refused else "",
        }
        verdict = "FLAGGED, distrust these probabilities" if self.p_value < LEVEL else "not flagged"
        return Card(
            f"Comparison on {len(self.truth)} data sets: {verdict}", rows, "confusion, reliability, probabilities"
        )

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Probabilities of the models, each as probable before the data, `(N, K)`."""
        return np.exp(log_softmax(self.log_evidence, axis=1))

    @property
    def confusion(self) -> np.ndarray:
        """Fractions of the data sets of each model (row) under which each model (column) is the most probable."""
        chosen = np.eye(len(self.names))[np.argmax(self.log_evidence, axis=1)]
        return np.stack([chosen[self.truth == k].mean(axis=0) for k in range(len(self.names))])

    @property
    def reliability(self) -> np.ndarray:
        """Mean stated probability, the fraction in which it came true, and their number, `(bins, 3)`."""
        stated, true = self.probabilities.ravel(), self._true.ravel()
        bins = np.minimum((BINS * stated).astype(int), BINS - 1)
        groups = [bins == k for k in range(BINS)]
        return np.array([[stated[g].mean(), true[g].mean(), g.sum()] for g in groups if g.any()])

    @property
    def p_value(self) -> float:
        r"""The p-value of calibration, of all models together, times their number, by Spiegelhalter's

        $$ z = \sum (o - p)(1 - 2 p) / \sqrt{\sum (1 - 2 p)^2 p (1 - p)} $$

        of outcomes `o` that have the probability `p`, which probabilities that are too sure or too unsure move.
        """
        p, o = self.probabilities, self._true
        variance = np.sum(np.square(1.0 - 2.0 * p) * p * (1.0 - p), axis=0)
        z = np.abs(np.sum((o - p) * (1.0 - 2.0 * p), axis=0)) / np.sqrt(np.maximum(variance, 1e-300))
        return float(min(1.0, len(self.names) * 2.0 * ndtr(-z.max())))

    @property
    def _true(self) -> np.ndarray:
        return np.eye(len(self.names))[self.truth]


@door
def check_comparison(
    rng_key: jax.Array,
    models: Mapping[str, Engine],
    num_datasets: int = 100,
    *,
    arguments: Arguments | None = None,
    progress_bar: bool = True,
) -> ComparisonCheck:
    """Compare models on data sets simulated from each of them, where it is known which one made the data.

    Whether probabilities are calibrated, and how often the right model is the most probable: statistics that say much
    of the parameters may say nothing of the model.

    Args:
        rng_key: The only source of randomness.
        models: Engines that have been run with `num_rounds=1`, and serve every observation, by name.
        num_datasets: `N`, of all models together.
        arguments: As in `calibrate`, of every model.
        progress_bar: Show a bar of the data sets.
    Raises:
        ValueError: As `compare` and `calibrate`.
    """
    checks.whole("num_datasets", num_datasets, 2 * len(models))
    posteriors, names = comparable(models), tuple(models)
    for engine in models.values():
        checks.instance("models[...]", engine, Engine, "an engine that has been run")
        engine.require_amortised()
    truth, data, failed = [], [], 0
    for number, size in enumerate(np.bincount(np.arange(num_datasets) % len(names))):
        engine, problem = models[names[number]], problem_of(posteriors[names[number]])
        key = child(rng_key, number)
        plan = plan_of_data(engine, progress_bar)
        simulations, _, given = data_sets(key, engine.posterior, int(size), plan, arguments)
        own = problem.kwargs
        data += [{key: value for key, value in one.items() if value is not own.get(key)} for one in given]
        truth += [number] * len(given)
        failed += sum(simulations.failures.values())
    found = np.full((len(data), len(names)), np.nan)
    for number, (name, engine) in enumerate(models.items()):
        problem, key = problem_of(posteriors[name]), child(rng_key, len(names) + number)
        outcomes = each_outcome(engine, key, problem.args, [{**problem.kwargs, **one} for one in data])
        for j, (posterior, _) in enumerate(progress.progress(outcomes, f"comparing {name}", progress_bar, len(data))):
            if isinstance(posterior, LearntPosterior):
                found[j, number] = posterior.log_marginal_likelihood()
    kept = ~np.isnan(found).any(axis=1)
    truth_kept = np.array(truth)[kept]
    alone = [name for number, name in enumerate(names) if not (truth_kept == number).any()]
    checks.require(not alone, f"No data set of {alone} has an evidence under every model: nothing to check.")
    return ComparisonCheck(names, truth_kept, found[kept], failed + int(np.sum(~kept)))
