"""Coordinates of a simulator's arguments, about standard normal under the prior: normal scores, decorrelated."""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from scipy.special import ndtr, ndtri

from numpyro_kme._core import checks, compat
from numpyro_kme._core.display import Card
from numpyro_kme._core.host import full_precision, in_present_precision, numpy_function
from numpyro_kme._core.programs import Program, pieces
from numpyro_kme.kernels.base import register
from numpyro_kme.models.problem import Draws, Latent, Problem
from numpyro_kme.models.tracing import as_numpyro_does

SCORES = np.linspace(-5.0, 5.0, 201)
"""Normal scores between which the map of a prior that is not normal is interpolated, and beyond which it is linear."""

SAMPLE_SCORES = 13
"""Number of knots of a map that is fitted to draws: quantiles between them, and the least and the largest."""

STRAIGHT = 1e-4
"""Largest distance from a straight line, relative to the range, at which a curve is one."""


WIDEST = 40.0
"""Largest absolute unconstrained value at which a quantile is looked for."""

REFINEMENTS = 8
"""Number of times that a distribution function is evaluated at all quantiles, each time nearer to these."""


class NotExact(Exception):
    """The reason why the prior gives no exact coordinates: half a sentence, to follow 'because'."""


def _static() -> Any:
    return field(metadata={"static": True})


@register
class Curves:
    """Monotone cubics, continued by straight lines; of arrays of NumPy or JAX.

    Attributes:
        knots: `(C, J)`, increasing.
        powers: Coefficients of the cubic, square, linear and constant term behind each knot, `(4, C, J - 1)`.
    """

    knots: np.ndarray
    powers: np.ndarray

    @classmethod
    def through(cls, x: np.ndarray, y: np.ndarray) -> "Curves":
        """Interpolate points `(J, C)`, each column rising or falling; a column of NaN for any other."""
        found = [_interpolated(*column) for column in zip(x.T, np.broadcast_to(y.T, x.T.shape))]
        most = max(len(knots) for knots, _ in found)
        padded = [_continued(*one, most) for one in found]
        return cls(np.stack([knots for knots, _ in padded]), np.stack([powers for _, powers in padded], axis=1))

    def __call__(self, x: Any) -> Any:
        """The values at `(*lead, C)`."""
        xp = x.__array_namespace__()
        knots, powers, own = xp.asarray(self.knots), xp.asarray(self.powers), np.arange(len(self.knots))
        piece = xp.clip((knots <= x[..., None]).sum(axis=-1) - 1, 0, knots.shape[1] - 2)
        inside = xp.clip(x, knots[:, 0], knots[:, -1])
        step, (cubic, square, linear, constant) = inside - knots[own, piece], powers[:, own, piece]
        slope = (3.0 * cubic * step + 2.0 * square) * step + linear
        return ((cubic * step + square) * step + linear) * step + constant + slope * (x - inside)


