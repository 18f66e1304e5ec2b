"""How the arguments of a simulator follow from latents, and how those are mapped to normals."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from scipy.special import ndtri

from numpyro_kme._core.host import in_present_precision, on_host, to_host
from numpyro_kme.models import link_functions, normal_mixtures, normalise
from numpyro_kme.models.link_functions import Column
from numpyro_kme.models.problem import Draws, Latent, Problem


class NotExact(Exception):
    """Why the prior gives no exact coordinates: half a sentence, to follow 'because'."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Independent:
    """Sites whose priors do not depend on each other."""

    fns: tuple[dist.Distribution, ...]

    def to_normal(self, values):
        """Standard normals, site by site."""
        return tuple(normalise.to_normal(fn, value) for fn, value in zip(in_present_precision(self.fns), values))

    def from_normal(self, z):
        """Values, site by site."""
        return tuple(normalise.from_normal(fn, part) for fn, part in zip(in_present_precision(self.fns), z))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sequential:
    """Sites whose priors depend on sites before them: the model is run to find each prior."""

    problem: Problem = field(metadata={"static": True})
    names: tuple[str, ...] = field(metadata={"static": True})

    def to_normal(self, values):
        """Standard normals, site by site."""
        z = self.problem.to_normal(dict(zip(self.names, values)))
        return tuple(z[name] for name in self.names)

    def from_normal(self, z):
        """Values, site by site."""
        values = self.problem.from_normal(dict(zip(self.names, z)))
        return tuple(values[name] for name in self.names)


def exact(problem: Problem, site: str, draws: Draws) -> dict[str, Any]:
    """The fields of exact coordinates; raises `NotExact` if there are none."""
    _refuse(draws.arguments[site].ndim > 2, "the simulator's parameters vary along plates")
    matches = _match(draws.arguments[site], draws.latents)
    sites = {match.site for match in matches if match.site is not None}
    used = {name: latent for name, latent in problem.latents.items() if name in sites}
    sizes = [latent.value.size for latent in used.values()]
    first = dict(zip(used, np.cumsum([0, *sizes[:-1]]).tolist()))

    columns = [
        match.column if match.site is None else replace(match.column, entry=first[match.site] + match.place)
        for match in matches
    ]
    readers = {column.entry: k for k, column in reversed(list(enumerate(columns))) if matches[k].site is not None}
    entries = tuple(sorted(readers))
    shown = {name: [e - first[name] for e in entries if 0 <= e - first[name] < n] for name, n in zip(used, sizes)}
    _check(used, shown)
    sequential = any(latent.parents for latent in used.values())
    fns, parts = _maps(used, shown, mixtures=not sequential)
    mixture = normal_mixtures.product(parts)
    number = len(mixture.weights)
    law = "standard normal" if number == 1 else f"a mixture of {number} normals"
    names = [_label(name, i) for name, latent in used.items() for i in np.ndindex(latent.value.shape)]
    return {
        "columns": tuple(columns),
        "priors": Sequential(problem, tuple(used)) if sequential else Independent(fns),
        "rest": np.concatenate([latent.value.ravel() for latent in used.values()]).astype(np.float64),
        "mixture": mixture,
        "sites": tuple((name, latent.value.shape) for name, latent in used.items()),
        "entries": entries,
        "readers": tuple(readers[entry] for entry in entries),
        "names": tuple(names[entry] for entry in entries),
        "exact": True,
        "one_to_one": len(entries) == sum(latent.value.size for latent in problem.latents.values()),
        "note": f"The arguments of the simulator at {site!r} are functions of {', '.join(used)}, entry by "
        f"entry; in these coordinates the prior is exactly {law}.",
    }


