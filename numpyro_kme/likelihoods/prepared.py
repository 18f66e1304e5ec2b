"""A learnt likelihood at known outputs: what depends on them alone is done once, and broadcast against parameters."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import LikelihoodAt


class Fitted(Protocol):
    """What is prepared: a pytree that has a likelihood at every output."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one output."""

    def at(self, y: ArrayLike) -> LikelihoodAt:
        """The likelihood of one output `(*event)`."""


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
    def of(cls, fitted: Fitted, value: ArrayLike, mask: ArrayLike = True) -> "PreparedLikelihood":
        """Prepare on the host where everything is concrete, in place otherwise."""
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
        if concrete:
            leaves, structure, varies = _prepare(fitted, _without(rows, np.ravel(mask)))
        else:
            leaves, structure = jax.tree.flatten(jax.vmap(fitted.at)(rows))
            varies = [True] * len(leaves)
        shaped = [leaf.reshape((*lead, *leaf.shape[1:])) if moves else leaf for leaf, moves in zip(leaves, varies)]
        return cls(structure.unflatten(shaped), data, mask, lead, tuple(varies))

    def is_for(self, value: ArrayLike) -> bool:
        """Whether `value` is what was prepared; one that is traced can only be that."""
        if not checks.is_concrete((value, self.value, self.mask)):
            return True
        return np.shape(value) == np.shape(self.value) and np.array_equal(
            *(np.asarray(v)[self.mask] for v in (value, self.value))
        )

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


def _without(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Outputs `(R, *event)` with one that counts in place of those that do not."""
    return rows if mask.all() else rows[np.where(mask, np.arange(len(mask)), np.argmax(mask))]


def _prepare(fitted: Fitted, rows: np.ndarray) -> tuple[list, Any, list[bool]]:
    """Leaves and structure of the likelihood at outputs `(R, *event)`, and which leaves differ between them.

    The outputs that are extreme in some statistic go through the checks of `fitted.at`; all are prepared together.
    """
    checks.finite("value", rows)
    columns = rows.reshape(len(rows), -1)
    extreme = np.unique([np.argmin(columns, axis=0), np.argmax(columns, axis=0)])
    checked = [fitted.at(rows[i]) for i in extreme]
    if len(rows) == 1:
        leaves, structure = jax.tree.flatten(checked[0])
        return [leaf[None] for leaf in leaves], structure, [True] * len(leaves)
    leaves, structure = jax.tree.flatten(on_host(_prepare_rows)(fitted, rows.astype(np.float64)))
    varies = [any(not np.array_equal(row, leaf[0]) for row in leaf[1:]) for leaf in leaves]
    varies[-1] = True
    return [leaf if moves else leaf[0] for leaf, moves in zip(leaves, varies)], structure, varies


@jax.jit
def _prepare_rows(fitted, rows):
    return jax.vmap(fitted.at)(rows)
