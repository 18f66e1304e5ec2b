"""Level and power of the permutation tests, beside hyppo's.

    python benchmarks/kernel_tests.py [--runs rows.jsonl]        # needs pip install hyppo

Level .05 with 199 permutations; 1,000 data sets under the null. Power over 200 data sets for tests with the same
Gaussian kernel (length scale 1) here and in hyppo (biased statistics there: MMD through its equivalence with Hsic, and
Hsic).
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import report

from numpyro_kme import mmd_test
from numpyro_kme.embeddings import hsic_test
from numpyro_kme.kernels import Gaussian

NULLS, POWERS, PERMUTATIONS, POINTS = 1000, 200, 199, 40
BLOCK = 20
KERNEL = Gaussian(1.0)
ALTERNATIVES = {
    "MMD": {
        "mean shifted by .5": lambda rng: (rng.normal(size=(POINTS, 1)), 0.5 + rng.normal(size=(POINTS, 1))),
        "standard deviation 1.7": lambda rng: (rng.normal(size=(POINTS, 1)), 1.7 * rng.normal(size=(POINTS, 1))),
    },
    "HSIC": {
        "correlation .4": lambda rng: related(rng, lambda x, e: 0.4 * x + np.sqrt(0.84) * e),
        "noise in proportion to |x|": lambda rng: related(rng, lambda x, e: np.abs(x) * e),
    },
}


def related(rng, function):
    x, noise = rng.normal(size=(2, POINTS, 1))
    return x, function(x, noise)


def null(test, rng):
    return rng.normal(size=(2, POINTS, 1)) if test == "MMD" else related(rng, lambda x, e: e)


def ours(test, key, x, y):
    if test == "MMD":
        return mmd_test(key, KERNEL, x, y, num_permutations=PERMUTATIONS).p_value
    return hsic_test(key, KERNEL, x, KERNEL, y, num_permutations=PERMUTATIONS).p_value


def theirs(test, x, y):
    from hyppo.independence import Hsic
    from hyppo.ksample import MMD

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = (MMD if test == "MMD" else Hsic)(compute_kernel="gaussian", bias=True, gamma=0.5)
        return float(kind.test(x, y, reps=PERMUTATIONS, workers=1, auto=False)[1])


def run(rows):
    for number, test in enumerate(ALTERNATIVES):
        for kind, sample, count in [
            ("null", lambda rng, test=test: null(test, rng), NULLS),
            *((name, sample, POWERS) for name, sample in ALTERNATIVES[test].items()),
        ]:
            for block in range(0, count, BLOCK):
                if rows.has(test=test, kind=kind, block=block):
                    continue
                p, other, seconds = [], [], [0.0, 0.0]
                for seed in range(block, block + BLOCK):
                    rng = np.random.default_rng([number, len(kind), seed])
                    x, y = sample(rng)
                    times = [time.process_time()]
                    p.append(ours(test, jax.random.fold_in(jax.random.key(number), seed), x, y))
                    times.append(time.process_time())
                    if kind != "null":
                        other.append(theirs(test, x, y))
                    times.append(time.process_time())
                    seconds = [s + d for s, d in zip(seconds, np.diff(times))]
                rows.add(test=test, kind=kind, block=block, p=p, other=other, seconds=seconds)
                print(
                    test,
                    kind,
                    block,
                    np.mean(np.array(p) <= 0.05),
                    np.mean(np.array(other) <= 0.05) if other else "",
                    flush=True,
                )


def write(rows):
    lines = []
    for test, alternatives in ALTERNATIVES.items():
        for kind in ("null", *alternatives):
            p, other = (np.concatenate([[], *rows.values(name, test=test, kind=kind)]) for name in ("p", "other"))
            if not len(p):
                continue
            share = lambda values: np.mean(values <= 0.05)  # noqa: E731
            error = np.sqrt(share(p) * (1 - share(p)) / len(p))
            within = abs(share(p) - 0.05) / np.sqrt(0.05 * 0.95 / len(p)) if kind == "null" else ""
            apart = f"{share(p) - share(other):+.3f}" if len(other) else ""
            lines.append([test, kind, len(p), share(p), error, within, share(other) if len(other) else "", apart])
    header = ["test", "law", "data sets", "rejected", "s.e.", "s.e. from .05", "hyppo", "difference"]
    report.save(
        "kernel_tests",
        "Level and power of the permutation tests",
        [("At level .05", report.table(header, lines))],
        {"rows": rows.rows},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default=None)
    kept = report.Rows(parser.parse_args().runs)
    run(kept)
    write(kept)
