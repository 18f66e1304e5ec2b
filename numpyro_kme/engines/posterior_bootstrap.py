"""The posterior bootstrap: robust inference for a simulator that one does not trust."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import jax
import numpy as np
from numpyro.distributions import Distribution

from numpyro_kme._core import checks, pieces, progress, shown, split
from numpyro_kme.bootstrap.least_squares import Targets
from numpyro_kme.bootstrap.look import ROW_NODES, BootstrapProblem, some_points
from numpyro_kme.bootstrap.replicates import Replicates, emulated_bootstrap, minimised_bootstrap
from numpyro_kme.bootstrap.rounds import HARMLESS
from numpyro_kme.bootstrap.weights import DirichletProcess
from numpyro_kme.engines._iid import IidModel, PointSimulator
from numpyro_kme.engines.base import Engine, check_rule
from numpyro_kme.engines.posterior import Limited, Posterior, by_chain
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.likelihoods.extrapolation import NEGLIGIBLE
from numpyro_kme.losses.base import Loss, NegativeLogLikelihood, Nodes
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.mcmc.noise import even_nodes

PRIOR_DRAWS, TIMES = 2048, 16
"""Prior draws that are looked at, and their number for each of those that anchor a replicate."""

REACH = 2.26
"""Bounded parameters, unconstrained, stay as near to their prior's median as this many times its 5 and 95% quantiles
(one in 10,000 of a normal prior lies beyond), or they would run to infinity."""


@shown
@dataclass(frozen=True, kw_only=True)
class BootstrapPosterior(Posterior):
    """Minimisers of a loss on reweighted data.

    Attributes:
        replicates: The minimisations.
        iid: The model, with its data.
        losses: Losses of the full data at unconstrained parameters `(m, p)`, by simulation.
    """

    replicates: Replicates
    iid: IidModel
    losses: Callable[[np.ndarray], np.ndarray]

    @property
    def checks(self) -> tuple[Limited, ...]:
        """The number of warnings, the error of the minimisers, in posterior standard deviations, and the proportion
        that did not converge."""
        found = self.replicates
        error = Limited("error of the minimisers, sd", float(found.error), HARMLESS)
        astray = Limited("replicates that did not converge", float(1.0 - np.mean(found.converged)), 0.0)
        return *super().checks, error, astray

    def _to_save(self) -> Posterior:
        """The draws, as a `Posterior`: the rest needs the model."""
        of_draws = {f.name: getattr(self, f.name) for f in fields(Posterior)}
        return Posterior(**of_draws | {"problem": None})

    def mode(self) -> dict[str, np.ndarray]:
        """Minimum-loss estimate on the data as they are, `{site: value}`."""
        return {name: np.array(value[0]) for name, value in self.iid.latents(self.replicates.minimum[None]).items()}

    def landscape(self, site: str, values: Sequence[float], index: tuple = ()) -> np.ndarray:
        """Loss on the full data along one parameter, the others at the point estimate.

        Args:
            site: Name of a latent.
            values: Values of that latent, or of its entry `index`.
            index: Entry of a latent that is an array.
        Returns:
            Losses, one for each value, by simulation with common noise.
        """
        shapes, estimate = self.iid.target.shapes, self.mode()
        checks.require(site in shapes, f"`site` must be one of {list(shapes)}; got {site!r}.")
        latents = {name: np.repeat(estimate[name][None].astype(float), len(values), axis=0) for name in shapes}
        entry: Any = (slice(None), *index)
        latents[site][entry] = np.asarray(values)
        return self.losses(self.iid.target.flatten_rows(latents))


@dataclass(eq=False, repr=False, kw_only=True)
class PosteriorBootstrap(Engine[BootstrapPosterior]):
    r"""Posterior bootstrap of the parameters that minimise a loss between the data and a simulator.

    A Dirichlet process `DP(alpha, F)` on the distribution of the data gives random weights to the data (and to
    draws of `F`); each posterior draw minimises `loss(weighted data, model)`. With `loss=MMD()` this is
    NPL-MMD: it tolerates outliers and a wrong model, where a likelihood does not. Priors of the model
    say where to begin, unless `prior_weight` is positive.

    For a squared distance (`MMD`, `Wasserstein()` of scalars) the embedding of the model is learnt as a function of the
    parameters from simulations where the minima lie, and every draw is a least-squares problem on it. Any simulator
    will do: one in JAX, a black box, counts, draws that jump. Other losses are minimised by L-BFGS, and need
    a simulator in JAX with derivatives. Simulations belong to one observation, so that there is no `num_simulations`,
    `on_failure`, `store`, `version` or `simulations`.

    The model has one observed site under one plate, the data plate, along its first axis; points that are masked there
    are left out of the data::

        def model(x=None):
            mean = numpyro.sample("mean", dist.Normal(0, 10))
            with numpyro.plate("data", len(x)):
                numpyro.sample("x", kme.Simulator(simulate, mean), obs=x)

    Args:
        model: The model. Its latents keep their constraints; deterministic sites come out too.
        loss: What to minimise: `MMD(...)`, `Wasserstein(...)`, `NegativeLogLikelihood()` for a site with a
            density, or your own.
        length_scale: Rule for the kernel of the loss when `loss` is left out: `loss=MMD(length_scale=...)`.
        concentration: `alpha >= 0`, how many data points the prior guess `F` is worth.
        centering: `F`: a NumPyro distribution of one data point, a traceable sampler
            `(rng_key, num) -> (num, *event)`, or `"prior predictive"`, the model's own.
        truncation: Draws of `F` in each replicate.
        covariates: Name of the model's argument that holds covariates `(n, ...)`, where the simulator's
            parameters vary along the plate: the loss then compares joint distributions of (covariate, response). When
            left out, the parameters that depend on no latent are the covariates.
        num_samples: Number `B` of replicates, which are the posterior draws.
        num_nodes: Points that are simulated at each of the parameters, a power of two from 32 on.
        prior_weight: Weight of the model's prior against the loss as a log-likelihood, for a squared distance; 0 (as
            published) or 1, as in Bayes' rule. Each replicate then draws a point `z` of the prior, and to its loss
            `prior_weight * loss_scale * sum_a ((u_a - z_a) / s_a)^2 / 2` is added, with unconstrained `u`, and the
            prior's standard deviations `s` there: what the data leave open varies as under the prior. The `loss_scale`
            makes the loss a negative log-likelihood (`bootstrap.rounds.loss_scale`). Exact for linear models with
            normal noise and normal priors.
        prior_draws: `z` is the best, by the replicate's loss, of this many draws of the prior. With 1 the prior counts
            in every direction. With many (the published starts are the best of 500) it counts only where the data say
            nothing, and its draws there agree with the data even if these leave a curved set open.
        executor: Where a black box runs: an executor, or a number of processes; see `simulate`.
        timeout: Seconds for one call of a black box.

    References: Dellaporta et al. (2022), AISTATS; Fong, Lyddon and Holmes (2019), ICML; Bardsley, Solonen, Haario and
    Laine (2014), SIAM J. Sci. Comput. (`prior_weight`).
    """

    paper = "dellaporta2022robust"

    loss: Loss | None = field(default=None, kw_only=False)
    length_scale: LengthScaleRule | None = None
    concentration: float = 0.0
    centering: Any = None
    truncation: int = 100
    covariates: str | None = None
    num_samples: int = 500
    num_nodes: int = 2048
    prior_weight: float = 0.0
    prior_draws: int = 1
    executor: Any = None
    timeout: float | None = None

    def check_settings(self):
        """Raise an error for settings that cannot be."""
        super().check_settings()
        check_rule(self.length_scale, self.loss, "loss", Loss, "a loss, such as MMD()")
        checks.whole("num_samples", self.num_samples, 1)
        checks.whole("num_nodes", self.num_nodes, 32)
        power = self.num_nodes & (self.num_nodes - 1) == 0
        checks.require(power, f"`num_nodes` must be a power of two, such as 2048; got {self.num_nodes}.")
        centering = self.centering
        known = not isinstance(centering, str) or centering == "prior predictive"
        checks.instance(
            "centering",
            centering,
            Callable | Distribution | str | None,
            'a distribution, sampler or "prior predictive"',
        )
        checks.require(known, f'`centering` must be a distribution, sampler or "prior predictive"; got {centering!r}.')
        checks.non_negative("prior_weight", self.prior_weight)
        checks.optional(checks.positive_number, "timeout", self.timeout)
        checks.whole("prior_draws", self.prior_draws, 1)
        checks.require(
            self.prior_draws == 1 or self.prior_weight > 0.0,
            f"`prior_draws` does nothing without a prior weight; got {self.prior_draws} with "
            f"`prior_weight={self.prior_weight}`. Set `prior_weight=1.0`, or leave `prior_draws` out.",
        )
        DirichletProcess(self.concentration, self.centering, self.truncation)

    def _infer(self, rng_key, args, kwargs):
        prior_key, run_key, search_key = split(rng_key, 3)
        iid = IidModel.read(self.model, args, kwargs)
        covariates = iid.covariates(self.covariates)
        data = iid.data.astype(np.float64) if covariates is None else (covariates, iid.data.astype(np.float64))
        checks.sound("data", iid.data)
        loss = (MMD(length_scale=self.length_scale) if self.loss is None else self.loss).for_data(data)
        takes = loss.takes_covariates or covariates is None
        checks.require(takes, f"{type(loss).__name__} takes no covariates. Use MMD(), or one with `takes_covariates`.")
        process = self._process(iid, covariates)
        starts = iid.starts(prior_key, max(PRIOR_DRAWS, TIMES * self.prior_draws))
        learnt = loss.is_squared_distance(data)
        how = f"learnt from {self.num_nodes:,} simulated points at each of many parameters" if learnt else "by L-BFGS"
        told = f"PosteriorBootstrap: {self.num_samples:,} minima of {type(loss).__name__}, {how}"
        progress.say(told, self.progress_bar)
        if learnt:
            problem = self._problem(search_key, iid, loss, data, starts)
            losses = partial(_emulated_losses, problem)
            found = emulated_bootstrap(run_key, problem, process, self.num_samples, self.prior_draws)
        else:
            free = self.prior_weight == 0.0
            checks.require(free, f"`prior_weight` needs a squared distance, such as MMD(); got {type(loss).__name__}.")
            family = iid.family(covariates)
            nodes = self._nodes(iid, loss, covariates)
            losses = partial(_generic_losses, loss, data, family, nodes, run_key)
            with progress.phase("minimising the loss", self.progress_bar):
                found = minimised_bootstrap(run_key, loss, data, family, nodes, process, starts, self.num_samples)
        open_latents = _at_bounds(found, iid)
        found.emit_warnings(open_latents)
        further = {} if found.mixing_proportion is None else {"mixing_proportion": found.mixing_proportion}
        posterior = BootstrapPosterior(
            engine=type(self).__name__,
            samples={name: np.asarray(value, np.float64) for name, value in iid.latents(found.u).items()},
            fields={"loss": found.loss, "converged": found.converged, **further},
            groups={"prior": by_chain(iid.latents(starts)), "observed_data": {iid.site: iid.data}},
            info=found.describe(open_latents),
            problem=None if iid.simulator is None else iid.problem,
            replicates=found,
            iid=iid,
            losses=losses,
        )
        return None, posterior

    def _problem(self, rng_key, iid: IidModel, loss: Loss, data, starts: np.ndarray) -> BootstrapProblem:
        """The bootstrap of a squared distance, with parameters in units of the prior."""
        center = np.median(starts, axis=0)
        low, high = np.quantile(starts, [0.16, 0.84], axis=0)
        width = np.where(high > low, 0.5 * (high - low), 1.0)
        prior = (starts - center) / width
        box = np.where(iid.bounded, REACH * np.quantile(prior, [0.05, 0.95], axis=0), [[-np.inf], [np.inf]])
        return BootstrapProblem(
            simulate=PointSimulator(partial(_arguments, iid, center, width), iid.one_call(), self.plan),
            loss=loss,
            data=data,
            fit_proportion=getattr(loss, "fit_proportion", False),
            prior=prior,
            center=center,
            width=width,
            low=box[0],
            high=box[1],
            prior_weight=self.prior_weight,
            num_nodes=self.num_nodes,
            rng_key=rng_key,
            progress_bar=self.progress_bar,
        )

    def _nodes(self, iid: IidModel, loss: Loss, covariates) -> Callable[[jax.Array], Nodes]:
        """Noise of simulated points by a key, for a loss that is differentiated."""
        if isinstance(loss, NegativeLogLikelihood):
            return lambda rng_key: Nodes(rng_key[None])
        simulator = iid.one_call()
        checks.require(
            simulator.has_rsample,
            f"{type(loss).__name__} is minimised by derivatives, and simulator `{simulator.name}` has none: it "
            f"{'runs outside JAX' if simulator.black_box else 'returns whole numbers'}. Use MMD(...).",
        )
        if covariates is None:
            return lambda rng_key: even_nodes(simulator, rng_key, self.num_nodes)
        return lambda rng_key: even_nodes(simulator, rng_key, max(self.num_nodes // ROW_NODES, 1), len(covariates))

    def _process(self, iid: IidModel, covariates) -> DirichletProcess:
        centering = self.centering
        if isinstance(centering, Distribution):
            centering = partial(_drawn, centering)
        elif isinstance(centering, str) and self.concentration:
            centering = iid.predictive(covariates)
        return DirichletProcess(self.concentration, centering, self.truncation)


def _arguments(iid: IidModel, center: np.ndarray, width: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Arguments of the simulator at standardised parameters."""
    return iid.arguments(center + width * x)


