"""Rounds of simulations: where the next ones go, and whether they are worth it."""

import abc
from collections.abc import Callable, Mapping, Sequence
from math import prod

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import numpy_rng
from numpyro_kme._core.programs import split
from numpyro_kme._core.solves import robust_standard_deviation
from numpyro_kme.engines.posterior import columns
from numpyro_kme.models.problem import Problem

Latents = Mapping[str, np.ndarray]

ROUNDS = 5
"""Rounds where the engine chooses."""

FEWEST = 100
"""With fewer simulations the engine makes one round."""

NARROW = 0.7
"""A proposal is narrow if the standard deviation of some number is below this fraction of the prior's."""


class Proposal(abc.ABC):
    """Where an engine simulates next.

    Attributes:
        power: `choose` gets draws of the prior times the likelihood to this power.
    """

    power: float = 1.0

    @abc.abstractmethod
    def choose(
        self, rng_key: jax.Array, draws: Latents, variance: Callable[[Latents], np.ndarray], size: int
    ) -> dict[str, np.ndarray]:
        """Latents of the next simulations, `{site: (size, *shape)}`.

        Args:
            rng_key: The only source of randomness.
            draws: Draws from the posterior of the last round, with the likelihood to the power `power`,
                `{site: (n, *shape)}`.
            variance: Variance of the surrogate at latents, `{site: (k, *shape)} -> (k,)`.
            size: How many.
        """


@frozen
class FromPosterior(Proposal):
    r"""Simulate at draws from the power posterior $p(\theta) q(y \mid \theta)^t$ of the last round.

    With the power `t = 1/2` they reach about 1.4 times as far as the posterior, so that the likelihood is learnt around
    it too, and a posterior that a round got too narrow is put right by the next. Where `n` calls along plates tell of
    `p < n` numbers, the power is `t p / n`: slopes are learnt from parameters that differ by as much as one call tells.

    Args:
        power: `t`, above 0 and no more than 1, which is the posterior itself.
    """

    power: float = 0.5

    def __post_init__(self):
        checks.require(0.0 < self.power <= 1.0, f"`power` must lie above 0 and be at most 1; got {self.power}.")

    def choose(self, rng_key, draws, variance, size):
        """Draws without replacement."""
        return take(rng_key, draws, size)


@frozen
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

    def choose(self, rng_key, draws, variance, size):
        """Posterior draws with odds in proportion to the variance."""
        first_key, second_key = split(rng_key)
        among = take(first_key, draws, min(self.candidates * size, len(next(iter(draws.values())))))
        odds = np.maximum(np.asarray(variance(among), np.float64), 1e-12)
        return take(second_key, among, size, odds / odds.sum())


def calls_each(problem: Problem) -> float:
    """Calls along plates for each number to infer, at least 1."""
    calls = sum(prod(site.simulator.batch_shape) for site in problem.simulators.values())
    return max(1.0, calls / sum(np.size(latent.value) for latent in problem.latents.values()))


def sizes(total: int, rounds: int) -> list[int]:
    """`total` simulations in `rounds` rounds that are as equal as can be, the first ones larger."""
    return np.bincount(np.arange(total) % rounds).tolist()


def take(rng_key: jax.Array, latents: Latents, size: int, odds: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """`size` draws, none twice unless there are too few."""
    number = len(next(iter(latents.values())))
    index = numpy_rng(rng_key).choice(number, size, replace=size > number, p=odds)
    return {name: np.asarray(value)[index] for name, value in latents.items()}


def moved(before: Latents, after: Latents) -> float:
    """Distance that a posterior moved: the largest change of a mean, in its standard deviation, or of a log standard
    deviation."""
    old, new = columns(before), columns(after)
    kept = _varies(new)
    old, new = old[:, kept], new[:, kept]
    sd = new.std(axis=0)
    means, widths = (new.mean(axis=0) - old.mean(axis=0)) / sd, np.log(sd / np.maximum(old.std(axis=0), 1e-300))
    return float(np.max(np.abs([means, widths]), initial=0.0))


def is_narrow(draws: Latents, prior: Latents) -> bool:
    """True if the robust standard deviation of some number is below `NARROW` of the prior's."""
    wide = columns(prior)
    kept = _varies(wide)
    for own, other in zip(columns(draws)[:, kept].T, wide[:, kept].T):
        if robust_standard_deviation(own) < NARROW * robust_standard_deviation(other):
            return True
    return False


def _varies(table: np.ndarray) -> np.ndarray:
    """Mark columns `(m, p)` that vary by more than rounding in float32; a correlation with itself does not."""
    return np.ptp(table, axis=0) > 1e-6 * np.max(np.abs(table), axis=0)


def described(history: Sequence[tuple[int, float]]) -> str:
    """Sizes of the rounds, and how far each moved the posterior; empty for one round."""
    if len(history) < 2:
        return ""
    made, moves = zip(*history)
    text = ", ".join(map("{:.2g}".format, moves[1:]))
    return f"simulations {', '.join(map(str, made))}; the posterior moved by {text} sd"
