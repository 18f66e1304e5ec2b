"""Learning a likelihood from a table of simulations, and the learnt likelihood as a NumPyro distribution."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution

from numpyro_kme._core import Card, Recomputed, Saved, checks, compat, door, full_precision, in_jax_types, solves
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import register, take
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.best_form import BestForm
from numpyro_kme.likelihoods.extrapolation import Repeats
from numpyro_kme.likelihoods.kernel_statistics import KernelStatistics
from numpyro_kme.likelihoods.learnt_statistics import OfStatistics
from numpyro_kme.likelihoods.prepared import Bounds, PreparedLikelihood, prepare
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.surrogate import MIN_SIMULATIONS
from numpyro_kme.likelihoods.statistics import MOST_ENTRIES, Entries
from numpyro_kme.likelihoods.success import Success
from numpyro_kme.likelihoods.transformed import Recorded
from numpyro_kme.likelihoods.trials.form import KernelExponentialFamily
from numpyro_kme.models.coordinates import Coordinates


@register
class FittedLikelihood(Saved, Recomputed):
    """A learnt likelihood together with the map from a simulator's arguments to its coordinates.

    Call it with the arguments of a simulator to get a distribution of its output:
    `numpyro.sample("x", fitted(theta), obs=x)`, or hand it to `handlers.surrogate`.

    Attributes:
        surrogate: The learnt `q(y | z)` of flattened outputs `y`.
        coordinates: The map `z = coordinates.forward(arguments)`.
        event_shape: Shape of one output of the simulator.
        simulated: Coordinates of the simulations it was learnt from, `(m, D)`; the same for draws that share them.
        near: The observation near whose posterior rounds simulated, and which alone it serves; None where it serves
            every observation.
        others: What other simulations teach: the likelihoods of halves of them, and that of the round before. How far
            these move a posterior says what it may be off by (`StandardErrors`).
        shares: What each of those counts.
        success: The probability that a call succeeds, where simulations that failed were left out: it is a factor of
            the likelihood, which then is that of succeeding with an output.
    """

    surrogate: Surrogate
    coordinates: Coordinates
    event_shape: tuple[int, ...] = field(metadata=dict(static=True))
    simulated: solves.Array
    near: ArrayLike | None = None
    others: tuple["FittedLikelihood", ...] = ()
    shares: tuple[float, ...] = field(default=(), metadata=dict(static=True))
    success: Success | None = None

    def _card(self) -> Card:
        inside = self.surrogate._card()
        return Card(
            f"Learnt likelihood of outputs {self.event_shape}",
            {"simulations": f"{self.num_simulations:,}", "form": inside.title, "coordinates": self.coordinates.note}
            | dict(inside.rows),
            "handlers.surrogate(model, {site: fitted}) puts it into a model; fitted(*params) is the distribution",
        )

    def after(self, before: "FittedLikelihood") -> "FittedLikelihood":
        """Add the likelihood of the previous round to `others`, where it counts for no more than one of a half."""
        number, further = before.num_simulations, self.num_simulations - before.num_simulations
        bare = replace(before, others=(), shares=())
        return replace(self, others=(*self.others, bare), shares=(*self.shares, min(1.0, number / max(further, 1))))

    def warn_unless_near(self, value: ArrayLike) -> None:
        """Warn where rounds simulated near the posterior of another observation than this one."""
        near = value if self.near is None else self.near
        if np.shape(value) == np.shape(near) and np.allclose(value, near, rtol=1e-5, equal_nan=True):
            return
        checks.warn(
            f"The likelihood was learnt near the posterior of the observation {checks.line(np.asarray(self.near))}, in "
            f"rounds, and is used for {checks.line(np.asarray(value))}: few of its {self.num_simulations} simulations "
            "may be where this one's posterior is. Run `KELFI` for this one, or learn from prior draws (num_rounds=1)."
        )

    def at(self, y: ArrayLike) -> LikelihoodAt:
        """The likelihood of one output `(*event)`, as a function of coordinates; NaN where it was not observed."""
        return self.surrogate.at(self.surrogate.point(y))

    def marginal(self, seen: np.ndarray) -> "FittedLikelihood":
        """The likelihood of the entries of an output that are marked, `(*event)`, whatever the others are.

        It takes outputs `(*event)` too, with NaN where nothing was observed (`Surrogate.marginal`).
        """
        return self if seen.all() else replace(self, surrogate=self.surrogate.marginal(seen.reshape(-1)))

    @cached_property
    def num_simulations(self) -> int:
        """Number of simulations of different parameters it was learnt from."""
        return len(Repeats.of(np.asarray(self.simulated)))

    def beyond(self, y: ArrayLike, z: np.ndarray, mask: ArrayLike = True) -> np.ndarray:
        r"""Tell which calls of the simulator lie beyond those that the likelihood was learnt from.

        A call does where its coordinates are farther outside the simulated ones than every simulation is outside the
        others, each coordinate counting as the likelihood depends on it (`Region`), and where the observation cannot
        come from it: a statistic is beyond a bound that no simulation crossed, or nearer to it than the bound is known
        (`SupportBounds`). What the likelihood says there rests on no simulation.

        Args:
            y: Observations `(*lead, *event)`.
            z: Coordinates of calls, `(k, *groups, D)`; `lead` and `groups` are broadcast, and a call that several
                observations share lies beyond where it does for one of them.
            mask: Which observations count, of the broadcast shape; a call without any lies beyond nothing.
        Returns:
            `(k, *groups)`. A further draw from where the simulations were drawn lies beyond the region with probability
            of about `1 / (m + 1)`.
        """
        for name, value in {"y": y, "z": z}.items():
            checks.real(name, value)
        y, (size, *groups, _) = np.asarray(y), z.shape
        lead = y.shape[: y.ndim - len(self.event_shape)]
        shared = tuple(range(1, 1 + max(0, len(lead) - len(groups))))
        points = z.reshape(size, *(1,) * len(shared), *groups, z.shape[-1])
        y = y.reshape(*lead, -1)
        known = np.asarray(mask)
        if lead and known.shape == lead and known.any():  # one that counts in place of those that do not
            y = np.where(known[..., None], y, y[known][0])
        impossible = self.surrogate.outside_support(y, points)
        counts = np.broadcast_to(mask, impossible.shape)
        return (self.surrogate.region.beyond(z) | (impossible & counts).any(axis=shared)) & counts.any(axis=shared)

    def __call__(self, *params: ArrayLike) -> "KernelMeansLikelihood":
        """The distribution of the output at `params`."""
        return KernelMeansLikelihood(self, *params)


@door
def fit_likelihood(
    theta: ArrayLike,
    x: ArrayLike,
    *,
    form: Form | None = None,
    coordinates: Coordinates | None = None,
    measure: Measure | None = None,
    y: ArrayLike | None = None,
    names: Sequence[str] = (),
    standard_errors: bool = True,
) -> FittedLikelihood:
    """Learn a simulator's likelihood from any table of its arguments and outputs.

    Args:
        theta: `(m, p)` arguments, from any proposal: they need not be draws from the prior.
        x: `(m, *event)` outputs.
        form: Form of the learnt likelihood, with its settings. When left out: `KernelExponentialFamily()` for choices,
            answers, counts and repeated draws of one number; `KernelMeans()` for fewer than ten simulations; otherwise
            `ResidualKernelMeans()`.
        coordinates: Map of the arguments to about standard normal; `Coordinates.standardise(theta)` when left out.
        measure: The prior in coordinates, for objectives and reports that need one.
        y: The observation `(*event)`, for objectives that need it.
        names: Names of the numbers of one output, flattened, for reports.
        standard_errors: Whether to learn from halves of the simulations, too, for standard errors of posteriors; it
            then takes up to three times as long.
    Raises:
        ValueError: If the tables disagree in length, hold values that are not finite, or are too short.
    """
    checks.concrete(theta=theta, x=x, y=y)
    checks.require(
        not isinstance(theta, Mapping),
        "`theta` must be an array (simulations, arguments); got a dict. Stack its arrays in the order that the "
        "simulator takes them: np.stack([*theta.values()], axis=1).",
        TypeError,
    )
    theta, x = np.asarray(in_jax_types(theta)), np.asarray(in_jax_types(x))
    checks.table("theta", theta, min_rows=2)
    fits = x.shape[:1] == theta.shape[:1]
    checks.require(fits, f"`theta` and `x` must have one row a simulation; got shapes {theta.shape} and {x.shape}.")
    ends = isinstance(form, KernelStatistics) or (isinstance(form, KernelMeans) and form.data_kernel is not None)
    finite = np.where(np.isnan(x), 0.0, x) if isinstance(form, Recorded | KernelExponentialFamily) or ends else x
    checks.sound("x", finite, "Leave out the simulations that failed.")
    checks.require(x.size > 0, f"`x` must hold at least one number for each simulation; got shape {x.shape}.")
    checks.resolved("`x`", x, y)
    checks.instance("form", form, Form | None, "KernelMeans(...), ResidualKernelMeans(...) or another form")
    coordinates = coordinates or Coordinates.standardise(theta)
    z = coordinates.table(theta)
    form, points, point = _as_read(form, coordinates, z, x, y)
    surrogate = form.fit(z, points, measure=measure, y=point)
    fitted = FittedLikelihood(surrogate.named(names), coordinates, x.shape[1:], z)
    return with_halves(fitted, x, form=form, measure=measure, y=y) if standard_errors else fitted


SPLITS = 2
"""How often simulations are split into halves: once leaves two degrees of freedom to a single latent."""


def with_halves(
    fitted: FittedLikelihood, x: np.ndarray, *, form: Form | None, measure: Measure | None = None, y: Any = None
) -> FittedLikelihood:
    """The likelihood with those of halves of its simulations before the `others`, where there are enough, and all
    numbers that vary over all outputs vary over the halves; arguments as `fit_likelihood` takes them."""
    z = np.asarray(fitted.simulated)
    form, points, point = _as_read(form, fitted.coordinates, z, x, y)
    rng, table, found = np.random.default_rng(0), x.reshape(len(x), -1), []
    varies = (table != table[0]).any(axis=0)
    with checks.collected_warnings():
        for rows in [half for _ in range(SPLITS) for half in Repeats.of(z).halves(rng)]:
            if len(rows) >= form.fewest and np.all(varies == (table[rows] != table[rows[0]]).any(axis=0)):
                surrogate = form.again(fitted.surrogate, z, points, rows, measure=measure, y=point)
                found.append(replace(fitted, surrogate=surrogate, simulated=z[rows], others=(), shares=()))
        shares = (1.0 / len(found),) * len(found) if found else ()
        if isinstance(form, KernelMeans) and form.data_kernel is None and len(z) >= MIN_SIMULATIONS:
            beside = ResidualKernelMeans().fit(z, points)  # all halves have what the published form smooths
            found, shares = [*found, replace(fitted, surrogate=beside, others=(), shares=())], (*shares, 1.0)
    return replace(fitted, others=(*found, *fitted.others), shares=(*shares, *fitted.shares))


def _as_read(
    form: Form | None, coordinates: Coordinates, z: np.ndarray, x: np.ndarray, y: Any
) -> tuple[Form, Any, Any]:
    """A form of the likelihood, and outputs and the observation as it reads them."""
    form = form or default_form(x, 2 * len(Repeats.of(z)) <= len(x))
    form = replace(form, names=coordinates.names) if isinstance(form, OfStatistics) else form
    point = None if y is None else take(form.points(np.asarray(in_jax_types(y))[None]), 0)
    return form, form.points(x), point


def default_form(x: np.ndarray, repeated: bool = False, bounds: Bounds | None = None, once: bool = False) -> Form:
    """The form of the likelihood of outputs `(m, *event)`, NaN where nothing is recorded, where none is asked for: some
    are `repeated` draws of the same parameters, or are observed within `bounds`, which one form can integrate over.
    Of what is observed `once` counts, and numbers beside others, are statistics, which takes fewer simulations. Of
    repeated draws of a few numbers the best form is chosen."""
    if len(x) < MIN_SIMULATIONS:
        return KernelMeans()
    if bounds is not None:
        return ResidualKernelMeans()
    entries = Entries.of(x.reshape(len(x), -1))
    statistics = once and (entries.counts or len(entries.numbers) > 1)
    if entries.fewest >= MIN_SIMULATIONS and entries.are_trials(repeated) and not statistics:
        return KernelExponentialFamily()
    if np.isnan(x).any():
        return Recorded()
    return BestForm() if repeated and 1 < len(entries.numbers) <= MOST_ENTRIES else ResidualKernelMeans()


class RealValued(Distribution):
    """Base of densities on a simulator's output without its constraints, whose parameters are checked elsewhere."""

    arg_constraints: dict[str, Any] = {}

    @property
    def support(self) -> constraints.Constraint:
        """All real numbers."""
        return constraints.independent(constraints.real, self.event_dim)


