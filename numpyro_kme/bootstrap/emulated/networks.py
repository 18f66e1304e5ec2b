"""An ensemble of small neural networks: a smooth function of the parameters, and how uncertain it is.

They are trained by Optax, which serves nothing else: AdamW on random batches, with a falling learning rate. The other
minimisations of the package have few variables and no random batches: `bootstrap/newton`, `likelihoods/descent`.
"""

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.programs import jitted

WIDTHS = (64, 64, 64)
"""Units of the hidden layers."""

BATCH, RATE, DECAY = 256, 3e-3, 1e-4
"""Points in a step of Adam, its first learning rate, which falls to zero by a cosine, and its weight decay."""


class Networks(NamedTuple):
    """Networks `x -> (outputs,)` with standardised inputs and outputs.

    Attributes:
        layers: Matrices `(networks, in, out)` and biases `(networks, out)`.
        centre: Mean of the inputs, `(p,)`.
        width: Standard deviation of the inputs, `(p,)`.
        level: Mean of the outputs, `(r,)`.
        size: Largest standard deviation of an output.
    """

    layers: Any
    centre: jax.Array
    width: jax.Array
    level: jax.Array
    size: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs of every network at `x (p,)`, `(networks, r)`."""
        scaled = (x - self.centre) / self.width
        return jax.vmap(lambda layers: _forward(layers, scaled))(self.layers) * self.size + self.level[None]

    @classmethod
    def fit(
        cls, rng_key: jax.Array, x: np.ndarray, y: np.ndarray, weights: np.ndarray, rows: int, steps: int
    ) -> "Networks":
        """Minimise the weighted squared error by Adam.

        Args:
            rng_key: For the first layers and the batches.
            x: Inputs `(n, p)`.
            y: Outputs `(n, r)`.
            weights: How much each row counts `(n,)`.
            rows: Rows of the arrays that are handed to the compiled program, at least `n`: one size for all rounds.
            steps: Steps of Adam.
        """
        weights = weights / weights.mean()
        centre, level = (np.average(a, 0, weights) for a in (x, y))
        width = np.sqrt(np.average(np.square(x - centre), 0, weights))
        size = np.sqrt(np.average(np.square(y - level), 0, weights)).max()

        def pad(a):
            return np.pad(a, ((0, rows - len(a)), *[(0, 0)] * (a.ndim - 1))).astype(np.float32)

        table = pad((x - centre) / width), pad((y - level) / size), pad(weights)
        layers = _train(rng_key, *table, len(x), steps)
        layers = jax.tree.map(lambda leaf: leaf.astype(float), layers)
        return cls(layers, *map(jnp.asarray, (centre, width, level, size)))


def _forward(layers, x):
    for matrix, offset in layers[:-1]:
        x = jax.nn.silu(x @ matrix + offset)
    matrix, offset = layers[-1]
    return x @ matrix + offset


def _first_layers(rng_key, sizes):
    layers = []
    for number, (into, out) in enumerate(pairwise(sizes)):
        matrix_key, offset_key = jax.random.split(jax.random.fold_in(rng_key, number))
        matrix = jax.random.normal(matrix_key, (into, out), jnp.float32) / np.float32(np.sqrt(into))
        offset = 0.5 * jax.random.normal(offset_key, (out,), jnp.float32) * (number < len(WIDTHS))
        layers.append((matrix, offset))
    return layers


@partial(jitted, static_argnums=5)
def _train(rng_key, x, y, weights, count, steps):
    import optax  # loads for a tenth of the time of this package, and serves only here

    optimiser = optax.adamw(optax.cosine_decay_schedule(RATE, steps), weight_decay=DECAY)

    def loss(layers, rows):
        errors = jax.vmap(partial(_forward, layers))(x[rows]) - y[rows]
        return jnp.mean(weights[rows] * jnp.sum(jnp.square(errors), axis=1))

    def one(key):
        first_key, step_key = jax.random.split(key)
        layers = _first_layers(first_key, (x.shape[1], *WIDTHS, y.shape[1]))

        def step(state, key):
            layers, moments = state
            slopes = jax.grad(loss)(layers, jax.random.randint(key, (BATCH,), 0, count))
            change, moments = optimiser.update(slopes, moments, layers)
            change = jax.tree.map(lambda a: a.astype(jnp.float32), change)
            return (optax.apply_updates(layers, change), moments), None

        (layers, _), _ = jax.lax.scan(step, (layers, optimiser.init(layers)), jax.random.split(step_key, steps))
        return layers

    # networks that are trained apart and averaged
    return jax.lax.map(one, jax.random.split(rng_key, 4))
