"""Programs outside Python as simulators: a command line, an input file, an output file."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from numpyro_kme._core import checks


def write_text(path: Path, *params: np.ndarray) -> None:
    """All parameters, flattened, one number a line, to the last digit."""
    np.savetxt(path, np.concatenate([np.ravel(param) for param in params]), fmt="%.17g")


def read_text(path: Path) -> np.ndarray:
    """Numbers separated by white space."""
    return np.loadtxt(path, ndmin=1)


@dataclass(frozen=True)
class Command:
    """A black-box simulator that runs a program: `Simulator(Command((...)), theta, shape=(10,), dtype=float)`.

    Each call works in a folder of its own, which is removed afterwards: it writes the parameters to `params.txt`, runs
    the command there, and reads `output.txt`. In the arguments, `{seed}` stands for a whole number that belongs to the
    simulation, for the program's random numbers: use it, or results cannot be repeated.

    Args:
        arguments: The command line, such as `("/opt/model/run", "--seed", "{seed}", "params.txt", "output.txt")`. No
            shell.
        write: `write(path, *params)`, where the program needs another input.
        read: `read(path) -> array`, where it gives another output.
        environment: Variables added to the environment, such as `{"OMP_NUM_THREADS": "1"}`.
        timeout: Seconds after which the program is ended; more certain than the time limit of `simulate`.
    Raises:
        RuntimeError: If the program ends with an error or leaves no output, with what it said last.
        subprocess.TimeoutExpired: If it takes too long.
    """

    arguments: tuple[str, ...]
    write: Callable[..., None] = write_text
    read: Callable[[Path], np.ndarray] = read_text
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
        seed = int(rng.integers(2**31 - 1))
        command = [argument.replace("{seed}", str(seed)) for argument in self.arguments]
        with tempfile.TemporaryDirectory(prefix="simulation-") as folder:
            self.write(Path(folder, "params.txt"), *params)
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout,
            )
            output = Path(folder, "output.txt")
            if done.returncode != 0 or not output.exists():
                said = (done.stderr or done.stdout).strip()[-500:]
                raise RuntimeError(
                    f"{command[0]} ended with {done.returncode} and left {'an' if output.exists() else 'no'} output: "
                    f"{said}"
                )
            return self.read(output)
