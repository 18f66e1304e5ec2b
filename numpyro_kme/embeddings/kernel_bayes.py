"""Kernel Bayes' rule: embeddings of posteriors from a joint sample and an embedded prior, without any density."""

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from numpyro_kme._core import Array, checks, numpy_function, solves
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding, MeanEmbedding
from numpyro_kme.kernels import low_rank
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, register
from numpyro_kme.kernels.low_rank import LowRank


@numpy_function
def kernel_sum_rule(
    kernel_y: Kernel,
    prior: MeanEmbedding,
    x: PointSet,
    y: PointSet,
    regularisation: float,
    *,
    tolerance: float = low_rank.TOLERANCE,
) -> MeanEmbedding:
    r"""Embed the marginal of `Y` when `X` has another distribution: $\hat m_Y = \sum_i \mu_i k_Y(\cdot, Y_i)$.

    $\mu = (G_X + n \varepsilon I)^{-1} \hat m$, $\hat m_i = \sum_j \gamma_j k_X(X_i, U_j)$.

    Args:
        kernel_y: Kernel of the result.
        prior: $\sum_j \gamma_j k_X(\cdot, U_j)$; weights of any sign.
        x, y: Joint sample, `n` points each.
        regularisation: `eps`.
        tolerance: Of the low-rank factor of `G_X`.
    Raises:
        RuntimeError: If all weights are zero.
    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 3.
    """
    return _found(kernel_y, y, _reweighted(prior, x, y, regularisation, tolerance))


@numpy_function
def conditional_embedding(
    kernel_x: Kernel,
    kernel_y: Kernel,
    x: PointSet,
    y: PointSet,
    observed: PointSet,
    regularisation: float,
    *,
    tolerance: float = low_rank.TOLERANCE,
) -> MeanEmbedding:
    r"""Embed the distribution of `X` given `Y = y`: $\sum_i v_i k_X(\cdot, X_i)$.

    $v = (G_Y + n \varepsilon I)^{-1} k_Y(y)$.

    For many observations, `ConditionalMeanEmbedding` factorises once.

    Args:
        kernel_x: Kernel of the result.
        kernel_y: Kernel on observations.
        x, y: Joint sample, `n` points each.
        observed: `y`, one point with a leading axis.
        regularisation: `eps`; `0.01 / sqrt(n)` in the experiments of the paper.
        tolerance: Of the low-rank factor of `G_Y`.
    Raises:
        RuntimeError: If all weights are zero.
    References: Song et al. (2009), ICML.
    """
    num_pairs(x, y)
    fitted = ConditionalMeanEmbedding.fit(kernel_y, y, regularisation, tolerance=tolerance)
    return _found(kernel_x, x, fitted.weights(_one(observed))[0])


