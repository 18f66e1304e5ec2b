"""A few of the random models of `fuzz_models`, and whether it would notice what is wrong."""

from copy import copy

import fuzz_models
import jax
import numpy as np
import numpyro
import pytest
from fuzz_models import PRIORS, Case, outcome


@pytest.mark.slow  # what is wrong is noticed, below
@pytest.mark.parametrize("seed", [4, 5])
def test_a_random_model_is_right_or_refused(seed):
    found = outcome(seed)
    assert found["outcome"] in ("ok", "refused", "warned"), found


QUICK = "Normal", "mixture", "hierarchy"


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PRIORS])
def test_numpy_draws_the_prior_of_the_model(name):
    """Brute force is no oracle if its prior is another one."""
    prior, n = PRIORS[name], 4000

    def draw(key):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(prior.sample, key)).get_trace()
        return {site: message["value"] for site, message in trace.items() if message["type"] == "sample"}

    theirs = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), n))
    ours = prior.draw(np.random.default_rng(2), n)
    assert theirs.keys() == ours.keys()
    for site in ours:
        a, b = (np.arcsinh(np.asarray(draws[site], np.float64)) for draws in (theirs, ours))
        assert a.shape == b.shape
        for f in (lambda v: v, np.square):
            error = np.sqrt((f(a).var(axis=0) + f(b).var(axis=0)) / n)
            assert (np.abs(f(a).mean(axis=0) - f(b).mean(axis=0)) <= 5 * error + 1e-7).all()


def test_brute_force_is_the_conjugate_posterior():
    case = next(
        c
        for c in map(Case, range(500))
        if c.told["prior"] == "Normal" and c.plates == "iid" and not c.bend and not c.extra
    )
    (mean, sd) = case.expected()["theta"]
    precision = 1 / 4.0 + case.scale * case.mask.sum() / case.sd**2
    exact = (0.5 / 4.0 + case.scale * case.x[case.mask].sum() / case.sd[0] ** 2) / precision
    np.testing.assert_allclose(mean, exact, atol=5 * precision[0] ** -0.5 / np.sqrt(300))
    np.testing.assert_allclose(sd, precision[0] ** -0.5, rtol=5 / np.sqrt(2 * 300))


def biased(self):
    """Draws a posterior standard deviation away from the exact mean."""
    return {name: np.repeat((mean + sd)[None], 50, axis=0) for name, (mean, sd) in self.expected().items()}


def counts_once(self):
    """The exact posterior, had the observation not been counted another number of times."""
    once = copy(self)
    once.scale = 1.0
    return {
        name: np.concatenate([(mean - sd)[None], (mean + sd)[None]]) for name, (mean, sd) in once.expected().items()
    }


def fails_in_jax(self):
    return jax.numpy.zeros(3) + jax.numpy.zeros(4)


def fails_in_numpy(self):
    return np.linalg.cholesky(-np.eye(2))


@pytest.mark.parametrize(
    ("run", "kind"), [(biased, "wrong"), (counts_once, "wrong"), (fails_in_jax, "raw"), (fails_in_numpy, "raw")]
)
def test_what_is_wrong_is_noticed(monkeypatch, run, kind):
    monkeypatch.setattr(fuzz_models.Case, "run", run)
    cases = (Case(s) for s in range(500))
    kelfi = (case for case in cases if case.engine == "KELFI" and not case.prior.heavy and np.all(case.mask))
    seed = next(case.seed for case in kelfi if case.scale != 1.0 or run is not counts_once)
    assert outcome(seed)["outcome"] == kind
