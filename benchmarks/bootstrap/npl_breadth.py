"""The posterior bootstrap by the natural door: ordinary models written as `fn(rng_key, *params)`, default settings.

    python -m benchmarks npl_breadth --rows FILE   # 20 data sets of each, with 0 and 10 % outliers
    python -m benchmarks npl_breadth --models Poisson Ricker --data-sets 5

Exact minimisers of the full data, for five data sets of scalars and two of vectors: Nelder and Mead on the squared MMD
of points simulated with SciPy's quantile functions, 2,048 for scalars and 4,096 for vectors, by sums of kernel values.
Takes an hour or two.
"""

import time
import warnings
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats
from scipy.optimize import minimize
from scipy.spatial.distance import cdist, pdist

import numpyro_kme as kme
from benchmarks.helpers import report

R = jax.random
SIZE, POINTS, EXACT = 400, (2048, 4096), (5, 2)
"""Numbers of data, of simulated points of the exact minimiser, and of data sets for which it is found, of scalars and
of vectors."""


@dataclass(frozen=True)
class Case:
    """A model: its simulator, priors, truth, and the same law from uniforms `(m, k)` by NumPy and SciPy; the covariate
    of each datum, if there is one, is a last argument of both."""

    simulate: object
    priors: dict
    truth: tuple
    uniforms: int
    quantile: object
    covariate: np.ndarray | None = None


def correlated(rng_key, a, b, r):
    z = R.normal(rng_key, (2,))
    return jnp.stack([a + z[0], b + r * z[0] + jnp.sqrt(1 - r**2) * z[1]])


def correlated_by_scipy(u, a, b, r):
    z = special.ndtri(u)
    return np.stack([a + z[:, 0], b + r * z[:, 0] + np.sqrt(1 - r**2) * z[:, 1]], axis=1)


def mixture(rng_key, p, a, b):
    first, second = R.split(rng_key)
    return jnp.where(R.uniform(first) < p, a, a + b) * R.exponential(second)


def extremes(rng_key, a, width):
    u = a + width * R.uniform(rng_key, (5,))
    return jnp.stack([u.min(), u.max()])


def ar1(rng_key, phi, sd):
    def step(x, rng_key):
        x = phi * x + sd * R.normal(rng_key)
        return x, x

    return jax.lax.scan(step, 0.0, R.split(rng_key, 5))[1]


def ar1_by_scipy(u, phi, sd):
    x, path = 0.0, []
    for z in special.ndtri(u).T:
        x = phi * x + sd * z
        path.append(x)
    return np.stack(path, axis=1)


def negative_binomial(rng_key, mean, size):
    first, second = R.split(rng_key)
    return R.poisson(second, mean * R.gamma(first, size) / size)


def ricker(rng_key, log_r, sd):
    def step(n, rng_key):
        n = n * jnp.exp(log_r - n + sd * R.normal(rng_key))
        return n, n

    return jax.lax.scan(step, 1.0, R.split(rng_key, 4))[1]


def ricker_by_scipy(u, log_r, sd):
    n, path = 1.0, []
    for z in special.ndtri(u).T:
        n = n * np.exp(log_r - n + sd * z)
        path.append(n)
    return np.stack(path, axis=1)


def growth_curve(t, top, rate, by=np):
    """Logistic growth from a tenth of the top."""
    return top / (1.0 + 9.0 * by.exp(-rate * t))


def growth(rng_key, theta, t):
    return growth_curve(t, theta[0], theta[1], jnp) + theta[2] * R.normal(rng_key)


