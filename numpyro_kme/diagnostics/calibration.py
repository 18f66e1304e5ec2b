"""Simulation-based calibration, coverage and TARP, from one set of runs on simulated data."""

import textwrap
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from numpyro_kme._core import arviz, checks, progress
from numpyro_kme._core.display import Card, between, frozen, numbers
from numpyro_kme._core.host import numpy_rng
from numpyro_kme._core.keys import split
from numpyro_kme.diagnostics import uniformity
from numpyro_kme.diagnostics.data_sets import Arguments, data_sets, plan_of_data
from numpyro_kme.diagnostics.uniformity import MARGIN
from numpyro_kme.engines.base import Engine
from numpyro_kme.engines.kelfi import KELFI
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.models.problem import Arrays
from numpyro_kme.samplers.importance import effective_size, systematic
from numpyro_kme.simulations import Simulations

LEVEL = 0.001
"""An engine whose p-value is below this is not to be trusted; measured by `python -m benchmarks verdict`."""
NEXT = {
    "location": "Read the simulator and what becomes of its arguments and of the observation on the way; "
    "compare `predictive_check`.",
    "too wide": "A likelihood that is blurred: use more simulations or rounds, the residual form of KELFI, or smaller "
    "length scales and less regularisation of a kernel engine.",
    "too narrow": "Too many statistics, or some that depend on others, for so few simulations: use more simulations, "
    "or the few statistics that matter; or too few draws: read the effective sample size in `print_summary()`.",
    "data": "The prior, the order of parameters or a sign: run the model with NumPyro's `Predictive`, and look at "
    "`plots.surrogate`; or too few simulations where some of these data lie.",
    "shape": "Tails, several modes or curved posteriors that the engine does not follow: use more simulations, and "
    "look at `plots.ranks`.",
}
"""What to do about posteriors that fail a test."""


