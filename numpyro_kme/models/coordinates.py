"""Coordinates of a simulator's arguments, about standard normal under the prior: normal scores, decorrelated."""

from dataclasses import field, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from scipy.special import ndtr, ndtri

from numpyro_kme._core import Program, checks, compat, door, full_precision, numbers, numpy_function, pieces
from numpyro_kme.kernels.base import register
from numpyro_kme.models.problem import Draws, Latent, Problem
from numpyro_kme.models.tracing import as_numpyro_does

SCORES = np.linspace(-5.0, 5.0, 201)
"""Normal scores between which the map of a prior that is not normal is interpolated, and beyond which it is linear."""

STRAIGHT = 1e-4
"""Largest distance from a straight line, relative to the range, at which a curve is one."""

WIDEST = 40.0
"""Largest absolute unconstrained value at which a quantile is looked for."""

REFINEMENTS = 8
"""Number of times that a distribution function is evaluated at all quantiles, each time nearer to these."""

SAMPLE_SCORES = 13
"""Number of knots of a map that is fitted to draws: quantiles between them, and the least and the largest."""


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
        knots, powers = map(np.stack, zip(*map(_interpolated, x.T, np.broadcast_to(y.T, x.T.shape))))
        most = max(2, 1 + np.argmax(knots, axis=1).max())
        return cls(knots[:, :most], np.moveaxis(powers, 0, 1)[..., : most - 1])

    def __call__(self, x: Any) -> Any:
        """The values at `(*lead, C)`."""
        xp = x.__array_namespace__()
        knots, powers, own = xp.asarray(self.knots), xp.asarray(self.powers), np.arange(len(self.knots))
        piece = xp.clip((knots <= x[..., None]).sum(axis=-1) - 1, 0, knots.shape[1] - 2)
        inside = xp.clip(x, knots[:, 0], knots[:, -1])
        step, (cubic, square, linear, constant) = inside - knots[own, piece], powers[:, own, piece]
        slope = (3.0 * cubic * step + 2.0 * square) * step + linear
        return ((cubic * step + square) * step + linear) * step + constant + slope * (x - inside)

    def take(self, columns: list[int]) -> "Curves":
        """Select curves by number."""
        return Curves(self.knots[columns], self.powers[:, columns])


