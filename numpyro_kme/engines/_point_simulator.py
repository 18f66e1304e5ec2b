"""Samples of a model's data points at many parameters, by keys of low discrepancy where the simulator takes them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import numpy as np

from numpyro_kme._core import programs, progress
from numpyro_kme._core.programs import Program, Recomputed
from numpyro_kme.models.low_discrepancy import accepts, key_of, path_of
from numpyro_kme.models.problem import Draws
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.sites import Call
from numpyro_kme.simulations.simulate import Plan
from numpyro_kme.simulations.site_runs import Run

TOGETHER = 2**14
"""Points that are simulated in one call of a compiled program."""


@dataclass(frozen=True, eq=False)
class PointSimulator(Recomputed):
    """A model's data points at given parameters.

    Attributes:
        arguments: `x (D, p) -> (D, A)`, the simulator's arguments at parameters; with covariates `(D, n, A)`.
        simulator: The simulator, for one data point.
        plan: How a black box is run.
    """

    arguments: Callable[[np.ndarray], np.ndarray]
    simulator: Simulator
    plan: Plan

    def __call__(self, rng_key: jax.Array, x: np.ndarray, num_nodes: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Simulate `num_nodes` points at each of the parameters `(D, p)`, and with covariates for each data point.

        Args:
            rng_key: Makes noise, of its own for each of the parameters.
            x: Parameters.
            num_nodes: A power of two.
            rows: With covariates, some of the data points by number.
        Returns:
            `(D, num_nodes, *event)`; with covariates `(D, n, num_nodes, *event)`.
        """
        arguments = self.arguments(x)
        arguments = arguments if rows is None else arguments[:, rows]
        lead, dim = arguments.shape[:-1], arguments.shape[-1]
        flat = np.ascontiguousarray(arguments.reshape(-1, dim))
        simulate = self._black_box if self.simulator.black_box else self._compiled
        return simulate(rng_key, flat, num_nodes).reshape(*lead, num_nodes, *self.simulator.event_shape)

    def _compiled(self, rng_key, flat, num_nodes):
        numbers = np.arange(len(flat), dtype=np.uint32)
        nodes = np.tile(np.arange(num_nodes, dtype=np.uint32), len(flat))
        rows = np.repeat(numbers, num_nodes), nodes, np.repeat(flat, num_nodes, axis=0)
        size = np.uint32(num_nodes)
        return programs.in_blocks(lambda block: self._program(rng_key, size, *block), rows, TOGETHER)

    @cached_property
    def _call(self) -> Call:
        return Call.of(self.simulator)

    @cached_property
    def _program(self) -> Program:
        """The simulator as it is now: a function may refer to what has changed since the last run."""
        even = accepts(self._call.fn, *self._call.zeros)
        return Program(partial(_simulate, self._call, even), thorough=True)

    def _black_box(self, rng_key, flat, num_nodes):
        draws = Draws({}, {"x": np.repeat(flat, num_nodes, axis=0)}, {})
        with progress.progress(None, "simulating", self.plan.progress_bar, len(flat) * num_nodes) as bar:
            return Run(rng_key, "x", self.simulator, draws, self.plan, bar, None).all()[0]


def _simulate(call: Call, even: bool, rng_key, num_nodes, numbers, nodes, arguments):
    """Points `(N, *event)`, each by the number of its parameters, that of its node, and its arguments."""
    path = path_of(rng_key)

    def one(number, node, arguments):
        key = key_of(path, num_nodes, node) if even else jax.random.fold_in(rng_key, node)
        return call(arguments, jax.random.fold_in(key, number))

    return jax.vmap(one)(numbers, nodes, arguments)
