"""A loss between data and simulated draws in place of a simulator: prior x `exp(-weight n loss)`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from numpyro.primitives import Messenger

from numpyro_kme._core import checks, compat, door, full_precision
from numpyro_kme.likelihoods.distribution import RealValued
from numpyro_kme.losses.base import Family, Loss, Nodes
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.mcmc.noise import CommonNoise, NoisePolicy, check_data_points, is_even
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.sites import Call, observed_simulator, require_shape

_no_key = compat.valueless("fresh_noise_log_prob")


class generalized_bayes(Messenger):
    r"""A model with a loss in place of each observed simulator: prior x `exp(-weight n loss)`.

    The site stands in one data plate of size `n`, and the loss compares the data as a whole with simulated points. It
    counts once: `log_prob` divides it evenly, `-weight loss` for each element of the plate. With `loss=MMD()` this
    is MMD-Bayes: robust to outliers and wrong models, with a density, so that other likelihoods and hierarchies can
    stand beside it. Simulators that are not observed stay in place, so that `Predictive` still simulates.

    Which kernels work: `CommonNoise` gives a density for NUTS where the simulator is in JAX and its draws are smooth
    in the parameters, and for the gradient-free ensembles AIES and ESS of NumPyro for any simulator; `LatentNoise` is
    for NUTS and `PseudoMarginal`, `FreshNoise` for `PseudoMarginal`.

    Args:
        model: A model with `Simulator` sites, each in one plate and observed with one event for each element.
        loss: A loss of the posterior bootstrap: `MMD()`, `MMD(fit_proportion=True)`, `Wasserstein()`, or your own.
        weight: Learning rate, positive; see `calibrate_weight`.
        noise: `CommonNoise`, `LatentNoise` or `FreshNoise`.
        covariates: `{site: (n, ...)}` where a simulator's parameters vary along the plate: the loss then compares
            joint distributions of (covariate, output). With `CommonNoise`.
    Raises:
        ValueError: When the model runs: for a site outside a plate or in several, masked or scaled; if parameters vary
            along the plate without covariates; if the observation is traced.
        NotImplementedError: When a kernel asks for a density or a derivative that the noise policy or the simulator
            lacks; the error names kernels that work.
    Cost: that of one evaluation of the loss, with `num_simulations` draws of the simulator.
    References: Bissiri, Holmes and Walker (2016), JRSS B 78; Cherief-Abdellatif and Alquier (2020), AABI.
    """

    @door
    def __init__(
        self,
        model: Callable | None = None,
        loss: Loss | None = None,
        *,
        weight: float,
        noise: NoisePolicy,
        covariates: Mapping[str, ArrayLike] | None = None,
    ):
        checks.require(
            np.shape(weight) == () and (not checks.is_concrete(weight) or np.asarray(weight).dtype.kind in "fiu"),
            f"`weight` must be one positive number; got {weight!r:.60}. Of a `calibrate_weight` pass `.by_bootstrap`.",
            TypeError,
        )
        checks.positive("weight", weight)
        checks.instance("noise", noise, NoisePolicy, "CommonNoise(...), LatentNoise(...) or FreshNoise(...)")
        checks.instance("loss", loss, Loss | None, "a loss, such as MMD()")
        self.loss = MMD() if loss is None else loss
        self.weight, self.noise, self.covariates = weight, noise, dict(covariates or {})
        known = not self.covariates or isinstance(noise, CommonNoise)
        checks.require(known, f"`covariates` need noise=CommonNoise(...); got {type(noise).__name__}.")
        super().__init__(model)

    def process_message(self, msg):
        """Put the loss in place at an observed simulator site."""
        simulator, covariates = observed_simulator(msg), self.covariates.get(msg["name"])
        if simulator is None:
            return
        msg["value"] = simulator.vector(msg["value"])
        _check_site(msg, simulator, covariates)
        losses = self._losses(np.asarray(msg["value"]), simulator, covariates)
        with compat.outside(self):
            nodes = self.noise.nodes(msg["name"], simulator, covariates)
        msg["fn"] = LossDensity(losses, nodes, self.weight, simulator)

    def _losses(self, value: np.ndarray, simulator: Simulator, covariates) -> Callable[[jax.Array, Nodes], Any]:
        """Losses of data `(n, *event)` as a function of the simulator's arguments and of sets of nodes, `(sets,)`."""
        known = None if covariates is None else np.asarray(covariates)
        given = value if known is None else (known, value)
        groups = () if known is None else simulator.groups
        call, equal = self.noise.call(simulator), np.full(len(value), 1.0 / len(value), jnp.result_type(float))
        family = Family(partial(_at_group, call, groups), simulator.arguments.size, None, known)
        with jax.ensure_compile_time_eval():
            loss = self.loss.for_data(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), given))
            even = isinstance(self.noise, CommonNoise) and is_even(simulator)
            loss = loss if even else loss.for_independent()
            data = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.result_type(float)), given)
            offset = np.asarray(loss.offset(data, equal))

        @full_precision
        def losses(arguments, nodes):
            return offset + jax.vmap(partial(loss.of_model, data, equal, family, arguments))(nodes)

        return losses


