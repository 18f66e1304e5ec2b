"""Two-sample and independence tests by kernels, with permutation p-values."""

from typing import NamedTuple

import jax
import numpy as np

from numpyro_kme._core import checks, door, host, numpy_function, numpy_rng, shown
from numpyro_kme.kernels.base import Kernel, PointSet, num_points


@shown
class PermutationTest(NamedTuple):
    """A statistic and its p-value under permutations.

    Attributes:
        statistic: Its value on the data.
        p_value: `(1 + number of permutations with a statistic at least as large) / (1 + number of permutations)`: its
            probability of being at most `a` is at most `a` under the null, for any number of independent points.
        null: The statistic under each permutation.
    """

    statistic: float
    p_value: float
    null: np.ndarray


@numpy_function
def mmd_test(
    rng_key: jax.Array, kernel: Kernel, x: PointSet, y: PointSet, *, num_permutations: int = 999
) -> PermutationTest:
    """Test whether two samples have the same distribution, by the unbiased squared MMD.

    All points have to be independent draws. Those of a series or a chain are not, and the test then rejects too often:
    thin them until they are.

    Args:
        rng_key: The only source of randomness.
        kernel: Characteristic, such as `Gaussian(median_heuristic(...))`.
        x, y: `n` and `m` points, at least two each.
        num_permutations: Number of random divisions of the joint sample.
    Raises:
        ValueError: If samples do not agree in shape, or their kernel matrix takes more memory than there is.
    Cost: `(n + m)^2` kernel evaluations, kept, and one matrix product a permutation.
    References: Gretton et al. (2012), JMLR 13.
    """
    checks.whole("num_permutations", num_permutations, 1)
    n, m = _sizes(x, y)
    checks.require(min(n, m) >= 2, f"`x` and `y` must have at least 2 points each; got {n} and {m}.")
    shapes = [[np.shape(leaf)[1:] for leaf in jax.tree.leaves(sample)] for sample in (x, y)]
    checks.require(shapes[0] == shapes[1], f"Points of `x`, `y` must have one shape; got {shapes[0]} and {shapes[1]}.")
    host.require_memory(n + m)
    joint = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a), np.asarray(b)]), x, y)
    gram = np.asarray(kernel.gram(joint), np.float64)
    np.fill_diagonal(gram, 0.0)
    first = np.arange(n + m) < n

    def statistics(of_first):
        """Statistics `(k,)` of divisions of the points: columns of `(n + m, k)` mark the first sample."""
        a, b = of_first.astype(float), (~of_first).astype(float)
        of_a, of_b = gram @ a, gram @ b
        own = np.sum(a * of_a, axis=0) / (n * (n - 1.0)) + np.sum(b * of_b, axis=0) / (m * (m - 1.0))
        return own - 2.0 * np.sum(a * of_b, axis=0) / (n * m)

    rng, whole = numpy_rng(rng_key), np.tile(first[:, None], (1, num_permutations))
    return _result(statistics(first[:, None])[0], statistics(rng.permuted(whole, axis=0)))


@door
def hsic(kernel_x: Kernel, kernel_y: Kernel, x: PointSet, y: PointSet) -> jax.Array:
    r"""The Hilbert-Schmidt independence criterion, $\mathrm{tr}(K H L H) / n^2$, $H = I - 11^\top / n$: biased, >= 0.

    Args:
        kernel_x, kernel_y: Kernels on each of two variables.
        x, y: `n` pairs.
    Raises:
        RuntimeError: If it is negative by more than rounding: a kernel is not positive definite.
    References: Gretton et al. (2005), ALT.
    """
    _require_pairs(x, y)
    centred, gram = _centred(kernel_x.gram(x)), kernel_y.gram(y)
    value = _hsic(centred, gram)
    checks.v_statistic("The HSIC", value, _hsic(abs(centred), abs(gram)))
    return value


@numpy_function
def hsic_test(
    rng_key: jax.Array, kernel_x: Kernel, kernel_y: Kernel, x: PointSet, y: PointSet, *, num_permutations: int = 999
) -> PermutationTest:
    """Test whether two variables are independent, by the HSIC under permutations of the pairing.

    The pairs have to be independent of one another, unlike those of two series.

    Args:
        rng_key: The only source of randomness.
        kernel_x, kernel_y: Characteristic kernels on each variable.
        x, y: `n` pairs, at least two.
        num_permutations: Number of random pairings.
    Cost: `2 n^2` kernel evaluations, kept, and `n^2` operations a permutation.
    References: Gretton et al. (2008), NIPS.
    """
    _require_pairs(x, y)
    checks.whole("num_permutations", num_permutations, 1)
    rng, centred, gram = numpy_rng(rng_key), _centred(np.asarray(kernel_x.gram(x))), np.asarray(kernel_y.gram(y))
    orders = (rng.permutation(len(gram)) for _ in range(num_permutations))
    return _result(_hsic(centred, gram), [_hsic(centred, gram[np.ix_(order, order)]) for order in orders])


def _centred(gram):
    rows = gram.mean(axis=0, keepdims=True)
    return gram - rows - rows.T + gram.mean()


def _hsic(centred, gram):
    return (centred * gram).sum() / len(gram) ** 2


def _require_pairs(x, y) -> None:
    n, m = _sizes(x, y)
    checks.require(n == m >= 2, f"`x` and `y` must be at least 2 pairs; got {n} and {m} points.")
    host.require_memory(n)


def _sizes(x, y) -> tuple[int, int]:
    """Numbers of points of two sound samples."""
    checks.sound("x", x)
    checks.sound("y", y)
    return num_points(x), num_points(y)


def _result(value, null) -> PermutationTest:
    value, null = float(value), np.asarray(null)
    slack = 1e-12 * (abs(value) + np.abs(null).max())
    return PermutationTest(value, float((1 + np.sum(null >= value - slack)) / (1 + len(null))), null)
