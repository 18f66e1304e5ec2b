"""Whether an observation is like what the model simulates; and all diagnostics of an engine that has been run, by one
call, with one rule for when to distrust it."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field
from typing import Any

import jax
import numpy as np
import scipy

from numpyro_kme._core import Card, checks, door, frozen, in_jax_types, progress, split
from numpyro_kme._core.display import paragraphs
from numpyro_kme.diagnostics.calibration import LEVEL, Calibration, calibrate
from numpyro_kme.diagnostics.predictive import PredictiveCheck, names_of_numbers, predictive_check
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.learnt_posterior import LearntPosterior
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.mcmc import handlers
from numpyro_kme.mcmc.chain_checks import SurrogateCheck, check_surrogate
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.simulations import Simulations

QUANTILES = 30
"""Numbers that many draws along a plate are compared by."""

FAR = 1.0
"""Standard deviations beyond all predictions from which an observed number is named: 4 or so from their mean."""

NEIGHBOURS = 5
"""The distance to the neighbour of this number says how far out an output lies."""


@frozen
class MisspecificationTest:
    """A test of the model by one observation.

    Attributes:
        p_value: Fraction of the simulations, the observation counted among them, that are at least as far from the
            others. Under the model it is at most `a` with a probability of at most `a`, whatever the distance: the
            observation is one more simulation.
        score: Log distance of the observation to its nearest simulations.
        scores: The same for each simulation, `(m,)`.
        by_statistic: The same p-value for each statistic by itself, by its distance from the median, the smallest
            first: where it differs. With many statistics some are small by chance.
    """

    p_value: float
    score: float
    scores: np.ndarray
    by_statistic: Mapping[str, float]

    @property
    def told(self) -> str:
        """The p-value in words: whether it is the smallest that so many simulations allow, `1 / (m + 1)`."""
        return f"p-value {self.p_value:.2g}" + f", the smallest that {len(self.scores)} simulations allow" * self.least

    @property
    def least(self) -> bool:
        """Tell whether no simulation is as far from the others as the observation, which more simulations could
        show."""
        return self.p_value <= 1.0 / (len(self.scores) + 1)


@door
def misspecification_test(
    x: Any, y: Any = None, names: Sequence[str] = (), *, site: str | None = None
) -> MisspecificationTest:
    """Test whether `y` can be another row of the simulations `x`.

    The distance is Euclidean, to the fifth nearest other simulation, after robust z-scores and arcsinh of each
    statistic, and whitening of their correlations.

    Args:
        x: An engine that has been run, or its posterior: its simulations at prior draws are compared with its
            observation, draws along a plate that are alike in order of size. Or simulated outputs from the prior,
            `(m, *event)`; sort exchangeable draws first.
        y: The observation, `(*event)`; by default that of the engine. Statistics that are NaN, not observed, are left
            out, and their p-value is 1.
        names: Of the statistics, such as `("mean", "max")`; by default those of the engine's simulator, if it has any.
        site: Which simulator of the engine's model; the only one when left out.
    Cost: `m^2 n` at most.
    """
    if isinstance(x, Engine | Posterior):
        posterior = posterior_of(x)
        problem = problem_of(posterior)
        site = problem.site(site, "by `site=`")
        x, observed, labels = _at_site(posterior, site)
        y = observed if y is None else problem.simulators[site].simulator.vector(y)
        names = names or labels
    x, y = in_jax_types(x), in_jax_types(y)
    checks.real("x", x)
    checks.real("y", y)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    alike = x.ndim >= 1 and x.shape[1:] == y.shape and len(x) > NEIGHBOURS
    checks.require(alike, f"`x` must hold more than {NEIGHBOURS} rows as `y`; got shapes {x.shape} and {y.shape}.")
    names = tuple(names) or names_of_numbers("x", y.shape)
    checks.require(
        len(names) == y.size, f"`names` must name the {y.size} statistics; got {len(names)}: {list(names[:8])}."
    )
    table, seen = x.reshape(len(x), -1), y.reshape(-1)
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
    single = dict.fromkeys(names, 1.0)
    single |= zip([names[i] for i in transform.kept], np.mean(tails >= tails[-1:], axis=0).tolist())
    by_statistic = dict(sorted(single.items(), key=lambda pair: pair[1]))
    return MisspecificationTest(float(np.mean(scores >= scores[-1])), float(scores[-1]), scores[:-1], by_statistic)


def misspecification_tests(posterior: Posterior) -> dict[str, MisspecificationTest]:
    """`misspecification_test` of each site of which something was observed, and whose outputs are finite."""
    problem, simulations = problem_of(posterior), simulations_of(posterior)
    return {
        site: misspecification_test(*_at_site(posterior, site))
        for site, y in problem.observations.items()
        if problem.simulators[site].mask.any() and np.isfinite(simulations.x[site]).all() and not np.isnan(y).all()
    }


def _at_site(posterior: Posterior, site: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Simulations of a site at prior draws, its observation, and names of its numbers, without what is masked."""
    problem, simulations = problem_of(posterior), simulations_of(posterior)
    found = problem.simulators[site]
    x = found.counted(np.asarray(simulations.x[site])[: len(simulations) - simulations.proposed], 1)
    observed = found.counted(problem.observations[site])
    if found.simulator.batch_shape and found.alike and not found.simulator.ragged:
        return _in_order(x, observed, found.simulator)
    return x, observed, names_of_numbers(site, observed.shape, () if found.simulator.ragged else found.simulator.labels)


