"""Level and power of the permutation tests, beside hyppo's.

    python -m benchmarks kernel_tests     # `pip install hyppo`

Level 0.05 with 199 permutations; 1,000 data sets under the null. Power over 200 data sets for tests with the same
Gaussian kernel (length scale 1) here and in hyppo (biased statistics there: MMD through its equivalence with Hsic, and
Hsic). Takes two minutes.
"""

import time
import warnings

import jax
import numpy as np

from benchmarks.helpers import report
from numpyro_kme import mmd_test
from numpyro_kme.embeddings import hsic_test
from numpyro_kme.kernels import Gaussian

NULLS, POWERS, PERMUTATIONS, POINTS = 1000, 200, 199, 40
BLOCK = 20
KERNEL = Gaussian(1.0)
CASES = {
    "MMD": {
        "null": (4, lambda rng: rng.normal(size=(2, POINTS, 1))),
        "mean shifted by 0.5": (18, lambda rng: (rng.normal(size=(POINTS, 1)), 0.5 + rng.normal(size=(POINTS, 1)))),
        "standard deviation 1.7": (22, lambda rng: (rng.normal(size=(POINTS, 1)), 1.7 * rng.normal(size=(POINTS, 1)))),
    },
    "HSIC": {
        "null": (4, lambda rng: related(rng, lambda x, e: e)),
        "correlation 0.4": (14, lambda rng: related(rng, lambda x, e: 0.4 * x + np.sqrt(0.84) * e)),
        "noise in proportion to x": (26, lambda rng: related(rng, lambda x, e: np.abs(x) * e)),
    },
}
"""Distributions of two samples, each with a number that seeds its data."""


def related(rng, function):
    x, noise = rng.normal(size=(2, POINTS, 1))
    return x, function(x, noise)


def ours(test, key, x, y):
    if test == "MMD":
        return mmd_test(key, KERNEL, x, y, num_permutations=PERMUTATIONS).p_value
    return hsic_test(key, KERNEL, KERNEL, x, y, num_permutations=PERMUTATIONS).p_value


def theirs(test, x, y):
    from hyppo.independence import Hsic
    from hyppo.ksample import MMD

    with warnings.catch_warnings(action="ignore"):
        kind = (MMD if test == "MMD" else Hsic)(compute_kernel="gaussian", bias=True, gamma=0.5)
        return float(kind.test(x, y, reps=PERMUTATIONS, workers=1, auto=False)[1])


def run(rows):
    for number, (test, cases) in enumerate(CASES.items()):
        for kind, (stream, sample) in cases.items():
            for block in range(0, NULLS if kind == "null" else POWERS, BLOCK):
                if rows.has(test=test, kind=kind, block=block):
                    continue
                p, other, seconds = [], [], [0.0, 0.0]
                for seed in range(block, block + BLOCK):
                    rng = np.random.default_rng([number, stream, seed])
                    x, y = sample(rng)
                    times = [time.process_time()]
                    p.append(ours(test, jax.random.fold_in(jax.random.key(number), seed), x, y))
                    times.append(time.process_time())
                    if kind != "null":
                        other.append(theirs(test, x, y))
                    times.append(time.process_time())
                    seconds = [s + d for s, d in zip(seconds, np.diff(times))]
                rows.add(test=test, kind=kind, block=block, p=p, other=other, seconds=seconds)


def write(rows):
    lines = []
    for test, cases in CASES.items():
        for kind in cases:
            p, other = (np.concatenate([[], *rows.values(name, test=test, kind=kind)]) for name in ("p", "other"))
            if not len(p):
                continue
            rejected, by_hyppo = np.mean(p <= 0.05), np.mean(other <= 0.05) if len(other) else ""
            error = np.sqrt(rejected * (1 - rejected) / len(p))
            within = abs(rejected - 0.05) / np.sqrt(0.05 * 0.95 / len(p)) if kind == "null" else ""
            apart = f"{rejected - by_hyppo:+.3f}" if len(other) else ""
            lines.append([test, kind, len(p), rejected, error, within, by_hyppo, apart])
    header = ["test", "distribution", "data sets", "rejected", "s.e.", "s.e. from 0.05", "hyppo", "difference"]
    sections = [("At level 0.05", report.table(header, lines))]
    report.save("kernel_tests", "Level and power of the permutation tests", sections)


def main():
    rows = report.parser(__doc__, resumes=True).parse_args().rows
    run(rows)
    write(rows)
