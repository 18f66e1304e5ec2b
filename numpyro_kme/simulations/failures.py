"""Simulations that fail: how a failure is named, and what is done about it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from numpyro_kme._core import checks


class SimulationError(RuntimeError):
    """A simulation raised, gave a value that is not finite, took too long, or ended its worker."""


class Failure(Exception):
    """What one simulation ended with.

    Args:
        kind: A short name to count by: the type of an exception, `not finite`, `timeout`, `worker died`.
        reason: One sentence.
    """

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        return f"{self.reason} ({self.kind})" if self.reason else self.kind


def raised(error: BaseException) -> Failure:
    """The failure of a simulator that raised, `sys.exit` included."""
    failure = Failure(type(error).__name__, str(error))
    failure.__cause__ = error
    return failure


def not_finite(x: np.ndarray) -> Failure | None:
    """The failure of a simulator that gave values that are not finite; None if all are."""
    bad = np.size(x) - np.count_nonzero(np.isfinite(x))
    return Failure("not finite", f"{bad} of its {np.size(x)} values are not finite") if bad else None


@dataclass(frozen=True)
class Retry:
    """Simulate again, with a fresh key, where a simulation failed.

    The result is a draw from the simulator given that it succeeds, at every parameter: where failures depend on the
    simulated noise, the likelihood that is learnt is that of the runs that succeed.

    Args:
        times: How many times at most.
        then: What to do with those that still fail, `"raise"` or `"skip"`.
    """

    times: int = 3
    then: Literal["raise", "skip"] = "raise"

    def __post_init__(self):
        checks.require(self.times >= 1, f"`times` must be at least 1; got {self.times}.")
        checks.require(self.then in ("raise", "skip"), f"`then` must be 'raise' or 'skip'; got {self.then!r}.")


@dataclass(frozen=True)
class Penalise:
    """Put a value far from any observation in place of a failed simulation's output.

    Parameters at which the simulator fails become improbable, as they should where failure itself rules them out. The
    value is an outlier to whatever is learnt: prefer `"skip"` unless failing says something about the parameters.

    Args:
        value: For every number of the output; finite.
    """

    value: float

    def __post_init__(self):
        checks.require(bool(np.isfinite(self.value)), f"`value` must be finite; got {self.value}.")


OnFailure = Literal["raise", "skip"] | Retry | Penalise


def check_policy(on_failure: OnFailure) -> None:
    """Require a policy."""
    checks.require(
        isinstance(on_failure, Retry | Penalise) or on_failure in ("raise", "skip"),
        f"`on_failure` must be 'raise', 'skip', Retry(...) or Penalise(...); got {on_failure!r}.",
    )


def retries(on_failure: OnFailure) -> int:
    """How many times a failed simulation is run again."""
    return on_failure.times if isinstance(on_failure, Retry) else 0


def stops(on_failure: OnFailure) -> bool:
    """Whether the first failure that remains ends the run."""
    return (on_failure.then if isinstance(on_failure, Retry) else on_failure) == "raise"
