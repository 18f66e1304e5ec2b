"""What an engine found for one observation: an immutable value, with its summary and one ArviZ conversion."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from numpyro_kme._core import Recomputed, Saved, arviz, checks, door, numbers, saveable
from numpyro_kme._core.display import Card, aligned, extremes, paragraphs, shown
from numpyro_kme.models.problem import Problem, SimulatorSite
from numpyro_kme.samplers.importance import OF_MEAN, OF_SD, StandardErrors
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.simulations import of_rows

Samples = Mapping[str, np.ndarray]


class Limited(NamedTuple):
    """A number that should not exceed its limit.

    Attributes:
        name: What it is of.
        value: The number.
        limit: Its largest value that is not warned of.
    """

    name: str
    value: float
    limit: float

    @property
    def ok(self) -> bool:
        """Tell whether it is within the limit."""
        return self.value <= self.limit


@shown
@saveable
@dataclass(frozen=True, kw_only=True)
class Posterior(Recomputed, Saved):
    """Posterior draws, what belongs to each, and what a person reads.

    Attributes:
        engine: Name of the engine.
        samples: Equally weighted draws, constrained, `{site: (draws, *event)}`, deterministics included.
        fields: Numbers that belong to each draw, `{name: (draws, ...)}`.
        groups: Further ArviZ groups, `{group: {variable: (chain, draw, *event)}}`: the simulations, a weighted set, ...
        info: What a person reads, in order: `{what: number or sentence}`.
        problem: What the model consists of, with the observation; None where an engine reads a model in another way.
        simulations: The simulations that were used, where they are kept.
        errors: Standard errors of its expectations: what other simulations or a further run would change. None where
            the method has none.
        warned: What the engine warned of.
    """

    engine: str
    samples: Samples
    fields: Samples = field(default_factory=dict)
    groups: Mapping[str, Samples] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
    simulations: Simulations | None = None
    errors: StandardErrors | None = None
    warned: tuple[str, ...] = ()

    brief: ClassVar[tuple[str, ...]] = ("",)
    """First words of the lines of `info` that a summary has which is not verbose."""

    def _card(self) -> Card:
        check = "diagnostics.predictive_check(key, posterior), " * (self.problem is not None)
        hint = f"print_summary(), plots.marginals(posterior), {check}save(path)"
        return self._as_card("Posterior by ", {}, hint)

    def _as_card(self, before: str, rows: Mapping[str, Any], hint: str) -> Card:
        """Make a card of the table, what was warned of, and further rows."""
        told = {"warned of": "\n".join(self.warned) or "nothing", **dict(self._lines(False))}
        return Card(
            before + self._title, {**told, **rows}, hint, *self._table(), trouble="warned of" * bool(self.warned)
        )

    @property
    def _title(self) -> str:
        """The engine, and how much it made."""
        size = len(next(iter(self.samples.values())))
        simulated = "" if self.simulations is None else f" from {len(self.simulations):,} simulations"
        return f"{self.engine}: {size:,} draws{simulated}"

    @property
    def latents(self) -> tuple[str, ...]:
        """Names of the latent sites; of all sites where the model is not known."""
        return tuple(self.samples) if self.problem is None else tuple(self.problem.latents)

    @property
    def statistics(self) -> dict[str, tuple[str, ...]]:
        """Names of the numbers of one output of each simulator site that has names; none where the model is not
        known."""
        sites = {} if self.problem is None else self.problem.simulators
        return {name: site.simulator.labels for name, site in sites.items() if site.simulator.labels}

    def with_shifts(self, simulations: Simulations) -> Simulations:
        """Simulations as they would be observed: with the shifts of their latents, where statistics may have some."""
        return simulations

    @door
    def get_samples(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Posterior draws, `{site: (draws, *event)}`, or `(1, draws, *event)` if `group_by_chain`."""
        return by_chain(self.samples) if group_by_chain else dict(self.samples)

    @door
    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Numbers that belong to each draw, in the shapes of `get_samples`."""
        return by_chain(self.fields) if group_by_chain else dict(self.fields)

    @door
    def expectation(self, function: Callable[[Samples], Any]) -> np.ndarray:
        """Posterior expectation of a function of the sites: the mean over the draws.

        Args:
            function: Maps `{site: (n, *shape)}`, all draws at once, to `(n, *event)`.
        Returns:
            `(*event)`.
        """
        return np.mean(np.asarray(function(dict(self.samples))), axis=0)

    @property
    def error_of_mean(self) -> dict[str, np.ndarray]:
        """Standard error of the posterior mean of each site, in its units, `{site: (*shape)}` (`StandardErrors`)."""
        return {name: self._of_moments(value)[0] for name, value in self.samples.items()}

    @property
    def error_of_sd(self) -> dict[str, np.ndarray]:
        """Standard error of the posterior standard deviation of each site, relative to it, `{site: (*shape)}`."""
        return {name: self._of_moments(value)[1] for name, value in self.samples.items()}

    def error_of_expectation(self, function: Callable[[Samples], Any]) -> np.ndarray:
        """Standard error of `expectation(function)`, `(*event)`."""
        return self._of_moments(np.asarray(function(dict(self.samples))))[0]

    def _of_moments(self, values: np.ndarray) -> np.ndarray:
        why = (
            f"The posterior of {self.engine} has no standard errors of what other simulations would change. KELFI has "
            "them, from 20 simulations. For what another run changes, run it again with another key, and compare."
        )
        return checks.given(self.errors, why, NotImplementedError).of_moments(np.asarray(values, np.float64))

    @classmethod
    def load(cls, path: str | PathLike, problem: Problem | None = None) -> Self:
        """Read what `save` wrote, in any process and on any machine; nothing in the file is executed.

        Args:
            path: Of the file.
            problem: The model with its observation, `Problem.read(model, x=...)`, for what needs a model, such as
                densities of latents: files hold none. Draws, summaries and learnt likelihoods do without.
        Raises:
            SavedFileError: If there is no such file, or it is damaged, not of this package, of another kind of value or
                of a later format.
            ValueError: If `problem` has other latents or another observation.
        """
        found = super().load(path)
        if problem is None:
            return found
        observed: Mapping[str, Any] = found.groups.get("observed_data", {})
        others = [name for name in problem.latents if name not in found.samples]
        for name, y in problem.observations.items():
            others += [] if np.array_equal(observed.get(name, []), y, equal_nan=True) else [name]
        checks.require(
            not others,
            f"`problem` is not the one of the posterior in {path}, which has no such latents or other observations at "
            f"{others}. Read the model with the arguments of that run.",
        )
        return replace(found, problem=problem)

    def _to_save(self) -> "Posterior":
        """Without the model."""
        return replace(self, problem=None)

    @property
    def checks(self) -> tuple[Limited, ...]:
        """Numbers that an engine warns of beyond their limits: how many warnings there were, the largest standard error
        of a mean, in posterior standard deviations, and of a standard deviation, relative to it, over all latents."""
        warnings = Limited("warnings", float(len(self.warned)), 0.0)
        if self.errors is None:
            return (warnings,)
        table = np.stack(list(numbers({name: self.samples[name] for name in self.latents}).values()), axis=1)
        names, limits = ("error of a mean, sd", "error of a standard deviation"), (OF_MEAN, OF_SD)
        found = self.errors.relative(table.astype(np.float64)).max(axis=1) * limits
        return (warnings, *(Limited(name, float(one), limit) for name, one, limit in zip(names, found, limits)))

    @door
    def print_summary(
        self,
        prob: float = 0.9,
        verbose: bool = False,
        *,
        coords: Mapping | None = None,
        dims: Mapping | None = None,
    ) -> None:
        """Print a table of the posterior, with standard errors of means and standard deviations where they are known,
        and the quantiles between which a fraction `prob` of the draws lies; then what was warned of.

        Args:
            prob: Between 0 and 1.
            verbose: Whether to print what was learnt, too, and how the draws were made.
            coords: Values along named dimensions, `{"school": names}`, to name rows by: as `to_inference_data`.
            dims: Names of dimensions; as `to_inference_data`.
        """
        checks.require(0.0 < prob < 1.0, f"`prob` must lie between 0 and 1; got {prob}.")
        told, lines = [("warned of", one) for one in self.warned or ("nothing",)], self._lines(verbose)
        more = "print_summary(verbose=True), and checks for programs"
        further = [("more", more)] * (len(lines) < len(self.info))
        table = aligned(*self._table(prob, coords, dims))
        print("", self._title, "", *table, "", paragraphs([*told, *lines, *further]), sep="\n")

    def _lines(self, verbose: bool) -> list[tuple[str, str]]:
        """Lines for a person: all, or those that say whether to trust it."""
        chosen = {k: v for k, v in self.info.items() if verbose or k.rpartition(": ")[2].startswith(self.brief)}
        return [(name, _readable(value, self._labels_of(value))) for name, value in chosen.items()]

    def _table(
        self, prob: float = 0.9, coords: Mapping | None = None, dims: Mapping | None = None
    ) -> tuple[list[list[str]], int]:
        """Titles and rows of the summary, and how many rows are left out."""
        names, along = arviz.named(self._dims(dims), coords), {}
        for name, draws in self.samples.items():
            along[name] = [values for _, values in arviz.axes(arviz.valid(name), np.shape(draws)[1:], *names)]
        every = numbers(self.samples, along=along)
        alike = len(every) < sum(np.size(draws[0]) for draws in self.samples.values())
        checks.require(not alike, "`coords` has the same name twice along a dimension. Give each entry its own.")
        rows = {name: self._row(values, prob) for name, values in list(every.items())[:SHOWN]}
        titles = ["", *(title for title, _ in next(iter(rows.values())))]
        table = [titles, *([name, *(f"{value:.3g}" for _, value in row)] for name, row in rows.items())]
        return table, len(every) - len(rows)

    def _row(self, values: np.ndarray, prob: float) -> list[tuple[str, float]]:
        """Titles and numbers of a row of the summary; each mean and standard deviation has its standard error where
        these are known."""
        values, ends = np.asarray(values, np.float64), (0.5 - 0.5 * prob, 0.5 + 0.5 * prob)
        low, middle, high = np.quantile(values, [ends[0], 0.5, ends[1]])
        mean, sd = values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0
        errors = [] if self.errors is None else self._of_moments(values) * [1.0, sd]
        moments = [("mean", mean), *(("error", one) for one in errors[:1]), ("std", sd)]
        moments += [("error", one) for one in errors[1:]]
        return [*moments, ("median", middle), *((f"{end:.1%}", value) for end, value in zip(ends, (low, high)))]

    def _labels_of(self, value: Any) -> tuple[str, ...]:
        """Names of the numbers of a vector in `info`, if there are as many statistics."""
        sites = {} if self.problem is None else self.problem.simulators
        as_long = {name: s for name, s in sites.items() if np.shape(value) == (math.prod(s.simulator.event_shape),)}
        found = [site.simulator.labels_at(name) for name, site in as_long.items()]
        return found[0] if len(found) == 1 else ()

    def pointwise_log_likelihood(self) -> dict[str, np.ndarray]:
        """Log likelihood of each call of each observed site that stands along a plate, at each draw, `{site: (n,
        *plates)}`, where the method has one."""
        raise checks.explained(
            f"The posterior of {self.engine} has draws and no likelihood of single observations; use KELFI.",
            NotImplementedError,
        )

    def to_inference_data(
        self,
        *,
        coords: Mapping | None = None,
        dims: Mapping | None = None,
        log_likelihood: bool = False,
        posterior_predictive: Samples | None = None,
    ):
        """Convert to ArviZ: `InferenceData` under ArviZ 0.x, `DataTree` under 1.x.

        Args:
            log_likelihood: Whether to add `pointwise_log_likelihood` as the group `log_likelihood`, for `arviz.loo`: of
                sites along plates. One that is a single event has no part to leave out, and is not in the group.
            posterior_predictive: What the model simulates at each draw, `{site: (draws, *shape)}`, as
                `numpyro.infer.Predictive(model, engine.get_samples())(rng_key)` has it, for `arviz.plot_ppc` and
                `arviz.plot_loo_pit`. Of the observed sites. Where each call along a plate has several numbers,
                `plot_loo_pit` takes one at a time: `idata.sel(x_dim_1=0)`.
            coords: Values of named dimensions; names of statistics are put in.
            dims: Names of the dimensions of one draw, by variable, those of plates first; when left out names of the
                plates, where the model is known.
        Returns:
            Groups `posterior`, `sample_stats`, `observed_data`, and what the engine adds, such as `prior` and
            `prior_predictive` with the simulations; `standard_errors` of means, and of standard deviations relative to
            these, along the dimension `moment`, where they are known.
        """
        groups = {"posterior": by_chain(self.samples), "sample_stats": by_chain(self.fields), **self.groups}
        if log_likelihood:
            groups["log_likelihood"] = by_chain(self.pointwise_log_likelihood())
        if posterior_predictive is not None:
            observed, size = self.groups["observed_data"], len(next(iter(self.samples.values())))
            shapes = {name: np.shape(value) for name, value in posterior_predictive.items()}
            found = {name: value for name, value in posterior_predictive.items() if name in observed}
            checks.require(
                bool(found) and all(shapes[name][:1] == (size,) for name in found),
                f"`posterior_predictive` must have {size:,} draws of observed sites, of {', '.join(observed)}; got "
                f"shapes {shapes}. Use `Predictive(model, engine.get_samples())(rng_key)`.",
            )
            groups["posterior_predictive"] = by_chain(found)
        sites, dims = {} if self.problem is None else self.problem.simulators, self._dims(dims)
        named = {
            dim: list(site.simulator.labels)
            for name, site in sites.items()
            if site.simulator.labels and site.simulator.event_dim == 1
            for dim in dims[name][-1:]
        }
        attrs, leading = {"engine": self.engine, **self.info}, {}
        if self.errors is not None:
            groups["standard_errors"] = {name: self._of_moments(value) for name, value in self.samples.items()}
            named["moment"], leading["standard_errors"] = ["mean", "sd"], ["moment"]
        coords = {**named, **(coords or {})}
        return arviz.to_inference_data(groups, coords=coords, dims=dims, attrs=attrs, leading=leading)

    def _dims(self, dims: Mapping | None) -> dict[str, tuple[str, ...]]:
        """Names of dimensions by variable: those given, else those of the model, where it is known."""
        return {**({} if self.problem is None else self.problem.dims), **(dims or {})}

    def summary(self, *, coords: Mapping | None = None, dims: Mapping | None = None) -> Any:
        """`arviz.summary` of the draws, a table of pandas, with standard errors as `mcse_mean` and `mcse_sd` where they
        are known; what ArviZ gives there is what the number of draws adds to them. Rows are named by `coords` and
        `dims`, as `to_inference_data` takes them."""
        table = arviz.summary(self.to_inference_data(coords=coords, dims=dims))
        if self.errors is not None:
            errors = np.concatenate([self._of_moments(v).reshape(2, -1) for v in self.samples.values()], axis=1)
            table["mcse_mean"], table["mcse_sd"] = errors * [np.ones(len(table)), table["sd"]]
        return table

    def _super_samples(self, samples: Samples) -> "Posterior":
        """This posterior with samples chosen by herding."""
        how = "super-samples by kernel herding: in order, each given those before it, and not independent"
        kept: Any = {"problem": self.problem, "simulations": self.simulations, "warned": self.warned}
        groups = {"observed_data": self.groups["observed_data"]}
        return Posterior(engine=self.engine, samples=samples, groups=groups, info={"draws": how}, **kept)


def by_chain(tree: Samples, rows: slice = slice(None)) -> dict[str, np.ndarray]:
    """Rows of arrays as the draws of one chain."""
    return of_rows(tree, (None, rows))


SHOWN, VECTOR = 40, 6
"""Most rows of a table of numbers; a longer vector is printed as its extremes."""


def _readable(value: Any, names: tuple[str, ...] = ()) -> str:
    """One line of text with numbers to three or four digits; of a long vector the extremes."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "fiu" and array.size > VECTOR:
        return extremes(array, names)
    if array.dtype.kind == "f" and array.ndim == 0:
        return f"{array:.4g}"
    if array.dtype.kind == "f" and names:
        return ", ".join(f"{name} {one:.3g}" for name, one in zip(names, array))
    if array.dtype.kind == "f":
        return np.array2string(array, precision=3, max_line_width=10_000, suppress_small=False)
    return str(value)


