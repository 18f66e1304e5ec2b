"""Learn a likelihood from a table of simulations."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import in_jax_types
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import take
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.kernel_statistics import KernelStatistics
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.residual.form import MIN_SIMULATIONS, ResidualKernelMeans
from numpyro_kme.likelihoods.summaries.base import OfStatistics
from numpyro_kme.likelihoods.transformed import Recorded
from numpyro_kme.models.coordinates import Coordinates


def fit_likelihood(
    theta: ArrayLike,
    x: ArrayLike,
    *,
    form: Form | None = None,
    coordinates: Coordinates | None = None,
    measure: Measure | None = None,
    y: ArrayLike | None = None,
    names: Sequence[str] = (),
) -> FittedLikelihood:
    """Learn a simulator's likelihood from any table of its arguments and outputs.

    Args:
        theta: `(m, p)` arguments, from any proposal: they need not be draws from the prior.
        x: `(m, *event)` outputs.
        form: Form and settings of the surrogate; `ResidualKernelMeans()` when left out, or `KernelMeans()` for fewer
            than ten simulations.
        coordinates: Map of the arguments to about standard normal; `Coordinates.standardise(theta)` when left out.
        measure: The prior in coordinates, for objectives and reports that need one.
        y: The observation `(*event)`, for objectives that need it.
        names: Of the numbers of one output, flattened, for what is reported.
    Raises:
        ValueError: If the tables disagree in length, hold values that are not finite, or are too short.
    """
    checks.concrete(theta=theta, x=x, y=y)
    theta, x = np.asarray(in_jax_types(theta)), np.asarray(in_jax_types(x))
    checks.table("theta", theta, min_rows=2)
    checks.require(
        x.shape[:1] == theta.shape[:1],
        f"`theta` and `x` must have one row for each simulation; got shapes {theta.shape} and {x.shape}.",
    )
    ends = isinstance(form, KernelStatistics) or (isinstance(form, KernelMeans) and form.data_kernel is not None)
    finite = np.where(np.isnan(x), 0.0, x) if isinstance(form, Recorded) or ends else x
    checks.sound("x", finite, "Leave out the simulations that failed.")
    checks.require(x.size > 0, f"`x` must hold at least one number for each simulation; got shape {x.shape}.")
    checks.instance("form", form, Form | None, "KernelMeans(...), ResidualKernelMeans(...) or another form")
    coordinates = coordinates or Coordinates.standardise(theta)
    z = coordinates.table(theta)
    form = form or (ResidualKernelMeans() if len(x) >= MIN_SIMULATIONS else KernelMeans())
    form = replace(form, names=coordinates.names) if isinstance(form, OfStatistics) else form
    point = None if y is None else take(form.points(np.asarray(in_jax_types(y))[None]), 0)
    surrogate = form.fit(z, form.points(x), measure=measure, y=point)
    return FittedLikelihood(surrogate.named(names), coordinates, x.shape[1:], z)
