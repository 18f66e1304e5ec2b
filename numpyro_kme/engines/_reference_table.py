"""Simulations as tables: latents, coordinates, and outputs as points or as data sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import Recomputed
from numpyro_kme.models.coordinates import Coordinates, Unconstrained
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations


@dataclass(frozen=True)
class ReferenceTable:
    """The simulations of one site.

    Attributes:
        latents, deterministics: `{site: (m, *shape)}`.
        coordinates: Of the simulator's arguments.
        z: Coordinates of the simulations, `(m, D)`.
        x: Outputs, `(m, *event)`; `(m, n, d)` where `n` draws lie along plates, without those that are masked in the
            observation.
        data_sets: Whether the rows of each output are draws along plates, so that their order says nothing.
        mask: Which draws of an output count, flat.
    """

    latents: Mapping[str, np.ndarray]
    deterministics: Mapping[str, np.ndarray]
    coordinates: Coordinates
    z: np.ndarray
    x: np.ndarray
    data_sets: bool
    mask: np.ndarray

    @classmethod
    def read(cls, coordinates: Coordinates, problem: Problem, simulations: Simulations) -> "ReferenceTable":
        """Read the simulations of a checked model."""
        site = problem.site()
        z = arguments_to_coordinates(coordinates, simulations.arguments[site])
        latents = {name: np.asarray(value) for name, value in simulations.latents.items()}
        if not latents:
            latents = coordinates.latents_table(z)
        deterministics = simulations.deterministics or problem.evaluate(latents).deterministics
        simulator, mask = problem.simulators[site].simulator, problem.simulators[site].mask.ravel()
        data_sets = bool(simulator.batch_shape)
        x = np.asarray(simulations.x[site], np.float64)
        if data_sets:
            x = x.reshape(len(x), -1, int(np.prod(simulator.event_shape, dtype=int)))
            checks.require(
                x.shape[1] == len(mask),
                f"The simulations of {site!r} have {x.shape[1]} draws each, the model {len(mask)}: they were made by "
                "another model.",
            )
            x = x[:, mask]
        return cls(latents, dict(deterministics), coordinates, z, x, data_sets, mask)

    def __len__(self) -> int:
        return len(self.z)

    def point(self, y: np.ndarray) -> np.ndarray:
        """An observation in the shape of a row of `x`."""
        checks.require(
            np.size(y) == self._size,
            f"The observation has shape {np.shape(y)}, the simulations {self.x.shape[1:]}: they were made by another "
            "model.",
        )
        return self._counted(np.asarray(y, np.float64)[None])[0]

    def points(self, observations: Any) -> np.ndarray:
        """Many observations `(s, *event)`, masked draws included, as rows of `x`."""
        checks.real("observations", observations)
        y = np.asarray(observations, np.float64)
        checks.require(
            y.ndim >= 1 and len(y) >= 1 and y[0].size == self._size,
            "`observations` must have shape (s, *event) with s at least 1 and as many numbers in each as the "
            f"simulator gives, {self._size}; got shape {y.shape}.",
        )
        counted = self._counted(y)
        checks.finite("observations", counted)
        return counted

    @property
    def _size(self) -> int:
        """Numbers in one output, masked draws included."""
        return len(self.mask) * self.x.shape[2] if self.data_sets else self.x[0].size

    def _counted(self, y: np.ndarray) -> np.ndarray:
        """Outputs `(s, *event)` as rows of `x`."""
        return (
            y.reshape(len(y), len(self.mask), -1)[:, self.mask] if self.data_sets else y.reshape(-1, *self.x.shape[1:])
        )

    def as_data_sets(self, x: np.ndarray) -> np.ndarray:
        """Outputs `(k, *event)` as data sets `(k, n, d)`."""
        checks.require(
            x.ndim in (2, 3),
            f"The output of the simulator has shape {self.x.shape[1:]}; as a data set it must be (n,) or (n, d), or n "
            "draws under a plate.",
        )
        return x[..., None] if x.ndim == 2 else x


@dataclass(frozen=True)
class LatentVectors(Recomputed):
    """All latents as vectors without constraints, standardised: where the coordinates of arguments do not determine
    the latents.

    Attributes:
        target: The map to vectors, site by site.
        centre, scale: Means and standard deviations of the draws that it was read from, `(D,)`.
    """

    target: Unconstrained
    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def read(cls, problem: Problem, draws: Mapping[str, Any]) -> "LatentVectors":
        """From draws `{site: (m, *shape)}`."""
        first = {name: latent.value for name, latent in problem.latents.items()}
        target = Unconstrained.read(problem.model, problem.args, problem.kwargs, first)
        u = cls(target, np.zeros(target.dim), np.ones(target.dim)).table(draws)
        return cls(target, u.mean(axis=0), np.maximum(u.std(axis=0), 1e-8))

    def table(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Vectors `(m, D)` of latents `{site: (m, *shape)}`."""
        points = {name: np.asarray(latents[name], np.float64) for name in self.target.shapes}
        return (on_host(self._flatten)(points) - self.centre) / self.scale

    def latents_table(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """Latents `{site: (m, *shape)}` at vectors `(m, D)`."""
        return on_host(self._constrain)(self.centre + self.scale * z)

    @cached_property
    def _flatten(self):
        return jax.jit(jax.vmap(self.target.flatten))

    @cached_property
    def _constrain(self):
        return jax.jit(jax.vmap(self.target.constrain))


def check_model(problem: Problem, engine: str) -> None:
    """What can be said before any simulation is run."""
    checks.require(
        len(problem.simulators) == 1 and not problem.likelihoods,
        f"{engine} needs a model with one simulator site and nothing else that is observed; this one has the simulator "
        f"sites {list(problem.simulators)} and the likelihoods {list(problem.likelihoods)}. Use KELFI, or put what is "
        "observed into one simulator.",
    )
    name = next(iter(problem.observations))
    site = problem.simulators[name]
    checks.require(
        bool(site.mask.any()),
        f"Site {name!r} is masked as a whole, so that {engine} has nothing to compare simulations with. The posterior "
        "is the prior: draw from that, or use KELFI.",
    )
    checks.require(
        bool(np.all(site.scale == 1.0)),
        f"Site {name!r} is scaled by {site.scale}: {engine} compares data sets and has no likelihood to raise to that "
        "power. Use KELFI, or leave numpyro.handlers.scale out.",
    )
    site.check_observed(name)
    groups = site.simulator.groups
    checks.require(
        all(size == 1 for size in groups),
        f"The parameters of the simulator at {name!r} vary along plates of shape {groups}; {engine} compares one data "
        "set of one parameter. Use KELFI for groups.",
    )


def arguments_to_coordinates(coordinates: Coordinates, arguments: np.ndarray) -> np.ndarray:
    """Coordinates `(m, D)` of arguments `(m, *ones, p)`."""
    return coordinates.table(np.asarray(arguments).reshape(len(arguments), -1))
