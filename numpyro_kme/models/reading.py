"""How a model is read: which sites it has, what depends on what, and errors for what no engine takes."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.inspect import get_model_relations

from numpyro_kme._core import checks, compat
from numpyro_kme.models import tracing
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.sites import Latent, SimulatorSite, dimensions

Parts = tuple[Mapping[str, Latent], Mapping[str, SimulatorSite], tuple[str, ...], Mapping[str, tuple[str, ...]]]
"""Parts of a model, as the last fields of `Problem`: latents, simulators, factors and deterministic sites."""


@tracing.one_model_at_a_time()
def read(model: Callable, args: tuple, kwargs: Mapping, before: Any = None, simulated: bool = True) -> Parts:
    """Read the parts of `model(*args, **kwargs)`; see `Problem.read`. The dependence of sites is that of the same model
    with other data, `before`, where the sites are the same. One that is not to be `simulated` needs no simulator."""
    checks.instance("model", model, Callable, "a NumPyro model, a function")
    tracing.refuse_seeded(model)
    with explained(model, args, kwargs):
        trace, simulators = tracing.run(model, args, kwargs, None, {})
    tracing.check_plates(trace)
    _check_kinds(trace, simulators, simulated)
    parents = {}
    if before is not None:
        parents = dict.fromkeys((*before.deterministics, *before.factors), ())
        parents |= {name: site.parents for name, site in (*before.latents.items(), *before.simulators.items())}
    known = {name for name, site in trace.items() if site["type"] != "plate"} == set(parents)
    parts = _parts_of(trace, simulators, parents if known else _parents(model, args, kwargs, trace, simulators))
    if not known:
        _check_weights(*parts[:2], model, args, kwargs)
    return parts


def _parents(
    model: Callable, args: tuple, kwargs: Mapping, trace: Mapping, simulators: Mapping[str, Simulator]
) -> dict[str, tuple[str, ...]]:
    """The sample sites that each site depends on, directly or through deterministic sites.

    NumPyro runs the model again for it, which shows where a simulator's function is made anew each time.
    """
    again = handlers.trace(tracing.PresentPrecision(model))
    with explained(model, args, kwargs), tracing.as_numpyro_does(), handlers.block():
        upstream = get_model_relations(again, args, dict(kwargs))["sample_sample"]
    for name, simulator in simulators.items():
        if compat.innermost(again.trace[name]["fn"]).fn != simulator.fn:
            checks.warn(
                f"The simulator `{simulator.name}` of site {name!r} is a new function each time the model runs, a "
                "lambda or a function defined inside the model, so JAX compiles it again each time. Define it outside."
            )
    found: dict[str, tuple[str, ...]] = {}
    for name in upstream:
        behind, pending = set[str](), list(upstream[name])
        while pending:
            parent = pending.pop()
            if trace[parent]["type"] == "deterministic":
                pending.extend(upstream[parent])
            else:
                behind.add(parent)
        found[name] = tuple(site for site in trace if site in behind)
    return found


@contextmanager
def explained(model: Callable, args: tuple, kwargs: Mapping):
    """Say which model failed, and how it was run where that may be why."""
    try:
        yield
    except Exception as error:
        if checks.is_explained(error):
            raise
        run = f" It was run with {len(args)} positional arguments and the keyword arguments {sorted(kwargs)}."
        reason: Any = error
        if isinstance(error, NotImplementedError):
            frame = inspect.trace()[-1].frame
            reason = f"`{type(frame.f_locals.get('self')).__name__}` does not define `{frame.f_code.co_name}`"
        hints = {
            "broadcast": " Do the batch shapes of its sites fit its plates (`event_dims` of a Simulator)?",
            "size of plate": " Without data there is nothing to observe: pass at least one number along each plate.",
            "argument": run,
            "NoneType": run,
        }
        raise checks.explained(
            f"The model `{getattr(model, '__name__', model)}` failed while its sites were read: {reason} "
            f"({type(error).__name__}).{''.join(hint for words, hint in hints.items() if words in str(error))}"
        ) from error


def _check_kinds(trace: Mapping, simulators: Mapping[str, Simulator], simulated: bool) -> None:
    """Require a simulator where the model must be `simulated`, a latent, and no parameter without a prior."""
    kinds: dict[str, list[str]] = {"sample": [], "param": [], "latent": []}
    for name, site in trace.items():
        kinds.setdefault(site["type"], []).append(name)
        if site["type"] == "sample" and not site["is_observed"] and name not in simulators:
            kinds["latent"].append(name)
    checks.require(
        not kinds["param"],
        f"The model has the `param` sites {kinds['param']}, which have no prior. Give them one with numpyro.sample "
        "(or the handler numpyro.handlers.lift), or pass their values as arguments of the model.",
    )
    simulates = len(simulators) > 0 or not simulated
    checks.require(simulates, f"The model has no simulator site among {kinds['sample']}: add kme.Simulator(fn, theta).")
    checks.require(len(kinds["latent"]) > 0, f"The model has no latent site to infer; its sites are {kinds['sample']}.")


def _parts_of(trace: Mapping, simulators: Mapping[str, Simulator], parents: Mapping[str, tuple[str, ...]]) -> Parts:
    """Each site of a traced model, checked, where it belongs."""
    latents: dict[str, Latent] = {}
    simulated: dict[str, SimulatorSite] = {}
    factors: list[str] = []
    deterministics: dict[str, tuple[str, ...]] = {}
    for name, site in trace.items():
        fed = set(parents.get(name, ())) & set(simulators)
        if site["type"] == "deterministic" and not fed:
            deterministics[name] = dimensions(name, site)
        if site["type"] != "sample":
            continue
        checks.require(
            not fed,
            f"Site {name!r} depends on the output of the simulator at {min(fed, default='')!r}, whose density is not "
            "known. Put that step inside the simulator's function, so that its output is what is observed.",
        )
        if name in simulators:
            simulated[name] = SimulatorSite.of(name, simulators[name], site, parents[name])
        elif site["is_observed"]:
            _check_likelihood(name, site)
            factors.append(name)
        else:
            _check_prior(name, site)
            series = (name,) if "_scan_current_index" in site["infer"] else ()  # each step depends on the one before
            behind = parents[name] or series
            latents[name] = Latent(site["fn"], np.asarray(site["value"]), behind, dimensions(name, site))
    return latents, simulated, tuple(factors), deterministics


def _check_likelihood(name: str, site: Mapping) -> None:
    """Require that an observation counts each of its numbers once."""
    seen, own = np.shape(site["value"]), site["fn"].shape()
    checks.require(
        isinstance(site["fn"], dist.Unit) or checks.expands(seen, own) or checks.expands(own, seen),
        f"The observation at {name!r} has shape {seen} and its distribution {own}, of which neither expands to the "
        "other: numbers would be counted several times, or not at all. Give the observation the shape of its plates.",
    )


def _check_prior(name: str, site: Mapping) -> None:
    """Require a prior whose density is that of draws from it."""
    fn, scale = site["fn"], site["scale"]
    masked = not np.all(compat.mask(fn))
    checks.require(
        not masked and (scale is None or bool(np.all(np.asarray(scale) == 1.0))),
        f"The prior of {name!r} is {'masked' if masked else f'scaled, by {scale}'}, so that its density is not that of "
        "draws from it. Put numpyro.handlers.mask and numpyro.handlers.scale around observed sites only.",
    )
    free = not isinstance(compat.innermost(fn), dist.Delta)
    checks.require(free, f"The prior of {name!r} is one value (Delta), which belongs in numpyro.deterministic.")


def _check_weights(latents: Mapping, simulators: Mapping, model: Callable, args: tuple, kwargs: Mapping) -> None:
    """Require masks and scales that are known before anything is inferred."""

    def weights(name, latents):
        site = tracing.run(model, args, kwargs, None, latents)[0][name]
        return compat.mask(site["fn"]), compat.scale(site)

    for name, site in simulators.items():
        if site.weighted:
            values = {latent: jnp.asarray(known.value) for latent, known in latents.items()}
            behind = compat.depends_on(partial(weights, name), values)
            checks.require(not behind, f"The mask or scale of {name!r} depends on {behind}. Let it depend on data.")