@register
class KernelBayesRule:
    r"""The kernel Bayes' rule: posterior embeddings $\sum_i \rho_i k_X(\cdot, X_i)$, $\rho = R\, k_Y(y)$, for any `y`.

    With $\mu = (G_X + n \varepsilon I)^{-1} \hat m$, $\Lambda = \mathrm{diag}(\mu)$ and $G_Y = U U^\top$,

    $$ R = \Lambda G_Y \big((\Lambda G_Y)^2 + \delta I\big)^{-1} \Lambda
         = \Lambda U \big(C^2 + \delta I\big)^{-1} U^\top \Lambda, \qquad C = U^\top \Lambda U. $$

    The second form is symmetric, needs one factorisation of the size of the rank, and is exact for any factor `U`.
    Weights are signed and do not sum to one exactly. Make one with `fit`.

    Args:
        kernel_x: Kernel on what is inferred.
        x: Its sample, `n` points.
        right: Features of the observations, with the low-rank factor of `G_Y`.
        left: `Lambda U (C^2 + delta I)^-1 U' Lambda U`, `(n, r)`: weights are `left` times the features of `y`.
        prior_weights: `mu`, `(n,)`.
        regularisation: `eps` and `delta`, `(2,)`.
    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 4. (Its equation 11 prints `mu` n times larger than
    its filter.)
    """

    paper = "fukumizu2013kernel"

    kernel_x: Kernel
    x: PointSet
    right: LowRank
    left: Array
    prior_weights: Array
    regularisation: Array

    @classmethod
    @numpy_function
    def fit(
        cls,
        kernel_y: Kernel,
        x: PointSet,
        y: PointSet,
        prior: MeanEmbedding,
        regularisation: float,
        *,
        delta: float | None = None,
        tolerance: float = low_rank.TOLERANCE,
    ) -> "KernelBayesRule":
        """Factorise what serves every observation.

        Args:
            kernel_y: Kernel on observations.
            x, y: Joint sample, `n` points each, from any prior.
            prior: Embedding of the prior, whose kernel is that on `x`.
            regularisation: `eps`; `0.01 / n` in the paper.
            delta: `2 eps` when left out.
            tolerance: Of the low-rank factors of both Gram matrices.
        Cost: `n r^2`.
        """
        mu = _reweighted(prior, x, y, regularisation, tolerance)
        delta = 2.0 * regularisation if delta is None else delta
        checks.positive_number("delta", delta)
        right = LowRank.fit(kernel_y, y, tolerance=tolerance)
        left = posterior_weights(mu, right.values, delta, np.eye(right.rank))
        return cls(prior.kernel, x, right, left, mu, np.array([regularisation, delta]))

    def weights(self, y: PointSet) -> np.ndarray:
        """Weights `rho` at many observations, `(s, n)`. Cost: `s n r`."""
        checks.sound("y", y)
        return self.right.features(y) @ np.asarray(self.left).T

    def posterior(self, y: PointSet) -> MeanEmbedding:
        """Embedding of the posterior at one observation, given with a leading axis.

        Raises:
            RuntimeError: If all weights are zero.
        """
        return _found(self.kernel_x, self.x, self.weights(_one(y))[0])


def posterior_weights(mu: Array, factor: Array, delta: Any, phi: Array) -> np.ndarray:
    """The weights `R k_Y(y) = Lambda U (C^2 + delta I)^-1 C phi`, `(n,)` or `(n, s)`, for features `phi` of `y`.

    `C` is symmetric, so that `(C^2 + delta I)^-1 C phi` is a least-squares solution, of `C x = phi` and
    `delta^(1/2) x = 0`. By a QR factorisation, which nothing is too small for.

    Args:
        mu: Diagonal of `Lambda`, `(n,)`.
        factor: `U`, `(n, r)`, so that `k_Y(y) = U phi`.
        delta: Positive.
        phi: `(r,)`, or `(r, s)` for many observations; the identity gives `R U`.
    """
    scaled = mu[:, None] * factor
    core = factor.T @ scaled
    basis, root = np.linalg.qr(np.concatenate([core, np.sqrt(delta) * np.eye(len(core))]))
    return scaled @ solve_triangular(root, basis[: len(core)].T @ phi, check_finite=False)


def _reweighted(prior: MeanEmbedding, x: PointSet, y: PointSet, regularisation: float, tolerance: float) -> np.ndarray:
    """Weights `mu = (G_X + n eps I)^-1 m` of the joint sample under another distribution of `X`, `(n,)`."""
    n = num_pairs(x, y)
    checks.instance("prior", prior, MeanEmbedding, "an embedding, such as MeanEmbedding(kernel, draws)")
    checks.positive_number("regularisation", regularisation)
    factor = LowRank.fit(prior.kernel, x, tolerance=tolerance)
    return solves.ridge(factor.values, n * regularisation, prior(x))


def _one(y: PointSet) -> PointSet:
    checks.require(num_points(y) == 1, f"`y` must hold one observation, with a leading axis; it holds {num_points(y)}.")
    checks.sound("y", y)
    return y


def _found(kernel: Kernel, points: PointSet, weights: np.ndarray) -> MeanEmbedding:
    checks.require(
        bool(weights.any()),
        f"All {len(weights)} weights are zero: the observation or the prior lies far from the joint sample, or kernels "
        "are too narrow.",
        checks.EffectiveSampleSizeError,
    )
    return MeanEmbedding(kernel, points, weights)


def num_pairs(x: PointSet, y: PointSet) -> int:
    """Number of points of a joint sample."""
    n = num_points(x)
    checks.require(n >= 1, "`x` and `y` must hold at least one point each; got none.")
    checks.require(num_points(y) == n, f"`x` and `y` must hold as many points each; got {n} and {num_points(y)}.")
    return n
