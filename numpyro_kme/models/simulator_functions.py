"""The functions that simulators are made of: in JAX, in NumPy, written in terms of their noise, or other programs."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.distributions import Distribution

from numpyro_kme._core import checks, compat, processes, solves
from numpyro_kme._core.contexts import setting
from numpyro_kme._core.display import frozen, shown
from numpyro_kme._core.programs import Program
from numpyro_kme.kernels.ragged import pad

Shape = tuple[int, ...]


called_back: ContextVar[bool] = ContextVar("called_back", default=False)
"""Whether a black-box simulator is being called from inside JAX, which waits for it."""


def name(fn: Callable) -> str:
    """Name of a function, for sentences."""
    fn = fn.func if isinstance(fn, partial) else fn
    return getattr(fn, "__name__", type(fn).__name__)


class WrongOutput(ValueError):
    """A black-box simulator returned something else than it declares."""


def check_function(fn: Any) -> None:
    """Require something callable that JAX can recognise when it meets it again."""
    checks.require(callable(fn), f"The first argument of Simulator must be a function; got {fn!r}.", TypeError)
    try:
        hash(fn)
    except TypeError as error:
        raise checks.explained(
            f"Simulator `{name(fn)}` cannot be hashed, which JAX needs in order to recognise it. Pass a "
            "plain function, or make its class hashable, for example by @dataclass(frozen=True).",
            TypeError,
        ) from error


def traced_anew(fn: Callable) -> Callable:
    """`fn` as a compiled program, traced each time, and not as JAX remembers it: what it refers to may have changed."""
    own = compat.shielded(lambda *args: fn(*args))
    program = Program(own, thorough=True)
    return lambda *args: (program if checks.is_concrete(args) else own)(*args)


def call_on_host(fn: Callable, shape: Shape, dtype: np.dtype, key_data: np.ndarray, *params) -> np.ndarray:
    """One call of a black-box simulator, with the NumPy generator that belongs to the data of a JAX key.

    Parameters are handed out in float64, since NumPy computes in the precision of what it is given.

    Raises:
        WrongOutput: If the result has not the declared shape, or a dtype that does not cast to the declared one.
    """
    rng = np.random.default_rng(np.asarray(key_data, np.uint32).ravel())
    given = (param.astype(np.float64) if param.dtype.kind == "f" else param for param in params)
    found = fn(rng, *given)
    x = found.astype(float).filled(np.nan) if np.ma.is_masked(found) else np.asarray(found)
    checks.require(
        x.shape == shape and np.can_cast(x.dtype, dtype, "same_kind"),
        f"Simulator `{name(fn)}` declares shape {shape} and dtype {dtype} but returned shape {x.shape} and "
        f"dtype {x.dtype}. Correct the declaration, Simulator(..., shape=..., dtype=...), or the simulator.",
        WrongOutput,
    )
    return _as(dtype, x, fn)


def _as(dtype: np.dtype, x: np.ndarray, fn: Callable) -> np.ndarray:
    """An output in the type that is declared, or that JAX has; whole numbers must stay what they are."""
    found = x.astype(dtype)
    changed = x[found != x] if dtype.kind in "iu" else np.zeros(0)
    checks.require(
        not len(changed),
        f"Simulator `{name(fn)}` returned {changed[0] if len(changed) else 0}, which {dtype} cannot hold. Declare "
        "dtype=float, or a longer type; JAX has 32 bits of it unless numpyro.enable_x64() is called.",
        WrongOutput,
    )
    return found


def calls_on_host(fn: Callable, shape: Shape, dtype: np.dtype, key_data: np.ndarray, params: Sequence) -> np.ndarray:
    """Calls of a black-box simulator, `(*lead, *shape)`: one for each leading index of `key_data` and of parameters."""
    lead = key_data.shape[:-1]
    x = np.empty(lead + shape, dtype)
    for i in np.ndindex(lead):
        x[i] = call_on_host(fn, shape, dtype, key_data[i], *(param[i] for param in params))
    return x


def call_back(fn: Callable, shape: Shape, dtype: np.dtype, key_data: jax.Array, params: Sequence) -> jax.Array:
    """Calls of a black-box simulator from inside JAX, one for each leading index of `key_data`."""
    canonical = jax.dtypes.canonicalize_dtype(dtype)  # float64 is float32 while x64 is off

    def rows(key_data, *params):
        with setting(called_back, True):
            return _as(np.dtype(canonical), calls_on_host(fn, shape, dtype, key_data, params), fn)

    no_derivative = TypeError(
        f"Simulator `{name(fn)}` runs in NumPy, so that its draws have no derivative, which NUTS, HMC and SVI ask "
        "for. Write it in JAX, use a kernel that asks for none (PseudoMarginal, or numpyro.infer.SA), or an "
        "engine that learns the likelihood, such as KELFI."
    )
    given = compat.without_derivative(tuple(params), no_derivative)
    return solves.call_back(rows, key_data.shape[:-1] + shape, canonical, key_data, *given, vmap_method="broadcast_all")


@dataclass(frozen=True)
class Joined:
    """A simulator that gives numbers by name, as one that gives them in one vector.

    Args:
        fn: It returns a dictionary of arrays; a black box may return a row or a table of pandas too.
        names: Which entries, in their order; those of the dictionary in its own order when left out.
    """

    fn: Callable
    names: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return name(self.fn)

    def __call__(self, key: Any, *params):
        """One event as a vector; a table with named columns as a matrix; anything else as it is."""
        found = self.fn(key, *params)
        if isinstance(found, Mapping):
            missing = [one for one in self.names if one not in found]
            checks.require(not missing, f"Simulator `{self.__name__}` gives {list(found)}, without {missing}.")
            each = [found[one] for one in self.names or found]
            xp: Any = jax.numpy if any(isinstance(one, jax.Array) for one in each) else np
            return xp.concatenate([xp.ravel(one) for one in each])
        if type(found).__module__.partition(".")[0] == "pandas":
            return np.asarray(found[list(self.names)])
        return found


@dataclass(frozen=True)
class Padded:
    """A black-box simulator of outputs of any length, with rows of NaN behind them.

    Args:
        fn: `(rng, *params) -> (n, *rest)`, with `n` from 1 to the first number of `shape`.
        shape: That of the longest output.
    """

    fn: Callable
    shape: Shape

    @property
    def __name__(self) -> str:
        return name(self.fn)

    def __call__(self, rng: np.random.Generator, *params: np.ndarray) -> np.ndarray:
        """Simulate one event; one that is longer than was declared stays so."""
        x = np.asarray(self.fn(rng, *params))
        checks.require(
            x.ndim == len(self.shape) and 1 <= len(x) <= self.shape[0] and x.shape[1:] == self.shape[1:],
            f"Simulator `{name(self.fn)}` declares outputs of at most {self.shape[0]} rows, shape {self.shape}, but "
            f"returned shape {x.shape}. Declare the longest, Simulator(..., shape=..., ragged=True), and let each have "
            "a row at least.",
            WrongOutput,
        )
        return pad(x, self.shape[0])


@shown
@dataclass(frozen=True, eq=False)
class FromNoise:
    """A simulator `fn(noise, *params)` whose noise has a declared distribution.

    It is a simulator `fn(rng_key, *params)` like any other: `Simulator(FromNoise(fn, dist.Normal(0, 1)),
    *params)`. Methods that average over the noise, such as `PosteriorBootstrap`, replace independent draws
    by quadrature (one number) or low-discrepancy points, which reach with hundreds of nodes what
    independent draws reach with hundreds of thousands.

    Define it once, outside the model: JAX compares functions by identity.

    Args:
        fn: `(noise, *params) -> one event`, traceable.
        noise: Distribution of the noise of one event, for instance `dist.Normal(0, 1).expand([3]).to_event(1)`.
            Quadrature and low-discrepancy points take a normal one or a continuous one with a `cdf`, as a gamma, a
            beta or a mixture; noise of another distribution is drawn.
    """

    fn: Callable
    noise: Distribution

    def __post_init__(self):
        checks.instance("noise", self.noise, Distribution, "a NumPyro distribution")

    @property
    def __name__(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    @cached_property
    def joined(self) -> "FromNoise":
        """Join the entries of a dictionary in one vector."""
        return FromNoise(Joined(self.fn), self.noise)

    def __call__(self, rng_key: jax.Array, *params):
        """Draw the noise and simulate one event."""
        return self.fn(self.noise.sample(rng_key), *params)


def write_text(path: Path, *params: np.ndarray) -> None:
    """All parameters, flattened, one number a line, to the last digit."""
    np.savetxt(path, np.concatenate([np.ravel(param) for param in params]), fmt="%.17g")


def read_text(path: Path) -> np.ndarray:
    """Numbers separated by white space."""
    return np.loadtxt(path, ndmin=1)


@frozen
class Command:
    """A black-box simulator that runs a program: `Simulator(Command((...)), theta, shape=(10,), dtype=float)`.

    Each call works in a folder of its own, which is removed afterwards: it writes the parameters to `params.txt`, runs
    the command there, and reads `output.txt`. In the arguments, `{seed}` stands for a whole number that belongs to the
    simulation, for the program's random numbers: use it, or results cannot be repeated. `{params[0]}`, `{params[1]}`,
    ... stand for the numbers of `params.txt`, for a program that takes them as arguments.

    Args:
        arguments: The command line, such as `("/opt/model/run", "--seed", "{seed}", "params.txt", "output.txt")`. No
            shell.
        write: `write(path, *params)`, where the program needs another input.
        read: `read(path) -> array`, where it gives another output.
        output: Name of the file that the program leaves, where it is another one; `None` reads what it prints.
        environment: Variables added to the environment, such as `{"OMP_NUM_THREADS": "1"}`.
        timeout: Seconds for one run of the program, which is then ended with all that it started. Engines and
            `simulate` have a time limit for one simulation, which may run the program several times.
    Raises:
        RuntimeError: If the program ends with an error or leaves no output, with what it said last and which files it
            left; if its output cannot be read.
        subprocess.TimeoutExpired: If it takes too long.
    """

    arguments: tuple[str, ...]
    write: Callable[..., None] = write_text
    read: Callable[[Path], np.ndarray] = read_text
    output: str | None = "output.txt"
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    timeout: float | None = None

    def __post_init__(self):
        checks.require(
            not isinstance(self.arguments, str) and len(self.arguments) > 0,
            f"`arguments` must be a tuple of strings, the program first; got {self.arguments!r}.",
        )
        object.__setattr__(self, "arguments", tuple(map(str, self.arguments)))

    def __call__(self, rng: np.random.Generator, *params: np.ndarray) -> np.ndarray:
        """Run the program once."""
        command = self._command(int(rng.integers(2**31 - 1)), params)
        with tempfile.TemporaryDirectory(prefix="simulation-") as folder:
            self.write(Path(folder, "params.txt"), *params)
            done = processes.run(command, self.timeout, cwd=folder, env={**os.environ, **self.environment})
            output = Path(folder, self.output or "printed.txt")
            if self.output is None and done.stdout.strip():
                output.write_text(done.stdout)
            if done.returncode != 0 or not output.exists():
                self._explain(done, output)
            try:
                return self.read(output)
            except (ValueError, LookupError) as error:
                raise checks.explained(
                    f"What {command[0]} left in {output.name} cannot be read: {error}. It begins: "
                    f"{output.read_bytes()[:200].decode(errors='replace')!r}. Correct `read`, a function of the path.",
                    RuntimeError,
                ) from error

    def _command(self, seed: int, params: Sequence[np.ndarray]) -> list[str]:
        """The arguments, with the numbers of one simulation in them."""
        numbers = [repr(float(number)) for param in params for number in np.ravel(param)]
        given = {"{seed}": str(seed), **{f"{{params[{i}]}}": number for i, number in enumerate(numbers)}}

        def fill(place: re.Match) -> str:
            checks.require(
                place[0] in given,
                f"An argument of `Command` has {place[0]}, but a simulation has {len(numbers)} numbers of parameters: "
                f"{list(given)} can stand there.",
            )
            return given[place[0]]

        return [re.sub(r"\{seed\}|\{params\[\d+\]\}", fill, argument) for argument in self.arguments]

    def _explain(self, done: subprocess.CompletedProcess, output: Path) -> None:
        """Say what a program did that ended without a result."""
        files = sorted(path.name for path in output.parent.iterdir() if path != output and path.name != "params.txt")
        missing = "printed nothing" if self.output is None else f"left no {output.name}"
        left = "" if output.exists() else f" and {missing} (other files: {', '.join(files) or 'none'})"
        said = (done.stderr or done.stdout).strip()[-500:] or "nothing"
        raise checks.explained(f"{done.args[0]} ended with {done.returncode}{left}. It said: {said}", RuntimeError)
