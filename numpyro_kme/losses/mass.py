"""The squared MMD as a function of two inner products, with the model's mass fixed or free."""

import jax
import jax.numpy as jnp

ROUNDING = 1e-9
"""Error of a loss by rounding, relative to `k(y, y)`."""


def discrepancy(energies: jax.Array, free: bool) -> jax.Array:
    """Squared MMD without the constant `|mu_w|^2`, from `energies = (|mu_u|^2, <mu_w, mu_u>)`.

    Fixed mass: `q - 2 s`. Free mass: `min_{c >= 0} c^2 q - 2 c s = -max(s, 0)^2 / q`.
    """
    q, s = energies
    return -jnp.square(jnp.maximum(s, 0.0)) / q if free else q - 2.0 * s


def derivatives(q: jax.Array, s: jax.Array, free: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value, gradient `(2,)` and Hessian `(2, 2)` of `discrepancy` in `(q, s)`."""
    energies = jnp.stack([q, s])
    value, gradient = jax.value_and_grad(discrepancy)(energies, free)
    return value, gradient, jax.hessian(discrepancy)(energies, free)


def unbiased_energy(q: jax.Array, coincident: jax.Array, weights: jax.Array, free: bool) -> jax.Array:
    """Energy `|mu_u|^2` without the pairs of a node with itself: `(q - coincident) / (1 - sum v^2)`.

    Free mass divides by it. There it is kept above `coincident`, the energy of draws of which no two are near each other:
    that many draws cannot tell a smaller one from nothing, and draws scattered without end would seem to fit best.
    """
    energy = (q - coincident) / (1.0 - jnp.sum(jnp.square(weights)))
    return jnp.maximum(energy, coincident) if free else energy


def share(q: jax.Array, s: jax.Array) -> jax.Array:
    """Share `c = max(s, 0) / q` of the data that the model explains."""
    return jnp.maximum(s, 0.0) / q


def report(
    q: jax.Array,
    s: jax.Array,
    fields: tuple[jax.Array, jax.Array],
    weights: jax.Array,
    coincident: jax.Array,
    num_data: int,
    *,
    independent: bool,
    free: bool,
) -> dict[str, jax.Array]:
    r"""The share, and standard errors of what a fit says of itself.

    Node `m` moves `q` by `2 v_m mu_u(y_m)` and `s` by `v_m mu_w(y_m)`, and pairs of independent nodes add
    `2 |v|^4 Var k` to the variance of `q`, where `E k^2 <= k(y, y) q`.

    Args:
        q, s: `|mu_u|^2` and `<mu_w, mu_u>`.
        fields: `mu_u` and `mu_w` at the simulated points, `(M,)` each.
        weights: `v`, `(M,)`.
        coincident: `sum_m v_m^2 k(y_m, y_m)`.
        num_data: Number of data points.
        independent: Whether nodes are independent draws; quadrature has no error of this kind.
        free: Whether the mass is free.
    Returns:
        `loss_error`, which is rounding alone for quadrature. With free mass `share`, and `share_error`: that of
        `(s - q) / q` if the share were one, where the sample and its random weights count too,
        `Var_w s = 2 Var_u mu_u / n`.
    """
    squares = jnp.sum(jnp.square(weights))
    peak = coincident / squares

    def of_nodes(by_q, by_s):
        moves = 2.0 * by_q * fields[0] + by_s * fields[1]
        single = jnp.sum(jnp.square(weights * (moves - weights @ moves)))
        pairs = 2.0 * jnp.square(by_q * squares) * peak * jnp.maximum(q, 0.0)  # unbiased, `q` can be negative
        return single + pairs if independent else jnp.zeros(())

    found = {"loss_error": jnp.sqrt(of_nodes(*derivatives(q, s, free)[1])) + ROUNDING * jnp.abs(peak)}
    if free:
        of_data = 2.0 / num_data * (weights @ jnp.square(fields[0] - weights @ fields[0]))
        found |= {"share": share(q, s), "share_error": jnp.sqrt(of_nodes(-1.0, 1.0) + of_data) / q}
    return found
