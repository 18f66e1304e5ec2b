"""Posteriors of many observations: conditioned in threads, held as one value, with one summary and one ArviZ object."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import field
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_kme._core import arviz, checks, progress, solves
from numpyro_kme._core.display import Card, frozen, names_and_shapes, numbers
from numpyro_kme._core.keys import child
from numpyro_kme._core.saving import Saved, saveable
from numpyro_kme._core.threads import keep_freed_memory, processors
from numpyro_kme.engines.posterior import Posterior, Samples
from numpyro_kme.models import outputs

SHOWN = 15
"""So many numbers are listed in a summary."""


class Outcome(NamedTuple):
    """Outcome of one observation.

    Attributes:
        posterior: Its posterior, or the error of an engine that has none for it.
        warned: What the engine warned of.
    """

    posterior: Posterior | checks.EffectiveSampleSizeError
    warned: tuple[str, ...]


@frozen
class Trained:
    """Result of an engine that does not depend on the observation: it gives the posterior of any.

    Attributes:
        engine: The settings.
        learnt: What was learnt, of a type that the engine chooses; None where it keeps nothing and runs again.
    """

    engine: Any
    learnt: Any = None

    def _card(self) -> Card:
        cost = {} if self.learnt is not None else {"cost": "another observation takes as long as the first"}
        return Card(
            f"What {type(self.engine).__name__} learnt, whatever the observation",
            {**self.engine._card().rows, **cost},
            "condition(rng_key, x=...) gives the posterior of another observation, condition_many those of many",
        )

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
        return self.engine._condition(rng_key, args, kwargs, self.learnt)

    def condition_many(self, rng_key: jax.Array, observations: Mapping[str, Any], *args, **kwargs) -> "Posteriors":
        """The posteriors of many observations.

        An observation that the engine refuses for too small an effective sample size has no posterior
        (`Posteriors.refused`); the others have theirs. Warnings of single observations are kept in `Posteriors.warned`,
        and one is given for all.

        Args:
            rng_key: The only source of randomness. Observation `i` has the key `jax.random.fold_in(rng_key, i)`, and
                the draws that `condition` gives with it.
            observations: Keyword arguments of the model with a leading axis of observations, `{name: (n, ...)}`; NaN
                where an entry was not observed, for each observation by itself.
            *args: Positional arguments of the model, the same for all observations.
            **kwargs: Further keyword arguments of the model, the same for all observations.
        Raises:
            ValueError: If the arrays differ in length or are empty, an argument is given twice, or as `condition`, with
                a note that has the number of the observation.
        Warns:
            UserWarning: If the engine refused observations, or warned of them.
        """
        checks.key(rng_key)
        checks.concrete(rng_key=rng_key, observations=observations)
        given = [{**kwargs, **one} for one in _rows(observations, kwargs)]
        each, shown = self.each(rng_key, args, given), self.engine.progress_bar
        found = Posteriors.of(iter(progress.progress(each, "conditioning", shown, len(given))))
        found._warn()
        return found

    def each(self, rng_key: jax.Array, args: tuple, given: Sequence[Mapping[str, Any]]) -> Iterator[Outcome]:
        """Condition on each of some keyword arguments of the model; yields outcomes in their order."""

        def one(number: int) -> Outcome:
            with progress.no_progress_bars(), checks.collected_warnings() as warned:
                try:
                    found: Any = self.condition(child(rng_key, number), *args, **given[number])
                except checks.EffectiveSampleSizeError as error:
                    found = error
                except Exception as error:
                    error.add_note(f"This is of observation {number} of {len(given)}.")
                    raise
            return Outcome(found, tuple(warned))

        keep_freed_memory()
        threads = processors() if self.engine.conditions_in_threads else 1
        with solves.one_blas_thread, outputs.unchanged(), ThreadPoolExecutor(threads) as pool:
            waiting = [pool.submit(copy_context().run, one, number) for number in range(len(given))]
            try:
                for future in waiting:
                    yield future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def check_run(rng_key: Any, args: tuple, kwargs: dict) -> None:
    """Check that a run has a key, and data that are known."""
    checks.key(rng_key)
    checks.concrete(**{"rng_key": rng_key, "args": args, **kwargs})


def _rows(observations: Any, kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Keyword arguments for each observation."""
    what = "arguments of the model with a leading axis of observations, such as {'x': x} with x of shape (n, ...)"
    checks.instance("observations", observations, Mapping, what)
    twice = sorted(set(observations) & set(kwargs))
    checks.require(
        bool(observations) and not twice,
        f"`observations` must hold {what}, and nothing that is given for all observations too; got the names "
        f"{sorted(observations)}{f', of which {twice} are given twice' if twice else ''}.",
    )
    arrays = {
        name: value if isinstance(value, jax.Array) else np.asanyarray(value) for name, value in observations.items()
    }
    shapes = {name: array.shape for name, array in arrays.items()}
    lengths = {shape[:1] for shape in shapes.values()}
    checks.require(
        len(lengths) == 1 and not lengths & {(), (0,)},
        f"`observations` must have one leading axis, of as many observations in each array; got the shapes {shapes}.",
    )
    return [{name: array[i] for name, array in arrays.items()} for i in range(next(iter(lengths))[0])]


