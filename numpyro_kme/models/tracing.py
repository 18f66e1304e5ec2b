"""The one runner of models: one at a time, and where asked in the precision in force, with simulators left out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.primitives import Messenger

from numpyro_kme._core import checks, compat, data_of, fold_in, host, in_present_precision
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import called_back


class LeaveOutSimulators(Messenger):
    """Note the `Simulator` of each site, and give the site zeros if it has no value: no simulator runs. Refuse a latent
    that has no value and cannot be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.simulators: dict[str, Simulator] = {}

    def process_message(self, msg):
        """Keep the simulator of this message from running, and look at a prior before NumPyro draws from it."""
        if msg["type"] != "sample":
            return
        fn = compat.innermost(msg["fn"])
        if isinstance(fn, Simulator):
            shape = msg["fn"].shape(msg["kwargs"]["sample_shape"])
            self.simulators[msg["name"]] = fn.expand(shape[: len(shape) - fn.event_dim])
            if msg["value"] is None:
                msg["value"] = jnp.zeros(shape, jax.dtypes.canonicalize_dtype(fn.dtype))
            elif fn.ragged:
                msg["value"] = self.simulators[msg["name"]].padded(msg["value"])
        proper = msg["value"] is not None or not isinstance(fn, dist.ImproperUniform)
        checks.require(proper, f"The prior of {msg['name']!r} is improper (ImproperUniform). Give a wide one.")


PATIENCE = 5.0
"""Seconds that a simulator which is called back waits for the model of another thread."""

_lock = Lock()
_ours: ContextVar[bool] = ContextVar("ours", default=False)


@contextmanager
def one_model_at_a_time() -> Iterator[None]:
    """No other thread of this package runs a model inside this block: NumPyro keeps its handlers in one list for all
    threads.

    A block inside a block, also in a thread that `_core/host` opens in between, goes on.

    Raises:
        RuntimeError: In a black-box simulator that a model calls back: the model would wait for it, and it for the
            model.
    """
    if _ours.get() and not called_back.get():
        yield
        return
    checks.require(
        _lock.acquire(timeout=PATIENCE if called_back.get() else -1),
        "A simulator ran an engine or another model while the model that called it was being run, as "
        "`predictive_check` does: NumPyro runs one model at a time. Run the engine before, outside of the simulator.",
        RuntimeError,
    )
    try:
        with checks.setting(_ours, True), checks.setting(called_back, False):
            yield
    finally:
        _lock.release()


class PresentPrecision(Messenger):
    """Use the NumPy arrays and lists in a model's distributions and observations in the precision in force.

    The observation of a simulator stays as it was given: it is compared on the host, in float64.
    """

    def process_message(self, msg):
        """Replace them before the site is drawn or scored."""
        if msg["type"] != "sample":
            return
        msg["fn"], value = in_present_precision(msg["fn"]), msg["value"]
        simulator, is_jax = compat.innermost(msg["fn"]), isinstance(value, jax.Array)
        if checks.is_key(value):
            checks.real(f"observation at {msg['name']!r}", value)
        if value is None or (is_jax and value.dtype != jnp.bfloat16):
            return
        if isinstance(simulator, Simulator):
            msg["value"] = value.astype(jnp.float32) if is_jax else simulator.vector(value)
            checks.require(
                msg["value"].dtype.kind not in "OSUMmV",
                f"The observation at {msg['name']!r} has dtype {msg['value'].dtype}; it must hold numbers, and NaN "
                "instead of None for what was not observed.",
                TypeError,
            )
        elif hasattr(value, "__array__") or isinstance(value, list | tuple):
            checks.require(
                not np.ma.is_masked(value),
                f"The observation at {msg['name']!r} is a NumPy masked array, whose masked numbers an ordinary "
                "likelihood would count; put numpyro.handlers.mask around it, or leave them out.",
            )
            msg["value"] = in_present_precision(np.asarray(value))


SPLIT = 8
"""So many keys are split before a model is run; it splits more where it asks for more."""


class KeysSplitBefore(handlers.seed):
    """`numpyro.handlers.seed`, the first of whose keys were split before, by NumPy (`keys_in_order`): each hash in a
    model's program takes a tenth of a second of compilation."""

    stateful = True

    def __init__(self, fn: Callable, words: Any):
        super().__init__(fn, rng_seed=random.wrap_key_data(words[-1]))
        self.words = list(words[:-1])

    def process_message(self, msg):
        """Give, where NumPyro would split a key, the next one in place of it."""
        if not self.words:
            return super().process_message(msg)
        asks = msg["type"] in ("sample", "prng_key", "plate", "control_flow")
        if asks and msg["kwargs"]["rng_key"] is None and msg["value"] is None:
            msg["kwargs"]["rng_key"] = random.wrap_key_data(self.words.pop(0))


