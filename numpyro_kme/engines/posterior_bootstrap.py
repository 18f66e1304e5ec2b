"""The posterior bootstrap: robust inference for a simulator that one does not trust."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, cast

import jax
import numpy as np
from numpyro.distributions import Distribution

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.keys import split
from numpyro_kme.bootstrap import newton
from numpyro_kme.bootstrap.emulated.replicates import least_starts
from numpyro_kme.bootstrap.fit import full_data
from numpyro_kme.bootstrap.replicates import COARSE, NOISY, WRONG, Replicates, posterior_bootstrap
from numpyro_kme.bootstrap.settings import Settings
from numpyro_kme.bootstrap.weights import DirichletProcess
from numpyro_kme.engines._iid import IidModel, Read
from numpyro_kme.engines.base import Engine, check_rule
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.losses.base import Loss, WeightedObjective
from numpyro_kme.losses.generator import BLOCK
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.simulations.fingerprint import fingerprint


@shown
@dataclass(frozen=True, kw_only=True)
class BootstrapPosterior(Posterior):
    """Minimisers of a loss on reweighted data.

    Attributes:
        replicates: The minimisations.
        iid: The model, with its data.
        objective: What was minimised.
    """

    replicates: Replicates
    iid: IidModel
    objective: WeightedObjective

    def _to_save(self) -> Posterior:
        """The draws, as a `Posterior`: the rest needs the model."""
        of_draws = {f.name: getattr(self, f.name) for f in fields(Posterior)}
        return Posterior(**of_draws | {"problem": None})

    def mode(self) -> dict[str, np.ndarray]:
        """Minimum-loss estimate on the data as they are, `{site: value}`."""
        return {name: value[0] for name, value in self.iid.latents(self.replicates.fit.u[None]).items()}

    def landscape(self, site: str, values: Sequence[float], index: tuple = ()) -> np.ndarray:
        """Loss on the full data along one parameter, the others at the point estimate.

        Args:
            site: Name of a latent.
            values: Values of that latent, or of its entry `index`.
            index: Entry of a latent that is an array.
        Returns:
            Losses, one for each value; the part that no parameter changes is included.
        """
        shapes, estimate = self.iid.target.shapes, self.mode()
        checks.require(site in shapes, f"`site` must be one of {list(shapes)}; got {site!r}.")
        latents = {name: np.repeat(estimate[name][None], len(values), axis=0) for name in shapes}
        entry: Any = (slice(None), *index)
        latents[site][entry] = np.asarray(values)
        reweightings, nodes = full_data(self.objective), self.replicates.nodes
        rows = reweightings.rows(np.zeros(len(values), int))
        losses = newton.Problems(self.objective, nodes, rows).values(self.iid.unconstrain(latents))
        return losses + newton.offsets(self.objective, reweightings)


RECENT: deque[Read] = deque(maxlen=8)
"""Models of the last runs of all engines: another engine for the same model and other data compiles nothing."""


@dataclass(eq=False, repr=False, kw_only=True)
class PosteriorBootstrap(Engine, Settings):
    r"""Posterior bootstrap of the parameters that minimise a loss between the data and a simulator.

    A Dirichlet process `DP(alpha, F)` on the distribution of the data gives random weights to the data (and to
    draws of `F`); each posterior draw minimises `loss(weighted data, model)`. With `loss=MMD()` this is
    NPL-MMD: it tolerates outliers and a wrong model, where a likelihood does not. Priors of the model
    serve as starting points only, unless `prior_weight` is positive. The simulator is called inside the compiled
    programs that minimise, as part of a loss, or that learn from it, where no call can go elsewhere, be stopped or left
    out: there is no `executor`, `timeout`, `on_failure`, `store`, `version` or `simulations`.

    The model has one observed site under one plate, the data plate, along its first axis; points that are masked there
    are left out of the data::

        noisy = kme.FromNoise(shift, dist.Normal(0, 1))

        def model(x=None):
            mean = numpyro.sample("mean", dist.Normal(0, 10))
            with numpyro.plate("data", len(x)):
                numpyro.sample("x", kme.Simulator(noisy, mean), obs=x)

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
            parameters vary along the plate: the loss then compares joint distributions of (covariate, response).
        num_starts: Prior draws to start the full-data minimum from; an emulator uses at least 2,048, and 128
            `prior_draws`.
        num_samples, num_nodes, method, restart_every, num_simulations, prior_weight, prior_draws, progress_bar: How it
            is computed, as in `numpyro_kme.bootstrap.Settings`.

    Raises:
        RuntimeError: By `run`, if a squared distance comes out negative by more than four of its standard errors: there
            are too few nodes for the minimum found.

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
    num_starts: int = 512

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        checks.whole("num_starts", self.num_starts, 1)
        check_rule(self.length_scale, self.loss, "loss", Loss, "a loss, such as MMD()")
        Settings.__post_init__(self)
        checks.require(
            not isinstance(self.centering, str) or self.centering == "prior predictive",
            f'`centering` must be a distribution, a sampler or "prior predictive"; got {self.centering!r}.',
        )
        DirichletProcess(self.concentration, self.centering, self.truncation)

    @property
    def resolved_loss(self) -> Loss:
        """The loss: what was given, or the squared MMD."""
        return MMD(length_scale=self.length_scale) if self.loss is None else self.loss

    def _infer(self, rng_key, args, kwargs):
        return self._bootstrap(rng_key, args, kwargs, self._found and self._found[0].learnt)

    def _condition(self, rng_key, args, kwargs, learnt):
        return self._bootstrap(rng_key, args, kwargs, learnt)[1]

    def _bootstrap(self, rng_key, args: tuple, kwargs: dict, last: Read | None):
        start_key, run_key = split(rng_key)
        read = self._generator(args, kwargs, last)
        iid, generator, process = read.iid, read.generator, read.process
        data = iid.data if generator.covariates is None else (generator.covariates, iid.data)
        objective = self.resolved_loss.objective(data, generator, process.points(run_key, np.arange(BLOCK), data))
        least = least_starts(self) if self.method == "emulated" else 1
        starts = iid.starts(start_key, max(self.num_starts, least))
        replicates = posterior_bootstrap(run_key, objective, starts, process, self)
        warn_of(replicates, iid.noise)
        posterior = BootstrapPosterior(
            engine=type(self).__name__,
            samples=iid.latents(replicates.u),
            fields={
                "loss": replicates.value,
                "converged": replicates.converged,
                "remaining_step": replicates.remaining,
                "steps": replicates.steps,
                "moved_by_restart": replicates.moved,
                **replicates.numbers,
            },
            groups={"observed_data": {iid.site: iid.data}},
            info={"noise": iid.noise} | described(replicates) if iid.noise else described(replicates),
            problem=iid.problem,
            replicates=replicates,
            iid=iid,
            objective=objective,
        )
        return read, posterior

    @property
    def posterior(self) -> BootstrapPosterior:
        """What the last `run` or `condition` found, an immutable value."""
        return cast(BootstrapPosterior, self._last[1])

    @property
    def replicates(self) -> Replicates:
        """Everything known of the minimisations that the draws are, unconstrained."""
        return self.posterior.replicates

    def _generator(self, args: tuple, kwargs: dict, last: Read | None) -> "Read":
        """The model as a generator, and the prior; those of an earlier run again, with their compiled programs, where
        only the data have changed, and neither settings of theirs nor anything that the model refers to."""
        iid = IidModel.read(self.model, args, kwargs)
        code, engine, centering = fingerprint({"model": self.model}), self._settings(), self.centering
        names = "covariates", "concentration", "centering", "truncation"
        for earlier in [last, *RECENT] if last else RECENT.copy():
            if (
                earlier.first.model is self.model
                and earlier.code == code
                and all(getattr(self, name) is getattr(earlier.engine, name) for name in names)
                and iid.differs_in_data_alone(earlier.first)
            ):
                return replace(earlier, engine=engine, iid=iid)
        generator = iid.generator(self.covariates)
        if isinstance(centering, Distribution):
            centering = partial(_drawn, centering)
        elif isinstance(centering, str) and self.concentration:
            centering = iid.predictive(generator)
        process = DirichletProcess(self.concentration, centering, self.truncation)
        read = Read(engine, iid, iid, generator, process, code)
        RECENT.append(read)
        return read


