"""Bayesian kernel learning on grids of Gaussians, and what its length scale is worth to a two-sample test.

    python -m benchmarks kernel_learning [--repeats 100]

25 Gaussians on a 5 x 5 grid, 10 apart (Flaxman et al., 2016): isotropic with standard deviation 1 in one sample, in the
other with eigenvalues of the covariance in the ratio r, their product 1, the longer axis at 45 degrees. 300 points
each. The published length scale is 0.85 where the median heuristic says 20. Tests at level 0.05 with 199 permutations;
the length scale is learnt from both samples together, whose permutation changes nothing, so the level is kept. The
second table has the scale by numbers of points and landmarks, which the slides do not print: isotropic Gaussians, three
data sets. Takes half an hour.
"""

import jax
import numpy as np

from benchmarks.helpers import report
from numpyro_kme import BayesianKernelLearning, MedianHeuristic, mmd_test
from numpyro_kme.kernels import Gaussian, learn_length_scale

RATIOS, POINTS, SPACING = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0), 300, 10.0
SIZES, LANDMARKS = (100, 300, 600, 1200), (25, 50, 100, 200)


def grid(rng, ratio, points=POINTS):
    centres = SPACING * np.stack(np.meshgrid(np.arange(5), np.arange(5)), -1).reshape(-1, 2)
    turn = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2.0)
    noise = rng.normal(size=(points, 2)) * [ratio**0.25, ratio**-0.25]
    return centres[rng.integers(25, size=points)] + noise @ turn.T


def run(rows, repeats):
    for seed in range(repeats):
        for ratio in RATIOS:
            if rows.has(seed=seed, ratio=ratio):
                continue
            rng = np.random.default_rng([seed, int(10 * ratio)])
            x, y = grid(rng, 1.0), grid(rng, ratio)
            learn, test = jax.random.split(jax.random.fold_in(jax.random.key(seed), int(10 * ratio)))
            both = np.concatenate([x, y])
            for name, rule in (("median", MedianHeuristic()), ("learnt", BayesianKernelLearning(learn))):
                scale = float(rule(both))
                found = mmd_test(test, Gaussian(scale), x, y, num_permutations=199)
                rows.add(seed=seed, ratio=ratio, rule=name, scale=scale, p_value=found.p_value)


def by_size(rows):
    for seed in range(3):
        for points in SIZES:
            x = grid(np.random.default_rng([seed, points]), 1.0, points)
            for number in LANDMARKS:
                if not rows.has(seed=seed, points=points, landmarks=number):
                    scale = learn_length_scale(jax.random.key(seed), x, num_landmarks=number).length_scale
                    rows.add(seed=seed, points=points, landmarks=number, scale=scale)


def write(rows):
    lines = []
    for ratio in RATIOS:
        for rule in ("median", "learnt"):
            scales, p = (np.array(rows.values(name, ratio=ratio, rule=rule)) for name in ("scale", "p_value"))
            if len(p):
                quartiles = np.quantile(scales, [0.0, 0.5, 1.0])
                rejected = np.mean(p <= 0.05)
                error = np.sqrt(rejected * (1 - rejected) / len(p))
                lines.append([ratio, rule, len(p), *quartiles, f"{rejected:.3f} ({error:.3f})"])
    header = ["ratio of eigenvalues", "length scale", "runs", "least", "median", "largest", "rejected at 0.05 (s.e.)"]
    scales = [[np.median(rows.values("scale", points=n, landmarks=q)) for q in LANDMARKS] for n in SIZES]
    lines_of = [[n, *line] for n, line in zip(SIZES, scales)]
    by_landmarks = report.table(["points", *(f"{q} landmarks" for q in LANDMARKS)], lines_of)
    sections = [("Length scales and power", report.table(header, lines)), ("Median length scale learnt", by_landmarks)]
    report.save("kernel_learning", "Bayesian kernel learning on grids of Gaussians", sections, {"rows": rows.rows})


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--repeats", type=int, default=100)
    options = parser.parse_args()
    run(options.rows, options.repeats)
    by_size(options.rows)
    write(options.rows)
