"""The learnt likelihood at many outputs, of one simulator under plates: prepared once, evaluated over batch shapes;
one for each pattern of entries that were not observed."""

from dataclasses import field, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.likelihoods.base import LikelihoodAt, SignedLog
from numpyro_kme.likelihoods.success import Success
from numpyro_kme.samplers.importance import BATCH

TOGETHER = 2**14
"""Points and outputs that are evaluated at a time: 2**10 take one and a half to six times as long, 2**16 no less."""

Bounds = tuple[np.ndarray, np.ndarray]
"""Lowest and highest values of entries that were not observed otherwise, infinite where nothing is known."""


@register
class PreparedLikelihood(LikelihoodAt):
    """The likelihood at outputs `(*lead, *event)`, at points `(*groups, D)`, over the broadcast batch shape.

    Attributes:
        parts: The likelihood of all outputs, with axes `lead`; or of those that lack the same entries, along one axis.
        value: The outputs.
        mask: Which outputs count.
        lead: Leading dimensions of the outputs.
        rows: Flat numbers of the outputs of each part, where there are several.
        success: The probability that a call succeeds, a factor, where it is known.
    """

    parts: tuple[LikelihoodAt, ...]
    value: Any
    mask: Any
    lead: tuple[int, ...] = field(metadata=dict(static=True))
    rows: tuple[tuple[int, ...], ...] = field(default=(), metadata=dict(static=True))
    success: Success | None = None

    def is_for(self, value: ArrayLike) -> bool:
        """Tell whether `value` is what was prepared; one that is traced can only be that."""
        if not checks.is_concrete((value, self.value, self.mask)):
            return True
        new, known = np.asarray(value), np.asarray(self.value)
        return new.shape == known.shape and np.array_equal(new[self.mask], known[self.mask], equal_nan=True)

    def brief(self) -> "PreparedLikelihood":
        """A copy of brief likelihoods (`LikelihoodAt.brief`)."""
        return replace(self, parts=tuple(part.brief() for part in self.parts))

    def signed_log(self, z: Any) -> SignedLog:
        """Sign and log absolute value."""
        sign, log = self._over("signed_log", z)
        return sign, log + self._log_success(z)

    def log_density(self, z: Any) -> Any:
        """Logarithm of the positive version."""
        return self._over("log_density", z) + self._log_success(z)

    def _log_success(self, z: Any) -> Any:
        return 0.0 if self.success is None else self.success.log_probability(z)

    def log_densities(self, z: np.ndarray) -> np.ndarray:
        """`log_density` at points `(k, *groups, D)` by NumPy, over the broadcast batch shape, `(k, *batch)`."""
        z = z.reshape(len(z), *(1,) * (len(self.lead) - (z.ndim - 2)), *z.shape[1:])
        size = max(1, min(BATCH, TOGETHER // prod(self.lead)))
        blocks = np.split(z, range(size, len(z), size))
        return np.concatenate([np.asarray(self._over("log_density", b, 1) + self._log_success(b)) for b in blocks])

    def guided(self, z):
        """Implement `LikelihoodAt.guided`, of one output."""
        return self.parts[0].guided(z) if self.lead == () else super().guided(z)

    def total(self, z: np.ndarray, mask: Any, scale: Any, plates: int) -> np.ndarray:
        """`log_densities` of the outputs that count, each to the power of its scale, added up, `(k,)`; axes of the
        batch beyond so many `plates` are of plates that were made part of the event."""
        found = np.where(mask, self.log_densities(z), 0.0)
        scaled = scale * np.sum(found, axis=tuple(range(1 + plates, found.ndim)))
        return np.sum(scaled.reshape(len(found), -1), axis=1)

    @jax.numpy_rank_promotion("allow")
    def _over(self, method: str, z: Any, first: int = 0) -> Any:
        """A method of the parts at points `(*first, *groups, D)`."""
        if not self.rows:
            return getattr(self.parts[0], method)(z)
        front, groups, dim, xp = z.shape[:first], z.shape[first:-1], z.shape[-1], namespace(z, self)
        batch = np.broadcast_shapes(self.lead, groups)
        numbers = np.broadcast_to(np.arange(prod(self.lead)).reshape(self.lead), batch).ravel()
        places_of_each = np.argsort(numbers, kind="stable").reshape(prod(self.lead), -1)
        places = [places_of_each[list(rows)].T for rows in self.rows]
        if prod(groups) == 1:
            points = [z.reshape(*front, 1, 1, dim)] * len(places)
        else:
            spread = xp.broadcast_to(z, (*front, *batch, dim)).reshape(*front, -1, dim)
            points = [spread[..., place, :] for place in places]
        found = [getattr(part, method)(point) for part, point in zip(self.parts, points, strict=True)]
        order = np.argsort(np.concatenate([place.ravel() for place in places]))

        def join(*pieces):
            flat = [xp.broadcast_to(a, (*front, *at.shape)).reshape(*front, -1) for a, at in zip(pieces, places)]
            return xp.concatenate(flat, axis=-1)[..., order].reshape(*front, *batch)

        return jax.tree.map(join, *found)


def prepare(fitted: Any, value: ArrayLike, mask: ArrayLike = True, bounds: Bounds | None = None) -> PreparedLikelihood:
    """The likelihood at outputs `(*lead, *event)`; NaN stands for entries that were not observed, or that are known to
    lie within `bounds`, of that shape.

    `fitted` is a pytree with a likelihood `at` every output, and the shape of one, `event_shape`. A traced `value` is
    taken in place; it must have no NaN. An output without any entry has the likelihood 1.

    Raises:
        ValueError: If no entry was observed.
    """
    concrete = checks.is_concrete((value, fitted))
    data: Any = np.asarray(value) if concrete else jnp.asarray(value)
    checks.real("value", data)
    lead = data.shape[: data.ndim - len(fitted.event_shape)]
    fits = data.shape[len(lead) :] == fitted.event_shape
    checks.require(fits, f"`value` must have shape (..., *{fitted.event_shape}); got {data.shape}.")
    if not concrete:
        part = fitted.surrogate.at_rows(data, len(lead)) if lead else fitted.at(data)
        return PreparedLikelihood((part,), data, True, lead, success=fitted.success)
    mask = mask if np.shape(mask) == lead else True
    rows, whole = data.reshape(-1, *fitted.event_shape), PreparedLikelihood((), data, mask, lead, (), fitted.success)
    counts = np.broadcast_to(np.ravel(mask), len(rows))
    missing = np.isnan(rows.reshape(len(rows), -1))
    if not missing.any():
        return replace(whole, parts=(_checked(fitted, rows, counts, lead),))
    anywhere: Any = (-np.inf, np.inf)
    ends = np.stack([np.broadcast_to(end, data.shape).reshape(missing.shape) for end in bounds or anywhere])
    records = fitted.surrogate.records  # where NaN says something
    inside = missing & np.isfinite(ends).any(axis=0) & counts[:, None]
    seen = ~missing & counts[:, None]
    tells = bool((seen | inside).any()) or records
    checks.require(tells, f"All {data.size} entries of the observation are NaN, not observed: only the prior is left.")

    if len(np.unique(seen[counts], axis=0)) == 1 and not inside.any():
        return replace(whole, parts=(_checked(fitted.marginal(seen[counts][0]), rows, counts, lead),))
    tells = seen.any(axis=1) | (counts & records)  # whether there is anything but intervals
    patterns, of_row = np.unique(np.column_stack([seen + 2 * inside, tells]), axis=0, return_inverse=True)
    parts, owned = [], []
    for number, (*known, told) in enumerate(patterns):
        own, pattern = np.flatnonzero(of_row.ravel() == number), np.array(known)
        if (pattern == 2).any():
            flat = np.where(pattern == 1, rows[own].reshape(len(own), -1), np.nan).astype(np.float64)
            checks.sound("value", flat[:, pattern == 1])
            parts.append(fitted.surrogate.within(flat, *ends[:, own]))
        elif told:
            parts.append(_checked(fitted.marginal(pattern == 1), rows[own], np.ones(len(own), bool), (len(own),)))
        else:
            parts.append(NothingObserved(np.zeros(len(own))))
        owned.append(tuple(own.tolist()))
    return replace(whole, parts=tuple(parts), rows=tuple(owned))


def _checked(fitted: Any, rows: np.ndarray, counts: np.ndarray, lead: tuple[int, ...]) -> LikelihoodAt:
    """The likelihood at outputs `(R, *event)` that lack the same entries, with axes `lead`.

    The outputs that are extreme in some statistic go through the checks of `fitted.at`; all are prepared together.
    """
    if not np.all(counts):  # one that counts in place of those that do not
        rows = rows[np.where(counts, np.arange(len(rows)), np.argmax(counts))]
    missing = np.isnan(rows)
    checks.sound("value", np.where(missing & missing[0], 0, rows))
    if not lead:
        return fitted.at(rows[0])
    columns = rows.reshape(len(rows), -1)
    for i in np.unique([np.argmin(columns, axis=0), np.argmax(columns, axis=0)]):
        fitted.at(rows[i])
    return fitted.surrogate.at_rows(rows.reshape(*lead, *rows.shape[1:]).astype(np.float64), len(lead))


@register
class NothingObserved(LikelihoodAt):
    """The likelihood of outputs of which nothing was observed: 1.

    Attributes:
        data: Zeros, one for each output.
    """

    data: Any

    def log_density(self, z):
        """0."""
        return namespace(z).zeros(np.broadcast_shapes(np.shape(z)[:-1], np.shape(self.data)))
