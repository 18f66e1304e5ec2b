"""Simulators that are programs outside Python: each run has a session of its own, and ends with all that it started."""

import math
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path

import numpy as np

from numpyro_kme._core import checks, frozen

latest: ContextVar[float] = ContextVar("latest", default=math.inf)
"""When programs end at the latest, by `time.monotonic()`: for threads, which an alarm does not reach."""

_running: set[int] = set()


def run(command: Sequence[str], timeout: float | None, **settings) -> subprocess.CompletedProcess[str]:
    """Run a program as `subprocess.run` does; its whole group of processes is killed where the wait ends early.

    Args:
        command: The program and its arguments.
        timeout: Seconds; `latest` may leave less.
        settings: Settings of `subprocess.Popen`.
    Raises:
        subprocess.TimeoutExpired: If it takes too long.
    """
    left = min(math.inf if timeout is None else timeout, latest.get() - time.monotonic())
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True, **settings
    ) as program:
        _running.add(program.pid)
        try:
            output = program.communicate(timeout=None if left == math.inf else left)
        except BaseException:
            _kill(program.pid)
            program.wait()  # which `Popen` does not after an interrupt
            raise
        finally:
            _running.discard(program.pid)
    return subprocess.CompletedProcess(command, program.returncode, *output)


def end_all() -> None:
    """Kill the programs that run now, for whom threads wait that an interrupt does not reach."""
    for program in [*_running]:
        _kill(program)


def _kill(group: int) -> None:
    with suppress(OSError):  # it has ended
        os.killpg(group, signal.SIGKILL) if hasattr(os, "killpg") else os.kill(group, signal.SIGTERM)


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
        write: A function `write(path, *params)` that writes the input in another format.
        read: A function `read(path) -> array` that reads the output in another format.
        output: Name of the file that the program leaves, if it is not `output.txt`; `None` reads what it prints.
        environment: Variables added to the environment, such as `{"OMP_NUM_THREADS": "1"}`.
        timeout: Seconds for one run of the program, which is then ended with all that it started. Engines and
            `simulate` have a time limit for one simulation, which may run the program several times.
    Raises:
        RuntimeError: If the program ends with an error, leaves no output, or leaves output that cannot be read; the
            message shows what it printed last and which files it left.
        subprocess.TimeoutExpired: If it takes too long.
    """

    arguments: tuple[str, ...]
    write: Callable[..., None] = write_text
    read: Callable[[Path], np.ndarray] = read_text
    output: str | None = "output.txt"
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    timeout: float | None = None

    def __post_init__(self):
        given = not isinstance(self.arguments, str) and len(self.arguments) > 0
        checks.require(given, f"`arguments` must be a tuple of strings, the program first; got {self.arguments!r}.")
        object.__setattr__(self, "arguments", tuple(map(str, self.arguments)))
        object.__setattr__(self, "environment", {name: str(value) for name, value in self.environment.items()})
        checks.optional(checks.positive_number, "timeout", self.timeout)

    def __call__(self, rng: np.random.Generator, *params: np.ndarray) -> np.ndarray:
        """Run the program once."""
        command = self._command(int(rng.integers(2**31 - 1)), params)
        with tempfile.TemporaryDirectory(prefix="simulation-") as folder:
            self.write(Path(folder, "params.txt"), *params)
            try:
                done = run(command, self.timeout, cwd=folder, env={**os.environ, **self.environment})
            except OSError as error:
                raise checks.explained(
                    f"{command[0]} cannot be run: {error.strerror}. Each run has its own folder: give whole paths.",
                    RuntimeError,
                ) from error
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
            known = place[0] in given
            checks.require(known, f"`Command` has {place[0]}; with {len(numbers)} parameters it can have {[*given]}.")
            return given[place[0]]

        return [re.sub(r"\{seed\}|\{params\[\d+\]\}", fill, argument) for argument in self.arguments]

    def _explain(self, done: subprocess.CompletedProcess, output: Path) -> None:
        """Say what a program did that ended without a result."""
        files = sorted(path.name for path in output.parent.iterdir() if path != output and path.name != "params.txt")
        missing = "printed nothing" if self.output is None else f"left no {output.name}"
        left = "" if output.exists() else f" and {missing} (other files: {', '.join(files) or 'none'})"
        said = (done.stderr or done.stdout).strip()[-500:] or "nothing"
        raise checks.explained(f"{done.args[0]} ended with {done.returncode}{left}. It said: {said}", RuntimeError)
