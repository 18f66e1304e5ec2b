"""KELFI: kernel embedding likelihood-free inference."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import numpy as np

from numpyro_kme._core import checks, progress
from numpyro_kme._core.keys import child, split
from numpyro_kme.engines import _comparison, _enumeration, _forms, _rounds, _sampling
from numpyro_kme.engines._learning import LearntLikelihoods, learn, learn_others
from numpyro_kme.engines._learnt_posterior import (
    LearntPosterior,
    beyond_by_call,
    determined,
    learnt_prior,
    observation,
    observations,
)
from numpyro_kme.engines._reports import described, in_tails, location_errors, unresolved, warn_of
from numpyro_kme.engines._rounds import FromPosterior, FromVariance, Proposal
from numpyro_kme.engines._sampling import LearntModel
from numpyro_kme.engines.base import Trained, check_positive
from numpyro_kme.engines.posterior import groups, with_present_data
from numpyro_kme.engines.simulation_engine import SimulationEngine
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.recorded import Recorded
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.summaries.base import Statistics
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import SimulatedMissing, Simulations


@dataclass(eq=False, repr=False, kw_only=True)
class KELFI(SimulationEngine):
    r"""Kernel embedding likelihood-free inference: a posterior from a few hundred simulations.

    The likelihood of the simulator is learnt as a kernel mean embedding: in the published form
    $q(y \mid \theta) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(\theta)$, by default the same of
    standardised residuals (`ResidualKernelMeans`), with hyperparameters learnt by leave-one-out prediction of the
    simulations. Where the posterior is narrow, further rounds simulate around it. With `num_rounds=1` all simulations
    are at prior draws, and the likelihood serves every observation: `condition` on a new one neither simulates nor
    learns again.

    Args:
        model: A NumPyro model with observed `Simulator` sites; other likelihoods and factors may stand beside them.
        num_simulations: Number `m` of simulations in all, at draws from the prior if there is one round.
        num_samples: Number of equally weighted posterior draws.
        form: Form and settings of the surrogate; `ResidualKernelMeans()` when left out. `KernelMeans()` is the
            published form: closed forms, data kernels on data sets and time series, `learn_prior`,
            `surrogate_variance`. `KernelStatistics(kernel)` learns statistics of data sets and series. For a simulator
            of outputs of any length (`Simulator(ragged=True)`) how long they are is learnt, too, and the rest given
            that (`likelihoods.Ragged`).
        length_scale: Rule for the length scales of the data kernel of the published form, instead of learning them:
            `form=KernelMeans(), length_scale=rule` is `form=KernelMeans(length_scale=rule)`. The residual form
            standardises residuals by what it learns, and takes none.
        statistics: How summary statistics are learnt from the same simulations, for raw outputs such as series and
            images: `SemiAutomaticStatistics()`, or `SelectedStatistics()` among many; or a mapping from sites to these.
            Each round learns them again, from all simulations. When left out, outputs are the statistics.
        simulations: Simulations made elsewhere, instead of new ones (`Simulations`).
        num_rounds: Number of rounds, of equal size. The first simulates at prior draws; each further one where
            `proposal` says, learns from all simulations so far, and samples. The likelihood may be learnt from any
            proposal, so nothing is reweighted. When left out the engine chooses: five rounds, or the rest at prior
            draws if the first round's proposal is about as wide as the prior, or more calls along plates are observed
            than there are numbers to infer, and the location that it learnt is known well enough there. It makes one
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
    length_scale: LengthScaleRule | None = None
    num_rounds: int | None = None
    proposal: Proposal | None = None
    min_change: float | None = None
    learn_prior: bool = False
    missing: SimulatedMissing | None = None
    statistics: Statistics | Mapping[str, Statistics] | None = None

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        checks.whole("num_simulations", self.num_simulations, 2, " Some hundreds are usual.")
        checks.instance("form", self.form, Form | None, "KernelMeans(...), ResidualKernelMeans(...) or another form")
        checks.instance("num_rounds", self.num_rounds, int | None, "a whole number, or None: the engine chooses")
        checks.whole("num_rounds", self.resolved_rounds, 1)
        checks.instance("proposal", self.proposal, Proposal | None, "FromPosterior(...) or FromVariance(...)")
        checks.require(
            self.num_simulations >= 2 * self.resolved_rounds
            and (self.simulations is None or self.resolved_rounds == 1),
            f"`num_rounds` must leave two of the {self.num_simulations} simulations for each round, and be 1 where "
            f"`simulations` are given (`refine` adds to those); got {self.num_rounds}.",
        )
        check_positive(min_change=self.min_change)
        checks.require(
            not isinstance(self.proposal, FromVariance) or isinstance(self.form, KernelMeans),
            "`proposal` FromVariance() needs a form with a Gaussian-process variance: pass form=KernelMeans(); got "
            f"form={checks.line(self.form)}.",
        )
        self.resolved_form  # noqa: B018 (raises an error for a form that takes no rule)
        _forms.check_settings(self.statistics, self.missing, self.num_simulations // self.resolved_rounds)
        checks.require(
            self.store is None or self.resolved_rounds == 1,
            "`store` keeps simulations from the prior: leave it out, or make one round; got "
            f"num_rounds={self.num_rounds}.",
        )

    def _how_to_check(self):
        hint = super()._how_to_check()
        return hint if self.trained.learnt.amortised else f"{hint} of the same engine with num_rounds=1"

    @property
    def plan(self):  # noqa: D102
        return replace(super().plan, missing=self.missing)

    @property
    def resolved_rounds(self) -> int:
        """Most rounds: those that were asked for, or what the engine chooses."""
        if self.num_rounds is not None:
            return self.num_rounds
        if self._one_round:
            return 1
        return _rounds.ROUNDS if self.statistics is None else _forms.rounds(self.num_simulations)

    @property
    def _one_round(self) -> str:
        """Why the engine makes one round, as far as settings say, where it chooses; otherwise empty."""
        if self.num_rounds is not None:
            return ""
        given = self.simulations is not None, self.store is not None
        return _forms.why_one_round(self.num_simulations, given, self.form, self.statistics)

    @property
    def resolved_form(self) -> Form | None:
        """The form that was given, with the rule for its length scales, of what is recorded where that is learnt."""
        form = _forms.with_length_scale(self.form, self.length_scale)
        return form if self.missing is None else Recorded(form or ResidualKernelMeans())

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key = split(rng_key, 3)
        problem = self._as_recorded(Problem.read(self.model, *args, **kwargs))
        _forms.check_sites(problem, self.statistics, self.resolved_form, self.missing)
        if problem.discrete:
            _enumeration.joint_values(problem)  # which refuses too many before anything is simulated
        repeated = self.num_rounds is None and _rounds.calls_each(problem) > 1.0
        one = repeated and not all(site.alike for site in problem.simulators.values())
        first, *later = _rounds.sizes(self.plan.num_simulations, 1 if one else self.resolved_rounds)
        simulations = self._simulate(simulate_key, problem, first)
        simulations.warn_unless_near(observations(problem))
        why = self._one_round or _rounds.VARYING * one
        learnt = self._learn(fit_key, problem, simulations)._replace(one_round=why)
        posterior = self._posterior(sample_key, problem, learnt)
        for number, size in enumerate(later, 1):
            choose_key, run_key, draw_key = (child(key, number) for key in (fit_key, simulate_key, sample_key))
            draws = self._draws_to_propose(child(draw_key, 0), posterior)
            narrow = not repeated and _rounds.is_narrow(draws, simulations.latents)
            wide = number == 1 and not narrow and not unresolved(posterior)
            if self.num_rounds is None and wide:
                rest = self._simulate(run_key, problem, sum(later))
                learnt, later = self._learn(fit_key, problem, simulations.joined(rest)), []
                learnt = learnt._replace(one_round=_rounds.why_prior(first, repeated))
                posterior = self._posterior(sample_key, problem, learnt)
                break
            latents = self._proposed(choose_key, posterior, draws, size)
            learnt, posterior = self._again(run_key, draw_key, fit_key, learnt, posterior, latents)
            if self.min_change is not None and learnt.history[-1][1] < self.min_change:
                break
        learnt = learnt._replace(amortised=not learnt.simulations.proposed)
        learnt, posterior = self._compared(fit_key, learnt, posterior)
        return Trained(self._settings(), problem, learnt), posterior

    def _draws_to_propose(self, rng_key, posterior: LearntPosterior):
        """Draws from the posterior, with the likelihood to the power of the proposal.

        Where there are more calls than numbers to infer, those of one number count as one: a slope is learnt from
        parameters that differ by as much as one call tells.
        """
        problem = posterior.problem
        power = (self.proposal or FromPosterior()).power / _rounds.calls_each(problem)
        if power == 1.0:
            return posterior.drawn.latents
        return self._drawn(rng_key, problem, posterior.likelihoods, posterior.measures, power).latents

    def _proposed(self, rng_key, posterior: LearntPosterior, draws, size: int):
        """Latents of the next round."""
        choose_key, prior_key = split(rng_key)
        prior = posterior.problem.draw(prior_key, size).latents
        return (self.proposal or FromPosterior()).choose(choose_key, draws, prior, posterior.surrogate_variance, size)

    def _forms(self, problem: Problem) -> dict[str, Form | None]:
        how, sites = (self.statistics, self.resolved_form, self.missing), problem.simulators
        return {site: _forms.form_of(site, sites[site].simulator, *how) for site in problem.observations}

    def _fit(self, rng_key, problem, simulations):
        return self._learn(rng_key, problem, simulations)

    def _learn(self, fit_key, problem: Problem, simulations: Simulations, history=()) -> LearntLikelihoods:
        """Learn from all simulations."""
        with progress.phase(f"learning from {len(simulations)} simulations", self.progress_bar):
            return learn(fit_key, problem, simulations, self._forms(problem), history)

    def _compared(self, fit_key, learnt: LearntLikelihoods, posterior: LearntPosterior):
        """Compare with other likelihoods from the same simulations, and warn where they move the posterior."""
        problem = posterior.problem
        forms, near = self._forms(problem), learnt
        if not learnt.amortised:
            fitted = {site: replace(f, near=observation(problem, site)) for site, f in learnt.likelihoods.items()}
            near = learnt._replace(likelihoods=fitted)
        with progress.phase("learning again from half of the simulations", self.progress_bar):
            default = learn_others(fit_key, problem, near, forms, _comparison.default_form)
            half = learn_others(fit_key, problem, learnt, forms, _comparison.of_half)
        learnt = near._replace(default=default, half=half)
        posterior = self._told(problem, learnt, posterior.measures, posterior.drawn)
        warn_of(posterior)
        return learnt, posterior

    def _again(self, simulate_key, sample_key, fit_key, learnt: LearntLikelihoods, posterior: LearntPosterior, latents):
        """Simulate at further latents, learn from all simulations, and sample again."""
        problem = posterior.problem
        further = replace(self.plan.simulate_at(simulate_key, problem, latents), near=observations(problem))
        amortised = learnt.amortised
        learnt = self._learn(fit_key, problem, learnt.simulations.joined(further), learnt.history)
        after = self._posterior(sample_key, problem, learnt)
        moved = _rounds.moved(posterior.drawn.latents, after.drawn.latents)
        learnt = learnt._replace(history=(*learnt.history, (len(further), moved)), amortised=amortised)
        return learnt, after

    def refine(self, rng_key: jax.Array, latents: Mapping[str, Any]) -> None:
        """Simulate at further latents, learn from all simulations, and sample again.

        For a likelihood that is good where a chain goes: run NUTS on `handlers.surrogate(model, kelfi.likelihoods)`,
        refine at some of its draws, and run it again. An error leaves the engine as it was.

        Args:
            rng_key: The only source of randomness.
            latents: Where to simulate, `{site: (m, *shape)}`, for all latents; any proposal will do.
        """
        checks.key(rng_key)
        trained, posterior = self.trained, self.posterior
        fit_key, simulate_key, sample_key = split(rng_key, 3)
        latents = {name: np.asarray(latents[name]) for name in posterior.problem.latents if name in latents}
        posterior.problem.require_inside_support("latents", latents)
        learnt, posterior = self._again(simulate_key, sample_key, fit_key, trained.learnt, posterior, latents)
        learnt, posterior = self._compared(fit_key, learnt, posterior)
        self._found = Trained(self._settings(), posterior.problem, learnt), posterior

    def _as_recorded(self, problem: Problem) -> Problem:
        """With `missing`, NaN in the observation is what it says and not what was not observed."""
        if self.missing is None:
            return problem
        sites = {name: replace(s, mask=s.unmasked, missing=0) for name, s in problem.simulators.items()}
        return replace(problem, simulators=sites)

    def _condition(self, rng_key, problem, learnt):
        learnt.require_amortised()
        problem = self._as_recorded(problem)
        _forms.check_sites(problem, self.statistics, self.resolved_form, self.missing)
        posterior = self._posterior(rng_key, problem, learnt)
        warn_of(posterior)
        return posterior

    @property
    def posterior(self) -> LearntPosterior:
        """What the last `run`, `refine` or `condition` found, an immutable value."""
        return cast(LearntPosterior, self._last[1])

    @property
    def likelihoods(self) -> Mapping[str, FittedLikelihood]:
        """The learnt likelihood of each simulator site, for `handlers.surrogate`."""
        return self.posterior.likelihoods

    def _drawn(self, rng_key, problem: Problem, likelihoods, measures, power: float = 1.0) -> _sampling.Drawn:
        """Draws from the posterior with the likelihood to this power."""
        site, fitted = next(iter(likelihoods.items()))
        if not determined(problem, fitted):
            if problem.discrete:
                return _enumeration.enumerated(rng_key, LearntModel(problem, likelihoods), self.num_samples, power)
            return _sampling.in_model(rng_key, LearntModel(problem, likelihoods), self.num_samples, power)
        y = observation(problem, site)
        seen = fitted.marginal(~np.isnan(y))
        return _sampling.in_coordinates(rng_key, site, seen, y, measures[site], self.num_samples, power)

    def _posterior(self, rng_key, problem: Problem, learnt: LearntLikelihoods) -> LearntPosterior:
        site, measures = next(iter(learnt.likelihoods)), dict(learnt.measures)
        fitted = learnt.likelihoods[site]
        for name, found in learnt.likelihoods.items():
            found.coordinates.require_simulated(problem.simulators[name].simulator.arguments)
        if self.learn_prior:
            measures[site] = learnt_prior(fitted, problem, site)
        with progress.phase("sampling the posterior", self.progress_bar):
            drawn = self._drawn(rng_key, problem, learnt.likelihoods, measures)
        return self._told(problem, learnt, measures, drawn)

    def _told(self, problem: Problem, learnt: LearntLikelihoods, measures, drawn: _sampling.Drawn) -> LearntPosterior:
        """The draws with what is said of them."""
        extrapolated = {
            name: float(np.max(beyond_by_call(problem, f, name, drawn.coordinates[name])))
            for name, f in learnt.likelihoods.items()
        }
        default, half = (
            _comparison.moved(problem, learnt.likelihoods, others, drawn)
            for others in (learnt.default, learnt.half_likelihoods)
        )
        further = problem.evaluate(drawn.latents).deterministics if problem.deterministics else {}
        posterior = LearntPosterior(
            engine=type(self).__name__,
            samples={**drawn.latents, **further},
            fields={"lp": drawn.log_posterior},
            groups=groups(with_present_data(learnt.simulations, problem), problem),
            location_error=location_errors(problem, learnt.likelihoods, drawn),
            in_tails=in_tails(problem, {**learnt.likelihoods, **learnt.default}, drawn),
            moved_by_default=default,
            moved_by_half=half,
            confirmed=_comparison.confirmed(learnt.half, drawn),
            problem=problem,
            simulations=learnt.simulations,
            likelihoods=learnt.likelihoods,
            measures=measures,
            learn_prior=self.learn_prior,
            drawn=drawn,
            extrapolated=extrapolated,
        )
        info = described(posterior, learnt) | _rounds.described(learnt.history, self.min_change)
        return replace(posterior, info=info)
