"""A simulator as a NumPyro distribution: it draws, and has no density."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Distribution, MaskedDistribution

from numpyro_kme._core import checks, compat, door, in_jax_types, in_present_precision, numbers, pieces
from numpyro_kme.kernels.data_sets import pad
from numpyro_kme.models import outputs
from numpyro_kme.models import simulator_functions as functions
from numpyro_kme.models.simulator_functions import Shape

_log_prob = compat.valueless("simulator_log_prob")


class Simulator(Distribution):
    r"""The distribution of the output of a simulator, `x ~ fn(., *params)`.

    Use it as any distribution of NumPyro: `numpyro.sample("x", Simulator(fn, *params), obs=x)`. It can be
    drawn from, observed, masked and put under plates. It has no density: whatever asks for one (NUTS, SVI,
    `log_density`) raises an error that names the site, while `render_model` and `get_dependencies` work.

    A JAX simulator is a function `fn(key, *params)` that draws **one** event from a JAX key; its event shape
    is found by tracing it. A black-box simulator is any function `fn(rng, *params)` of a NumPy generator and
    NumPy arrays; pass its `shape`, and `dtype` unless it is float, to declare it. Both are called once for each event,
    never with a batch. Draws of a black-box simulator depend on the JAX key in the same way but have no
    derivative.

    Define `fn` once, outside the model: JAX compares functions by identity, so that a lambda made inside the
    model is compiled again at each run, and two runs of the model differ in structure.

    Args:
        fn: The simulator.
        *params: Arrays; the arguments of one call, or a batch of them.
        event_dims: How many trailing dimensions of each parameter belong to one call: one number for all
            parameters, or a tuple with one for each. The others are batch dimensions, broadcast against each
            other and against plates. By default, as for any distribution of NumPyro, leading dimensions of the size of
            the plates in which the simulator is made run along these, and everything else belongs to one call.
        shape: Shape of one event of a black-box simulator; `(len(names),)` when left out where `names` are given.
        dtype: Data type of a black-box simulator; float when left out. Draws made inside JAX have its 32-bit form while
            x64 is off.
        ragged: Whether an output may have fewer rows than the first axis of its shape says: NaN at its end is then no
            failure, but marks where it ends. A JAX simulator returns rows of NaN at the end (`kernels.cut`), a
            black-box simulator an array of any length up to the first number of `shape`. The observation may be
            shorter, too.
        names: Names of the numbers of one event, or of those along its last axis, such as `("mean", "max")`; or names
            of arrays with their lengths or shapes, such as `{"quantiles": 3, "extremes": 2}`, where an array of length
            1 may be a scalar. Summaries, warnings, plots and ArviZ use them. A JAX simulator that returns a dictionary
            of arrays has its names; a black box that returns a dictionary, or a row or table of pandas, has to declare
            them. The observation may be such a dictionary too.
    Attributes:
        groups: Batch shape of the parameters, before plates expand it.
        call_shapes: Shape of each parameter in one call.
        entries: Shapes of the entries of a dictionary, `{name: shape}` as pairs; empty without one.
        dtype: Data type of an event.
        black_box: Whether the simulator runs in NumPy on the host.
        bounds: Lowest and highest values of entries of the observation that are NaN (`within`), or None.
    Raises:
        ValueError: If JAX cannot trace `fn`, if it returns anything but one real array, or if `event_dims`
            does not fit the parameters or is needed under a plate.
    """

    arg_constraints: dict[str, Any] = {}
    pytree_data_fields = ("params", "bounds")
    pytree_aux_fields: tuple[str, ...] = ("fn", "call_shapes", "groups", "dtype", "black_box", "ragged")
    pytree_aux_fields += ("names", "entries", "_event_dims_given")

    @door
    def __init__(
        self,
        fn: Callable[..., ArrayLike],
        *params: ArrayLike,
        event_dims: int | tuple[int, ...] | None = None,
        shape: int | Shape | None = None,
        dtype: type | str | np.dtype | None = None,
        ragged: bool = False,
        names: outputs.Names = None,
    ):
        functions.check_function(fn)
        listed = names is None or (isinstance(names, Sequence | Mapping) and not isinstance(names, str))
        checks.require(listed, f"`names` must be strings, as ('mean', 'max'), or lengths by name; got {names!r:.200}.")
        for one in names or ():
            checks.instance("names", one, str, "strings")
        declared = shape is not None or (names is not None and dtype is not None)
        checks.require(bool(params), f"Simulator `{functions.name(fn)}` has no parameter, so nothing can be inferred.")
        checks.require(
            declared or dtype is None,
            f"Simulator `{functions.name(fn)}` got dtype={dtype!r:.40} and no shape. Give a NumPy simulator both, "
            "shape=() where it returns one number, and a JAX simulator neither.",
        )
        dtype = float if declared and dtype is None else dtype
        self.fn = fn
        self.params = tuple(map(jnp.asarray, in_present_precision(params)))
        shapes, dtypes = [param.shape for param in self.params], [param.dtype for param in self.params]
        if event_dims is None:
            dims = tuple(_dims_of_one_call(shape, compat.plate_shape()) for shape in shapes)
            event_dims = None if dims == tuple(map(len, shapes)) else dims
        self.groups, self.call_shapes = _groups_and_calls(fn, shapes, event_dims)
        self.black_box = declared
        self._event_dims_given = event_dims is not None
        self.bounds: tuple[np.ndarray, np.ndarray] | None = None
        if not declared:
            output = outputs.Output.traced(fn, self.call_shapes, dtypes, names)
        else:
            output = outputs.Output.declared(fn, shape, dtype, names)
        checks.instance("ragged", ragged, bool, "True or False")
        self.ragged = ragged
        output = output.ragged(self.black_box) if ragged else output
        self.fn, event_shape, self.dtype, self.names, entries = output
        self.entries = tuple(entries.items())
        super().__init__(self.groups, event_shape)

    @property
    def name(self) -> str:
        """Name of the simulator's function."""
        return functions.name(self.fn)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each number of one event, flattened; none without `names`."""
        rows = math.prod(self.event_shape) // max(len(self.names), 1)
        if rows == 1 or not self.names:
            return self.names
        return tuple(f"{one}[{row}]" for row in range(rows) for one in self.names)

    def labels_at(self, site: str) -> tuple[str, ...]:
        """A name for each number of one event at a site: its label, else `site[i,j]`."""
        return self.labels or tuple(numbers({site: np.empty(self.event_shape)}, lead=0))

    def vector(self, value: Any) -> Any:
        """An observation `(*batch, *event)` of a dictionary with an array `(*batch, *shape)` for each entry, or of a
        table or row of pandas with the names as columns; an array as it is. What a NumPy masked array masks was not
        observed: NaN."""
        return in_jax_types(outputs.vector(value, self.name, self.names, dict(self.entries), self.event_shape))

    @property
    def arguments(self) -> jax.Array:
        """All numbers that one call takes, flattened and joined, `groups + (p,)`."""
        dtype = jnp.result_type(float, *self.params)
        columns = [param.reshape(*self.groups, -1).astype(dtype) for param in self.broadcast_params(self.groups)]
        return jnp.concatenate(columns, axis=-1)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, from the signature of the simulator."""
        return functions.parameters(self.fn, len(self.params))

    @property
    def argument_names(self) -> tuple[str, ...]:
        """A name for each of the `arguments`, `R0` or `rates[1]`."""
        return tuple(numbers(dict(zip(self.parameters, map(np.empty, self.call_shapes))), lead=0))

    @door
    def with_arguments(self, arguments: ArrayLike) -> "Simulator":
        """Put the same simulator under the same plates, at other `arguments` of shape `groups + (p,)`."""
        new, blocks = copy.copy(self), pieces(jnp.asarray(arguments), self.call_shapes)
        new.params = tuple(block.astype(param.dtype) for block, param in zip(blocks, self.params))
        return new

    def broadcast_params(self, lead: Shape) -> list[jax.Array]:
        """Each parameter with the leading dimensions `lead`."""
        return [jnp.broadcast_to(param, lead + shape) for param, shape in zip(self.params, self.call_shapes)]

    @property
    def support(self) -> constraints.Constraint:
        """Real numbers, integers or truth values, as the simulator returns them."""
        base: constraints.Constraint = constraints.boolean if self.dtype.kind == "b" else constraints.real
        if self.dtype.kind in "iu":
            ends = np.iinfo(jax.dtypes.canonicalize_dtype(self.dtype))
            base = constraints.integer_interval(ends.min, ends.max)
        return constraints.independent(base, self.event_dim)

    @property
    def has_rsample(self) -> bool:
        """Tell whether draws have a derivative with respect to the parameters at a fixed key.

        It is the derivative of an expectation only where `fn` is continuous in its parameters, which its
        author has to know.
        """
        return not self.black_box and self.dtype.kind == "f"

    def expand(self, batch_shape) -> "Simulator":
        """The simulator under plates: one call for each element of `batch_shape`."""
        batch_shape = tuple(batch_shape)
        for name, param in zip(self.parameters, () if self._event_dims_given else self.params):
            checks.require(
                param.ndim == 0 or param.shape[0] == 1 or param.shape[0] not in batch_shape,
                f"Parameter `{name}` of simulator `{self.name}` has shape {param.shape} and there are {batch_shape} "
                "calls, so it is not clear whether the parameter runs along a plate. Make the simulator inside of its "
                "plates, with their shape in front of what runs along them, or pass event_dims, a number for each "
                "parameter.",
            )
        fits = checks.expands(self.batch_shape, batch_shape)
        checks.require(fits, f"Simulator `{self.name}`, of shape {self.batch_shape}, does not expand to {batch_shape}.")
        new = copy.copy(self)
        new._batch_shape = batch_shape
        return new

    @door
    def within(self, low: ArrayLike = -np.inf, high: ArrayLike = np.inf) -> "Simulator":
        """Make a copy for which entries of the observation that are NaN lie between `low` and `high`.

        For values below a detection limit, above the end of a scale, or rounded. Both ends belong to the interval if
        the simulator gives whole numbers. If both ends are infinite, an entry that is NaN is missing at random.

        Args:
            low, high: Arrays that broadcast to the shape of the observation.
        Raises:
            ValueError: If an interval is empty, or an end is NaN.
        Example:
            >>> numpyro.sample("x", Simulator(fn, theta).within(high=limit), obs=np.where(x < limit, np.nan, x))
        """
        checks.concrete(low=low, high=high)
        for name, end in (("low", low), ("high", high)):
            checks.real(name, end)
        bottom, top = np.asarray(low, np.float64), np.asarray(high, np.float64)
        if self.dtype.kind in "biu":
            bottom, top = bottom - 0.5, top + 0.5
        empty = ~((bottom < top) & (bottom < np.inf) & (top > -np.inf))
        checks.require(
            not empty.any(),
            f"`low` must be below `high`, and neither NaN; {int(empty.sum())} of {empty.size} intervals are not so. "
            "Give infinite ends where nothing is known.",
        )
        new = copy.copy(self)
        new.bounds = bottom, top
        return new

    def padded(self, value: Any) -> Any:
        """An observation as long as the longest output, with rows of NaN at its end where it is shorter.

        Whatever else does not fit stays as it is.
        """
        rows, longest = len(self.batch_shape), self.event_shape[0] if self.ragged else 0
        event = np.shape(value)[rows:]
        if len(event) != self.event_dim or event[1:] != self.event_shape[1:] or event[0] >= longest:
            return value
        xp: Any = jnp if isinstance(value, jax.Array) else np
        return xp.moveaxis(pad(xp.moveaxis(value, rows, 0), longest), 0, rows)

    def mask(self, mask) -> Distribution:
        """The simulator with some of its events left out of densities; see `numpyro.handlers.mask`."""
        if mask is True:
            return self
        with jax.ensure_compile_time_eval():  # a mask that is known stays known while JAX traces the model
            return _MaskedSimulator(self, mask)

    def keys(self, key: jax.Array | None, sample_shape: Shape = ()) -> jax.Array:
        """The key of each call of a draw: `key` itself if there is one call, else split over the batch."""
        key, lead = checks.key(key), sample_shape + self.batch_shape
        return random.split(key, lead) if lead else key

    @door
    def sample(self, key: jax.Array | None, sample_shape: Shape = ()) -> jax.Array:
        """Draw `sample_shape + batch_shape + event_shape`; every event is one call with its own key."""
        keys = self.keys(key, sample_shape)
        params = self.broadcast_params(keys.shape)
        if self.black_box:
            return functions.call_back(self.fn, self.event_shape, self.dtype, random.key_data(keys), params)
        if keys.shape == ():
            return functions.traced_anew(self.fn, keys, *params)
        rows = [param.reshape((-1, *shape)) for param, shape in zip(params, self.call_shapes)]
        x = functions.traced_anew(jax.vmap(self.fn), keys.ravel(), *rows)
        return x.reshape(keys.shape + self.event_shape)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> jax.Array:
        """Has a shape, for tools that draw the graph of a model; evaluating it raises `NotImplementedError`."""
        value = jnp.asarray(value)
        lead = value.shape[: max(value.ndim - self.event_dim, 0)]
        sentence = (
            f"`{self.name}` is a simulator and has no density. Put one in its place, and observe it, with `numpyro_kme."
            "mcmc.handlers.surrogate(model, {site: fitted})`, around `condition`, or run `numpyro_kme.KELFI(model)`."
        )
        shape = jnp.broadcast_shapes(self.batch_shape, lead)
        return _log_prob(value, *self.params, shape=shape, dtype=jnp.result_type(float), message=sentence)


