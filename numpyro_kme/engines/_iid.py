"""A model whose data are independent draws of one distribution, as a `Generator`: data, starting points, and the map
back to latents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Predictive

from numpyro_kme._core import checks, compat
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import in_jax_types, on_host
from numpyro_kme._core.programs import Program
from numpyro_kme.bootstrap.weights import DirichletProcess
from numpyro_kme.losses.generator import Generator, NormalNoise, has_derivatives
from numpyro_kme.mcmc.loss_density import declared, one_point
from numpyro_kme.mcmc.noise import NoiseForm, even_noise
from numpyro_kme.models import reading, tracing
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.staging import Stages
from numpyro_kme.models.unconstrained import Unconstrained


@dataclass(frozen=True, eq=False)
class IidModel:
    """A model with one observed site under one data plate.

    Attributes:
        model: Run as `model(*args, **kwargs)`.
        site: Name of the observed site.
        observed: Its observation, masked points included, `(n, *event)`.
        kept: Numbers of the points that are not masked.
        target: The latents as one unconstrained vector.
        problem: The model taken apart, if the site is a simulator; a site with a density has none.
    """

    model: Callable
    args: tuple
    kwargs: Mapping[str, Any]
    site: str
    observed: np.ndarray
    kept: np.ndarray
    target: Unconstrained
    problem: Problem | None

    @classmethod
    def read(cls, model: Callable, args: tuple, kwargs: Mapping) -> "IidModel":
        """Find the data plate of `model(*args, **kwargs)`, or raise an error that says how to write one."""
        sizes = [np.shape(leaf)[0] for leaf in jax.tree.leaves((args, kwargs)) if np.ndim(leaf)]
        empty = "the data are empty; the posterior bootstrap needs at least two points along the data plate."
        checks.require(0 not in sizes, empty)
        with reading.explained(model, args, kwargs):
            sketch = tracing.trace_of(model, args, kwargs, tracing.ProperPriors())
        tracing.check_plates(sketch)
        samples = {name: site for name, site in sketch.items() if site["type"] == "sample"}
        observed = {name: site for name, site in samples.items() if site["is_observed"]}
        simulated = {name for name, site in samples.items() if isinstance(compat.innermost(site["fn"]), Simulator)}
        unseen = sorted(simulated - set(observed))
        checks.require(
            len(observed) == 1,
            f"the posterior bootstrap needs one observed site whose data it reweights; this model observes "
            f"{sorted(observed)}{f', and its simulator sites {unseen} are not observed' if unseen else ''}. Put "
            "everything that belongs to one data point into one site.",
        )
        (site,) = observed
        frames = observed[site]["cond_indep_stack"]
        checks.require(
            len(frames) == 1 and np.shape(observed[site]["value"])[:1] == (frames[0].size,),
            f"the observed site {site!r} of shape {np.shape(observed[site]['value'])} must stand in one plate, the "
            f"data plate, along its first axis; it has the plates {[(frame.name, frame.size) for frame in frames]}. "
            f"Write: with numpyro.plate('data', len(x)): numpyro.sample({site!r}, ..., obs=x), with one event for each "
            "data point.",
        )
        value = np.asarray(in_jax_types(observed[site]["value"]))
        checks.real(f"observation at {site!r}", value)
        kept = _kept(site, observed[site])
        latents = {name: found for name, found in samples.items() if name != site}
        inside = [name for name, found in latents.items() if frames[0] in found["cond_indep_stack"]]
        checks.require(
            not inside,
            f"the latents {inside} stand inside the data plate {frames[0].name!r}, one for each data point; the "
            "bootstrap infers parameters of the distribution of one data point. Draw them inside the simulator.",
        )
        problem = Problem.read(model, *args, **kwargs) if site in simulated else None
        if problem is not None:
            problem.require_continuous("the posterior bootstrap")
            checks.require(
                not problem.simulators[site].simulator.ragged,
                f"the draws at {site!r} are of any length (ragged=True), and the losses of the posterior bootstrap "
                "compare draws of one. Let the simulator return statistics of fixed number, or use KELFI with "
                "form=KernelStatistics(EmpiricalMeasureRule()) on one data set.",
            )
        lacking = np.flatnonzero(np.isnan(value[kept]).reshape(len(kept), -1).any(axis=1))
        checks.require(
            not len(lacking),
            f"{len(lacking)} of the {len(kept)} points of the observation at {site!r} have NaN, such as those at "
            f"{kept[lacking[:3]].tolist()}, and the posterior bootstrap weights whole points. Leave them out, as by "
            "numpyro.handlers.mask, or use KELFI, which takes points that were observed in part.",
        )
        target = Unconstrained.read(model, args, kwargs, {name: found["value"] for name, found in latents.items()})
        return cls(model, args, kwargs, site, value, kept, target, problem)

    @property
    def data(self) -> np.ndarray:
        """The points that are not masked, `(points, *event)`."""
        return self.observed[self.kept]

    @on_host
    def starts(self, rng_key: jax.Array, num: int) -> np.ndarray:
        """Prior draws, unconstrained, `(num, dim)`."""
        if self.problem is not None:
            draws = self.problem.draw(rng_key, num).latents
        else:
            prior = Predictive(self.model, num_samples=num, return_sites=list(self.target.shapes))
            with tracing.one_model_at_a_time():
                draws = prior(rng_key, *self.args, **self.kwargs)
        return self.unconstrain(draws)

    @on_host
    def latents(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Latents and deterministic sites `{site: (m, *event)}` at unconstrained `u (m, dim)`."""
        if self.problem is not None and not self.problem.deterministics:
            return self.target.constrain_rows(u)

        def one(u):
            trace, _ = self._run(u)
            further = [name for name, site in trace.items() if site["type"] == "deterministic"]
            kept = further if self.problem is None else self.problem.deterministics
            return {name: trace[name]["value"] for name in (*self.target.shapes, *kept)}

        return Program(jax.vmap(one))(u)

    @on_host
    def unconstrain(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Inverse of `latents`, without deterministic sites: `(m, dim)`."""
        points = {name: np.asarray(latents[name], np.float64) for name in self.target.shapes}
        return self.target.flatten_rows(points)

    def differs_in_data_alone(self, other: "IidModel") -> bool:
        """Whether two runs of a model differ in the observed values at most."""
        ours, structure = jax.tree.flatten((self.args, self.kwargs))
        theirs, another = jax.tree.flatten((other.args, other.kwargs))

        def alike(a, b):
            data = np.array_equal(a, self.observed) and np.array_equal(b, other.observed)
            return np.shape(a) == np.shape(b) and (data or np.array_equal(a, b))

        same = str(structure) == str(another) and np.array_equal(self.kept, other.kept)
        return same and all(alike(a, b) for a, b in zip(ours, theirs))

    def generator(self, covariates: str | None = None) -> Generator:
        """The distribution of one data point as a function of unconstrained parameters; make it once, and reuse it.

        Args:
            covariates: Name of the model's keyword argument that holds them.
        """
        checks.require(
            covariates is None or covariates in self.kwargs,
            f"`covariates` names the argument {covariates!r}; run got the keyword arguments {sorted(self.kwargs)}.",
        )
        rows: Any = None if covariates is None else self.kwargs[covariates]
        if self.problem is None:
            return Generator(_no_draws, NormalNoise(1), self.target.dim, log_density=self._log_density)
        simulator = self.problem.simulators[self.site].simulator
        varies = simulator.groups not in ((), (1,))
        checks.require(
            varies == (rows is not None),
            f"the simulator's parameters have batch shape {simulator.groups} and `covariates` is "
            f"{'missing' if rows is None else 'given'}. Where parameters vary along the data plate, say with "
            "what: pass covariates=the name of the model's argument that holds the covariates; otherwise leave it out.",
        )
        checks.require(
            rows is None or len(rows) == len(self.observed),
            f"`covariates` must have one row for each of the {len(self.observed)} data points; got {np.shape(rows)}.",
        )
        form = even_noise(simulator)
        generator = Generator(
            partial(self._simulate, form),
            form.rule,
            self.target.dim,
            covariates=None if rows is None else np.asarray(rows, np.float64)[self.kept],
            differentiable=simulator.has_rsample,
        )
        differentiable = generator.differentiable and has_derivatives(generator)
        return _in_stages(replace(generator, differentiable=differentiable))

    @property
    def noise(self) -> str:
        """What the simulator's noise is, in words; empty for a density."""
        return "" if self.problem is None else even_noise(self.problem.simulators[self.site].simulator).note

    def predictive(self, generator: Generator) -> Callable[[jax.Array, int], Any]:
        """The prior predictive distribution of one data point, as a traceable sampler `(rng_key, num) -> (num, ...)`.

        With covariates, a point is a covariate of the data at random and a response.
        """
        checks.require(
            self.problem is not None,
            "centring on the model's own prior predictive needs a Simulator site; give `centering` a distribution or a "
            "sampler.",
        )
        return partial(self._predicted, generator)

    def _predicted(self, generator, rng_key, num):
        def one(rng_key):
            prior_key, noise_key, row_key = jax.random.split(rng_key, 3)
            trace = tracing.trace_of(self.model, self.args, self.kwargs, keys=jax.random.key_data(prior_key)[None])
            u = self.target.flatten({name: trace[name]["value"] for name in self.target.shapes})
            noise = generator.noise.sample(noise_key)
            if generator.covariates is None:
                return generator.simulate(u, noise)
            row = jax.random.randint(row_key, (), 0, len(self.data))
            return jnp.asarray(generator.covariates)[row], generator.simulate(u, noise, row)

        return jax.vmap(one)(jax.random.split(rng_key, num))

    def _simulate(self, form: NoiseForm, u, noise, row=None):
        simulator = self._run(u)[1][self.site]
        params = simulator.params
        if simulator.groups != ():
            place = 0 if row is None else jnp.asarray(self.kept)[row]
            params = [param[place] for param in simulator.broadcast_params(simulator.groups)]
        return one_point(form.applied(simulator.fn), params, noise, declared(simulator))

    def _log_density(self, u, points):
        fn = self._run(u)[0][self.site]["fn"]
        if len(points) == len(self.kept) < len(self.observed):
            whole = jnp.zeros((len(self.observed), *points.shape[1:]), points.dtype).at[self.kept].set(points)
            return fn.log_prob(whole)[self.kept]
        if len(points) != len(self.kept):
            while isinstance(fn, compat.WRAPPERS) and fn.base_dist.event_shape == fn.event_shape:
                fn = fn.base_dist
            checks.require(
                fn.batch_shape in ((), (1,)),
                "centering draws have no covariates: with parameters that vary along the data plate, use "
                "concentration=0.",
            )
        return fn.log_prob(points)

    def _run(self, u):
        """The trace at unconstrained parameters, and the simulator where there is one."""
        return tracing.run(self.model, self.args, self.kwargs, None, self.target.constrain(u))


@on_host
def _in_stages(generator: Generator) -> Generator:
    """The same with what follows from the noise alone as a part of the noise, where it follows from normals."""
    noise = generator.noise
    if not isinstance(noise, NormalNoise):
        return generator
    u, z = (jax.ShapeDtypeStruct((size,), np.float64) for size in (generator.dim, noise.dim))
    row = () if generator.covariates is None else (jax.ShapeDtypeStruct((), int),)
    stages = Stages(partial(_of_normals, generator.simulate, noise.transform), (u, z, *row))
    if not stages.pay:
        return generator
    return replace(generator, noise=NormalNoise(noise.dim, stages.of_noise), simulate=stages.rest)


def _of_normals(simulate, transform, u, z, *row):
    return simulate(u, transform(z), *row)


@frozen
class Read:
    """A model read as a generator, whose compiled programs serve other data.

    Attributes:
        engine: The settings.
        first: The model with the data that it was first read with.
        iid: The same with the present data.
        generator: The simulator.
        process: The Dirichlet process.
        code: Fingerprints of the model's parts.
    """

    engine: Any
    first: IidModel
    iid: IidModel
    generator: Generator
    process: DirichletProcess
    code: Mapping[str, str]


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
        f"of the {len(mask)} points at site {name!r}, {len(kept)} are not masked and "
        f"{int(mask.any(axis=1).sum()) - len(kept)} are masked in part; the posterior bootstrap needs at least two "
        "points, and each as a whole or not at all.",
    )
    return kept


def _no_draws(u, noise):
    raise checks.explained(
        "This model has a density and no simulator; use NegativeLogLikelihood, or a Simulator site.", TypeError
    )