def keys_in_order(words: np.ndarray) -> np.ndarray:
    """Words `(..., SPLIT + 1, w)` of the first `SPLIT` keys that `numpyro.handlers.seed` gives from keys of words
    `(..., w)`, and of those that it is left with."""
    given = []
    for _ in range(SPLIT):
        words, one = fold_in(words, 0), fold_in(words, 1)
        given.append(one)
    return np.stack([*given, words], axis=-2)


def as_numpyro_does():
    """NumPyro's distributions rely on rank promotion, also where the session forbids it."""
    return jax.numpy_rank_promotion("allow")


@one_model_at_a_time()
def trace_of(model: Callable, args: tuple, kwargs: Mapping, *inside: Messenger, keys: Any = None) -> dict:
    """The trace of a model that is run inside handlers, the innermost first, and unseen by handlers around it.

    Its sites have the keys of `keys_in_order`; of `jax.random.key(0)` where none are given.
    """
    if keys is None:
        with host.at_once():
            keys = keys_in_order(data_of(random.key(0)))
    wrapped: Messenger = KeysSplitBefore(model, keys)
    for messenger in inside:
        messenger.fn, wrapped = wrapped, messenger
    with as_numpyro_does(), handlers.block(), handlers.trace() as trace:
        wrapped(*args, **kwargs)
    return trace


class DrawObserved(Messenger):
    """Give observed sites draws from their own distributions, of the shape of what is observed; masked elements stay.

    Args:
        words: Those of a key, by site.
    """

    def __init__(self, words: Mapping[str, Any]) -> None:
        super().__init__()
        self.words = words

    def process_message(self, msg):
        """Draw before the site is scored, and before the sites that depend on it."""
        if msg["type"] != "sample" or msg["name"] not in self.words:
            return
        fn, observed = msg["fn"], jnp.asarray(msg["value"])
        checks.require(
            not isinstance(fn, dist.Unit),
            f"{msg['name']!r} is a factor (numpyro.factor), from which no data can be drawn: calibrate a model whose "
            "data all come from simulators and distributions, numpyro.sample(..., obs=).",
        )
        batch = jnp.broadcast_shapes(fn.batch_shape, observed.shape[: max(0, observed.ndim - fn.event_dim)])
        fn = fn if batch == fn.batch_shape else fn.expand(batch)
        drawn, counts = fn.sample(random.wrap_key_data(self.words[msg["name"]])), compat.mask(fn)
        if not checks.is_concrete(counts) or not np.all(counts):
            drawn = jnp.where(counts.reshape(counts.shape + (1,) * (drawn.ndim - counts.ndim)), drawn, observed)
        msg["value"] = drawn


def run(
    model: Callable, args: tuple, kwargs: Mapping, keys: Any, latents: Mapping, *inside: Messenger
) -> tuple[dict, dict[str, Simulator]]:
    """The trace of a model with given latents and its simulators left out, and the `Simulator` of each site."""
    left_out = LeaveOutSimulators()
    values = handlers.substitute(data=jax.tree.map(jnp.asarray, dict(latents)))
    return trace_of(model, args, kwargs, PresentPrecision(), values, *inside, left_out, keys=keys), left_out.simulators


def refuse_seeded(model: Any) -> None:
    """Refuse a model with a key: a key inside a model would make all its draws the same."""
    while isinstance(model, Messenger):
        checks.require(
            not isinstance(model, handlers.seed),
            "The model has a key of its own already, from numpyro.handlers.seed, with which all its draws are the "
            "same. Pass the model without it: the key is given to `run` or `simulate`.",
        )
        model = model.fn


def check_plates(trace) -> None:
    """Refuse plates that subsample, which take another part of the data each time the model is traced."""
    for name, site in trace.items():
        if site["type"] == "plate":
            size, taken = site["args"][0], len(site["value"])
            checks.require(
                size == taken,
                f"Plate {name!r} takes {taken} of {size} elements, at random (subsample_size): an engine learns from "
                "one data set. Leave `subsample_size` out, or pass the part to the model, with a plate of its size.",
            )
