"""Models in, models out: a density or a loss in place of a simulator, and simulators in place of observations."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions.distribution import Distribution
from numpyro.primitives import Messenger

from numpyro_kme._core import checks, compat, door
from numpyro_kme.likelihoods.distribution import KernelMeansLikelihood
from numpyro_kme.mcmc.densities import soft_abc
from numpyro_kme.mcmc.generalized_bayes import generalized_bayes
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.sites import observed_simulator, require_shape, require_whole_calls

__all__ = ["adjustable", "generalized_bayes", "soft_abc", "surrogate", "uncondition_simulators"]

Likelihood = Callable[..., Distribution]
"""A function of a simulator's parameters; those of a batch of calls have leading batch dimensions."""


class surrogate(Messenger):
    """A model with a density in place of each observed simulator.

    The result is an ordinary NumPyro model, for `MCMC(NUTS(smodel))`, `log_likelihood` and `az.from_numpyro`.
    All other sites stay as they are, masks, plates and scales of the simulator's site apply to its density, and
    simulators that are not observed stay in place, so that `Predictive(smodel, samples)(rng_key)` still
    simulates.

    Observe inside: `surrogate(condition(model, data), likelihoods)`, or pass the observation to the model.

    Under plates one likelihood of single calls serves everything: where parameters vary along the plate, each
    group is scored at its own; where they do not, the plate holds independent draws, and their log densities
    add up. To compare such a data set as a whole, make it one event of the simulator.

    Args:
        model: A model with `Simulator` sites.
        likelihoods: `{site: f}`, where `f(*params)` is a distribution: a `FittedLikelihood`, or any function.
            It gets the simulator's parameters, all with the leading dimensions in which one of them varies
            along plates.
    Raises:
        ValueError: When the model runs: if an observed simulator has no likelihood, if a likelihood has no
            simulator site, or if the event or batch shape of a likelihood is not that of the simulator.
    Example:
        >>> likelihood = lambda theta: dist.Normal(theta, 1.0).to_event(1)
        >>> smodel = surrogate(model, {"x": likelihood})
        >>> mcmc = MCMC(NUTS(smodel), num_warmup=500, num_samples=1000)
    """

    @door
    def __init__(self, model: Callable | None = None, likelihoods: Mapping[str, Likelihood] | None = None):
        given = likelihoods.items() if isinstance(likelihoods, Mapping) else ()
        shown = {name: type(f).__name__ for name, f in given} or type(likelihoods).__name__
        checks.require(
            bool(given) and all(callable(f) for _, f in given),
            "`likelihoods` must be a dictionary {site: f} of functions f(*params) that give a distribution, such as "
            f"`kelfi.likelihoods` after a run, or {{site: fit_likelihood(...)}}; got {shown}.",
        )
        self.likelihoods: dict[str, Likelihood] = dict(given)
        self._met: set[str] = set()
        self._lacking: set[str] = set()  # sites whose observation had NaN when the model was last run
        super().__init__(model)

    def __enter__(self):
        self._met = set()
        return super().__enter__()

    def __exit__(self, exc_type, exc_value, traceback):
        super().__exit__(exc_type, exc_value, traceback)
        unmet = sorted(set(self.likelihoods) - self._met)
        met = exc_type is not None or not unmet
        checks.require(met, f"`likelihoods` names {unmet}, but the model has the simulator sites {sorted(self._met)}.")

    def process_message(self, msg):
        """Put the density in place at an observed simulator site."""
        if msg["type"] != "sample" or not isinstance(compat.innermost(msg["fn"]), Simulator):
            return
        name = msg["name"]
        self._met.add(name)
        if not msg["is_observed"]:
            return
        checks.require(
            name in self.likelihoods,
            f"Site {name!r} is an observed simulator without a likelihood: add {name!r} to `likelihoods`, "
            f"which has {sorted(self.likelihoods)}, or do not observe it.",
        )
        shape, simulator = msg["fn"].shape(msg["kwargs"]["sample_shape"]), compat.innermost(msg["fn"])
        if simulator.ragged:
            msg["value"] = simulator.expand(shape[: len(shape) - simulator.event_dim]).padded(msg["value"])
        mask = compat.mask(msg["fn"])
        msg["value"] = simulator.vector(msg["value"])
        require_whole_calls(name, simulator, msg)
        require_shape(name, simulator, msg, enumerated=True)
        known = checks.is_concrete(msg["value"])
        checks.require(
            known or name not in self._lacking or simulator.ragged,
            f"JAX traces the observation at {name!r}, and it had NaN when this model was last run: entries that were "
            "not observed have to be known. Leave `jit_model_args` of MCMC out, or let the model hold the observation.",
            TypeError,
        )
        if known:
            checks.real(f"observation at {name!r}", msg["value"])
            (self._lacking.add if np.isnan(np.asarray(msg["value"])).any() else self._lacking.discard)(name)
        density = partial(_density, name, self.likelihoods[name], msg["value"], mask)
        fn = compat.rewrapped(msg["fn"], density)
        msg["fn"] = fn if _counts(mask) else fn.mask(False)


