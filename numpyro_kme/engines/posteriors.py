"""Posteriors of many observations: one value, with one summary and one ArviZ object."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from operator import attrgetter
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import Card, Saved, arviz, checks, frozen, names_and_shapes, numbers, saveable
from numpyro_kme.engines.posterior import SHOWN, Posterior, Samples

Outcome = tuple[Posterior | checks.EffectiveSampleSizeError, tuple[str, ...]]
"""The posterior of one observation, or the error of an engine that has none for it, and the warnings."""


def rows_of(observations: Any, kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Keyword arguments for each observation, from arrays with a leading axis of observations."""
    what = "arguments of the model with a leading axis of observations, such as {'x': x} with x of shape (n, ...)"
    checks.instance("observations", observations, Mapping, what)
    twice = sorted(set(observations) & set(kwargs))
    checks.require(
        bool(observations) and not twice,
        f"`observations` must hold {what}, and nothing that is given for all observations too; got the names "
        f"{sorted(observations)}{f', of which {twice} are given twice' if twice else ''}.",
    )
    arrays = {name: v if isinstance(v, jax.Array) else np.asanyarray(v) for name, v in observations.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    lengths = {shape[:1] for shape in shapes.values()}
    alike = len(lengths) == 1 and not lengths & {(), (0,)}
    checks.require(alike, f"`observations` must have one leading axis in all arrays; got the shapes {shapes}.")
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
        first = self._kept[0]
        rows = {
            "draws": f"{len(next(iter(first.samples.values()))):,} of {names_and_shapes(first.samples)} each",
            "no posterior": f"{len(self.refused)} observations, see `refused`" if self.refused else "none",
            "warned of": f"{len(self.warned)} observations, see `warned`" if self.warned else "none",
        }
        hint = "print_summary(), posteriors[0], get_samples(), to_inference_data()"
        trouble = "warned of" if self.warned else "no posterior" * bool(self.refused)
        return Card(f"Posteriors of {len(self)} observations by {first.engine}", rows, hint, trouble=trouble)

    @classmethod
    def of(cls, outcomes: Iterator[Outcome]) -> "Posteriors":
        """Collect the outcomes of all observations."""
        each = list(outcomes)
        refused = {i: str(p) for i, (p, _) in enumerate(each) if not isinstance(p, Posterior)}
        checks.require(
            len(refused) < len(each),
            f"The engine has a posterior for none of {len(each)} observations. Of the first: {refused.get(0)}",
            checks.EffectiveSampleSizeError,
        )
        found = tuple(replace(p, warned=told) if isinstance(p, Posterior) else None for p, told in each)
        return cls(found, refused, {i: warned for i, (_, warned) in enumerate(each) if warned})

    @property
    def _kept(self) -> list[Posterior]:
        return [posterior for posterior in self.found if posterior is not None]

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, number: int) -> Posterior:
        why = f"Observation {number}: {self.refused.get(number % len(self))}"
        return checks.given(self.found[number], why, checks.EffectiveSampleSizeError)

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
        quartiles and the largest; then how many observations were refused and were warned of."""
        draws = numbers(self.get_samples(), lead=2)
        wide = max(10, *map(len, draws))
        titles = "least", "25%", "median", "75%", "largest"
        print("\n" + " " * wide + f"{'':>6}" + "".join(f" {title:>9}" for title in titles))
        for name, value in list(draws.items())[: SHOWN // 2]:
            for label, of_each in (("mean", value.mean(axis=1)), ("std", value.std(axis=1))):
                row = np.nanquantile(of_each, (0, 0.25, 0.5, 0.75, 1))
                print(f"{name:>{wide}}{label:>6}" + "".join(f" {float(number):>9.3g}" for number in row))
        if len(draws) > SHOWN // 2:
            print(f"{'':>{wide}} and {len(draws) - SHOWN // 2} numbers more")
        print(f"\n{'observations':>28}: {len(self)}, of which {len(self.refused)} have no posterior")
        if self.warned:
            print(f"{'warned of':>28}: {len(self.warned)} observations, see `warned`")

    def to_inference_data(self, *, coords: Mapping | None = None, dims: Mapping | None = None):
        """Convert to ArviZ: `InferenceData` under ArviZ 0.x, `DataTree` under 1.x.

        Args:
            coords: Values of named dimensions, `observation` among them.
            dims: Names of the event dimensions, by variable; when left out names of the plates.
        Returns:
            Groups `posterior` and `sample_stats` with the dimensions `(chain, draw, observation, *event)`,
            `observed_data` with `(observation, *event)`, and what the engine adds: once where it is the same for all
            observations, as the simulations are, else with the dimension `observation` too.
        """
        first = self._kept[0]
        groups: dict[str, dict[str, np.ndarray]] = {}
        leading: dict[str, tuple[str, ...]] = {}
        behind = {"posterior": self.get_samples(True), "sample_stats": self.get_extra_fields(True)}
        for name, own in first.groups.items():
            if name == "observed_data":
                groups[name], leading[name] = self._stacked(attrgetter("groups"), name), ("observation",)
            elif all(_same(posterior.groups[name], own) for posterior in self._kept):
                groups[name] = dict(own)
            else:
                behind[name] = self._stacked(attrgetter("groups"), name)
        for name, arrays in behind.items():
            groups[name] = {site: np.moveaxis(value, 0, 2) for site, value in arrays.items()}
            leading[name] = ("chain", "draw", "observation")
        attrs = {"engine": first.engine, "refused": list(self.refused)}
        dims = ({} if first.problem is None else first.problem.dims) | dict(dims or {})
        return arviz.to_inference_data(groups, coords=coords, dims=dims, attrs=attrs, leading=leading)

    def _stacked(self, read: Callable[[Posterior], Mapping[str, Any]], group: str = "") -> dict[str, np.ndarray]:
        """Arrays of all observations, or those of a group of arrays, with NaN for those without a posterior."""
        each = [None if posterior is None else read(posterior) for posterior in self.found]
        each = [found[group] if group and found else found for found in each]
        first = next(found for found in each if found is not None)
        return {
            name: np.stack([np.full(np.shape(v), np.nan) if one is None else np.asarray(one[name]) for one in each])
            for name, v in first.items()
        }

    def emit_warnings(self) -> None:
        """Give one warning for all observations."""
        for number, why in list(self.refused.items())[:1]:
            checks.warn(
                f"{len(self.refused)} of {len(self)} observations have no posterior (`refused`). Number {number}: {why}"
            )
        for number, said in list(self.warned.items())[:1]:
            checks.warn(
                f"{len(self.warned)} of {len(self)} observations were warned of (`warned`). Number {number}: {said[0]}"
            )


def _same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """True if two groups hold the same numbers; no look at arrays that share their memory."""
    return all(
        np.shares_memory(one[name], value) or np.array_equal(one[name], value, equal_nan=value.dtype.kind == "f")
        for name, value in other.items()
    )
