"""How the arguments of a simulator follow from latents, entry by entry, found from draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from scipy.special import ndtri

from numpyro_kme._core import checks, compat
from numpyro_kme._core.host import numpy_function, to_host
from numpyro_kme.kernels.base import register
from numpyro_kme.models import prior_maps
from numpyro_kme.models.prior_maps import NotExact
from numpyro_kme.models.problem import Draws, Latent, Problem


class Link(NamedTuple):
    """An increasing or decreasing function of one variable and its inverse, of arrays of NumPy or JAX."""

    forward: Callable[[Any], Any]
    inverse: Callable[[Any], Any]


LEAST, MOST = 2.0**-126, 1.0 - 2.0**-24
"""The float32 numbers next to 0, but for those of fewer digits, and to 1."""


def _named(name: str) -> Callable[[Any], Any]:
    """The elementwise function that NumPy and JAX have by this name."""
    return lambda a: getattr(a.__array_namespace__(), name)(a)


def _inside(a: Any) -> Any:
    """Numbers that rounding has taken to 0, a little above it."""
    return a.__array_namespace__().where(a == 0.0, LEAST, a)


def _log(a: Any) -> Any:
    return a.__array_namespace__().log(_inside(a))


def _softplus(a: Any) -> Any:
    return a.__array_namespace__().logaddexp(a, 0.0)


def _inverse_softplus(a: Any) -> Any:
    """`log(exp(a) - 1)`."""
    a = _inside(a)
    return a + a.__array_namespace__().log(-a.__array_namespace__().expm1(-a))


def _expit(a: Any) -> Any:
    return 0.5 + 0.5 * a.__array_namespace__().tanh(0.5 * a)


def _logit(a: Any) -> Any:
    """Log odds; finite where rounding has taken a number between 0 and 1 to one of these."""
    xp = a.__array_namespace__()
    a = xp.where(a == 1.0, MOST, _inside(a))
    return xp.log(a) - xp.log1p(-a)


LINKS = {
    "identity": Link(_named("positive"), _named("positive")),
    "exp": Link(_named("exp"), _log),
    "log": Link(_named("log"), _named("exp")),
    "expit": Link(_expit, _logit),
    "logit": Link(_logit, _expit),
    "reciprocal": Link(_named("reciprocal"), _named("reciprocal")),
    "square": Link(_named("square"), _named("sqrt")),
    "sqrt": Link(_named("sqrt"), _named("square")),
    "log1p": Link(_named("log1p"), _named("expm1")),
    "expm1": Link(_named("expm1"), _named("log1p")),
    "softplus": Link(_softplus, _inverse_softplus),
}


SOFTPLUS_WIDTHS = (0.5, 1.0, 2.0)
"""Widths that are tried for positive arguments, in medians: a half-normal is most normal at 0.5, a gamma at 1 to 2."""


@register
class Column:
    """An argument, of an entry `t` of a latent: `outer_0 + outer_1 h(inner_0 + inner_1 t)`, with a link `h`."""

    link: str = field(metadata={"static": True})
    entry: int = field(default=0, metadata={"static": True})
    inner: np.ndarray = field(default_factory=lambda: np.array([0.0, 1.0]))
    outer: np.ndarray = field(default_factory=lambda: np.array([0.0, 1.0]))

    def __call__(self, t: jax.Array) -> jax.Array:
        """The argument, given the entry."""
        return self.outer[0] + self.outer[1] * LINKS[self.link].forward(self.inner[0] + self.inner[1] * t)

    def solve(self, a: ArrayLike) -> jax.Array:
        """The entry, given the argument."""
        return (LINKS[self.link].inverse((a - self.outer[0]) / self.outer[1]) - self.inner[0]) / self.inner[1]


def applied(columns: Sequence[Column], t: jax.Array) -> jax.Array:
    """The arguments `(p,)` of so many columns, given an entry for each."""
    inner, outer = _coefficients(columns)
    return outer[0] + outer[1] * _linked(columns, "forward", inner[0] + inner[1] * t)


def solved(columns: Sequence[Column], a: jax.Array) -> jax.Array:
    """The entries `(p,)` that so many columns give the arguments `(p,)`."""
    inner, outer = _coefficients(columns)
    return (_linked(columns, "inverse", (a - outer[0]) / outer[1]) - inner[0]) / inner[1]


def _coefficients(columns: Sequence[Column]) -> tuple[jax.Array, jax.Array]:
    return (
        jnp.stack([jnp.asarray(column.inner) for column in columns], axis=1),
        jnp.stack([jnp.asarray(column.outer) for column in columns], axis=1),
    )


def _linked(columns: Sequence[Column], direction: str, values: jax.Array) -> jax.Array:
    """Each link once, for all columns that have it, so that programs are small and compile soon."""
    links = [column.link for column in columns]
    places = {link: np.flatnonzero([own == link for own in links]) for link in links}
    parts = [getattr(LINKS[link], direction)(values[own]) for link, own in places.items()]
    return jnp.concatenate(parts)[np.argsort(np.concatenate(list(places.values())))]


def constant(value: float) -> Column:
    """The argument that no entry moves."""
    return Column("identity", outer=np.array([float(value), 0.0]))


def is_monotone(a: np.ndarray, t: np.ndarray) -> bool:
    """Whether draws of `a` rise, or fall, with those of `t`, as monotone functions of `t` alone do."""
    steps = np.diff(a[np.argsort(t, kind="stable")])
    return bool(np.all(steps >= 0) or np.all(steps <= 0))


def find(a: np.ndarray, t: np.ndarray) -> Column | None:
    """The function of the list that turns the draws `t` into the draws `a` to their precision, or None.

    The list holds every link as it stands, then with an affine function inside, then outside. A function
    counts if it gives `a` to about 200 roundings and its inverse gives `t` to a thousandth of its standard deviation.
    """
    if np.array_equal(a, t):
        return Column("identity")
    eps = np.finfo(np.result_type(a, np.float32)).eps
    return _first(a, t, 200 * eps)


@numpy_function
def _first(a, t, tolerance) -> Column | None:
    with np.errstate(all="ignore"):
        for candidate in _candidates(a, t):
            error, back = np.abs(np.asarray(candidate(t)) - a), np.abs(np.asarray(candidate.solve(a)) - t)
            near = error <= tolerance * (np.abs(a) + min(1.0, float(np.std(a))))
            if near.all() and (back <= 1e-3 * np.std(t)).all():
                return candidate
    return None


def _candidates(a: np.ndarray, t: np.ndarray):
    for name in LINKS:
        yield Column(name)
    for name, link in LINKS.items():
        if (inner := _affine(t, np.asarray(link.inverse(a)))) is not None:
            yield Column(name, inner=inner)
    for name, link in LINKS.items():
        if name != "identity" and (outer := _affine(np.asarray(link.forward(t)), a)) is not None:
            yield Column(name, outer=outer)


def _affine(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Intercept and slope of `y` on `x`, where both are finite and vary."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return None
    slope = np.dot(x - x.mean(), y - y.mean()) / np.dot(x - x.mean(), x - x.mean())
    return np.array([y.mean() - slope * x.mean(), slope]) if slope != 0.0 else None


def exact(problem: Problem, site: str, draws: Draws) -> dict[str, Any]:
    """The fields of exact coordinates; raises `NotExact` if there are none."""
    checks.require(not problem.discrete, f"{', '.join(problem.discrete)} is discrete", NotExact)
    checks.require(draws.arguments[site].ndim == 2, "the simulator's parameters vary along plates", NotExact)
    matches = [_match(k, a, draws.latents) for k, a in enumerate(draws.arguments[site].T)]
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
    fns, parts = prior_maps.maps(used, shown, mixtures=not sequential)
    mixture = prior_maps.product(parts)
    number = len(mixture.weights)
    shape = "standard normal" if number == 1 else f"a mixture of {number} normals"
    names = [entry for name, latent in used.items() for entry in entry_names(name, latent.value.shape)]
    return {
        "columns": tuple(columns),
        "priors": prior_maps.Sequential(problem, tuple(used)) if sequential else prior_maps.Independent(fns),
        "rest": np.concatenate([latent.value.ravel() for latent in used.values()]).astype(np.float64),
        "mixture": mixture,
        "sites": tuple((name, latent.value.shape) for name, latent in used.items()),
        "entries": entries,
        "readers": tuple(readers[entry] for entry in entries),
        "names": tuple(names[entry] for entry in entries),
        "exact": True,
        "one_to_one": len(entries) == sum(latent.value.size for latent in problem.latents.values()),
        "note": f"The arguments of the simulator at {site!r} are functions of {', '.join(used)}, entry by "
        f"entry; in these coordinates the prior is exactly {shape}.",
    }


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Names of the numbers of a site, in order."""
    return [f"{name}[{', '.join(map(str, index))}]" if index else name for index in np.ndindex(shape)]