def _at_group(call: Call, groups: tuple[int, ...], arguments, noise, row=None):
    """One call, with the arguments of group `row` where they vary."""
    return call(arguments if row is None else arguments.reshape(*groups, -1)[row], noise)


class LossDensity(RealValued):
    """`exp(-weight n loss)`, shared out evenly over the data plate; made by `generalized_bayes`.

    Args:
        losses: Losses of the data as a function of the simulator's arguments and of nodes.
        nodes: Sets of noise; `None` where a kernel has to bring the key.
        weight: Learning rate.
        simulator: The simulator, along the data plate.
    """

    pytree_data_fields = ("nodes", "weight", "arguments")
    pytree_aux_fields = ("losses", "_name", "_without_derivative")

    def __init__(self, losses: Callable, nodes: Nodes | None, weight: ArrayLike, simulator: Simulator):
        self.losses, self.nodes, self.weight = losses, nodes, weight
        self.arguments, self._name = simulator.arguments.reshape(-1), simulator.name
        why = "runs on the host" if simulator.black_box else "returns whole numbers"
        self._without_derivative = "" if simulator.has_rsample else why
        super().__init__(simulator.batch_shape, simulator.event_shape)

    def mask(self, mask):
        """All or nothing: a joint loss has no terms of single points."""
        checks.require(
            not np.shape(mask),
            f"A mask of shape {np.shape(mask)} around handlers.generalized_bayes: the loss compares the data of "
            f"simulator `{self._name}` as a whole. Leave points out of the data.",
        )
        return super().mask(mask)

    def log_prob(self, value, intermediates=None):
        """`-weight loss` for each data point."""
        if self.nodes is None:
            message = (
                "FreshNoise has a new estimate of the density each time, which only `numpyro_kme.PseudoMarginal` "
                "samples correctly: MCMC(PseudoMarginal(model), ...). For NUTS use CommonNoise or LatentNoise."
            )
            settings = dict(shape=self.batch_shape, dtype=jnp.result_type(float), message=message)
            return _no_key(jnp.asarray(value), self.arguments, **settings)
        arguments, (size,) = self.arguments, self.batch_shape
        if self._without_derivative:
            error = NotImplementedError(
                f"Simulator `{self._name}` {self._without_derivative} and has no derivative, which NUTS needs. Use "
                "PseudoMarginal with FreshNoise; AIES with CommonNoise; any on a surrogate (handlers.surrogate)."
            )
            arguments = compat.without_derivative(arguments, error)
        losses = self.losses(arguments, self.nodes)
        total = logsumexp(-self.weight * size * losses) - np.log(len(losses))
        return jnp.broadcast_to(total / size, self.batch_shape)


def _check_site(msg, simulator: Simulator, covariates) -> None:
    """Require a site whose data one joint loss can compare: one plate, no masks or scales, covariates where needed."""
    name, frames = msg["name"], msg["cond_indep_stack"]
    weights = compat.mask(msg["fn"]), compat.scale(msg)
    checks.real(f"observation at {name!r}", msg["value"])
    checks.require(
        len(frames) == 1 and len(simulator.batch_shape) == 1 and simulator.batch_shape[0] >= 2,
        f"Site {name!r} must stand in one plate, the data plate, with one event for each of at least two data points; "
        f"it has the plates {[(frame.name, frame.size) for frame in frames]} and batch shape {simulator.batch_shape}.",
    )
    whole = checks.is_concrete(weights) and all(np.all(np.asarray(weight) == 1) for weight in weights)
    checks.require(whole, f"Site {name!r} is masked or scaled, as no loss is. Leave data out, or change `weight`.")
    if not simulator.ragged:
        require_shape(name, simulator, msg, enumerated=True)
    check_data_points(name, msg["value"], simulator, covariates, f"covariates={{{name!r}: array}}")
    checks.require(
        checks.is_concrete(msg["value"]),
        f"The observation at {name!r} is traced by JAX; a loss is bound to data that are known. Pass them to the model "
        "as they are (MCMC(..., jit_model_args=False)).",
    )
