"""What every engine shares: run first, then samples, a printed summary, and one ArviZ conversion."""

import abc
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import print_summary

from numpyro_kme import _arviz, _checks

Samples = Mapping[str, np.ndarray]


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

    A subclass implements `_infer(rng_key, args, kwargs) -> Result`.
    """

    model: Callable

    def __init__(self, model: Callable):
        self.model = model
        self._result: Result | None = None

    @abc.abstractmethod
    def _infer(self, rng_key: jax.Array, args: tuple, kwargs: dict) -> Result:
        """Run the method on `model(*args, **kwargs)`."""

    def run(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer the latents of `model(*args, **kwargs)`; observations are passed as the model takes them.

        Args:
            rng_key: The only source of randomness; the same key gives the same result.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model.
        """
        _checks.key(rng_key)
        _checks.concrete(**{"rng_key": rng_key, "args": args, **kwargs})
        self._result = None
        self._result = self._infer(rng_key, args, kwargs)

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
        """Print a table of the posterior with central mass `prob`, then what was learnt."""
        print_summary(self.get_samples(group_by_chain=True), prob=prob)
        for name, value in self.result.info.items():
            lines = textwrap.wrap(_readable(value), 90, break_long_words=False, break_on_hyphens=False)
            print(f"{name:>28}: " + f"\n{'':30}".join(lines))

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
        return _arviz.to_inference_data(groups, coords=coords, dims=dims, attrs=attrs)

    def _grouped(self, tree: Samples, group_by_chain: bool) -> dict[str, np.ndarray]:
        chains = self.result.num_chains
        if not group_by_chain:
            return dict(tree)
        return {name: value.reshape(chains, -1, *value.shape[1:]) for name, value in tree.items()}


def _readable(value: Any) -> str:
    """One line of text with numbers to three digits."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return np.array2string(array, precision=3, max_line_width=10_000, suppress_small=False)
    return str(value)
