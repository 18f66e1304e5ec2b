"""The latents of a model as one vector that is free of constraints."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from numpyro_kme._core import Program, Recomputed, checks, door, in_present_precision, pieces, programs, shown
from numpyro_kme._core.compat import log_prob
from numpyro_kme.models.problem import Arrays, Problem
from numpyro_kme.models.tracing import run


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


@shown
@dataclass(frozen=True, eq=False)
class Unconstrained(Recomputed):
    """A model as a function of one vector `u` `(D,)` that is free of constraints; its simulators are left out.

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
    @door
    def of(cls, problem: Problem, discrete: Collection[str] = ()) -> "Unconstrained":
        """Read the shapes of a problem, of whose latents the `discrete` ones are left to be given."""
        unknown = sorted(set(discrete) - set(problem.latents))
        checks.require(not unknown, f"`discrete` must be among {[*problem.latents]}; got {unknown}.")
        shapes = {
            name: biject_to(latent.fn.support).inverse_shape(np.shape(latent.value))
            for name, latent in problem.latents.items()
            if name not in discrete
        }
        return cls(problem.model, problem.args, problem.kwargs, shapes)

    @property
    def dim(self) -> int:
        """Length of `u`."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def flatten(self, latents: Arrays) -> jax.Array:
        """The vector `u` of one point of the latents, `{site: value}`."""
        checks.instance("latents", latents, Mapping, "values of the latents, {site: value}")
        known = set(latents) >= set(self.shapes)
        checks.require(known, f"`latents` must have the sites {[*self.shapes]}; got {[*latents]}.")
        trace, _ = self._run(latents)
        sites = {name: trace[name] for name in self.shapes}
        free = [biject_to(site["fn"].support).inv(site["value"]) for site in sites.values()]
        return jnp.concatenate(list(map(jnp.ravel, free)))

    @door
    def flatten_rows(self, latents: Arrays) -> np.ndarray:
        """The vectors `(m, D)` of many points of the latents, `{site: (m, *shape)}`."""
        return programs.in_blocks(self._by_rows[0], dict(latents))

    def constrain_rows(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """The latents at many vectors `(m, D)`, `{site: (m, *shape)}`."""
        return programs.in_blocks(self._by_rows[1], u)

    @cached_property
    def _by_rows(self) -> tuple[Program, Program]:
        return Program(jax.vmap(self.flatten)), Program(jax.vmap(self.constrain))

    def constrain(self, u: jax.Array) -> dict[str, jax.Array]:
        """The latents at `u`, `{site: value}`; no density is evaluated."""
        trace = self._trace(u)[0]
        return {name: trace[name]["value"] for name in self.shapes}

    def terms(self, u: jax.Array) -> Terms:
        """The log densities at `u`."""
        return self.evaluate(u)[1]

    def evaluate(
        self, u: jax.Array, given: Arrays = MappingProxyType({})
    ) -> tuple[dict[str, jax.Array], Terms, dict[str, jax.Array]]:
        """The latents and the log densities at `u`, and the arguments of simulators, whose densities are left out.

        Latents that are not in `shapes` have the values `given`; their prior counts.
        """
        trace, simulators, log_jacobian = self._trace(u, given)
        own = {*self.shapes, *given}
        sites = {name: site for name, site in trace.items() if site["type"] == "sample" and name not in simulators}
        log_probs = {name: log_prob(site) for name, site in sites.items()}
        zero = jnp.zeros(())
        prior = sum((value for name, value in log_probs.items() if name in own), zero)
        likelihood = sum((value for name, value in log_probs.items() if name not in own), zero)
        latents = {name: site["value"] for name, site in sites.items() if name in own}
        arguments = {name: simulator.arguments for name, simulator in simulators.items()}
        return latents, Terms(prior, log_jacobian, likelihood), arguments

    def _trace(self, u, given: Arrays = MappingProxyType({})):
        checks.require(np.shape(u) == (self.dim,), f"`u` must have shape ({self.dim},); got {np.shape(u)}.")
        parts = dict(zip(self.shapes, pieces(jnp.asarray(u), self.shapes.values())))

        def constrained(site):
            name = site["name"]
            return biject_to(site["fn"].support)(parts[name]) if name in parts else None

        trace, simulators = self._run(given, handlers.substitute(substitute_fn=constrained))
        log_jacobian = jnp.zeros(())
        for name, piece in parts.items():  # not in `constrained`, which runs inside of any `scan` of the model
            transform = biject_to(trace[name]["fn"].support)
            log_jacobian += jnp.sum(transform.log_abs_det_jacobian(piece, trace[name]["value"]))
        return trace, simulators, log_jacobian

    def _run(self, given: Arrays, *inside: Messenger):
        return run(self.model, *in_present_precision((self.args, dict(self.kwargs))), None, given, *inside)
