"""Damped Newton minimisation of a few parameters, with an exact or an updated Hessian; traceable."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_kme.losses.base import WeightedObjective
from numpyro_kme.losses.generator import QuadratureNodes


class Minimum(NamedTuple):
    """Where a minimisation stopped.

    Attributes:
        u: Parameters, `(p,)`.
        value: Loss there.
        gradient: Gradient there, `(p,)`.
        hessian: Hessian there, exact or updated, `(p, p)`.
        remaining: The Newton step that is left, `(p,)`: how far from the minimum `u` still is, to first order.
        convex: Whether the Hessian is positive definite.
        steps: Evaluations used.
        numbers: Further numbers of the loss at `u`, by name.
    """

    u: Any
    value: Any
    gradient: Any
    hessian: Any
    remaining: Any
    convex: Any
    steps: Any
    numbers: dict[str, Any]


class _State(NamedTuple):
    best: Minimum
    trial: jax.Array
    damping: jax.Array
    predicted: jax.Array


FLAT = 1e-30
"""Where the largest eigenvalue is below this, as far from all data, the loss is constant and no step is taken."""


def minimise(
    objective: WeightedObjective,
    reduced: Any,
    nodes: QuadratureNodes,
    start: jax.Array,
    hessian: jax.Array,
    *,
    scale: jax.Array,
    tolerance: jax.Array,
    max_steps: jax.Array,
    damping: jax.Array,
    stride: jax.Array,
    exact: bool = True,
) -> Minimum:
    r"""Minimise `u -> objective.value(reduced, u, nodes)` by damped Newton steps `-(|H| + damping I)^-1 g`.

    `|H|` has the absolute eigenvalues, so saddles repel. A step that does not lower the loss is taken back and the
    damping raised. With `exact`, a cheap Hessian is evaluated at every step; otherwise `hessian` is the first one and
    symmetric rank-one updates follow.

    Args:
        objective: What to minimise.
        reduced: Reduced data terms, `objective.reduce(weights)`.
        nodes: Quadrature nodes, the same at every step.
        start: First parameters `(p,)`.
        hessian: First Hessian `(p, p)`, unless Hessians are cheap.
        scale: Typical sizes of the parameters `(p,)`: eigenvalues, damping and tolerance are in these units.
        tolerance: Stop when the remaining Newton step is at most this, in units of `scale`.
        max_steps: Most evaluations.
        damping: First damping, relative to the largest eigenvalue; 0 trusts the first Hessian.
        stride: Longest step, in units of `scale`.
        exact: Use the objective's Hessian where it is cheap.
    """
    exact = exact and objective.has_cheap_hessian

    def propose(gradient, hessian, damping):
        values, vectors = jnp.linalg.eigh(hessian * scale[:, None] * scale[None])
        top = jnp.max(jnp.abs(values))
        slopes = vectors.T @ (gradient * scale)
        curvature = jnp.where(top > FLAT, jnp.maximum(jnp.abs(values), 1e-9 * top), 1.0)
        step = -vectors @ (slopes / (curvature + damping * top))
        step = step * jnp.minimum(1.0, stride / jnp.maximum(jnp.linalg.norm(step), 1e-300))
        full = -vectors @ (slopes / curvature)
        predicted = -(jnp.vdot(slopes, vectors.T @ step) + 0.5 * jnp.vdot(values, jnp.square(vectors.T @ step)))
        return step * scale, full * scale, predicted, jnp.all(values > 1e-9 * top)

    def body(state):
        best, moved = state.best, state.trial - state.best.u
        if exact:
            value, gradient, fresh = objective.expand(reduced, state.trial, nodes)
            kept = best.hessian
        else:
            value, gradient = objective.slope(reduced, state.trial, nodes)
            fresh = _rank_one(best.hessian, moved, gradient - best.gradient)
            kept = jnp.where(jnp.all(jnp.isfinite(fresh)), fresh, best.hessian)
        good = (value < best.value) & jnp.all(jnp.isfinite(gradient)) & jnp.all(jnp.isfinite(fresh))
        gain = (best.value - value) / jnp.maximum(state.predicted, 1e-300)
        raised = jnp.maximum(4.0 * state.damping, 1e-2)
        lowered = jnp.where(gain > 0.75, 0.2 * state.damping, jnp.where(gain > 0.25, state.damping, raised))
        damping = jnp.where(good, jnp.where(lowered < 1e-6, 0.0, lowered), raised)
        u, value, gradient, fresh = jax.tree.map(
            lambda new, old: jnp.where(good, new, old),
            (state.trial, value, gradient, fresh),
            (best.u, best.value, best.gradient, kept),
        )
        step, full, predicted, convex = propose(gradient, fresh, damping)
        best = Minimum(u, value, gradient, fresh, full, convex, best.steps + 1, {})
        return _State(best, u + step, damping, predicted)

    def unfinished(state):
        best = state.best
        near = best.convex & (jnp.max(jnp.abs(best.remaining / scale)) <= tolerance)
        return (best.steps < max_steps) & ~near & (state.damping < 1e8)

    zero, none = jnp.zeros_like(start), jnp.zeros((), start.dtype)
    nowhere = Minimum(start, none + jnp.inf, zero, hessian, zero + jnp.inf, none > 1, jnp.zeros((), int), {})
    found = jax.lax.while_loop(unfinished, body, _State(nowhere, start, damping, none)).best
    return found._replace(numbers=objective.report(reduced, found.u, nodes))


def _rank_one(hessian: jax.Array, step: jax.Array, change: jax.Array) -> jax.Array:
    """Symmetric rank-one update of a Hessian by a step and the change of the gradient along it."""
    miss = change - hessian @ step
    along = jnp.vdot(miss, step)
    usable = jnp.abs(along) > 1e-8 * jnp.linalg.norm(miss) * jnp.linalg.norm(step)
    return hessian + jnp.where(usable, 1.0 / jnp.where(usable, along, 1.0), 0.0) * jnp.outer(miss, miss)
