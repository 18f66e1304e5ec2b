"""What every engine shares: settings in the constructor, data in `run`, and a posterior that is a value."""

import abc
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import Card, brief, frozen, is_default, shown
from numpyro_kme._core.threads import processors
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.engines.posteriors import Conditional, Posteriors
from numpyro_kme.kernels.length_scales import LengthScaleRule
from numpyro_kme.models import outputs
from numpyro_kme.models.problem import Problem, SimulatorSite
from numpyro_kme.simulations.fingerprint import is_another
from numpyro_kme.simulations.simulate import Plan


@frozen
class Trained(Conditional):
    """What an engine has found that does not depend on the observation.

    Attributes:
        engine: The settings.
        problem: What the model consists of, as it was run.
        learnt: What was learnt; of a type that the engine chooses.
    """

    engine: "Engine"
    problem: Problem
    learnt: Any

    def _card(self) -> Card:
        return Card(
            f"What {type(self.engine).__name__} learnt, whatever the observation",
            {"model": brief(self.problem.model), **self.problem._card().rows},
            "condition(rng_key, x=...) gives the posterior of another observation, condition_many those of many",
        )

    @property
    def num_threads(self) -> int:
        """As many as there are processors."""
        return processors()

    def condition(self, rng_key: jax.Array, *args, **kwargs) -> Posterior:
        """The posterior of another observation, from the same simulations and what was learnt from them.

        Args:
            rng_key: The only source of randomness.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model, with the new observation.
        Raises:
            ValueError: If the arguments change the prior or a simulator.
        """
        check_run(rng_key, args, kwargs)
        return self.engine._condition(rng_key, observed_anew(self.problem, args, kwargs), self.learnt)


@frozen
class RunAgain(Conditional):
    """What an engine has found that keeps nothing for another observation.

    Attributes:
        engine: The settings.
    """

    engine: "Engine"

    def _card(self) -> Card:
        rows = {**self.engine._card().rows, "cost": "another observation takes as long as the first"}
        how = "condition(rng_key, x=...) runs it again for another observation"
        return Card(f"{type(self.engine).__name__}, which keeps nothing for other observations", rows, how)

    def condition(self, rng_key: jax.Array, *args, **kwargs) -> Posterior:
        """The posterior of another observation, by another run."""
        check_run(rng_key, args, kwargs)
        return self.engine._infer(rng_key, args, kwargs)[1]


@shown
@dataclass(eq=False, repr=False)
class Engine(abc.ABC):
    """Base of the inference engines: settings in the constructor, data in `run`, then read the posterior.

    A subclass implements `_infer(rng_key, args, kwargs) -> (trained, posterior)`, where `trained` is a `Conditional`,
    which gives the posterior of another observation: `Trained`, which calls `_condition`, or `RunAgain`. Neither
    changes an attribute of the engine. Engines can be pickled, before and after `run`; Python pickles a model that is
    a function of a module, `cloudpickle` any other.

    Args:
        model: A NumPyro model.
        progress_bar: Show bars, except where the environment variable `CI` is set.
    """

    paper: ClassVar[str | None] = None
    """BibTeX of its paper, for `cite`, or the key of an entry in `engines/references.bib`; None without one."""

    model: Callable
    progress_bar: bool = field(default=True, kw_only=True)
    _found: tuple[Any, Posterior] | None = field(default=None, init=False, repr=False, compare=False)

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
        """How simulators run, for the engine and its diagnostics: here one by one, where an engine has no settings for
        it."""
        return Plan(1, progress_bar=self.progress_bar)

    @abc.abstractmethod
    def _infer(self, rng_key: jax.Array, args: tuple, kwargs: dict) -> tuple[Any, Posterior]:
        """What was found that does not depend on the observation, with a `condition`, and the posterior."""

    def _condition(self, rng_key: jax.Array, problem: Problem, learnt: Any) -> Posterior:
        """The posterior of the observation of `problem`, from what was learnt."""
        raise NotImplementedError

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
            self._found = self._infer(rng_key, args, kwargs)

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
        check_run(rng_key, args, kwargs)
        trained = self.trained
        self._found = trained, trained.condition(rng_key, *args, **kwargs)

    def condition_many(self, rng_key: jax.Array, observations: Mapping[str, Any], *args, **kwargs) -> Posteriors:
        """The posteriors of many observations, from the simulations and what was learnt in the last `run`; the engine
        stays as it is.

        As `Conditional.condition_many`: observation `i` has the key `jax.random.fold_in(rng_key, i)`.

        Args:
            rng_key: The only source of randomness.
            observations: Keyword arguments of the model with a leading axis of observations, `{name: (n, ...)}`.
            *args: Positional arguments of the model, the same for all observations.
            **kwargs: Further keyword arguments of the model, the same for all observations.
        """
        return self.trained.condition_many(rng_key, observations, *args, **kwargs)

    @property
    def trained(self) -> Any:
        """What the last run found that does not depend on the observation: `condition(rng_key, ...) -> Posterior`."""
        return self._last[0]

    @property
    def posterior(self) -> Posterior:
        """What the last `run` or `condition` found, an immutable value."""
        return self._last[1]

    @property
    def _last(self) -> tuple[Any, Posterior]:
        if self._found is None:
            raise checks.explained(f"{type(self).__name__}.run(rng_key, ...) should be called first.", RuntimeError)
        return self._found

    @property
    def info(self) -> dict[str, Any]:
        """What was learnt and what to look at, in words and numbers."""
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


def check_run(rng_key: Any, args: tuple, kwargs: dict) -> None:
    """That a run has a key, and data that are known."""
    checks.key(rng_key)
    checks.concrete(**{"rng_key": rng_key, "args": args, **kwargs})


def check_positive(**values: Any) -> None:
    """That numbers are positive, where they are given."""
    for name, value in values.items():
        if value is not None:
            checks.positive_number(name, value)


def check_rule(rule: LengthScaleRule | None, given: Any, name: str, kind: Any, what: str) -> None:
    """That a rule for length scales is one, and that nothing is `given` that has its own."""
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
    """Whether a site's simulator is another one: at the arguments of one prior draw, which may differ where calls have
    covariates or parameters of their own, and by the fingerprint of a new function."""
    fns, own = (old.simulator.fn, new.simulator.fn), old.simulator.groups and new.simulator.groups
    return (not own and _others(old.simulator.arguments, new.simulator.arguments)) or (
        fns[0] != fns[1] and is_another(*fns)
    )


def _others(old: Any, new: Any) -> bool:
    """Whether numbers differ, of as many: more or fewer groups along a plate are the same model."""
    return np.shape(old) == np.shape(new) and not np.array_equal(old, new)