ANY, POSITIVE, CORRELATION = dist.Normal(0.0, 3.0), dist.LogNormal(0.0, 1.0), dist.Uniform(-1.0, 1.0)
CASES = {
    "normal": Case(
        lambda k, m, s: m + s * R.normal(k),
        {"m": ANY, "s": POSITIVE},
        (1.0, 2.0),
        1,
        lambda u, m, s: m + s * special.ndtri(u),
    ),
    "correlated normal": Case(
        correlated, {"a": ANY, "b": ANY, "r": CORRELATION}, (1.0, -1.0, 0.6), 2, correlated_by_scipy
    ),
    "gamma": Case(
        lambda k, a, b: R.gamma(k, a) / b,
        {"a": POSITIVE, "b": POSITIVE},
        (2.0, 1.0),
        1,
        lambda u, a, b: special.gammaincinv(a, u) / b,
    ),
    "lognormal": Case(
        lambda k, m, s: jnp.exp(m + s * R.normal(k)),
        {"m": ANY, "s": POSITIVE},
        (0.5, 0.7),
        1,
        lambda u, m, s: np.exp(m + s * special.ndtri(u)),
    ),
    "Student t": Case(
        lambda k, m, s: m + s * R.t(k, 4.0),
        {"m": ANY, "s": POSITIVE},
        (1.0, 2.0),
        1,
        lambda u, m, s: m + s * special.stdtrit(4.0, u),
    ),
    "mixture of exponentials": Case(
        mixture,
        {"p": dist.Uniform(0.0, 1.0), "a": POSITIVE, "b": POSITIVE},
        (0.4, 0.5, 3.0),
        2,
        lambda u, p, a, b: np.where(u[:, :1] < p, a, a + b) * -np.log1p(-u[:, 1:]),
    ),
    "extremes": Case(
        extremes,
        {"a": ANY, "width": POSITIVE},
        (1.0, 2.0),
        5,
        lambda u, a, width: a + width * np.stack([u.min(axis=1), u.max(axis=1)], axis=1),
    ),
    "AR(1)": Case(ar1, {"phi": CORRELATION, "sd": POSITIVE}, (0.6, 1.0), 5, ar1_by_scipy),
    "Poisson": Case(
        lambda k, mean: R.poisson(k, mean),
        {"mean": dist.LogNormal(1.0, 1.0)},
        (4.0,),
        1,
        lambda u, m: stats.poisson.ppf(u, m),
    ),
    "negative binomial": Case(
        negative_binomial,
        {"mean": dist.LogNormal(1.0, 1.0), "size": POSITIVE},
        (4.0, 2.0),
        1,
        lambda u, m, c: stats.nbinom.ppf(u, c, c / (c + m)),
    ),
    "Ricker": Case(
        ricker, {"log_r": dist.Uniform(0.0, 3.0), "sd": dist.LogNormal(-1.0, 1.0)}, (1.5, 0.3), 4, ricker_by_scipy
    ),
    "growth curve": Case(
        growth,
        {"top": POSITIVE, "rate": POSITIVE, "sd": POSITIVE},
        (5.0, 1.0, 0.5),
        1,
        lambda u, top, rate, sd, t: growth_curve(t, top, rate) + sd * special.ndtri(u[:, 0]),
        np.linspace(0.0, 6.0, SIZE),
    ),
}


def model(case: Case, x, t=None):
    params = [numpyro.sample(name, prior) for name, prior in case.priors.items()]
    with numpyro.plate("n", len(x)):
        if t is None:
            simulator = kme.Simulator(case.simulate, *params)
        else:
            simulator = kme.Simulator(case.simulate, jnp.stack(params), t, event_dims=(1, 0))
        numpyro.sample("x", simulator, obs=x)


MODELS = {name: partial(model, case) for name, case in CASES.items()}


def data(case: Case, outliers: float, seed: int) -> np.ndarray:
    """Data, of which so many lie ten of their standard deviations above the largest."""
    rng = np.random.default_rng([21, seed])
    given = () if case.covariate is None else (case.covariate,)
    x = np.asarray(case.quantile(rng.random((SIZE, case.uniforms)), *case.truth, *given), np.float64).reshape(SIZE, -1)
    far = rng.random(SIZE) < outliers
    x[far] = x.max(axis=0) + 10.0 * np.round(x.std(axis=0), 3) + np.round(rng.normal(size=(far.sum(), 1)))
    return x[:, 0] if x.shape[1] == 1 else x


