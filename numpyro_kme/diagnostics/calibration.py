"""Simulation-based calibration, coverage and TARP, from one set of runs on simulated data."""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import jax
import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from numpyro_kme._core import Card, arviz, checks, door, frozen, numbers, numpy_rng, progress, split
from numpyro_kme.diagnostics.predictive import Arguments, data_sets, plan_of_data
from numpyro_kme.engines.base import Engine, each_outcome
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.kernels.length_scales import mad_or_sd
from numpyro_kme.models.problem import Arrays
from numpyro_kme.samplers.importance import effective_size, systematic
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.simulations import of_rows

MARGIN = 0.05
"""Errors of posteriors up to this many posterior standard deviations are let pass; `python -m benchmarks verdict`
counts what is flagged then."""
LEVEL = 0.001
"""An engine whose p-value is below this is not to be trusted; measured by `python -m benchmarks verdict`."""
NEXT = {
    "location": "Read the simulator, and what becomes of arguments and observation; compare `predictive_check`.",
    "too wide": "Use more simulations, rounds or, in kernel engines, smaller length scales and less regularisation.",
    "too narrow": "Use more simulations or fewer statistics; read the effective sample size in `print_summary()`.",
    "data": "Look for a wrong prior, order of parameters or sign, by NumPyro's `Predictive` and `plots.surrogate`.",
    "shape": "Use more simulations, and look at `plots.ranks`: tails, several modes or curves are not followed.",
}
"""What to do about posteriors that fail a test."""


