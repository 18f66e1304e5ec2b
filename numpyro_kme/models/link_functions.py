"""Elementwise functions that models put between a latent and an argument of a simulator, found from draws."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import expit, logit
from jax.typing import ArrayLike

from numpyro_kme._core.host import on_host


@dataclass(frozen=True)
class Link:
    """An increasing or decreasing function of one variable and its inverse."""

    name: str
    forward: Callable[[ArrayLike], jax.Array]
    inverse: Callable[[ArrayLike], jax.Array]


LEAST, MOST = 2.0**-126, 1.0 - 2.0**-24
"""The float32 numbers next to 0, but for those of fewer digits, and to 1."""


def _log(a: ArrayLike) -> jax.Array:
    """Logarithm; finite where rounding has taken a positive number to 0."""
    return jnp.log(jnp.where(a == 0.0, LEAST, a))


def _logit(a: ArrayLike) -> jax.Array:
    """Log odds; finite where rounding has taken a number between 0 and 1 to one of these."""
    return logit(jnp.where(a == 0.0, LEAST, jnp.where(a == 1.0, MOST, a)))


IDENTITY = Link("identity", jnp.asarray, jnp.asarray)
EXP = Link("exp", jnp.exp, _log)
EXPIT = Link("expit", expit, _logit)
LINKS = (
    IDENTITY,
    EXP,
    Link("log", jnp.log, jnp.exp),
    EXPIT,
    Link("logit", logit, expit),
    Link("reciprocal", jnp.reciprocal, jnp.reciprocal),
    Link("square", jnp.square, jnp.sqrt),
    Link("sqrt", jnp.sqrt, jnp.square),
    Link("log1p", jnp.log1p, jnp.expm1),
    Link("expm1", jnp.expm1, jnp.log1p),
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Column:
    """An argument as a function of an entry `t` of a latent: `outer_0 + outer_1 h(inner_0 + inner_1 t)`."""

    inner: np.ndarray
    outer: np.ndarray
    link: Link = field(metadata={"static": True})
    entry: int = field(default=0, metadata={"static": True})

    def __call__(self, t: jax.Array) -> jax.Array:
        """The argument, given the entry."""
        return self.outer[0] + self.outer[1] * self.link.forward(self.inner[0] + self.inner[1] * t)

    def solve(self, a: jax.Array) -> jax.Array:
        """The entry, given the argument."""
        return (self.link.inverse((a - self.outer[0]) / self.outer[1]) - self.inner[0]) / self.inner[1]


_UNCHANGED = np.array([0.0, 1.0])


def column(link: Link, entry: int = 0) -> Column:
    """The argument that is `link` of an entry as it stands."""
    return Column(_UNCHANGED, _UNCHANGED, link, entry)


def constant(value: float) -> Column:
    """The argument that no entry moves."""
    return Column(_UNCHANGED, np.array([float(value), 0.0]), IDENTITY)


def is_monotone(a: np.ndarray, t: np.ndarray) -> bool:
    """Whether draws of `a` rise, or fall, with those of `t`, as monotone functions of `t` alone do."""
    steps = np.diff(a[np.argsort(t, kind="stable")])
    return bool(np.all(steps >= 0) or np.all(steps <= 0))


def find(a: np.ndarray, t: np.ndarray) -> Column | None:
    """The function of the list that turns the draws `t` into the draws `a` to their precision, or None.

    The list holds every link as it stands, then with an affine function inside, then outside. A function
    counts if it gives `a` to about 200 roundings and its inverse gives `t` to a thousandth of its spread.
    """
    if np.array_equal(a, t):
        return column(IDENTITY)
    eps = np.finfo(np.result_type(a, np.float32)).eps
    return _first(a, t, 200 * eps)


@on_host
def _first(a, t, tolerance) -> Column | None:
    with np.errstate(all="ignore"):
        for candidate in _candidates(a, t):
            error, back = np.abs(np.asarray(candidate(t)) - a), np.abs(np.asarray(candidate.solve(a)) - t)
            near = error <= tolerance * (np.abs(a) + min(1.0, float(np.std(a))))
            if near.all() and (back <= 1e-3 * np.std(t)).all():
                return candidate
    return None


def _candidates(a: np.ndarray, t: np.ndarray):
    for link in LINKS:
        yield column(link)
    for link in LINKS:
        if (inner := _affine(t, np.asarray(link.inverse(a)))) is not None:
            yield Column(inner, _UNCHANGED, link)
    for link in LINKS[1:]:
        if (outer := _affine(np.asarray(link.forward(t)), a)) is not None:
            yield Column(_UNCHANGED, outer, link)


def _affine(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Intercept and slope of `y` on `x`, where both are finite and vary."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return None
    slope = np.dot(x - x.mean(), y - y.mean()) / np.dot(x - x.mean(), x - x.mean())
    return np.array([y.mean() - slope * x.mean(), slope]) if slope != 0.0 else None
