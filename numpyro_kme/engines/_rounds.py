"""Rounds of simulations: where to simulate next, and how far a posterior has moved."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks

Latents = Mapping[str, np.ndarray]


class Proposal(abc.ABC):
    """Where an engine simulates next."""

    @abc.abstractmethod
    def choose(
        self, rng_key: jax.Array, draws: Latents, prior: Latents, variance: Callable[[Latents], np.ndarray], size: int
    ) -> dict[str, np.ndarray]:
        """Latents of the next simulations, `{site: (size, *shape)}`.

        Args:
            rng_key: The only source of randomness.
            draws: Posterior draws of the last round, `{site: (n, *shape)}`.
            prior: Prior draws, `{site: (size, *shape)}`.
            variance: Variance of the surrogate at latents, `{site: (k, *shape)} -> (k,)`.
            size: How many.
        """


@dataclass(frozen=True)
class FromPosterior(Proposal):
    """Simulate at draws from the posterior of the last round, and a part of them at prior draws.

    The part from the prior is a defensive mixture: the likelihood is learnt where the posterior has no mass yet, too,
    so that a mode that the first rounds missed can still be found.

    Args:
        prior_proportion: Between 0 and 1.
    """

    prior_proportion: float = 0.2

    def __post_init__(self):
        given = self.prior_proportion
        checks.require(0.0 <= given <= 1.0, f"`prior_proportion` must lie between 0 and 1; got {given}.")

    def choose(self, rng_key, draws, prior, variance, size):
        """Posterior draws without replacement, then prior draws."""
        own = round(self.prior_proportion * size)
        chosen = rows(draws, picked(rng_key, draws, size - own))
        return {name: np.concatenate([chosen[name], prior[name][:own]]) for name in chosen}


@dataclass(frozen=True)
class FromVariance(Proposal):
    """Simulate at posterior draws, more often where the surrogate's Gaussian-process variance is large.

    Of `candidates * size` posterior draws, `size` are drawn without replacement with odds in proportion to the
    variance: the posterior says where it matters, the variance where nothing was simulated yet. For forms that have a
    variance (`KernelMeans`).

    Args:
        candidates: Posterior draws for each simulation.
    """

    candidates: int = 4

    def __post_init__(self):
        checks.whole("candidates", self.candidates, 1)

    def choose(self, rng_key, draws, prior, variance, size):
        """Posterior draws with odds in proportion to the variance."""
        first_key, second_key = jax.random.split(rng_key)
        among = rows(draws, picked(first_key, draws, min(self.candidates * size, count(draws))))
        odds = np.maximum(np.asarray(variance(among), np.float64), 1e-12)
        return rows(among, picked(second_key, among, size, odds / odds.sum()))


def sizes(total: int, rounds: int) -> list[int]:
    """`total` simulations in `rounds` rounds that are as equal as can be, the first ones larger."""
    return [total // rounds + (r < total % rounds) for r in range(rounds)]


def count(latents: Latents) -> int:
    """How many draws."""
    return len(next(iter(latents.values())))


def rows(latents: Latents, index: np.ndarray) -> dict[str, np.ndarray]:
    """The draws of the given numbers."""
    return {name: np.asarray(value)[index] for name, value in latents.items()}


def picked(rng_key: jax.Array, latents: Latents, size: int, odds: np.ndarray | None = None) -> np.ndarray:
    """Numbers of `size` draws, none twice unless there are too few."""
    replace = size > count(latents)
    return np.asarray(jax.random.choice(rng_key, count(latents), (size,), replace=replace, p=odds))


def moved(before: Latents, after: Latents) -> float:
    """How far a posterior moved: the largest change of a mean, in its standard deviation, or of a log standard
    deviation."""
    changes = [0.0]
    for name, new in after.items():
        old, new = (np.asarray(part, np.float64).reshape(len(part), -1) for part in (before[name], new))
        sd = np.maximum(new.std(axis=0), 1e-300)
        changes += list(np.abs(new.mean(axis=0) - old.mean(axis=0)) / sd)
        changes += list(np.abs(np.log(sd / np.maximum(old.std(axis=0), 1e-300))))
    return float(np.max(changes))


def described(history: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """What a person reads of the rounds: their sizes, and how far each moved the posterior."""
    if len(history) < 2:
        return {}
    made = ", ".join(str(size) for size, _ in history)
    how_far = ", ".join(f"{change:.2g}" for _, change in history[1:])
    return {"rounds": f"simulations {made}; the posterior moved by {how_far} sd"}
