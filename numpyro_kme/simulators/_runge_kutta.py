"""Ordinary differential equations on a fixed grid, differentiable and in the precision of their start."""

from collections.abc import Callable

import jax


def rk4(slope: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int, size: float) -> jax.Array:
    """States before each of `steps` classical Runge-Kutta steps of a length of `size`, `(steps, dim)`; the first is the
    start."""

    def step(state, _):
        a = slope(state)
        b = slope(state + 0.5 * size * a)
        c = slope(state + 0.5 * size * b)
        d = slope(state + size * c)
        return state + size / 6.0 * (a + 2.0 * b + 2.0 * c + d), state

    return jax.lax.scan(step, start, None, length=steps)[1]
