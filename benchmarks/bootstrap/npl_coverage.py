"""Coverage of the posterior bootstrap by the natural door, beside that of exact minimisers with the same weights.

    python -m benchmarks npl_coverage --rows FILE   # 100 data sets of three models, 100 replicates each
    python -m benchmarks npl_coverage --rows FILE --seconds normal extremes

`--seconds` adds the seconds of 100 replicates of these models, and of 500, which is the default, against those of the
published algorithm in the same run: 1,000 steps of Adam a replicate, on 512 simulated points in float32, timed on 50.

The models are those of `npl_breadth`, without outliers. The exact loss of a replicate is that of the model's density or
probabilities on a grid; Nelder and Mead minimise it from the replicate found and from the truth. Takes half an hour.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy import stats
from scipy.optimize import minimize
from scipy.spatial.distance import pdist

import numpyro_kme as kme
from benchmarks.bootstrap.npl_breadth import CASES, POSITIVE, data, engine_of
from benchmarks.bootstrap.npl_speed import baseline, timed
from benchmarks.helpers import report

LAWS = {
    "normal": lambda y, m, s: stats.norm.pdf(y, m, s),
    "gamma": lambda y, a, b: stats.gamma.pdf(y, a, scale=1.0 / b),
    "Poisson": lambda y, m: stats.poisson.pmf(y, m),
}
CELLS = 400


def grid(name: str, x: np.ndarray) -> np.ndarray:
    """Points on which a law is summed."""
    if name == "Poisson":
        return np.arange(x.max() + 30.0)
    low = 0.0 if name == "gamma" else x.min() - 4.0 * x.std()
    step = (x.max() + 4.0 * x.std() - low) / CELLS
    return low + step * (np.arange(CELLS) + 0.5)


def exact(name: str, x: np.ndarray, weights: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unconstrained minimisers `(R, p)` of the squared MMD for weights `(R, n)`, and the truth."""
    y, scale = grid(name, x), np.median(pdist(x[:, None]))
    kernel, to_data = (np.exp(-0.5 * np.square((y[:, None] - points) / scale)) for points in (y, x))
    positive = np.array([prior.support == POSITIVE.support for prior in CASES[name].priors.values()])
    cell = 1.0 if name == "Poisson" else y[1] - y[0]

    def loss(v, pull):
        with np.errstate(all="ignore"):
            p = cell * LAWS[name](y, *np.where(positive, np.exp(v), v))
        return 1e3 * (p @ kernel @ p - 2.0 * p @ pull) if np.isfinite(p).all() else 1e4

    truth = np.where(positive, np.log(np.abs(CASES[name].truth)), CASES[name].truth)
    found = []
    for pull, start in zip((to_data @ weights.T).T, starts):
        ends = []
        for first in (start, truth):
            corners = np.array([first, *(first + 0.1 * np.eye(len(first)))])
            options = {"xatol": 1e-5, "fatol": 1e-9, "initial_simplex": corners}
            ends.append(minimize(loss, first, (pull,), method="Nelder-Mead", options=options))
        found.append(min(ends, key=lambda one: one.fun).x)
    return np.array(found), truth


def measure(name: str, seed: int) -> dict:
    """One data set: what covers the truth, and how far replicates are from the exact minimisers."""
    x = np.asarray(data(CASES[name], 0.0, 1000 + seed), np.float64)
    engine, _ = engine_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine.run(jax.random.key(seed), x)
    found = engine.replicates
    best, truth = exact(name, x, found.reweightings.weights, found.u)
    intervals = (np.quantile(u, [0.05, 0.95], axis=0) for u in (found.u, best))
    own, exactly = (((low <= truth) & (truth <= high)).tolist() for low, high in intervals)
    apart = np.sqrt(np.mean(np.square(found.u - best), axis=0)) / best.std(axis=0)
    return {"own": own, "exact": exactly, "apart": apart.tolist(), "converged": float(found.converged.mean())}


def seconds(name: str) -> dict:
    """Of 100 replicates by the engine, first and later, of 500, and of one by the published algorithm."""
    case = CASES[name]
    engine, given = engine_of(name)
    x = [data(case, 0.0, 2000 + seed) for seed in range(4)]
    first, *later = (timed(lambda one=one: engine.run(jax.random.key(0), one, **given))[0] for one in x)
    many, _ = engine_of(name, 500)
    _, *of_many = (timed(lambda one=one: many.run(jax.random.key(0), one, **given))[0] for one in x)
    maps = [dist.biject_to(prior.support) for prior in case.priors.values()]
    start = [float(t.inv(value)) for t, value in zip(maps, case.truth)]
    points = x[1].reshape(len(x[1]), -1)
    if given:  # pairs of a covariate and a response: the kernel compares both
        lifted = kme.lift_noise(case.simulate, np.array(case.truth), case.covariate[0])
        points = np.column_stack([case.covariate, points])
    else:
        lifted = kme.lift_noise(case.simulate, *case.truth)
    noise = np.random.default_rng(0).normal(size=(512, lifted.dim))
    if given:
        noise = np.column_stack([noise, np.resize(case.covariate, 512)])

    def simulate(u, z):
        params = [t(one) for t, one in zip(maps, u)]
        if given:
            return jnp.stack([z[-1], lifted(z[:-1], jnp.stack(params), z[-1])])
        return lifted(z, *params)

    scale = float(np.median(pdist(points)))
    published = baseline(simulate, scale, np.squeeze(points), noise, start, 50, "float32", 3)[0]
    return {"first": first, "later": min(later), "of 500": min(of_many), "published": published}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--data-sets", type=int, default=100)
    parser.add_argument("--models", nargs="+", default=list(LAWS), choices=list(LAWS))
    parser.add_argument("--seconds", nargs="*", default=[], choices=list(CASES), metavar="MODEL")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        for seed in range(arguments.data_sets):
            arguments.rows.get(partial(measure, name, seed), model=name, seed=seed)
        runs = arguments.rows.values("found", model=name, seconds=None)
        own, exactly, apart = (np.array([run[key] for run in runs], float) for key in ("own", "exact", "apart"))
        covered = (" / ".join(f"{c:.2f}" for c in of.mean(axis=0)) for of in (own, exactly))
        rows.append(
            (name, len(runs), np.mean([run["converged"] for run in runs]), *covered, np.median(apart.max(axis=1)))
        )
    header = ("model", "data sets", "converged", "coverage of 90 % intervals", "of exact minimisers")
    header += ("replicates from exact ones (sd, rms), median",)
    sections = [("Clean data", report.table(header, rows))]
    if arguments.seconds:
        times = {
            name: arguments.rows.get(partial(seconds, name), model=name, seconds=True) for name in arguments.seconds
        }
        rows = [
            (name, *t.values(), 100.0 * t["published"] / t["later"], 500.0 * t["published"] / t["of 500"])
            for name, t in times.items()
        ]
        header = (
            "model",
            "100 replicates, first run, s",
            "least of three later runs, s",
            "500 replicates, the same, s",
            "published, s a replicate",
            "times faster with 100",
            "with 500",
        )
        sections.append(("Against 1,000 Adam steps a replicate", report.table(header, rows)))
    report.write("npl_coverage", "Coverage of the posterior bootstrap", sections)
