"""What every engine shares: run first, then samples, a printed summary, and one ArviZ conversion."""

import abc
import copy
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import numpy as np
from numpyro.diagnostics import summary

from numpyro_kme._core import arviz, checks

Samples = Mapping[str, np.ndarray]
WIDTH = 80
"""Columns of a printed summary."""


@dataclass(frozen=True)
class Result:
    """What an engine found.

    Attributes:
        samples: Equally weighted draws, constrained, `{site: (chains * draws, *event)}`, deterministics included.
        fields: Numbers that belong to each draw, `{name: (chains * draws, ...)}`.
        groups: Further ArviZ groups, `{group: {variable: (chain, draw, *event)}}`: the simulations, a weighted set, ...
        info: What a person reads, in order: `{what: number or sentence}`.
        num_chains: Into how many chains the draws are grouped.
    """

    samples: Samples
    fields: Samples = field(default_factory=dict)
    groups: Mapping[str, Samples] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    num_chains: int = 1


class Engine(abc.ABC):
    """Base of the inference engines: settings in the constructor, data in `run`, then read the result.

    A subclass implements `_infer(rng_key, args, kwargs) -> Result`, and `_infer_again` if it keeps what does not depend
    on the observation. Both may set attributes of `self`, anew: what an attribute holds is never changed in place. They
    work on a copy of the engine, which takes its place once they are through, so that an engine is never half of one
    run and half of another. Engines can be pickled, and copied by `copy.copy`, before and after `run`; Python pickles a
    model that is a function of a module, `cloudpickle` any other.
    """

    model: Callable

    def __init__(self, model: Callable):
        self.model = model
        self._result: Result | None = None

    @abc.abstractmethod
    def _infer(self, rng_key: jax.Array, args: tuple, kwargs: dict) -> Result:
        """Run the method on `model(*args, **kwargs)`."""

    def _infer_again(self, rng_key: jax.Array, args: tuple, kwargs: dict) -> Result:
        """The same for another observation, after a `run`."""
        return self._infer(rng_key, args, kwargs)

    def run(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer the latents of `model(*args, **kwargs)`; observations are passed as the model takes them.

        A run that raises an error leaves the engine as it was, with the result of the last run that came to its end, if
        any.

        Args:
            rng_key: The only source of randomness; the same key gives the same result.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model.
        """
        checks.key(rng_key)
        checks.concrete(**{"rng_key": rng_key, "args": args, **kwargs})
        with self._draft() as draft:
            draft._result = draft._infer(rng_key, args, kwargs)

    def condition(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer from another observation, with the simulations and what was learnt in the last `run`, where the engine
        keeps them.

        An engine that keeps nothing runs again. An error leaves the engine as it was.

        Args:
            rng_key: The only source of randomness.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model, with the new observation.
        """
        checks.key(rng_key)
        checks.concrete(**{"rng_key": rng_key, "args": args, **kwargs})
        _ = self.result
        with self._draft() as draft:
            draft._result = draft._infer_again(rng_key, args, kwargs)

    @contextmanager
    def _draft(self) -> Iterator[Self]:
        """A copy of this engine to infer on, which takes its place if no error is raised."""
        draft = copy.copy(self)
        yield draft
        self.__dict__.update(draft.__dict__)

    @property
    def result(self) -> Result:
        """The last run's result; raises if there is none."""
        if self._result is None:
            raise RuntimeError(f"{type(self).__name__}.run(rng_key, ...) should be called first.")
        return self._result

    def get_samples(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Posterior draws, `{site: (draws, *event)}`, or `(chains, draws, *event)` if `group_by_chain`."""
        return self._grouped(self.result.samples, group_by_chain)

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Numbers that belong to each draw, in the shapes of `get_samples`."""
        return self._grouped(self.result.fields, group_by_chain)

    @property
    def info(self) -> dict[str, Any]:
        """What was learnt and what to look at, in words and numbers."""
        return dict(self.result.info)

    def print_summary(self, prob: float = 0.9) -> None:
        """Print a table of the posterior, with the narrowest intervals that hold a share `prob` of the draws, then what
        was learnt.

        Where draws are chains, the table has `n_eff` and `r_hat` too.
        """
        columns = _columns(summary(self.get_samples(group_by_chain=True), prob), self.result.num_chains > 1)
        names = columns.pop("")
        wide = max(10, *map(len, names))
        print("\n" + " " * wide + "".join(f" {title:>9}" for title in columns))
        for name, *values in zip(names, *columns.values()):
            print(f"{name:>{wide}}" + "".join(f" {value:>9.3g}" for value in values))
        print()
        lines = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
        for name, value in self.result.info.items():
            lines.initial_indent, lines.subsequent_indent = f"{name:>28}: ", " " * 30
            print(lines.fill(_readable(value)))

    def to_inference_data(self, *, coords: Mapping | None = None, dims: Mapping | None = None):
        """Convert to ArviZ: `InferenceData` under ArviZ 0.x, `DataTree` under 1.x.

        Args:
            coords: Values of named dimensions.
            dims: Names of the event dimensions, by variable.
        Returns:
            Groups `posterior`, `sample_stats`, `observed_data`, and what the engine adds, such as `prior` and
            `prior_predictive` with the simulations.
        """
        groups = {
            "posterior": self.get_samples(group_by_chain=True),
            "sample_stats": self.get_extra_fields(group_by_chain=True),
            **self.result.groups,
        }
        attrs = {"engine": type(self).__name__, **self.result.info}
        return arviz.to_inference_data(groups, coords=coords, dims=dims, attrs=attrs)

    def _grouped(self, tree: Samples, group_by_chain: bool) -> dict[str, np.ndarray]:
        chains = self.result.num_chains
        if not group_by_chain:
            return dict(tree)
        return {name: value.reshape(chains, -1, *value.shape[1:]) for name, value in tree.items()}


def _columns(statistics: Mapping[str, Mapping[str, np.ndarray]], chains: bool) -> dict[str, list]:
    """NumPyro's statistics of sites as columns, a row for each number; those of chains only for chains."""
    columns: dict[str, list] = {"": []}
    for site, found in statistics.items():
        shape = np.shape(found["mean"])
        columns[""] += [site + (f"[{','.join(map(str, i))}]" if shape else "") for i in np.ndindex(shape)]
        for title, values in found.items():
            if chains or title not in ("n_eff", "r_hat"):
                columns.setdefault(title, []).extend(np.ravel(values))
    return columns


def _readable(value: Any) -> str:
    """One line of text with numbers to three digits."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return np.array2string(array, precision=3, max_line_width=10_000, suppress_small=False)
    return str(value)
