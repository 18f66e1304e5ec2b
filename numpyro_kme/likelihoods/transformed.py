"""A learnt likelihood of what is computed from an output, as one of the output."""

import abc
import math
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.likelihoods.base import LikelihoodAt, Surrogate


class TransformedSurrogate(Surrogate):
    """A learnt likelihood `q(s(y) | z)`: an author writes `s`.

    Attributes:
        inner: The likelihood of `s`.
    """

    inner: Surrogate

    @abc.abstractmethod
    def transformed(self, rows: np.ndarray) -> np.ndarray:
        """`s`, `(R, k)`, of outputs `(R, n_raw)` in float64."""

    def require_possible(self, rows: np.ndarray) -> None:
        """Raise for observations `(R, n_raw)` that nothing is known of; by default there are none."""

    def _of(self, y: Any, *lead: int) -> np.ndarray:
        """`s`, `(*lead, k)`, of concrete outputs `(*lead, *event)`."""
        checks.concrete(y=y)
        checks.real("y", y)
        return self.transformed(np.asarray(y, np.float64).reshape(math.prod(lead), -1)).reshape(*lead, -1)

    @property
    def dim(self):
        """Number of coordinates."""
        return self.inner.dim

    def at(self, y: Any) -> LikelihoodAt:
        """The likelihood at one observation `(*event)`, concrete."""
        s = self._of(y)
        self.require_possible(np.asarray(y, np.float64).reshape(1, -1))
        return self.inner.at(s)

    def at_rows(self, rows: np.ndarray, axes: int = 1) -> LikelihoodAt:
        """The likelihood at several outputs."""
        s, lead = self._of(rows, *rows.shape[:axes]), math.prod(rows.shape[:axes])
        self.require_possible(np.asarray(rows, np.float64).reshape(lead, -1))
        return self.inner.at_rows(s, axes)

    def variance(self, z):
        """Variance of the inner surrogate."""
        return self.inner.variance(z)

    def describe_observation(self, y: Any) -> str:
        """Describe `s` of an observation."""
        return self.inner.describe_observation(self._of(y))

    def dependence(self) -> np.ndarray:
        """Dependence of the inner likelihood on each coordinate."""
        return self.inner.dependence()

    @property
    def moves(self) -> bool:
        """Tell whether the parameters move a statistic."""
        return self.inner.moves

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Tell whether `s` cannot come from some coordinates."""
        return self.inner.outside_support(self._of(y, *y.shape[:-1]), z)

    def require_density(self) -> None:
        """Raise where the inner likelihood is no density."""
        self.inner.require_density()
