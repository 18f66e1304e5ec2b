"""The mathematics of the posterior bootstrap: random weights, minimisation, and checks of both."""

from numpyro_kme.bootstrap.fit import Fit, fit
from numpyro_kme.bootstrap.newton import Control, Minimum, minimise
from numpyro_kme.bootstrap.replicates import Quadrature, Replicates, posterior_bootstrap
from numpyro_kme.bootstrap.settings import Settings
from numpyro_kme.bootstrap.weights import DirichletProcess, Reweightings

__all__ = [
    "Control",
    "DirichletProcess",
    "Fit",
    "Minimum",
    "Quadrature",
    "Replicates",
    "Reweightings",
    "Settings",
    "fit",
    "minimise",
    "posterior_bootstrap",
]
