"""A simulator as a family of distributions: noise of a known distribution, pushed forward by the parameters."""

import abc
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import ndtr, ndtri
from scipy import special

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen, shown
from numpyro_kme._core.host import numpy_rng, on_host
from numpyro_kme._core.keys import child
from numpyro_kme._core.programs import in_blocks, jitted
from numpyro_kme.kernels.base import register

BLOCK = 16
"""Replicates that share one set of noise nodes: replicate `b` uses set `1 + b // BLOCK`, the full data set 0."""

REACH = 6.5
"""One-dimensional quadrature covers standard normal noise out to this many standard deviations (8e-11 lies outside)."""


@shown
class QuadratureNodes(NamedTuple):
    """Noise values `(M, ...)` with weights `(M,)` that sum to one: they stand for the distribution of the noise.

    `correction` is for a local loss, see `LocalMMD`: what the embedding of many more nodes has beyond that of these,
    and its derivatives, `(r, 1 + p)`; with covariates for each of them, `(n, r, 1 + p)`, or their mean under the
    weights of the data.
    """

    values: Any
    weights: jax.Array
    correction: Any = None

    def of_sets(self, sets: np.ndarray) -> "QuadratureNodes":
        """One set of nodes for each row, of sets `(sets, M, ...)` by number `(R,)`."""
        return jax.tree.map(partial(pick, sets), self)


def pick(index: Any, leaf: Any) -> Any:
    """Some rows, of keys by NumPy too: JAX would compile that for each number of rows."""
    if not checks.is_key(leaf):
        return np.asarray(leaf)[index]
    return jax.random.wrap_key_data(np.asarray(jax.random.key_data(leaf))[index], impl=jax.random.key_impl(leaf))


class Noise(abc.ABC):
    """The distribution of a simulator's noise, as a rule that makes weighted quadrature nodes.

    `independent` says that the nodes are sampled independently, so that sums over pairs must leave out a node's pair
    with itself; deterministic and low-discrepancy nodes repel each other, and the full double sum is the better
    estimate.
    """

    independent: bool

    @abc.abstractmethod
    def sample(self, rng_key: jax.Array) -> Any:
        """Sample one noise value; traceable."""

    def quasi_random(self, rng_key: jax.Array, num: int) -> Any:
        """Sample `num` noise values `(num, ...)` by randomised quasi-Monte Carlo, where the noise allows it: they lie
        evenly, and each alone has the noise's distribution. Traceable."""
        return jax.vmap(self.sample)(jax.random.split(rng_key, num))

    @abc.abstractmethod
    def nodes(self, rng_key: jax.Array, num: int, blocks: int) -> QuadratureNodes:
        """Make `blocks` sets of `num` nodes, `(blocks, num, ...)`; one set where nodes are not random."""

    def even(self, rng_key: jax.Array, num: int) -> QuadratureNodes:
        """One set of nodes, `(num, ...)`, for averages of squares as well: none is the mirror image of another."""
        return jax.tree.map(lambda leaf: leaf[0], self.nodes(rng_key, num, 1))

    @abc.abstractmethod
    def grouped(self, rng_key: jax.Array, groups: int, each: int, blocks: int) -> Any:
        """Sample noise values `(blocks, groups * each, ...)`, an even number `each` for each group or covariate."""


def _same(z):
    """The noise as it is sampled."""
    return z