def _interpolated(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots `(J,)` and powers `(4, J - 1)` of one curve."""
    x, y = x[np.isfinite(x)], y[np.isfinite(x)]
    knots, place = np.unique(x, return_inverse=True)
    steps = np.diff(x)
    if len(knots) < 2 or not (np.all(steps >= 0.0) or np.all(steps <= 0.0)):
        return np.full(2, np.nan), np.full((4, 1), np.nan)
    values = np.bincount(place, y) / np.bincount(place)
    if np.abs(values - np.interp(knots, knots[[0, -1]], values[[0, -1]])).max() < STRAIGHT * np.ptp(values):
        knots, values = knots[[0, -1]], values[[0, -1]]
    return knots, scipy.interpolate.PchipInterpolator(knots, values).c


def _continued(knots: np.ndarray, powers: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """A curve with its last knot repeated, and the straight line behind it, so that there are this many knots."""
    last, width, more = powers[:, -1], knots[-1] - knots[-2], number - len(knots)
    line = np.array([0.0, 0.0, np.polyval(np.polyder(last), width), np.polyval(last, width)])
    return np.pad(knots, (0, more), mode="edge"), np.append(powers, np.tile(line[:, None], more), axis=1)


@register
class Coordinates:
    r"""A recorded map from the flattened arguments `a (p,)` of a simulator to coordinates `z (D,)`.

    Each argument has one monotone map to its normal score, and scores that the prior correlates are whitened. Where
    each argument is a monotone function of one number with a prior of its own, normal or of a known `cdf`, the
    coordinates are those of these numbers: standard normal under the prior, and affine functions of normal latents.
    Elsewhere the map is fitted to prior draws, and `note` says why. Arguments that do not vary are left out.

    Attributes:
        usual: Arguments that are the same in all draws; NaN for those that vary, `(p,)`.
        scores: The normal score of each argument that is read.
        factor: Cholesky factor of the correlation of the scores, and its inverse; None where they are independent.
        values: The latents as functions of their scores; None unless `one_to_one`.
        bounds: Lowest and highest values of these latents, `(2, D)`.
        sites: Name and shape of the latents, where `one_to_one`.
        readers: The argument that each coordinate is read from.
        names: Name of each coordinate.
        exact: Whether `z` is standard normal under the prior, or only about so.
        one_to_one: Whether `z` determines all latents of the model.
        note: Description for people.
    """

    usual: np.ndarray
    scores: Curves
    factor: tuple[np.ndarray, np.ndarray] | None
    values: Curves | None
    bounds: np.ndarray | None
    sites: tuple[tuple[str, tuple[int, ...]], ...] = _static()
    readers: tuple[int, ...] = _static()
    names: tuple[str, ...] = _static()
    exact: bool = _static()
    one_to_one: bool = _static()
    note: str = _static()

    def _card(self) -> Card:
        return Card(
            f"{self.dim} coordinates of a simulator's arguments",
            {"names": ", ".join(self.names), "map": self.note},
            "table(arguments) gives the coordinates of many calls, forward(arguments) those of one",
        )

    @classmethod
    def from_prior(
        cls, rng_key: jax.Array, problem: Problem, site: str | None = None, *, num_draws: int = 1000
    ) -> "Coordinates":
        """Find the coordinates of the arguments of one simulator site.

        Args:
            rng_key: Key of the prior draws.
            problem: The model, as `Problem.read` gives it.
            site: A simulator site; the only one if left out.
            num_draws: Prior draws that the map is checked at, or fitted to.
        Raises:
            ValueError: If no argument depends on a latent, or arguments of prior draws are not finite.
        """
        checks.key(rng_key)
        site = problem.site(site, "by `site=`")
        draws = problem.draw(rng_key, num_draws)
        table = draws.arguments[site].reshape(-1, draws.arguments[site].shape[-1])
        what = f"the arguments of the simulator at {site!r}"
        checks.finite(what, table, "Narrow the prior, or bound the step that overflows.")
        varied = bool(np.ptp(table, axis=0).any())
        checks.require(varied, f"T{what[1:]} are the same in all prior draws: nothing to infer.")
        try:
            return cls(**_exact(problem, site, draws))
        except NotExact as reason:
            return cls(**_fitted(table, what, str(reason)))

    @classmethod
    def standardise(cls, table: ArrayLike) -> "Coordinates":
        """Affine coordinates of a table of arguments `(m, p)`: median 0, 68 % of the rows between -1 and 1."""
        checks.concrete(table=table)
        checks.table("table", table, min_rows=2)
        table = np.asarray(table, np.float64)
        checks.require(bool(np.ptp(table, axis=0).any()), "All rows of `table` are the same.")
        return cls(**_fitted(table, "the columns", "no prior is known", affine=True))

    def covering(self, arguments: np.ndarray) -> "Coordinates":
        """These coordinates, where the arguments `(m, p)` that were simulated vary in no other column; else those
        fitted to that table."""
        if not self.unlike(arguments).any():
            return self
        why = "they were simulated at covariates that the data do not have"
        return Coordinates(**_fitted(np.asarray(arguments, np.float64), "the simulated arguments", why))

    def unlike(self, arguments: ArrayLike) -> np.ndarray:
        """Mark arguments that are the same in all simulations and others in `(*lead, p)`: `(p,)`."""
        rows = np.asarray(arguments, np.float64).reshape(-1, len(self.usual))
        return ~np.isnan(self.usual) & ~np.isclose(rows, self.usual, rtol=1e-5, atol=1e-30).all(axis=0)

    def require_simulated(self, arguments: ArrayLike) -> None:
        """Refuse arguments `(*lead, p)` of which nothing can be known: the simulations all have one value, another."""
        if not (unlike := self.unlike(arguments)).any():
            return
        k, rows = int(np.argmax(unlike)), np.asarray(arguments, np.float64).reshape(-1, len(self.usual))
        other = rows[np.argmax(np.abs(rows[:, k] - self.usual[k])), k]
        raise checks.explained(
            f"Argument {k} of the simulator is {other:g}, and was {self.usual[k]:g} in all simulations, so that the "
            "likelihood is not known as a function of it. Simulate at values that differ, or run the engine again with "
            "these data."
        )

    @property
    def dim(self) -> int:
        """Number of coordinates, `D`."""
        return len(self.readers)

    @full_precision
    def forward(self, a: ArrayLike) -> jax.Array:
        """Coordinates `(D,)` of the arguments `(p,)` of one call; can be traced, differentiated and vmapped."""
        a = jnp.asarray(a, jnp.result_type(float))
        size = len(self.usual)
        checks.require(
            a.shape == (size,), f"`a` must be one point of shape ({size},); got {a.shape}. Use jax.vmap for more."
        )
        return self._whitened(self.scores(a[np.array(self.readers)]))

    @numpy_function
    def table(self, arguments: ArrayLike) -> np.ndarray:
        """Coordinates `(*lead, D)` of the arguments `(*lead, p)` of many calls, on the host in float64."""
        arguments = np.asarray(arguments, np.float64)
        checks.table("arguments", arguments.reshape(-1, arguments.shape[-1]), columns=len(self.usual))
        return self._whitened(self.scores(arguments[..., list(self.readers)]))

    def _whitened(self, scores: Any) -> Any:
        return scores if self.factor is None else scores @ self.factor[1].T

    @full_precision
    def latents(self, z: Any) -> dict[str, Any]:
        """All latents of the model, `{site: (*lead, *shape)}`, at coordinates `(*lead, D)`, arrays of NumPy or JAX;
        raises unless `one_to_one`."""
        checks.require(self.one_to_one, f"These coordinates do not determine the latents. {self.note}")
        scores = z if self.factor is None else z @ self.factor[0].T
        values = z.__array_namespace__().clip(self.values(scores), *self.bounds)  # type: ignore[misc]
        return dict(zip((name for name, _ in self.sites), pieces(values, (shape for _, shape in self.sites))))


def _exact(problem: Problem, site: str, draws: Draws) -> dict[str, Any]:
    """The fields of exact coordinates; raises `NotExact` if there are none.

    All latents with a prior of their own are set to quantiles together: an argument that depends on one of them alone
    then shows its map, which has to hold at the prior draws.
    """
    table, latents = draws.arguments[site], problem.latents
    checks.require(table.ndim == 2, "the simulator's parameters vary along plates", NotExact)
    own = {name: one for name, one in latents.items() if not (one.parents or one.discrete)}
    found = {name: quantiles(one.fn, one.value.shape) for name, one in own.items()}
    known = {name: values for name, values in found.items() if values is not None}
    checks.require(len(known) > 0, "no latent has a prior of its own, normal or of a known `cdf`", NotExact)
    rest = {name: np.tile(latent.value, (len(SCORES),) + (1,) * latent.value.ndim) for name, latent in latents.items()}
    entries = np.concatenate([values.reshape(len(SCORES), -1) for values in known.values()], axis=1)
    drawn = np.concatenate([draws.latents[name].reshape(len(table), -1) for name in known], axis=1)
    scores = Curves.through(entries, SCORES[:, None])(drawn.astype(np.float64))
    shown = np.asarray(problem.arguments(rest | known)[site], np.float64)
    curves = Curves.through(shown, SCORES[:, None])
    readers: dict[int, int] = {}
    for k in np.flatnonzero(np.ptp(table, axis=0)):
        one = Curves(curves.knots[[k]], curves.powers[:, [k]])
        errors = np.abs(one(table[:, [k]].astype(np.float64)) - scores).max(axis=0)
        entry = int(np.argmin(np.nan_to_num(errors, nan=np.inf)))
        reason = f"argument {k} is no monotone function of one number with a prior of its own and a known `cdf`"
        checks.require(bool(errors[entry] < 0.01), reason, NotExact)
        readers.setdefault(entry, int(k))
    chosen = sorted(readers)
    correlation = _correlation({name: latents[name] for name in known})[np.ix_(chosen, chosen)]
    root = np.linalg.cholesky(correlation)
    one_to_one = len(chosen) == sum(latent.value.size for latent in latents.values())
    names = [entry for name in known for entry in entry_names(name, latents[name].value.shape)]
    ends = np.stack([entries.min(axis=0), entries.max(axis=0)])
    values = Curves.through(np.broadcast_to(SCORES[:, None], entries.shape), entries)
    straight = np.ptp(values.powers[2], axis=1) == 0.0
    order = [readers[entry] for entry in chosen]
    return {
        "usual": np.where(np.ptp(table, axis=0) > 0.0, np.nan, table[0]),
        "scores": Curves(curves.knots[order], curves.powers[:, order]),
        "factor": None if np.array_equal(root, np.eye(len(root))) else (root, np.linalg.inv(root)),
        "values": values if one_to_one else None,
        "bounds": np.where(straight, [[-np.inf], [np.inf]], ends) if one_to_one else None,
        "sites": tuple((name, latent.value.shape) for name, latent in latents.items()) if one_to_one else (),
        "readers": tuple(order),
        "names": tuple(names[entry] for entry in chosen),
        "exact": True,
        "one_to_one": one_to_one,
        "note": f"The arguments of the simulator at {site!r} are monotone functions of "
        f"{', '.join(dict.fromkeys(names[entry].split('[')[0] for entry in chosen))}, entry by entry; in these "
        "coordinates the prior is standard normal.",
    }


def _fitted(table: np.ndarray, what: str, why: str, *, affine: bool = False) -> dict[str, Any]:
    """The fields of coordinates that are fitted to a table of arguments `(m, p)`: normal scores, or affine ones."""
    table = np.asarray(table, np.float64)
    moving = np.flatnonzero(np.ptp(table, axis=0) > 0.0)
    rows = table[:, moving]
    if affine:
        low, median, high = np.quantile(rows, ndtr([-1.0, 0.0, 1.0]), axis=0)
        sd = np.where(high > low, 0.5 * (high - low), rows.std(axis=0))
        scores, quantile = np.array([-1.0, 1.0]), np.stack([median - sd, median + sd])
    else:
        end = -ndtri(0.5 / len(rows))
        scores = np.linspace(-end, end, SAMPLE_SCORES)
        quantile = np.quantile(rows, ndtr(scores), axis=0, method="hazen")
    return {
        "usual": np.where(np.isin(np.arange(table.shape[1]), moving), np.nan, table[0]),
        "scores": Curves.through(quantile, scores[:, None]),
        "factor": None,
        "values": None,
        "bounds": None,
        "sites": (),
        "readers": tuple(int(k) for k in moving),
        "names": tuple(f"arguments[{k}]" for k in moving),
        "exact": False,
        "one_to_one": False,
        "note": f"In these coordinates the prior is only about standard normal: {what} were standardised "
        f"because {why}.",
    }


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Names of the numbers of a site, in order."""
    return [f"{name}[{', '.join(map(str, index))}]" if index else name for index in np.ndindex(shape)]


def quantiles(fn: dist.Distribution, shape: tuple[int, ...]) -> np.ndarray | None:
    """Values `(J, *shape)` whose normal scores are `SCORES`, entry by entry; None where no `cdf` is known."""
    fn = in_present_precision(compat.innermost(fn))
    scores = SCORES.reshape(-1, *(1,) * len(shape))
    if isinstance(fn, dist.Normal | dist.MultivariateNormal | dist.LowRankMultivariateNormal):
        mean, sd = (np.broadcast_to(np.asarray(part, np.float64), shape) for part in (fn.mean, np.sqrt(fn.variance)))
        return mean + sd * scores
    if fn.event_dim:
        return None
    if isinstance(fn, dist.TransformedDistribution):
        inner = quantiles(fn.base_dist, shape)
        if inner is None:
            return None
        values: Any = jnp.asarray(inner, jnp.result_type(float))
        for transform in fn.transforms:
            values = transform(values)
        return np.asarray(np.where(values[0] <= values[-1], values, values[::-1]), np.float64)
    chart = jnp.sinh if fn.support is constraints.real else biject_to(fn.support)

    @Program
    def evaluated(u):
        with as_numpyro_does():
            return chart(u), fn.cdf(chart(u))

    size = math.prod(shape)
    u, z = (np.zeros((0, size)) for _ in range(2))
    wanted = np.linspace(-WIDEST, WIDEST, len(SCORES))[:, None] * np.ones(size)
    for _ in range(REFINEMENTS):
        try:
            x, level = evaluated(jnp.asarray(wanted.reshape(-1, *shape), jnp.result_type(float)))
        except NotImplementedError:
            return None
        level = np.clip(np.asarray(level, np.float64).reshape(wanted.shape), 1e-30, 1.0 - 1e-16)
        u, z = np.concatenate([u, wanted]), np.concatenate([z, ndtri(level)])
        order = np.argsort(u, axis=0)
        u, z = np.take_along_axis(u, order, axis=0), np.take_along_axis(z, order, axis=0)
        rising = np.where(z[-1] >= z[0], 1.0, -1.0)
        wanted = np.stack([np.interp(r * SCORES, r * b, a) for r, a, b in zip(rising, u.T, z.T)], axis=1)
    return np.asarray(x, np.float64)


def _correlation(latents: Mapping[str, Latent]) -> np.ndarray:
    """Prior correlation of the numbers of latents, one after another."""
    blocks = []
    for latent in latents.values():
        fn, size = compat.innermost(latent.fn), latent.value.shape[-1] if latent.value.ndim else 1
        if isinstance(fn, dist.MultivariateNormal | dist.LowRankMultivariateNormal):
            covariance = np.asarray(fn.covariance_matrix, np.float64)
            sd = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
            one = covariance / (sd[..., :, None] * sd[..., None, :])
            blocks += list(np.broadcast_to(one, (latent.value.size // size, size, size)))
        else:
            blocks.append(np.eye(latent.value.size))
    return scipy.linalg.block_diag(*blocks)