def _drawn(distribution: Distribution, rng_key: jax.Array, num: int) -> jax.Array:
    return distribution.sample(rng_key, (num,))


def warn_of(replicates: Replicates, noise: str) -> None:
    """Warn of minimisations that fell short; `noise` says in words what that of the simulator is."""
    failed, jumps = np.flatnonzero(~replicates.converged), ""
    if not replicates.derivatives.automatic and replicates.emulator is None:
        jumps = (
            " Simulated points jump as the parameters move, as counts and `where(u < p)` do, and surfaces fitted to "
            'the loss are too coarse here: with `method="emulated"` their mean embedding is learnt.'
        )
    if len(failed):
        checks.warn(
            f"{len(failed)} of {len(replicates.converged)} replicates did not converge: {failed[:10].tolist()}"
            f"{' ...' if len(failed) > 10 else ''}. They are marked in the extra field `converged`; see "
            f"`remaining_step`.{jumps}",
        )
    if (known := replicates.emulator) is not None:
        if known.is_wrong:
            checks.warn(
                f"the emulated loss is wrong by {known.error:.2g} units of log-likelihood at the draws (root mean "
                f"square; up to {WRONG} is harmless). Raise `num_simulations`.",
            )
    elif replicates.quadrature.noise > NOISY:
        further = f". The noise of the simulator is {noise}" if noise.startswith("drawn") else ""
        checks.warn(
            f"doubling the noise nodes moves the draws by {replicates.quadrature.noise:.2g} posterior standard "
            f"deviations. Raise `num_nodes`{further}.{jumps}",
        )
    if replicates.quadrature.widened is not None and not len(replicates.quadrature.widened):
        checks.warn(f"no surface that is half as wide again has a minimum, so that none confirms the draws.{jumps}")
    if replicates.quadrature.surface_error > COARSE:
        checks.warn(
            f"surfaces that are half as wide again move the draws by {replicates.quadrature.surface_error:.2g} "
            f"posterior standard deviations: the posterior may be somewhere else, and far wider.{jumps}",
        )
    if not replicates.fit.converged:
        checks.warn(f"the full-data minimum did not converge to working precision; see `replicates.fit`.{jumps}")