def simulations_of(posterior: Posterior) -> Simulations:
    """The simulations of a posterior that keeps them."""
    why = (
        f"{posterior.engine} keeps no simulations. Call the other diagnostics one by one, and "
        "`misspecification_test` with simulated outputs of prior draws."
    )
    return checks.given(posterior.simulations, why, TypeError)


def _in_order(x: np.ndarray, y: np.ndarray, simulator: Simulator) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Draws along plates that are alike, whose order says nothing: each of their numbers in order of size.

    Of simulations `(m, *calls, *event)` and an observation; numbers that were not observed are left out, and of many
    draws some `QUANTILES` are taken: more numbers than there are simulations have no distances that differ. A number
    that is the same in all simulations, as the smallest of many counts may be, says nothing.
    """
    size = int(np.prod(simulator.event_shape))
    of_draws, seen = x.reshape(len(x), -1, size), y.reshape(-1, size)
    kept = np.flatnonzero(~np.isnan(seen[0]))
    labels = simulator.labels or [str(i) if size > 1 else "" for i in range(size)]
    number = min(len(seen), max(3, QUANTILES // len(kept)))
    rows = np.round(np.linspace(0, len(seen) - 1, number)).astype(int)
    names = np.array([[f"sorted {labels[i]}".strip() + f"[{k}]" for i in kept] for k in rows])
    x, y = np.sort(of_draws[..., kept], axis=1)[:, rows], np.sort(seen[:, kept], axis=0)[rows]
    varies = (x != x[0]).any(axis=0)
    varies |= not varies.any()  # what none of the simulations changes is an error
    return x[:, varies], y[varies], tuple(names[varies].tolist())


@frozen
class Check:
    """Findings of `check`: calibration, the test of the model, predictions and the surrogate.

    The rule: distrust the engine on this model if `p_value` is below 0.001. It is twice the smaller of the p-values of
    the calibration and of the misspecification tests (times the number of these), so that an engine whose posteriors
    are off by less than the margin of the calibration, on a model that is right, is flagged with a probability of at
    most 0.001. The predictive check and the surrogate check are no tests: look at them.

    Attributes:
        calibration: From `calibrate`.
        misspecification: From `misspecification_test`, `{site: test}`.
        predictive: From `predictive_check`.
        surrogate: From `check_surrogate`, `{site: check}`; empty for engines without a learnt likelihood.
        single: Whether each simulator makes one event, whose statistics may be shifted.
    """

    calibration: Calibration
    misspecification: Mapping[str, MisspecificationTest] = field(default_factory=dict)
    predictive: PredictiveCheck | None = None
    surrogate: Mapping[str, SurrogateCheck] = field(default_factory=dict)
    single: bool = True

    def _card(self) -> Card:
        found = self.findings()
        hint = "print_summary(), plots.ranks(check.calibration), plots.predictive(check.predictive)"
        rows = {"found": "\n".join(found), **self._parts()}
        return Card(self._verdict, rows, hint, trouble="found" * bool(found))

    @property
    def _verdict(self) -> str:
        flagged = self.flagged()
        found = "FLAGGED, distrust this posterior" if flagged else "not flagged"
        further = "; see what was found" * (not flagged and bool(self.findings()))
        return f"Diagnostics: {found} at level {LEVEL:g}, p-value {self.p_value:.2g}{further}"

    def _parts(self) -> dict[str, str]:
        """Each part in a line."""
        calibration = self.calibration
        predictive = {} if self.predictive is None else self.predictive.smallest
        return {
            "calibration": f"p-value {calibration.p_value:.2g}, {len(calibration.tarp)} data sets show "
            f"{calibration.can_see(LEVEL / 2)}",
            **{f"model at {site}": test.told for site, test in self.misspecification.items()},
            **{f"smallest tail of {site}": tails for site, tails in predictive.items()},
        }

    @property
    def p_value(self) -> float:
        """One p-value for all tests."""
        of_model = [test.p_value * len(self.misspecification) for test in self.misspecification.values()]
        return min(1.0, 2.0 * min([self.calibration.p_value, *of_model]))

    def flagged(self, level: float = LEVEL) -> bool:
        """Tell whether to distrust the engine on this model, or the model."""
        return self.p_value < level

    def findings(self, level: float = LEVEL) -> list[str]:
        """Say what is wrong at a level, and what to do next; then what else to look at: an observation that is more
        unlike the simulations than each of these, where they are too few to flag it; data sets that were refused; the
        surrogate."""
        unlike, few, one_in = [], [], 2 * len(self.misspecification) / level
        for site, test in self.misspecification.items():
            mend = (
                f"Mend the model, leave out statistics where it differs most ({', '.join(list(test.by_statistic)[:3])};"
                f" `misspecification[{site!r}].by_statistic` has all), or use `PosteriorBootstrap`."
            )
            if test.p_value * one_in < 1.0:
                unlike.append(f"{site} ({test.told}): the model hardly makes this observation. {mend}")
            elif test.least:
                few.append(
                    f"{site} ({test.told}): no simulation is as unlike the others as the observation, and this many "
                    f"cannot flag a model by the rule; {one_in:,.0f} prior draws can. {mend}"
                )
        beyond = {} if self.predictive is None else {name: d for name, d in self.predictive.beyond.items() if d > FAR}
        if beyond:
            remedy = "Let statistics be shifted (KELFI(adjust=0.1))" if self.single else "Use `PosteriorBootstrap`"
            named = ", ".join(f"{name} by {d:.2g} sd" for name, d in list(beyond.items())[:5])
            unlike.append(
                f"beyond anything that the model makes at the posterior draws: {named}; all others fit. "
                f"{remedy}, leave these out by NaN, or mend the model."
            )
        of_surrogate = [sentence for site, found in self.surrogate.items() for sentence in found.findings(site)]
        return unlike + self.calibration.findings(level / 2) + few + of_surrogate

    def print_summary(self, verbose: bool = False) -> None:
        """Print the verdict, what to do next, and each part in a line, or whole if `verbose`."""
        found = [("found", sentence) for sentence in self.findings() or ["nothing"]]
        more = [] if verbose else [("more", "print_summary(verbose=True)")]
        print("", self._verdict, "", paragraphs([*found, *self._parts().items(), *more]), sep="\n")
        if verbose:
            print()
            self.calibration.print_summary()
            parts = (*self.misspecification.items(), ("predictions", self.predictive), *self.surrogate.items())
            for name, part in parts:
                print("" if part is None else f"\n{name}\n{part}")


@door
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
        TypeError: If the posterior keeps no simulations, before anything is simulated.
    """
    posterior = engine.posterior
    problem, tests = problem_of(posterior), misspecification_tests(posterior)
    predictive_key, calibrate_key = split(rng_key)
    calibration = calibrate(calibrate_key, engine, num_datasets, **settings)
    with nullcontext() if settings.get("progress_bar", True) else progress.no_progress_bars():
        predictive = predictive_check(predictive_key, engine)
    surrogate: Mapping[str, SurrogateCheck] = {}
    if isinstance(posterior, LearntPosterior):
        latents = {name: posterior.samples[name] for name in problem.latents}
        learnt = handlers.surrogate(problem.model, posterior.likelihoods)
        with checks.collected_warnings():
            surrogate = check_surrogate(learnt, latents, *problem.args, max_draws=200, **problem.kwargs)
    sites = [site.simulator for site in problem.simulators.values()]
    single = not any(simulator.batch_shape or simulator.ragged for simulator in sites)
    return Check(calibration, tests, predictive, surrogate, single)
