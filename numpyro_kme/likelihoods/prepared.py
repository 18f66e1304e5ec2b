"""The learnt likelihood at many outputs, of one simulator under plates: prepared once, evaluated over batch shapes;
one for each pattern of entries that were not observed."""

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
from numpyro_kme._core.programs import in_blocks
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import LikelihoodAt

BLOCK = 1024
"""Densities that NumPy evaluates together: what they need stays in a processor's cache."""

RESIDUALS = 2**17
"""Most outputs, over all points, of which it does where a table makes their densities cheap: they take memory too."""


@register
class PreparedLikelihood:
    """The likelihood at outputs `(*lead, *event)`, as a function of parameters.

    Attributes:
        likelihood: A `LikelihoodAt`; leaves that depend on the output have leading dimensions `lead`.
        value: The outputs.
        mask: Which outputs count.
        lead: Leading dimensions of the outputs.
        varies: Which leaves depend on the output.
    """

    likelihood: LikelihoodAt
    value: Any
    mask: Any
    lead: tuple[int, ...] = field(metadata=dict(static=True))
    varies: tuple[bool, ...] = field(metadata=dict(static=True))

    @classmethod
    def of(cls, fitted: Any, value: ArrayLike, mask: ArrayLike = True) -> "PreparedLikelihood":
        """Prepare on the host where everything is concrete, in place otherwise.

        `fitted` is a pytree with a likelihood `at` every output, and the shape of one, `event_shape`. NaN stands where
        nothing was observed, at the same entries of each output that counts; `prepare` takes any.
        """
        concrete = checks.is_concrete((value, fitted))
        data: Any = np.asarray(value) if concrete else jnp.asarray(value)
        checks.real("value", data)
        lead = data.shape[: data.ndim - len(fitted.event_shape)]
        checks.require(
            data.shape[len(lead) :] == fitted.event_shape,
            f"`value` must have shape (..., *{fitted.event_shape}), as the simulated outputs have; got {data.shape}.",
        )
        rows = data.reshape(-1, *fitted.event_shape)
        mask = mask if concrete and np.shape(mask) == lead else True
        if concrete and not lead:  # not made anew, with what it keeps for all observations
            _check(rows)
            only = fitted.at(rows[0])
            return cls(only, data, mask, lead, (False,) * (len(jax.tree.leaves(only)) - 1) + (True,))
        if concrete:
            if not np.all(mask):  # one that counts in place of those that do not
                rows = rows[np.where(np.ravel(mask), np.arange(len(rows)), np.argmax(mask))]
            leaves, structure, varies = _prepare(fitted, rows)
        else:
            leaves, structure = jax.tree.flatten(jax.vmap(fitted.at)(rows))
            varies = [True] * len(leaves)
        shaped = [leaf.reshape((*lead, *leaf.shape[1:])) if moves else leaf for leaf, moves in zip(leaves, varies)]
        return cls(structure.unflatten(shaped), data, mask, lead, tuple(varies))

    def is_for(self, value: ArrayLike) -> bool:
        """Whether `value` is what was prepared; one that is traced can only be that."""
        if not checks.is_concrete((value, self.value, self.mask)):
            return True
        new, known = np.asarray(value), np.asarray(self.value)
        return new.shape == known.shape and np.array_equal(new[self.mask], known[self.mask], equal_nan=True)

    def some(self, chosen: np.ndarray) -> "PreparedLikelihood":
        """Outputs with these numbers, of `lead` one, in this order."""
        structure: Any
        leaves, structure = jax.tree.flatten(self.likelihood)
        taken = [leaf[chosen] if moves else leaf for leaf, moves in zip(leaves, self.varies)]
        return replace(self, likelihood=structure.unflatten(taken), value=self.value[chosen], lead=(len(chosen),))

    def brief(self) -> "PreparedLikelihood":
        """As `LikelihoodAt.brief`."""
        return replace(self, likelihood=self.likelihood.brief())

    def log_densities(self, z: np.ndarray) -> np.ndarray:
        """`log_density` at points `(k, *groups, D)` on the host, over the broadcast batch shape, `(k, *batch)`.

        In blocks of one size: by NumPy, or compiled where the form has JAX alone.
        """
        z = z.reshape(len(z), *(1,) * (len(self.lead) - (z.ndim - 2)), *z.shape[1:])
        together = z.shape[1:-1] if self.likelihood.tabulated else self.lead
        size = max(1, min(BLOCK // prod(together), RESIDUALS // prod(self.lead)))
        found: list[Any] = [self.likelihood.log_densities(part) for part in np.split(z, range(size, len(z), size))]
        return in_blocks(partial(_log_densities, self), z) if found[0] is None else np.concatenate(found)

    def over(self, function: Callable, arguments: jax.Array) -> jax.Array:
        """`function(likelihood, arguments)` for one output and one call's arguments, over the broadcast batch shape.

        What does not vary along a dimension is evaluated once for it.
        """
        batch = np.broadcast_shapes(self.lead, arguments.shape[:-1])
        mine, theirs = _axes(self.lead, batch), _axes(arguments.shape[:-1], batch)
        structure: Any
        leaves, structure = jax.tree.flatten(self.likelihood)
        kept, behind = _kept(mine, batch), len(self.lead)
        leaves = [
            leaf.reshape(*kept, *leaf.shape[behind:]) if moves else leaf
            for leaf, moves in zip(map(jnp.asarray, leaves), self.varies)
        ]
        for ours, args in zip(reversed(mine), reversed(theirs)):
            axes = structure.unflatten([ours if moves else None for moves in self.varies])
            function = jax.vmap(function, in_axes=(axes, args))
        return function(structure.unflatten(leaves), arguments.reshape(*_kept(theirs, batch), arguments.shape[-1]))


def _axes(lead: tuple[int, ...], batch: tuple[int, ...]) -> list[int | None]:
    """For each dimension of `batch` 0 where `lead` runs along it."""
    padded = (1,) * (len(batch) - len(lead)) + lead
    return [0 if size == whole else None for size, whole in zip(padded, batch)]


def _kept(axes: list[int | None], batch: tuple[int, ...]) -> list[int]:
    return [size for size, axis in zip(batch, axes) if axis == 0]


def _check(rows: np.ndarray) -> None:
    """That all is finite but what was not observed, which is the same in each row."""
    missing = np.isnan(rows)
    checks.finite("value", np.where(missing & missing[0], 0, rows))


def _prepare(fitted: Any, rows: np.ndarray) -> tuple[list, Any, list[bool]]:
    """Leaves and structure of the likelihood at outputs `(R, *event)`, and which leaves differ between them.

    The outputs that are extreme in some statistic go through the checks of `fitted.at`; all are prepared together.
    """
    _check(rows)
    columns = rows.reshape(len(rows), -1)
    extreme = np.unique([np.argmin(columns, axis=0), np.argmax(columns, axis=0)])
    checked = [fitted.at(rows[i]) for i in extreme]
    if len(rows) == 1:
        leaves, structure = jax.tree.flatten(checked[0])
        return [*leaves[:-1], leaves[-1][None]], structure, [False] * (len(leaves) - 1) + [True]
    leaves, structure = jax.tree.flatten(fitted.surrogate.at_rows(rows.astype(np.float64)))
    axis = [np.ndim(leaf) > np.ndim(one) for leaf, one in zip(leaves, jax.tree.leaves(checked[0]), strict=True)]
    leaves, varies = _once(leaves, axis)
    return leaves, structure, varies


def _once(leaves: list, axis: list[bool]) -> tuple[list, list[bool]]:
    """Leaves that may have an axis of outputs, once where they are alike in all, and which are not; the last one, the
    data, never is."""
    varies = [own and any(not np.array_equal(row, leaf[0]) for row in leaf[1:]) for leaf, own in zip(leaves, axis)]
    varies[-1] = True
    return [leaf[0] if own and not moves else leaf for leaf, own, moves in zip(leaves, axis, varies)], varies


@jax.jit
def _log_densities(prepared, z):
    return prepared.over(lambda likelihood, point: likelihood.log_density(point), z)


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
    leaves, varies = _once(leaves, [i >= first and np.ndim(leaf) > 0 for i, leaf in enumerate(leaves)])
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