@frozen
class Calibration:
    r"""How an engine did on data simulated from the prior, where the truth is known.

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
        margin: Errors that are let pass, in posterior standard deviations.
    References: Talts et al. (2018), arXiv:1804.06788; Lemos et al. (2023), ICML; Modrak et al. (2023), Bayesian
    Analysis.
    """

    ranks: Arrays
    tarp: np.ndarray
    truths: Arrays
    data: Arrays = field(default_factory=dict)
    refused: int = 0
    margin: float = MARGIN
    failures: Mapping[str, int] = field(default_factory=dict)

    def _card(self) -> Card:
        worst = min(self.p_values(), key=lambda name: self.p_values()[name])
        least, most = min(self.coverage().values()), max(self.coverage().values())
        return Card(
            f"Calibration on {len(self.tarp)} data sets",
            {
                "p-value": f"{self.p_value:.2g} of all tests, against errors above {self.margin:g} posterior sd",
                "smallest": f"{worst}, {self.p_values()[worst]:.2g}",
                "coverage": f"of 90% intervals {between(f'{least:.2f}', f'{most:.2f}')}",
                "refused": f"{self.refused} further data sets" if self.refused else "",
                "failed": f"{self.failed} further data sets" if self.failed else "",
                "found": "; ".join(self.findings()) or f"nothing at level {LEVEL:g}",
            },
            "print_summary(), plots.ranks(calibration), plots.coverage(calibration)",
        )

    @property
    def failed(self) -> int:
        """How many further data sets could not be simulated."""
        return sum(self.failures.values())

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The ranks of each number, by name, `{name[i]: (N,)}`."""
        return numbers(self.ranks)

    @cached_property
    def tests(self) -> dict[str, dict[str, float]]:
        r"""P-values of each number, and of TARP, for four ways to be off by more than the margin, `{name: {test: p}}`.

        `shape`: Kolmogorov-Smirnov. `location`: posteriors are shifted. `scale`: they are too narrow, or too wide.
        `data`: what is off changes with the data, as where the prior is ignored, parameters are swapped or a sign is
        wrong. A posterior that is off by at most `margin` standard deviations, or in its width by a factor of at most
        `exp(margin / sqrt(2))`, has a p-value below `a` with a probability of at most `a`. TARP looks at all `D`
        numbers together, whose errors add up: its margin is $\sqrt D$ times as large.
        """
        components = uniformity.components_of(self.data)
        found = {name: uniformity.tests(value, components, self.margin) for name, value in self.columns.items()}
        return found | {"TARP": uniformity.tests(self.tarp, margin=self.margin * np.sqrt(len(found)))}

    def p_values(self) -> dict[str, float]:
        """One p-value for each number, and for TARP: its smallest times the number of its tests, at most 1."""
        return {name: min(1.0, len(tests) * min(tests.values())) for name, tests in self.tests.items()}

    @property
    def p_value(self) -> float:
        """One p-value for all, the smallest of all tests times their number, at most 1."""
        values = [value for tests in self.tests.values() for value in tests.values()]
        return min(1.0, len(values) * min(values))

    def findings(self, level: float = LEVEL) -> list[str]:
        """What is off at a level, by how much, and what to do next: one entry for each kind of error, then data sets
        that were refused, if these are more than a tenth."""
        number = sum(map(len, self.tests.values()))
        scores = {name: ndtri(value) for name, value in {**self.columns, "TARP": self.tarp}.items()}
        found: dict[str, list[str]] = {}
        for name, tests in self.tests.items():
            centre, scale = scores[name].mean(), scores[name].std()
            shift = "location", f"{abs(centre):.2g} sd too {'low' if centre > 0 else 'high'}"
            width = ("too wide", 1 / scale - 1) if scale < 1 else ("too narrow", 1 - 1 / scale)
            said = {"location": shift, "scale": (width[0], f"by {width[1]:.0%}")}
            failed = [test for test, p in tests.items() if number * p < level]
            for test in [test for test in failed if test != "shape"] or failed:
                kind, how_much = said.get(test, (test, ""))
                found.setdefault(kind, []).append(f"{name} {how_much}".strip())
        sentences = [f"{kind} ({', '.join(found[kind])}): {NEXT[kind]}" for kind in NEXT if kind in found]
        total = self.refused + len(self.tarp)
        if self.refused > 0.1 * total:
            sentences.append(
                f"refused ({self.refused} of {total} data sets): the engine has no posterior for data that this prior "
                "makes, and nothing was checked there. Use more simulations, or a prior nearer to what is known."
            )
        return sentences

    def coverage(self, level: float = 0.9) -> dict[str, float]:
        """Fraction of central intervals of a level that hold the truth, for each number."""
        return {name: float(np.mean(np.abs(2 * value - 1) <= level)) for name, value in self.columns.items()}

    def coverage_curve(self, levels: Any = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Levels, and the coverage at each, with TARP's expected coverage of credible regions as `TARP`."""
        levels = np.linspace(0.0, 1.0, 101) if levels is None else np.asarray(levels)
        curves = {name: np.mean(np.abs(2 * v - 1)[:, None] <= levels, axis=0) for name, v in self.columns.items()}
        return levels, {**curves, "TARP": np.mean(self.tarp[:, None] <= levels, axis=0)}

    def to_inference_data(self):
        """An ArviZ object with the group `prior_sbc`: ranks with dimensions `(chain=1, draw=data set)`."""
        groups = {
            "prior_sbc": {name: value[None] for name, value in self.ranks.items()},
            "prior": {name: np.asarray(value)[None] for name, value in self.truths.items()},
            "sample_stats": {"tarp": self.tarp[None]},
        }
        return arviz.to_inference_data(groups, attrs={"p_value": self.p_value})

    def print_summary(self, level: float = 0.9) -> None:
        """Print how many data sets there were, coverage, p-values of all tests, and one for all."""
        coverage, number = self.coverage(level), len(self.tarp)
        error = np.sqrt(level * (1 - level) / number)
        print(f"{number} data sets, {self.refused} further ones refused")
        if self.failures:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.failures.items())
            print(textwrap.fill(f"{self.failed} further data sets could not be simulated ({reasons})", 80))
        print(f"coverage of {level:.0%} intervals (standard error {error:.3f}),")
        print(f"p-values of errors above {self.margin:g} posterior standard deviations")
        kinds = list(next(iter(self.tests.values())))
        print(" ".join([f"{'':>24} {'coverage':>8}", *(f"{kind:>9}" for kind in kinds)]))
        for name, tests in self.tests.items():
            covered = f"{coverage[name]:.3f}" if name in coverage else ""
            print(" ".join([f"{name:>24} {covered:>8}", *(f"{tests[k]:>9.2g}" for k in kinds if k in tests)]))
        print(f"{'p-value of all':>24} {self.p_value:>8.2g}")
        verdict = "something, which `findings()` explains" if self.findings() else "nothing"
        print(f"{'found':>24} {verdict}, at level {LEVEL:g}")