class KernelMeansLikelihood(RealValued):
    r"""The kernel means likelihood $q(y \mid \theta)$, learnt from simulations $\{(\theta_j, x_j)\}$.

    It stands for a density of the simulator's output that is smoothed by the learnt bandwidth. A finite number of
    simulations can make $q$ negative; `log_prob` is the logarithm of the positive version that the form of the
    surrogate documents, so that gradient-based samplers can follow it.

    Entries of an output that are NaN were not observed: the likelihood is that of the others. Which entries are NaN has
    to be known when the output is prepared (`observing`, which `handlers.surrogate` calls); a traced output must have
    none.

    Outputs `(*lead, *event)` and parameters of any batch shape are broadcast against each other: groups with their own
    parameters, draws that share one (whose log densities a data plate adds up), or both.

    Args:
        fitted: From `fit_likelihood`, or from an engine (`KELFI.likelihoods[site]`).
        *params: The simulator's arguments, in its order. Leading dimensions beyond those of one call are batch
            dimensions, the same for every parameter.
    Raises:
        ValueError: If the parameters do not have as many numbers a call as `fitted` was learnt from, or one that had
            the same value in all simulations has another.
    Cost: `m` kernels a parameter and `m` products an output; `observing` does once what depends on the output alone.
    Reference: Hsu and Ramos (2019), AISTATS.
    """

    paper = "hsu2019bayesian"

    pytree_data_fields = ("fitted", "arguments", "prepared", "bounds")
    pytree_aux_fields = ("_read_otherwise",)

    @door
    def __init__(self, fitted: FittedLikelihood, *params: ArrayLike):
        self.fitted = fitted
        self.arguments, self._read_otherwise = join(params, len(fitted.coordinates.usual))
        if checks.is_concrete((self.arguments, fitted)):
            fitted.coordinates.require_simulated(self.arguments)
        self.prepared: PreparedLikelihood | None = None
        self.bounds: Bounds | None = None
        super().__init__(self.arguments.shape[:-1], fitted.event_shape)

    def in_batches(self, shape: tuple[int, ...]) -> "KernelMeansLikelihood":
        """A copy of these calls with the batch shape `shape`, if there are as many.

        An axis of length 1 of a parameter may be one of calls, or hold the number of one call: plates around tell, and
        without them it holds the number.
        """
        if math.prod(shape) != math.prod(self.batch_shape):
            return self
        new = copy.copy(self)
        new.arguments, new._batch_shape = self.arguments.reshape(*shape, -1), tuple(shape)
        new._read_otherwise = ()
        return new

    def observing(
        self, value: ArrayLike, mask: ArrayLike = True, bounds: Bounds | None = None
    ) -> "KernelMeansLikelihood":
        """A copy of the distribution, with one observation prepared; a traced one is left for `log_prob`.

        What is prepared stays prepared under `jax.jit`, where `value` may be traced by the time it is scored. Outputs
        that a known `mask`, of the shape of the outputs' leading dimensions, leaves out may be anything: they are not
        looked at. Entries that are NaN lie within `bounds`, arrays that broadcast to the shape of `value`, where these
        are finite (`Simulator.within`).
        """
        require_array(value, self.fitted)
        checks.require(
            not checks.is_concrete(mask) or np.asarray(mask).dtype == bool,
            f"`mask` must be True or False, or an array of these; got {checks.line(mask)}.",
            TypeError,
        )
        if not checks.is_concrete((value, self.fitted)):
            return self
        self.fitted.warn_unless_near(value)
        new = copy.copy(self)
        new.bounds = bounds
        new.prepared = prepare(self.fitted, np.asarray(value), mask if checks.is_concrete(mask) else True, bounds)
        return new

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Raise an error: draws come from the simulator itself."""
        raise checks.explained(
            "A kernel means likelihood has no draws. Leave the site unobserved under `handlers.surrogate` to simulate.",
            NotImplementedError,
        )

    @door
    def log_prob(self, value: ArrayLike, intermediates=None) -> jax.Array:
        """Logarithm of the positive version of `q(value | params)`, of the broadcast batch shape.

        A concrete `value` is prepared once, on the host and in float64; a traced one costs two triangular solves.
        """
        return self._over("log_density", value)

    def signs(self, value: ArrayLike) -> jax.Array:
        """Signs of `q(value | params)`, of the broadcast batch shape."""
        return self._over("signed_log", value)[0]

    def _over(self, method, value):
        """A method of the likelihood for each output and each call."""
        require_array(value, self.fitted)
        value, fitted = in_jax_types(value), self.fitted
        if np.ndim(fitted.simulated) > 2:  # `scan` of NumPyro stacks all that a distribution holds
            fitted = jax.tree.map(itemgetter(0), fitted)
        self._require_one_reading(value.shape[: value.ndim - self.event_dim])
        prepared = self.prepared
        if prepared is None or not prepared.is_for(value):
            prepared = prepare(fitted, value)
        return _evaluate(method, prepared, fitted.coordinates, self.arguments)

    def _require_one_reading(self, lead: tuple[int, ...]) -> None:
        """Raise where parameters of shape `(3, 1)` and a table of outputs fit as three calls and as `(3, 1)`."""
        others = [shape for shape in self._read_otherwise if len(lead) > 1 and checks.expands(shape, lead)]
        checks.require(
            not others,
            f"The parameters may be those of calls of the shape {self.batch_shape} or {others and others[0]}, and the "
            f"outputs are a table {lead} of them. Choose by `in_batches({others and others[0]})` of the likelihood, "
            "or sample it under its plates, which tell.",
        )


@partial(jax.jit, static_argnums=0)
@full_precision
def _evaluate(method, prepared, coordinates, arguments):
    """One program for what would be a hundred small ones."""
    return getattr(prepared, method)(jnp.vectorize(coordinates.forward, signature="(p)->(d)")(arguments))


def join(params: tuple[ArrayLike, ...], expected: int) -> tuple[jax.Array, tuple[tuple[int, ...], ...]]:
    """All numbers that one call takes, flattened and joined, `batch_shape + (expected,)`, and the other batch shapes
    that they may have: axes of length 1 are of calls as far as the plates around reach."""
    arrays = [jnp.asarray(p) for p in params]
    shapes = [a.shape for a in arrays]

    def fits(k):
        return len({shape[:k] for shape in shapes}) == 1 and sum(math.prod(shape[k:]) for shape in shapes) == expected

    found = [k for k in range(min((a.ndim for a in arrays), default=0) + 1) if arrays and fits(k)]
    if found:
        depth = len(compat.plate_shape())
        k = max((k for k in found if k <= depth), default=found[0])
        dtype = jnp.result_type(float, *arrays)
        joined = jnp.concatenate([a.reshape(*a.shape[:k], -1).astype(dtype) for a in arrays], axis=-1)
        return joined, () if depth else tuple(shapes[0][:other] for other in found if other > k)
    raise checks.explained(
        f"The likelihood was learnt from {expected} arguments of a simulation, and parameters of the shapes {shapes} "
        "do not hold as many after common batch dimensions. Pass the simulator's arguments in its order, broadcast."
    )


def require_array(value: Any, fitted: FittedLikelihood) -> None:
    """Raise for an output by name: a learnt likelihood has the numbers of a simulator's dictionary in its order."""
    names = getattr(getattr(fitted.surrogate, "transform", None), "names", ())
    checks.require(
        not isinstance(value, Mapping),
        f"`value` must be an array (..., *{fitted.event_shape}), and it is a dictionary. Join its numbers in the order "
        f"of the simulator's dictionary{f', {list(names)}' if names else ''}: "
        "jnp.concatenate([jnp.ravel(value[name]) for name in names]).",
        TypeError,
    )
