"""What every engine shares: settings in the constructor, data in `run`, and a posterior that is a value."""

import abc
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import Card, brief, is_default, shown
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.engines.posteriors import Posteriors, Trained, check_run
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.models import outputs
from numpyro_kme.models.problem import Problem, SimulatorSite
from numpyro_kme.simulations.fingerprint import is_another
from numpyro_kme.simulations.simulate import Plan


@shown
@dataclass(eq=False, repr=False)
class Engine(abc.ABC):
    """Base of the inference engines: settings in the constructor, data in `run`, then read the posterior.

    A subclass implements `_infer(rng_key, args, kwargs) -> (learnt, posterior)`. What it learnt serves other
    observations by `_condition(rng_key, args, kwargs, learnt) -> posterior`; without that another observation is
    another run. Neither changes an attribute of the engine. Engines can be pickled, before and after `run`; Python
    pickles a model that is a function of a module, `cloudpickle` any other.

    Args:
        model: A NumPyro model.
        progress_bar: Show bars, except where the environment variable `CI` is set.
    """

    paper: ClassVar[str | None] = None
    """BibTeX of its paper, for `cite`, or the key of an entry in `engines/references.bib`; None without one."""
    conditions_in_threads: ClassVar[bool] = False
    """Many observations are conditioned on in threads, as many as there are processors."""

    model: Callable
    progress_bar: bool = field(default=True, kw_only=True)
    _found: tuple[Trained, Posterior] | None = field(default=None, init=False, repr=False, compare=False)

    def _card(self) -> Card:
        given = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.init and f.name != "model" and not is_default(f, getattr(self, f.name))
        }
        rows = {"model": brief(self.model), "settings": ", ".join(f"{k}={brief(v, 40)}" for k, v in given.items())}
        rows["settings"] = rows["settings"] or "all as by default"
        if self._found is None:
            hint = "run(rng_key, x=...) infers the latents of the model, where x is an argument of the model"
            return Card(f"{type(self).__name__}, not run yet", rows, hint)
        return Card(
            f"{type(self).__name__}, with the posterior of its last run",
            rows | self.posterior._about(),
            f"print_summary(), to_inference_data(), {self._how_to_check()}",
        )

    def _how_to_check(self) -> str:
        """The call that checks this engine."""
        return "diagnostics.check(rng_key, engine)"

    @property
    def plan(self) -> Plan:
        """Plan by which simulators run, one by one for an engine without settings for it."""
        return Plan(1, progress_bar=self.progress_bar)

    @abc.abstractmethod
    def _infer(self, rng_key: jax.Array, args: tuple, kwargs: dict) -> tuple[Any, Posterior]:
        """Infer; returns what was learnt that does not depend on the observation, or None, and the posterior."""

    def _condition(self, rng_key: jax.Array, args: tuple, kwargs: dict, learnt: Any) -> Posterior:
        """The posterior of another observation, from what was learnt; here by another run."""
        return self._infer(rng_key, args, kwargs)[1]

    def _settings(self) -> Self:
        """This engine without what it found."""
        bare = copy.copy(self)
        bare._found = None
        return bare

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise an error for settings that this engine does not take; the constructor and `run` call it."""
        checks.instance("model", self.model, Callable, "a NumPyro model, a function")

    def run(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer the latents of `model(*args, **kwargs)`; observations are passed as the model takes them.

        A run that raises an error leaves the engine as it was, with the posterior of the last run that came to its end,
        if any.

        Args:
            rng_key: The only source of randomness; the same key gives the same posterior.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model.
        """
        check_run(rng_key, args, kwargs)
        self.check_settings()
        with outputs.unchanged():
            learnt, posterior = self._infer(rng_key, args, kwargs)
        self._found = Trained(self._settings(), learnt), posterior

    def condition(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer from another observation, with the simulations and what was learnt in the last `run`, where the engine
        keeps them.

        An engine that keeps nothing runs again. An error leaves the engine as it was. `trained.condition` gives the
        posterior and leaves the engine as it is.

        Args:
            rng_key: The only source of randomness.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model, with the new observation.
        """
        self._found = self.trained, self.trained.condition(rng_key, *args, **kwargs)

    def condition_many(self, rng_key: jax.Array, observations: Mapping[str, Any], *args, **kwargs) -> Posteriors:
        """The posteriors of many observations, from the simulations and what was learnt in the last `run`; the engine
        stays as it is.

        Observation `i` has the key `jax.random.fold_in(rng_key, i)`.

        Args:
            rng_key: The only source of randomness.
            observations: Keyword arguments of the model with a leading axis of observations, `{name: (n, ...)}`.
            *args: Positional arguments of the model, the same for all observations.
            **kwargs: Further keyword arguments of the model, the same for all observations.
        """
        return self.trained.condition_many(rng_key, observations, *args, **kwargs)

    @property
    def trained(self) -> Trained:
        """Result of the last run that does not depend on the observation: `condition(rng_key, ...) -> Posterior`."""
        return self._last[0]

    @property
    def posterior(self) -> Posterior:
        """Posterior of the last `run` or `condition`, an immutable value."""
        return self._last[1]

    @property
    def _last(self) -> tuple[Trained, Posterior]:
        if self._found is None:
            raise checks.explained(f"{type(self).__name__}.run(rng_key, ...) should be called first.", RuntimeError)
        return self._found

    @property
    def info(self) -> dict[str, Any]:
        """Words and numbers for a person: what was learnt, and what to look at."""
        return dict(self.posterior.info)

    def get_samples(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """`Posterior.get_samples` of the last run."""
        return self.posterior.get_samples(group_by_chain)

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """`Posterior.get_extra_fields` of the last run."""
        return self.posterior.get_extra_fields(group_by_chain)

    def expectation(self, function: Callable[[Mapping[str, np.ndarray]], Any]) -> np.ndarray:
        """`Posterior.expectation` of the last run."""
        return self.posterior.expectation(function)

    def mode(self) -> dict[str, np.ndarray]:
        """`Posterior.mode` of the last run."""
        return self.posterior.mode()

    def log_density(self, latents: Mapping[str, Any]) -> np.ndarray:
        """`Posterior.log_density` of the last run."""
        return self.posterior.log_density(latents)

    def print_summary(self, prob: float = 0.9) -> None:
        """`Posterior.print_summary` of the last run."""
        self.posterior.print_summary(prob)

    def to_inference_data(
        self, *, coords: Mapping | None = None, dims: Mapping | None = None, log_likelihood: bool = False
    ):
        """`Posterior.to_inference_data` of the last run."""
        return self.posterior.to_inference_data(coords=coords, dims=dims, log_likelihood=log_likelihood)


def check_positive(**values: Any) -> None:
    """Check that numbers are positive, where they are given."""
    for name, value in values.items():
        if value is not None:
            checks.positive_number(name, value)


def check_rule(rule: LengthScaleRule | None, given: Any, name: str, kind: Any, what: str) -> None:
    """Check that a rule for length scales is one, and that nothing is `given` that has its own."""
    checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as CrossValidation(key)")
    checks.require(given is None or rule is None, f"Give `{name}` or `length_scale`, not both.")
    checks.instance(name, given, kind | None, what)


def posterior_of(found: Engine | Posterior) -> Posterior:
    """A posterior, or that of an engine that has been run."""
    posterior = found.posterior if isinstance(found, Engine) else found
    checks.instance("posterior", posterior, Posterior, "a posterior, or an engine that has been run")
    return posterior


def observed_anew(problem: Problem, args: tuple, kwargs: Mapping[str, Any]) -> Problem:
    """The model with another observation, for which simulations and what was learnt from them still hold.

    Raises:
        ValueError: If the prior or a simulator is another one too.
    """
    found = problem.with_data(*args, **kwargs)
    for name, old in problem.latents.items():
        types = old.value.dtype, found.latents[name].value.dtype if name in found.latents else old.value.dtype
        checks.require(
            types[0] == types[1],
            f"The last run drew {name!r} as {types[0]}, and JAX draws it as {types[1]} now: `jax_enable_x64` was "
            "switched in between, or the prior is another one. Condition in the precision of the run, or call `run`.",
        )
    changed = [
        f"the prior of {name!r}"
        for name, old in problem.latents.items()
        if name in found.latents and _others(old.value, found.latents[name].value)
    ] or [
        f"the simulator at {name!r}"
        for name, old in problem.simulators.items()
        if name in found.simulators and _another(old, found.simulators[name])
    ]
    checks.require(
        not changed,
        f"The new arguments of the model change {' and '.join(changed)}: the simulations of the last run are of "
        "another model. `condition` is for other observations; call `run`.",
    )
    return found


def _another(old: SimulatorSite, new: SimulatorSite) -> bool:
    """True if a site's simulator is another one: at the arguments of one prior draw, which may differ where calls have
    covariates or parameters of their own, and by the fingerprint of a new function."""
    fns, own = (old.simulator.fn, new.simulator.fn), old.simulator.groups and new.simulator.groups
    return (not own and _others(old.simulator.arguments, new.simulator.arguments)) or (
        fns[0] != fns[1] and is_another(*fns)
    )


def _others(old: Any, new: Any) -> bool:
    """True if numbers of one shape differ: more or fewer groups along a plate are the same model."""
    return np.shape(old) == np.shape(new) and not np.array_equal(old, new)
