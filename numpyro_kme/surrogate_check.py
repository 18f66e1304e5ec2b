"""Whether draws from a surrogate model stay where its likelihoods were learnt."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from numpyro_kme import _checks, _compat, _reading
from numpyro_kme._host import in_present_precision
from numpyro_kme.kernel_means.distribution import KernelMeansLikelihood
from numpyro_kme.simulator import Simulator

FAR, MANY = 0.99, 0.05
"""A point is outside where it is further from all simulations than this share of the simulations are from each other; so
many draws outside, or with a negative surrogate, are warned of."""


@dataclass(frozen=True)
class SurrogateCheck:
    """What a chain met at one simulator site.

    Attributes:
        outside: Share of the evaluations that are not masked outside the simulated region: further from the nearest simulation, in coordinates,
            than 99 % of the simulations are from theirs.
        negative: Share of the evaluations where the signed surrogate is negative, so that its positive version was sampled.
    """

    outside: float
    negative: float

    def findings(self, site: str) -> list[str]:
        """What to warn of at a site, and what to do next."""
        found = []
        if self.outside > MANY:
            found.append(
                f"{self.outside:.0%} of the draws leave the region that the likelihood of site {site!r} was learnt in. Simulate "
                "at draws of this posterior, learn again from all simulations, and run again."
            )
        if self.negative > MANY:
            found.append(
                f"The surrogate at site {site!r} is negative at {self.negative:.0%} of the draws, where its positive version "
                "stands for it. Simulate more."
            )
        return found


def check_surrogate(
    model: Callable, samples: Mapping[str, Any], *args, max_draws: int = 1000, **kwargs
) -> dict[str, SurrogateCheck]:
    """Look up draws of a `handlers.surrogate` model: outside the simulations, or where the surrogate is negative.

    Args:
        model: The surrogate model, observed as when it was sampled.
        samples: Its draws, `{site: (draws, *event)}`.
        *args: Positional arguments of the model.
        max_draws: How many draws to look at, evenly spaced.
        **kwargs: Keyword arguments of the model.
    Returns:
        A `SurrogateCheck` for each site with a learnt likelihood.
    Raises:
        ValueError: If no observed site has a learnt likelihood.
    Warns:
        UserWarning: If more than 5 % of the evaluations at a site are outside or negative.
    """
    draws = {name: np.asarray(value) for name, value in samples.items()}
    num = len(next(iter(draws.values()), ()))
    _checks.require(num >= 1, "`samples` must hold at least one draw; got none.")
    _check_shapes(model, draws, args, kwargs)
    rows = np.unique(np.linspace(0, num - 1, min(num, max_draws)).astype(int))

    @_reading.one_model_at_a_time()
    def one(latents):
        seeded = handlers.seed(handlers.substitute(model, data=latents), jax.random.key(0))
        sites = handlers.trace(seeded).get_trace(*args, **kwargs)
        found = {}
        for name, site in sites.items():
            fn = _compat.innermost(site["fn"]) if site["type"] == "sample" and site["is_observed"] else None
            if isinstance(fn, KernelMeansLikelihood):
                found[name] = _shares(fn, site["value"], _compat.mask(site["fn"]))
        return found

    found = jax.jit(jax.vmap(one))(in_present_precision({name: value[rows] for name, value in draws.items()}))
    _checks.require(
        bool(found),
        "No observed site of the model has a learnt likelihood: pass the model from `handlers.surrogate` and its data.",
    )
    checks = {name: SurrogateCheck(*(float(np.mean(share)) for share in shares)) for name, shares in found.items()}
    for name, check in checks.items():
        for sentence in check.findings(name):
            warnings.warn(sentence, stacklevel=2)
    return checks


def _shares(fn: KernelMeansLikelihood, value, mask) -> tuple[jax.Array, jax.Array]:
    """Shares of the evaluations that count, outside and negative."""
    if _checks.is_concrete(mask) and not np.any(mask):
        return jnp.zeros(()), jnp.zeros(())
    nearest, signs = fn.look_up(value)
    outside = jnp.broadcast_to(nearest > fn.fitted.reach(FAR), mask.shape)
    number = jnp.maximum(jnp.sum(mask), 1)
    return jnp.sum(outside & mask) / number, jnp.sum((signs < 0) & mask) / number


@_reading.one_model_at_a_time()
def _check_shapes(model, draws, args, kwargs) -> None:
    trace = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(*args, **kwargs)
    for name, site in trace.items():
        if (
            site["type"] == "sample"
            and not site["is_observed"]
            and not isinstance(_compat.innermost(site["fn"]), Simulator)
        ):
            found, shape = np.shape(draws.get(name, ())), np.shape(site["value"])
            _checks.require(
                len(found) > 0 and found[1:] == shape,
                f"`samples` must hold every latent of the model as (draws, *shape); at {name!r}, of shape {shape}, it has "
                f"{found if name in draws else 'nothing'}. Pass `mcmc.get_samples()`, not grouped by chain.",
            )
