"""Which form of the surrogate is used where none is asked for."""

from numpyro_kme._core import checks
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.residual.form import MIN_SIMULATIONS, ResidualKernelMeans


def default_form(num_simulations: int) -> Form:
    """`ResidualKernelMeans`, which measures better on vectors of statistics; `KernelMeans` for few simulations.

    Above 20,000 simulations, too, `KernelMeans`, which has a low-rank solve.
    """
    dense = MIN_SIMULATIONS <= num_simulations <= checks.MOST_SIMULATIONS
    return ResidualKernelMeans() if dense else KernelMeans()
