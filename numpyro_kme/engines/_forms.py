"""Which form the likelihood of a site has: of learnt statistics, of outputs of any length; and what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.engines import _rounds
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import KernelRule, LengthScaleRule
from numpyro_kme.kernels.ragged import require_any_length
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.likelihoods.kernel_statistics import KernelStatistics
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.ragged import Ragged
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.summaries.base import FEWEST, OfStatistics, Statistics
from numpyro_kme.likelihoods.summaries.selection import SelectedStatistics
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.simulations import SimulatedMissing

FIRST = 150
"""Simulations of the first round at least, where the engine chooses."""

Setting = Statistics | Mapping[str, Statistics] | None


def of_site(site: str, statistics: Setting) -> Statistics | None:
    """How the statistics of one site are learnt, if at all."""
    return statistics.get(site) if isinstance(statistics, Mapping) else statistics


def form_of(
    site: str, simulator: Simulator, statistics: Setting, form: Form | None, missing: SimulatedMissing | None
) -> Form | None:
    """Form of the likelihood of one site."""
    own = of_site(site, statistics)
    if simulator.ragged:
        return _of_any_length(site, own, form, missing)
    return form if own is None else OfStatistics(own, form or ResidualKernelMeans())


def _of_any_length(site, statistics, form, missing) -> Form:
    checks.require(
        missing is None,
        f"NaN at the end of outputs of {site!r} says that they end there (ragged=True), and with `missing` that it is "
        "not recorded: leave one of both out.",
    )
    checks.require(
        statistics is None,
        f"The outputs of site {site!r} are of any length (ragged=True), and `statistics` are learnt from outputs of "
        "one: pass form=KernelStatistics(EmpiricalMeasureRule()) for data sets, "
        "form=KernelStatistics(SignatureRule()) for series.",
    )
    if isinstance(form, Ragged):
        return form
    kernel = _kernel_of(form)
    checks.require(
        kernel is not None,
        f"The outputs of site {site!r} are of any length (ragged=True), of which the form of the likelihood, "
        f"{type(form or ResidualKernelMeans()).__name__}, makes no statistics. Pass "
        "form=KernelStatistics(EmpiricalMeasureRule()) for data sets, form=KernelStatistics(SignatureRule()) for "
        "series, or let the simulator return statistics of fixed number, the length among them.",
    )
    if isinstance(kernel, Kernel):
        require_any_length(kernel)
    return Ragged(cast(Form, form))


def _kernel_of(form: Form | None) -> Kernel | KernelRule | None:
    """What compares outputs of any length, in the forms that have it; another form of yours stands in `Ragged`."""
    if isinstance(form, KernelStatistics):
        return form.kernel
    return form.data_kernel if isinstance(form, KernelMeans) else None


def with_length_scale(form: Form | None, rule: LengthScaleRule | None) -> Form | None:
    """A form with the rule for its length scales that was given beside it."""
    if rule is None:
        return form
    if not isinstance(form, KernelMeans):
        raise checks.explained(
            "`length_scale` needs a form with a kernel on data: pass form=KernelMeans(). The residual form, the "
            f"default, and forms of your own learn their widths themselves; got form={checks.line(form)}."
        )
    return replace(form, length_scale=rule)


def rounds(num_simulations: int) -> int:
    """Rounds where the engine chooses: statistics are learnt from the first alone, at first."""
    return int(np.clip(num_simulations // FIRST, 1, _rounds.ROUNDS))


def why_one_round(num_simulations: int, given: tuple[bool, bool], form: Form | None, statistics: Setting) -> str:
    """Why the engine makes one round, with simulations or a store that are given or not; empty if it need not."""
    reasons = {
        "`simulations` are given": given[0],
        "a `store` is for simulations at prior draws": given[1],
        "more are for the default form": not isinstance(form, ResidualKernelMeans | None),
        f"there are fewer than {_rounds.FEWEST} simulations": num_simulations < _rounds.FEWEST,
        f"statistics are learnt from {FIRST} simulations of the first round at least": (
            statistics is not None and rounds(num_simulations) == 1
        ),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def check_settings(statistics: Setting, missing: SimulatedMissing | None, first: int) -> None:
    """What can be said before a model is known, of so many simulations in the first round."""
    checks.require(
        statistics is None or first >= FEWEST,
        f"`statistics` are learnt from at least {FEWEST} simulations, and the first round has {first}: make fewer "
        "rounds (`num_rounds`), or more simulations (`num_simulations`).",
    )
    given = statistics.values() if isinstance(statistics, Mapping) else [statistics]
    for one in given:
        checks.instance(
            "statistics",
            one,
            Statistics | None,
            "SemiAutomaticStatistics(...) or SelectedStatistics(...), or a mapping from sites to these",
        )
    checks.require(
        statistics is None or missing is None,
        "`statistics` are learnt from whole outputs, and with `missing` simulations lack entries: leave one of the two "
        f"out; got statistics={statistics} and missing={missing}.",
    )


def check_sites(problem: Problem, statistics: Setting, form: Form | None, missing: SimulatedMissing | None) -> None:
    """What can be said before any simulation is run."""
    names = set(statistics) if isinstance(statistics, Mapping) else set()
    checks.require(
        names <= set(problem.observations),
        f"`statistics` names {sorted(names - set(problem.observations))}, and the observed simulator sites are "
        f"{sorted(problem.observations)}.",
    )
    for site in problem.observations:
        own, found = of_site(site, statistics), problem.simulators[site]
        found.check_observed(site)
        plates = found.simulator.batch_shape
        checks.require(
            plates == found.simulator.groups or not isinstance(form, KernelMeans) or form.data_kernel is None,
            f"Site {site!r} holds {plates} draws of the same parameters along plates, whose densities are multiplied; "
            "a data kernel on whole data sets does not fit there. Make the data set one event of the simulator, or "
            "leave `data_kernel` out.",
        )
        if found.mask.size > 1:
            found.require_no_gaps(site, "one likelihood for all draws along plates")
        form_of(site, found.simulator, statistics, form, missing)
        checks.require(
            own is None or not found.censored,
            f"{found.censored} entries of the observation at {site!r} are known to lie in intervals, and learnt "
            "statistics are functions of numbers: leave `statistics` out for this site, or Simulator.within.",
        )
        checks.require(
            own is None or isinstance(own, SelectedStatistics) or not found.missing,
            f"{found.missing} entries of the observation at {site!r} are NaN, not observed, and {type(own).__name__} "
            "learns from whole outputs. Let the simulator return what was observed, as with a mask of its own, or use "
            "SelectedStatistics, or statistics by hand.",
        )