def described(replicates: Replicates) -> dict[str, Any]:
    """What a person reads of the minimisations."""
    full = replicates.fit
    error = f" +- {full.numbers['loss_error']:.1g}" if "loss_error" in full.numbers else ""
    info: dict[str, Any] = {
        "converged": f"{int(replicates.converged.sum())} of {len(replicates.converged)} replicates",
        "full-data loss": f"{full.value:.3g}{error}",
        "starts at the best minimum": f"{full.reached} of {full.followed}",
        "other minima": len(full.others),
        "restarted elsewhere": f"{replicates.compared} replicates; {int(replicates.moved.sum())} draws moved",
        "simulation noise (sd)": replicates.quadrature.noise,
        "derivatives": str(replicates.derivatives),
    }
    if replicates.quadrature.widened is not None:
        info["wider surfaces (sd)"] = replicates.quadrature.surface_error
    if (known := replicates.emulator) is not None:
        info["simulations"] = f"{known.simulations:,} in {known.rounds} rounds"
        info["emulated loss, error (log-likelihood)"] = f"{known.error:.2g} (resolved: {known.resolution:.2g})"
        info["loss scale (one unit of log-likelihood)"] = known.loss_scale
        info["derivatives"] = "automatic, of the emulator"
        info["between networks (sd)"] = info.pop("simulation noise (sd)")
    if (found := replicates.numbers.get("mixing_proportion")) is not None:
        info["mixing proportion"] = f"{found.mean():.3f} (sd {found.std():.3f})"
    return info
