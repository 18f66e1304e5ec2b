"""What the learner maximises: leave-one-out densities of the simulations, or the published marginal likelihood."""

import abc
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme import _checks
from numpyro_kme.kernel_means import adjoint, scores
from numpyro_kme.kernel_means.signed import log_positive_part
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.measures import Measure


@register
class Hyperparameters:
    """Everything the published form learns.

    Args:
        parameter_kernel: `l` on coordinates, length scales `beta` `(D,)`.
        data_kernel: `k` on standardised statistics (length scales `eps`), or on whatever the data are.
        regularisation: `lam`, for `(L + m lam I)^-1`.
    """

    parameter_kernel: Gaussian
    data_kernel: Kernel
    regularisation: ArrayLike


@register
class Bank:
    """Simulations as the kernels see them.

    Args:
        z: Coordinates, `(m, D)`.
        data: `m` data points: standardised statistics `(m, n)`, or a pytree that the data kernel understands.
        log_broad: `log p_0(x_j)` of a density much wider than the data, `(m,)`; `None` where the data have no density.
        measure: The prior in coordinates; only for objectives that need it.
        y: A bank with the observation alone; only for objectives that need it.
    """

    z: ArrayLike
    data: Any
    log_broad: ArrayLike | None = None
    measure: Measure | None = None
    y: Any = None


class Objective(abc.ABC):
    """A function of the hyperparameters to maximise, per simulation."""

    @abc.abstractmethod
    def value(self, hyper: Hyperparameters, bank: Bank) -> jax.Array:
        """The objective; NaN where a factorisation fails."""

    @abc.abstractmethod
    def check(self, bank: Bank) -> None:
        """Raise where the bank lacks something this objective needs."""

    @property
    @abc.abstractmethod
    def uses_priors(self) -> bool:
        """Whether the learner adds its weak priors on the logarithms of the hyperparameters."""


@dataclass(frozen=True)
class LeaveOneOut(Objective):
    r"""Held-out log densities of the simulations, in closed form: the default.

        mean_j  log [ (1-w) q_{-j}(x_j | z_j)^+ / N_j + w p_0(x_j) ]  +  log [ (1-w) q_{-j}(z_j | x_j)^+ + w ]

    The first part is the predictive density of each simulation, the second its posterior density relative to the bank's
    parameters; `^+` is a smooth positive part, normalised so that negative parts are not rewarded. Together they
    ask for a surrogate whose positive part predicts, and whose posterior is sharp and right: a statistic that says
    nothing about the parameters gets a wide `eps`.

    Args:
        predictive: Include the first part. It needs a data kernel that is a density in `y`, and is left out where
            there is none (`EmpiricalMeasure`).
        posterior: Include the second part.
        floor: `w`, the share of the broad density and of the prior.
    Cost: a gradient is one Cholesky factorisation, one inverse and five matrix products of size `m`.
    """

    predictive: bool = True
    posterior: bool = True
    floor: float = 0.02

    def __post_init__(self):
        _checks.require(
            self.predictive or self.posterior, "LeaveOneOut needs `predictive`, `posterior` or both to be true."
        )
        _checks.require(0.0 < self.floor < 1.0, f"`floor` must be between 0 and 1; got {self.floor}.")

    def value(self, hyper, bank):
        """Mean held-out score."""
        ratios, log_marginal = held_out(hyper, bank)
        total = jnp.zeros(())
        if self.posterior or bank.log_broad is None:
            total += jnp.mean(scores.posterior_scores(ratios, self.floor))
        if self.predictive and bank.log_broad is not None:
            log_marginal = log_marginal - hyper.data_kernel.log_integral(num_statistics(bank.data))
            total += jnp.mean(scores.predictive_scores(ratios, log_marginal, bank.log_broad, self.floor))
        return total

    def check(self, bank):
        """Nothing else is needed."""

    @property
    def uses_priors(self):
        """Yes."""
        return True


@dataclass(frozen=True)
class MarginalLikelihood(Objective):
    r"""The published objective: the marginal kernel means likelihood `log q(y) = log int q(y | z) p(dz)`.

    It over-fits with few simulations: the maximum can be a spike (`eps` near the distance to the nearest simulation, tiny
    `beta`) and usually sits at a bound. Kept for comparison; prefer `LeaveOneOut`. No priors are added. Needs the
    observation and the measure.

    Cost: a gradient is one Cholesky factorisation and two solves of size `m`.
    References: Hsu & Ramos (2019), AISTATS.
    """

    def value(self, hyper, bank):
        """`log q(y)`, on the scale of one observation."""
        kernel = hyper.parameter_kernel
        log_kappa = hyper.data_kernel.log_gram(bank.y, bank.data)[0]
        largest = jax.lax.stop_gradient(jnp.max(log_kappa))
        weights = adjoint.solve(regularised(hyper, bank.z), jnp.exp(log_kappa - largest))
        marginal = weights @ bank.measure.mean_embedding(kernel, bank.z)
        log_integral = hyper.data_kernel.log_integral(num_statistics(bank.data))
        return log_positive_part(marginal, LOG_SMALLEST) + largest - log_integral

    def check(self, bank):
        """Require the observation, the measure and a density."""
        _checks.require(
            bank.y is not None and bank.measure is not None and bank.log_broad is not None,
            "MarginalLikelihood needs `y=` (the observation) and `measure=` (the prior in coordinates) in `fit`, and a data "
            "kernel that is a density. Pass both, or learn by LeaveOneOut().",
        )

    @property
    def uses_priors(self):
        """No."""
        return False


LOG_SMALLEST = -18.0
"""Marginals below `exp(-18)` of the largest data kernel value count as not positive."""


def regularised(hyper: Hyperparameters, z: ArrayLike) -> jax.Array:
    """`L + m lam I`, `(m, m)`."""
    gram = hyper.parameter_kernel.gram(jnp.asarray(z))
    return gram + len(gram) * hyper.regularisation * jnp.eye(len(gram), dtype=gram.dtype)


def held_out(hyper: Hyperparameters, bank: Bank) -> tuple[jax.Array, jax.Array]:
    """Held-out density ratios `(m, m)` and log marginals `(m,)` of `kappa` as it is, not normalised."""
    inverse_gram = adjoint.inverse(regularised(hyper, bank.z))
    log_gram = hyper.data_kernel.log_gram(bank.data).T
    return scores.density_ratios(inverse_gram, log_gram), scores.leave_one_out_log_marginal(log_gram)


def num_statistics(data: Any) -> int:
    """Dimension of one data point, for the normalising constant of a data kernel."""
    return int(np.prod(jnp.shape(jax.tree.leaves(data)[-1])[1:]))
