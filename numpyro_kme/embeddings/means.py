"""Mean embeddings: weighted sums of kernel functions that stand for distributions."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.linalg import cho_solve

from numpyro_kme._core import checks, solves
from numpyro_kme._core.host import on_host
from numpyro_kme.kernels import blocks
from numpyro_kme.kernels.base import Kernel, Points, num_points, register


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
    points: Points
    weights: ArrayLike | None = None

    def __post_init__(self):
        n = num_points(self.points)
        checks.require(n >= 1, "`points` must hold at least one point; got none.")
        checks.sound("points", self.points)
        if self.weights is None:
            object.__setattr__(self, "weights", blocks.uniform_weights(self.points))
        elif not isinstance(self.weights, jax.Array):
            object.__setattr__(self, "weights", np.asarray(self.weights))
        checks.require(
            jnp.shape(self.weights) == (n,),
            f"`weights` must have shape ({n},), one per point; got {jnp.shape(self.weights)}.",
        )
        checks.sound("weights", self.weights)

    def __call__(self, t: Points) -> jax.Array:
        """Values `mu(t_j) = sum_i w_i k(x_i, t_j)`, `(r,)`, at points `(r, dim)`, in blocks of rows."""
        checks.sound("t", t)
        return blocks.matvec(self.kernel, t, self.points, jnp.asarray(self.weights))

    def inner(self, other: "MeanEmbedding") -> jax.Array:
        """Inner product `<mu, nu> = sum_ij w_i v_j k(x_i, y_j)` with an embedding by the same kernel."""
        self._require_same_space(other)
        weights = jnp.asarray(self.weights), jnp.asarray(other.weights)
        return blocks.weighted_sum(self.kernel, self.points, weights[0], other.points, weights[1])

    def squared_norm(self) -> jax.Array:
        """Squared norm `|mu|^2 = sum_ij w_i w_j k(x_i, x_j)`."""
        return blocks.weighted_self_sum(self.kernel, self.points, jnp.asarray(self.weights))

    def squared_distance(self, other: "MeanEmbedding") -> jax.Array:
        """Squared distance `|mu - nu|^2`: for weights that sum to one, the squared MMD of two measures.

        Raises:
            RuntimeError: If it is negative by more than rounding: the kernel is not positive definite.
        """
        norms, cross = self.squared_norm() + other.squared_norm(), 2.0 * self.inner(other)
        checks.v_statistic("The squared distance", norms - cross, jnp.abs(norms) + jnp.abs(cross))
        return norms - cross

    def expectation(self, values: ArrayLike) -> jax.Array:
        """Expectation `sum_i w_i f(x_i)`, of shape `event`, from values `f(x_i)`, `(n, *event)`.

        Exact as `<f, mu>` for `f` in the space of the kernel; far outside it, a weighted sum with signed
        weights is not to be trusted.
        """
        _require_values("values", values, num_points(self.points))
        return jnp.tensordot(jnp.asarray(self.weights), jnp.asarray(values), axes=1)

    def _require_same_space(self, other):
        checks.require(
            jax.tree.structure(self.kernel) == jax.tree.structure(other.kernel),
            f"Inner products need one kernel for both embeddings; got {self.kernel} and {other.kernel}.",
        )


@register
class ConditionalMeanEmbedding:
    r"""Conditional mean embedding: `E[f(X) | theta]` as a weighted sum of `f(x_j)` over simulated pairs.

    `E[f(X) | theta] ~ sum_j a_j(theta) f(x_j)`, `a(theta) = (L + m lam I)^-1 l(theta)`, with
    `L_ij = l(theta_i, theta_j)` and `l(theta) = (l(theta_j, theta))_j`: ridge regression with outputs in the
    space of another kernel, equal to the posterior mean of a Gaussian process with covariance `l` and noise
    variance `m lam`. The weights are signed, do not sum to one, and fade to 0 far from the inputs. Make one
    with `fit`.

    The factor is computed in float64. Weights in float32 carry an error of about `1e-7 / lam`; `expectation`
    of concrete values solves in float64 first and loses less.

    References: Song et al. (2009), ICML; Grunewalder et al. (2012), ICML.
    """

    kernel: Kernel
    inputs: Points
    factor: ArrayLike
    regularisation: ArrayLike

    @classmethod
    @on_host
    def fit(cls, inputs: Points, kernel: Kernel, regularisation: float) -> "ConditionalMeanEmbedding":
        """Factorise `L + m lam I` on the host, in float64.

        Args:
            inputs: `(m, dim)`, `theta_j`, concrete.
            kernel: `l`, positive definite, with concrete hyperparameters.
            regularisation: `lam > 0`; `m^-1/2` is the rate of theory, 1e-3 to 1e-1 the usual range.
        Raises:
            numpy.linalg.LinAlgError: If the matrix is not positive definite to working precision.
        Cost: `m^2` kernel evaluations and one Cholesky factorisation, `m^3 / 3`.
        """
        checks.positive_number("regularisation", regularisation)
        checks.sound("inputs", inputs)
        kernel, inputs = jax.tree.map(np.asarray, (kernel, inputs))
        m = num_points(inputs)
        gram = np.asarray(kernel.gram(inputs), dtype=np.float64)
        gram = gram + m * float(regularisation) * np.eye(m)
        factor = solves.cholesky(gram, f"L + m lam I with m = {m} and lam = {regularisation}")
        return cls(kernel, inputs, factor, np.float64(regularisation))

    def weights(self, theta: Points) -> jax.Array:
        """Weights `a_j(theta_i)`, `(r, m)`, for parameters `(r, dim)`. Cost: `r m^2`."""
        checks.sound("theta", theta)
        return solves.cho_solve(self.factor, self.kernel.gram(self.inputs, theta)).T

    def expectation(self, values: ArrayLike, theta: Points) -> jax.Array:
        """Estimate `E[f(X) | theta_i]`, `(r, *event)`, from values `f(x_j)`, `(m, *event)`."""
        m = num_points(self.inputs)
        _require_values("values", values, m)
        checks.sound("theta", theta)
        values = np.asarray(values) if checks.is_concrete(values) else jnp.asarray(values)
        coefficients = jnp.asarray(self._coefficients(values.reshape(m, -1)))
        return blocks.matvec(self.kernel, theta, self.inputs, coefficients).reshape(-1, *values.shape[1:])

    def _coefficients(self, columns):
        """`(L + m lam I)^-1 f`, on the host in float64 where the values are not traced."""
        if not checks.is_concrete((self.factor, columns)):
            return solves.cho_solve(self.factor, columns)
        return cho_solve((self.factor, True), columns)


def _require_values(name, values, n):
    shape = jnp.shape(values)
    checks.require(
        len(shape) > 0 and shape[0] == n,
        f"`{name}` must have {n} rows, one per point; got shape {shape}.",
    )
    checks.sound(name, values)
