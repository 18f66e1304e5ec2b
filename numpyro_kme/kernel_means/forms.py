"""Which form of the surrogate is used where none is asked for."""

from numpyro_kme import _checks
from numpyro_kme.kernel_means.base import Form
from numpyro_kme.kernel_means.published import KernelMeans
from numpyro_kme.kernel_means.residual import MIN_SIMULATIONS, ResidualKernelMeans


def default_form(num_simulations: int) -> Form:
    """The residual form, which measures better on vectors of statistics; the published form for a handful of simulations.

    Above 20,000 simulations, too, the published form, which has a low-rank solve.
    """
    dense = MIN_SIMULATIONS <= num_simulations <= _checks.MOST_SIMULATIONS
    return ResidualKernelMeans() if dense else KernelMeans()
