"""Simulation-based calibration, coverage and TARP, from one set of runs on simulated data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from tqdm.auto import tqdm

from numpyro_kme import _arviz, _checks, _compat
from numpyro_kme.diagnostics import uniformity
from numpyro_kme.diagnostics.predictive import samples_of
from numpyro_kme.problem import Arrays
from numpyro_kme.simulations import Simulations, simulate


@dataclass(frozen=True)
class Calibration:
    r"""How an engine did on data simulated from the prior, where the truth is known.

    If posteriors are right, the truth is one more draw: its rank among `L` draws is uniform on `0, ..., L` whatever the data are, and
    so is the share of draws that are closer than it to a random point (TARP).

    Attributes:
        ranks: `(rank + u) / (L + 1)` with `u` uniform on (0, 1), which is uniform, `{latent: (N, *shape)}`.
        shares: The same for TARP, `(N,)`: one number for all latents together.
        truths: The parameters that data were simulated from, `{latent: (N, *shape)}`.
        data: The data sets, `{site: (N, *event)}`, without what the observation masks.
        refused: How many further data sets the engine refused, as having no posterior. Whether it does depends on the data
            alone, and ranks are uniform given any data, so that leaving them out is fair.
    References: Talts et al. (2018), arXiv:1804.06788; Lemos et al. (2023), ICML; Modrak et al. (2023), Bayesian Analysis.
    """

    ranks: Arrays
    shares: np.ndarray
    truths: Arrays
    data: Arrays = field(default_factory=dict)
    refused: int = 0

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The ranks of each number, by name, `{name[i]: (N,)}`."""
        found = {}
        for name, value in self.ranks.items():
            for index in np.ndindex(value.shape[1:]):
                label = name + (f"[{','.join(map(str, index))}]" if index else "")
                found[label] = value[(slice(None), *index)]
        return found

    @cached_property
    def tests(self) -> dict[str, dict[str, float]]:
        """P-values of each number, and of TARP, against four ways not to be uniform, `{name: {test: p}}`.

        `shape`: Kolmogorov-Smirnov. `location`: posteriors are shifted. `spread`: they are too narrow, or too wide. `data`: what is
        off changes with the data, as where the prior is ignored, parameters are swapped or a sign is wrong. All are exact.
        """
        components = uniformity.components_of(self.data)
        found = {name: uniformity.tests(value, components) for name, value in self.columns.items()}
        return found | {"TARP": uniformity.tests(self.shares)}

    def p_values(self) -> dict[str, float]:
        """One p-value for each number, and for TARP: its smallest times the number of its tests, at most 1."""
        return {name: min(1.0, len(tests) * min(tests.values())) for name, tests in self.tests.items()}

    @property
    def p_value(self) -> float:
        """One p-value for all, the smallest of all tests times their number, at most 1."""
        values = [value for tests in self.tests.values() for value in tests.values()]
        return min(1.0, len(values) * min(values))

    def coverage(self, level: float = 0.9) -> dict[str, float]:
        """Share of central intervals of a level that hold the truth, for each number."""
        return {name: float(np.mean(np.abs(2 * value - 1) <= level)) for name, value in self.columns.items()}

    def coverage_curve(self, levels: Any = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Levels, and the coverage at each, with TARP's expected coverage of credible regions as `TARP`."""
        levels = np.linspace(0.0, 1.0, 101) if levels is None else np.asarray(levels)
        curves = {name: np.mean(np.abs(2 * v - 1)[:, None] <= levels, axis=0) for name, v in self.columns.items()}
        return levels, {**curves, "TARP": np.mean(self.shares[:, None] <= levels, axis=0)}

    def to_inference_data(self):
        """An ArviZ object with the group `prior_sbc`: ranks with dimensions `(chain=1, draw=data set)`."""
        groups = {
            "prior_sbc": {name: value[None] for name, value in self.ranks.items()},
            "prior": {name: np.asarray(value)[None] for name, value in self.truths.items()},
            "sample_stats": {"tarp": self.shares[None]},
        }
        return _arviz.to_inference_data(groups, attrs={"p_value": self.p_value})

    def print_summary(self, level: float = 0.9) -> None:
        """Print coverage, p-values of all tests, and one for all."""
        coverage, number = self.coverage(level), len(self.shares)
        error = np.sqrt(level * (1 - level) / number)
        print(
            f"{number} data sets{f' and {self.refused} refused' if self.refused else ''}; coverage of {level:.0%} intervals "
            f"(standard error {error:.3f}); p-values of uniformity"
        )
        kinds = list(next(iter(self.tests.values())))
        print(" ".join([f"{'':>24} {'coverage':>8}", *(f"{kind:>9}" for kind in kinds)]))
        for name, tests in self.tests.items():
            covered = f"{coverage[name]:.3f}" if name in coverage else ""
            print(" ".join([f"{name:>24} {covered:>8}", *(f"{tests[k]:>9.2g}" for k in kinds if k in tests)]))
        print(f"{'p-value of all':>24} {self.p_value:>8.2g}")


def calibrate(
    rng_key: jax.Array,
    engine: Any,
    num_datasets: int = 100,
    *,
    num_draws: int = 100,
    arguments: Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]] | None = None,
    progress_bar: bool = True,
) -> Calibration:
    """Check an engine on data simulated from its own model.

    Args:
        rng_key: The only source of randomness.
        engine: One that has been run. `condition` serves each data set where the engine has it, from the simulations and what
            was learnt in that run; `run` otherwise.
        num_datasets: `N`; 100 find a posterior that is half too wide or off by half a standard deviation, 200 one that is off
            by .4.
        num_draws: `L`, posterior draws of each data set that the truth is compared with.
        arguments: Turns simulated outputs `{site: value}` into keyword arguments of the model; by default each site is
            passed under its own name.
        progress_bar: Show a bar.
    Raises:
        ValueError: If the model has observed sites that are not simulators, or takes none of its sites as an argument.
    """
    _checks.key(rng_key)
    _checks.whole("num_datasets", num_datasets, 2)
    _checks.whole("num_draws", num_draws, 1)
    samples_of(engine)
    problem = engine.problem
    _checks.require(
        not problem.likelihoods,
        f"The sites {list(problem.likelihoods)} are observed and have densities of their own; calibration draws data for simulator "
        "sites only.",
    )
    if arguments is None:
        missing = [site for site in problem.simulators if site not in problem.kwargs]
        _checks.require(
            not missing,
            f"The model was not run with keyword arguments named like its sites {missing}, but with {sorted(problem.kwargs)}. Pass "
            "`arguments=lambda x: dict(...)`, which turns simulated outputs into arguments of the model.",
        )
    bank_key, infer_key, choose_key = jax.random.split(rng_key, 3)
    bank = simulate(bank_key, problem, num_datasets, on_failure="skip", progress_bar=False)
    infer = getattr(engine, "condition", engine.run)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(choose_key)).ravel())
    ranks: dict[str, list[np.ndarray]] = {name: [] for name in problem.latents}
    shares, served = [], []
    quiet = not (progress_bar and _compat.progress_bars_allowed())
    for j in tqdm(range(len(bank)), desc="calibrating", disable=quiet):
        outputs = {site: np.asarray(value[j]) for site, value in bank.x.items()}
        made = outputs if arguments is None else arguments(outputs)
        _checks.instance("arguments(outputs)", made, Mapping, "a dictionary of keyword arguments of the model")
        given = {**problem.kwargs, **made}
        try:
            infer(jax.random.fold_in(infer_key, j), *problem.args, **given)
        except _checks.EffectiveSampleSizeError:
            continue
        draws = _some(rng, engine.get_samples(), list(ranks), num_draws)
        truth = {name: np.asarray(bank.latents[name][j]) for name in ranks}
        for name, value in draws.items():
            rank = np.sum(value < truth[name][None], axis=0)
            ranks[name].append((rank + rng.uniform(size=rank.shape)) / (len(value) + 1))
        shares.append(_tarp(rng, draws, truth, bank))
        served.append(j)
    _checks.require(
        len(served) >= 2, f"The engine refused {len(bank) - len(served)} of {len(bank)} data sets: nothing to check."
    )
    return Calibration(
        {name: np.stack(found) for name, found in ranks.items()},
        np.array(shares),
        {name: np.asarray(bank.latents[name])[served] for name in ranks},
        {site: problem.simulators[site].counted(np.asarray(value)[served], 1) for site, value in bank.x.items()},
        len(bank) - len(served),
    )


def _some(rng, samples: Arrays, names: list[str], number: int) -> dict[str, np.ndarray]:
    """A random choice of draws, without replacement."""
    total = len(samples[names[0]])
    rows = rng.permutation(total)[: min(number, total)]
    return {name: np.asarray(samples[name])[rows] for name in names}


def _tarp(rng, draws: Arrays, truth: Arrays, bank: Simulations) -> float:
    """Share of draws nearer than the truth to a prior draw, in prior standard deviations, made uniform."""
    reference = int(rng.integers(len(bank)))
    of_draws = np.zeros(len(next(iter(draws.values()))))
    of_truth = 0.0
    for name, value in draws.items():
        prior = np.asarray(bank.latents[name])
        scale = np.maximum(prior.std(axis=0), 1e-300)
        of_draws += np.sum(((value - prior[reference]) / scale).reshape(len(value), -1) ** 2, axis=1)
        of_truth += np.sum(((truth[name] - prior[reference]) / scale) ** 2)
    return float((np.sum(of_draws < of_truth) + rng.uniform()) / (len(of_draws) + 1))
