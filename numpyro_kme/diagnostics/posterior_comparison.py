"""How far posteriors of the same parameters lie from one another: what a misfit, a loss or a prior moved."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numpyro_kme._core import Card, checks, door, frozen, numbers
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior

FAR, SHOWN = 1.0, 3
"""The verdict speaks of an answer that moves from so many standard deviations on, and each posterior shows so many
numbers, those that moved the farthest."""


@frozen
class PosteriorComparison:
    r"""Means and standard deviations of several posteriors, measured from the first.

    Of each number $t$ and posterior $k$, `moved` is $(E_k t - E_1 t) / \mathrm{sd}_1(t)$ and `widths`
    $\mathrm{sd}_k(t) / \mathrm{sd}_1(t)$.

    Attributes:
        names: Of the posteriors; the first is what the others are measured from.
        means: `{number: (K,)}`, in its units.
        sds: The same, of standard deviations.
        standard_errors: Of the means, `{number: (K,)}`, NaN where a posterior states none.
    """

    names: tuple[str, ...]
    means: Mapping[str, np.ndarray]
    sds: Mapping[str, np.ndarray]
    standard_errors: Mapping[str, np.ndarray]

    def _card(self) -> Card:
        rows = {"verdict": self.verdict}
        for name in self.names[1:]:
            told = [
                f"{number} by {moved:+.2f} sd" + f" (error {error:.2g})" * bool(error > 0.0) + f", sd x {width:.2f}"
                for number, moved, error, width in self._rows(name)
            ]
            more = [f"{len(told) - SHOWN} numbers more"] if len(told) > SHOWN else []
            rows[name] = "; ".join(told[:SHOWN] + more)
        return Card(f"Posteriors beside {self.names[0]}", rows, "moved, widths, means, sds")

    def _rows(self, name: str):
        """Numbers, how far their means moved and the standard error of that, and ratios of standard deviations."""
        k = self.names.index(name)
        for number, moved in self.moved[name].items():
            errors = self.standard_errors[number][[0, k]]
            yield number, moved, float(np.hypot(*errors) / self.sds[number][0]), self.widths[name][number]

    @property
    def moved(self) -> dict[str, dict[str, float]]:
        """Distances of means from the first posterior's, in its standard deviations, `{posterior: {number: distance}}`,
        the farthest first."""
        found = {}
        for k, name in enumerate(self.names[1:], 1):
            own = {n: float((mean[k] - mean[0]) / self.sds[n][0]) for n, mean in self.means.items()}
            found[name] = dict(sorted(own.items(), key=lambda pair: -abs(pair[1])))
        return found

    @property
    def widths(self) -> dict[str, dict[str, float]]:
        """Standard deviations over the first posterior's, `{posterior: {number: ratio}}`."""
        return {
            name: {number: float(sd[k] / sd[0]) for number, sd in self.sds.items()}
            for k, name in enumerate(self.names[1:], 1)
        }

    @property
    def verdict(self) -> str:
        """The number that moved the farthest, and how far."""
        farthest = [(abs(d), d, number, name) for name, own in self.moved.items() for number, d in own.items()]
        size, d, number, name = max(farthest)
        told = f"{number} by {d:+.2f} sd under {name}"
        return f"the answer moves: {told}" if size >= FAR else f"the answer stays within {FAR:g} sd: at most {told}"


@door
def compare_posteriors(
    posteriors: Mapping[str, Engine | Posterior | Mapping[str, np.ndarray]],
) -> PosteriorComparison:
    """Compare posteriors of the same parameters with the first of them: how far the answer moves.

    Where a model does not fit, the distance between the posterior of `KELFI` and that of `KELFI(adjust=...)` or of
    `PosteriorBootstrap` says how much of the answer rests on what it misses. It says nothing of which is right.

    Args:
        posteriors: Engines that have been run, their posteriors, or draws `{site: (n, *shape)}` of any sampler, by
            name. Numbers that not all have, such as those of `x_shift`, and that do not vary, are left out.
    Raises:
        ValueError: If there are fewer than two, or they have no number in common.
    Example:
        >>> diagnostics.compare_posteriors({"plain": kelfi, "adjusted": robust, "bootstrap": bootstrap})
    """
    several = len(posteriors) > 1
    checks.require(several, f"`posteriors` must hold two or more by name; got {sorted(posteriors)}.")
    draws, errors = [], []
    for label, given in posteriors.items():
        found: Any = given if isinstance(given, Mapping) else posterior_of(given)
        samples = found if isinstance(given, Mapping) else found.samples
        checks.draws(f"posteriors[{label!r}]", samples)
        draws.append(numbers({name: np.asarray(value, np.float64) for name, value in samples.items()}))
        known = getattr(found, "errors", None)
        errors.append({} if known is None else {n: float(known.of_moments(v)[0]) for n, v in draws[-1].items()})
    names = [number for number, own in draws[0].items() if np.ptp(own) > 0.0 and all(number in o for o in draws)]
    sites = [sorted(own) for own in draws]
    checks.require(bool(names), f"These posteriors have no number in common: {sites}. Give their sites the same names.")
    return PosteriorComparison(
        tuple(posteriors),
        {n: np.array([own[n].mean() for own in draws]) for n in names},
        {n: np.array([own[n].std() for own in draws]) for n in names},
        {n: np.array([own.get(n, np.nan) for own in errors]) for n in names},
    )
