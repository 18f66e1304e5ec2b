"""Which form of the surrogate is used where none is asked for."""

from numpyro_kme._core import checks
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.residual.form import MIN_SIMULATIONS, ResidualKernelMeans


def default_form(num_simulations: int) -> Form:
    """The residual form, which measures better on vectors of statistics; the published form for a handful of simulations.

    Above 20,000 simulations, too, the published form, which has a low-rank solve.
    """
    dense = MIN_SIMULATIONS <= num_simulations <= checks.MOST_SIMULATIONS
    return ResidualKernelMeans() if dense else KernelMeans()
