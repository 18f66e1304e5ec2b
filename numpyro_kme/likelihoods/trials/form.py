r"""The likelihood of one trial: a choice, an answer, a count, a reaction time, and several of these together.

$$ q(y \mid z) = p(c \mid z) \prod_i p(v_i \mid c, z, v_{<i}), $$

with the category `c`, the values of all entries that have few, then counts, and then numbers, one entry after another,
each of them a conditional exponential family (`ExponentialFamily`). An entry may have both: a value that repeats, such
as that of an omission, is a category, and other values are numbers. Numbers are taken as they are, which keeps ends
that do not move, or as standardised residuals, which follow what does: whichever has more evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import Array, checks, full_precision, host, in_present_precision, numpy_function, saveable, shown
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.extrapolation import Region, Repeats, warn_if_out_of_distribution
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.support import Extremes
from numpyro_kme.likelihoods.residual.surrogate import MIN_SIMULATIONS, Standardisation
from numpyro_kme.likelihoods.statistics import MOST_CATEGORIES, Entries, StatisticsTransform, jitter_ties
from numpyro_kme.likelihoods.trials.family import ExponentialFamily, added
from numpyro_kme.likelihoods.trials.learning import Candidate, fit_family
from numpyro_kme.likelihoods.trials.values import Values

MAP = ResidualKernelMeans(subset=2000, num_inducing_points=200)
"""How numbers are mapped to residuals: from all trials, and hyperparameters from 2,000."""


@register
class Given:
    """Counts and numbers given a category.

    Attributes:
        centre, scale: Of the numbers, `(q,)`.
        standardisation: The map from numbers to residuals; None where there are none.
        families: Of each count, and of each number, given those before.
        counts, numbers: Which entries these are (static).
        moved: Which of the numbers have residuals, and are not taken as they are (static).
    """

    centre: Array
    scale: Array
    standardisation: Standardisation | None
    families: tuple[ExponentialFamily, ...]
    counts: tuple[int, ...] = field(metadata=dict(static=True))
    numbers: tuple[int, ...] = field(metadata=dict(static=True))
    moved: tuple[bool, ...] = field(default=(), metadata=dict(static=True))

    def values(self, y: Any, z: Any, xp: Any) -> tuple[list[Any], Any]:
        """Counts and numbers (as they are, or residuals), `(...)` each, of trials `(..., n)` at points `(..., D)`,
        and the log of the derivative of the numbers."""
        numbers, log_slope = y[..., np.array(self.numbers, int)], -xp.log(xp.asarray(self.scale))
        u = (numbers - self.centre) / self.scale
        if self.standardisation is not None and any(self.moved):
            residuals, log_slopes = self.standardisation(u, z, xp)
            u, log_slopes = (xp.where(np.array(self.moved), *pair) for pair in ((residuals, u), (log_slopes, 0.0)))
            log_slope = log_slope + log_slopes
        values = [y[..., i] for i in self.counts] + [u[..., i] for i in range(len(self.numbers))]
        return values, xp.sum(log_slope, axis=-1)

    def log_density(self, y: Any, z: Any, xp: Any) -> Any:
        """`sum_i log p(v_i | c, z, v_<i)` of trials `(..., n)` at points `(..., D)`."""
        values, total = self.values(y, z, xp)
        for family, v in zip(self.families, values):
            total, z = total + family.log_density(v, z, xp), joined(z, family.values.score(v, xp), xp)
        return total

    def fit(self, z: np.ndarray, x: np.ndarray) -> "Given":
        """Learn from trials `(m, n)` at `(m, D)`; what was learnt before has the hyperparameters."""
        numbers = (x[:, np.array(self.numbers, int)] - self.centre) / self.scale
        tried = [(numbers, np.zeros_like(numbers))]
        if self.standardisation is not None:
            tried.append(self.standardisation(numbers, z, np))
        each = [[Candidate(x[:, i], partial(Values.of_counts, x[:, i]))] for i in self.counts]
        for i in range(len(self.numbers)):
            columns = [(values[:, i], slopes[:, i]) for values, slopes in tried]
            each.append([Candidate(u, partial(Values.of_numbers, u), log_slope=slope) for u, slope in columns])
        families: list[ExponentialFamily] = []
        for candidates, before in zip(each, self.families or [None] * len(each)):
            families.append(fit_family(z, candidates, before))
            v = candidates[families[-1].hyperparameters[0]].values
            z = joined(z, families[-1].values.score(v, np), np)
        moved = tuple(bool(family.hyperparameters[0]) for family in families[len(self.counts) :])
        return replace(self, families=tuple(families), moved=moved)


def joined(z: Any, value: Any, xp: Any) -> Any:
    """Coordinates `(..., D)` and a further one, `(...)`, broadcast."""
    shape = np.broadcast_shapes(z.shape[:-1], value.shape)
    return xp.concatenate([xp.broadcast_to(part, (*shape, part.shape[-1])) for part in (z, value[..., None])], axis=-1)


@shown
@saveable
@dataclass(frozen=True)
class KernelExponentialFamily(Form):
    r"""The form of the likelihood of trials: kernel conditional exponential families.

    One output is one trial, of entries that take few values (choices, answers, omissions), counts, and numbers. It has
    the probability of its category times the probabilities and densities of its counts and numbers given that. It is
    learnt from all trials of all simulations, and the time that it takes to evaluate depends on neither. NaN in
    simulations, nothing recorded, is a category; where no simulation has it, it is what was not observed.

    References:
        Canu and Smola (2006), Neurocomputing 69; Arbel and Gretton (2018), AISTATS.
    """

    paper = "hsu2019bayesian"
    most_calls = 200_000

    def fit(self, z, x, *, measure=None, y=None) -> "TrialsSurrogate":
        """Implement `Form.fit`."""
        return self._fit(np.asarray(z, np.float64), np.asarray(x, np.float64))

    def again(self, learnt: "TrialsSurrogate", z, x, rows, *, measure=None, y=None) -> "TrialsSurrogate":
        """Implement `Form.again`: with the categories and the map of all simulations, their hyperparameters but for
        `ROUGHER`, and what is too rare as they have it."""
        return self._fit(np.asarray(z[rows], np.float64), np.asarray(x[rows], np.float64), learnt)

    @host.one_blas_thread
    @numpy_function
    def _fit(self, z, x, learnt: "TrialsSurrogate | None" = None) -> "TrialsSurrogate":
        checks.require(
            len(z) == len(x) >= MIN_SIMULATIONS,
            f"`z` and `x` must have one row for each of at least {MIN_SIMULATIONS} trials; got shapes {z.shape} and "
            f"{x.shape}.",
        )
        lost = np.isnan(x)
        filled = np.where(lost, np.where(lost.all(axis=0), 0.0, np.min(np.where(lost, np.inf, x), axis=0) - 1.0), x)
        transform = StatisticsTransform.fit(filled)
        entries = learnt.entries if learnt else Entries.of(x)
        checks.require(
            len(entries.categories) <= MOST_CATEGORIES,
            f"The outputs have {len(entries.categories)} joint categories, and this form learns probabilities of at "
            f"most {MOST_CATEGORIES}. Make each answer a trial of its own along a plate, or use "
            "form=ResidualKernelMeans().",
        )
        checks.require(
            entries.fewest >= MIN_SIMULATIONS,
            f"Counts or numbers of some category are known from {entries.fewest} trials, of at least "
            f"{MIN_SIMULATIONS}. Simulate more, or use form=ResidualKernelMeans().",
        )
        category = np.argmax(entries.agree(x, np), axis=-1)
        choice = None
        if len(entries.categories) > 1:
            make = lambda _: Values.of_categories(len(entries.categories))  # noqa: E731
            choice = fit_family(z, [Candidate(category.astype(float), make, (1.0,))], learnt.choice if learnt else None)
        given: list[Any] = list(learnt.given) if learnt else [None] * len(entries.members)
        for number, some in enumerate(entries.members):
            rows = np.isin(category, some)
            if rows.sum() >= MIN_SIMULATIONS:
                given[number] = self._given(z[rows], x[rows], *entries.others(some[0]), given[number])
        ends = np.asarray(transform.forward(np.stack([filled.min(axis=0), filled.max(axis=0)])))
        region = Region.of(z, np.ones(z.shape[1]))
        return TrialsSurrogate(transform, region, entries, choice, tuple(given), ends, z, x, self)

    def _given(self, z, x, counts, numbers, before: Given | None) -> Given:
        """Learn counts and numbers of trials `(m, n)` of one category, a copy of its own; what is known of more trials
        has their map and their hyperparameters."""
        numbers = before.numbers if before else tuple(i for i in numbers if np.ptp(x[:, i]) > 0.0)
        if numbers:
            x[:, list(numbers)] = jitter_ties(x[:, list(numbers)])  # of counts that are too large to be counted
        return (before or self._mapped(z, x[:, list(numbers)], counts, numbers)).fit(z, x)

    def _mapped(self, z, own, counts, numbers) -> Given:
        """Learn the map from numbers `(m, q)` to residuals."""
        if not numbers:
            return Given(np.zeros(0), np.ones(0), None, (), counts, ())
        repeats = Repeats.of(z)
        transform = StatisticsTransform.fit(own)
        centre, scale = np.asarray(transform.centre), np.asarray(transform.scale)
        ends = (repeats.reduced(end, (own - centre) / scale) for end in (np.minimum, np.maximum))
        standardisation = MAP.standardised(z, own, transform, ends=Extremes(z[repeats.first], *ends))[1]
        return Given(centre, scale, standardisation, (), counts, numbers)


@register
class TrialsSurrogate(Surrogate):
    """A learnt likelihood of trials.

    Attributes:
        transform: Which entries vary, and the check of observations.
        region: Which parameters were simulated.
        entries: What kind of values entries have.
        choice: Of the category; None where there is one.
        given: Of counts and numbers given categories.
        simulated_range: Lowest and highest simulated entries, transformed, `(2, n)`.
        simulated: Coordinates of the trials, `(m, D)`.
        trials: The trials, `(m, n)`, from which `marginal` learns.
        form: The settings (static).
        columns: Which entries of an output it is of; all where left out (static).
    """

    transform: StatisticsTransform
    region: Region
    entries: Entries
    choice: ExponentialFamily | None
    given: tuple[Given, ...]
    simulated_range: Array
    simulated: Array
    trials: Array
    form: Any = field(metadata=dict(static=True))
    columns: tuple[int, ...] = field(default=(), metadata=dict(static=True))

    def named(self, names: Sequence[str]) -> "TrialsSurrogate":
        """Implement `Surrogate.named`."""
        return replace(self, transform=self.transform.named(names))

    def at(self, y: Any) -> "TrialAt":
        """The likelihood at one trial `(n_raw,)`, concrete ones checked.

        Raises:
            ValueError: If it has the wrong shape, is infinite, or has a category that no simulation has.
        """
        if not checks.is_concrete((y, self)):
            return self.at_rows(jnp.asarray(y), 0)
        seen = ~np.isnan(np.asarray(y, np.float64))
        if np.ndim(y) == 1 and not self.columns and self.marginal(seen) is not self:
            return self.marginal(seen).at(y)
        own = self._filled(self._own(np.asarray(y, np.float64)), np)
        self.transform.check(own)
        found = self.at_rows(np.asarray(y, np.float64), 0)
        warn_if_out_of_distribution(self.transform, self.simulated_range, own)
        return found

    def at_rows(self, rows: Any, axes: int = 1) -> "TrialAt":
        """Implement `Surrogate.at_rows`."""
        rows = self._own(rows.reshape(*rows.shape[:axes], -1))
        if not isinstance(rows, np.ndarray):
            return TrialAt(in_present_precision(self), rows, tuple(range(len(self.entries.categories))))
        agree = numpy_function(Entries.agree)(self.entries, rows, np).reshape(-1, len(self.entries.categories))
        first = rows.reshape(-1, rows.shape[-1])[np.argmin(agree.any(axis=1))]
        checks.require(
            bool(agree.any(axis=1).all()),
            f"A trial {first.tolist()} is of a category that none of {len(self.trials)} simulated trials has: these "
            f"have {self.entries.listed()}. It is coded otherwise, or the simulator cannot produce it, or so rarely "
            "that it tells nothing. Code it as the simulator does, repair the simulator, or leave the trial out.",
        )
        return TrialAt(self, rows, tuple(np.flatnonzero(agree.any(axis=0)).tolist()))

    def _own(self, rows: Any) -> Any:
        return rows[..., np.array(self.columns)] if self.columns else rows

    def _filled(self, rows: Any, xp: Any) -> Any:
        """Trials `(..., n)` with a number, whichever, in place of NaN."""
        return xp.where(xp.isnan(rows), xp.asarray(self.transform.reference), rows)

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Tell whether NaN is a category, and not what is unknown."""
        return any(np.isnan(atoms).any() for atoms in self.entries.atoms)

    def marginal(self, seen, last=None):
        """Implement `Surrogate.marginal`: categories that were not observed are summed over as they are, and without
        the counts or numbers that were not, it is learnt again from the same trials."""
        others = np.array([*self.entries.counts, *self.entries.numbers], int)
        return self if self.records or seen[others].all() else super().marginal(seen, last)

    def _marginal(self, seen, last):
        kept = tuple(np.flatnonzero(seen).tolist())
        found = self.form.fit(self.simulated, np.asarray(self.trials)[:, list(kept)])
        return replace(found, columns=kept).named([self.transform.label(i) for i in kept])

    def describe(self) -> Mapping[str, Any]:
        """Report what was learnt: text, and numbers."""
        counts, numbers = self.entries.counts, self.entries.numbers
        label = lambda some: ", ".join(map(self.transform.label, some)) or "none"  # noqa: E731
        families = [family for given in self.given for family in given.families]
        families += [self.choice] if self.choice else []
        categories = len(self.entries.categories)
        told = {
            "form": "kernel conditional exponential family of trials, an extension of Hsu and Ramos (2019)",
            "trials": f"{len(self.trials):,}" + f", of {categories} categories" * (categories > 1),
            "counts": label(counts),
            "numbers": label(numbers),
            "log evidence, nats": ", ".join(f"{float(family.log_evidence):.1f}" for family in families),
        }
        return {name: value for name, value in told.items() if value != "none"}


