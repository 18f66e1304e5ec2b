r"""Leave-one-out quantities for all simulations at once, in closed form, and the objectives that the learner maximises.

With `B = (L + m lam I)^-1` and `G_ki = kappa(x_i, x_k)`, column `i` holding the data kernel at the observation `x_i`,
the surrogate built without simulation `j` predicts at `z_j` the value `-sum_{k != j} B_jk G_ki / B_jj`
(`m lam` keeps its full-sample value). Everything below is invariant to the scale of the data kernel, because each
column of `G` is divided by its mean, the kernel density estimate of `p(x_i)` from the other simulations.

Objectives are NumPy and have their derivatives written out, backwards from the value.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from numpyro_kme._core import Array, checks, frozen, host, numpy_function
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.base import log_positive_part, positive_part
from numpyro_kme.likelihoods.descent import ravel, unravel
from numpyro_kme.likelihoods.extrapolation import without_diagonal
from numpyro_kme.likelihoods.published.learning import Hyperparameters, Learner, LearningObjective, TrainingSet
from numpyro_kme.likelihoods.published.solves import cholesky_solve, factorised, inverted, regularised


@numpy_function
def log_kernels(kernel: Kernel, x: Any, y: Any = None) -> np.ndarray:
    """Log kernels `(n, m)` of concrete points, float64; a kernel of a user's runs in the session's precision."""
    return np.asarray(kernel.log_gram(x, y), np.float64)


def log_integral(kernel: Kernel, data: Any) -> Any:
    """Log of the integral of a data kernel over the observation; `None` where it is not a density over such data."""
    try:
        found = kernel.log_integral(int(np.prod(np.shape(jax.tree.leaves(data)[-1])[1:])))
    except ValueError:
        return None
    return np.asarray(found, np.float64) if checks.is_concrete(found) else found


def relative_kernels(log_gram: np.ndarray) -> np.ndarray:
    """`G` with a zero diagonal, and columns divided by their means over the others, `(m, m)`, from its logarithm."""
    return (len(log_gram) - 1.0) * special.softmax(without_diagonal(log_gram), axis=0)


def density_ratios(inverse: np.ndarray, gram: np.ndarray) -> tuple[np.ndarray, Callable]:
    r"""Held-out estimates `R_ji` of `p(x_i | z_j) / p(x_i) = p(z_j | x_i) / p(z_j)`, `(m, m)`.

    Entry `(j, i)` uses neither simulation `j` nor simulation `i`. With `U = B G` (zero diagonal in `G`), taking two
    rows out of a ridge regression gives `R_ji = G_ji - (B_ii U_ji - B_ji U_ii) / (B_jj B_ii - B_ji^2)`, and taking one
    out `R_ii = -U_ii / B_ii`. Estimates of either sign.

    Args:
        inverse: `B`, `(m, m)`.
        gram: `G`, `(m, m)`, as in `relative_kernels`.
    Returns:
        `R`, and the function of derivatives by `R` that gives those by `B` and `G`.
    Cost: one matrix product, and two for derivatives.
    """
    own, product, every = np.diagonal(inverse), inverse @ gram, np.arange(len(gram))
    single = np.diagonal(product)
    determinant = own[:, None] * own - np.square(inverse)
    determinant[every, every] = 1.0
    taken = (product * own - inverse * single) / determinant
    ratios = gram - taken
    ratios[every, every] = -single / own

    def backwards(by_ratios):
        by_single, by_gram = -by_ratios[every, every] / own, by_ratios.copy()
        by_gram[every, every] = 0.0
        by_product = -by_gram / determinant
        by_determinant = -by_product * taken
        by_inverse = -by_product * single - 2.0 * by_determinant * inverse
        by_own = by_single * ratios[every, every] + by_determinant @ own + own @ by_determinant
        by_own += np.sum(by_product * product, axis=0)
        by_single -= np.sum(by_product * inverse, axis=0)
        by_product *= own
        by_product[every, every] = by_single
        by_inverse += by_product @ gram.T
        by_inverse[every, every] += by_own
        return by_inverse, by_gram + inverse @ by_product

    return ratios, backwards


def posterior_scores(ratios: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Held-out log posterior density of each `z_i` given `x_i`, relative to the simulated parameters, `(m,)`, and the
    derivatives of its mean by the ratios, `(m, m)`.

    `log((1 - w) R_ii^+ / mean_j R_ji^+ + w)`: the positive part of the signed posterior, normalised over the
    simulations, in a defensive mixture with the prior of weight `w`. 0 for a surrogate that has learnt nothing, at most
    about `log m`.
    """
    means, every = np.mean(np.maximum(ratios, 0.0), axis=0), np.arange(len(ratios))
    bounded = np.maximum(means, floor)
    own = ratios[every, every] / bounded
    part = positive_part(own, floor, np)
    density = (1.0 - floor) * part + floor
    by_own = (1.0 - floor) * part / density / np.hypot(own, floor) / len(own)
    by_ratios = (ratios > 0.0) * np.where(means > floor, -by_own * own / bounded, 0.0) / len(own)
    by_ratios[every, every] += by_own / bounded
    return np.log(density), by_ratios


