"""Outputs of which some entries were not observed: one learnt likelihood for each pattern of these."""

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import LikelihoodAt
from numpyro_kme.likelihoods.prepared import PreparedLikelihood

Bounds = tuple[np.ndarray, np.ndarray]
"""Lowest and highest values of entries that were not observed otherwise, infinite where nothing is known."""


def prepare(
    fitted: Any, value: ArrayLike, mask: ArrayLike = True, bounds: Bounds | None = None
) -> "PreparedLikelihood | PreparedPatterns":
    """The likelihood at outputs `(*lead, *event)`; NaN stands for entries that were not observed, or that are known to
    lie within `bounds`, of that shape.

    As `PreparedLikelihood.of`, where all outputs that count lack the same entries; there a traced `value` is taken,
    too, which must have no NaN. An output without any entry has the likelihood 1.

    Raises:
        ValueError: If no entry was observed.
    """
    if not checks.is_concrete((value, fitted)) or np.asarray(value).dtype.kind != "f" or not np.isnan(value).any():
        return PreparedLikelihood.of(fitted, value, mask)
    data = np.asarray(value)
    lead = data.shape[: data.ndim - len(fitted.event_shape)]
    if data.shape[len(lead) :] != fitted.event_shape:
        return PreparedLikelihood.of(fitted, value, mask)  # which says so
    counts = np.ravel(mask) if np.shape(mask) == lead else np.ones(prod(lead), bool)
    missing = np.isnan(data.reshape(len(counts), -1))
    ends = np.broadcast_to([[[-np.inf]], [[np.inf]]], (2, *missing.shape))
    if bounds is not None:
        ends = np.stack([np.broadcast_to(end, data.shape).reshape(missing.shape) for end in bounds])
    inside = missing & np.isfinite(ends).any(axis=0) & counts[:, None]
    seen = ~missing & counts[:, None]
    unknown = not fitted.surrogate.records  # elsewhere NaN says something
    checks.require(
        bool((seen | inside).any()) or not unknown,
        f"All {data.size} entries of the observation are NaN, not observed: it says nothing about the parameters, and "
        "the posterior is the prior.",
    )
    tells = seen.any(axis=1) | (counts & fitted.surrogate.records)  # whether there is anything but intervals
    patterns, of_row = np.unique(np.column_stack([seen + 2 * inside, tells]), axis=0, return_inverse=True)
    if len(np.unique(seen[counts], axis=0)) == 1 and not inside.any() and (seen.any() or not unknown):
        return PreparedLikelihood.of(fitted.marginal(seen[counts][0].reshape(fitted.event_shape)), value, mask)
    outputs, parts, rows = data.reshape(-1, *fitted.event_shape), [], []
    for number, (*pattern, told) in enumerate(patterns):
        own, pattern = np.flatnonzero(of_row.ravel() == number), np.array(pattern)
        if (pattern == 2).any():
            flat = np.where(pattern == 1, outputs[own].reshape(len(own), -1), np.nan).astype(np.float64)
            checks.finite("value", flat[:, pattern == 1])
            parts.append(_of_intervals(fitted.surrogate.within(flat, *ends[:, own]), outputs[own]))
        elif told:
            marginal = fitted.marginal((pattern == 1).reshape(fitted.event_shape))
            parts.append(PreparedLikelihood.of(marginal, outputs[own]))
        else:
            nothing = NothingObserved(np.zeros(len(own)))
            parts.append(PreparedLikelihood(nothing, outputs[own], True, (len(own),), (True,)))
        rows.append(tuple(own.tolist()))
    return PreparedPatterns(tuple(parts), data, counts.reshape(lead), lead, tuple(rows))


