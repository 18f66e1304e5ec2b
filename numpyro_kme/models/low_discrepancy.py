"""Keys of low discrepancy: an ordinary simulator `fn(rng_key, *params)` run on them is a quadrature over its noise.

They serve averages over the noise of one parameter. Nodes depend on one another, so they are wrong for whatever needs
independent draws: fresh noise, pseudo-marginal estimates, stored simulations, covariances, U-statistics in one set.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.extend.random import define_prng_impl, threefry_2x32

from numpyro_kme._core import checks, compat, door

LARGEST = 2**24
"""Number of nodes beyond which a word of 32 bits would have too few bits left inside a stratum."""
WORD = 32
GOLDEN = np.uint32(0x9E3779B9)
"""Golden ratio times 2^32: keeps rounds apart."""
ROUNDS = 4


@door
def node_keys(fn: Callable, rng_key: jax.Array, num_nodes: int, *params) -> jax.Array:
    r"""Make keys at which `jax.vmap(fn, (0, None, ...))(keys, *params)` is spread evenly over the noise of `fn`.

    Every random word that `fn` draws, whichever and in loops and rejection as well, is a Latin hypercube over the
    nodes: `num_nodes` nodes have one value in each of `num_nodes` equal intervals. Averages over one number then err
    by about $M^{-3/2}$, and those of sums of several by at most $\sqrt{M / (M - 1)}$ of what independent keys do.
    Each node alone has the distribution of `fn`.

    Args:
        fn: The simulator, in JAX; one event.
        rng_key: Chooses the permutations.
        num_nodes: Number `M` of nodes, a power of two.
        *params: Arguments of one call; only their shapes and types are looked at.
    Returns:
        Keys, `(num_nodes,)`; independent ones where `accepts(fn, *params)` is false.
    Raises:
        ValueError: If `num_nodes` is no power of two.
    Cost: `fn` is traced once; a word costs about twice as much as with plain keys, more inside loops.
    References: McKay, Beckman and Conover (1979), Technometrics 21; Salmon et al. (2011) for Threefry.
    """
    checks.instance("fn", fn, Callable, "a simulator")
    checks.whole("num_nodes", num_nodes, 1)
    power = num_nodes & (num_nodes - 1) == 0 and num_nodes <= LARGEST
    checks.require(power, f"`num_nodes` must be a power of two, at most {LARGEST}; got {num_nodes}.")
    if not accepts(fn, *params):
        return random.split(rng_key, num_nodes)
    path = jnp.broadcast_to(random.bits(rng_key, (2,), jnp.uint32), (num_nodes, 2))
    return keys_of(words_of(path, num_nodes, jnp.arange(num_nodes, dtype=jnp.uint32)))


def accepts(fn: Callable, *params) -> bool:
    """Tell whether `fn` can run on such keys: it is traceable with them, and neither takes its key apart nor calls
    Python back.

    JAX draws `poisson` with its default keys alone, and NumPyro's gamma-Poisson and zero-inflated draws call it. A
    function that reads the words of its key would read the same path at every node.
    """
    key = jax.eval_shape(keys_of, np.zeros(4, np.uint32))
    try:
        with compat.shielded():
            program = str(jax.make_jaxpr(fn)(key, *params))
    except (NotImplementedError, TypeError, ValueError, IndexError):
        return False
    return "random_unwrap" not in program and "callback" not in program


def words_of(paths: Any, num_nodes: int, nodes: Any) -> Any:
    """Words `(..., 4)` of the keys of nodes by number `(...)`, of `num_nodes` each; those of one set share a path
    `(..., 2)`. Of JAX or NumPy."""
    bits = np.full(nodes.shape, num_nodes.bit_length() - 1, np.uint32)
    xp = paths.__array_namespace__()
    return xp.concatenate([paths, xp.stack([nodes, bits], axis=-1)], axis=-1)


def keys_of(words: Any) -> jax.Array:
    """Keys of these words."""
    return random.wrap_key_data(words, impl=_implementation())


@lru_cache
def _implementation():
    """The implementation of keys `(path, node, bits)` for `2^bits` nodes: a path of two words, which JAX's Threefry
    splits and folds; the others stay."""

    def with_path(path, key):
        path = random.key_data(path)
        return jnp.concatenate([path, jnp.broadcast_to(key[2:], (*path.shape[:-1], 2))], axis=-1)

    def seed(number):
        return with_path(random.key(number, impl="threefry2x32"), jnp.zeros(4, jnp.uint32))

    def split(key, shape):
        return with_path(random.split(_path(key), shape), key)

    def fold_in(key, number):
        return with_path(random.fold_in(_path(key), number), key)

    return define_prng_impl(
        key_shape=(4,), seed=seed, split=split, fold_in=fold_in, random_bits=_words, name="latin_hypercube", tag="lhc"
    )


def _path(key: jax.Array) -> jax.Array:
    return random.wrap_key_data(key[:2], impl="threefry2x32")


def _words(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    """Random words: the node's place among all nodes in the upper bits, other bits by a hash."""
    num, bits = int(np.prod(shape)) * (2 if width > WORD else 1), key[3]
    seed, second = jnp.split(threefry_2x32((key[0], key[1]), jnp.arange(2 * num, dtype=jnp.uint32)), 2)
    lower = _hash(second ^ _hash(key[2] + GOLDEN))
    # a shift by all bits, for one node, gives zero in XLA
    words = jax.lax.shift_left(_place(bits, seed, key[2]), jnp.broadcast_to(WORD - bits, seed.shape)) | lower >> bits
    if width > WORD:
        upper, lower = words[: num // 2].astype(jnp.uint64), lower[num // 2 :].astype(jnp.uint64)
        return (upper << WORD | lower).reshape(shape)
    return (words >> (WORD - width)).astype(jnp.dtype(f"uint{width}")).reshape(shape)


def _place(bits: jax.Array, seed: jax.Array, node: jax.Array) -> jax.Array:
    """The node's place in a pseudo-random permutation of `2^bits`: a Feistel network, whose halves may differ by a
    bit."""
    sizes = bits // 2, bits - bits // 2
    masks = [(jnp.uint32(1) << size) - 1 for size in sizes]
    left, right = node >> sizes[1], node & masks[1]
    for step in range(ROUNDS):
        seed = seed + GOLDEN
        left, right = right, left ^ (_hash(seed ^ _hash(right + seed)) & masks[step % 2])
    return left << sizes[1] | right


def _hash(word: jax.Array) -> jax.Array:
    """A bijection of words in which every bit depends on all (Wellons 2018, `lowbias32`)."""
    word = (word ^ word >> 16) * np.uint32(0x7FEB352D)
    word = (word ^ word >> 15) * np.uint32(0x846CA68B)
    return word ^ word >> 16