def by_length_scales(kernel: Gaussian, by_logs: np.ndarray, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """Derivatives by the logarithms of the length scales of a Gaussian kernel, `(1,)` or `(dim,)`, from those by
    `log k(x_i, y_j)`, `(n, m)`."""
    x, y = (points / kernel.length_scale for points in (x, x if y is None else y))
    found = by_logs.sum(axis=1) @ np.square(x) + by_logs.sum(axis=0) @ np.square(y) - 2.0 * np.sum(x * (by_logs @ y), 0)
    return found if np.size(kernel.length_scale) == len(found) else found.sum(keepdims=True)


def by_data_kernel(kernel: Kernel, by_logs: np.ndarray, by_norm: float, data: Any, y: Any = None) -> np.ndarray:
    """Derivatives by the logarithms of all hyperparameters of a data kernel, from those by the log kernels of `data`,
    or of `y` and `data`, and by `log_integral`; by JAX where the kernel is not Gaussian."""
    if type(kernel) is Gaussian and isinstance(data, np.ndarray):
        norm = by_norm * data.shape[1] / np.size(kernel.length_scale)
        return norm + by_length_scales(kernel, by_logs, *((data,) if y is None else (y, data)))
    points = (data,) if y is None else (y, data)
    return np.asarray(_by_hyperparameters(np.log(ravel(kernel)), kernel, by_logs, by_norm, points), np.float64)


@numpy_function
@jax.jit
@jax.grad
def _by_hyperparameters(logs, like, by_logs, by_norm, points):
    kernel = unravel(jnp.exp(logs), like)
    norm = log_integral(kernel, points[-1])
    return jnp.sum(by_logs * kernel.log_gram(*points)) + (0.0 if norm is None else by_norm * norm)


@register
class Summary:
    """Held-out quantities of a fit in a few numbers.

    Attributes:
        score: Mean held-out log posterior density of the simulated parameters relative to all of them, in nats.
        negative_proportion: Proportion of the negative part in the integral of the absolute held-out posteriors.
        log_nearest_quantile: How far simulations lie from each other: the first percentile, over simulations, of the
            log data kernel at the nearest other one, relative to itself.
    """

    score: Any
    negative_proportion: Any
    log_nearest_quantile: Any


@host.one_blas_thread
def summarise(hyper: Hyperparameters, z: Array, data: Any) -> Summary:
    """The summary of a fit; one factorisation of about as many simulations, at most, as `Learner` learns from."""
    training = TrainingSet(np.asarray(z), data).random_subset(Learner.most)
    lam = hyper.regularisation * len(z) / len(training.z)  # the noise variance `m lam` stays
    inverse = inverted(factorised(regularised(hyper.parameter_kernel, training.z, lam)))
    log_gram = log_kernels(hyper.data_kernel, training.data)
    with np.errstate(all="ignore"):
        ratios, _ = density_ratios(inverse, relative_kernels(log_gram.T))
        score = np.mean(posterior_scores(ratios, LeaveOneOut.floor)[0])
        negative = np.sum(np.maximum(-ratios, 0.0)) / np.sum(np.abs(ratios))
        nearest = np.max(without_diagonal(log_gram), axis=1) - np.diagonal(log_gram)
        return Summary(score, negative, np.quantile(nearest, 0.01))


@frozen
class LeaveOneOut(LearningObjective):
    r"""Held-out log posterior density of each simulation's parameters, in closed form: the default.

        mean_i log [ (1-w) q_{-i}(x_i | z_i)^+ / mean_j q_{-i}(x_i | z_j)^+ + w ]

    asks that the positive part of the posterior given `x_i`, learnt without simulation `i`, is high at `z_i` relative
    to the other simulated parameters. `^+` is a smooth positive part; the average in the denominator keeps negative
    parts from being rewarded. It is invariant to the scale of the data kernel, so every data kernel will do, and a
    statistic that says nothing about the parameters gets a wide `eps`.

    Args:
        floor: `w`, the weight of the prior in a defensive mixture, which bounds the loss of a single simulation, and
            where the smooth positive part levels off, so that gradients pull negative predictions up.
    Cost: a gradient is one Cholesky factorisation, one inverse and five matrix products of size `m`.
    """

    floor: float = 0.02

    def __post_init__(self):
        checks.require(0.0 < self.floor < 1.0, f"`floor` must be between 0 and 1; got {self.floor}.")

    def value_and_gradient(self, hyper, training):
        """The mean score, and its derivatives."""
        kernel, z, added = hyper.parameter_kernel, training.z, len(training.z) * hyper.regularisation
        matrix = regularised(kernel, z, hyper.regularisation)
        inverse = inverted(factorised(matrix))
        gram = relative_kernels(log_kernels(hyper.data_kernel, training.data).T)
        with np.errstate(all="ignore"):
            ratios, backwards = density_ratios(inverse, gram)
            scores, by_ratios = posterior_scores(ratios, self.floor)
            by_inverse, by_gram = backwards(by_ratios)
            by_log_gram = gram * (by_gram - np.sum(gram * by_gram, axis=0) / (len(z) - 1.0))
        by_matrix = -inverse @ by_inverse @ inverse
        of_parameters = by_length_scales(kernel, by_matrix * matrix, z)
        of_data = by_data_kernel(hyper.data_kernel, by_log_gram.T, 0.0, training.data)
        return np.mean(scores), np.concatenate([of_parameters, of_data, [added * np.trace(by_matrix)]])


@frozen
class MarginalLikelihood(LearningObjective):
    r"""The objective of the paper: the marginal kernel means likelihood `log q(y) = log int q(y | z) p(dz)`.

    Over all hyperparameters it over-fits with few simulations: the maximum can be a spike (`eps` near the distance to
    the nearest simulation, tiny `beta`) and usually sits at a bound. The papers maximise it over two,
    `Learner(tied=Tied())`. Kept for comparison; prefer `LeaveOneOut`. No priors are added. Needs the observation and
    the measure.

    Cost: a gradient is one Cholesky factorisation and two solves of size `m`.
    References: Hsu & Ramos (2019), AISTATS.
    """

    uses_priors = False

    def value_and_gradient(self, hyper, training):
        """`log q(y)`, on the scale of one observation, and its derivatives."""
        kernel, data_kernel, z = hyper.parameter_kernel, hyper.data_kernel, training.z
        log_norm = log_integral(data_kernel, training.data)
        given = training.y is not None and training.measure is not None and log_norm is not None
        checks.require(given, "MarginalLikelihood needs `y=`, `measure=` and a data kernel that is a density.")
        matrix = regularised(kernel, z, hyper.regularisation)
        log_kappa = log_kernels(data_kernel, training.y, training.data)
        largest = np.max(log_kappa)
        measure: Any = training.measure

        def embed(length_scale):
            return measure.mean_embedding(Gaussian(length_scale), z)

        kappa, embedding = np.exp(log_kappa[0] - largest), embed(kernel.length_scale)
        weights, dual = cholesky_solve(factorised(matrix), np.stack([kappa, embedding], axis=1)).T
        marginal = weights @ embedding
        # marginals below `exp(-18)` of the largest data kernel value count as not positive
        value = log_positive_part(marginal, -18.0) + largest - log_norm
        by_marginal, scales, step = 1.0 / np.hypot(marginal, np.exp(-18.0)), kernel.length_scale, 1e-5
        ends = ([embed(scales * np.exp(s * one)) for s in (-step, step)] for one in np.eye(len(scales)))
        of_embedding = [weights @ (high - low) / (2.0 * step) for low, high in ends]
        of_parameters = of_embedding + by_length_scales(kernel, np.outer(-dual, weights) * matrix, z)
        by_logs = by_marginal * (dual * kappa)[None]
        of_data = by_data_kernel(data_kernel, by_logs, -1.0, training.data, training.y)
        of_lam = -len(z) * hyper.regularisation * (dual @ weights)
        return value, np.concatenate([by_marginal * of_parameters, of_data, [by_marginal * of_lam]])
