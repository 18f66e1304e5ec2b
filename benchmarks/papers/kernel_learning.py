"""Bayesian kernel learning on grids of Gaussians, and what its length scale is worth to a two-sample test.

    python -m benchmarks kernel_learning [--repeats 100]

25 Gaussians on a 5 x 5 grid, 10 apart (Flaxman et al., 2016): isotropic with standard deviation 1 in one sample, in the
other with eigenvalues of the covariance in the ratio r, their product 1, the longer axis at 45 degrees. 300 points
each. The published length scale is 0.85 where the median heuristic says 20. Tests at level 0.05 with 199 permutations;
the length scale is learnt from both samples together, whose permutation changes nothing, so the level is kept. Takes
half an hour.
"""

import jax
import numpy as np

from benchmarks.helpers import report
from numpyro_kme import BayesianKernelLearning, MedianHeuristic, mmd_test
from numpyro_kme.kernels import Gaussian

RATIOS, POINTS, SPACING = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0), 300, 10.0
RULES = {"median": lambda key: MedianHeuristic(), "learnt": BayesianKernelLearning}


def grid(rng, ratio, points=POINTS):
    centres = SPACING * np.stack(np.meshgrid(np.arange(5), np.arange(5)), -1).reshape(-1, 2)
    turn = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2.0)
    noise = rng.normal(size=(points, 2)) * [ratio**0.25, ratio**-0.25]
    return centres[rng.integers(25, size=points)] + noise @ turn.T


def tested(seed, ratio, rule):
    rng = np.random.default_rng([seed, int(10 * ratio)])
    x, y = grid(rng, 1.0), grid(rng, ratio)
    learn, test = jax.random.split(jax.random.fold_in(jax.random.key(seed), int(10 * ratio)))
    scale = float(RULES[rule](learn)(np.concatenate([x, y])))
    return {"scale": scale, "p_value": mmd_test(test, Gaussian(scale), x, y, num_permutations=199).p_value}


def main(rows, repeats=100):
    rows.fill(tested, seed=range(repeats), ratio=RATIOS, rule=RULES)
    lines = []
    for ratio in RATIOS:
        for rule in RULES:
            scales, p = (rows.column(name, ratio=ratio, rule=rule) for name in ("scale", "p_value"))
            rejected = np.mean(p <= 0.05)
            error = np.sqrt(rejected * (1 - rejected) / len(p))
            ends = np.quantile(scales, [0.0, 0.5, 1.0])
            lines.append([ratio, rule, len(p), *ends, f"{rejected:.3f} ({error:.3f})"])
    header = ["ratio of eigenvalues", "length scale", "runs", "least", "median", "largest", "rejected at 0.05 (s.e.)"]
    sections = [("Length scales and power", report.table(header, lines))]
    return "Bayesian kernel learning on grids of Gaussians", sections, rows
