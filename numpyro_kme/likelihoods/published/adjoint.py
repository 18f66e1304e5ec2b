"""Inverses and solves whose gradients never go through a Cholesky factorisation."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def inverse(matrix: jax.Array) -> jax.Array:
    """Inverse `B` of a positive definite matrix; NaN where the factorisation fails.

    The adjoint of `A -> B` is `-B dB B`: two matrix products, where differentiating the factorisation costs dozens.
    """
    return _inverse(matrix)


def _inverse(matrix):
    factor = jnp.linalg.cholesky(matrix)
    return jax.scipy.linalg.cho_solve((factor, True), jnp.eye(len(matrix), dtype=matrix.dtype))


def _inverse_forward(matrix):
    result = _inverse(matrix)
    return result, result


def _inverse_backward(result, cotangent):
    return (-result @ cotangent @ result,)


inverse.defvjp(_inverse_forward, _inverse_backward)


@jax.custom_vjp
def solve(matrix: jax.Array, b: jax.Array) -> jax.Array:
    """Solution `x` `(m,)` of `A x = b` for a positive definite `A`; NaN where the factorisation fails.

    The adjoint takes one more solve, `w = A^-1 dx`: `db = w`, `dA = -w x'`.
    """
    return _solve_forward(matrix, b)[0]


def _solve_forward(matrix, b):
    factor = jnp.linalg.cholesky(matrix)
    x = jax.scipy.linalg.cho_solve((factor, True), b)
    return x, (factor, x)


def _solve_backward(saved, cotangent):
    factor, x = saved
    w = jax.scipy.linalg.cho_solve((factor, True), cotangent)
    return -jnp.outer(w, x), w


solve.defvjp(_solve_forward, _solve_backward)