class adjustable(Messenger):
    """A model in which each statistic of an observed simulator may be shifted, as one that it cannot make.

    Each such site `x` gets a latent `x_shift`, `(*event)`, standard normal scores of the shifts of its numbers: what
    they are is a matter of the likelihood (`KELFI(adjust=...)`), and the simulator itself is the same. With
    `handlers.surrogate(handlers.adjustable(model), kelfi.likelihoods)` any sampler of NumPyro infers them.
    """

    @door
    def __init__(self, fn: Callable | None = None):
        super().__init__(fn)

    def process_message(self, msg):
        """Give an observed simulator its shifts as a further argument, which it does not look at."""
        simulator = observed_simulator(msg)
        if simulator is None:
            return
        name, shape = msg["name"], simulator.event_shape
        checks.require(
            not simulator.batch_shape and not simulator.ragged,
            f"Site {name!r} has calls along plates, or outputs of any length. Shifts are of the statistics of one "
            "event: for draws with outliers use PosteriorBootstrap.",
        )
        with compat.outside(self):  # `name` has the prefixes of scopes within
            scores = numpyro.sample(f"{name}_shift", dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))
        new = copy.copy(simulator)
        new.fn, new.params = _Unshifted(simulator.fn), (*simulator.params, scores)
        new.call_shapes = (*simulator.call_shapes, shape)
        msg["fn"] = compat.rewrapped(msg["fn"], lambda _: new)


@dataclass(frozen=True)
class _Unshifted:
    """A simulator that does not look at its last argument."""

    fn: Callable

    def __call__(self, rng_key, *params):
        return self.fn(rng_key, *params[:-1])


class uncondition_simulators(Messenger):
    """A model with its simulators not observed, and everything else as it is.

    `Predictive(uncondition_simulators(model), samples)(rng_key, x)` simulates replicates of an observation
    that is passed to the model, while `numpyro.handlers.uncondition` would redraw ordinary observations as
    well.
    """

    @door
    def __init__(self, fn: Callable | None = None):
        super().__init__(fn)

    def process_message(self, msg):
        """Forget the observation of a simulator site, and ask for a key."""
        if observed_simulator(msg) is not None:
            msg["is_observed"], msg["value"] = False, None
            if msg["kwargs"]["rng_key"] is None:
                msg["kwargs"]["rng_key"] = numpyro.prng_key()


def _counts(mask: ArrayLike) -> bool:
    """Tell whether any call counts, as far as is known."""
    return not checks.is_concrete(mask) or bool(np.any(mask))


def _density(
    name: str, likelihood: Likelihood, value: ArrayLike, mask: ArrayLike, simulator: Simulator
) -> Distribution:
    fn = likelihood(*simulator.broadcast_params(simulator.groups))
    checks.instance(f"likelihoods[{name!r}](...)", fn, Distribution, "a distribution of NumPyro")
    checks.require(
        fn.event_shape == simulator.event_shape,
        f"The likelihood of site {name!r} has event shape {fn.event_shape}, the simulator `{simulator.name}` "
        f"has {simulator.event_shape}. {_advice(fn, simulator)}",
    )
    if isinstance(fn, KernelMeansLikelihood):
        fn = fn.in_batches(simulator.groups)
    checks.require(
        checks.expands(fn.batch_shape, simulator.batch_shape),
        f"The likelihood of site {name!r} has batch shape {fn.batch_shape}, the simulator `{simulator.name}` "
        f"has {simulator.batch_shape}, one for each call.",
    )
    if isinstance(fn, KernelMeansLikelihood) and _counts(mask):
        fn = fn.observing(value, mask, simulator.bounds)
    return fn.expand(simulator.batch_shape)


def _advice(fn: Distribution, simulator: Simulator) -> str:
    if fn.event_shape == simulator.batch_shape + simulator.event_shape:
        return (
            "Along a plate draws are scored one by one: learn the likelihood from single draws, or make the data set "
            "one event of the simulator, outside the plate."
        )
    return "Use .to_event(n) if entries of one output are batch dimensions of the likelihood."
