"""Simulations as a value: from a run, a table, or an ArviZ object."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from os import PathLike
from typing import Any

import numpy as np

from numpyro_kme._core import Card, Saved, arviz, checks, door, frozen, in_jax_types, names_and_shapes, saveable
from numpyro_kme.kernels.data_sets import beyond_end, lengths, padded_together
from numpyro_kme.models.problem import Arrays, Problem
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.simulations.executors import Failure, SimulationError
from numpyro_kme.simulations.store import Store, StoreError


@frozen
class SimulatedMissing:
    """Read NaN in outputs as entries that a simulator does not record, and not as failure.

    For incomplete reporting, detection, or dropping out. Whether an entry is recorded is learnt with its value, so NaN
    in the observation means what it means in the simulations: it need not be missing at random. Infinite values stay
    failures.
    """


@saveable
@frozen
class Simulations(Saved):
    """Simulations `{(theta_j, x_j)}`; every array has a leading axis of the `m` simulations that are kept.

    Attributes:
        arguments: What one call of each simulator took, `{site: (m, *groups, p)}`.
        x: What the simulators gave, `{site: (m, *batch, *event)}`.
        latents: `{latent: (m, *shape)}`; empty if they are not known.
        deterministics: `{site: (m, *shape)}`.
        index: Number of each simulation in its run, `(m,)`.
        failures: How many simulations failed, by site and reason.
        failed: Latents of the simulations that failed, `{latent: (f, *shape)}`.
        attempted: Number of simulations with those that failed; 0 if that is not known.
        proposed: Number of simulations, the last ones, at latents that were chosen rather than drawn from the prior.
        repeated: Number of attempts that failed and were repeated, by `Retry`.
        near: The observation near whose posterior an engine chose these, `{site: (*batch, *event)}`; empty if none did.
    """

    arguments: Arrays
    x: Arrays
    latents: Arrays = field(default_factory=dict)
    deterministics: Arrays = field(default_factory=dict)
    index: np.ndarray = field(default_factory=lambda: np.arange(0))
    failures: Mapping[str, int] = field(default_factory=dict)
    failed: Arrays = field(default_factory=dict)
    attempted: int = 0
    proposed: int = 0
    repeated: int = 0
    near: Arrays = field(default_factory=dict)

    def _card(self) -> Card:
        failed = sum(self.failures.values())
        told = f"{failed} of {self.attempted or len(self)}, see describe_failures()" if failed else "none"
        return Card(
            f"{len(self):,} simulations",
            {
                "outputs": names_and_shapes(self.x),
                "latents": names_and_shapes(self.latents),
                "arguments": names_and_shapes(self.arguments),
                "at": f"draws from the prior; {self.proposed} of them at chosen latents" if self.proposed else "",
                "failed": told + self._repeated(),
            },
            "KELFI(model, simulations=simulations), save(path)",
        )

    def __post_init__(self):
        for name in ("arguments", "x"):
            arrays = {site: checks.unmasked(value) for site, value in getattr(self, name).items()}
            object.__setattr__(self, name, arrays)
        shapes = {site: np.shape(value) for site, value in self.x.items()}
        alike = len({shape[:1] for shape in shapes.values()}) == 1 and () not in shapes.values()
        checks.require(alike, f"`x` must have a row for each simulation, {{site: (m, *event)}}; got {shapes}.")
        rows = next(iter(shapes.values()))[0]
        if not len(self.index):
            object.__setattr__(self, "index", np.arange(rows))
        tables = ("arguments", "latents", "deterministics")
        every = {f"{name}[{site!r}]": one for name in tables for site, one in getattr(self, name).items()}
        for name, value in (every | {"index": self.index}).items():
            had = np.shape(value)
            checks.require(had[:1] == (rows,), f"`{name}` must have {rows} rows, one a simulation in `x`; got {had}.")

    def __len__(self) -> int:
        return len(self.index)

    @door
    def joined(self, further: "Simulations") -> "Simulations":
        """These simulations and further ones; those at prior draws come first."""
        begun = max(self.attempted, int(np.max(self.index)) + 1)
        names = "arguments", "x", "latents", "deterministics", *(("failed",) if self.failed and further.failed else ())
        stacked: Any = {name: _stacked(getattr(self, name), getattr(further, name)) for name in names}
        return Simulations(
            **{"failed": self.failed or further.failed} | stacked,
            index=np.concatenate([self.index, begun + further.index]),
            failures=dict(Counter(self.failures) + Counter(further.failures)),
            attempted=begun + (further.attempted or len(further)),
            proposed=self.proposed + further.proposed,
            repeated=self.repeated + further.repeated,
            near=further.near or self.near,
        )

    def _repeated(self) -> str:
        return f"; {self.repeated} attempt{' was' if self.repeated == 1 else 's were'} repeated" * bool(self.repeated)

    def warn_unless_near(self, observations: Arrays) -> None:
        """Warn where an engine chose latents near the posterior of another observation; entries that are NaN in either
        are let pass."""
        for site, near in self.near.items():
            value = observations[site]
            if np.shape(value) == np.shape(near):
                seen = ~(np.isnan(value) | np.isnan(near))
                if np.allclose(value[seen], near[seen], rtol=1e-5):
                    continue
            checks.warn(
                f"Of the {len(self)} `simulations` {self.proposed} were made in rounds near the posterior of the "
                f"observation {checks.line(near)}, and now site {site!r} has {checks.line(value)}, whose posterior may "
                "come out too wide. Leave `simulations` out, or give some at prior draws alone (num_rounds=1)."
            )

    def describe_failures(self) -> str:
        """Say how many simulations failed, why, and where: means and standard deviations of scalar latents, all and
        failed."""
        number, total = sum(self.failures.values()), self.attempted or len(self)
        if not number:
            return f"none of {total}" + self._repeated()
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.failures.items())
        where = [
            f"{name} {_mean_and_sd(value)} where all others are {_mean_and_sd(self.latents[name])}"
            for name, value in self.failed.items()
            if np.ndim(value) == 1 and len(value)
        ]
        at = f"; at {', '.join(where)}" if where else ""
        return f"{number} of {total} ({number / total:.1%}): {reasons}{at}{self._repeated()}"

    @classmethod
    @door
    def from_table(
        cls, arguments: Any, x: Any, *, site: str = "x", ragged: bool = False, missing: SimulatedMissing | None = None
    ) -> "Simulations":
        """Take simulations made elsewhere from the arguments of the simulator.

        Args:
            arguments: `(m, p)`, all numbers that one call takes, flattened in the order of the model.
            x: `(m, *event)`, what the simulator gave; with `ragged` a list of `m` arrays of any length, too.
            site: Name of the simulator site.
            ragged: Whether NaN at the end of an output says that it ends there, as in `Simulator`.
            missing: `SimulatedMissing()` where NaN is what the simulator gives for what is not recorded.
        Raises:
            ValueError: If the rows do not agree in number or hold values that are not finite.
        """
        if ragged:
            x = padded_together(x)
        arguments, x = np.asarray(in_jax_types(arguments)), np.asarray(in_jax_types(x))
        checks.table("arguments", arguments)
        _check_outputs("x", x, x.ndim - 1 if ragged else 0, missing)
        fits = x.shape[:1] == arguments.shape[:1]
        checks.require(fits, f"`arguments` and `x` must have as many rows; got {arguments.shape} and {x.shape}.")
        return cls({site: arguments}, {site: x})

    @classmethod
    @door
    def from_latents(
        cls, problem: Problem, latents: Arrays, x: Any, *, missing: SimulatedMissing | None = None
    ) -> "Simulations":
        """Take simulations made elsewhere from values of the model's latents.

        Args:
            problem: The model, as `Problem.read` gives it; it says what the simulator's arguments are.
            latents: `{latent: (m, *shape)}`, for all latents.
            x: `{site: (m, *batch, *event)}`, or the array itself if there is one simulator site; of outputs of any
                length (`Simulator(ragged=True)`) a list of arrays, too.
            missing: As in `from_table`.
        Raises:
            ValueError: If shapes do not fit the model, or `x` has values that are not finite.
        """
        x = x if isinstance(x, Mapping) else {problem.site(None, "by `x={site: ...}`"): x}
        x = {problem.site(name): value for name, value in x.items()}
        x = {n: np.asarray(in_jax_types(as_long(problem.simulators[n].simulator, value))) for n, value in x.items()}
        absent = sorted(set(problem.simulators) - set(x))
        checks.require(not absent, f"`x` has no simulations of the sites {absent}.")
        draws = problem.evaluate(latents)
        problem.require_inside_support("latents", draws.latents)
        for name, value in x.items():
            simulator = problem.simulators[name].simulator
            shape = (len(draws.arguments[name]), *simulator.shape())
            checks.require(value.shape == shape, f"`x` of site {name!r} must have shape {shape}; got {value.shape}.")
            _check_outputs(name, value, ragged_dims(simulator), missing)
        return cls(draws.arguments, x, draws.latents, draws.deterministics)

    @classmethod
    @door
    def from_arviz(cls, problem: Problem, source: Any, *, missing: SimulatedMissing | None = None) -> "Simulations":
        """Take simulations from an ArviZ object with the groups `prior` and `prior_predictive`.

        Args:
            problem: The model, as `Problem.read` gives it.
            source: An `InferenceData` or a `DataTree`, such as any engine's `to_inference_data()`, or what
                `arviz.from_netcdf` opens. Simulations that hold NaN are left out and counted.
            missing: As in `from_table`; simulations with NaN are kept then.
        Raises:
            ValueError: If a group or variable is missing, or shapes do not fit the model.
        """
        groups = arviz.read_groups(source, ("prior", "prior_predictive"))
        latents = _variables(groups["prior"], problem.latents, "prior")
        x = _variables(groups["prior_predictive"], problem.simulators, "prior_predictive")
        dims = {name: ragged_dims(site.simulator) for name, site in problem.simulators.items()}
        rows = zip(*([unsound(one, dims[name], missing) for one in x[name]] for name in x))
        kinds = ["not finite" if any(row) else "" for row in rows]
        return cls._of_kinds(problem, latents, x, kinds, np.arange(len(kinds)), missing)

    @classmethod
    @door
    def from_store(
        cls, problem: Problem, path: str | PathLike, *, missing: SimulatedMissing | None = None
    ) -> "Simulations":
        """Take what `simulate` has written to a store, of a run that ended early too, whatever its settings.

        Args:
            problem: The model, as `Problem.read` gives it.
            path: The store.
            missing: As in `from_table`.
        Raises:
            StoreError: If it is no store, empty, or damaged.
            ValueError: If shapes do not fit the model.
        """
        known: dict[str, dict[int, tuple]] = {name: {} for name in problem.simulators}
        latents: dict[int, Arrays] = {}
        for part in Store(path).parts():
            for i, row in enumerate(part.rows.tolist()):
                known.setdefault(part.site, {})[row] = part.x[i], part.kinds[i]
                latents[row] = {name: value[i] for name, value in part.latents.items()}
        ran = sorted(set.intersection(*map(set, known.values())))
        checks.require(len(ran) > 0, f"The store {path} holds no simulation: run it, or restore a copy.", StoreError)
        kinds = [next((f"{name}: {rows[row][1]}" for name, rows in known.items() if rows[row][1]), "") for row in ran]
        table = {name: np.array([latents[row][name] for row in ran]) for name in latents[ran[0]]}
        x = {name: np.array([rows[row][0] for row in ran]) for name, rows in known.items()}
        return cls._of_kinds(problem, table, x, kinds, np.array(ran), missing)

    @classmethod
    def _of_kinds(cls, problem, latents: Arrays, x: Arrays, kinds: list[str], index: np.ndarray, missing):
        """Take simulations of these numbers that have no kind of failure but an empty text, and count the others."""
        failures, sound = dict(Counter(filter(None, kinds))), np.array([not kind for kind in kinds])
        total = len(kinds)
        checks.require(bool(sound.any()), f"All {total} simulations failed: {failures}.", SimulationError)
        found = cls.from_latents(problem, of_rows(latents, sound), of_rows(x, sound), missing=missing)
        failed = of_rows(latents, ~sound)
        return replace(found, index=index[sound], failures=failures, failed=failed, attempted=total)


def of_rows(arrays: Arrays, kept: Any) -> dict[str, np.ndarray]:
    """Some rows of each array, by an index of NumPy."""
    return {name: np.asarray(value)[kept] for name, value in arrays.items()}


def ragged_dims(simulator: Simulator) -> int:
    """Dimensions of an event, if events may end before their last row; else 0."""
    return simulator.event_dim if simulator.ragged else 0


def as_long(simulator: Simulator, x: Any) -> Any:
    """Outputs of any length as long as the simulator's longest; others as they are."""
    if not simulator.ragged:
        return x
    x = padded_together(x)
    return simulator.expand(np.shape(x)[:1] + simulator.batch_shape).padded(x)