@frozen
class NormalNoise(Noise):
    """Noise `transform(z)`, `z ~ N(0, I)` of `dim` dimensions: quadrature for one dimension, quasi-Monte Carlo beyond.

    One dimension: the trapezoidal rule on `[-6.5, 6.5]` with normal weights, which converges exponentially
    for smooth simulators. More: a scrambled Sobol sequence with each point's mirror image, so that odd
    functions have no error.

    Args:
        dim: Number of standard normals that one simulated point uses.
        transform: `(dim,) -> noise value`, traceable; the same vector when left out.
    """

    dim: int
    transform: Callable[[jax.Array], Any] = _same
    independent: bool = field(default=False, init=False)

    def sample(self, rng_key):
        """Sample one noise value."""
        return self.transform(jax.random.normal(rng_key, (self.dim,)))

    def quasi_random(self, rng_key, num):
        """A rank-one lattice with a random generator and a random shift: every coordinate is as even as can be, at less
        than the cost of random numbers."""
        shift_key, generator_key = jax.random.split(rng_key)
        shift = jax.random.uniform(shift_key, (self.dim,), jnp.float32)
        # odd: prime to powers of two
        generator = 2 * jax.random.randint(generator_key, (self.dim,), 0, max(num // 2, 1)) + 1

        def one(i):
            level = jnp.mod((i * generator % num).astype(jnp.float32) / num + shift, 1.0)
            return self.transform(ndtri(jnp.clip(level.astype(float), 1e-7, 1.0 - 1e-7)))

        return jax.vmap(one)(jnp.arange(num))

    def nodes(self, rng_key, num, blocks):
        """Sets of nodes; one set serves all blocks when `dim` is 1."""
        if self.dim == 1:
            z, blocks = np.linspace(-REACH, REACH, num)[None, :, None], 1
            weights = np.exp(-0.5 * z[0, :, 0] ** 2)
        else:
            z = np.stack([self._mirrored(child(rng_key, block), num) for block in range(blocks)])
            weights = np.ones(z.shape[1])
        return QuadratureNodes(self.push(z), jnp.asarray(np.broadcast_to(weights / weights.sum(), z.shape[:2])))

    def push(self, z: np.ndarray) -> Any:
        """Noise values `(..., *value)` at standard normals `(..., dim)`; one small program serves any number."""
        rows = in_blocks(partial(_transformed, self.transform), z.reshape(-1, self.dim), 512)
        return jax.tree.map(lambda leaf: leaf.reshape(*z.shape[:-1], *leaf.shape[1:]), rows)

    def even(self, rng_key, num):
        """One set of nodes: of a Sobol sequence, `num` rounded up to a power of two, or of the trapezoidal rule."""
        if self.dim == 1:
            return super().even(rng_key, num)
        z = self._sobol(rng_key, num)
        return QuadratureNodes(jax.vmap(self.transform)(jnp.asarray(z)), jnp.full(len(z), 1.0 / len(z)))

    def grouped(self, rng_key, groups, each, blocks):
        """Noise values `(blocks, groups * each, ...)`: consecutive Sobol points and their mirror images in a group."""

        def one_set(block):
            z = self._sobol(child(rng_key, block), groups * each // 2)[: groups * each // 2]
            z = z.reshape(groups, each // 2, self.dim)
            return np.concatenate([z, -z], axis=1).reshape(-1, self.dim)

        z = np.stack([one_set(block) for block in range(blocks)])
        return jax.vmap(jax.vmap(self.transform))(jnp.asarray(z))

    def _sobol(self, rng_key, num):
        """Normal scrambled Sobol points, `num` rounded up to a power of two."""
        size = 2 ** max(int(np.ceil(np.log2(num))), 0)
        points = scipy.stats.qmc.Sobol(self.dim, rng=numpy_rng(rng_key)).random(size)
        return special.ndtri(points.clip(1e-12, 1.0 - 1e-12))

    def _mirrored(self, rng_key, num):
        """Half as many of them, and their mirror images."""
        z = self._sobol(rng_key, num / 2)
        return np.concatenate([z, -z])


@partial(jitted, static_argnums=0)
def _transformed(transform, z):
    return jax.vmap(transform)(z)


def UniformNoise(dim: int) -> NormalNoise:
    """Noise uniform on the unit cube of `dim` dimensions."""
    return NormalNoise(dim, ndtr)


@frozen
class DrawnNoise(Noise):
    """Noise that can only be sampled: independent (Monte Carlo) nodes, whose error falls as `M^-1/2`.

    Args:
        draw: `(rng_key) -> noise value`, traceable. Left out, the noise value is the key itself, for simulators
            `fn(rng_key, *params)`.
    """

    draw: Callable[[jax.Array], Any] = _same
    independent: bool = field(default=True, init=False)

    def sample(self, rng_key):
        """Sample one noise value."""
        return self.draw(rng_key)

    def nodes(self, rng_key, num, blocks):
        """Sample `blocks` sets of `num` independent nodes."""

        def one_set(block):
            return jax.vmap(self.draw)(jax.random.split(jax.random.fold_in(rng_key, block), num))

        return QuadratureNodes(jax.vmap(one_set)(jnp.arange(blocks)), jnp.full((blocks, num), 1.0 / num))

    def grouped(self, rng_key, groups, each, blocks):
        """Independent noise values `(blocks, groups * each, ...)`."""
        return self.nodes(rng_key, groups * each, blocks).values


@register
class Generator:
    r"""A family of distributions `P_u`, that of `simulate(u, noise)`.

    Args:
        simulate: `(u, noise value) -> one data point`, or with covariates `(u, noise value, i) -> one response`, `i`
            the number of the data point whose covariate is used; traceable. `u` is an unconstrained vector `(dim,)`:
            map it to constrained parameters inside.
        noise: The distribution of the noise.
        dim: Number of parameters.
        log_density: `(u, data points (m, ...)) -> log p(x_i | u), (m,)`, for `NegativeLogLikelihood`.
        covariates: Given values `(n, ...)`, one for each data point, or nothing. With covariates the data points and
            the simulated points are pairs `(covariate, response)`.
        differentiable: Whether derivatives of `simulate` in `u` average to those of the distribution. They do not where
            a simulated point jumps.
    """

    simulate: Callable = field(metadata=dict(static=True))
    noise: Noise = field(metadata=dict(static=True))
    dim: int = field(metadata=dict(static=True))
    log_density: Callable | None = field(default=None, metadata=dict(static=True))
    covariates: Any = None
    differentiable: bool = field(default=True, metadata=dict(static=True))

    @property
    def by_quadrature(self) -> bool:
        """Whether nodes are those of a quadrature rule: the noise is one standard normal, the same for all data."""
        return isinstance(self.noise, NormalNoise) and self.noise.dim == 1 and self.covariates is None

    def points(self, u: jax.Array, nodes: QuadratureNodes) -> Any:
        """Simulate `(M, ...)` points at the nodes; with covariates, pairs of a covariate and a response."""
        if self.covariates is None:
            return jax.vmap(lambda noise: self.simulate(u, noise))(nodes.values)
        index, noise = nodes.values
        given = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], self.covariates)
        return given, jax.vmap(lambda value, i: self.simulate(u, value, i))(noise, index)

    def weights(self, nodes: QuadratureNodes, data_weights: jax.Array) -> jax.Array:
        """Weights `(M,)` of the simulated points; with covariates, those of the data, divided among nodes."""
        if self.covariates is None:
            return nodes.weights
        products = nodes.weights * jnp.asarray(data_weights)[nodes.values[0]]
        return products / jnp.sum(products)

    @on_host
    def draw_nodes(self, rng_key: jax.Array, num: int, blocks: int | None = None) -> QuadratureNodes:
        """Make quadrature nodes in float64, on the host: one set `(num, ...)`, or `(blocks, num, ...)`."""
        nodes = self._nodes(rng_key, num, blocks or 1)
        return nodes if blocks else jax.tree.map(lambda leaf: leaf[0], nodes)

    def _nodes(self, rng_key, num, blocks):
        if self.covariates is None:
            return self.noise.nodes(rng_key, num, blocks)
        n = jax.tree.leaves(self.covariates)[0].shape[0]
        each = 2 ** max(int(np.ceil(np.log2(num / n))), 1)
        values = self.noise.grouped(rng_key, n, each, blocks)
        shape = jax.tree.leaves(values)[0].shape[:2]
        index = jnp.broadcast_to(jnp.repeat(jnp.arange(n), each)[None], shape)
        return QuadratureNodes((index, values), jnp.full(shape, 1.0 / shape[1]))


def join(data: Any, extra: Any) -> Any:
    """Append extra points to the data, leaf by leaf."""
    return data if extra is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), data, extra)


