"""Whether draws from a surrogate model stay where its likelihoods were learnt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from numpyro_kme._core import checks as _checks
from numpyro_kme._core import compat
from numpyro_kme._core.host import in_present_precision
from numpyro_kme.likelihoods.distribution import FittedLikelihood, KernelMeansLikelihood, extrapolation_message
from numpyro_kme.models import tracing
from numpyro_kme.models.simulator import Simulator

MANY = 0.05
"""So many draws with a negative surrogate are warned of."""


@dataclass(frozen=True)
class SurrogateCheck:
    """What a chain met at one simulator site.

    Attributes:
        beyond: Share of the evaluations, without masked ones, that lie beyond the simulated parameters
            (`FittedLikelihood.beyond`).
        negative: Share of the evaluations where the signed surrogate is negative, so that its positive version was
            sampled.
        negligible: Share `beyond` that is not worth a warning.
    """

    beyond: float
    negative: float
    negligible: float

    def findings(self, site: str) -> list[str]:
        """What to warn of at a site, and what to do next."""
        found = []
        if self.beyond > self.negligible:
            found.append(extrapolation_message(site, self.beyond))
        if self.negative > MANY:
            found.append(
                f"The surrogate at site {site!r} is negative at {self.negative:.0%} of the draws, where its positive "
                "version stands for it. Simulate more."
            )
        return found


def check_surrogate(
    model: Callable, samples: Mapping[str, Any], *args, max_draws: int = 1000, **kwargs
) -> dict[str, SurrogateCheck]:
    """Look up draws of a `handlers.surrogate` model: beyond the simulations, or where the surrogate is negative.

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
        UserWarning: If more evaluations at a site are beyond the simulations than `max(1 %, 5 / (m + 1))`, or more than
            5 % negative.
    """
    draws = {name: np.asarray(value) for name, value in samples.items()}
    num = len(next(iter(draws.values()), ()))
    _checks.require(num >= 1, "`samples` must hold at least one draw; got none.")
    _check_shapes(model, draws, args, kwargs)
    rows = np.unique(np.linspace(0, num - 1, min(num, max_draws)).astype(int))
    observed: dict[str, tuple[FittedLikelihood, Any]] = {}

    @tracing.one_model_at_a_time()
    def one(latents):
        seeded = handlers.seed(handlers.substitute(model, data=latents), jax.random.key(0))
        sites = handlers.trace(seeded).get_trace(*args, **kwargs)
        found = {}
        for name, site in sites.items():
            fn = compat.innermost(site["fn"]) if site["type"] == "sample" and site["is_observed"] else None
            if isinstance(fn, KernelMeansLikelihood):
                mask = compat.mask(site["fn"])
                observed[name] = fn.fitted, site["value"]
                found[name] = fn.arguments, jnp.asarray(mask), _negative(fn, site["value"], mask)
        return found

    found = jax.jit(jax.vmap(one))(in_present_precision({name: value[rows] for name, value in draws.items()}))
    _checks.require(
        bool(found),
        "No observed site of the model has a learnt likelihood: pass the model from `handlers.surrogate` and its data.",
    )
    checks = {}
    for name, (arguments, masks, negative) in found.items():
        (fitted, value), mask = observed[name], np.asarray(masks)[0]
        beyond = fitted.beyond(value, arguments, mask)
        counts = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, beyond.shape[1:]))
        number = np.sum(counts.any(axis=tuple(range(counts.ndim - beyond.ndim + 1))))
        share = beyond.sum() / max(1, len(beyond) * int(number))
        checks[name] = SurrogateCheck(float(share), float(np.mean(negative)), fitted.negligible)
        for sentence in checks[name].findings(name):
            _checks.warn(sentence)
    return checks


def _negative(fn: KernelMeansLikelihood, value, mask) -> jax.Array:
    """Share of the evaluations that count where the surrogate is negative."""
    if _checks.is_concrete(mask) and not np.any(mask):
        return jnp.zeros(())
    return jnp.sum((fn.signs(value) < 0) & mask) / jnp.maximum(jnp.sum(mask), 1)


@tracing.one_model_at_a_time()
def _check_shapes(model, draws, args, kwargs) -> None:
    trace = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(*args, **kwargs)
    for name, site in trace.items():
        if (
            site["type"] == "sample"
            and not site["is_observed"]
            and not isinstance(compat.innermost(site["fn"]), Simulator)
        ):
            found, shape = np.shape(draws.get(name, ())), np.shape(site["value"])
            _checks.require(
                len(found) > 0 and found[1:] == shape,
                f"`samples` must hold every latent of the model as (draws, *shape); at {name!r}, of shape {shape}, it "
                f"has {found if name in draws else 'nothing'}. Pass `mcmc.get_samples()`, not grouped by chain.",
            )