def _check_outputs(name: str, x: np.ndarray, ragged_dims: int, missing: SimulatedMissing | None) -> None:
    """That outputs `(m, ...)` are finite before their ends, or NaN where that says that nothing is recorded."""
    checks.real(name, x)
    if not ragged_dims:
        checks.instance("missing", missing, SimulatedMissing | None, "SimulatedMissing()")
        how = "Remove these simulations; where NaN says that nothing was recorded, pass `missing=SimulatedMissing()`."
        return checks.sound(name, x if missing is None else np.where(np.isnan(x), 0.0, x), how)
    wrong = [row for row, one in enumerate(x) if unsound(one, ragged_dims, None)]
    checks.require(
        not wrong,
        f"`{name}` has {len(wrong)} outputs without a row, or with values before their end that are not finite, such "
        f"as those at {wrong[:3]}. Leave them out.",
    )


def _stacked(first: Arrays, second: Arrays) -> dict[str, np.ndarray]:
    same = set(first) == set(second)
    checks.require(same, f"Only simulations of one model can be joined; got {sorted(first)} and {sorted(second)}.")
    return {name: np.concatenate([np.asarray(first[name]), np.asarray(second[name])]) for name in first}


def _mean_and_sd(values) -> str:
    return f"{np.mean(values):.3g} +- {np.std(values):.2g}"


