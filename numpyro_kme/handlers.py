"""Models in, models out: a density in place of a simulator, and simulators in place of observations."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpyro
from numpyro.distributions.distribution import Distribution
from numpyro.primitives import Messenger

from numpyro_kme import _checks, _compat
from numpyro_kme.simulator import Simulator

Likelihood = Callable[..., Distribution]
"""A function of a simulator's parameters; those of a batch of calls have leading batch dimensions."""


class surrogate(Messenger):  # noqa: N801
    """The same model with a density in place of each observed simulator.

    The result is an ordinary NumPyro model: run `MCMC(NUTS(smodel))` on it, `log_likelihood`, `az.from_numpyro`. All
    other sites stay as they are, masks, plates and scales of the simulator's site apply to its density, and
    simulators that are not observed stay in place, so that `Predictive(smodel, samples)(rng_key)` still simulates.

    Observe inside: `surrogate(condition(model, data), likelihoods)`, or pass the observation to the model.

    Args:
        model: A model with `Simulator` sites.
        likelihoods: `{site: f}`, where `f(*params)` is a distribution: a fitted surrogate, or any function. It gets the
            simulator's parameters, all with the leading dimensions in which one of them varies along plates.
    Raises:
        ValueError: When the model runs: if an observed simulator has no likelihood, if a likelihood has no
            simulator site, or if the event or batch shape of a likelihood is not that of the simulator.
    Example:
        >>> smodel = surrogate(model, {"x": lambda theta: dist.Normal(theta, 1.0).to_event(1)})
        >>> mcmc = MCMC(NUTS(smodel), num_warmup=500, num_samples=1000)
    """

    def __init__(self, model: Callable | None = None, likelihoods: Mapping[str, Likelihood] | None = None):
        _checks.require(
            bool(likelihoods) and all(callable(f) for f in likelihoods.values()),
            "`likelihoods` must be a dictionary {site: f} of functions f(*params) that give a distribution; got "
            f"{likelihoods!r}.",
        )
        self.likelihoods = dict(likelihoods or {})
        self._met: set[str] = set()
        super().__init__(model)

    def __enter__(self):
        self._met = set()
        return super().__enter__()

    def __exit__(self, exc_type, exc_value, traceback):
        super().__exit__(exc_type, exc_value, traceback)
        unmet = sorted(set(self.likelihoods) - self._met)
        _checks.require(
            exc_type is not None or not unmet,
            f"`likelihoods` names {unmet}, but the simulator sites of the model are {sorted(self._met)}.",
        )