@frozen
class Calibration:
    r"""Results of an engine on data simulated from the prior, where the truth is known.

    If posteriors are calibrated, the truth is one more draw: its rank among `L` draws is uniform on `0, ..., L`
    whatever the data are, and so is the fraction of draws that are closer than it to a random point (TARP). Engines
    that learn from simulations err a little, in the same way in all data sets: what is tested is whether posteriors are
    off by more than a margin (`tests`).

    Attributes:
        ranks: `(rank + (1 + ties) u) / (L + 1)` with `u` uniform on (0, 1), which is uniform, `{latent: (N, *shape)}`.
        tarp: The same for TARP, `(N,)`: one number for all latents together.
        truths: The parameters that data were simulated from, `{latent: (N, *shape)}`.
        data: The data sets, `{site: (N, *event)}`, without what the observation masks of simulators' outputs.
        refused: How many further data sets the engine refused, as having no posterior. Whether it does depends on the
            data alone, and ranks are uniform given any data, so that leaving them out is fair. Of those data nothing
            is known.
        failures: How many further data sets could not be simulated, by kind. They are left out for the same reason.
    References: Talts et al. (2018), arXiv:1804.06788; Lemos et al. (2023), ICML; Modrak et al. (2023), Bayesian
    Analysis.
    """

    ranks: Arrays
    tarp: np.ndarray
    truths: Arrays
    data: Arrays = field(default_factory=dict)
    refused: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self):
        checks.draws("ranks", self.ranks)
        checks.real("tarp", self.tarp)
        checks.shaped("tarp", self.tarp, np.shape(next(iter(self.ranks.values())))[:1], "data set")

    def _card(self) -> Card:
        p_values = [(p, name, test) for name, tests in self.tests.items() for test, p in tests.items()]
        ends = dict.fromkeys(f"{end(self.coverage().values()):.2f}" for end in (min, max))
        failed, why = sum(self.failures.values()), ", ".join(f"{n} {reason}" for reason, n in self.failures.items())
        rows = {
            "p-value": f"{self.p_value:.2g} of all tests, against errors above {MARGIN:g} posterior sd",
            "smallest": "{1}, {2}: {0:.2g}".format(*min(p_values)),
            "coverage": f"of 90% intervals {' to '.join(ends)}",
            "can see": self.can_see(),
            "refused": f"{self.refused} further data sets" if self.refused else "",
            "failed": f"{failed} further data sets could not be simulated ({why})" if failed else "",
            "found": "\n".join(found := self.findings()) or f"nothing at level {LEVEL:g}",
        }
        hint = "print_summary(), plots.ranks(calibration), plots.coverage(calibration)"
        return Card(f"Calibration on {len(self.tarp)} data sets", rows, hint, trouble="found" * bool(found))

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The ranks of each number, by name, `{name[i]: (N,)}`."""
        return numbers(self.ranks)

    @cached_property
    def tests(self) -> dict[str, dict[str, float]]:
        r"""P-values of each number, and of TARP, for four ways to be off by more than the margin, `{name: {test: p}}`.

        `shape`: Kolmogorov-Smirnov. `location`: posteriors are shifted. `scale`: they are too narrow, or too wide.
        `data`: what is off changes with the data, as where the prior is ignored, parameters are swapped or a sign is
        wrong. A posterior that is off by at most a margin of .05 standard deviations, or in its width by a factor of at
        most `exp(.05 / sqrt(2))`, has a p-value below `a` with a probability of at most `a`. TARP looks at all `D`
        numbers together, whose errors add up: its margin is $\sqrt D$ times as large.
        """
        components = components_of(self.data)
        found = {name: uniformity_tests(value, components) for name, value in self.columns.items()}
        return found | {"TARP": uniformity_tests(self.tarp, margin=MARGIN * np.sqrt(len(found)))}

    @property
    def p_value(self) -> float:
        """One p-value for all, the smallest of all tests times their number, at most 1."""
        values = [value for tests in self.tests.values() for value in tests.values()]
        return min(1.0, len(values) * min(values))

    def visible(self, level: float = LEVEL) -> tuple[float, float]:
        """Errors that so many data sets show at a level in nine of ten cases at least: of a location, in posterior
        standard deviations, and of a standard deviation, as a factor."""
        checks.fraction("level", level)
        size, alpha = len(self.tarp), level / sum(map(len, self.tests.values()))
        location = MARGIN + (scipy.stats.norm.isf(alpha / 2) + scipy.stats.norm.isf(0.1)) / np.sqrt(size)
        squares, levels = scipy.stats.chi2(size - 1), [alpha / 2, 0.1]
        narrow, wide = squares.ppf(levels), squares.isf(levels)
        ratio = max(wide[0] / narrow[1], wide[1] / narrow[0]) * np.exp(np.sqrt(2.0) * MARGIN)
        return float(location), float(np.sqrt(ratio))

    def can_see(self, level: float = LEVEL) -> str:
        """`visible` in words."""
        location, factor = self.visible(level)
        return f"in nine of ten cases errors of {location:.2g} posterior sd, or widths off by a factor of {factor:.2g}"

    def findings(self, level: float = LEVEL) -> list[str]:
        """Say what is off at a level, by how much, and what to do next: one entry for each kind of error, then data
        sets that were refused, if these are more than a tenth."""
        checks.fraction("level", level)
        number = sum(map(len, self.tests.values()))
        found: dict[str, list[str]] = {kind: [] for kind in NEXT}
        for name, value in {**self.columns, "TARP": self.tarp}.items():
            centre, scale = np.mean(ndtri(value)), np.std(ndtri(value))
            width = "too wide" if scale < 1 else "too narrow", f" by {abs(1 / scale - 1):.0%}"
            shift = "location", f" {abs(centre):.2g} sd too {'low' if centre > 0 else 'high'}"
            failed = [test for test, p in self.tests[name].items() if number * p < level]
            for test in [test for test in failed if test != "shape"] or failed:
                kind, how_much = {"location": shift, "scale": width}.get(test, (test, ""))
                found[kind].append(name + how_much)
        sentences = [f"{kind} ({', '.join(names)}): {NEXT[kind]}" for kind, names in found.items() if names]
        total = self.refused + len(self.tarp)
        if self.refused > 0.1 * total:
            sentences.append(
                f"refused ({self.refused} of {total} data sets): the engine has no posterior for data that this prior "
                "makes, and nothing was checked there. Use more simulations, or a prior nearer to what is known."
            )
        return sentences

    def coverage(self, level: float = 0.9) -> dict[str, float]:
        """Fraction of central intervals of a level that hold the truth, for each number."""
        checks.fraction("level", level)
        return {name: float(np.mean(np.abs(2 * value - 1) <= level)) for name, value in self.columns.items()}

    def to_inference_data(self):
        """An ArviZ object with the group `prior_sbc`: ranks with dimensions `(chain=1, draw=data set)`."""
        groups = {
            "prior_sbc": {name: value[None] for name, value in self.ranks.items()},
            "prior": {name: np.asarray(value)[None] for name, value in self.truths.items()},
            "sample_stats": {"tarp": self.tarp[None]},
        }
        return arviz.to_inference_data(groups, attrs={"p_value": self.p_value})

    def print_summary(self, level: float = 0.9) -> None:
        """Print what `repr` says, and for each number the coverage of intervals of a level and the p-values."""
        print(self)
        covered = {name: f"{share:.3f}" for name, share in self.coverage(level).items()}
        kinds = next(iter(self.tests.values()))
        print(f"\n{'':>24} {f'{level:.0%} cover':>10}", *(f"{kind:>9}" for kind in kinds))
        for name, tests in self.tests.items():
            print(f"{name:>24} {covered.get(name, ''):>10}", *(f"{p:>9.2g}" for p in tests.values()))


@door
def calibrate(
    rng_key: jax.Array,
    engine: Engine,
    num_datasets: int = 100,
    *,
    num_draws: int = 100,
    arguments: Arguments | None = None,
    progress_bar: bool = True,
) -> Calibration:
    """Check an engine on data simulated from its own model. The engine stays as it is.

    Args:
        rng_key: The only source of randomness.
        engine: One that has been run. Data sets are simulated as its settings say, on its `executor` and within its
            `timeout`; those that fail, after what `Retry` repeats, are left out and counted, whatever its `on_failure`,
            and none is written to its `store`. Its `condition` serves each data set, from the simulations and
            what was learnt in that run, where it keeps them. `KELFI` that has made rounds around the posterior of its
            observation serves no other, and raises an error: run it with `num_rounds=1`.
        num_datasets: `N`. With one parameter, 200 flag a posterior that is half too wide, or off by half a standard
            deviation, at level 0.001 in 0.99 of runs, and one off by 0.4 in 0.88; 100 flag the first two in 0.77, and
            at level 0.05 in 0.96 (`python -m benchmarks verdict`).
        num_draws: `L`, posterior draws of each data set that the truth is compared with: at most so many, and no more
            than their effective number where draws are alike, as resampled simulations are.
        arguments: Turns what was drawn, `{site: value}` for simulators and other observed sites, into keyword arguments
            of the model; by default each site is passed under its own name.
        progress_bar: Show a bar of the data sets, and none of the engine's own.
    Raises:
        ValueError: If the model does not take what it observes as arguments, or has a factor, from which no data can be
            drawn; or if the engine serves one observation alone.
    """
    checks.whole("num_datasets", num_datasets, 2)
    checks.whole("num_draws", num_draws, 1)
    problem = problem_of(engine.posterior)
    engine.require_amortised()
    simulate_key, infer_key, choose_key = split(rng_key, 3)
    plan = plan_of_data(engine, progress_bar)
    simulations, data, given = data_sets(simulate_key, engine.posterior, num_datasets, plan, arguments)
    rng = numpy_rng(choose_key)
    ranks: dict[str, list[np.ndarray]] = {name: [] for name in problem.latents}
    tarp, served = [], []
    outcomes = each_outcome(engine, infer_key, problem.args, given)  # what they warn of are simulated data
    for j, (posterior, _) in enumerate(progress.progress(outcomes, "calibrating", progress_bar, len(given))):
        if not isinstance(posterior, Posterior):
            continue
        draws = _some(rng, posterior.samples, list(ranks), num_draws)
        truth = {name: np.asarray(simulations.latents[name][j]) for name in ranks}
        for name, value in draws.items():
            rank = np.sum(value < truth[name][None], axis=0)
            ties = np.sum(value == truth[name][None], axis=0)  # of discrete latents
            ranks[name].append((rank + (1 + ties) * rng.uniform(size=rank.shape)) / (len(value) + 1))
        tarp.append(_tarp(rng, draws, truth, simulations))
        served.append(j)
    total, refused = len(simulations), len(simulations) - len(served)
    checks.require(len(served) >= 2, f"The engine refused {refused} of {total} data sets: nothing to check.")
    stacked = {name: np.stack(found) for name, found in ranks.items()}
    truths, kept = of_rows(simulations.latents, served), of_rows(data, served)
    return Calibration(stacked, np.array(tarp), truths, kept, refused, simulations.failures)


def _some(rng, samples: Arrays, names: list[str], number: int) -> dict[str, np.ndarray]:
    """A random choice of draws, as many as their effective number at most: copies of one draw do not count anew."""
    table = np.concatenate([np.asarray(samples[name]).reshape(len(samples[name]), -1) for name in names], axis=1)
    _, first, counts = np.unique(table, axis=0, return_index=True, return_counts=True)
    order = rng.permutation(len(first))
    weights = counts[order] / len(table)
    size = min(number, int(effective_size(weights) + 1e-9))
    rows = first[order][systematic(rng, weights, size)]
    return {name: np.asarray(samples[name])[rows] for name in names}


def _tarp(rng, draws: Arrays, truth: Arrays, simulations: Simulations) -> float:
    """Fraction of draws nearer than the truth to a prior draw, in prior standard deviations, made uniform."""
    reference = int(rng.integers(len(simulations)))
    squares: Any = 0.0
    for name, value in draws.items():
        prior = np.asarray(simulations.latents[name])
        apart = (np.concatenate([value, truth[name][None]]) - prior[reference]) / np.maximum(prior.std(axis=0), 1e-300)
        squares = squares + np.sum(apart.reshape(len(apart), -1) ** 2, axis=1)
    return float((np.sum(squares[:-1] < squares[-1]) + rng.uniform()) / len(squares))


def uniformity_tests(
    ranks: np.ndarray, components: np.ndarray | None = None, margin: float = MARGIN
) -> dict[str, float]:
    r"""P-values of four ways not to be uniform, for ranks `r` that are independent given the data.

    An engine that learns from simulations errs a little, in the same way for all data sets of one run: with enough data
    sets a test of exact uniformity rejects every such engine. What is tested is whether its errors are small. A
    posterior is off by the mean $\mu$ of the truth in its standard deviations, and by the logarithm $s$ of how much the
    truth's standard deviation is the larger; that costs about $\mu^2 / 2 + s^2$ nats. The null hypothesis is the ball

    $$ \mu^2 / 2 + s^2 \le \text{margin}^2 / 2, $$

    of locations off by `margin` posterior standard deviations at most, or widths by a factor of
    `exp(margin / sqrt(2))`, and every p-value is the largest over the ball: for location at its end $\mu$, for scale at
    its end $s$. A margin of 0 tests exact uniformity.

    By normal scores $z = \Phi^{-1}(r)$, independent standard normals where posteriors are exact. `location`:
    $\sqrt N |\bar z|$ against a folded normal at $\sqrt N$ margin (posteriors are shifted). `scale`:
    $\sum (z - \bar z)^2 e^{\mp 2 s}$ against $\chi^2_{N-1}$, $s$ = margin / $\sqrt 2$ (too narrow or too wide). `data`:
    $|P z|^2$ against a $\chi^2_k$ with noncentrality $N$ margin$^2$, `P` the projection on `k` components of the data
    (what is off changes with the data). `shape`: the Kolmogorov-Smirnov distance, less that of a normal shifted by the
    margin, $2 \Phi(\text{margin} / 2) - 1$.

    Args:
        ranks: In (0, 1), `(N,)`.
        components: Orthonormal columns `(N, k)`, from `components_of`; `data` is left out without any.
        margin: Errors that are let pass, in posterior standard deviations.
    """
    scores = ndtri(ranks)
    size = len(scores)
    centre, shift, scale = float(np.mean(scores)), np.sqrt(size) * margin, np.exp(np.sqrt(2.0) * margin)
    square, away = float(np.sum(np.square(scores - centre))), np.sqrt(size) * abs(centre)
    wide, narrow = scipy.stats.chi2.cdf(square * scale, size - 1), scipy.stats.chi2.sf(square / scale, size - 1)
    distance = scipy.stats.kstest(ranks, "uniform").statistic - (2.0 * ndtr(0.5 * margin) - 1.0)
    found = {
        "shape": float(scipy.stats.kstwo.sf(max(distance, 0.0), size)),
        "location": float(scipy.stats.norm.sf(away - shift) + scipy.stats.norm.sf(away + shift)),
        "scale": float(min(1.0, 2.0 * min(wide, narrow))),
    }
    if components is not None and components.shape[1]:
        along = np.sum(np.square(scores @ components))
        found["data"] = float(scipy.stats.ncx2.sf(along, components.shape[1], shift**2))
    return found


def components_of(data: Arrays) -> np.ndarray:
    """Leading principal components of simulated data sets, orthonormal, orthogonal to constants, `(N, k)`.

    Each number of the data is centred and scaled robustly and compressed by arcsinh. At most one component for ten
    data sets.

    Args:
        data: `{site: (N, *event)}`.
    """
    if not data:
        return np.zeros((0, 0))
    table = np.concatenate([np.asarray(x, np.float64).reshape(len(x), -1) for x in data.values()], axis=1)
    scale = mad_or_sd(table)
    scaled = np.arcsinh((table - np.median(table, axis=0))[:, scale > 0] / scale[scale > 0])
    left, sizes, _ = np.linalg.svd(scaled - scaled.mean(axis=0), full_matrices=False)
    kept = int(np.sum(sizes > 1e-8 * np.max(sizes, initial=0.0)))
    return left[:, : min(kept, len(table) // 10)]
