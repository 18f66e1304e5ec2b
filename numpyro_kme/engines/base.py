"""What every engine shares: settings in the constructor, data in `run`, and a posterior that is a value."""

import abc
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from importlib.resources import files
from math import prod
from os import PathLike
from typing import Any, ClassVar, Generic, Self, TypeVar

import jax
import numpy as np

from numpyro_kme._core import Card, checks, child, door, host, is_default, progress, short, shown, split
from numpyro_kme.engines.posterior import Limited, Posterior
from numpyro_kme.engines.posteriors import Outcome, Posteriors, rows_of
from numpyro_kme.engines.reference_table import check_model, observed_anew
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import KernelRule, LengthScaleRule
from numpyro_kme.kernels.low_rank import TOLERANCE
from numpyro_kme.likelihoods.success import Success, fit_success
from numpyro_kme.models import outputs
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.simulate import OnFailure, Plan

P = TypeVar("P", bound=Posterior)
"""Kind of posterior that an engine gives."""


@shown
@dataclass(eq=False, repr=False)
class Engine(abc.ABC, Generic[P]):
    """Base of the inference engines: settings in the constructor, data in `run`, then read the posterior.

    A subclass implements `_infer(rng_key, args, kwargs) -> (method, posterior)`. The method is what it learnt, which
    serves other observations by `_condition(rng_key, args, kwargs, method) -> posterior`; without that another
    observation is another run. Neither changes an attribute of the engine. Engines can be pickled, before and after
    `run`; Python pickles a model that is a function of a module, `cloudpickle` any other.

    Args:
        model: A NumPyro model.
        progress_bar: Show bars, except where the environment variable `CI` is set.
    """

    paper: ClassVar[str | None] = None
    """BibTeX of its paper, for `cite`, or the key of an entry in `engines/references.bib`; None without one."""

    model: Callable
    progress_bar: bool = field(default=True, kw_only=True)
    _found: tuple[Any, P] | None = field(default=None, init=False, repr=False, compare=False)

    def _card(self) -> Card:
        given = ((f, getattr(self, f.name)) for f in fields(self) if f.init and f.name != "model")
        settings = ", ".join(f"{f.name}={short(value, 40)}" for f, value in given if not is_default(f, value))
        rows: dict[str, Any] = {"model": short(self.model), "settings": settings or "all as by default"}
        if self._found is None:
            hint = "run(rng_key, x=...) infers the latents of the model, where x is an argument of the model"
            return Card(f"{type(self).__name__}, not run yet", rows, hint)
        check = ", diagnostics.predictive_check(rng_key, engine)" * (self.posterior.problem is not None)
        hint = f"print_summary(), to_inference_data(){check}"
        return self.posterior._as_card("", rows, hint)

    @property
    def plan(self) -> Plan:
        """Plan by which simulators run: the settings that this engine has of one."""
        settings: dict[str, Any] = {f.name: getattr(self, f.name, f.default) for f in fields(Plan)}
        return Plan(**settings)

    @abc.abstractmethod
    def _infer(self, rng_key: jax.Array, args: tuple, kwargs: dict) -> tuple[Any, P]:
        """Infer; returns what was learnt that does not depend on the observation, or None, and the posterior."""

    def _condition(self, rng_key: jax.Array, args: tuple, kwargs: dict, method: Any) -> P:
        """The posterior of another observation, from what was learnt; here by another run."""
        return self._infer(rng_key, args, kwargs)[1]

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise an error for settings that this engine does not take; the constructor and `run` call it."""
        checks.instance("model", self.model, Callable, "a NumPyro model, a function")

    def _settings(self) -> Self:
        """The engine as it is set now, checked, without what it found."""
        bare = copy.copy(self)
        bare._found = None
        bare.check_settings()
        return bare

    def require_amortised(self) -> None:
        """Raise an error where the last run serves one observation alone."""
        self._last  # noqa: B018 (raises an error before `run`)

    @door
    def run(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer the latents of `model(*args, **kwargs)`; observations are passed as the model takes them.

        A run that raises an error leaves the engine as it was, with the posterior of the last run that came to its end,
        if any.

        Args:
            rng_key: The only source of randomness; the same key gives the same posterior.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model.
        """
        checks.concrete(**{"rng_key": rng_key, "args": args, **kwargs})
        with outputs.unchanged(), checks.each_once() as told:
            method, posterior = self._settings()._infer(rng_key, args, kwargs)
        self._found = method, replace(posterior, warned=tuple(told.values()))

    @door
    def condition(self, rng_key: jax.Array, *args, **kwargs) -> P:
        """The posterior of another observation, from the simulations and what was learnt in the last `run`. An engine
        that keeps nothing of these runs again. The engine does not change.

        Args:
            rng_key: The only source of randomness.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model, with the new observation.
        Raises:
            ValueError: If the arguments change the prior or a simulator.
        """
        checks.concrete(**{"rng_key": rng_key, "args": args, **kwargs})
        with checks.each_once() as told:
            posterior = self._settings()._condition(rng_key, args, kwargs, self.method)
        return replace(posterior, warned=tuple(told.values()))

    @door
    def condition_many(self, rng_key: jax.Array, observations: Mapping[str, Any], *args, **kwargs) -> Posteriors:
        """The posteriors of many observations, each as `condition` gives it; on all processors, if the engine keeps
        what it learnt.

        An observation with too small an effective sample size has no posterior, and is listed in
        `Posteriors.refused`. Warnings of single observations are kept in `Posteriors.warned`; one warning is given for
        all.

        Args:
            rng_key: The only source of randomness. Observation `i` has the key `jax.random.fold_in(rng_key, i)`.
            observations: Keyword arguments of the model with a leading axis of observations, `{name: (n, ...)}`; NaN
                where an entry was not observed, for each observation by itself.
            *args: Positional arguments of the model, the same for all observations.
            **kwargs: Further keyword arguments of the model, the same for all observations.
        Raises:
            ValueError: If the arrays differ in length or are empty, or an argument is given twice; and as `condition`,
                with the number of the observation.
        Warns:
            UserWarning: If the engine refused observations, or warned of them.
        """
        checks.concrete(rng_key=rng_key, observations=observations)
        given = [{**kwargs, **one} for one in rows_of(observations, kwargs)]
        outcomes = each_outcome(self, rng_key, args, given)
        found = Posteriors.of(iter(progress.progress(outcomes, "conditioning", self.progress_bar, len(given))))
        found.emit_warnings()
        return found

    @property
    def method(self) -> Any:
        """Result of learning in the last run, whatever the observation; None where the engine keeps nothing."""
        return self._last[0]

    @property
    def posterior(self) -> P:
        """Posterior of the last `run`, an immutable value."""
        return self._last[1]

    @property
    def _last(self) -> tuple[Any, P]:
        why = f"{type(self).__name__}.run(rng_key, ...) should be called first."
        return checks.given(self._found, why, RuntimeError)

    @property
    def info(self) -> dict[str, Any]:
        """Words and numbers for a person: what was learnt, and what to look at."""
        return dict(self.posterior.info)

    def get_samples(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Posterior draws of the last run, `{site: (num_samples, *shape)}`; as `Posterior.get_samples`."""
        return self.posterior.get_samples(group_by_chain)

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Numbers that belong to each draw of the last run; as `Posterior.get_extra_fields`."""
        return self.posterior.get_extra_fields(group_by_chain)

    @property
    def checks(self) -> tuple[Limited, ...]:
        """Numbers that the last run warns of beyond their limits; as `Posterior.checks`."""
        return self.posterior.checks

    def print_summary(
        self,
        prob: float = 0.9,
        verbose: bool = False,
        *,
        coords: Mapping | None = None,
        dims: Mapping | None = None,
    ) -> None:
        """Print the posterior of the last run and its verdict; as `Posterior.print_summary`."""
        self.posterior.print_summary(prob, verbose, coords=coords, dims=dims)

    @door
    def to_inference_data(
        self,
        *,
        coords: Mapping | None = None,
        dims: Mapping | None = None,
        log_likelihood: bool = False,
        posterior_predictive: Mapping[str, np.ndarray] | None = None,
    ):
        """Convert the last run to ArviZ; as `Posterior.to_inference_data`."""
        given: dict[str, Any] = dict(log_likelihood=log_likelihood, posterior_predictive=posterior_predictive)
        return self.posterior.to_inference_data(coords=coords, dims=dims, **given)


@dataclass(eq=False, repr=False)
class SimulationEngine(Engine[P]):
    """Base of the engines that learn from simulations; a set of them serves every observation.

    A subclass implements `_fit(rng_key, problem, simulations)`, which returns a method: a value with `problem`, the
    model as it was run, and `posterior(rng_key, problem)`, for any observation. The simulations of a run are
    `posterior.simulations`. A setting can be changed by assignment or `dataclasses.replace`, and counts in the next
    run.

    Args:
        model: A NumPyro model with observed `Simulator` sites.
        num_simulations: Number of simulations.
        num_samples: Number of equally weighted posterior draws.
        simulations: Simulations made elsewhere, instead of new ones.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    """

    positive: ClassVar[tuple[str, ...]] = ()
    """Names of settings that are positive numbers where they are given."""

    num_simulations: int = 1000
    _: KW_ONLY
    num_samples: int = 1000
    simulations: Simulations | None = None
    on_failure: OnFailure = "raise"
    executor: Any = None
    store: str | PathLike | None = None
    version: str | int | None = None
    timeout: float | None = None

    def check_settings(self):  # noqa: D102
        super().check_settings()
        checks.whole("num_samples", self.num_samples, 1)
        for name in self.positive:
            checks.optional(checks.positive_number, name, getattr(self, name))
        self.plan  # noqa: B018 (raises an error for settings that it does not take)

    def _checked(self, problem: Problem) -> Problem:
        """The model as this engine infers from it; raises an error where it cannot, before anything is simulated."""
        check_model(problem, type(self).__name__)
        return problem

    @abc.abstractmethod
    def _fit(self, rng_key: jax.Array, problem: Problem, simulations: Simulations) -> Any:
        """Learn from simulations what does not depend on the observation, but for what of it was masked."""

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key = split(rng_key, 3)
        problem = self._checked(Problem.read(self.model, *args, **kwargs))
        simulations = self.plan.simulate(simulate_key, problem)
        with progress.phase(f"learning from {len(simulations)} simulations", self.progress_bar):
            method = self._fit(fit_key, problem, simulations)
        with progress.phase("weighting the simulations", self.progress_bar):
            return method, method.posterior(sample_key, problem)

    def _condition(self, rng_key, args, kwargs, method):
        return method.posterior(rng_key, self._checked(observed_anew(method.problem, args, kwargs)))


@dataclass(eq=False, repr=False, kw_only=True)
class KernelEngine(SimulationEngine[P]):
    """Base of the engines with a kernel on outputs of the simulator.

    Args:
        kernel: The kernel, or a rule that makes one.
        length_scale: Rule for the kernel that is chosen when `kernel` is left out.
        regularisation: Of the regression on outputs.
        tolerance: Of the low-rank factor of the Gram matrix.
    """

    positive: ClassVar[tuple[str, ...]] = ("regularisation", "tolerance")

    kernel: Kernel | KernelRule | None = None
    length_scale: LengthScaleRule | None = None
    regularisation: float | None = None
    tolerance: float | None = TOLERANCE

    def check_settings(self):  # noqa: D102
        super().check_settings()
        what = "a kernel, such as Gaussian(length_scale), or a rule that makes one, such as EmpiricalMeasureRule()"
        check_rule(self.length_scale, self.kernel, "kernel", Kernel | KernelRule, what)


def each_outcome(
    engine: Engine, rng_key: jax.Array, args: tuple, given: Sequence[Mapping[str, Any]]
) -> Iterator[Outcome]:
    """Condition an engine on each of some keyword arguments of the model; yields outcomes in their order."""

    def one(number: int) -> Outcome:
        with progress.no_progress_bars(), checks.collected_warnings() as warned:
            try:
                return engine.condition(child(rng_key, number), *args, **given[number]), tuple(warned)
            except checks.EffectiveSampleSizeError as error:
                return error, tuple(warned)
            except Exception as error:
                error.add_note(f"This is of observation {number} of {len(given)}.")
                raise

    host.keep_freed_memory()
    threads = 1 if engine.method is None else host.processors()
    with host.one_blas_thread, outputs.unchanged(), ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(copy_context().run, one, number) for number in range(len(given))]
        try:
            for future in waiting:
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def learn_success(
    problem: Problem, simulations: Simulations, coordinates: Mapping[str, Coordinates]
) -> dict[str, Success]:
    """Learn the probability of success at each simulator site, in its coordinates, from simulations of which some
    failed and were left out; nothing where none was, or it is not known which."""
    known = simulations.failed if simulations.attempted > len(simulations) else {}
    if not len(next(iter(known.values()), ())):
        return {}
    failed, z, draws = problem.arguments(known), {}, {}
    for site, own in coordinates.items():
        simulator, arguments = problem.simulators[site].simulator, np.asarray(simulations.arguments[site])
        found = own.table(np.concatenate([arguments, failed[site]]))
        z[site] = found.reshape(len(found), -1, found.shape[-1])
        draws[site] = max(1, prod(simulator.batch_shape) // z[site].shape[1])
    return fit_success(z, draws, np.arange(len(found)) < len(simulations))


def check_rule(rule: LengthScaleRule | None, given: Any, name: str, kind: Any, what: str) -> None:
    """Check that a rule for length scales is one, and that nothing is `given` that has its own."""
    checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as CrossValidation(key)")
    checks.require(given is None or rule is None, f"Give `{name}` or `length_scale`, not both.")
    checks.instance(name, given, kind | None, what)


def posterior_of(found: Engine | Posterior) -> Posterior:
    """A posterior, or that of an engine that has been run."""
    posterior = found.posterior if isinstance(found, Engine) else found
    return checks.instance("posterior", posterior, Posterior, "a posterior, or an engine that has been run")


def cite(engine: Any = None) -> str:
    """BibTeX of the paper behind an engine, a form of the likelihood, or another public class; or of this package.

    Args:
        engine: A class of the package or of yours with an attribute `paper`, such as `KELFI`, or an object of it; the
            package itself when left out.
    Returns:
        The entry. For a `KELFI` with another form than the published one, a line before the entry says so.
    Raises:
        TypeError: If it names no paper.
    """
    entries = references()
    if engine is None:
        return entries["numpyro_kme"]
    cls = engine if isinstance(engine, type) else type(engine)
    paper = str(getattr(cls, "paper", None))
    checks.require(
        paper in entries or paper.startswith("@"),
        f"`engine` must be a class with a paper, such as KELFI; the class attribute `paper` of {cls.__name__} is "
        f"{paper}, neither BibTeX nor a key of engines/references.bib.",
        TypeError,
    )
    note = "" if isinstance(engine, type) else getattr(engine, "citation_note", "")
    return f"{note}\n{entries.get(paper, paper)}" if note else entries.get(paper, paper)


def references() -> dict[str, str]:
    """The entries of `references.bib`, by their keys: papers, and the package."""
    text = files("numpyro_kme.engines").joinpath("references.bib").read_text(encoding="utf-8")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in text.strip().split("\n\n")}
