"""KELFI: kernel embedding likelihood-free inference."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks, child, in_jax_types, progress, split
from numpyro_kme.engines.base import SimulationEngine
from numpyro_kme.engines.learnt_likelihoods import FromPosterior, FromVariance, LearntLikelihoods, Proposal, is_narrow
from numpyro_kme.engines.learnt_model import joint_values
from numpyro_kme.engines.learnt_posterior import LearntPosterior, is_sure
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.data_sets import WithLength, require_any_length
from numpyro_kme.likelihoods.adjusted import Adjusted
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.kernel_statistics import KernelStatistics
from numpyro_kme.likelihoods.learnt_statistics import FEWEST, OfStatistics, SelectedStatistics, Statistics
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.transformed import Recorded
from numpyro_kme.likelihoods.trials.form import KernelExponentialFamily
from numpyro_kme.mcmc import handlers
from numpyro_kme.models.problem import Problem, SimulatorSite
from numpyro_kme.simulations import SimulatedMissing

ROUNDS, ONE_ROUND = 5, 100
"""Rounds where the engine chooses; with fewer simulations than this it makes one."""

FIRST = 150
"""Simulations of the first round at least, from which alone statistics are learnt at first."""


@dataclass(eq=False, repr=False, kw_only=True)
class KELFI(SimulationEngine[LearntPosterior]):
    r"""Kernel embedding likelihood-free inference: a posterior from a few hundred simulations.

    The likelihood of the simulator is learnt as a kernel mean embedding. In the published form of Hsu and Ramos (2019)
    it is $q(y \mid \theta) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(\theta)$. The default is an extension
    by this package: the location-scale (residual) form embeds standardised residuals (`ResidualKernelMeans`).
    Hyperparameters are learnt by prediction of held-out simulations. Where the posterior is narrow, further rounds
    simulate around it. With `num_rounds=1` all simulations are at prior draws, and the likelihood serves every
    observation: `condition` on a new one neither simulates nor learns again.

    Args:
        model: A NumPyro model with observed `Simulator` sites; other likelihoods and factors may stand beside them.
        num_simulations: Number `m` of simulations in all rounds together.
        num_samples: Number of equally weighted posterior draws.
        form: Form of the learnt likelihood, with its settings. When left out: `likelihoods.KernelExponentialFamily()`
            for choices, answers, counts, and one number drawn many times; the better of this and the residual form for
            two or three numbers drawn many times; otherwise the residual form, `ResidualKernelMeans()`. `KernelMeans()`
            is the published form: closed forms, data kernels on data sets and time series, `learn_prior`,
            `surrogate_variance`. `KernelStatistics(kernel)` learns statistics of data sets and series. For outputs of
            any length (`Simulator(ragged=True)`) the length is a statistic too, and the others are learnt given it.
        statistics: How summary statistics are learnt from the same simulations, for raw outputs such as series and
            images: `SemiAutomaticStatistics()`, or `SelectedStatistics()` among many; or a mapping from sites to these.
            Each round learns them again, from all simulations. When left out, outputs are the statistics.
        simulations: Simulations made elsewhere, instead of new ones (`Simulations`).
        num_rounds: Number of rounds, of equal size. The first simulates at prior draws. Each further one simulates
            where `proposal` says, learns from all simulations so far, and samples; nothing is reweighted, since a
            likelihood can be learnt from any proposal. When left out: five rounds; or, if the first posterior is about
            as wide as the prior and half of the simulations move it little, the rest at prior draws. One round for
            given `simulations`, a `store`, other forms than the default, fewer than 100 simulations, and hierarchies,
            where calls have parameters of their own, with more calls than numbers to infer. Where statistics are
            learnt, each round has at least 150 simulations.
        proposal: Where further rounds simulate: `FromPosterior()` when left out, or `FromVariance()`.
        learn_prior: Whether the prior's mean and standard deviation in each coordinate are learnt too, by maximising
            the marginal likelihood $q(y)$ without simulating again (`learn_normal`). Only for the published form, and a
            prior that is normal in the coordinates and determines them.
        standard_errors: Whether to learn from halves of the simulations too, for the standard errors of the posterior's
            means and standard deviations.
        adjust: Prior probability, such as 0.1, that a statistic is shifted, for a model that may not be able to make
            all statistics; smaller for a statistic that the others cannot replace. The shifts are inferred too, from
            the same simulations; `posterior.shifts()` has them. Only for the residual form.
        missing: `SimulatedMissing()` if the simulator itself gives NaN. When left out, entries of the observation that
            are NaN are missing at random.
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
    learn_prior: bool = False
    adjust: float | None = None
    missing: SimulatedMissing | None = None
    statistics: Statistics | Mapping[str, Statistics] | None = None
    standard_errors: bool = True

    def check_settings(self):  # noqa: D102
        super().check_settings()
        checks.whole("num_simulations", self.num_simulations, 2, " Some hundreds are usual.")
        checks.instance("form", self.form, Form | None, "KernelMeans(...), ResidualKernelMeans(...) or another form")
        number = self.resolved_rounds
        checks.whole("num_rounds", number, 1)
        checks.instance("proposal", self.proposal, Proposal | None, "FromPosterior(...) or FromVariance(...)")
        checks.require(
            self.num_simulations >= 2 * number and (self.simulations is None or number == 1),
            f"`num_rounds` must leave two of the {self.num_simulations} simulations for each round, and be 1 where "
            f"`simulations` are given (`refine` adds to those); got {self.num_rounds}.",
        )
        varies = not isinstance(self.proposal, FromVariance) or isinstance(self.form, KernelMeans)
        checks.require(varies, f"`proposal` FromVariance() needs a variance, form=KernelMeans(...); got {self.form}.")
        one = self.store is None or number == 1
        checks.require(one, f"`store` keeps prior draws: leave it out, or pass num_rounds=1; got {self.num_rounds}.")
        for one in self.statistics.values() if isinstance(self.statistics, Mapping) else [self.statistics]:
            checks.instance("statistics", one, Statistics | None, "SemiAutomaticStatistics() or SelectedStatistics()")
        whole = self.missing is None and self.statistics is None and isinstance(self.form, ResidualKernelMeans | None)
        checks.require(
            self.adjust is None or (isinstance(self.adjust, float) and 0.0 < self.adjust < 1.0 and whole),
            "`adjust` must be a probability, of statistics that are numbers: leave `statistics` and `missing` out, and "
            f"let `form` be ResidualKernelMeans(...); got {self.adjust}.",
        )
        first = self.num_simulations // number
        checks.require(
            self.statistics is None or (first >= FEWEST and self.missing is None),
            f"`statistics` are learnt from at least {FEWEST} whole outputs: make fewer rounds or more simulations, and "
            f"leave `missing` out; got {first} simulations in the first round and missing={self.missing}.",
        )

    @property
    def resolved_rounds(self) -> int:
        """Largest number of rounds: what was asked for, or what the engine chooses."""
        if self.num_rounds is not None:
            return self.num_rounds
        prior_draws = self.simulations is not None or self.store is not None
        if prior_draws or not isinstance(self.form, ResidualKernelMeans | None) or self.num_simulations < ONE_ROUND:
            return 1
        return ROUNDS if self.statistics is None else max(1, min(self.num_simulations // FIRST, ROUNDS))

    def form_at(self, site: str, found: SimulatorSite) -> Form | None:
        """Form of the likelihood of one site: of learnt statistics, of what is recorded, of outputs of any length, or
        as it was given; raises an error where it does not fit what was observed there."""
        own = self.statistics.get(site) if isinstance(self.statistics, Mapping) else self.statistics
        form, simulator = self.form, found.simulator
        found.check_observed(site)
        checks.require(
            simulator.batch_shape == simulator.groups or not isinstance(form, KernelMeans) or form.data_kernel is None,
            f"Site {site!r} holds {simulator.batch_shape} draws of the same parameters along plates, which no data "
            "kernel on whole data sets fits. Make the data set one event of the simulator, or leave `data_kernel` out.",
        )
        if found.mask.size > 1:
            found.require_no_gaps(site, "one likelihood for all draws along plates")
        gaps = found.missing and not isinstance(own, SelectedStatistics)
        checks.require(
            own is None or not (found.censored or gaps),
            f"The observation at {site!r} has {found.missing} entries that are NaN, {found.censored} in intervals, and "
            "`statistics` are learnt from whole outputs. Leave them out, or use SelectedStatistics for NaN.",
        )
        if not simulator.ragged:
            if self.missing and form and not isinstance(form, KernelExponentialFamily):
                form = Recorded(form)
            if self.adjust is not None:
                return Adjusted(form or ResidualKernelMeans(), self.adjust)
            return form if own is None else OfStatistics(own, form or ResidualKernelMeans())
        kernels = "form=KernelStatistics(EmpiricalMeasureRule()) for data sets, form=KernelStatistics(SignatureRule()) "
        checks.require(
            self.missing is None and own is None,
            f"The outputs of site {site!r} are of any length (ragged=True): NaN behind their end is not a missing "
            f"entry, nor are `statistics` learnt of it. Leave both out, and pass {kernels}for series.",
        )
        kernel = form.kernel if isinstance(form, KernelStatistics) else None
        kernel = form.data_kernel if isinstance(form, KernelMeans) else kernel
        checks.require(
            kernel is not None,
            f"The outputs of site {site!r} are of any length (ragged=True), of which "
            f"{type(form or ResidualKernelMeans()).__name__} makes no statistics. Pass {kernels}for series.",
        )
        if isinstance(kernel, Kernel):
            require_any_length(kernel)
        checks.require(
            isinstance(form, KernelStatistics) or isinstance(kernel, WithLength),
            f"The data kernel of site {site!r}, {type(kernel).__name__}, does not compare how long outputs are "
            "(ragged=True): the posterior averages over lengths. Pass data_kernel=kernels.WithLength(kernel, 0.5).",
        )
        return form

    @property
    def citation_note(self) -> str:
        """Line for `cite`, where the form that runs is not the published one."""
        name = type(self.form).__name__ if self.form else "ResidualKernelMeans, or of trials KernelExponentialFamily"
        note = f"% {name}, a form of the likelihood by numpyro_kme, in place of the one published in"
        return "" if isinstance(self.form, KernelMeans) else note

    @property
    def likelihoods(self) -> Mapping[str, FittedLikelihood]:
        """The learnt likelihood of each simulator site, for `handlers.surrogate`."""
        return self.posterior.likelihoods

    def require_amortised(self) -> None:
        """Raise an error unless every observation is served, as by one round."""
        self.method.require_amortised()

    def refine(self, rng_key: jax.Array, latents: Mapping[str, Any]) -> None:
        """Simulate at further latents, learn from all simulations, and sample again.

        For a likelihood that is good where a chain goes: run NUTS on `handlers.surrogate(model, kelfi.likelihoods)`,
        refine at some of its draws, and run it again. An error leaves the engine as it was.

        Args:
            rng_key: The only source of randomness.
            latents: Where to simulate, `{site: (m, *shape)}`, for all latents; any proposal will do.
        """
        checks.key(rng_key)
        posterior, settings = self.posterior, self._settings()
        problem = posterior.problem
        fit_key, simulate_key, sample_key = split(rng_key, 3)
        latents = {name: in_jax_types(latents[name]) for name in problem.latents if name in latents}
        problem.require_inside_support("latents", latents)
        with checks.each_once() as told:
            further = self.plan.simulate_at(simulate_key, problem, latents)
            learnt, drawn = settings._relearnt(fit_key, sample_key, self.method, problem, further)
            learnt = learnt.with_halves(fit_key) if self.standard_errors else learnt
            found = learnt.reported(problem, drawn)
        self._found = learnt, replace(found, warned=tuple(told.values()))

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key, rounds_key = split(rng_key, 4)
        model = self.model if self.adjust is None else handlers.adjustable(self.model)
        problem = self._checked(Problem.read(model, *args, **kwargs))
        sites, chosen = problem.simulators.values(), self.num_rounds is None
        numbers = sum(latent.value.size for latent in problem.latents.values())
        taken = max(site.simulator.arguments.shape[-1] for site in sites)
        own = numbers > taken and not all(site.alike for site in sites)  # calls have parameters of their own
        varying = own and sum(site.mask.size for site in sites) > numbers
        number = 1 if chosen and varying else self.resolved_rounds
        first, *later = np.bincount(np.arange(self.num_simulations) % number).tolist()  # as equal as can be
        progress.say(self._announcement(problem, number), self.progress_bar)
        begun = time.monotonic()
        simulations = self.plan.simulate(simulate_key, problem, first)
        if self.simulations is not None:
            simulations.warn_unless_near(problem.observations)
        learnt = self._fit(fit_key, problem, simulations)
        drawn, proposal = learnt.draw(sample_key, problem), self.proposal or FromPosterior()
        seconds = time.monotonic() - begun
        if later and seconds > 3.0:  # in six runs all rounds took 2.3 to 11.5 times as long
            told = (
                f"KELFI: the first of {number} rounds took {seconds:.0f} s, and all will take about {2 * seconds:.0f} "
            )
            told += f"to {12 * seconds:.0f} s"
            progress.say(told, self.progress_bar)
        for number, size in enumerate(later, 1):
            choose_key, run_key, power_key, draw_key = split(child(rounds_key, number), 4)
            power = proposal.power
            draws = drawn.latents if power == 1.0 else learnt.draw(power_key, problem, power).latents
            wide = chosen and number == 1 and not is_narrow(draws, simulations.latents)
            if stays := wide and is_sure(learnt.with_halves(fit_key).standard_errors(problem, drawn), drawn.latents):
                further = self.plan.simulate(run_key, problem, sum(later))
            else:
                latents = proposal.choose(choose_key, draws, learnt.variance, size)
                further = replace(self.plan.simulate_at(run_key, problem, latents), near=problem.observations)
            learnt, drawn = self._relearnt(fit_key, draw_key, learnt, problem, further)
            if stays:
                break
        learnt = learnt.with_halves(fit_key) if self.standard_errors else learnt
        return learnt, learnt.reported(problem, drawn)

    def _announcement(self, problem: Problem, rounds: int) -> str:
        """Say what is about to be simulated."""
        calls = {site: math.prod(found.simulator.batch_shape) for site, found in problem.simulators.items()}
        each = " and ".join([f"{number:,} calls of {site!r}" for site, number in calls.items() if number > 1])
        number = len(self.simulations) if self.simulations else self.num_simulations
        at = f", in up to {rounds} rounds" if rounds > 1 else ""
        return f"KELFI: {number:,} simulations{' of ' * bool(each)}{each}{at}"

    def _relearnt(self, fit_key, draw_key, before: LearntLikelihoods, problem: Problem, further):
        """Learn from further simulations too, and draw again."""
        learnt = LearntLikelihoods.learn(self, fit_key, problem, before.simulations.joined(further), before)
        return learnt, learnt.draw(draw_key, problem)

    def _fit(self, rng_key, problem, simulations):
        return LearntLikelihoods.learn(self, rng_key, problem, simulations)

    def _checked(self, problem):
        if self.missing is not None:  # NaN in the observation is what it says, and not what was not observed
            sites = {name: replace(s, mask=s.unmasked, missing=0) for name, s in problem.simulators.items()}
            problem = replace(problem, simulators=sites)
        names = set(self.statistics) if isinstance(self.statistics, Mapping) else set()
        known = names <= set(problem.observations)
        checks.require(known, f"`statistics` names {sorted(names)}; the sites are {[*problem.observations]}.")
        for site in problem.observations:
            self.form_at(site, problem.simulators[site])
        if problem.discrete:
            joint_values(problem)  # which refuses too many before anything is simulated
        return problem
