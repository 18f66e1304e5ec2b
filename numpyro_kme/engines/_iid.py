"""A model whose data are independent draws of one distribution: data, prior draws, the map back to latents, and points
that it simulates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from numpyro_kme._core import Program, Recomputed, checks, compat, data_of, fold_in, in_jax_types, programs, progress
from numpyro_kme.engines.posterior import sites_at
from numpyro_kme.losses.base import Family
from numpyro_kme.mcmc.noise import check_data_points
from numpyro_kme.models import reading, tracing
from numpyro_kme.models.low_discrepancy import accepts, keys_of, words_of
from numpyro_kme.models.problem import Draws, Problem
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.sites import Call
from numpyro_kme.models.unconstrained import Unconstrained
from numpyro_kme.simulations.simulate import Plan
from numpyro_kme.simulations.site_runs import SiteRun

TOGETHER = 2**14
"""Points that are simulated in one call of a compiled program."""


@dataclass(frozen=True, eq=False)
class IidModel(Recomputed):
    """A model with one observed site under one data plate.

    Attributes:
        problem: The model taken apart; a site with a density is among its likelihoods.
        site: Name of the observed site.
        observed: Its observation, masked points included, `(n, *event)`.
        kept: Numbers of the points that are not masked.
        target: The latents as one unconstrained vector.
    """

    problem: Problem
    site: str
    observed: np.ndarray
    kept: np.ndarray
    target: Unconstrained

    @classmethod
    def read(cls, model: Callable, args: tuple, kwargs: Mapping) -> "IidModel":
        """Find the data plate of `model(*args, **kwargs)`, or raise an error that says how to write one."""
        problem = Problem(model, args, kwargs, *reading.read(model, args, kwargs, simulated=False))
        values = {name: latent.value for name, latent in problem.latents.items()}
        trace, _ = tracing.run(model, args, kwargs, None, values)
        unseen = sorted(name for name, site in problem.simulators.items() if site.observed is None)
        observed = sorted((*problem.factors, *(set(problem.simulators) - set(unseen))))
        checks.require(
            len(observed) == 1,
            f"the posterior bootstrap needs one observed site whose data it reweights; this model observes {observed}"
            f"{f', and not its simulator sites {unseen}' if unseen else ''}. Put all of one data point into one site.",
        )
        (site,) = observed
        frames, value = trace[site]["cond_indep_stack"], np.asarray(in_jax_types(trace[site]["value"]))
        checks.require(
            len(frames) == 1 and value.shape[:1] == (frames[0].size,),
            f"the observed site {site!r} of shape {value.shape} must stand in one plate, along its first axis; it has "
            f"plates {[(f.name, f.size) for f in frames]}. Put it, an event a point, in numpyro.plate('data', len(x)).",
        )
        checks.real(f"observation at {site!r}", value)
        checks.resolved(f"the observation at {site!r}", value, jnp.zeros(()))
        kept = _kept(site, trace[site])
        inside = [name for name in values if frames[0] in trace[name]["cond_indep_stack"]]
        checks.require(
            not inside,
            f"the latents {inside} stand inside the data plate {frames[0].name!r}, one for each data point; the "
            "bootstrap infers parameters of the distribution of one data point. Draw them inside the simulator.",
        )
        problem.require_continuous("the posterior bootstrap")
        checks.require(
            site in problem.factors or not problem.simulators[site].simulator.ragged,
            f"the draws at {site!r} are of any length (ragged=True), and losses compare draws of one. Let it return "
            "fixed statistics, or use KELFI with form=KernelStatistics(EmpiricalMeasureRule()) on one data set.",
        )
        lacking = np.flatnonzero(np.isnan(value[kept]).reshape(len(kept), -1).any(axis=1))
        checks.require(
            not len(lacking),
            f"{len(lacking)} of the {len(kept)} points of the observation at {site!r} have NaN, such as those at "
            f"{kept[lacking[:3]].tolist()}. Leave them out by numpyro.handlers.mask, or use KELFI, which takes parts.",
        )
        return cls(problem, site, value, kept, Unconstrained.of(problem))

    @property
    def data(self) -> np.ndarray:
        """The points that are not masked, `(points, *event)`."""
        return self.observed[self.kept]

    @property
    def simulator(self) -> Simulator | None:
        """The simulator at the observed site; None where it has a density."""
        found = self.problem.simulators.get(self.site)
        return None if found is None else found.simulator

    @property
    def bounded(self) -> np.ndarray:
        """Mark the unconstrained parameters of latents that are not any real number, `(dim,)`."""
        any_number = constraints.real, constraints.real_vector, constraints.real_matrix
        fns = {name: compat.innermost(latent.fn) for name, latent in self.problem.latents.items()}
        bounded = (np.full(prod(s), fns[name].support not in any_number) for name, s in self.target.shapes.items())
        return np.concatenate(list(bounded))

    def starts(self, rng_key: jax.Array, num: int) -> np.ndarray:
        """Prior draws, unconstrained, `(num, dim)`."""
        words = tracing.keys_in_order(fold_in(data_of(rng_key), np.arange(num)))
        return programs.in_blocks(self._programs[0], words)

    def latents(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Latents and deterministic sites `{site: (m, *event)}` at unconstrained `u (m, dim)`."""
        return sites_at(self.problem, programs.in_blocks(self._programs[1], u)[0])

    def covariates(self, name: str | None) -> np.ndarray | None:
        """The covariates of the points that are not masked, `(points, ...)`, from the model's argument of this name;
        the simulator's arguments that vary along the plate and depend on no latent when left out."""
        kwargs = self.problem.kwargs
        known = name is None or name in kwargs
        checks.require(known, f"`covariates` names the argument {name!r}; run got the arguments {sorted(kwargs)}.")
        rows: Any = None if name is None else np.asarray(kwargs[name], np.float64)
        if self.simulator is None:
            return None
        if rows is None and prod(self.simulator.groups) > 1:
            given = programs.in_blocks(self._programs[1], self.starts(jax.random.key(0), 3))[1]
            known = np.all(given == given[:1], axis=(0, 1)) & np.any(given != given[:, :1], axis=(0, 1))
            rows = given[0][:, known].astype(np.float64) if known.any() else None
        how = "pass covariates=the name of the model's argument that holds the covariates"
        check_data_points(self.site, self.data, self.simulator, rows, how)
        whole = rows is None or len(rows) == len(self.observed)
        checks.require(whole, f"`covariates` must have {len(self.observed)} rows, as the data; got {np.shape(rows)}.")
        return None if rows is None else rows[self.kept]

    def one_call(self) -> Simulator:
        """The simulator of one data point."""
        why = "This model has a density and no simulator; use NegativeLogLikelihood, or a Simulator site."
        whole = checks.given(self.simulator, why, TypeError)
        params = (np.zeros(shape, param.dtype) for shape, param in zip(whole.call_shapes, whole.params))
        declared = dict(shape=whole.event_shape, dtype=whole.dtype) if whole.black_box else {}
        return Simulator(whole.fn, *params, event_dims=tuple(map(len, whole.call_shapes)), **declared)

    def arguments(self, u: np.ndarray) -> np.ndarray:
        """Arguments of the simulator at unconstrained `u (m, dim)`: `(m, A)`, or `(m, points, A)` where they vary."""
        found = programs.in_blocks(self._programs[1], u)[1]
        return found[:, self.kept] if found.ndim == 3 and found.shape[1] > 1 else found.reshape(len(u), -1)

    def family(self, covariates: np.ndarray | None) -> Family:
        """The distribution of one data point as a function of unconstrained parameters."""
        call = None if self.simulator is None else Call.of(self.one_call())
        return Family(partial(self._simulate, call), self.target.dim, self._log_density, covariates)

    def predictive(self, covariates: np.ndarray | None) -> Callable[[jax.Array, int], Any]:
        """The prior predictive distribution of one data point, as a traceable sampler `(rng_key, num) -> (num, ...)`.

        With covariates, a point is a covariate of the data at random and a response.
        """
        checks.given(self.simulator, "a prior predictive needs a Simulator site; give `centering` a distribution.")
        family = self.family(covariates)

        def one(rng_key):
            prior_key, noise_key, row_key = jax.random.split(rng_key, 3)
            u = self._start(jax.random.key_data(prior_key)[None])
            if family.covariates is None:
                return family.simulate(u, noise_key)
            row = jax.random.randint(row_key, (), 0, len(self.data))
            return jnp.asarray(family.covariates)[row], family.simulate(u, noise_key, row)

        return lambda rng_key, num: jax.vmap(one)(jax.random.split(rng_key, num))

    def _simulate(self, call, u, rng_key, row=None):
        arguments = self._at(u)[1]
        arguments = arguments.reshape(-1) if row is None else arguments[jnp.asarray(self.kept)[row]]
        return call(arguments, rng_key)

    def _log_density(self, u, points):
        fn = self._run(self.target.constrain(u))[0][self.site]["fn"]
        if len(points) == len(self.kept) < len(self.observed):
            whole = jnp.zeros((len(self.observed), *points.shape[1:]), points.dtype).at[self.kept].set(points)
            return fn.log_prob(whole)[self.kept]
        if len(points) != len(self.kept):
            while isinstance(fn, compat.WRAPPERS) and fn.base_dist.event_shape == fn.event_shape:
                fn = fn.base_dist
            alike = fn.batch_shape in ((), (1,))
            checks.require(alike, "centering draws have no covariates: where parameters vary, use concentration=0.")
        return fn.log_prob(points)

    @cached_property
    def _programs(self) -> tuple[Program, Program]:
        return Program(jax.vmap(self._start)), Program(jax.vmap(self._at))

    def _start(self, words):
        """A prior draw by keys of these words, unconstrained."""
        trace, _ = self._run({}, words)
        return self.target.flatten({name: trace[name]["value"] for name in self.target.shapes})

    def _at(self, u):
        """Latents, and the arguments of the simulator where there is one."""
        latents = self.target.constrain(u)
        simulator = self._run(latents)[1].get(self.site)
        return latents, None if simulator is None else simulator.arguments

    def _run(self, latents, words=None):
        """The trace at latents or at draws by keys of these words, and the simulator where there is one."""
        return tracing.run(self.problem.model, self.problem.args, self.problem.kwargs, words, latents)


