"""Cost of learning, in dense float64 Cholesky factorisations of the size of the bank.

    python benchmarks/learning_cost.py [--simulations 300,1000]

Ten parameters and ten statistics, linear with curvature. CPU time of the whole process, for the second of two fits, so that
compilation is apart; the Choleskys are timed between the two. Writes `results/learning_cost.md` and `.json`.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import report

import numpyro_kme as kme

DIM, STATISTICS = 10, 10


def bank(rng, size):
    """Coordinates `(m, 10)` and statistics `(m, 10)`."""
    z = rng.normal(size=(size, DIM))
    mixing = rng.normal(size=(DIM, STATISTICS)) / np.sqrt(DIM)
    return z, z @ mixing + 0.2 * np.square(z) + 0.5 * rng.normal(size=(size, STATISTICS))


def cholesky_seconds(size, repeats=20):
    """CPU seconds of one factorisation."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(size, DIM)))
        gram = jnp.exp(-0.05 * jnp.sum(jnp.square(x[:, None] - x[None]), -1)) + jnp.eye(size)
        factorise = jax.jit(jnp.linalg.cholesky)
        factorise(gram).block_until_ready()
        begun = time.process_time()
        for _ in range(repeats):
            factorise(gram).block_until_ready()
        return (time.process_time() - begun) / repeats


def main(sizes):
    rows = []
    for size in sizes:
        for name, form in FORMS.items():
            spent = []
            for seed in range(2):
                z, x = bank(np.random.default_rng(seed), size)
                begun = time.process_time(), time.perf_counter()
                surrogate = form.fit(z, x)
                spent.append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
                unit = cholesky_seconds(size)
            learnt = getattr(surrogate, "learnt", None)
            evaluations = "" if learnt is None else " + ".join(map(str, learnt.evaluations))
            rows.append([name, size, spent[1][0], unit, spent[1][0] / unit, evaluations, spent[0][1] - spent[1][1]])
            print(*rows[-1], flush=True)
    header = [
        "form",
        "m",
        "CPU s to learn",
        "CPU s a Cholesky",
        "Choleskys",
        "evaluations, subset + all",
        "compilation, s",
    ]
    report.save(
        "learning_cost",
        "Cost of learning",
        [("Ten parameters, ten statistics", report.table(header, rows))],
        {"rows": rows},
    )


FORMS = {
    "published, leave-one-out": kme.KernelMeans(),
    "residual": kme.ResidualKernelMeans(),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=lambda text: [int(n) for n in text.split(",")], default=[300, 1000])
    main(parser.parse_args().simulations)
