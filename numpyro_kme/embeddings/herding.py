"""Kernel herding: samples that follow an embedding, of a probability or of a signed measure."""

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, take


@numpy_function
def herd(kernel: Kernel, embedding_values: Array, candidates: PointSet, num_samples: int) -> np.ndarray:
    r"""Choose super-samples greedily: `theta^(s) = argmax_t mu(t) - (1/s) sum_{i < s} l(theta^(i), t)`.

    The equally weighted samples approach `mu` at a rate of about `1/S` instead of `S^-1/2` for functions in
    the space of the kernel; averages of functions outside it (tail probabilities, for one) can be worse than
    those of random draws. A candidate can be chosen more than once. `mu` may embed a signed measure.

    Args:
        kernel: `l`, the kernel of the embedding.
        embedding_values: `(R,)`, `mu` at the candidates, on the scale of a measure of total mass one.
        candidates: `(R, dim)`, `t`, or any pytree of points along its leading axis; dense where `mu` has
            mass.
        num_samples: `S`.
    Returns:
        `(S,)` indices into the candidates, in the order chosen: the first `s` are the herded set of size `s`.
    Cost: `R S` kernel evaluations.
    References: Chen, Welling & Smola (2010), UAI.
    """
    checks.shaped("embedding_values", embedding_values, (num_points(candidates),), "per candidate")
    checks.whole("num_samples", num_samples, 1)
    checks.sound("candidates", candidates)
    checks.sound("embedding_values", embedding_values, "Check the kernel and the weights of the embedding.")
    total, chosen = np.zeros(len(embedding_values)), np.empty(num_samples, np.int64)
    for i in range(num_samples):
        chosen[i] = best = np.argmax(embedding_values - total / (i + 1))
        total += np.asarray(kernel.gram(take(candidates, [best]), candidates))[0]
    return chosen