def _kept(name: str, site) -> np.ndarray:
    """Numbers of the data points that count."""
    scale = compat.scale(site)
    checks.require(
        bool(np.all(np.asarray(scale) == 1.0)),
        f"the observed site {name!r} is scaled by {scale}, which has no meaning for the posterior bootstrap: it "
        "weights the data itself. Leave numpyro.handlers.scale out, or use handlers.generalized_bayes with a `weight`.",
    )
    mask = np.asarray(compat.mask(site["fn"])).reshape(len(site["value"]), -1)
    kept = np.flatnonzero(mask.all(axis=1))
    checks.require(
        len(kept) >= 2 and not mask[~mask.all(axis=1)].any(),
        f"the bootstrap needs whole points: of {len(mask)} at site {name!r} {len(kept)} are not masked and "
        f"{int(mask.any(axis=1).sum()) - len(kept)} are masked in part; it takes at least two points, each whole.",
    )
    return kept


@dataclass(frozen=True, eq=False)
class PointSimulator(Recomputed):
    """A model's data points at given parameters.

    Attributes:
        arguments: `x (D, p) -> (D, A)`, the simulator's arguments at parameters; with covariates `(D, n, A)`.
        simulator: The simulator, for one data point.
        plan: How a black box is run.
    """

    arguments: Callable[[np.ndarray], np.ndarray]
    simulator: Simulator
    plan: Plan

    def __call__(self, rng_key: jax.Array, x: np.ndarray, num_nodes: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Simulate `num_nodes` points at each of the parameters `(D, p)`, and with covariates for each data point.

        Args:
            rng_key: Makes noise, of its own for each of the parameters.
            x: Parameters.
            num_nodes: A power of two.
            rows: With covariates, some of the data points by number.
        Returns:
            `(D, num_nodes, *event)`; with covariates `(D, n, num_nodes, *event)`.
        """
        arguments = self.arguments(x)
        arguments = arguments if rows is None else arguments[:, rows]
        lead, dim = arguments.shape[:-1], arguments.shape[-1]
        flat = np.ascontiguousarray(arguments.reshape(-1, dim))
        simulate = self._black_box if self.simulator.black_box else self._compiled
        return simulate(rng_key, flat, num_nodes).reshape(*lead, num_nodes, *self.simulator.event_shape)

    def _compiled(self, rng_key, flat, num_nodes):
        program, even = self._program
        key = data_of(rng_key)
        path = np.bitwise_xor.reduce(fold_in(key, np.arange(2)), axis=-1)
        paths = fold_in(path, np.arange(len(flat))) if even else fold_in(key, np.arange(num_nodes))

        def simulate(rows):
            own, nodes = np.divmod(rows.astype(np.uint32), np.uint32(num_nodes))
            words = words_of(paths[own], num_nodes, nodes) if even else fold_in(paths[nodes], own)
            return program(words, flat[own])

        return programs.in_blocks(simulate, np.arange(len(flat) * num_nodes), TOGETHER)

    @cached_property
    def _program(self) -> tuple[Program, bool]:
        """The simulator as it is now, by words of keys and arguments, and whether its keys are of low discrepancy: a
        function may refer to what has changed since the last run."""
        call = Call.of(self.simulator)
        even = accepts(call.fn, *call.zeros)
        keys = keys_of if even else jax.random.wrap_key_data
        return Program(jax.vmap(lambda words, arguments: call(arguments, keys(words))), thorough=True), even

    def _black_box(self, rng_key, flat, num_nodes):
        draws = Draws({}, {"x": np.repeat(flat, num_nodes, axis=0)}, {})
        with progress.progress(None, "simulating", self.plan.progress_bar, len(flat) * num_nodes) as bar:
            return SiteRun(rng_key, "x", self.simulator, draws, self.plan, bar).all().x
