"""The bootstrap of losses that are no squared distance: L-BFGS on the loss itself, by automatic differentiation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.keys import split
from numpyro_kme._core.programs import in_blocks, jitted
from numpyro_kme.bootstrap.replicates import Replicates
from numpyro_kme.bootstrap.rounds import HARMLESS
from numpyro_kme.bootstrap.weights import DirichletProcess, Reweightings, draw_reweightings, with_full_data
from numpyro_kme.kernels.base import num_points
from numpyro_kme.losses.base import Family, Loss, Nodes

MOST_STEPS = 200
"""Steps of a minimisation."""
STALLED = 3
"""Steps without progress after which it ends; a line search may fail once or twice in float32 and go on."""
SHORT = 1e-4
"""A step that is shorter, in standard deviations of the prior, is no progress."""
FOLLOWED, KEPT = 16, 3
"""Prior draws that are followed on the full data; distinct minima of these that replicates start from."""
SAME = 0.1
"""Minima of the full data nearer than this, in standard deviations of the prior, are one."""
CHECKED = 16
"""Replicates that are minimised again with other noise."""
SMALL = 0.05
"""A minimum has converged when its Newton step is at most this many posterior standard deviations."""


def minimised_bootstrap(
    rng_key: jax.Array,
    loss: Loss,
    data: Any,
    family: Family,
    nodes: Callable[[jax.Array], Nodes],
    process: DirichletProcess,
    starts: np.ndarray,
    num_samples: int,
) -> Replicates:
    """Minimise a loss for every reweighting, from the minima of the full data.

    Args:
        rng_key: The only source of randomness.
        loss: The loss, differentiable in the parameters of the model.
        data: `(n, ...)`, or a pair (covariates, responses).
        family: The model.
        nodes: Noise of simulated points by a key; each replicate has its own.
        process: The Dirichlet process.
        starts: Prior draws, unconstrained, `(S, p)`.
        num_samples: Number of replicates.
    """

    scale = starts.std(axis=0) + 1e-300

    def value(u, weights, extra, key):
        x = data if extra is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), data, extra)
        return loss.of_model(x, weights, family, u, nodes(key))

    @jitted
    def values(u, *reweighting):
        return jax.vmap(value)(u, *reweighting)

    @jitted
    def minimise(u, *reweighting):
        return jax.vmap(lambda u, *given: _minimise(lambda t: value(t, *given), u, scale))(u, *reweighting)

    def rows(function, u, own: Reweightings, keys):
        return in_blocks(lambda block: function(*block), (u, own.weights, own.extra, keys), FOLLOWED)

    weights_key, noise_key, other_key = split(rng_key, 3)
    drawn = draw_reweightings(weights_key, data, process, np.arange(num_samples))
    full = with_full_data(drawn, num_points(data))
    keys = jax.vmap(lambda b: jax.random.fold_in(noise_key, b))(np.arange(1 + num_samples))
    first = np.zeros(len(starts), int)
    found = rows(values, starts, full.rows(first), keys[first])
    checks.require(
        bool(np.isfinite(found).any()),
        f"the loss is not finite at any of the {len(starts)} samples of the prior; check the simulator there.",
    )
    followed = starts[np.argsort(np.where(np.isfinite(found), found, np.inf))[:FOLLOWED]]
    u, loss_there, _ = rows(minimise, followed, full.rows(first[: len(followed)]), keys[first[: len(followed)]])
    kept = _distinct(u, loss_there, scale)[:KEPT]
    ids = 1 + np.arange(num_samples)
    tried = [rows(minimise, np.repeat(u[[k]], num_samples, 0), drawn, keys[ids]) for k in kept]
    best = np.nanargmin([one[1] for one in tried], axis=0)
    own, reached, gradient = (np.stack(part)[best, np.arange(num_samples)] for part in zip(*tried))
    minimum, sd = u[kept[0]], own.std(axis=0) + 1e-300
    one = jax.tree.map(lambda leaf: leaf[0], (full.weights, full.extra))
    hessian = np.asarray(jitted(jax.hessian(value))(jnp.asarray(minimum), *one, keys[0]), np.float64)
    remaining = np.abs(gradient @ np.linalg.pinv(hessian) / sd).max(axis=1)
    few = np.arange(min(CHECKED, num_samples))
    others = jax.vmap(lambda b: jax.random.fold_in(other_key, b))(few)
    again = rows(minimise, own[few], drawn.rows(few), others)[0]
    moved = np.sqrt(np.mean(np.square((again - own[few]) / sd), axis=0) / 2.0)
    return Replicates(
        u=own,
        loss=reached,
        converged=remaining <= SMALL,
        minimum=minimum,
        minimum_loss=float(loss_there[kept[0]]),
        hessian=hessian,
        reweightings=drawn,
        error=float(moved.max()),
        settled=bool(moved.max() <= HARMLESS),
    )


def _minimise(function: Callable, start: jax.Array, scale: np.ndarray):
    """Minimiser, its value and gradient, by L-BFGS; steps are judged in units of `scale`."""
    import optax

    solver = optax.lbfgs()
    slope = optax.value_and_grad_from_state(function)

    def step(carry):
        u, state, count, last, stalled = carry
        value, gradient = slope(u, state=state)
        update, state = solver.update(gradient, state, u, value=value, grad=gradient, value_fn=function)
        gained = last - value > jnp.finfo(value.dtype).eps * jnp.abs(value)
        stalls = ~gained | (jnp.max(jnp.abs(update) / scale) < SHORT)
        return optax.apply_updates(u, update), state, count + 1, value, jnp.where(stalls, stalled + 1, 0)

    def going(carry):
        return (carry[2] < MOST_STEPS) & (carry[4] < STALLED)

    u = jnp.asarray(start, jnp.result_type(float))
    found = jax.lax.while_loop(going, step, (u, solver.init(u), 0, jnp.asarray(jnp.inf, u.dtype), 0))[0]
    return found, *jax.value_and_grad(function)(found)


def _distinct(u: np.ndarray, values: np.ndarray, scale: np.ndarray) -> list[int]:
    """Numbers of minima that are apart from every better one, best first."""
    chosen: list[int] = []
    for i in np.argsort(values):
        if np.isfinite(values[i]) and all(np.abs((u[i] - u[j]) / scale).max() > SAME for j in chosen):
            chosen.append(int(i))
    return chosen
