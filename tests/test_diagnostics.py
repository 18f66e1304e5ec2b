"""Diagnostics on an engine whose posterior is exact, and on the same engine with planted faults."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme.diagnostics import calibrate, misspecification_test, predictive_check
from numpyro_kme.engines._base import Engine, Result

KEY = jax.random.key(1)
NOISE = 0.7


def noisy(rng_key, theta):
    return theta + NOISE * jax.random.normal(rng_key, theta.shape, jnp.result_type(theta))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


class Conjugate(Engine):
    """Draws from the exact posterior, or from one with a fault."""

    def __init__(self, shift=0.0, widen=1.0, prior=1.0, swap=False):
        super().__init__(model)
        self.shift, self.widen, self.prior, self.swap = shift, widen, prior, swap

    def _infer(self, rng_key, args, kwargs):
        self.problem = kme.Problem.read(self.model, *args, **kwargs)
        x = self.problem.observations["x"]
        precision = self.prior + NOISE**-2
        mean = x * NOISE**-2 / precision + self.shift / np.sqrt(precision)
        draws = mean + self.widen / np.sqrt(precision) * np.asarray(jax.random.normal(rng_key, (200, 2)))
        return Result({"theta": draws[:, ::-1] if self.swap else draws})


def calibrated(number=150, **faults):
    engine = Conjugate(**faults)
    engine.run(KEY, x=np.zeros(2))
    return calibrate(KEY, engine, number, progress_bar=False)


@pytest.fixture(scope="module")
def exact():
    return calibrated()


def test_an_exact_posterior_passes(exact):
    assert exact.p_value > 1e-3
    for share in exact.coverage(0.9).values():
        assert abs(share - 0.9) < 4.5 * np.sqrt(0.09 / 150)
    levels, curves = exact.coverage_curve()
    assert set(curves) == {"theta[0]", "theta[1]", "TARP"}
    assert all(np.max(np.abs(curve - levels)) < 2.2 / np.sqrt(150) for curve in curves.values())
    assert exact.ranks["theta"].shape == (150, 2) and exact.truths["theta"].shape == (150, 2)


@pytest.mark.parametrize("fault", [dict(shift=0.7), dict(widen=2.2), dict(widen=0.5), dict(prior=0.0), dict(swap=True)])
def test_faults_are_flagged(fault):
    assert calibrated(**fault).p_value < 1e-3


def test_p_values_of_null_runs_are_not_small():
    """Ranks of independent uniforms in place of runs: at most a few of 300 below .01."""
    rng = np.random.default_rng(0)
    from numpyro_kme.diagnostics import Calibration

    p = [Calibration({"a": rng.uniform(size=(60, 2))}, rng.uniform(size=60), {}).p_value for _ in range(300)]
    assert np.mean(np.array(p) < 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 300)


def test_calibration_in_arviz_and_in_print(exact, capsys):
    idata = exact.to_inference_data()
    assert idata["prior_sbc"]["theta"].shape == (1, 150, 2)
    exact.print_summary()
    printed = capsys.readouterr().out
    assert "150 data sets" in printed and "theta[1]" in printed and "TARP" in printed


def test_predictive_check():
    engine = Conjugate()
    engine.run(KEY, x=np.array([0.2, 6.0]))
    check = predictive_check(KEY, engine, 150)
    assert check.predicted["x"].shape == (150, 2)
    near, far = check.tail_probabilities()["x"]
    assert near > 0.1 > far
    assert len(np.unique(check.predicted["x"])) == 300
    idata = check.to_inference_data()
    assert idata["posterior_predictive"]["x"].shape == (1, 150, 2)


def test_misspecification_is_a_valid_test(rng):
    """Under the model the p-value is uniform on its grid; far or oddly combined observations are found, and where."""
    draw = lambda n: rng.normal(size=(n, 1)) * np.array([1.0, 1.0, 2.0]) + 0.1 * rng.normal(size=(n, 3))  # noqa: E731
    null = np.array([misspecification_test(draw(99), draw(1)[0]).p_value for _ in range(200)])
    assert abs(np.mean(null <= 0.1) - 0.1) < 4.5 * np.sqrt(0.09 / 200)
    assert abs(null.mean() - 0.505) < 4.5 * np.sqrt(1 / 12 / 200)
    odd = misspecification_test(draw(300), np.array([1.0, -1.0, 2.0]))
    assert odd.p_value < 0.01 and odd.witness.min() > 0.05
    far = misspecification_test(draw(300), np.array([0.0, 9.0, 0.0]))
    assert far.p_value < 0.01 and np.argmin(far.witness) == 1


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda e: calibrate(KEY, e, 1), "`num_datasets` must be at least 2; got 1"),
        (lambda e: predictive_check(KEY, e, 0), "`num_draws` must be at least 1; got 0"),
        (lambda e: misspecification_test(np.zeros((20, 2)), np.zeros(3)), r"got shapes \(20, 2\) and \(3,\)"),
        (lambda e: e.run(KEY, np.zeros(2)) or calibrate(KEY, e, 5), "keyword arguments named like its sites"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    engine = Conjugate()
    engine.run(KEY, x=np.zeros(2))
    with pytest.raises(ValueError, match=sentence):
        call(engine)
