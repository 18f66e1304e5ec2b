"""The simulations of one site as a table, coordinates of the parameters and outputs without what was not observed; and
whether a further observation is one of the same model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import scipy

from numpyro_kme._core import Recomputed, checks, child, frozen
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.data_sets import EmpiricalMeasureRule, WithLength, log_lengths, require_any_length
from numpyro_kme.kernels.length_scales import KernelRule, LengthScaleRule, MedianHeuristic, and_a_wider_one
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem, SimulatorSite
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.fingerprint import is_another

UNLIKELY = 1e-6
"""Level of the test that given simulations are draws from the prior: one false refusal in a million runs."""


@frozen
class ReferenceTable(Recomputed):
    """The simulations of the one simulator site of a model.

    Attributes:
        simulations: The simulations, with latents.
        coordinates: Coordinates of the simulator's arguments.
        z: Coordinates of the simulations, `(m, D)`.
        x: Outputs, `(m, *event)`; `(m, n, d)` where `n` draws lie along plates, without those that the observation
            masks. Without what is NaN in the observation: `(m, numbers)`, or whole rows are left out.
        mask: Which draws of an output count, flat; without draws along plates which numbers were observed, `(*event)`.
        data_sets: The rows of each output are draws along plates, so that their order says nothing.
        ragged: Outputs are of any length, with rows of NaN behind their ends.
    """

    simulations: Simulations
    coordinates: Coordinates
    z: np.ndarray
    x: np.ndarray
    mask: np.ndarray
    data_sets: bool
    ragged: bool = False

    @classmethod
    def read(cls, coordinates: Coordinates, problem: Problem, simulations: Simulations) -> "ReferenceTable":
        """Read the simulations of a model that `check_model` lets pass."""
        site = problem.site()
        arguments = np.asarray(simulations.arguments[site])
        z = coordinates.table(arguments.reshape(len(arguments), -1))
        if not simulations.latents:
            simulations = replace(simulations, latents=coordinates.latents(z))
        simulator, mask = problem.simulators[site].simulator, observed_part(problem)
        x = np.asarray(simulations.x[site], np.float64)
        if simulator.batch_shape:
            x = x.reshape(len(x), -1, int(np.prod(simulator.event_shape, dtype=int)))
            fits = x.shape[1] == len(mask)
            checks.require(fits, f"Simulations of {site!r} have {x.shape[1]} draws, not {len(mask)}: make others.")
        table = cls(simulations, coordinates, z, x, mask, bool(simulator.batch_shape), simulator.ragged)
        return replace(table, x=table._counted(x))

    @classmethod
    def found(
        cls, rng_key: jax.Array, problem: Problem, simulations: Simulations, *, given: bool = False
    ) -> "ReferenceTable":
        """Read simulations, in coordinates that are found from the prior.

        Those that were `given` as draws from the prior are tested to be, by two-sample Kolmogorov-Smirnov tests of
        their coordinates against 1,000 draws, at level `UNLIKELY`.
        """
        coordinates = Coordinates.from_prior(rng_key, problem)
        table = cls.read(coordinates, problem, simulations)
        if not given:
            return table
        drawn = table.coordinates_of(problem.draw(child(rng_key, 1), 1000).arguments[problem.site()])
        tests = [scipy.stats.ks_2samp(z, prior) for z, prior in zip(table.z.T, drawn.T)]
        worst = min(range(len(tests)), key=lambda d: tests[d].pvalue)
        checks.require(
            tests[worst].pvalue * len(tests) > UNLIKELY,
            f"`simulations` are not draws from the prior of this model: {table.coordinates.names[worst]} has a p-value "
            f"of {tests[worst].pvalue:.1g} (Kolmogorov-Smirnov). Use KernelBayes, KELFI or a model with their prior.",
        )
        return table

    def __len__(self) -> int:
        return len(self.z)

    def coordinates_of(self, arguments: np.ndarray) -> np.ndarray:
        """Coordinates `(k, D)` of arguments `(k, *ones, p)` of the simulator."""
        return self.coordinates.table(np.reshape(arguments, (len(arguments), -1)))

    def point(self, observed: np.ndarray) -> np.ndarray:
        """An observation in the shape of a row of `x`."""
        return self._counted(np.asarray(observed, np.float64)[None])[0]

    def _counted(self, x: np.ndarray) -> np.ndarray:
        """Outputs `(s, *event)` as rows of `x`."""
        if self.data_sets:
            return x.reshape(len(x), len(self.mask), -1)[:, self.mask]
        x = x.reshape(-1, *self.mask.shape)
        if self.mask.all():
            return x
        return x[:, self.mask] if self.rows_in_part else x[:, self.mask.reshape(len(self.mask), -1).all(axis=1)]

    @property
    def rows_in_part(self) -> bool:
        """A row of an output was observed in part, so that `x` is a table of numbers."""
        rows = self.mask.reshape(*self.mask.shape[:1], -1)
        return not self.data_sets and bool(rows.ndim == 2 and (rows.any(axis=1) != rows.all(axis=1)).any())

    def require_rows(self, what: str) -> None:
        """Raise where `what` would get numbers in place of outputs of the simulator's shape."""
        checks.require(
            not self.rows_in_part,
            f"{self.mask.size - self.mask.sum()} of {self.mask.size} numbers of the observation are NaN, and rows of "
            f"it were observed in part, which {what} cannot compare. Leave it or whole rows out, or use KELFI.",
        )

    def require_one_length(self, what: str) -> None:
        """Raise where `what` would get outputs of any length."""
        checks.require(
            not self.ragged,
            f"The outputs are of any length (ragged=True), which {what} here does not compare: KELFI(form="
            "KernelStatistics(rule)) and KernelABC(kernel=rule) do, by EmpiricalMeasureRule() or, of series, "
            "SignatureRule().",
        )

    def statistics(self, x: np.ndarray) -> np.ndarray:
        """Outputs `(k, *event)` as numbers `(k, q)`: of data sets under plates, and of outputs of any length, the mean
        and log standard deviation of each column, this at least a hundredth of that over all simulations; of the
        latter the log length, too."""
        if not (self.ragged or self.data_sets):
            return x.reshape(len(x), -1)
        rows, simulated = (outputs.reshape(*outputs.shape[:2], -1) for outputs in (x, self.x))
        least = np.maximum(0.01 * np.nanstd(simulated, axis=(0, 1)), 1e-300)
        found = [np.nanmean(rows, axis=1), np.log(np.maximum(np.nanstd(rows, axis=1), least))]
        return np.concatenate([*found, log_lengths(x)[:, None]] if self.ragged else found, axis=1)

    def as_data_sets(self, x: np.ndarray) -> np.ndarray:
        """Outputs `(k, *event)` as data sets `(k, n, d)`."""
        self.require_rows("a discrepancy between data sets")
        self.require_one_length("a discrepancy between data sets")
        checks.require(x.ndim in (2, 3), f"The output has shape {self.x.shape[1:]}; a data set must be (n,) or (n, d).")
        return x[..., None] if x.ndim == 2 else x

    def in_order(self, x: np.ndarray) -> np.ndarray:
        """Outputs `(k, *event)` as rows of numbers, scalar draws along plates in the order of their values."""
        return np.sort(x[..., 0], axis=1) if self.data_sets else x.reshape(len(x), -1)

    def draws(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of all data sets, `(m * n, d)`, and the coordinates of the parameters of each, `(m * n, D)`."""
        x = self.as_data_sets(self.x)
        return np.concatenate(x), np.repeat(self.z, x.shape[1], axis=0)

    def kernels(self, given: Kernel | KernelRule | None, rule: LengthScaleRule | None) -> list[Kernel]:
        """Kernels on outputs to choose from: the one that is given, or the candidates of a rule.

        When left out a Gaussian with a length scale for each number of the output; on data sets `(m, n, d)` under
        plates `exp(-MMD^2 / (2 l^2))`, with the median of the MMD as `l` and a Gaussian kernel inside, then a wider
        one. On outputs of any length each is multiplied by one on their lengths.
        """
        if given is None:
            self.require_one_length("the kernel that is chosen")
            if self.data_sets:
                measure = EmpiricalMeasureRule(rule or MedianHeuristic(), 1.0)
                return and_a_wider_one(measure(self.as_data_sets(self.x), self.z))
            each = rule or MedianHeuristic(per_dimension=True)
            return [Gaussian(each(self.x.reshape(len(self), -1), self.z))]
        self.require_rows("a kernel of your own")
        kernels = given.candidates(self.x, self.z) if isinstance(given, KernelRule) else [given]
        if not self.ragged:
            return kernels
        for kernel in kernels:
            require_any_length(kernel)
        logs = log_lengths(self.x)[:, None]
        if not np.ptp(logs):
            return kernels
        scale = float(median_heuristic(logs, ties=False))
        return [kernel if isinstance(kernel, WithLength) else WithLength(kernel, scale) for kernel in kernels]


def observed_part(problem: Problem) -> np.ndarray:
    """Part of the observation that counts at the one simulator site of a model, as `ReferenceTable.mask`."""
    site = problem.simulators[problem.site()]
    if site.simulator.batch_shape:
        return site.mask.ravel()
    return ~np.isnan(np.asarray(site.observed)) | site.simulator.ragged


def check_model(problem: Problem, engine: str) -> None:
    """Refuse models that do not consist of one observed simulator site, before any simulation is run."""
    checks.require(
        len(problem.simulators) == 1 and not problem.factors,
        f"{engine} needs a model with one simulator site and nothing else that is observed; this one has the simulator "
        f"sites {list(problem.simulators)} and the likelihoods {list(problem.factors)}. Use KELFI, or one simulator.",
    )
    name = next(iter(problem.observations))
    site = problem.simulators[name]
    site.check_observed(name)
    site.require_no_gaps(name, engine)
    plates, groups = bool(site.simulator.batch_shape), site.simulator.groups
    partly = plates and bool(np.isnan(site.counted(np.asarray(site.observed))).any())
    refused = {
        f"has {site.censored} entries known to lie in intervals (Simulator.within)": site.censored > 0,
        "has draws along plates that are of any length (ragged=True)": plates and site.simulator.ragged,
        "has draws along plates that were observed in part, with NaN for some of their numbers": partly,
        "is masked as a whole: the posterior is the prior": not site.mask.any(),
        f"is scaled by {site.scale}, and there is no likelihood to raise to that power": np.any(site.scale != 1.0),
        f"has parameters that vary along plates of shape {groups}": any(size != 1 for size in groups),
    }
    for what, found in refused.items():
        checks.require(not found, f"The observation at {name!r} {what}; {engine} compares data sets. Use KELFI.")
    free = "weight" not in {*problem.latents, *problem.deterministics}
    checks.require(free, "A site of the model is called 'weight', as weights of simulations are. Give it another name.")


def observed_anew(problem: Problem, args: tuple, kwargs: Mapping[str, Any]) -> Problem:
    """The model with another observation, for which simulations and what was learnt from them still hold.

    Raises:
        ValueError: If the prior or a simulator is another one too.
    """
    found = problem.with_data(*args, **kwargs)
    changed = [
        f"the prior of {name!r}"
        for name, old in problem.latents.items()
        if name in found.latents and _differ(old.value, found.latents[name].value)
    ] or [
        f"the simulator at {name!r}"
        for name, old in problem.simulators.items()
        if name in found.simulators and _another(old, found.simulators[name])
    ]
    checks.require(
        not changed,
        f"The new arguments of the model change {' and '.join(changed)}: the simulations of the last run are of "
        "another model. `condition` is for other observations; call `run`, also after `jax_enable_x64` was switched.",
    )
    return found


def _another(old: SimulatorSite, new: SimulatorSite) -> bool:
    """True if a site's simulator is another one: at the arguments of one prior draw, which may differ where calls have
    covariates or parameters of their own, and by the fingerprint of a new function."""
    fns, own = (old.simulator.fn, new.simulator.fn), old.simulator.groups and new.simulator.groups
    changed = not own and _differ(old.simulator.arguments, new.simulator.arguments)
    return changed or (fns[0] != fns[1] and is_another(*fns))


def _differ(old: Any, new: Any) -> bool:
    """True if numbers of one shape differ: more or fewer groups along a plate are the same model."""
    return np.shape(old) == np.shape(new) and not np.array_equal(old, new)