def _of_intervals(likelihood: Any, outputs: np.ndarray) -> PreparedLikelihood:
    """One along the axis of the outputs, of which the surrogate has none: what is alike in all is evaluated once."""
    structure: Any
    leaves, structure = jax.tree.flatten(likelihood)
    first = len(jax.tree.leaves(likelihood.surrogate))
    each = [i >= first and np.ndim(leaf) > 0 for i, leaf in enumerate(leaves)]
    varies = [own and any(not np.array_equal(row, leaf[0]) for row in leaf) for own, leaf in zip(each, leaves)]
    varies[-1] = True
    leaves = [leaf[0] if own and not moves else leaf for leaf, own, moves in zip(leaves, each, varies)]
    return PreparedLikelihood(structure.unflatten(leaves), outputs, True, (len(outputs),), tuple(varies))


@register
class NothingObserved(LikelihoodAt):
    """The likelihood of outputs of which nothing was observed: 1.

    Attributes:
        data: Zeros, one for each output.
    """

    data: Any

    def signed_log(self, z):
        """Sign 1 and log 0."""
        value = self.log_density(z)
        return jnp.ones_like(value), value

    def log_density(self, z):
        """0."""
        return jnp.zeros_like(jnp.asarray(z)[..., 0])

    def log_densities(self, z):
        """As `LikelihoodAt.log_densities`."""
        return np.zeros(np.broadcast_shapes(z.shape[:-1], np.shape(self.data)))


@register
class PreparedPatterns:
    """As `PreparedLikelihood`, of outputs that lack different entries: a part for each pattern.

    Attributes:
        parts: The likelihood at the outputs of each pattern, along one axis.
        value: The outputs, `(*lead, *event)`.
        mask: Which of them count.
        lead: Leading dimensions of the outputs.
        rows: Flat numbers of the outputs of each part.
    """

    parts: tuple[PreparedLikelihood, ...]
    value: Any
    mask: Any
    lead: tuple[int, ...] = field(metadata=dict(static=True))
    rows: tuple[tuple[int, ...], ...] = field(metadata=dict(static=True))

    def is_for(self, value: ArrayLike) -> bool:
        """As `PreparedLikelihood.is_for`."""
        return PreparedLikelihood.is_for(self, value)  # type: ignore[arg-type]

    def brief(self) -> "PreparedPatterns":
        """As `LikelihoodAt.brief`."""
        return replace(self, parts=tuple(part.brief() for part in self.parts))

    def log_densities(self, z: np.ndarray) -> np.ndarray:
        """As `PreparedLikelihood.log_densities`."""

        def of_part(part, points):
            return np.broadcast_to(part.log_densities(points), (len(points), *part.lead))

        return self._joined(of_part, z.reshape(len(z), *(1,) * (len(self.lead) + 2 - z.ndim), *z.shape[1:]), 1, np)

    def over(self, function: Callable, arguments: jax.Array) -> jax.Array:
        """As `PreparedLikelihood.over`."""
        return self._joined(lambda part, points: part.over(function, points), arguments, 0, jnp)

    def _joined(self, of_part: Callable, points, first: int, xp) -> Any:
        """What is found for each part at points `(*first, *groups, p)`, over the broadcast batch shape, joined."""
        groups = points.shape[first:-1]
        batch = np.broadcast_shapes(self.lead, groups)
        numbers = np.broadcast_to(np.arange(prod(self.lead)).reshape(self.lead), batch).ravel()
        shared, front = prod(groups) == 1, points.shape[:first]
        points = points if shared else xp.broadcast_to(points, (*front, *batch, points.shape[-1]))
        points, found, places = points.reshape(*front, -1, points.shape[-1]), [], []
        for part, rows in zip(self.parts, self.rows):
            place = np.flatnonzero(np.isin(numbers, rows))
            own = np.searchsorted(rows, numbers[place])
            part = part if np.array_equal(own, np.arange(len(rows))) else part.some(own)
            found.append(of_part(part, points if shared else points[..., place, :]))
            places.append(place)
        order = np.argsort(np.concatenate(places))
        join = partial(_in_order, order, first, batch, xp)
        return jax.tree.map(join, *found)


def _in_order(order, axis, batch, xp, *pieces):
    joined = xp.take(xp.concatenate(pieces, axis=axis), order, axis=axis)
    return joined.reshape(*joined.shape[:axis], *batch, *joined.shape[axis + 1 :])
