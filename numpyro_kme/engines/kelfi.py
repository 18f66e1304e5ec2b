"""KELFI: kernel embedding likelihood-free inference."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.embeddings.measures import Measure, Normal, NormalMixture, Points
from numpyro_kme.engines import _rounds, _sampling
from numpyro_kme.engines._base import Result
from numpyro_kme.engines._learnt import LearntLikelihood
from numpyro_kme.engines._rounds import FromPosterior, FromVariance, Proposal
from numpyro_kme.engines._tables import check_bank, check_sites, groups, observed_anew, training_table
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import fit_likelihood
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.hyperpriors import learn_normal
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.simulations.at import simulate_at

PRIOR_DRAWS = 4000
"""Prior draws that stand in for a prior whose law in coordinates is not known."""


class KELFI(LearntLikelihood):
    r"""Kernel embedding likelihood-free inference: a posterior from a few hundred simulations.

    The likelihood of the simulator is learnt as a kernel mean embedding: in the published form
    $q(y \mid \theta) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(\theta)$, by default the same of standardised residuals
    (`ResidualKernelMeans`), with hyperparameters learnt by leave-one-out prediction of the simulations. It does not depend
    on the observation, so `condition` serves a new one without simulating or learning again.

    Args:
        model: A NumPyro model with observed `Simulator` sites; other likelihoods and factors may stand beside them.
        num_simulations: Number `m` of simulations in all, at draws from the prior if there is one round.
        num_samples: Number of equally weighted posterior draws.
        form: Form and settings of the surrogate; `ResidualKernelMeans()` when left out. `KernelMeans()` is the published
            form: closed forms, data kernels on data sets and time series, `learn_prior`, `surrogate_variance`.
        length_scale: Rule for the length scales of the data kernel of the published form, instead of learning them:
            `form=KernelMeans(), length_scale=rule` is `form=KernelMeans(length_scale=rule)`. The residual form standardises
            residuals by what it learns, and takes none.
        simulations: Simulations made elsewhere, instead of new ones (`Simulations`).
        num_rounds: Number of rounds. The first simulates at prior draws; each further one where `proposal` says, learns from all
            simulations so far, and samples. The likelihood may be learnt from any proposal, so nothing is reweighted.
        proposal: Where further rounds simulate: `FromPosterior()` when left out, or `FromVariance()`.
        tolerance: Stop before `num_rounds` once a round moves the posterior by less: every mean by less than this many standard
            deviations, and every log standard deviation by less than this. All rounds are made when left out.
        learn_prior: Whether the prior's mean and standard deviation in each coordinate are learnt too, by maximising the
            marginal likelihood $q(y)$ without simulating again (`learn_normal`). For a prior that is normal in the
            coordinates and determines them, and the published form.
        on_failure: What to do when a simulation fails, as in `simulate`.
        executor: Where black-box simulators run, as in `simulate`: each round is one batch of parallel runs.
        progress_bar: Whether to show the progress of the simulations.
    Attributes:
        problem: What the model consists of.
        simulations: The simulations that were used.
        likelihoods: The learnt likelihood of each simulator site, for `handlers.surrogate`.
    References:
        Hsu and Ramos (2019), AISTATS.
    """

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 300,
        *,
        num_samples: int = 1000,
        form: Form | None = None,
        length_scale: LengthScaleRule | None = None,
        simulations: Simulations | None = None,
        num_rounds: int = 1,
        proposal: Proposal | None = None,
        tolerance: float | None = None,
        learn_prior: bool = False,
        on_failure: Any = "raise",
        executor: Executor | int | None = None,
        progress_bar: bool = True,
    ):
        super().__init__(model)
        checks.whole("num_simulations", num_simulations, 2, " Some hundreds are usual.")
        checks.whole("num_samples", num_samples, 1)
        checks.instance("form", form, Form | None, "KernelMeans(...), ResidualKernelMeans(...) or another form")
        checks.instance("simulations", simulations, Simulations | None, "a bank of simulations (Simulations)")
        checks.whole("num_rounds", num_rounds, 1)
        checks.instance("proposal", proposal, Proposal | None, "FromPosterior(...) or FromVariance(...)")
        checks.require(
            num_simulations >= 2 * num_rounds and (simulations is None or num_rounds == 1),
            f"`num_rounds` must leave two of the {num_simulations} simulations for each round, and be 1 where `simulations` are "
            f"given (`refine` adds to those); got {num_rounds}.",
        )
        checks.require(
            tolerance is None or tolerance > 0.0, f"`tolerance` must be a positive number or None; got {tolerance}."
        )
        checks.require(
            not isinstance(proposal, FromVariance) or isinstance(form, KernelMeans),
            f"`proposal` FromVariance() needs a form with a Gaussian-process variance: pass form=KernelMeans(); got form={form}.",
        )
        if length_scale is not None:
            checks.require(
                isinstance(form, KernelMeans),
                "`length_scale` needs a form with a kernel on data: pass form=KernelMeans(). The residual form, the default, and forms "
                f"of your own learn their widths themselves; got form={form}.",
            )
            assert isinstance(form, KernelMeans)
            form = replace(form, length_scale=length_scale)
        self.num_simulations, self.num_samples = num_simulations, num_samples
        self.num_rounds, self.proposal, self.tolerance = num_rounds, proposal or FromPosterior(), tolerance
        self.form, self.on_failure, self.progress_bar = form, on_failure, progress_bar
        self.executor = executor
        self.learn_prior, self._given = learn_prior, simulations

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key = jax.random.split(rng_key, 3)
        self.problem = Problem.read(self.model, *args, **kwargs)
        check_sites(self.problem, self.form)
        first, *later = _rounds.sizes(self.num_simulations, self.num_rounds)
        self.simulations = self._given
        if self.simulations is None:
            self.simulations = simulate(
                simulate_key,
                self.problem,
                first,
                on_failure=self.on_failure,
                executor=self.executor,
                progress_bar=self.progress_bar,
            )
        check_bank(self.problem, self.simulations)
        self._history = [(len(self.simulations), np.inf)]
        result = self._learn(fit_key, sample_key)
        for number, size in enumerate(later, 1):
            round_keys = [jax.random.fold_in(key, number) for key in (fit_key, simulate_key, sample_key)]
            result = self._simulate_again(*round_keys[1:], self._propose(round_keys[0], size), fit_key)
            if self.tolerance is not None and self._history[-1][1] < self.tolerance:
                break
        self._warn_if_beyond()
        return result

    def _learn(self, fit_key, sample_key) -> Result:
        """Learn from all simulations, and sample."""
        self.measures, self.likelihoods = {}, {}
        for site, observed in self.problem.observations.items():
            coordinates = Coordinates.from_prior(fit_key, self.problem, site)
            self.measures[site] = self._measure(fit_key, site, coordinates)
            theta, x = training_table(self.simulations, self.problem, site)
            found = self.problem.simulators[site]
            seen = observed if found.mask.size == 1 and not found.weighted else None  # along plates there are many
            self.likelihoods[site] = fit_likelihood(
                theta, x, form=self.form, coordinates=coordinates, measure=self.measures[site], y=seen
            )
        return self._sample(sample_key)

    def _propose(self, rng_key, size: int) -> dict[str, np.ndarray]:
        choose_key, prior_key = jax.random.split(rng_key)
        prior = self.problem.draw(prior_key, size).latents
        return self.proposal.choose(choose_key, self._drawn.latents, prior, self._variance, size)

    def _simulate_again(self, simulate_key, sample_key, latents, fit_key) -> Result:
        before = self._drawn.latents
        further = simulate_at(
            simulate_key,
            self.problem,
            latents,
            on_failure=self.on_failure,
            executor=self.executor,
            progress_bar=self.progress_bar,
        )
        self.simulations = self.simulations.joined(further)
        result = self._learn(fit_key, sample_key)
        self._history = [*self._history, (len(further), _rounds.moved(before, self._drawn.latents))]
        return replace(result, info=dict(result.info) | _rounds.described(self._history))

    def refine(self, rng_key: jax.Array, latents: Mapping[str, Any]) -> None:
        """Simulate at further latents, learn from all simulations, and sample again.

        For a likelihood that is good where a chain goes: run NUTS on `handlers.surrogate(model, kelfi.likelihoods)`, refine at some
        of its draws, and run it again. An error leaves the engine as it was.

        Args:
            rng_key: The only source of randomness.
            latents: Where to simulate, `{site: (m, *shape)}`, for all latents; any proposal will do.
        """
        checks.key(rng_key)
        _ = self.result
        fit_key, simulate_key, sample_key = jax.random.split(rng_key, 3)
        latents = {name: np.asarray(latents[name]) for name in self.problem.latents if name in latents}
        with self._draft() as draft:
            draft._result = draft._simulate_again(simulate_key, sample_key, latents, fit_key)
            draft._warn_if_beyond()

    def _infer_again(self, rng_key, args, kwargs):
        self.problem = observed_anew(self.problem, args, kwargs)
        check_sites(self.problem, self.form)
        result = self._sample(rng_key)
        self._warn_if_beyond()
        return result

    def _measure(self, rng_key, site: str, coordinates: Coordinates) -> Measure:
        """The prior in coordinates: exact where its law is known, otherwise prior draws."""
        if coordinates.exact:
            return NormalMixture(*coordinates.mixture)
        arguments = self.problem.draw(rng_key, PRIOR_DRAWS).arguments[site]
        return Points(coordinates.table(arguments.reshape(-1, arguments.shape[-1])))

    def _sample(self, rng_key) -> Result:
        site = next(iter(self.likelihoods))
        fitted = self.likelihoods[site]
        in_coordinates = self._plain and fitted.coordinates.exact and fitted.coordinates.one_to_one
        if self.learn_prior:
            self._learn_prior(site, in_coordinates)
        if in_coordinates:
            likelihood = fitted.at(self._observation(site))
            drawn = _sampling.in_coordinates(
                rng_key, likelihood, self.measures[site], fitted.coordinates, self.num_samples
            )
        else:
            drawn = _sampling.in_model(rng_key, self._target(), self.problem, self.num_samples)
        self._drawn = drawn
        further = self.problem.evaluate(drawn.latents).deterministics if self.problem.deterministics else {}
        return Result(
            samples={**drawn.latents, **further},
            fields={"lp": drawn.log_posterior},
            groups=groups(self.simulations, self.problem),
            info=self._describe(drawn),
        )

    def _learn_prior(self, site: str, in_coordinates: bool) -> None:
        fitted = self.likelihoods[site]
        checks.require(
            in_coordinates and len(fitted.coordinates.mixture[0]) == 1,
            "`learn_prior` needs one simulator site, neither masked nor scaled, nothing else that is observed, and a "
            f"prior that is normal in the coordinates of the simulator's arguments. {fitted.coordinates.note}",
        )
        start = Normal.standard(fitted.coordinates.dim)
        self.measures = {**self.measures, site: learn_normal(fitted.at(self._observation(site)), start)}
