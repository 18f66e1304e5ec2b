"""Generalised Bayes: a loss between data and simulated draws in place of a likelihood."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from jax.typing import ArrayLike
from numpyro.primitives import Messenger

from numpyro_kme._core import checks, compat
from numpyro_kme.losses.base import Loss
from numpyro_kme.losses.generator import Generator, QuadratureNodes
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.mcmc.loss_density import Bound, Call, LossDensity
from numpyro_kme.mcmc.noise import (
    CommonNoise,
    FreshNoise,
    LatentNoise,
    NoisePolicy,
    even_noise,
    fresh_nodes,
    independent_noise,
    simulation_key,
)
from numpyro_kme.models.from_noise import FromNoise
from numpyro_kme.models.simulator import Simulator


class generalized_bayes(Messenger):
    r"""The same model with a loss in place of each observed simulator: prior x `exp(-weight n loss)`.

    The site stands in one data plate of size `n`, and the loss compares the data as a whole with simulated points. It
    counts once: `log_prob` shares it out evenly, `-weight loss` for each element of the plate. With `loss=MMD()` this
    is MMD-Bayes: robust to outliers and wrong models, with a density, so that other likelihoods and hierarchies can
    stand beside it. Simulators that are not observed stay in place, so that `Predictive` still simulates.

    Which kernels work: `CommonNoise` gives a density for NUTS where the simulator is in JAX and its draws are smooth
    in the parameters, and for the gradient-free ensembles AIES and ESS of NumPyro for any simulator; `LatentNoise` is
    for NUTS, `FreshNoise` for `PseudoMarginal`.

    Args:
        model: A model with `Simulator` sites, each in one plate and observed with one event for each element.
        loss: A loss of the posterior bootstrap: `MMD()`, `MMD(fit_proportion=True)`, `Wasserstein()`, or your own.
        weight: Learning rate, positive; see `calibrate_weight`.
        noise: `CommonNoise`, `LatentNoise` or `FreshNoise`.
        covariates: `{site: (n, ...)}` where a simulator's parameters vary along the plate: the loss then compares
            joint laws of (covariate, output). With `CommonNoise`.
    Raises:
        ValueError: When the model runs: for a site outside a plate or in several, masked or scaled; if parameters vary
            along the plate without covariates; if the observation is traced.
        NotImplementedError: When a kernel asks for a density or a derivative that the noise policy or the simulator
            lacks; the sentence says which kernels work.
    Cost: that of one evaluation of the loss, with `num_simulated` draws of the simulator.
    References: Bissiri, Holmes and Walker (2016), JRSS B 78; Cherief-Abdellatif and Alquier (2020), AABI.
    """

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
            f"`weight` must be one positive number; got {weight!r:.60}. Of a `calibrate_weight` pass `.by_bootstrap` "
            "or `.by_coverage`.",
            TypeError,
        )
        checks.positive("weight", weight)
        checks.require(
            isinstance(noise, NoisePolicy),
            f"`noise` must be CommonNoise(...), LatentNoise(...) or FreshNoise(...); got {noise!r}.",
            TypeError,
        )
        checks.instance("loss", loss, Loss | None, "a loss, such as MMD()")
        self.loss = MMD() if loss is None else loss
        self.weight, self.noise, self.covariates = weight, noise, dict(covariates or {})
        checks.require(
            not self.covariates or isinstance(noise, CommonNoise),
            f"`covariates` need noise=CommonNoise(...); got {type(noise).__name__}.",
        )
        self._bound: dict[str, tuple[Any, Bound]] = {}
        super().__init__(model)

    def process_message(self, msg):
        """Put the loss in place at an observed simulator site."""
        if msg["type"] != "sample" or not msg["is_observed"]:
            return
        simulator = compat.innermost(msg["fn"])
        if isinstance(simulator, Simulator):
            bound = self._bind(msg, simulator)
            nodes = self._nodes(msg, simulator, bound)
            msg["fn"] = LossDensity(simulator, bound, nodes, self.weight, isinstance(self.noise, CommonNoise))

    def _bind(self, msg, simulator: Simulator) -> "Bound":
        """The loss bound to the data, once for each observation."""
        name, value, covariates = msg["name"], msg["value"], self.covariates.get(msg["name"])
        _check_site(msg, simulator, covariates)
        call = Call(
            simulator.fn,
            simulator.call_shapes,
            tuple(str(param.dtype) for param in simulator.params),
            (simulator.event_shape, str(simulator.dtype)) if simulator.black_box else None,
            simulator.groups if covariates is not None else (),
        )
        signature = (call, np.asarray(value).tobytes(), np.shape(value))
        known = self._bound.get(name)
        if known is None or known[0] != signature:
            rule = even_noise if isinstance(self.noise, CommonNoise) else independent_noise
            generator = Generator(
                call,
                rule(simulator.fn),
                call.dim,
                covariates=covariates,
                differentiable=simulator.has_rsample,
            )
            known = signature, Bound.make(self.loss, np.asarray(value), generator)
            self._bound[name] = known
        return known[1]

    def _nodes(self, msg, simulator: Simulator, bound: "Bound") -> QuadratureNodes | None:
        """Sets of noise nodes `(sets, M, ...)`; None where a kernel has to bring the key."""
        noise, generator = self.noise, bound.objective.generator
        if isinstance(noise, LatentNoise):
            fn: Any = simulator.fn
            checks.require(
                isinstance(fn, FromNoise),
                f"LatentNoise needs the noise of simulator `{simulator.name}` declared: "
                "Simulator(FromNoise(fn, noise), ...). Otherwise use FreshNoise with PseudoMarginal.",
            )
            batch = fn.noise.batch_shape
            law = fn.noise.expand((noise.num_simulated, *batch)).to_event(1 + len(batch))
            plates = [frame.name for frame in msg["cond_indep_stack"]]
            values = numpyro.sample(f"{msg['name']}_noise", law, infer={"block_plates": plates})
            return QuadratureNodes(values[None], jnp.full((1, noise.num_simulated), 1.0 / noise.num_simulated))
        key = simulation_key(msg["name"], common=isinstance(noise, CommonNoise))
        if isinstance(noise, FreshNoise):
            return None if key is None else fresh_nodes(generator.noise, key, noise)
        key = noise.rng_key if key is None else key
        return bound.common_nodes(key, noise.num_simulated)


def _check_site(msg, simulator: Simulator, covariates) -> None:
    name, frames = msg["name"], msg["cond_indep_stack"]
    weights = compat.mask(msg["fn"]), 1.0 if msg["scale"] is None else msg["scale"]
    checks.real(f"observation at {name!r}", msg["value"])
    checks.require(
        len(frames) == 1 and len(simulator.batch_shape) == 1 and simulator.batch_shape[0] >= 2,
        f"Site {name!r} must stand in one plate, the data plate, with one event for each of at least two data points; "
        f"it has the plates {[(frame.name, frame.size) for frame in frames]} and batch shape {simulator.batch_shape}.",
    )
    checks.require(
        checks.is_concrete(weights) and all(np.all(np.asarray(weight) == 1) for weight in weights),
        f"Site {name!r} is masked or scaled, which a joint loss cannot be entry by entry. Leave those data out, or "
        "change `weight`.",
    )
    checks.require(
        (simulator.groups not in ((), (1,))) == (covariates is not None),
        f"The parameters of simulator `{simulator.name}` at site {name!r} have batch shape {simulator.groups} and "
        f"covariates are {'missing' if covariates is None else 'given'}. Where parameters vary along the data plate, "
        f"say with what: covariates={{{name!r}: array}}; otherwise leave them out.",
    )
    checks.require(
        checks.is_concrete(msg["value"]),
        f"The observation at {name!r} is traced by JAX; a loss is bound to data that are known. Pass them to the model "
        "as they are (MCMC(..., jit_model_args=False)).",
    )