def calibrate(
    rng_key: jax.Array,
    engine: Engine,
    num_datasets: int = 100,
    *,
    num_draws: int = 100,
    margin: float = MARGIN,
    arguments: Arguments | None = None,
    progress_bar: bool = True,
) -> Calibration:
    """Check an engine on data simulated from its own model. The engine stays as it is.

    Args:
        rng_key: The only source of randomness.
        engine: One that has been run. Data sets are simulated as its settings say, on its `executor` and within its
            `timeout`; those that fail, after what `Retry` repeats, are left out and counted, whatever its `on_failure`,
            and none is written to its `store`. Its `trained.condition` serves each data set, from the simulations and
            what was learnt in that run, where it keeps them. `KELFI` that has made rounds around the posterior of its
            observation serves no other, and raises an error: run it with `num_rounds=1`.
        num_datasets: `N`. With one parameter and the default margin, 200 flag a posterior that is half too wide, or off
            by half a standard deviation, at level 0.001 in 0.99 of runs, and one off by 0.4 in 0.88; 100 flag the first
            two in 0.77, and at level 0.05 in 0.96 (`python -m benchmarks verdict`).
        num_draws: `L`, posterior draws of each data set that the truth is compared with: at most so many, and no more
            than their effective number where draws are alike, as resampled simulations are.
        margin: Errors that are let pass, in posterior standard deviations (`Calibration.tests`); 0 tests exact
            uniformity.
        arguments: Turns what was drawn, `{site: value}` for simulators and other observed sites, into keyword arguments
            of the model; by default each site is passed under its own name.
        progress_bar: Show a bar of the data sets, and none of the engine's own.
    Raises:
        ValueError: If the model does not take what it observes as arguments, or has a factor, from which no data can be
            drawn; or if the engine serves one observation alone.
    """
    checks.key(rng_key)
    checks.whole("num_datasets", num_datasets, 2)
    checks.whole("num_draws", num_draws, 1)
    checks.non_negative("margin", margin)
    checks.instance("engine", engine, Engine, "an engine, such as KELFI(model)")
    trained, problem = engine.trained, problem_of(engine.posterior)
    if isinstance(engine, KELFI):
        trained.learnt.require_amortised()
    simulate_key, infer_key, choose_key = split(rng_key, 3)
    simulations, data, given = data_sets(simulate_key, problem, num_datasets, plan_of_data(engine), arguments)
    rng = numpy_rng(choose_key)
    ranks: dict[str, list[np.ndarray]] = {name: [] for name in problem.latents}
    tarp, served = [], []
    outcomes = trained.each(infer_key, problem.args, given)  # what they warn of are simulated data
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
    return Calibration(
        {name: np.stack(found) for name, found in ranks.items()},
        np.array(tarp),
        {name: np.asarray(simulations.latents[name])[served] for name in ranks},
        {site: value[served] for site, value in data.items()},
        refused,
        margin,
        simulations.failures,
    )


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
    of_draws = np.zeros(len(next(iter(draws.values()))))
    of_truth = 0.0
    for name, value in draws.items():
        prior = np.asarray(simulations.latents[name])
        scale = np.maximum(prior.std(axis=0), 1e-300)
        of_draws += np.sum(((value - prior[reference]) / scale).reshape(len(value), -1) ** 2, axis=1)
        of_truth += np.sum(((truth[name] - prior[reference]) / scale) ** 2)
    return float((np.sum(of_draws < of_truth) + rng.uniform()) / (len(of_draws) + 1))