def _interpolated(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots `(J,)` and powers `(4, J - 1)` of one curve, whose last knot is repeated before the line behind it."""
    finite, number = np.isfinite(x), len(x)
    knots, place = np.unique(x[finite], return_inverse=True)
    steps = np.diff(x[finite])
    if len(knots) < 2 or not (np.all(steps >= 0.0) or np.all(steps <= 0.0)):
        return np.full(number, np.nan), np.full((4, number - 1), np.nan)
    values = np.bincount(place, y[finite]) / np.bincount(place)
    if np.abs(values - np.interp(knots, knots[[0, -1]], values[[0, -1]])).max() < STRAIGHT * np.ptp(values):
        knots, values = knots[[0, -1]], values[[0, -1]]
    powers, width = scipy.interpolate.PchipInterpolator(knots, values).c, knots[-1] - knots[-2]
    line = np.array([0.0, 0.0, np.polyval(np.polyder(powers[:, -1]), width), values[-1]])
    more = number - len(knots)
    return np.pad(knots, (0, more), mode="edge"), np.append(powers, np.tile(line[:, None], more), axis=1)


class NotExact(Exception):
    """The reason why the prior gives no exact coordinates: half a sentence, to follow 'because'."""


def _static(**default: Any) -> Any:
    return field(metadata={"static": True}, **default)


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
        values: The latents as functions of their scores, where the coordinates determine all latents of the model.
        bounds: Lowest and highest values of these latents, `(2, D)`.
        sites: Name and shape of these latents.
        readers: The argument that each coordinate is read from.
        names: Name of each coordinate.
        arguments: Name of each argument.
        exact: Whether `z` is standard normal under the prior, or only about so.
        note: Description for people.
    """

    usual: np.ndarray
    scores: Curves
    factor: tuple[np.ndarray, np.ndarray] | None = None
    values: Curves | None = None
    bounds: np.ndarray | None = None
    sites: tuple[tuple[str, tuple[int, ...]], ...] = _static(default=())
    readers: tuple[int, ...] = _static(default=())
    names: tuple[str, ...] = _static(default=())
    arguments: tuple[str, ...] = _static(default=())
    exact: bool = _static(default=False)
    note: str = _static(default="")

    @classmethod
    @door
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
        site = problem.site(site, "by `site=`")
        draws = problem.draw(rng_key, num_draws)
        table = draws.arguments[site].reshape(-1, draws.arguments[site].shape[-1])
        what = f"the arguments of the simulator at {site!r}"
        checks.sound(what, table, "Narrow the prior, or bound the step that overflows.")
        varied = bool(np.ptp(table, axis=0).any())
        checks.require(varied, f"T{what[1:]} are the same in all prior draws: nothing to infer.")
        try:
            return _exact(problem, site, draws)
        except NotExact as reason:
            return _fitted(table, what, str(reason), problem.simulators[site].simulator.argument_names)

    @classmethod
    def standardise(cls, table: ArrayLike) -> "Coordinates":
        """Affine coordinates of a table of arguments `(m, p)`: median 0, 68% of the rows between -1 and 1."""
        checks.concrete(table=table)
        checks.table("table", table, min_rows=2)
        table = np.asarray(table, np.float64)
        why = "All rows of arguments are the same: nothing depends on them. Simulate at values that differ."
        checks.require(bool(np.ptp(table, axis=0).any()), why)
        names = tuple(numbers({"arguments": np.asarray(table)[0]}, lead=0))
        return _fitted(table, "the columns", "no prior is known", names, affine=True)

    def covering(self, arguments: np.ndarray) -> "Coordinates":
        """These coordinates, where the arguments `(m, p)` that were simulated vary in no other column; else those
        fitted to that table."""
        if not self.unlike(arguments).any():
            return self
        why = "they were simulated at covariates that the data do not have"
        return _fitted(np.asarray(arguments, np.float64), "the simulated arguments", why, self.arguments)

    def unlike(self, arguments: ArrayLike) -> np.ndarray:
        """Mark arguments that are the same in all simulations and others in `(*lead, p)`: `(p,)`."""
        rows = np.asarray(arguments, np.float64).reshape(-1, len(self.usual))
        return ~np.isnan(self.usual) & ~np.isclose(rows, self.usual, rtol=1e-5, atol=1e-30).all(axis=0)

    def require_simulated(self, arguments: ArrayLike) -> None:
        """Refuse arguments `(*lead, p)` of which nothing can be known: the simulations all have one value, another."""
        if not (unlike := self.unlike(arguments)).any():
            return
        k, rows = int(np.argmax(unlike)), np.asarray(arguments, np.float64).reshape(-1, len(self.usual))
        name, usual = self.arguments[k], self.usual[k]
        other = rows[np.argmax(np.abs(rows[:, k] - usual)), k]
        raise checks.explained(
            f"Argument `{name}` of the simulator is {other:g}, and was {usual:g} in all simulations, so that the "
            "likelihood is not known as a function of it. Simulate at values that differ, or run again with these data."
        )

    @property
    def dim(self) -> int:
        """Number of coordinates, `D`."""
        return len(self.readers)

    @property
    def one_to_one(self) -> bool:
        """Tell whether the coordinates determine all latents of the model."""
        return self.values is not None

    @door
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
        checks.real("arguments", arguments)
        arguments = np.atleast_1d(np.asarray(arguments, np.float64))
        checks.table("arguments", arguments.reshape(-1, arguments.shape[-1]), columns=len(self.usual))
        return self._whitened(self.scores(arguments[..., list(self.readers)]))

    def _whitened(self, scores: Any) -> Any:
        return scores if self.factor is None else scores @ self.factor[1].T

    @full_precision
    def latents(self, z: Any) -> dict[str, Any]:
        """All latents of the model, `{site: (*lead, *shape)}`, at coordinates `(*lead, D)`, arrays of NumPy or JAX;
        raises unless `one_to_one`."""
        curves = checks.given(self.values, f"These coordinates do not determine the latents. {self.note}")
        z = z if isinstance(z, jax.Array) else np.asarray(z)
        checks.require(z.shape[-1:] == (self.dim,), f"`z` must have shape (..., {self.dim}); got {z.shape}.")
        scores = z if self.factor is None else z @ self.factor[0].T
        values = z.__array_namespace__().clip(curves(scores), *self.bounds)  # type: ignore[misc]
        names, shapes = zip(*self.sites)
        return dict(zip(names, pieces(values, shapes)))


def _exact(problem: Problem, site: str, draws: Draws) -> Coordinates:
    """Exact coordinates; raises `NotExact` if there are none.

    All latents with a prior of their own are set to quantiles together: an argument that depends on one of them alone
    then shows its map, which has to hold at the prior draws.
    """
    table = draws.arguments[site]
    checks.require(table.ndim == 2, "the simulator's parameters vary along plates", NotExact)
    names, sites, blocks = list[str](), list[tuple[str, tuple[int, ...]]](), list[np.ndarray]()
    given, columns, drawn = {}, [], []
    for name, latent in problem.latents.items():
        found = None if latent.parents or latent.discrete else quantiles(latent.fn, latent.value.shape)
        given[name] = np.repeat(latent.value[None], len(SCORES), axis=0) if found is None else found
        if found is not None:
            names += numbers({name: latent.value}, lead=0)
            sites.append((name, latent.value.shape))
            blocks += _correlations(latent)
            columns.append(found.reshape(len(SCORES), -1))
            drawn.append(draws.latents[name].reshape(len(table), -1))
    checks.require(len(names) > 0, "no latent has a prior of its own, normal or of a known `cdf`", NotExact)
    entries = np.concatenate(columns, axis=1)
    scores = Curves.through(entries, SCORES[:, None])(np.concatenate(drawn, axis=1, dtype=np.float64))
    curves = Curves.through(np.asarray(problem.arguments(given)[site], np.float64), SCORES[:, None])
    varying, readers = np.ptp(table, axis=0) > 0.0, dict[int, int]()
    arguments = problem.simulators[site].simulator.argument_names
    for k in np.flatnonzero(varying).tolist():
        errors = np.abs(curves.take([k])(table[:, [k]].astype(np.float64)) - scores).max(axis=0)
        entry = int(np.argmin(np.nan_to_num(errors, nan=np.inf)))
        reason = (
            f"argument `{arguments[k]}` is no monotone function of one number with a prior of its own and a known `cdf`"
        )
        checks.require(bool(errors[entry] < 0.01), reason, NotExact)
        readers.setdefault(entry, k)
    chosen, order = zip(*sorted(readers.items()))
    root = np.linalg.cholesky(scipy.linalg.block_diag(*blocks)[np.ix_(chosen, chosen)])
    used = tuple(names[entry] for entry in chosen)
    coordinates = Coordinates(
        usual=np.where(varying, np.nan, table[0]),
        scores=curves.take(list(order)),
        factor=None if np.array_equal(root, np.eye(len(root))) else (root, np.linalg.inv(root)),
        readers=order,
        names=used,
        arguments=arguments,
        exact=True,
        note=f"The arguments of the simulator at {site!r} are, entry by entry, monotone functions of "
        f"{', '.join(dict.fromkeys(name.split('[')[0] for name in used))}; here the prior is standard normal.",
    )
    if len(chosen) < len(names) or len(sites) < len(problem.latents):
        return coordinates
    values = Curves.through(np.broadcast_to(SCORES[:, None], entries.shape), entries)
    straight = np.ptp(values.powers[2], axis=1) == 0.0
    ends = np.where(straight, [[-np.inf], [np.inf]], [entries.min(axis=0), entries.max(axis=0)])
    return replace(coordinates, values=values, bounds=ends, sites=tuple(sites))


def _fitted(table: np.ndarray, what: str, why: str, names: tuple[str, ...], *, affine: bool = False) -> Coordinates:
    """Coordinates that are fitted to a table of arguments `(m, p)`, of these names: normal scores, or affine ones."""
    table = np.asarray(table, np.float64)
    varying = np.ptp(table, axis=0) > 0.0
    rows = table[:, varying]
    if affine:
        low, median, high = np.quantile(rows, ndtr([-1.0, 0.0, 1.0]), axis=0)
        sd = np.where(high > low, 0.5 * (high - low), rows.std(axis=0))
        scores, quantile = np.array([-1.0, 1.0]), np.stack([median - sd, median + sd])
    else:
        end = -ndtri(0.5 / len(rows))
        scores = np.linspace(-end, end, SAMPLE_SCORES)
        quantile = np.quantile(rows, ndtr(scores), axis=0, method="hazen")
    readers = tuple(np.flatnonzero(varying).tolist())
    return Coordinates(
        usual=np.where(varying, np.nan, table[0]),
        scores=Curves.through(quantile, scores[:, None]),
        readers=readers,
        names=tuple(names[k] for k in readers),
        arguments=names,
        note=f"In these coordinates the prior is only about standard normal: {what} were standardised because {why}.",
    )


def _correlations(latent: Latent) -> list[np.ndarray]:
    """Prior correlations of the numbers of a latent: blocks along the diagonal, one after another."""
    fn, shape = compat.innermost(latent.fn), latent.value.shape
    if not isinstance(fn, dist.MultivariateNormal | dist.LowRankMultivariateNormal):
        return [np.eye(latent.value.size)]
    covariance = np.asarray(fn.covariance_matrix, np.float64)
    sd = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    size, one = shape[-1], covariance / (sd[..., :, None] * sd[..., None, :])
    return list(np.broadcast_to(one, (*shape[:-1], size, size)).reshape(-1, size, size))


def quantiles(fn: dist.Distribution, shape: tuple[int, ...]) -> np.ndarray | None:
    """Values `(J, *shape)` whose normal scores are `SCORES`, entry by entry; None where no `cdf` is known."""
    fn = compat.innermost(fn)
    scores = SCORES.reshape(-1, *(1,) * len(shape))
    if isinstance(fn, dist.Normal | dist.MultivariateNormal | dist.LowRankMultivariateNormal):
        mean, sd = np.asarray(fn.mean, np.float64), np.asarray(np.sqrt(fn.variance), np.float64)
        return np.broadcast_to(mean + sd * scores, (len(scores), *shape))
    if fn.event_dim:
        return None
    chart = jnp.sinh if fn.support is constraints.real else biject_to(fn.support)

    @Program
    def evaluated(u):
        with as_numpyro_does():
            return chart(u), fn.cdf(chart(u))

    u = z = np.zeros((0, prod(shape)))
    wanted = np.linspace(-WIDEST, WIDEST, len(SCORES))[:, None] * np.ones(u.shape[1])
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
