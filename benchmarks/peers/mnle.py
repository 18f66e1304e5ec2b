"""A likelihood of choices with reaction times, learnt by this package and by MNLE of sbi from the same trials.

    python -m benchmarks mnle [--trials 10000 100000] [--keys 3]

Parameters of a drift diffusion from the prior, one trial of each. Either likelihood is put beside the exact one at the
same 6,000 points, Student draws around the exact posterior of 150 trials (`trials`, "drift diffusion"), whose weights
give means and standard deviations. Needs `pip install sbi`. Takes five minutes at 10,000 trials, half an
hour at 100,000.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.metrics import normalised
from benchmarks.posteriors.trials import CASES, chain, columns, data, learnt
from numpyro_kme.simulators import drift_diffusion

CASE = CASES["drift diffusion"]
START = {"drift": 0.5, "boundary": 1.3, "start": 0.5, "non_decision": 0.15}


def simulated(number):
    """Parameters `(number, 4)` from the prior, and a trial of each, `[choice, time]`."""
    *keys, key = jax.random.split(jax.random.key(99), 5)
    theta = jnp.stack([p.sample(k, (number,)) for p, k in zip(CASE.priors.values(), keys)], axis=1)
    draw = jax.jit(jax.vmap(lambda k, t: drift_diffusion.trial(k, *t)))
    return np.asarray(theta), np.asarray(draw(jax.random.split(key, number), theta))


def by_kelfi(theta, x):
    """The learnt log likelihood of trials at points."""
    known = kme.fit_likelihood(theta, x, standard_errors=False)
    at = jax.jit(lambda y, t: jnp.sum(kme.KernelMeansLikelihood(known, *t).log_prob(y)))
    return lambda y, points: np.array([float(at(y, point)) for point in jnp.asarray(points)])


def by_mnle(theta, x):
    """The same by the mixed neural likelihood estimation of Boelts et al. (2022), with the defaults of sbi."""
    import torch
    from sbi.inference import MNLE

    torch.manual_seed(0)
    tensor = lambda a: torch.tensor(np.asarray(a), dtype=torch.float32)  # noqa: E731
    estimator = MNLE().append_simulations(tensor(theta), tensor(x[:, ::-1].copy())).train()

    @torch.no_grad()
    def at(y, points):
        trials = tensor(y[:, ::-1].copy())[:, None]
        parts = [tensor(p) for p in np.array_split(points, 20)]
        found = [estimator.log_prob(trials.expand(-1, len(p), -1), condition=p).sum(0) for p in parts]
        return torch.cat(found).numpy().astype(np.float64)

    return at


LEARNT = {"fit_likelihood": by_kelfi, "MNLE of sbi": by_mnle}


def points(key):
    """Points around the exact posterior, `(n, 4)`, and the log of prior over proposal."""
    x = data(CASE, key)
    draws = columns(chain(learnt(CASE, exact=True), jax.random.key(key), x, START, 500, 4000), CASE)
    mean, root = draws.mean(axis=0), np.linalg.cholesky(np.cov(draws.T))
    u = np.random.default_rng(key).standard_t(7, (6000, 4))
    found = mean + 1.7 * u @ root.T
    inside = np.all([p.support(c) for p, c in zip(CASE.priors.values(), found.T)], axis=0)
    found, log_proposal = found[inside], stats.t(7).logpdf(u[inside]).sum(axis=1)
    log_prior = sum(np.asarray(p.log_prob(jnp.asarray(c))) for p, c in zip(CASE.priors.values(), found.T))
    return x, found, log_prior - log_proposal


def measured(by, trials, keys):
    """CPU seconds to learn, and errors of means and ratios of standard deviations for each data set."""
    theta, x = simulated(trials)
    at, _, seconds = report.timed(LEARNT[by], theta, x)
    rows = []
    exact = jax.jit(lambda y, t: jnp.sum(jnp.maximum(drift_diffusion.log_density(y, *t), -1e4)))
    for key in range(keys):
        y, theta, log_ratio = points(key)
        true = np.array([float(exact(y, t)) for t in jnp.asarray(theta)])
        weights = [normalised(log_ratio + log_p) for log_p in (true, at(y, theta))]
        means = [w @ theta for w in weights]
        sds = [np.sqrt(w @ np.square(theta - mean)) for w, mean in zip(weights, means)]
        rows.append({"mean": (means[1] - means[0]) / sds[0], "ratio": sds[1] / sds[0]})
    return {"seconds": seconds, "found": rows}


def main(rows, trials=(10_000, 100_000), keys=3):
    rows.fill(lambda by, trials: measured(by, trials, keys), trials=trials, by=LEARNT)
    lines = []
    for number in trials:
        for name in LEARNT:
            (own,) = rows.of(by=name, trials=number)
            errors = np.abs([one["mean"] for one in own["found"]]).max(axis=1)
            ratios = np.array([one["ratio"] for one in own["found"]])
            spread = f"{ratios.min():.2f} to {ratios.max():.2f}"
            lines.append([f"{number:,}", name, float(np.median(errors)), float(errors.max()), spread, own["seconds"]])
    errors = ["largest error of a mean, sd", "worst data set", "sd ratios"]
    header = ["simulated trials", "learnt by", *errors, "CPU seconds"]
    return "Beside MNLE", [(f"{keys} data sets of 150 choices with reaction times", report.table(header, lines))]
