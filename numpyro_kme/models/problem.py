"""What a model with simulators consists of, and draws from its prior."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Unit

from numpyro_kme._core import Program, Recomputed, checks, child, compat, data_of, fold_in, frozen, programs, shown
from numpyro_kme.models import reading, tracing
from numpyro_kme.models.sites import Latent, SimulatorSite

__all__ = ["Draws", "Latent", "Problem", "SimulatorSite"]

Arrays = Mapping[str, np.ndarray]


@frozen
class Draws:
    """Latents and what follows from them; every array has a leading axis of `m` draws.

    Attributes:
        latents: `{site: (m, *shape)}`.
        arguments: All numbers that one call of a simulator takes, flattened: `{site: (m, *groups, p)}`, where
            `groups` is `()` unless the simulator's parameters vary along plates.
        deterministics: `{site: (m, *shape)}`, of the sites that do not depend on a simulator's output.
    """

    latents: Arrays
    arguments: Arrays
    deterministics: Arrays = field(default_factory=dict)


@shown
@dataclass(frozen=True, eq=False)
class Problem(Recomputed):
    """A model with simulators, taken apart; made by `Problem.read(model, *args, **kwargs)`.

    No method runs a simulator. Methods that take or give many points work in blocks of one width, so that no
    point depends on how many there are.

    Attributes:
        model: The model, which is run as `model(*args, **kwargs)`.
        latents: What is to be inferred, in the order of the model.
        simulators: The sites that come from simulators, observed or not.
        factors: Names of the other observed sites, which have densities, and of factors.
        deterministics: Deterministic sites that do not depend on a simulator's output, with the names of their
            dimensions.
    """

    what = "a model as `Problem.read(model)` gives it"

    model: Callable
    args: tuple
    kwargs: Mapping[str, Any]
    latents: Mapping[str, Latent]
    simulators: Mapping[str, SimulatorSite]
    factors: tuple[str, ...]
    deterministics: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, model: Callable, *args, **kwargs) -> "Problem":
        """Run `model(*args, **kwargs)` with its simulators left out and say what it consists of.

        Raises:
            ValueError: If the model fails, has no simulator or no latent, has a `param` site, a simulator
                whose output another site depends on, an observation of the wrong shape, or an improper prior or one
                of a single value. Each error names the site and says what to do.
        """
        return cls(model, args, kwargs, *reading.read(model, args, kwargs))

    def with_data(self, *args, **kwargs) -> "Problem":
        """Read the same model with other arguments, such as another observation; much faster than to read it anew.

        Raises:
            ValueError: As `read`.
        """
        return Problem(self.model, args, kwargs, *reading.read(self.model, args, kwargs, before=self))

    @property
    def observations(self) -> dict[str, np.ndarray]:
        """The observation at every simulator site, `{site: (*batch, *event)}`; raises if one is missing."""
        found = {}
        for name, site in self.simulators.items():
            masked = " `obs_mask` makes such sites: put NaN for what was not observed in its place."
            checks.require(
                site.observed is not None,
                f"The simulator site {name!r} is not observed: pass its observation to the model."
                f"{masked if name.endswith('_unobserved') else ''}",
            )
            found[name] = np.asarray(site.observed)
        return found

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Names of the dimensions of latents, deterministic and simulator sites, `{site: names}` (`dimensions`)."""
        sites: dict[str, Latent | SimulatorSite] = {**self.latents, **self.simulators}
        return {name: site.dims for name, site in sites.items()} | dict(self.deterministics)

    @property
    def factor_observations(self) -> dict[str, np.ndarray]:
        """Values that the factors observe, `{site: (*shape)}`."""
        found = self._observed(*self._run({name: latent.value for name, latent in self.latents.items()}))
        return {name: np.asarray(value) for name, value in found.items()}

    @property
    def discrete(self) -> tuple[str, ...]:
        """Names of the latents that are discrete."""
        return tuple(name for name, latent in self.latents.items() if latent.discrete)

    def require_continuous(self, who: str) -> None:
        """Refuse discrete latents, for `who` needs a density in them."""
        for name in self.discrete:
            raise checks.explained(
                discrete_message(name, self.latents[name], f"{who} needs a density in the parameters")
            )

    def site(self, name: str | None = None, how: str = "") -> str:
        """`name`, checked to be a simulator site; the only one there is if `name` is left out. `how` says by which
        argument a caller names it."""
        names = list(self.simulators)
        known = name in names or (name is None and len(names) == 1)
        checks.require(known, f"Name one of the model's simulator sites, {names}{how and f', {how}'}; got {name!r}.")
        return names[0] if name is None else name

    def draw(self, rng_key: jax.Array, num_draws: int) -> Draws:
        """Draw latents from the prior, with the simulators' arguments and the deterministic sites.

        Observations and factors do not count. Draw `i` has the key `fold_in(rng_key, i)`, whatever
        `num_draws`.
        """
        checks.key(rng_key)
        checks.whole("num_draws", num_draws, 1)
        words = tracing.keys_in_order(fold_in(data_of(rng_key), np.arange(num_draws)))
        return self._draws({}, words)

    def evaluate(self, latents: Arrays) -> Draws:
        """The simulators' arguments and the deterministic sites at given latents `{site: (m, *shape)}`."""
        return self._draws(self._checked(latents))

    def arguments(self, latents: Arrays) -> Arrays:
        """The simulators' arguments, `{site: (m, *groups, p)}`, at given latents `{site: (m, *shape)}`."""
        return self.evaluate(latents).arguments

    def log_prior(self, latents: Arrays) -> np.ndarray:
        """Log density of the prior, `(m,)`, at given latents `{site: (m, *shape)}`."""
        return self._at(self._log_prior, self._checked(latents))

    def pointwise(self, latents: Arrays) -> dict[str, np.ndarray]:
        """Log density of each observation of the factors, `{site: (m, *batch)}`, at given latents `{site: (m,
        *shape)}`; masked ones are 0, and scales and factors are left out."""
        return self._at(self._pointwise, self._checked(latents))

    def draw_factors(self, rng_key: jax.Array, latents: Arrays) -> dict[str, np.ndarray]:
        """Draw what the factors could have observed at given latents `{site: (m, *shape)}`: a draw from the
        distribution of each, `{site: (m, *shape)}`, where masked elements are as they were observed.

        Raises:
            ValueError: If one cannot be drawn from, as `numpyro.factor`.
        """
        if not self.factors:
            return {}
        keys = {name: data_of(child(rng_key, crc32(name.encode()))) for name in self.factors}
        rows = np.arange(len(next(iter(latents.values()))))
        words = {name: fold_in(key, rows) for name, key in keys.items()}
        return self._at(self._observed, self._checked(latents), None, words)

    def require_inside_support(self, what: str, latents: Arrays) -> None:
        """Refuse latents `{site: (m, *shape)}`, which an argument called `what` gives, where their priors, given the
        latents before them, are zero."""
        for name, inside in self._at(self._inside, self._checked(latents)).items():
            outside = latents[name][~inside]
            checks.require(
                not len(outside),
                f"`{what}[{name!r}]` has {len(outside)} of {len(inside)} draws outside the support of its prior, such "
                f"as {outside[:1].tolist()[:1]}: they have no coordinates. Leave them out, or widen the prior.",
            )

    def _run(self, latents: Mapping, words: Any = None, factors: Arrays = MappingProxyType({})):
        inside = [tracing.DrawObserved(factors)] if factors else []
        return tracing.run(self.model, self.args, self.kwargs, words, latents, *inside)

    def _at(self, function: Callable, latents: Arrays, *words: Any) -> Any:
        """`function` of the trace and its simulators at each of many points, given or drawn by keys of these words, and
        factors by those of their own, by one program for all calls."""
        known, name = self._programs, function.__name__
        if name not in known:
            known[name] = Program(jax.vmap(lambda rows: function(*self._run(*rows))))
        with tracing.as_numpyro_does():
            return programs.in_blocks(known[name], (latents, *words))

    @cached_property
    def _programs(self) -> dict[str, Program]:
        return {}

    def _draws(self, latents: Arrays, words: np.ndarray | None = None) -> Draws:
        names = (self.latents, self.simulators, self.deterministics)
        found = self._at(self._parts, latents, words)
        return Draws(*map(dict, map(zip, names, found)))

    def _parts(self, trace, simulators):
        """Parts of `Draws`, in lists: JAX sorts dictionaries by name."""
        values = {name: site["value"] for name, site in trace.items()}
        arguments = [simulators[name].arguments for name in self.simulators]
        return [*map(values.get, self.latents)], arguments, [*map(values.get, self.deterministics)]

    def _log_prior(self, trace, _):
        return sum(compat.log_prob(trace[name]) for name in self.latents)

    def _pointwise(self, trace, _):
        sites = {name: trace[name] for name in self.factors}
        return {n: s["fn"].log_prob(s["value"]) for n, s in sites.items() if not isinstance(s["fn"], Unit)}

    def _inside(self, trace, _):
        return {name: jnp.all(trace[name]["fn"].support(trace[name]["value"])) for name in self.latents}

    def _observed(self, trace, _):
        return {name: trace[name]["value"] for name in self.factors}

    def _checked(self, latents: Arrays) -> dict[str, np.ndarray]:
        checks.instance("latents", latents, Mapping, "values of the latents, {site: (m, *shape)}")
        names, found = list(self.latents), dict[str, np.ndarray]()
        checks.require(set(latents) == set(names), f"`latents` must have the sites {names}; got {list(latents)}.")
        draws = np.shape(latents[names[0]])[:1]
        for name, latent in self.latents.items():
            found[name], shape = np.asarray(latents[name]), latent.value.shape
            checks.real(f"latents[{name!r}]", found[name])
            checks.require(
                found[name].shape == (*draws, *shape) and draws not in ((), (0,)),
                f"`latents[{name!r}]` needs shape {shape} for as many draws as {names[0]!r}; got {found[name].shape}.",
            )
        return found


def discrete_message(name: str, latent: Latent, why: str) -> str:
    """Say what to do with a discrete latent that is not taken, and why it is not."""
    return (
        f"The prior of {name!r} is discrete ({type(compat.innermost(latent.fn)).__name__}), and {why}. Use "
        "RejectionABC or KernelABC, or draw it inside the simulator. If it is data, pass the observation to the model."
    )