def _variables(group: Arrays, names, what: str) -> dict[str, np.ndarray]:
    """The named variables with chains joined, `{name: (m, *shape)}`."""
    held = {name: arviz.valid(name) for name in names}
    missing = [name for name in names if held[name] not in group]
    checks.require(not missing, f"The group `{what}` has no variables {missing}; it has {list(group)}.")
    arrays = {name: np.asarray(group[held[name]]) for name in names}
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}


def unsound(x: np.ndarray, ragged_dims: int, missing: SimulatedMissing | None) -> Failure | None:
    """The failure of a simulator that gave values that are not finite; None if all are, or NaN where that is said.

    Args:
        x: One output.
        ragged_dims: Dimensions of an event, where one may end before its last row; else 0.
        missing: Whether NaN is what is not recorded.
    """
    bad = np.isinf(x) if missing else ~np.isfinite(x)
    size = bad.size
    if ragged_dims:
        events = x.reshape(-1, *x.shape[x.ndim - ragged_dims :])
        if not lengths(events).all():
            return Failure("no rows", "an output of it has no row: the first is NaN already")
        inside = ~beyond_end(events)
        bad, size = bad.reshape(inside.shape) & inside, inside.sum()
    return Failure("not finite", f"{bad.sum()} of its {size} values are not finite") if bad.any() else None