@register
class TrialAt(LikelihoodAt):
    """The likelihood at trials.

    Attributes:
        surrogate: What was learnt.
        rows: The trials, `(*lead, n)`.
        categories: Which may occur among them (static).
    """

    surrogate: TrialsSurrogate
    rows: Any
    categories: tuple[int, ...] = field(metadata=dict(static=True))

    @full_precision
    def log_density(self, z):
        """`log q(y | z)` at points `(..., D)`, smooth."""
        xp, learnt = namespace(self, z), self.surrogate
        rows, z = xp.asarray(self.rows), learnt.region.nearest(xp.asarray(z), xp)
        y, agree, logs = learnt._filled(rows, xp), learnt.entries.agree(rows, xp), []
        shares = xp.zeros((1,)) if learnt.choice is None else learnt.choice.log_shares(z, xp)
        for number in self.categories:
            # by itself where it is common, which stands before those that were learnt together
            part = min((some for some in learnt.entries.members if number in some), key=len, default=None)
            density = self._given(part, y, agree[..., number], z, xp) if part else 0.0
            logs.append(xp.where(agree[..., number], shares[..., number] + density, -np.inf))
        total = added(xp.stack(xp.broadcast_arrays(*logs), axis=-1), xp)
        return total + xp.zeros(np.broadcast_shapes(z.shape[:-1], y.shape[:-1]), z.dtype)

    def _given(self, part, y, agree, z, xp):
        """Log densities given a category, by NumPy of the trials `(n,)` that agree with it alone."""
        given = self.surrogate.given[self.surrogate.entries.members.index(part)]
        if xp is jnp or agree.ndim != 1:
            return given.log_density(y, z, xp)
        at = z[..., agree, :] if z.ndim > 1 and z.shape[-2] == len(agree) else z
        found = given.log_density(y[agree], at, xp)
        density = np.zeros((*found.shape[:-1], len(agree)), found.dtype)
        density[..., agree] = found
        return density
