"""Coordinates of a simulator's arguments, about standard normal under the prior."""

from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.display import Card
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.programs import LIGHT, in_blocks, pieces
from numpyro_kme.kernels.base import register
from numpyro_kme.models import by_numpy, matching
from numpyro_kme.models.matching import Column
from numpyro_kme.models.prior_maps import Independent, Mixture, NotExact, Sequential
from numpyro_kme.models.problem import Draws, Problem

Shape = tuple[int, ...]

ENOUGH = 100
"""Simulations from which the functions that their arguments are of latents are read."""


def _static() -> Any:
    return field(metadata={"static": True})


@register
class Coordinates:
    r"""A recorded map between the flattened arguments `a (p,)` of a simulator and coordinates `z (D,)`.

    Where each argument is an elementwise function of one entry of a latent, or a constant, the coordinates
    are those of the latents: the prior maps them to standard normals exactly or, if it is a mixture of normals,
    affinely to a mixture of mean 0 and covariance I. Elsewhere the arguments are standardised, and `note`
    says why. Arguments that do not vary are left out of `z` and put back by `inverse`.

    `forward`, `inverse` and `latents` take one point, can be traced, differentiated and vmapped, and work in
    the precision of the session.

    Attributes:
        columns: How each argument follows from one entry of the latents in between.
        priors: How these latents are mapped to normals.
        rest: Values of their entries where no argument shows them.
        mixture: Distribution of `z` under the prior: weights `(K,)`, means `(K, D)`, covariances `(K, D, D)`.
        sites: Name and shape of the latents in between.
        entries: Where each coordinate sits among their entries.
        readers: The argument that each coordinate is read from.
        names: Name of each coordinate.
        exact: Whether `mixture` is the distribution of `z` under the prior, or only about so.
        one_to_one: Whether `z` determines all latents of the model.
        note: What they are, for people.
    """

    columns: tuple[Column, ...]
    priors: Any
    rest: np.ndarray
    mixture: Mixture
    sites: tuple[tuple[str, Shape], ...] = _static()
    entries: tuple[int, ...] = _static()
    readers: tuple[int, ...] = _static()
    names: tuple[str, ...] = _static()
    exact: bool = _static()
    one_to_one: bool = _static()
    note: str = _static()

    def _card(self) -> Card:
        return Card(
            f"{self.dim} coordinates of a simulator's arguments",
            {"names": ", ".join(self.names), "map": self.note},
            "forward(arguments) gives coordinates, inverse(z) the arguments",
        )

    @classmethod
    def from_prior(
        cls, rng_key: jax.Array, problem: Problem, site: str | None = None, *, num_draws: int = 1000
    ) -> "Coordinates":
        """Find the coordinates of the arguments of one simulator site.

        How the arguments follow from the latents is read from prior draws: equality bit by bit, else one of a
        short list of functions (exp, log, expit, logit, reciprocal, square, sqrt, log1p, expm1) with an
        affine function inside or outside, which has to hold for every draw to the last digits.

        Args:
            rng_key: Key of the prior draws.
            problem: The model, as `Problem.read` gives it.
            site: A simulator site; the only one if left out.
            num_draws: Prior draws to read the map from.
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
            return cls(**matching.exact(problem, site, draws))
        except NotExact as reason:
            return cls(**matching.standardised(table, what, str(reason), choose_links=True))

    @classmethod
    def from_simulations(cls, rng_key: jax.Array, problem: Problem, site: str, simulated: Any) -> "Coordinates":
        """As `from_prior`, read from latents and arguments that were simulated where these tell: nothing is drawn, and
        no program compiled for it.

        They tell where there are at least `ENOUGH`, and the model as it is now gives these arguments at these latents:
        it, or its covariates, may have been others when they were simulated.

        Args:
            rng_key: Key of the prior draws, where simulations do not tell.
            problem: The model, as `Problem.read` gives it.
            site: A simulator site.
            simulated: Simulations or draws, with `latents` `{name: (m, *shape)}` and `arguments` `{site: (m, p)}`.
                Where latents are not known, the arguments may be these.
        """
        arguments = simulated.arguments[site]
        latents = simulated.latents or problem.as_latents(arguments)
        enough = len(arguments) >= ENOUGH and set(latents) == set(problem.latents) and np.ptp(arguments, axis=0).any()
        if enough and problem.gives(latents, site, arguments):
            draws = Draws({name: latents[name] for name in problem.latents}, {site: arguments})
            with suppress(NotExact):
                return cls(**matching.exact(problem, site, draws))
        return cls.from_prior(rng_key, problem, site)

    @classmethod
    def standardise(cls, table: ArrayLike) -> "Coordinates":
        """Affine coordinates of a table of arguments `(m, p)`: median 0, 68 % of the rows between -1 and 1."""
        checks.concrete(table=table)
        checks.table("table", table, min_rows=2)
        table = np.asarray(table, np.float64)
        checks.require(bool(np.ptp(table, axis=0).any()), "All rows of `table` are the same.")
        return cls(**matching.standardised(table, "the columns", "no prior is known", choose_links=False))

    def covering(self, arguments: np.ndarray) -> "Coordinates":
        """These coordinates, where the arguments `(m, p)` that were simulated vary in no other column; else those of
        that table, standardised."""
        if not self.unlike(arguments).any():
            return self
        why = "they were simulated at covariates that the data do not have"
        return Coordinates(**matching.standardised(arguments, "the simulated arguments", why, choose_links=True))

    def unlike(self, arguments: ArrayLike) -> np.ndarray:
        """Which of the arguments that are the same in all simulations are others in `(*lead, p)`: `(p,)`."""
        fixed = np.array([column.outer[1] == 0.0 for column in self.columns])
        usual = np.array([column.outer[0] for column in self.columns])
        rows = np.asarray(arguments, np.float64).reshape(-1, len(self.columns))
        return fixed & ~np.isclose(rows, usual, rtol=1e-5, atol=1e-30).all(axis=0)

    def require_simulated(self, arguments: ArrayLike) -> None:
        """Refuse arguments `(*lead, p)` of which nothing can be known: the simulations all have one value, another."""
        if not (unlike := self.unlike(arguments)).any():
            return
        k, rows = int(np.argmax(unlike)), np.asarray(arguments, np.float64).reshape(-1, len(self.columns))
        usual = self.columns[k].outer[0]
        other = rows[np.argmax(np.abs(rows[:, k] - usual)), k]
        raise checks.explained(
            f"Argument {k} of the simulator is {other:g}, and was {usual:g} in all simulations, so that the likelihood "
            "is not known as a function of it. Simulate at values that differ, or run the engine again with these data."
        )

    def with_model(self, problem: Problem) -> "Coordinates":
        """These coordinates, with the model where they are found by running it: a file holds none."""
        if not isinstance(self.priors, Sequential):
            return self
        return replace(self, priors=replace(self.priors, problem=problem))

    @property
    def dim(self) -> int:
        """Number of coordinates, `D`."""
        return len(self.entries)

    def forward(self, a: ArrayLike) -> jax.Array:
        """Coordinates `(D,)` of the arguments `(p,)` of one call."""
        a = _one("a", a, len(self.columns))
        shown = matching.solved([self.columns[reader] for reader in self.readers], a[jnp.asarray(self.readers)])
        entries = jnp.asarray(self.entries)
        t = jnp.asarray(self.rest).at[entries].set(shown)
        return _join(self.priors.to_normal(self._split(t)))[entries]

    @numpy_function
    def table(self, arguments: ArrayLike) -> np.ndarray:
        """Coordinates `(m, D)` of the arguments `(m, p)` of many calls, on the host in float64."""
        checks.table("arguments", arguments, columns=len(self.columns))
        rows, priors = np.asarray(arguments, np.float64), self._priors_by_numpy()
        if priors is None:
            return in_blocks(partial(_forward_rows, self), rows, ROWS)
        read = [self.columns[reader] for reader in self.readers]
        inner, outer = (np.stack(part, axis=1) for part in zip(*((column.inner, column.outer) for column in read)))
        entries = np.tile(self.rest, (len(rows), 1)).astype(np.float64)
        entries[:, self.entries] = ((rows[:, self.readers] - outer[0]) / outer[1] - inner[0]) / inner[1]
        normals = [prior.to_normal(part) for prior, part in zip(priors, self._split(entries))]
        return np.concatenate([z.reshape(len(rows), -1) for z in normals], axis=1)[:, self.entries]

    def at(self, arguments: ArrayLike) -> np.ndarray:
        """Coordinates `(k, *groups, D)` of arguments `(k, *groups, p)`, as `table`."""
        arguments = np.asarray(arguments)
        return self.table(arguments.reshape(-1, arguments.shape[-1])).reshape(*arguments.shape[:-1], -1)

    @numpy_function
    def latents_table(self, z: ArrayLike) -> dict[str, Any]:
        """All latents `{site: (m, *shape)}` at coordinates `(m, D)`, on the host in float64; raises unless
        `one_to_one`."""
        rows, priors = np.asarray(z, np.float64), self._priors_by_numpy()
        if priors is None or not self.one_to_one:
            return in_blocks(partial(_latents_rows, self), rows, ROWS)
        normals = np.zeros((len(rows), len(self.rest)))
        normals[:, self.entries] = rows
        parts = zip(self.sites, priors, self._split(normals))
        return {name: prior.from_normal(part) for (name, _), prior, part in parts}

    def _priors_by_numpy(self) -> list[by_numpy.Prior] | None:
        """Where arguments are affine functions of latents, and NumPy knows the priors of these."""
        if not isinstance(self.priors, Independent) or any(one.link != "identity" for one in self.columns):
            return None
        return by_numpy.priors(self.priors.fns)

    def inverse(self, z: ArrayLike) -> jax.Array:
        """Arguments `(p,)` of one call at the coordinates `(D,)`."""
        t = _join(self._values(z))
        return matching.applied(self.columns, t[jnp.asarray([column.entry for column in self.columns])])

    def latents(self, z: ArrayLike) -> dict[str, jax.Array]:
        """All latents of the model, `{site: value}`, at coordinates `(D,)`; raises unless `one_to_one`."""
        checks.require(self.one_to_one, f"These coordinates do not determine the latents. {self.note}")
        return dict(zip((name for name, _ in self.sites), self._values(z)))

    def _values(self, z: ArrayLike) -> tuple[jax.Array, ...]:
        z = _one("z", z, self.dim)
        normals = jnp.zeros(self.rest.shape, z.dtype).at[jnp.asarray(self.entries)].set(z)
        return self.priors.from_normal(self._split(normals))

    def _split(self, entries: ArrayLike) -> tuple[Any, ...]:
        """Entries `(..., D)` by site, `(..., *shape)`."""
        return tuple(pieces(entries, (shape for _, shape in self.sites)))


ROWS = 512
"""Rows of tables that are mapped together: one program for any number."""


@jax.jit(compiler_options=LIGHT)
def _forward_rows(coordinates: Coordinates, rows: jax.Array) -> jax.Array:
    return jax.vmap(coordinates.forward)(rows)


@jax.jit(compiler_options=LIGHT)
def _latents_rows(coordinates: Coordinates, rows: jax.Array) -> dict[str, jax.Array]:
    return jax.vmap(coordinates.latents)(rows)


def _one(name: str, point: ArrayLike, size: int) -> jax.Array:
    point = jnp.asarray(point)
    checks.require(
        point.shape == (size,),
        f"`{name}` must be one point of shape ({size},); got {point.shape}. Use jax.vmap for more.",
    )
    return point


def _join(values) -> jax.Array:
    return jnp.concatenate([jnp.ravel(value) for value in values])