@numpy_function
def standardised(table: np.ndarray, what: str, why: str, *, choose_links: bool) -> dict[str, Any]:
    """The fields of inexact coordinates: median 0, and 68 % of the rows of a table between -1 and 1."""
    table = np.asarray(table, np.float64)
    moving = np.flatnonzero(np.ptp(table, axis=0) > 0.0)
    columns = [constant(value) for value in table[0]]
    for entry, k in enumerate(moving):
        column = _most_normal(table[:, k]) if choose_links else Column("identity")
        columns[k] = replace(column, entry=entry)
    t = np.stack([np.asarray(columns[k].solve(table[:, k])) for k in moving], axis=1)
    low, median, high = np.quantile(t, [0.158655, 0.5, 0.841345], axis=0)
    sd = np.where(high > low, 0.5 * (high - low), t.std(axis=0))
    return {
        "columns": tuple(columns),
        "priors": prior_maps.Independent((to_host(dist.Normal(median, sd)),)),
        "rest": median,
        "mixture": prior_maps.standard(len(moving)),
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


def _match(k: int, a: np.ndarray, latents: Mapping[str, np.ndarray]) -> _Match:
    """What argument `k` is a function of, by its draws `a`."""
    if np.ptp(a) == 0.0:
        return _Match(constant(a[0]))
    for name, values in latents.items():
        for place, t in enumerate(values.reshape(len(values), -1).T):
            if is_monotone(a, t) and (column := find(a, t)) is not None:
                return _Match(column, name, place)
    raise NotExact(f"argument {k} was not recognised as an elementwise function of one latent")


def _check(used: Mapping[str, Latent], shown: Mapping[str, list[int]]) -> None:
    parents = {parent for latent in used.values() for parent in latent.parents}
    hidden = sorted(parents - set(used))
    checks.require(
        not hidden, f"their prior depends on {', '.join(hidden)}, which the simulator does not take", NotExact
    )
    for name, latent in used.items():
        tied = name in parents or compat.innermost(latent.fn).event_dim > 0
        whole = len(shown[name]) == latent.value.size
        reason = f"the simulator takes only a part of {name}, whose entries belong together"
        checks.require(whole or not tied, reason, NotExact)


@numpy_function
def _most_normal(a: np.ndarray) -> Column:
    """The identity, exp or a softplus for positive draws, or expit for draws in the unit interval: whichever fits best.

    Judged by the correlation of the sorted draws on that scale with normal quantiles; the identity unless
    another is clearly better. A softplus is linear above its width and exponential below.
    """
    choices = [Column("identity")]
    if np.all(a > 0.0):
        widths = np.array(SOFTPLUS_WIDTHS) * np.median(a)
        choices += [Column("exp"), *(Column("softplus", outer=np.array([0.0, width])) for width in widths)]
    if np.all((a > 0.0) & (a < 1.0)):
        choices.append(Column("expit"))
    scores = ndtri((np.arange(len(a)) + 0.5) / len(a))
    fits = [np.corrcoef(np.sort(np.asarray(column.solve(a))), scores)[0, 1] for column in choices]
    best = int(np.argmax(fits))
    return choices[best] if fits[best] > fits[0] + 0.01 else choices[0]
