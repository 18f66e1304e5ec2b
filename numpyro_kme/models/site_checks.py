"""What a model with simulators may hold: errors for sites that no engine takes."""

import numpy as np
import numpyro.distributions as dist

from numpyro_kme._core import checks, compat


def check_sites(trace, simulators, parents) -> None:
    """Raise an error for the sites of a traced model that nothing can be inferred with."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    params = [name for name, site in trace.items() if site["type"] == "param"]
    checks.require(
        not params,
        f"The model has the `param` sites {params}, which have no prior. Give them one with numpyro.sample "
        "(or the handler numpyro.handlers.lift), or pass their values as arguments of the model.",
    )
    checks.require(
        len(simulators) > 0,
        f"The model has no simulator site; its sites are {list(sites)}. Add one: numpyro.sample('x', "
        "numpyro_kme.Simulator(fn, *params), obs=x).",
    )
    for name, site in sites.items():
        fed = [parent for parent in parents[name] if parent in simulators]
        checks.require(
            not fed,
            f"Site {name!r} depends on the output of the simulator at {fed and fed[0]!r}, whose density is not known. "
            "Put that step inside the simulator's function, so that its output is what is observed.",
        )
        if name in simulators:
            dtype = site["value"].dtype
            checks.require(
                dtype.kind in "bfiu",
                f"The observation at {name!r} has dtype {dtype}; it must hold real numbers. Give real and imaginary "
                "parts as numbers of their own, and let the simulator return them so.",
                TypeError,
            )
            found, expected = np.shape(site["value"]), simulators[name].shape()
            checks.require(
                found == expected,
                f"The observation at {name!r} has shape {found}; the simulator `{simulators[name].name}` gives "
                f"shape {expected}{', or fewer rows' if simulators[name].ragged else ''}."
                if site["is_observed"]
                else f"Site {name!r} has shape {found} where its simulator gives shape {expected}. A simulator "
                "inside `scan` is not supported: make the whole series one call of a simulator.",
            )
            lost = np.isnan(np.asarray(simulators[name].arguments))
            checks.require(
                not lost.any(),
                f"{int(lost.sum())} of the {lost.size} arguments of the simulator at {name!r} are NaN at a prior draw: "
                "covariates have to be known. Leave these units out, or give what is missing a prior; in an "
                "observation NaN means not observed.",
            )
    latents = [name for name, site in sites.items() if not site["is_observed"] and name not in simulators]
    checks.require(len(latents) > 0, f"The model has no latent site to infer; its sites are {list(sites)}.")
    for name in latents:
        fn, scale = sites[name]["fn"], sites[name]["scale"]
        masked = not np.all(compat.mask(fn))
        checks.require(
            not masked and (scale is None or bool(np.all(np.asarray(scale) == 1.0))),
            f"The prior of {name!r} is {'masked' if masked else f'scaled, by {scale}'}, so that its density is not "
            "that of draws from it. Put numpyro.handlers.mask and numpyro.handlers.scale around observed sites only.",
        )
        checks.require(
            not isinstance(compat.innermost(fn), dist.Delta),
            f"The prior of {name!r} is one value (Delta). A fixed value belongs in numpyro.deterministic.",
        )