@on_host
def standardised(table: np.ndarray, what: str, why: str, *, choose_links: bool) -> dict[str, Any]:
    """The fields of inexact coordinates: median 0, and 68 % of the rows of a table between -1 and 1."""
    table = np.asarray(table, np.float64)
    moving = np.flatnonzero(np.ptp(table, axis=0) > 0.0)
    links = {k: _most_normal(table[:, k]) if choose_links else link_functions.IDENTITY for k in moving}
    columns = [link_functions.constant(value) for value in table[0]]
    for entry, k in enumerate(moving):
        columns[k] = link_functions.column(links[k], entry)
    t = np.stack([np.asarray(links[k].inverse(table[:, k])) for k in moving], axis=1)
    low, median, high = np.quantile(t, [0.158655, 0.5, 0.841345], axis=0)
    spread = np.where(high > low, 0.5 * (high - low), t.std(axis=0))
    return {
        "columns": tuple(columns),
        "priors": Independent((to_host(dist.Normal(median, spread)),)),
        "rest": median,
        "mixture": normal_mixtures.standard(len(moving)),
        "sites": (("arguments", (len(moving),)),),
        "entries": tuple(range(len(moving))),
        "readers": tuple(int(k) for k in moving),
        "names": tuple(f"arguments[{k}]" for k in moving),
        "exact": False,
        "one_to_one": False,
        "note": f"In these coordinates the prior is only about standard normal: {what} were standardised "
        f"because {why}.",
    }


class _Match(NamedTuple):
    """An argument, and the entry `place` of `site` that it is a function of; no site if it is constant."""

    column: Column
    site: str | None = None
    place: int = 0


def _match(arguments: np.ndarray, latents: Mapping[str, np.ndarray]) -> list[_Match]:
    matches = []
    for k, a in enumerate(arguments.T):
        if np.ptp(a) == 0.0:
            matches.append(_Match(link_functions.constant(a[0])))
            continue
        match = next(_functions(a, latents), None)
        if match is None:
            raise NotExact(f"argument {k} was not recognised as an elementwise function of one latent")
        matches.append(match)
    return matches


def _functions(a: np.ndarray, latents: Mapping[str, np.ndarray]):
    for name, values in latents.items():
        for index, t in enumerate(values.reshape(len(values), -1).T):
            if link_functions.is_monotone(a, t) and (column := link_functions.find(a, t)) is not None:
                yield _Match(column, name, index)


def _refuse(condition: bool, reason: str) -> None:
    if condition:
        raise NotExact(reason)


def _check(used: Mapping[str, Latent], shown: Mapping[str, list[int]]) -> None:
    parents = {parent for latent in used.values() for parent in latent.parents}
    hidden = sorted(parents - set(used))
    _refuse(bool(hidden), f"their prior depends on {', '.join(hidden)}, which the simulator does not take")
    for name, latent in used.items():
        tied = name in parents or not normalise.is_elementwise(latent.fn)
        part = len(shown[name]) < latent.value.size
        _refuse(tied and part, f"the simulator takes only a part of {name}, whose entries belong together")


def _maps(used: Mapping[str, Latent], shown: Mapping[str, list[int]], *, mixtures: bool):
    """For each site a distribution with a map to normals, and the parts of the law of all mapped entries."""
    split = {name: normal_mixtures.read(latent.fn) if mixtures else None for name, latent in used.items()}
    count = normal_mixtures.num_components([part for found in split.values() if found for part in found[1]])
    fns: list[dist.Distribution] = []
    parts: list[normal_mixtures.Mixture] = []
    for name, latent in used.items():
        found = split[name]
        if found and count <= normal_mixtures.MAX_COMPONENTS:
            fn, events = found
            fns.append(to_host(fn))
            elementwise = len(events) == latent.value.size
            parts.extend([events[i] for i in shown[name]] if elementwise else events)
        else:
            try:
                normalise.check(latent.fn)
            except normalise.NoNormalMap as reason:
                raise NotExact(f"of {name}: {reason}") from reason
            fns.append(to_host(latent.fn))
            parts.append(normal_mixtures.standard(len(shown[name])))
    return tuple(fns), parts


def _label(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, index))}]" if index else name


@on_host
def _most_normal(a: np.ndarray) -> link_functions.Link:
    """The identity, exp for positive draws, or expit for draws in the unit interval: whichever fits best.

    Judged by the correlation of the sorted draws on that scale with normal quantiles; the identity unless
    another is clearly better.
    """
    choices = [link_functions.IDENTITY]
    if np.all(a > 0.0):
        choices.append(link_functions.EXP)
    if np.all((a > 0.0) & (a < 1.0)):
        choices.append(link_functions.EXPIT)
    scores = ndtri((np.arange(len(a)) + 0.5) / len(a))
    fits = [np.corrcoef(np.sort(np.asarray(link.inverse(a))), scores)[0, 1] for link in choices]
    best = int(np.argmax(fits))
    return choices[best] if fits[best] > fits[0] + 0.01 else choices[0]
