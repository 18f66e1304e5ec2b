"""What goes wrong: simulations that fail or take too long, and policies for them."""

from typing import Literal

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme.kernels.data_sets import beyond_end, lengths


class SimulationError(RuntimeError):
    """A simulation raised, gave a value that is not finite or took too long, or its executor stopped."""


class Failure(Exception):
    """The reason why one simulation failed.

    Args:
        kind: A short name to count by: the type of an exception, `not finite`, `timeout`.
        reason: One sentence.
    """

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        return f"{self.reason} ({self.kind})" if self.reason else self.kind


@frozen
class SimulatedMissing:
    """NaN is what a simulator gives for what is not recorded, and no failure: reporting, detection, dropping out.

    Whether an entry is recorded is learnt with its value, so that NaN in the observation tells what it tells in the
    simulations: it need not be missing at random. Infinite values stay failures.
    """


def unsound(x: np.ndarray, ragged_dims: int, missing: SimulatedMissing | None) -> Failure | None:
    """The failure of a simulator that gave values that are not finite; None if all are, or NaN where that is said.

    Args:
        x: One output.
        ragged_dims: Dimensions of an event, where one may end before its last row; else 0.
        missing: Whether NaN is what is not recorded.
    """
    bad = np.isinf(x) if missing else ~np.isfinite(x)
    size = bad.size
    if ragged_dims:
        events = x.reshape(-1, *x.shape[x.ndim - ragged_dims :])
        if not lengths(events).all():
            return Failure("no rows", "an output of it has no row: the first is NaN already")
        inside = ~beyond_end(events)
        bad, size = bad.reshape(inside.shape) & inside, inside.sum()
    return Failure("not finite", f"{bad.sum()} of its {size} values are not finite") if bad.any() else None


@frozen
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


@frozen
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