def _drawn(distribution: Distribution, rng_key: jax.Array, num: int) -> jax.Array:
    return distribution.sample(rng_key, (num,))


def _emulated_losses(problem: BootstrapProblem, u: np.ndarray) -> np.ndarray:
    """Losses of the full data, by simulation."""
    x, equal = (u - problem.center) / problem.width, np.full((1, problem.size), 1.0 / problem.size)
    points = np.concatenate([problem.simulate(problem.rng_key, row[None], problem.nodes) for row in x])
    embedding = problem.loss.embedding(problem.data, some_points(problem.data, points), 1000)
    models = embedding.model(points, equal if problem.has_covariates else None)[:, 0]
    data = np.broadcast_to(embedding.data(equal), models.shape)
    return Targets(data, problem.fit_proportion).loss(models)


def _generic_losses(loss: Loss, data, family, nodes, rng_key: jax.Array, u: np.ndarray) -> np.ndarray:
    """Losses of the full data, with common noise."""
    n = len(jax.tree.leaves(data)[0])
    weights: Any = np.full(n, 1.0 / n)
    there = nodes(rng_key)
    values = jax.lax.map(lambda one: loss.of_model(data, weights, family, one, there), np.asarray(u))
    return np.asarray(values, np.float64) + float(loss.offset(data, weights))


def _at_bounds(found: Replicates, iid: IidModel) -> dict[str, int]:
    """Numbers of replicates in which a latent is where its prior ends, for latents of which more than a few are."""
    if found.at_bound is None:
        return {}
    at_bound = zip(iid.target.shapes, pieces(found.at_bound, iid.target.shapes.values()))
    counts = {name: int(some.reshape(len(some), -1).any(axis=1).sum()) for name, some in at_bound}
    return {name: count for name, count in counts.items() if count > NEGLIGIBLE * len(found.u)}