def arviz_groups(problem: Problem, simulations: Simulations, sites: Samples) -> dict[str, dict[str, np.ndarray]]:
    """The simulations with their `sites`, those at chosen latents apart, and the observation as ArviZ groups."""
    first = len(simulations) - simulations.proposed
    own, further = slice(first), slice(first, None)
    found = {"prior": by_chain(sites, own), "prior_predictive": by_chain(simulations.x, own)}
    if simulations.proposed:
        found |= {"proposal": by_chain(sites, further), "proposal_predictive": by_chain(simulations.x, further)}
    found["observed_data"] = problem.observations
    if simulations.failures:
        found["failed_simulations"] = by_chain(simulations.failed)
    return found


def sites_at(problem: Problem, latents: Samples) -> dict[str, np.ndarray]:
    """Latents in the order of the model, with the deterministic sites that it has now: these may depend on its data."""
    further = problem.evaluate(latents).deterministics if latents and problem.deterministics else {}
    return {**{name: latents[name] for name in problem.latents if name in latents}, **further}


def missing_entries(site: SimulatorSite) -> dict[str, str]:
    """Lines of a summary on entries of an observation that are NaN, if any."""
    total = np.asarray(site.observed).size
    left_out = 0 if site.simulator.ragged else site.missing - site.censored  # elsewhere whole rows are
    told = f"{left_out} of {total} numbers were not observed: left out, taken to be missing at random"
    within = f"{site.censored} of {total} numbers are known to lie in intervals"
    return ({"missing": told} if left_out else {}) | ({"censored": within} if site.censored else {})


def problem_of(posterior: Posterior) -> Problem:
    """The model of a posterior that rests on simulations."""
    why = (
        f"This needs the model, which the posterior of {posterior.engine} does not have. Give it by load(path, "
        "problem=Problem.read(model, x=...)) to one from a file, or use an engine that works from simulations."
    )
    return checks.given(posterior.problem, why, TypeError)
