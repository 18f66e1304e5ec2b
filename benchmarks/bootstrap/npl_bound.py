"""The published bound: expected MMD between the truth and posterior draws, well specified, against 2 / sqrt(n).

    python -m benchmarks npl_bound                 # g-and-k, ten data sets of each size

Section 6 of Dellaporta et al. (2022): without outliers and without a prior guess, `E MMD(P*, P_theta) <= 2 / sqrt(n)`
for a kernel with values of at most one, the expectation over data and posterior draws. Takes five minutes of CPU time.
"""

import jax
import numpy as np

from benchmarks.helpers import report
from benchmarks.helpers.npl_models import GK, GK_TRUTH, bootstrap, gk_data, gk_starts, upright
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.losses.mmd import potential
from numpyro_kme.simulators.g_and_k import LENGTH_SCALE

SIZES = (250, 500, 1000, 2000, 4000)
KERNEL = Gaussian(LENGTH_SCALE)
NODES = np.linspace(-6.5, 6.5, 2001)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


def points_at(u):
    """Points of the g-and-k distribution at `u`, of weights `WEIGHTS`."""
    return np.asarray(jax.vmap(lambda z: GK.simulate(u, z))(NODES[:, None]))


def to_truth(u):
    """MMD between the distributions at `u` and at the truth, by quadrature."""
    points = np.concatenate([points_at(u), points_at(GK_TRUTH)])[:, None]
    signed = np.concatenate([WEIGHTS, -WEIGHTS])
    return float(np.sqrt(max(signed @ potential(KERNEL, points, points, signed), 0.0)))


def distances(seed, n, draws, kept):
    """MMD to the truth of the minimum on the data, of the posterior mean, and on average over `kept`
    posterior draws."""
    rng = np.random.default_rng([seed, n])
    bound = MMD(KERNEL).objective(gk_data(rng, 0.0, n), GK)
    found = bootstrap(seed, bound, gk_starts(rng), draws)
    u = upright(found.u)
    return (
        to_truth(upright(found.fit.u[None])[0]),
        to_truth(u.mean(axis=0)),
        np.mean([to_truth(row) for row in u[:kept]]),
    )


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--datasets", type=int, default=10)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--kept", type=int, default=10, help="posterior draws whose MMD is computed")
    arguments = parser.parse_args()
    rows = []
    for n in SIZES:
        each = np.array([distances(seed, n, arguments.draws, arguments.kept) for seed in range(arguments.datasets)])
        rows.append((n, arguments.datasets, *each.mean(axis=0), each[:, 2].std() / len(each) ** 0.5, 2.0 / np.sqrt(n)))
        print(rows[-1], flush=True)
    header = ("n", "data sets", "minimum", "posterior mean", "posterior draws", "se", "2/sqrt(n)")
    sections = [("Mean MMD to the truth", report.table(header, rows))]
    report.save("npl_bound", "Posterior bootstrap, the published bound", sections)
