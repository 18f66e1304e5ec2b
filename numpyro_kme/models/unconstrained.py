"""A model as two functions of one unconstrained vector: log prior and log likelihood."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from numpyro_kme._core.compat import log_prob
from numpyro_kme._core.host import constants
from numpyro_kme.models.tracing import PresentPrecision, set_from, trace_of

Arrays = Mapping[str, Any]


class Terms(NamedTuple):
    """Log densities of a model at one point.

    Attributes:
        log_prior: Log density of the latents, with respect to the constrained values.
        log_jacobian: Log absolute determinant of the map from the unconstrained vector to the latents.
        log_likelihood: Log density of everything observed, factors included.
    """

    log_prior: jax.Array
    log_jacobian: jax.Array
    log_likelihood: jax.Array


@dataclass(frozen=True, eq=False)
class Unconstrained:
    """A model whose every site has a density, as a function of one vector `u` `(D,)` that is free of constraints.

    The latents are mapped site by site, in the order of the model, each given those before it, so supports may depend
    on other latents.

    Attributes:
        model: The model, run as `model(*args, **kwargs)`.
        shapes: Unconstrained shape of each latent, in the order of the model.
    """

    model: Callable
    args: tuple
    kwargs: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, model: Callable, args: tuple, kwargs: Mapping, latents: Arrays) -> "Unconstrained":
        """Read the shapes at one point `{site: value}` of the latents."""
        unread = cls(model, args, kwargs, {})
        return replace(unread, shapes={name: np.shape(u) for name, u in unread._unconstrained(latents).items()})

    @property
    def dim(self) -> int:
        """Length of `u`."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def flatten(self, latents: Arrays) -> jax.Array:
        """The vector `u` of one point of the latents, `{site: value}`."""
        found = self._unconstrained(latents)
        return jnp.concatenate([jnp.ravel(found[name]) for name in self.shapes])

    def constrain(self, u: jax.Array) -> dict[str, jax.Array]:
        """The latents at `u`, `{site: value}`; no density is evaluated."""
        trace = self._trace(u)[0]
        return {name: trace[name]["value"] for name in self.shapes}

    def terms(self, u: jax.Array) -> Terms:
        """The log densities at `u`."""
        return self.evaluate(u)[1]

    def evaluate(self, u: jax.Array) -> tuple[dict[str, jax.Array], Terms]:
        """The latents and the log densities at `u`."""
        trace, log_jacobian = self._trace(u)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        log_probs = {name: log_prob(site) for name, site in sites.items()}
        zero = jnp.zeros(())
        prior = sum((value for name, value in log_probs.items() if name in self.shapes), zero)
        likelihood = sum((value for name, value in log_probs.items() if name not in self.shapes), zero)
        return {name: sites[name]["value"] for name in self.shapes}, Terms(prior, log_jacobian, likelihood)

    def _trace(self, u):
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])[:-1]
        pieces = dict(zip(self.shapes, jnp.split(u, ends), strict=True))
        log_jacobians = []

        def value(name, fn):
            piece = pieces[name].reshape(self.shapes[name])
            transform = biject_to(fn.support)
            found = transform(piece)
            log_jacobians.append(jnp.sum(transform.log_abs_det_jacobian(piece, found)))
            return found

        trace = self._run(set_from(self.shapes, value))
        return trace, sum(log_jacobians, jnp.zeros(()))

    def _unconstrained(self, latents: Arrays) -> dict[str, jax.Array]:
        trace = self._run(set_from(latents, lambda name, fn: jnp.asarray(latents[name])))
        return {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in trace.items()
            if site["type"] == "sample" and name in latents
        }

    def _run(self, given: Messenger):
        return trace_of(self.model, *constants((self.args, dict(self.kwargs))), PresentPrecision(), given)
