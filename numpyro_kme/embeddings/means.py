"""Mean embeddings, which stand for distributions: weighted sums of kernel functions, conditional ones, herding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, door, full_precision, in_jax_types, numpy_function, solves
from numpyro_kme.kernels import gram, low_rank
from numpyro_kme.kernels.base import Kernel, PointSet, namespace, num_points, register, take
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.kernels.products import RotationGaussian, RotationTrace, nearest_rotation
from numpyro_kme.kernels.stationary import Gaussian


@register
class MeanEmbedding:
    r"""Embedding `mu = sum_i w_i k(x_i, .)` of a weighted empirical measure in the space of the kernel.

    For `f` in that space `<f, mu> = sum_i w_i f(x_i)`. Weights may be negative, and need not sum to one.

    Args:
        kernel: `k`, symmetric.
        points: `(n, dim)`, or any pytree of points along its leading axis.
        weights: `(n,)`, `w`; `1 / n` each when left out.
    References: Muandet et al. (2017), Kernel mean embedding of distributions, section 3.
    """

    kernel: Kernel
    points: PointSet
    weights: Any = None

    def __post_init__(self):
        n = num_points(self.points)
        checks.require(n >= 1, "`points` must hold at least one point; got none.")
        checks.sound("points", self.points)
        weights = gram.uniform_weights(self.points) if self.weights is None else in_jax_types(self.weights)
        object.__setattr__(self, "weights", weights)
        checks.shaped("weights", self.weights, (n,), "per point")
        checks.sound("weights", self.weights)

    @door
    def __call__(self, t: PointSet) -> Any:
        """Values `mu(t_j) = sum_i w_i k(x_i, t_j)`, `(r,)`, at points `(r, dim)`, in blocks of rows.

        NumPy float64 where embedding and points are arrays of NumPy; JAX otherwise.
        """
        checks.sound("t", t)
        return gram.matvec(self.kernel, t, self.points, self.weights)

    @door
    @full_precision
    def inner(self, other: "MeanEmbedding") -> Any:
        """Inner product `<mu, nu> = sum_ij w_i v_j k(x_i, y_j)` with an embedding by the same kernel, or itself."""
        checks.require(
            len({jax.tree.structure(embedding.kernel) for embedding in (self, other)}) == 1,
            f"Inner products need one kernel for both embeddings; got {self.kernel} and {other.kernel}.",
        )
        return other.weights @ self(other.points)

    @door
    @full_precision
    def expectation(self, values: ArrayLike) -> Any:
        """Expectation `sum_i w_i f(x_i)`, of shape `event`, from values `f(x_i)`, `(n, *event)`.

        Exact as `<f, mu>` for `f` in the space of the kernel; far outside it, a weighted sum with signed
        weights is not to be trusted.
        """
        _require_values("values", values, num_points(self.points))
        return namespace(self.weights, values).tensordot(self.weights, values, axes=1)

    @door
    def mode(self, start: ArrayLike | None = None, *, max_steps: int = 200) -> np.ndarray:
        r"""The mode (pre-image): `x` with the nearest feature, `min_x |k(., x) - mu|`.

        For a Gaussian kernel, by the fixed point
        $x \leftarrow \sum_i w_i k(x_i, x) x_i / \sum_i w_i k(x_i, x)$, kept where the embedding increases; it ends at
        a local maximum of the embedding, the mode of a smooth density. On rotations each step goes to the rotation
        nearest to that mean; for the trace kernel the first is exact.

        The kernel must be `Gaussian`, with points `(n, dim)`, or `RotationTrace` or `RotationGaussian`, with points
        `(n, size, size)`.

        Args:
            start: Such a point; the sample point at which the embedding is largest, when left out.
            max_steps: Largest number of steps.
        Returns:
            `x`, `(dim,)` or `(size, size)`.
        Raises:
            FloatingPointError: If all weights are zero, or a Gaussian embedding is nowhere positive on the sample or at
                `start`.
        References: Mika et al. (1999); Fukumizu, Song & Gretton (2013), section 5.1.
        """
        checks.concrete(embedding=self, start=start)
        checks.whole("max_steps", max_steps, 1)
        points, weights = np.asarray(self.points, np.float64), np.asarray(self.weights, np.float64)
        kernel = self.kernel
        checks.require(
            bool(weights.any()), f"All {len(weights)} weights are zero: the embedding has no mode.", FloatingPointError
        )
        if isinstance(kernel, RotationTrace):
            return nearest_rotation(np.tensordot(weights, points, axes=1))
        if not isinstance(kernel, Gaussian | RotationGaussian):
            raise checks.explained(f"A mode needs a Gaussian kernel, or one on rotations; got {type(kernel).__name__}.")
        scale = np.asarray(kernel.length_scale, np.float64)
        project = nearest_rotation if isinstance(kernel, RotationGaussian) else np.asarray

        def height(x):
            near = np.exp(-0.5 * np.sum(np.square((points - x) / scale), axis=tuple(range(1, points.ndim))))
            return weights @ near, near

        if start is None:
            start = points[int(np.argmax(numpy_function(MeanEmbedding.__call__)(self, points)))]
        x = np.asarray(start, np.float64)
        shape = points.shape[1:]
        checks.require(x.shape == shape, f"`start` must be one point of shape {shape}; got {x.shape}.")
        checks.sound("start", x)
        value, near = height(x)
        checks.require(
            value > 0,
            f"The embedding is {value:.3g} at the start of the search, where it must be positive: its weights, with a "
            f"sum of {weights.sum():.3g}, have no mode there.",
            FloatingPointError,
        )
        for _ in range(max_steps):
            step = np.tensordot(weights * near, points, axes=1) / value - x
            for shorter in (1.0, 0.5, 0.1, 0.01):
                moved = project(x + shorter * step)
                new_value, new_near = height(moved)
                if new_value >= value:
                    break
            else:
                break
            done = np.max(np.abs(moved - x) / scale) < 1e-9
            x, value, near = moved, new_value, new_near
            if done:
                break
        return x


@register
class ConditionalMeanEmbedding:
    r"""Conditional mean embedding: $E[f(X) \mid t] \approx \sum_j v_j(t) f(x_j)$ from simulated pairs $(t_j, x_j)$.

    $v(t) = (G + n \lambda I)^{-1} k(t)$, with $G_{ij} = k(t_i, t_j)$ and $k(t) = (k(t_j, t))_j$: ridge regression with
    outputs in the space of another kernel, equal to the posterior mean of a Gaussian process with covariance `k` and
    noise variance `n lam`. With a low-rank factor $G = U U^\top$, by Woodbury's formula,
    $v(t) = U (U^\top U + n \lambda I)^{-1} \phi(t)$. The weights are signed, do not sum to one, and fade to 0 far from
    the inputs. Make one with `fit`.

    What is learnt is float64, and so is all that follows from arrays of NumPy. Weights in float32 carry an error of
    about `1e-7 / lam`; `expectation` of values that are not traced solves in float64 first and loses less.

    Args:
        right: Features `phi` of inputs, by pivots `P`: `phi(t) = W k(P, t)`.
        left: `W' (U'U + n lam I)^-1 U'`, `(r, n)`: weights are `k(t, P)` times it.
        regularisation: `lam`.
    References: Song et al. (2009), ICML; Grunewalder et al. (2012), ICML.
    """

    right: LowRank
    left: Array
    regularisation: Array

    @classmethod
    @numpy_function
    def fit(
        cls, kernel: Kernel, inputs: PointSet, regularisation: float, *, tolerance: float = low_rank.TOLERANCE
    ) -> "ConditionalMeanEmbedding":
        """Factorise the Gram matrix of the conditions.

        Args:
            kernel: `k`, positive definite, with concrete hyperparameters.
            inputs: `n` points, `(n, dim)` or any pytree of points, concrete.
            regularisation: `lam > 0`; `n^-1/2` is the rate of theory, 1e-3 to 1e-1 the usual range.
            tolerance: Of the factor. A kernel of the user's in JAX has values in the session's precision, and no finer
                factor.
        Raises:
            numpy.linalg.LinAlgError: If `n lam` is below rounding.
        Cost: some `2 n r` kernel evaluations and `n r^2` operations for a factor of rank `r`.
        """
        checks.positive_number("regularisation", regularisation)
        checks.sound("inputs", inputs)
        right = LowRank.fit(kernel, inputs, tolerance=tolerance)
        u = right.values
        left = right.inverse.T @ np.linalg.solve(solves.inner(u, len(u) * regularisation), u.T)
        return cls(right, left, np.asarray(regularisation, np.float64))

    @full_precision
    def weights(self, t: PointSet) -> Any:
        """Weights `v_j(t_i)`, `(s, n)`, at points `(s, dim)`. Cost: `s n r`."""
        checks.sound("t", t)
        return self.right.at_pivots(t) @ self.left

    def expectation(self, values: Array, t: PointSet) -> Any:
        """Estimate `E[f(X) | t_i]`, `(s, *event)`, from values `f(x_j)`, `(n, *event)`."""
        n = self.left.shape[1]
        _require_values("values", values, n)
        checks.sound("t", t)
        values = np.asarray(values) if checks.is_concrete(values) else values
        coefficients = self.left @ values.reshape(n, -1)
        return gram.matvec(self.right.kernel, t, self.right.pivots, coefficients).reshape(-1, *values.shape[1:])


@numpy_function
def herd(kernel: Kernel, embedding_values: Array, candidates: PointSet, num_samples: int) -> np.ndarray:
    r"""Choose super-samples greedily: `theta^(s) = argmax_t mu(t) - (1/s) sum_{i < s} l(theta^(i), t)`.

    For functions in the space of the kernel, averages over the equally weighted samples converge at a rate of about
    `1/S` instead of `S^-1/2`. For functions outside it, such as tail probabilities, they can be worse than averages
    over random draws. A candidate can be chosen more than once. `mu` may embed a signed measure.

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


def _require_values(name, values, n):
    checks.real(name, values)
    shape = jnp.shape(values)
    checks.require(shape[:1] == (n,), f"`{name}` must have {n} rows, one per point; got shape {shape}.")
    checks.sound(name, values)
