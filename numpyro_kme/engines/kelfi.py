"""KELFI: kernel embedding likelihood-free inference."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import numpy as np

from numpyro_kme._core import checks, progress
from numpyro_kme._core.keys import child, split
from numpyro_kme.engines import rounds
from numpyro_kme.engines.base import check_positive, observed_anew
from numpyro_kme.engines.learnt_likelihoods import LearntLikelihoods, form_of, prior_measure, statistics_of
from numpyro_kme.engines.learnt_model import joint_values
from numpyro_kme.engines.learnt_posterior import LearntPosterior, observation, observations
from numpyro_kme.engines.posteriors import Trained
from numpyro_kme.engines.reports import UNSURE, emit_warnings
from numpyro_kme.engines.rounds import FromPosterior, FromVariance, Proposal
from numpyro_kme.engines.simulation_engine import SimulationEngine
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.fit import fit_likelihood
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.recorded import Recorded
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.summaries.base import FEWEST, Statistics
from numpyro_kme.likelihoods.summaries.selection import SelectedStatistics
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import SimulatedMissing

FIRST = 150
"""Simulations of the first round at least, from which alone statistics are learnt at first."""


@dataclass(eq=False, repr=False, kw_only=True)
class KELFI(SimulationEngine):
    r"""Kernel embedding likelihood-free inference: a posterior from a few hundred simulations.

    The likelihood of the simulator is learnt as a kernel mean embedding. In the published form of Hsu and Ramos (2019)
    it is $q(y \mid \theta) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(\theta)$. The default is this
    package's location-scale form, the same of standardised residuals (`ResidualKernelMeans`): an extension, not KELFI
    as published. Hyperparameters are learnt by leave-one-out prediction of the simulations. Where the
    posterior is narrow, further rounds simulate around it. With `num_rounds=1` all simulations are at prior draws, and
    the likelihood serves every observation: `condition` on a new one neither simulates nor learns again.

    Args:
        model: A NumPyro model with observed `Simulator` sites; other likelihoods and factors may stand beside them.
        num_simulations: Number `m` of simulations in all, at draws from the prior if there is one round.
        num_samples: Number of equally weighted posterior draws.
        form: Form and settings of the surrogate; `ResidualKernelMeans()` when left out. `KernelMeans()` is the
            published form: closed forms, data kernels on data sets and time series, `learn_prior`,
            `surrogate_variance`. `KernelStatistics(kernel)` learns statistics of data sets and series. For a simulator
            of outputs of any length (`Simulator(ragged=True)`) how long they are is a statistic too, and the others
            are learnt given it.
        statistics: How summary statistics are learnt from the same simulations, for raw outputs such as series and
            images: `SemiAutomaticStatistics()`, or `SelectedStatistics()` among many; or a mapping from sites to these.
            Each round learns them again, from all simulations. When left out, outputs are the statistics.
        simulations: Simulations made elsewhere, instead of new ones (`Simulations`).
        num_rounds: Number of rounds, of equal size. The first simulates at prior draws; each further one where
            `proposal` says, learns from all simulations so far, and samples. The likelihood may be learnt from any
            proposal, so nothing is reweighted. When left out the engine chooses: five rounds, or the rest at prior
            draws if the first round's proposal is about as wide as the prior, or more calls along plates are observed
            than there are numbers to infer, and half of its simulations move the posterior little. It makes one
            round for `simulations` that are given, for a `store`, for other forms than the default, for fewer than 100
            simulations, and for such plates along which parameters or covariates vary.
        proposal: Where further rounds simulate: `FromPosterior()` when left out, or `FromVariance()`.
        min_change: Stop before `num_rounds` once a round moves the posterior by less: every mean by less than this
            many standard deviations, and every log standard deviation by less than this. When left out all rounds are
            made.
        learn_prior: Whether the prior's mean and standard deviation in each coordinate are learnt too, by maximising
            the marginal likelihood $q(y)$ without simulating again (`learn_normal`). For a prior that is normal in the
            coordinates and determines them, and the published form.
        missing: `SimulatedMissing()` where the simulator itself gives NaN; when left out NaN is missing at random.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`; each round is
            one batch of parallel runs, and a store is for one round.
    References:
        Hsu and Ramos (2019), AISTATS.
    """

    paper = "hsu2019bayesian"

    num_simulations: int = field(default=300, kw_only=False)
    form: Form | None = None
    num_rounds: int | None = None
    proposal: Proposal | None = None
    min_change: float | None = None
    learn_prior: bool = False
    missing: SimulatedMissing | None = None
    statistics: Statistics | Mapping[str, Statistics] | None = None

    def check_settings(self):  # noqa: D102
        super().check_settings()
        checks.whole("num_simulations", self.num_simulations, 2, " Some hundreds are usual.")
        checks.instance("form", self.form, Form | None, "KernelMeans(...), ResidualKernelMeans(...) or another form")
        checks.instance("num_rounds", self.num_rounds, int | None, "a whole number, or None: the engine chooses")
        number = self.resolved_rounds
        checks.whole("num_rounds", number, 1)
        checks.instance("proposal", self.proposal, Proposal | None, "FromPosterior(...) or FromVariance(...)")
        checks.require(
            self.num_simulations >= 2 * number and (self.simulations is None or number == 1),
            f"`num_rounds` must leave two of the {self.num_simulations} simulations for each round, and be 1 where "
            f"`simulations` are given (`refine` adds to those); got {self.num_rounds}.",
        )
        check_positive(min_change=self.min_change)
        checks.require(
            not isinstance(self.proposal, FromVariance) or isinstance(self.form, KernelMeans),
            "`proposal` FromVariance() needs a form with a Gaussian-process variance: pass form=KernelMeans(); got "
            f"form={checks.line(self.form)}.",
        )
        checks.require(
            self.store is None or number == 1,
            "`store` keeps simulations from the prior: leave it out, or make one round; got "
            f"num_rounds={self.num_rounds}.",
        )
        what = "SemiAutomaticStatistics(...) or SelectedStatistics(...), or a mapping from sites to these"
        for one in self.statistics.values() if isinstance(self.statistics, Mapping) else [self.statistics]:
            checks.instance("statistics", one, Statistics | None, what)
        first = self.num_simulations // number
        checks.require(
            self.statistics is None or (first >= FEWEST and self.missing is None),
            f"`statistics` are learnt from at least {FEWEST} whole outputs: make fewer rounds (`num_rounds`), or more "
            "simulations (`num_simulations`), and leave `missing` out, with which simulations lack entries; got "
            f"{first} simulations in the first round and missing={self.missing}.",
        )

    def _how_to_check(self):
        hint = super()._how_to_check()
        return hint if self.trained.learnt.amortised else f"{hint} of the same engine with num_rounds=1"

    @property
    def plan(self):  # noqa: D102
        return replace(super().plan, missing=self.missing)

    @property
    def resolved_rounds(self) -> int:
        """Largest number of rounds: what was asked for, or what the engine chooses."""
        if self.num_rounds is not None:
            return self.num_rounds
        few = rounds.ROUNDS if self.statistics is None else max(1, min(self.num_simulations // FIRST, rounds.ROUNDS))
        return 1 if self._one_round else few

    @property
    def _one_round(self) -> str:
        """Reason for one round, as far as settings say, where the engine chooses; otherwise empty."""
        reasons = {
            "`simulations` are given": self.simulations is not None,
            "a `store` is for simulations at prior draws": self.store is not None,
            "more are for the default form": not isinstance(self.form, ResidualKernelMeans | None),
            f"there are fewer than {rounds.FEWEST} simulations": self.num_simulations < rounds.FEWEST,
            f"statistics are learnt from {FIRST} simulations of the first round at least": (
                self.statistics is not None and self.num_simulations < 2 * FIRST
            ),
        }
        return next((why for why, holds in reasons.items() if holds and self.num_rounds is None), "")

    @property
    def resolved_form(self) -> Form | None:
        """The form that was given; with `missing`, that of what is recorded."""
        return self.form if self.missing is None else Recorded(self.form or ResidualKernelMeans())

    @property
    def citation_note(self) -> str:
        """Line for `cite`, where the form that runs is not the published one."""
        name = type(self.form or ResidualKernelMeans()).__name__
        note = f"% {name}, a form of the likelihood by numpyro_kme, in place of the one published in"
        return "" if isinstance(self.form, KernelMeans) else note

    @property
    def posterior(self) -> LearntPosterior:
        """The posterior of the last `run`, `refine` or `condition`, an immutable value."""
        return cast(LearntPosterior, self._last[1])

    @property
    def likelihoods(self) -> Mapping[str, FittedLikelihood]:
        """The learnt likelihood of each simulator site, for `handlers.surrogate`."""
        return self.posterior.likelihoods

    def refine(self, rng_key: jax.Array, latents: Mapping[str, Any]) -> None:
        """Simulate at further latents, learn from all simulations, and sample again.

        For a likelihood that is good where a chain goes: run NUTS on `handlers.surrogate(model, kelfi.likelihoods)`,
        refine at some of its draws, and run it again. An error leaves the engine as it was.

        Args:
            rng_key: The only source of randomness.
            latents: Where to simulate, `{site: (m, *shape)}`, for all latents; any proposal will do.
        """
        checks.key(rng_key)
        learnt, posterior = self.trained.learnt, self.posterior
        fit_key, simulate_key, sample_key = split(rng_key, 3)
        latents = {name: np.asarray(latents[name]) for name in posterior.problem.latents if name in latents}
        posterior.problem.require_inside_support("latents", latents)
        again, posterior = self._again(fit_key, simulate_key, sample_key, learnt, posterior, latents)
        found, posterior = self._finished(fit_key, again, posterior, amortised=learnt.amortised)
        self._found = Trained(self._settings(), found), posterior

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key = split(rng_key, 3)
        problem = self._as_recorded(Problem.read(self.model, *args, **kwargs))
        self._check(problem)
        repeated = self.num_rounds is None and rounds.calls_each(problem) > 1.0
        varying = repeated and not all(site.alike for site in problem.simulators.values())
        first, *later = rounds.sizes(self.num_simulations, 1 if varying else self.resolved_rounds)
        simulations = self._simulate(simulate_key, problem, first)
        simulations.warn_unless_near(observations(problem))
        why = self._one_round or rounds.VARYING * varying
        learnt = replace(self._fit(fit_key, problem, simulations), one_round=why)
        posterior = learnt.posterior(sample_key, problem)
        for number, size in enumerate(later, 1):
            choose_key, run_key, draw_key = (child(key, number) for key in (fit_key, simulate_key, sample_key))
            draws = self._draws_to_propose(child(draw_key, 0), learnt, posterior)
            narrow = not repeated and rounds.is_narrow(draws, simulations.latents)
            if self.num_rounds is None and number == 1 and not narrow:
                half = learnt.with_half(fit_key, problem)
                if not half.moved_by_half(problem, posterior.drawn) > UNSURE:
                    simulations = simulations.joined(self._simulate(run_key, problem, sum(later)))
                    why = rounds.why_prior(first, repeated)
                    learnt = replace(self._fit(fit_key, problem, simulations), one_round=why)
                    posterior = learnt.posterior(sample_key, problem)
                    break
            first_key, prior_key = split(choose_key)
            prior, proposal = problem.draw(prior_key, size).latents, self.proposal or FromPosterior()
            latents = proposal.choose(first_key, draws, prior, posterior.surrogate_variance, size)
            learnt, posterior = self._again(fit_key, run_key, draw_key, learnt, posterior, latents)
            if self.min_change is not None and learnt.history[-1][1] < self.min_change:
                break
        return self._finished(fit_key, learnt, posterior, amortised=not learnt.simulations.proposed)

    def _fit(self, rng_key, problem, simulations):
        learnt = LearntLikelihoods(self._settings(), problem, simulations, {}, {}, ((len(simulations), np.inf),))
        likelihoods, measures = {}, {}
        with progress.phase(f"learning from {len(simulations)} simulations", self.progress_bar):
            for site in problem.observations:
                theta, x, form, seen = learnt.training(rng_key, problem, site)
                coordinates = Coordinates.from_simulations(rng_key, problem, site, simulations).covering(theta)
                measures[site] = prior_measure(rng_key, problem, site, coordinates)
                how = {"coordinates": coordinates, "measure": measures[site], **seen}
                likelihoods[site] = fit_likelihood(theta, x, form=form, **how)
        return replace(learnt, likelihoods=likelihoods, measures=measures)

    def _draws_to_propose(self, rng_key, learnt: LearntLikelihoods, posterior: LearntPosterior):
        """Draws from the posterior, with the likelihood to the power of the proposal.

        Where there are more calls than numbers to infer, those of one number count as one: a slope is learnt from
        parameters that differ by as much as one call tells.
        """
        power = (self.proposal or FromPosterior()).power / rounds.calls_each(posterior.problem)
        if power == 1.0:
            return posterior.drawn.latents
        return learnt.draw(rng_key, posterior.problem, posterior.measures, power).latents

    def _again(self, fit_key, simulate_key, sample_key, learnt: LearntLikelihoods, posterior: LearntPosterior, latents):
        """Simulate at further latents, learn from all simulations, and sample again."""
        problem = posterior.problem
        further = replace(self.plan.simulate_at(simulate_key, problem, latents), near=observations(problem))
        found = self._fit(fit_key, problem, learnt.simulations.joined(further))
        after = found.posterior(sample_key, problem)
        moved = rounds.moved(posterior.drawn.latents, after.drawn.latents)
        return replace(found, history=(*learnt.history, (len(further), moved))), after

    def _finished(self, fit_key, learnt: LearntLikelihoods, posterior: LearntPosterior, amortised: bool):
        """Learn from half of the simulations, report how far that moves the posterior, and warn."""
        problem = posterior.problem
        learnt = replace(learnt.with_half(fit_key, problem), amortised=amortised)
        if not amortised:
            near = {site: replace(f, near=observation(problem, site)) for site, f in learnt.likelihoods.items()}
            learnt = replace(learnt, likelihoods=near)
        posterior = learnt.with_diagnostics(problem, posterior.measures, posterior.drawn)
        emit_warnings(posterior)
        return learnt, posterior

    def _condition(self, rng_key, args, kwargs, learnt):
        learnt.require_amortised()
        problem = self._as_recorded(observed_anew(learnt.problem, args, kwargs))
        self._check(problem)
        posterior = learnt.posterior(rng_key, problem)
        emit_warnings(posterior)
        return posterior

    def _as_recorded(self, problem: Problem) -> Problem:
        """With `missing`, NaN in the observation is what it says and not what was not observed."""
        if self.missing is None:
            return problem
        sites = {name: replace(s, mask=s.unmasked, missing=0) for name, s in problem.simulators.items()}
        return replace(problem, simulators=sites)

    def _check(self, problem):
        names = set(self.statistics) if isinstance(self.statistics, Mapping) else set()
        checks.require(
            names <= set(problem.observations),
            f"`statistics` names {sorted(names - set(problem.observations))}, and the observed simulator sites are "
            f"{sorted(problem.observations)}.",
        )
        for site in problem.observations:
            own, found = statistics_of(self, site), problem.simulators[site]
            found.check_observed(site)
            plates = found.simulator.batch_shape
            checks.require(
                plates == found.simulator.groups
                or not isinstance(self.form, KernelMeans)
                or self.form.data_kernel is None,
                f"Site {site!r} holds {plates} draws of the same parameters along plates, whose densities are "
                "multiplied; a data kernel on whole data sets does not fit there. Make the data set one event of the "
                "simulator, or leave `data_kernel` out.",
            )
            if found.mask.size > 1:
                found.require_no_gaps(site, "one likelihood for all draws along plates")
            form_of(self, site, found.simulator)
            gaps = found.missing and not isinstance(own, SelectedStatistics)
            checks.require(
                own is None or not (found.censored or gaps),
                f"The observation at {site!r} has {found.missing} entries that are NaN, not observed, of which "
                f"{found.censored} are known to lie in intervals, and `statistics` are learnt from whole outputs. "
                "Leave `statistics` out for this site, let the simulator return what was observed, or use "
                "SelectedStatistics, which takes NaN and no intervals.",
            )
        if problem.discrete:
            joint_values(problem)  # which refuses too many before anything is simulated