def exact(case: Case, x: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Parameters at the least squared MMD of the data, from the truth and from a start; with a covariate by integrals
    of the kernel over the normal noise."""
    x = x.reshape(SIZE, -1)
    scale = np.median(pdist(x))
    if case.covariate is not None:
        t = case.covariate[:, None]
        near = np.exp(-0.5 * cdist(t, t, "sqeuclidean") / np.median(pdist(t)) ** 2)
    u = stats.qmc.Sobol(case.uniforms, seed=1).random(POINTS[x.shape[1] > 1])
    maps = [dist.biject_to(prior.support) for prior in case.priors.values()]

    def constrained(v):
        return [float(np.asarray(t(np.float64(one)))) for t, one in zip(maps, v)]

    def smoothed(squares, variance):
        square = scale**2 + variance
        return scale / np.sqrt(square) * np.exp(-0.5 * squares / square)

    def of_pairs(v):
        top, rate, sd = constrained(v)
        mean = growth_curve(t, top, rate)
        own = near * smoothed(cdist(mean, mean, "sqeuclidean"), 2.0 * sd**2)
        cross = near * smoothed(cdist(x, mean, "sqeuclidean"), sd**2)
        return 1e3 * (own.mean() - 2.0 * cross.mean())

    def loss(v):
        if case.covariate is not None:
            return of_pairs(v)
        y = np.asarray(case.quantile(u, *constrained(v)), np.float64).reshape(len(u), -1)
        if not np.isfinite(y).all():
            return 1e4
        own, cross = (
            np.exp(-0.5 * pairs / scale**2) for pairs in (pdist(y, "sqeuclidean"), cdist(x, y, "sqeuclidean"))
        )
        return 1e3 * ((1.0 + 2.0 * own.sum() / len(y)) / len(y) - 2.0 * cross.mean())

    starts = [[float(t.inv(np.float64(one))) for t, one in zip(maps, p)] for p in (case.truth, start)]
    options = {"xatol": 1e-4, "fatol": 1e-8}
    corners = [np.array([v, *(v + 0.1 * np.eye(len(v)))]) for v in starts]
    found = [minimize(loss, v[0], method="Nelder-Mead", options=options | {"initial_simplex": v}) for v in corners]
    return np.array(constrained(min(found, key=lambda one: one.fun).x))


def engine_of(name: str, num_samples: int = 100) -> tuple[kme.PosteriorBootstrap, dict]:
    """With default settings but for the number of replicates, and what its model is given beside data."""
    given = {} if CASES[name].covariate is None else {"t": CASES[name].covariate}
    covariates = "t" if given else None
    return kme.PosteriorBootstrap(
        MODELS[name], num_samples=num_samples, progress_bar=False, covariates=covariates
    ), given


def measure(name: str, outliers: float, seed: int) -> dict:
    """One data set."""
    case, x = CASES[name], data(CASES[name], outliers, seed)
    engine, given = engine_of(name)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(R.key(seed), x, **given)
    seconds = time.perf_counter() - began
    draws = np.stack([engine.get_samples()[latent] for latent in case.priors], axis=1)
    found = {
        "noise": engine.info["noise"],
        "converged": float(engine.replicates.converged.mean()),
        "simulation noise": float(engine.replicates.quadrature.noise),
        "seconds": seconds,
        "mean": draws.mean(axis=0).tolist(),
        "sd": draws.std(axis=0).tolist(),
        "covers": [bool(lo <= t <= hi) for (lo, hi), t in zip(np.quantile(draws, [0.05, 0.95], axis=0).T, case.truth)],
        "warned": [str(w.message)[:80] for w in caught if w.category is UserWarning],
    }
    if seed < EXACT[x.ndim > 1]:
        found["exact"] = exact(case, x, draws.mean(axis=0)).tolist()
    return found


def row(name: str, outliers: float, found: list[dict]) -> tuple:
    """A line of the table: shifts in posterior standard deviations, the largest parameter's."""
    known = [one for one in found if "exact" in one]
    apart = np.array([(np.array(one["mean"]) - one["exact"]) / one["sd"] for one in known])
    noise = [one["simulation noise"] for one in found]
    return (
        name,
        outliers,
        len(found),
        np.mean([one["converged"] for one in found]),
        np.median(noise),
        np.max(noise),
        np.abs(apart.mean(axis=0)).max(),
        np.sqrt(np.mean(np.square(apart), axis=0)).max(),
        " / ".join(f"{c:.2f}" for c in np.mean([one["covers"] for one in found], axis=0)),
        found[0]["seconds"],
        np.median([one["seconds"] for one in found[1:]]),
        found[0]["noise"].removeprefix("noise: "),
    )


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--outliers", type=float, nargs="+", default=[0.0, 0.1])
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        for outliers in arguments.outliers:
            for seed in range(arguments.data_sets):
                arguments.rows.get(partial(measure, name, outliers, seed), model=name, outliers=outliers, seed=seed)
            rows.append(row(name, outliers, arguments.rows.values("found", model=name, outliers=outliers)))
    header = ("model", "outliers", "data sets", "converged", "simulation noise (sd), median", "largest")
    header += ("mean shift from the exact minimiser (sd)", "rms", "coverage of 90 % intervals", "first run, s")
    header += ("later runs, s", "noise")
    report.write(
        "npl_breadth",
        "Posterior bootstrap by the natural door",
        [("Floors: converged 0.95, noise 0.1 sd, shift 0.35 sd", report.table(header, rows))],
    )
