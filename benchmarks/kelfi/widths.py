"""Whether KELFI's posteriors are as wide as the exact ones where several draws are one vector, and where they are not,
what it warns of.

    python -m benchmarks widths [--problems NAME ...] [--keys 10] [--rows FILE]

Six Cauchy draws as one output, with unknown location, and scale too; six draws of a mixture whose weights follow the
parameter; twenty conjugate normal locations; one conjugate normal location, where nothing is to be warned of. The
engine chooses the rounds, or makes one. Each key has a data set of its own, from the prior. Exact moments are by
quadrature on a grid, and in closed form of normals. Takes half an hour.
"""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import moments, normalised
from benchmarks.helpers.problems import PROBLEMS, normals, of_law

CASES = {
    "Cauchy location": PROBLEMS["six Cauchy draws"],
    "Cauchy location and scale": of_law(
        dist.Normal(jnp.zeros(2), jnp.array([3.0, 1.0])).to_event(1),
        lambda t: dist.Cauchy(t[0], jnp.exp(t[1])).expand([6]).to_event(1),
    ),
    "mixture weights": PROBLEMS["mixture weights"],
    "twenty normal locations": PROBLEMS["twenty dimensions"],
    "one normal location": of_law(normals(1), lambda t: dist.Normal(t, 0.5).to_event(1)),
}
SIZES = {"twenty normal locations": [500]}
NORMAL = ("twenty normal locations", "one normal location")
LOW, HIGH = 0.9, 1.25

WARNINGS = {
    "location": "do not resolve this posterior",
    "half": "depends on which",
    "held out": "Simulations that were held out",
    "tails": "than any simulation is from its own",
    "beyond": "beyond the simulated parameters",
    "probable": "change how probable values",
}


def exact(name, x):
    """Means and standard deviations `(D,)`."""
    problem = CASES[name]
    if name in NORMAL:  # prior variance 1, noise variance 1/4
        return 0.8 * x, np.full(len(x), np.sqrt(0.2))
    sds = np.sqrt(np.asarray(problem.prior.variance))
    axes = [np.linspace(-6.0 * sd, 6.0 * sd, 4001 if len(sds) == 1 else 801) for sd in sds]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    log_p = problem.prior.log_prob(grid) + jax.vmap(lambda theta: problem.log_density(theta, x))(grid)
    p = normalised(np.asarray(log_p, np.float64))
    return np.transpose([moments(p, column) for column in grid.T])


def one(name, size, rounds, key):
    """Ratios of standard deviations, errors of means, and what was warned of, of one run."""
    problem = CASES[name]
    _, x, _ = problem.draw(jax.random.key(1000 + key), 1)
    engine = kme.KELFI(problem.model, size, num_rounds=rounds, progress_bar=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(key), x=x[0].astype(np.float32))
    told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    (mean, sd), draws = exact(name, x[0]), np.asarray(engine.get_samples()["theta"])
    return {
        "ratio": draws.std(axis=0) / sd,
        "error": (draws.mean(axis=0) - mean) / sd,
        "told": told,
    }


def summary(rows, dim):
    """A row of the table: of one parameter, or of twenty together."""
    ratio, error = (np.array([row[part] for row in rows])[:, dim] for part in ("ratio", "error"))
    outside = ((ratio < LOW) | (ratio > HIGH)).reshape(len(rows), -1)
    told = [{short for short, text in WARNINGS.items() if any(text in one for one in row["told"])} for row in rows]
    warned, found = np.array(list(map(bool, told))), {short: sum(short in one for one in told) for short in WARNINGS}
    return {
        "sd ratio": f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})",
        "rms error of the mean": float(np.sqrt(np.mean(np.square(error)))),
        "outside": f"{outside.mean():.0%}",
        "and no warning": f"{(outside & ~warned[:, None]).mean():.0%}",
        "warned of": ", ".join(f"{short} {number}" for short, number in found.items() if number) or "nothing",
    }


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--problems", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--keys", type=int, default=10)
    options, lines = parser.parse_args(), []
    cases = [(name, m) for name in options.problems for m in SIZES.get(name, [300, 1000])]
    for (name, m), rounds in itertools.product(cases, (None, 1)):
        case = dict(problem=name, simulations=m, rounds=rounds)
        for key in range(options.keys):
            if not options.rows.has(**case, key=key):
                options.rows.add(**case, key=key, **one(name, m, rounds, key))
        rows = [row for row in options.rows.of(**case) if row["key"] < options.keys]
        dims = [0, 1] if name.endswith("and scale") else [slice(None)]
        for dim in dims:
            what = f"{name}: {('location', 'log scale')[dim]}" if len(dims) > 1 else name
            begun = {"problem": what, "simulations": m, "rounds": "engine's" if rounds is None else rounds}
            lines.append({**begun, **summary(rows, dim)})
    title = f"{options.keys} keys; ratios over exact standard deviations, median and range; outside {LOW} to {HIGH}"
    report.save("widths", "Widths of posteriors", [(title, report.table_of(lines))])


if __name__ == "__main__":
    main()
