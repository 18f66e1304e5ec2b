"""An emulator of a simulator's mean embedding, and minima of a squared MMD on it."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import programs
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import jitted
from numpyro_kme.bootstrap.emulated.networks import Networks
from numpyro_kme.bootstrap.emulated.training_set import EmulatorTrainingSet
from numpyro_kme.losses import mixing

NEAR = 0.05
"""How soon points count less for being far from the data: weights are `1 / (noise + NEAR loss)`."""

ITERATIONS, FINAL_ITERATIONS = 30, 100
"""Steps of each minimisation in a round, and in the end."""


_in_blocks = on_host(programs.in_blocks)


class EmulatedMinima(NamedTuple):
    """Minima of the emulated loss, one a row.

    Attributes:
        x: Standardised parameters, `(R, p)`.
        value: Losses, `(R,)`.
        total: What was minimised: the scaled loss with the prior, `(R,)`.
        mixing_proportion: Mixing proportions, `(R,)`; 1 where they are not fitted.
        remaining: Newton steps left, `(R, p)`.
        hessian: Gauss-Newton Hessians of the scaled loss with the prior, `(R, p, p)`.
        convex: Whether the loss is convex there, `(R,)`.
    """

    x: np.ndarray
    value: np.ndarray
    total: np.ndarray
    mixing_proportion: np.ndarray
    remaining: np.ndarray
    hessian: np.ndarray
    convex: np.ndarray


@dataclass(frozen=True)
class Emulator:
    """The embedding as a function of standardised parameters, on a few principal features.

    Attributes:
        networks: What was learnt.
        basis: Principal features, `(J, r)`.
        training: Simulations that it was learnt from.
        fit_proportion: Whether the mixing proportion is fitted.
    """

    networks: Networks
    basis: np.ndarray
    training: EmulatorTrainingSet
    fit_proportion: bool

    @classmethod
    def fit(
        cls,
        rng_key: jax.Array,
        training: EmulatorTrainingSet,
        data: np.ndarray,
        fit_proportion: bool,
        rows: int,
        steps: int,
    ) -> "Emulator":
        """Learn from a training set; points near the data's embedding `(J,)` count most."""
        misfit = NEAR * np.maximum(training.losses(data, fit_proportion), 0.0)
        weights = 1.0 / (training.noise() + misfit + 1e-12 * (data @ data))
        means = training.means
        _, vectors = np.linalg.eigh((means * weights[:, None]).T @ means)
        # principal features that the networks learn: the embeddings in question lie near a space of few dimensions
        basis = vectors[:, ::-1][:, :24]
        networks = on_host(Networks.fit)(rng_key, training.x, means @ basis, weights, rows, steps)
        return cls(networks, basis, training, fit_proportion)

    @cached_property
    def known(self) -> np.ndarray:
        """Emulated embeddings at the points of the training set, `(n, r)`."""
        return self.at(self.training.x)

    def at(self, x: np.ndarray) -> np.ndarray:
        """Emulated embeddings `(R, r)`."""
        return _in_blocks(lambda rows: _at(self.networks, rows), x, 1024)

    def tangents(self, x: np.ndarray, proportion: np.ndarray) -> np.ndarray:
        """Derivatives of the model's part of the residual at points `(R, p)`, `(R, r, p)`; see `_tangent`."""
        return _in_blocks(lambda rows: _tangents(self.networks, *rows, self.fit_proportion), (x, proportion))

    def losses(self, known: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Losses of embeddings `(..., n, r)` for data `(..., R, r)`, up to a term of the data, `(..., R, n)`."""
        q, s = np.square(known).sum(axis=-1)[..., None, :], data @ np.swapaxes(known, -1, -2)
        return mixing.discrepancy(q, s, self.fit_proportion)

    def best(self, data: np.ndarray, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """For each embedding of data `(R, r)` the best of some points of `x (S, p)`, those of its rows `(R, K)`."""
        known = self.at(x)

        def best(some):
            losses = self.losses(known[some[0]], some[1][:, None])[:, 0]
            return np.take_along_axis(some[0], np.argmin(losses, axis=1)[:, None], axis=1)[:, 0]

        return x[_in_blocks(best, (rows, data))]

    def totals(self, data: np.ndarray, anchors: np.ndarray, loss_scale: float, weight: float) -> np.ndarray:
        """What `minimise` minimises, at the points of the training set, up to terms of data and anchors, `(R, n)`."""
        apart = np.square(self.training.x).sum(axis=1) - 2.0 * anchors @ self.training.x.T
        return self.losses(self.known, data) / loss_scale + 0.5 * weight * apart

    def starts(
        self, data: np.ndarray, anchors: np.ndarray, loss_scale: float, weight: float, away: Any = None
    ) -> np.ndarray:
        """The best point of the training set for each row of data; `away` from points `(R, p)`, if given."""
        losses = self.totals(data, anchors, loss_scale, weight)
        if away is not None:
            # second starts are at least so far from the first, in standard deviations of the prior
            near = np.stack([np.abs(self.training.x - x).max(axis=1) < 0.5 for x in away])
            losses = np.where(near & ~near.all(axis=1, keepdims=True), np.inf, losses)
        return self.training.x[np.argmin(losses, axis=1)]

    def minimise(self, data, anchors, loss_scale, weight, starts, steps=ITERATIONS) -> EmulatedMinima:
        """Minimise `loss / loss_scale + weight |x - z|^2 / 2` for data `(R, r)`, anchors `z` and starts `(R, p)`."""

        def some(rows):
            return _minimise(self.networks, *rows, float(loss_scale), float(weight), steps, self.fit_proportion)

        return _in_blocks(some, (data, anchors, starts))

    def errors(self, simulated: EmulatorTrainingSet, data: np.ndarray, found: EmulatedMinima) -> np.ndarray:
        """Split-half estimates of the errors of the emulated losses at simulated points, to first order, `(R, 2)`."""
        have = self.at(simulated.x)
        force = 2.0 * found.mixing_proportion[:, None] * (found.mixing_proportion[:, None] * have - data)
        seen = np.einsum("rhj,jk,rk->rh", simulated.split_halves, self.basis, force, optimize=True)
        return seen - np.sum(have * force, axis=1)[:, None]

    def between_networks(self, data: np.ndarray, x: np.ndarray, loss_scale: float, hessians: np.ndarray) -> np.ndarray:
        """How far the networks' own minima are apart: steps from the common one, about their mean, `(k, p)`."""
        slopes = on_host(_slopes_of_each)(self.networks, data, x, float(loss_scale), self.fit_proportion)
        steps = np.linalg.solve(hessians[:, None] + 1e-9 * np.eye(x.shape[1]), slopes[..., None])[..., 0]
        return (steps - steps.mean(axis=1, keepdims=True)).reshape(-1, x.shape[1]) / np.sqrt(steps.shape[1] - 1.0)


def calibrated_loss_scale(tangents: np.ndarray, data: np.ndarray) -> float:
    r"""What one unit of log-likelihood is in the loss: `sum_k h_k / sum_k (h_k^2 / j_k)`, the inverse of a learning
    rate.

    For a log-likelihood the variance `j` of the gradient over reweightings of the data is the Hessian `h` (the
    information identity) and the loss scale 1. For another loss it is that of Lyddon, Holmes and Walker, along the
    principal directions of `h`. The sums go over several points too, since along what the data leave open `h` may vary.

    Args:
        tangents: Derivatives of the embedding at several points `(K, r, p)`: `h = 2 T' T`.
        data: Embeddings of replicates' data `(R, r)`: their gradients vary as `2 T' data`.

    References: Lyddon, Holmes and Walker (2019), Biometrika 106.
    """
    h, directions = np.linalg.eigh(2.0 * np.swapaxes(tangents, 1, 2) @ tangents)
    slopes = 2.0 * tangents @ directions
    j = np.einsum("krp,rs,ksp->kp", slopes, np.cov(data.T).reshape(data.shape[1], -1), slopes, optimize=True)
    h = np.maximum(h, 1e-9 * h.max())
    return float(h.sum() / (h**2 / np.maximum(j, 1e-300)).sum())


@jitted
def _at(networks, x):
    return jax.vmap(lambda one: networks(one).mean(axis=0))(x)


def _residual(model, data, fit_proportion):
    """`c mu - data` with the mixing proportion `c`, and `c`; `model` and `data` are stacked over networks."""
    c = mixing.proportion(model @ model, model @ data) if fit_proportion else jnp.ones(())
    return c * model - data, c


def _tangent(model, jacobian, c, fit_proportion):
    """Derivatives of `_residual` but for those of the mixing proportion, which the residual is orthogonal to."""
    if not fit_proportion:
        return jacobian
    along = model / jnp.sqrt(model @ model)
    return jnp.where(c < 1.0, c * (jacobian - jnp.outer(along, along @ jacobian)), jacobian)


@partial(jitted, static_argnums=3)
def _tangents(networks, x, c, fit_proportion):
    def model(t):
        return networks(t).mean(axis=0)

    return jax.vmap(lambda x, c: _tangent(model(x), jax.jacfwd(model)(x), c, fit_proportion))(x, c)


@partial(jitted, static_argnums=4)
def _slopes_of_each(networks, data, x, loss_scale, fit_proportion):
    def of_one(x, data):
        def losses(t):
            residuals = jax.vmap(lambda model: _residual(model, data, fit_proportion)[0])(networks(t))
            return jnp.sum(jnp.square(residuals), axis=1) / loss_scale

        return jax.jacfwd(losses)(x)

    return jax.lax.map(lambda row: of_one(*row), (x, data))


@partial(jitted, static_argnums=7)
def _minimise(networks, data, anchors, starts, loss_scale, weight, steps, fit_proportion):
    """Levenberg and Marquardt with exact derivatives of the networks; the loss is averaged over these."""
    p, count = starts.shape[1], networks.level.size
    eye, nets = jnp.eye(p), jax.tree.leaves(networks.layers)[0].shape[0]
    size = 1.0 / jnp.sqrt(nets * loss_scale)

    def model(x):
        return size * networks(x).reshape(nets * count)

    def one(data, z, start):
        target = size * jnp.tile(data, nets)

        def look(x):
            value, jacobian = model(x), jax.jacfwd(model)(x)
            residual, c = _residual(value, target, fit_proportion)
            return residual, _tangent(value, jacobian, c, fit_proportion), c

        def gauss_newton(tangents):
            return 2.0 * tangents.T @ tangents + weight * eye

        def total(residual, x):
            return residual @ residual + 0.5 * weight * jnp.sum(jnp.square(x - z))

        def step(_, state):
            x, (residual, tangents, c), damping = state
            hessian = gauss_newton(tangents)
            gradient = 2.0 * tangents.T @ residual + weight * (x - z)
            move = -jnp.linalg.solve(hessian + damping * jnp.diag(jnp.diag(hessian)) + 1e-9 * eye, gradient)
            # longest step of a minimisation, in standard deviations of the prior
            move = move * jnp.minimum(1.0, 0.7 / jnp.maximum(jnp.max(jnp.abs(move)), 1e-300))
            trial = look(x + move)
            better = total(trial[0], x + move) < total(residual, x)
            old = x, (residual, tangents, c)
            kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), (x + move, trial), old)
            return (*kept, jnp.where(better, 0.25 * damping, 4.0 * jnp.maximum(damping, 1e-3)))

        x, (residual, tangents, c), _ = jax.lax.fori_loop(0, steps, step, (start, look(start), jnp.full((), 1e-2)))

        def objective(t):
            return total(_residual(model(t), target, fit_proportion)[0], t)

        gradient, hessian = jax.grad(objective)(x), jax.hessian(objective)(x)
        values, vectors = jnp.linalg.eigh(hessian)
        raised = jnp.maximum(jnp.abs(values), 1e-9 * jnp.max(jnp.abs(values)) + 1e-290)
        remaining = -vectors @ ((gradient @ vectors) / raised)
        loss, whole = loss_scale * (residual @ residual), total(residual, x)
        return EmulatedMinima(x, loss, whole, c, remaining, gauss_newton(tangents), values[0] > 0.0)

    return jax.vmap(one)(data, anchors, starts)
