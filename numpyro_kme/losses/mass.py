"""The squared MMD as a function of two inner products, with the model's mass fixed or free."""

import jax
import jax.numpy as jnp


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