def vectors(points: Any) -> Any:
    """Make points of scalars `(n,)` into vectors `(n, 1)`, leaf by leaf."""
    return jax.tree.map(lambda leaf: leaf[:, None] if leaf.ndim == 1 else leaf, points)


def check_data(data: Any) -> None:
    """Require at least two finite data points."""
    leaves = jax.tree.leaves(data)
    checks.require(
        bool(leaves) and all(leaf.ndim >= 1 and leaf.shape[0] >= 2 for leaf in leaves),
        f"`data` must hold at least two points along its first axis; got shapes {[leaf.shape for leaf in leaves]}.",
    )
    for leaf in leaves:
        checks.finite("data", leaf)


def check_points(data: Any, generator: Generator) -> None:
    """Require at least two finite data points whose shape is that of the simulator's output."""
    check_data(data)
    have, want = [leaf.shape[1:] for leaf in jax.tree.leaves(data)], _shapes_of_a_point(generator)
    checks.require(
        have == want,
        f"one data point has shape {have} and one simulated point {want}; they must agree. Change the "
        "simulator's output, or the axis of the data that the plate runs over.",
    )


@on_host
def _shapes_of_a_point(generator: Generator) -> list[tuple[int, ...]]:
    """Of a covariate, where there are some, and of one simulated point; nothing is simulated."""
    points = jax.eval_shape(_points, generator, *_two_points(generator))
    return [leaf.shape[1:] for leaf in jax.tree.leaves(points)]


_points = jax.jit(Generator.points)
"""Traced once for a generator, however many data sets it meets."""


@on_host
def has_derivatives(generator: Generator) -> bool:
    """Whether JAX can differentiate its points as losses do, forward over reverse: not through a `while` loop or a
    callback to Python. Nothing is simulated."""

    def total(u, nodes):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(generator.points(u, nodes)))

    try:
        jax.eval_shape(jax.jacfwd(jax.grad(total)), *_two_points(generator))
    except Exception:
        return False
    return True


def _two_points(generator: Generator) -> tuple[jax.ShapeDtypeStruct, QuadratureNodes]:
    """Shapes of parameters and of two nodes."""
    values = jax.eval_shape(lambda key: jax.vmap(generator.noise.sample)(jax.random.split(key, 2)), jax.random.key(0))
    values = values if generator.covariates is None else (jax.ShapeDtypeStruct((2,), int), values)
    weights: Any = jax.ShapeDtypeStruct((2,), np.float64)
    return jax.ShapeDtypeStruct((generator.dim,), np.float64), QuadratureNodes(values, weights)
