"""Rows of a table that are the same, as where a simulation has several draws of one parameter."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Repeats:
    """Groups of rows of a table that are the same.

    Attributes:
        first: Numbers of the rows that are not seen before, in order, `(d,)`.
        kind: To which of those each row belongs, `(m,)`, from 0 to `d - 1`.
    """

    first: np.ndarray
    kind: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray) -> "Repeats":
        """Group the rows of a table `(m, p)`."""
        _, first, kind = np.unique(table, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return cls(first[order], np.argsort(order)[kind.ravel()])

    def __len__(self) -> int:
        return len(self.first)

    def at_random(self, rng: np.random.Generator) -> np.ndarray:
        """Numbers of all rows in random order, first one of each kind, `(m,)`."""
        order = rng.permutation(len(self.kind))
        first = np.zeros(len(order), bool)
        first[np.unique(self.kind[order], return_index=True)[1]] = True
        return np.concatenate([order[first], order[~first]])

    def halves(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of all rows of half of the kinds, at random, and of the first one of each other kind."""
        chosen = rng.permutation(len(self))
        place = np.argsort(chosen)[self.kind]
        order = np.argsort(place, kind="stable")
        half = len(self) // 2
        return order[: np.sum(place < half)], self.first[chosen[half:]]
