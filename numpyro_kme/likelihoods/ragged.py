r"""The likelihood of outputs of any length: of how long they are, and of the rest given that.

With `n` rows in an output, $q(y \mid \theta) = q(n \mid \theta)\, q(y \mid n, \theta)$. What a kernel or statistics
compare scatters as `n` says: the mean of 20 rows three times as much as that of 200. So the logarithm of the length is
one more coordinate of the second factor, in which it is learnt and at which it is evaluated: the posterior is that
given the observation's own length, and not an average over those that were simulated. Where lengths are a design, on
which the parameters have no influence, the first factor is flat.
"""

from dataclasses import field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.ragged import lengths, log_lengths
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans


@frozen
class Ragged(Form):
    """Settings of the likelihood of outputs of any length, `(longest, *shape)` with rows of NaN at the end.

    Args:
        form: Of an output given its length: `KernelStatistics(kernel)`, or `KernelMeans(data_kernel=kernel)`.
        of_length: Of the logarithm of the length, of the rows that are not left out.
    """

    form: Form
    of_length: Form = field(default_factory=ResidualKernelMeans)

    def points(self, x: Any) -> Any:
        """Outputs as they are."""
        return x

    def point(self, y: Any) -> Any:
        """One output as it is."""
        return y

    def fit(self, z, x, *, measure=None, y=None) -> Surrogate:
        """As `Form.fit`; rows of `y` that are not whole, before its end, are left out of `x`, too."""
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        gaps = () if y is None else gaps_of(np.asarray(y))
        y, x = None if y is None else without(np.asarray(y)[None], gaps)[0], without(x, gaps)
        size = lengths(x)
        rows = "row" if not gaps else f"row beside those that the observation lacks, {', '.join(map(str, gaps))}"
        checks.require(
            bool(size.all()), f"{int(np.sum(size == 0))} of the {len(x)} outputs have no {rows}. Leave them out."
        )
        logs, ends = log_lengths(x), (int(size.min()), int(size.max()))
        if size.min() == size.max():
            inner = self.form.fit(z, self.form.points(x), measure=measure, y=None if y is None else self.form.point(y))
            return RaggedSurrogate(inner, None, logs[0], np.ones(()), ends, gaps)
        centre, scale = logs.mean(), logs.std()
        inner = self.form.fit_given(z, ((logs - centre) / scale)[:, None], x)
        length = self.of_length.fit(z, logs[:, None])
        return RaggedSurrogate(inner, length, centre, scale, ends, gaps)


def gaps_of(y: np.ndarray) -> tuple[int, ...]:
    """Rows of an output `(longest, *shape)` before its end that hold NaN."""
    whole = ~np.isnan(y).reshape(len(y), -1).any(axis=1)
    return tuple(np.flatnonzero(~whole[: int(lengths(y[None])[0])]).tolist())


def without(x: Any, gaps: tuple[int, ...]) -> Any:
    """Outputs `(n, longest, *shape)` without some of their rows."""
    return x if not gaps else x[:, np.setdiff1d(np.arange(x.shape[1]), gaps)]