def _dims_of_one_call(shape: Shape, plates: Shape) -> int:
    """Count the trailing dimensions of a parameter that belong to one call, where those before run along plates."""
    lead = 0 if shape[:1] == (1,) else len(shape)
    while not checks.expands(shape[:lead], plates):
        lead -= 1
    return len(shape) - lead


class _MaskedSimulator(MaskedDistribution):
    """A masked simulator that plates expand from the inside, so that the simulator sees them."""

    def expand(self, batch_shape):
        return self.base_dist.expand(batch_shape).mask(self._mask)

    def mask(self, mask):
        with jax.ensure_compile_time_eval():
            return self.base_dist.mask(self._mask & mask)


def _groups_and_calls(fn: Callable, shapes: list[Shape], event_dims: Any) -> tuple[Shape, tuple[Shape, ...]]:
    """Batch shape of parameters of these shapes, and the shape of each in one call."""
    if event_dims is None:
        return (), tuple(shapes)
    dims = (event_dims,) * len(shapes) if isinstance(event_dims, int) else tuple(event_dims)
    checks.require(
        len(dims) == len(shapes) and all(0 <= own <= len(shape) for own, shape in zip(dims, shapes)),
        f"Simulator `{functions.name(fn)}` got event_dims={event_dims} for parameters of shapes {shapes}; give "
        "one number for each parameter, at most its number of dimensions.",
    )
    leads, calls = zip(*((shape[: len(shape) - own], shape[len(shape) - own :]) for shape, own in zip(shapes, dims)))
    try:
        return jnp.broadcast_shapes(*leads), calls
    except ValueError as error:
        raise checks.explained(
            f"The parameters of simulator `{functions.name(fn)}` have shapes {shapes} and event_dims={event_dims}, "
            f"which leaves the batch shapes {list(leads)}; these must broadcast against each other."
        ) from error