@saveable
@frozen
class Posteriors(Saved):
    """The posteriors of many observations.

    `posteriors[i]` is the ordinary `Posterior` of observation `i`, `len(posteriors)` their number.

    Attributes:
        found: Posterior of each observation; None where it has none.
        refused: Why an observation has no posterior, by its number.
        warned: What the engine warned of, by the number of the observation.
    """

    found: tuple[Posterior | None, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    warned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def _card(self) -> Card:
        first = next(posterior for posterior in self.found if posterior is not None)
        return Card(
            f"Posteriors of {len(self)} observations by {first.engine}",
            {
                "draws": f"{len(next(iter(first.samples.values()))):,} of {names_and_shapes(first.samples)} each",
                "no posterior": f"{len(self.refused)} observations, see `refused`" if self.refused else "none",
                "warned of": f"{len(self.warned)} observations, see `warned`" if self.warned else "none",
            },
            "print_summary(), posteriors[0], get_samples(), to_inference_data()",
        )

    @classmethod
    def of(cls, outcomes: Iterator[Outcome]) -> "Posteriors":
        """From what came of each observation."""
        each = list(outcomes)
        refused = {i: str(p) for i, (p, _) in enumerate(each) if not isinstance(p, Posterior)}
        first = next(iter(refused), 0)
        checks.require(
            len(refused) < len(each),
            f"The engine has a posterior for none of {len(each)} observations. Of the first: {refused.get(first)}",
            checks.EffectiveSampleSizeError,
        )
        return cls(
            tuple(p if isinstance(p, Posterior) else None for p, _ in each),
            refused,
            {i: said for i, (_, said) in enumerate(each) if said},
        )

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, number: int) -> Posterior:
        found = self.found[number]
        if found is None:
            raise checks.explained(
                f"Observation {number}: {self.refused[number % len(self)]}", checks.EffectiveSampleSizeError
            )
        return found

    def __iter__(self) -> Iterator[Posterior]:
        return (self[number] for number in range(len(self)))

    def get_samples(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Draws, `{site: (observation, draw, *event)}`, or `(observation, chain, draw, *event)` if `group_by_chain`.

        NaN for observations without a posterior (`refused`).
        """
        return self._stacked(lambda posterior: posterior.get_samples(group_by_chain))

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Numbers that belong to each draw, in the shapes of `get_samples`."""
        return self._stacked(lambda posterior: posterior.get_extra_fields(group_by_chain))

    def expectation(self, function: Callable[[Samples], Any]) -> np.ndarray:
        """`Posterior.expectation` for each observation, `(observation, *event)`."""
        return self._stacked(lambda posterior: {"": posterior.expectation(function)})[""]

    def print_summary(self) -> None:
        """Print how posterior means and standard deviations are distributed over the observations: at the least, the
        quartiles and the largest; then how many observations there are, were refused and were warned of, and the
        effective sample sizes."""
        draws = numbers(self.get_samples(), lead=2)
        titles = "least", "25%", "median", "75%", "largest"
        wide = max(10, *map(len, draws))
        print("\n" + " " * wide + f"{'':>6}" + "".join(f" {title:>9}" for title in titles))
        for name, value in list(draws.items())[:SHOWN]:
            for label, of_each in (("mean", value.mean(axis=1)), ("std", value.std(axis=1))):
                row = np.nanquantile(of_each, (0, 0.25, 0.5, 0.75, 1))
                print(f"{name:>{wide}}{label:>6}" + "".join(f" {float(number):>9.3g}" for number in row))
        if len(draws) > SHOWN:
            print(f"{'':>{wide}} and {len(draws) - SHOWN} numbers more")
        print(f"\n{'observations':>28}: {len(self)}, of which {len(self.refused)} have no posterior")
        sizes = [p.info["effective sample size"] for p in self.found if p and "effective sample size" in p.info]
        if sizes:
            print(f"{'effective sample size':>28}: {np.min(sizes):.4g} at least, {np.median(sizes):.4g} in the median")
        if self.warned:
            print(f"{'warned of':>28}: {len(self.warned)} observations, see `warned`")

    def to_inference_data(self, *, coords: Mapping | None = None, dims: Mapping | None = None):
        """Convert to ArviZ: `InferenceData` under ArviZ 0.x, `DataTree` under 1.x.

        Args:
            coords: Values of named dimensions, `observation` among them.
            dims: Names of the event dimensions, by variable.
        Returns:
            Groups `posterior` and `sample_stats` with the dimensions `(chain, draw, observation, *event)`,
            `observed_data` with `(observation, *event)`, and what the engine adds: once where it is the same for all
            observations, as the simulations are, else with the dimension `observation` too. Attributes are what is the
            same for all.
        """
        kept = [posterior for posterior in self.found if posterior is not None]
        groups: dict[str, dict[str, np.ndarray]] = {
            "posterior": _behind_draws(self.get_samples(True)),
            "sample_stats": _behind_draws(self.get_extra_fields(True)),
        }
        leading: dict[str, tuple[str, ...]] = dict.fromkeys(groups, ("chain", "draw", "observation"))
        for name in kept[0].groups:
            if name in arviz.WITHOUT_DRAWS:
                groups[name], leading[name] = self._stacked(attrgetter("groups"), name), ("observation",)
            elif all(_same(posterior.groups[name], kept[0].groups[name]) for posterior in kept):
                groups[name] = dict(kept[0].groups[name])
            else:
                groups[name] = _behind_draws(self._stacked(attrgetter("groups"), name))
                leading[name] = ("chain", "draw", "observation")
        same = {k: v for k, v in kept[0].info.items() if all(_equal(p.info.get(k), v) for p in kept)}
        attrs = {"engine": kept[0].engine, "refused": list(self.refused), **same}
        return arviz.to_inference_data(groups, coords=coords, dims=dims, attrs=attrs, leading=leading)

    def _stacked(self, read: Callable[[Posterior], Mapping[str, Any]], group: str = "") -> dict[str, np.ndarray]:
        """Arrays of all observations, or those of a group of arrays, with NaN for those without a posterior."""
        each = [None if posterior is None else read(posterior) for posterior in self.found]
        each = [found[group] if group and found else found for found in each]
        first = next(found for found in each if found is not None)
        return {
            name: np.stack([_nothing(value) if found is None else np.asarray(found[name]) for found in each])
            for name, value in first.items()
        }

    def _warn(self) -> None:
        """One warning for all observations."""
        if self.refused:
            number, why = next(iter(self.refused.items()))
            checks.warn(
                f"{len(self.refused)} of {len(self)} observations have no posterior, and NaN for draws (`refused` says "
                f"why). Observation {number}: {why}"
            )
        if self.warned:
            number, said = next(iter(self.warned.items()))
            checks.warn(
                f"{len(self.warned)} of {len(self)} observations were warned of (`warned` has what was said). "
                f"Observation {number}: {said[0]}"
            )


def _nothing(value: Any) -> np.ndarray:
    return np.full(np.shape(value), np.nan)


def _behind_draws(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays `(observation, chain, draw, ...)` as `(chain, draw, observation, ...)`."""
    return {name: np.moveaxis(value, 0, 2) for name, value in arrays.items()}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: Any, other: Any) -> bool:
    """True if two arrays, numbers or texts are the same; no look at arrays that share their memory."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape == other.shape and one.__array_interface__["data"] == other.__array_interface__["data"]:
        return True
    return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")