@register
class RaggedSurrogate(Surrogate):
    """A learnt likelihood of outputs of any length.

    Attributes:
        inner: Of an output given its length, whose standardised logarithm is its last coordinate.
        length: Of the logarithm of the length; None where all simulations have one length.
        centre, scale: Mean and standard deviation of the logarithms.
        ends: The shortest and the longest simulation (static).
        gaps: Rows that are left out of all outputs, since the observation lacks them (static).
    """

    records = True

    inner: Surrogate
    length: Surrogate | None
    centre: Array
    scale: Array
    ends: tuple[int, int] = field(metadata=dict(static=True))
    gaps: tuple[int, ...] = field(default=(), metadata=dict(static=True))

    @property
    def dim(self):
        """Number of coordinates."""
        return self.inner.dim - (self.length is not None)

    def point(self, y: Any) -> Any:
        """One output as it is."""
        return y

    def at(self, y: Any) -> LikelihoodAt:
        """The likelihood at one observation `(longest, *shape)`, NaN behind its end.

        Raises:
            ValueError: If it has no row, or NaN before its end in other rows than those that are left out; if it has
                another length than all simulations have.
        Warns:
            UserWarning: If it is shorter or longer than all simulations.
        """
        left = without(y[None], self.gaps)[0]
        if checks.is_concrete(y):
            self._check(np.asarray(y), np.asarray(left))
        if self.length is None:
            return self.inner.at(self.inner.point(left))
        logs = log_lengths(left[None])
        inner, place = self.inner.at(self.inner.point(left)), (logs - self.centre) / self.scale
        return RaggedAt(inner, place, self.length.at(logs), y)

    def at_rows(self, rows: np.ndarray) -> LikelihoodAt:
        """As `Surrogate.at_rows`."""
        left = without(rows, self.gaps)
        if self.length is None:
            return self.inner.at_rows(left)
        logs = log_lengths(left)[:, None]
        place = (logs - self.centre) / self.scale
        return RaggedAt(self.inner.at_rows(left), place, self.length.at_rows(logs), rows)

    def _check(self, y: np.ndarray, left: np.ndarray) -> None:
        size, (shortest, longest) = int(lengths(left[None])[0]), self.ends
        checks.require(size > 0, "The observation has no row: its first row is NaN, where an output ends.")
        checks.require(
            not gaps_of(left),
            f"The observation lacks numbers of its rows {list(gaps_of(y))}, before its end, and the likelihood was "
            f"learnt {f'without the rows {list(self.gaps)}' if self.gaps else 'from whole outputs'}. Learn it again "
            "with this observation: `run` the engine, or pass `y` to fit_likelihood.",
        )
        outside = f"The observation has {size} rows, and the simulations have {shortest} to {longest}"
        checks.require(
            self.length is not None or size == shortest,
            f"{outside}: nothing was learnt of other lengths. Let the simulator draw lengths around that.",
        )
        if not shortest <= size <= longest:
            checks.warn(f"{outside}: the likelihood there rests on no simulation. Simulate lengths around that.")

    def marginal(self, seen, last=None):
        """Itself: NaN at the end is the end."""
        return self

    def describe(self):
        """As `Surrogate.describe`; the last coordinate of the form is the logarithm of the length."""
        shortest, longest = self.ends
        told = f"{shortest} to {longest} in the simulations; learnt, and the rest given the logarithm of the length"
        told = told if self.length is not None else f"{shortest} in all simulations"
        rows = ", ".join(map(str, self.gaps))
        gaps = {"rows left out": f"{rows}, which the observation lacks, of all simulations"} if self.gaps else {}
        return {"lengths": told, **gaps, **self.inner.describe()}

    def dependence(self) -> np.ndarray:
        """As `Surrogate.dependence`."""
        return np.asarray(self.inner.dependence())[: self.dim]

    def location_changes(self, y: Any, z: np.ndarray) -> np.ndarray | None:
        """As `Surrogate.location_changes`, of both."""
        inner, given, logs = self._given(y, z)
        found = self.inner.location_changes(inner, given)
        if self.length is None:
            return found
        further = self.length.location_changes(logs, z)
        return None if found is None or further is None else found + further

    def _given(self, y: np.ndarray, z: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
        """The output as what the inner one takes, its coordinates with the length, and the log length."""
        left = without(y[None], self.gaps)[0]
        logs = log_lengths(left[None])
        if self.length is None:
            return self.inner.point(left), z, logs
        given = np.broadcast_to((logs - self.centre) / self.scale, (len(z), 1))
        return self.inner.point(left), np.concatenate([z, given], axis=1), logs

    def require_density(self) -> None:
        """As `Surrogate.require_density`."""
        self.inner.require_density()


@register
class RaggedAt(LikelihoodAt):
    """The likelihood of one output of any length.

    Attributes:
        inner: That of the output given its length, which is the last of its coordinates.
        place: The length as this coordinate, `(1,)`.
        length: That of the length.
        data: The output.
    """

    inner: LikelihoodAt
    place: Array
    length: LikelihoodAt
    data: Any

    def signed_log(self, z):
        """As `LikelihoodAt.signed_log`."""
        (sign, log_size), (other, further) = self.inner.signed_log(self._all(z)), self.length.signed_log(z)
        return sign * other, log_size + further

    def log_density(self, z):
        """As `LikelihoodAt.log_density`."""
        return self.inner.log_density(self._all(z)) + self.length.log_density(z)

    def log_densities(self, z):
        """As `LikelihoodAt.log_densities`."""
        shape = np.broadcast_shapes(z.shape[:-1], np.shape(self.place)[:-1])
        parts = [np.broadcast_to(part, (*shape, part.shape[-1])) for part in (z, np.asarray(self.place))]
        found, further = self.inner.log_densities(np.concatenate(parts, axis=-1)), self.length.log_densities(z)
        return None if found is None or further is None else found + further

    def brief(self):
        """As `LikelihoodAt.brief`."""
        return replace(self, inner=self.inner.brief(), length=self.length.brief())

    def _all(self, z):
        return jnp.concatenate([jnp.asarray(z), jnp.asarray(self.place)])
