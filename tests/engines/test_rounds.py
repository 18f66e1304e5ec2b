"""Rounds of simulations: against an exact posterior, and what is proposed, kept, stopped and refused."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import numpyro_kme as kme
from numpyro_kme import engines

pytestmark = pytest.mark.filterwarnings("ignore:The posterior mean of .* may be off by")  # of so few simulations
FAR, NOISE = 2.0, 0.1
EXACT = stats.norm(FAR / (1 + NOISE**2), NOISE / np.sqrt(1 + NOISE**2))


def location(noise):
    """A model of one draw from `N(theta, noise^2)`."""

    def shifted(rng_key, theta):
        return theta + noise * jax.random.normal(rng_key, (1,), jnp.result_type(theta))

    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(shifted, theta), obs=x)

    return model


narrow, wide = location(NOISE), location(3.0)
"""A posterior that few prior draws come near, two prior standard deviations away and ten times narrower; and one that
is nearly the prior."""
BANK = kme.Simulations.from_table(np.zeros((5, 1)), np.zeros((5, 1)))


def run(num_simulations=60, seed=3, **settings):
    engine = kme.KELFI(narrow, num_simulations, standard_errors=False, progress_bar=False, **settings)
    engine.run(jax.random.key(seed), x=np.array([FAR]))
    return engine


@pytest.fixture(scope="module")
def rounds():
    return run(num_rounds=3)


def beside_a_constant(rng_key, theta):
    return jnp.append(theta + NOISE * jax.random.normal(rng_key), 3.0)


def test_a_constant_statistic_is_told_once():
    def model(x):
        numpyro.sample("x", kme.Simulator(beside_a_constant, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)

    engine = kme.KELFI(model, 60, num_rounds=3, standard_errors=False, progress_bar=False)
    with pytest.warns(UserWarning, match=r"Statistics \[1\] are constant") as caught:
        engine.run(jax.random.key(0), x=np.array([FAR, 3.0]))
    assert sum("constant" in str(one.message) for one in caught) == 1


@pytest.mark.filterwarnings("ignore:.*lie beyond")
def test_far_data_are_told_once(monkeypatch):
    """Rounds after which simulations end elsewhere, and what all of them will take."""
    monkeypatch.setattr(engines.kelfi, "time", SimpleNamespace(monotonic=itertools.count(0.0, 5.0).__next__))
    said: list[str] = []
    monkeypatch.setattr(engines.kelfi.progress, "say", lambda line, shown: said.append(line))
    engine = kme.KELFI(narrow, 60, num_rounds=3, standard_errors=False, progress_bar=False)
    with pytest.warns(UserWarning, match="far outside") as caught:
        engine.run(jax.random.key(3), x=np.array([60.0]))
    assert sum("far outside" in str(one.message) for one in caught) == 1
    assert "the first of 3 rounds took 5 s, and all will take about 10 to 60 s" in said[1]


def test_every_simulation_is_kept_and_its_origin_told(rounds):
    bank = rounds.posterior.simulations
    assert len(bank) == 60 and bank.proposed == 40
    np.testing.assert_array_equal(bank.index, np.arange(60))
    near = np.abs(bank.latents["theta"] - FAR) < 5 * NOISE
    assert near[:20].sum() < 5 and near[40:].sum() > 10
    np.testing.assert_allclose(bank.x["x"][:, 0], bank.latents["theta"], atol=6 * NOISE)
    assert len(np.unique(bank.x["x"][:, 0] - bank.latents["theta"])) == 60
    idata = rounds.to_inference_data()
    assert idata["prior"]["theta"].shape == (1, 20) and idata["proposal"]["theta"].shape == (1, 40)
    assert idata["proposal_predictive"]["x"].shape == (1, 40, 1)
    lines = kme.plots.rounds(rounds).axes[0].lines
    assert [len(line.get_xdata()) for line in lines if line.get_marker() == "."] == [20, 20, 20]


def checked_at_once(engine, monkeypatch):
    """`check`, without time to simulate."""
    monkeypatch.delattr("numpyro_kme.diagnostics.checks.predictive_check")
    kme.diagnostics.check(jax.random.key(4), engine, num_datasets=10)


def test_the_engine_chooses_rounds_where_the_posterior_is_narrow(monkeypatch):
    """Five rounds, whose likelihood is for one observation, or as many prior draws, which serve all."""
    near, everywhere = (kme.KELFI(one, 100, progress_bar=False) for one in (narrow, wide))
    near.run(jax.random.key(3), x=np.array([1.0]))
    draws, mean = near.get_samples()["theta"], 0.5 * EXACT.mean()
    assert abs(draws.mean() - mean) < EXACT.std() and abs(np.log(draws.std() / EXACT.std())) < np.log(2.0)
    assert near.posterior.simulations.proposed == 80 and "simulations 20, 20, 20, 20, 20" in near.info["rounds"]
    everywhere.run(jax.random.key(3), x=np.array([FAR]))
    assert everywhere.posterior.simulations.proposed == 0 and len(everywhere.posterior.simulations) == 100
    assert len(np.unique(everywhere.posterior.simulations.latents["theta"])) == 100
    everywhere.condition(jax.random.key(4), x=np.array([0.0]))
    assert everywhere.info["rounds"] == "simulations 20, 80"
    near.refine(jax.random.key(5), {"theta": np.linspace(0.5, 1.5, 20)})  # which makes it serve no more than it did
    for use in (
        lambda: near.condition(jax.random.key(4), x=np.array([0.0])),
        lambda: checked_at_once(near, monkeypatch),
        lambda: kme.diagnostics.calibrate(jax.random.key(4), near, num_datasets=10),
    ):
        with pytest.raises(ValueError, match="100 simulations were made where that posterior is"):
            use()


def test_simulations_of_rounds_are_warned_of_where_another_observation_is_given(rounds, tmp_path, recwarn):
    """Kept in a file, too; not for the same observation, nor where some of it is missing."""
    rounds.posterior.simulations.save(tmp_path / "simulations.kme")
    loaded = kme.Simulations.load(tmp_path / "simulations.kme")
    again = kme.KELFI(narrow, simulations=loaded, progress_bar=False)
    again.run(jax.random.key(4), x=np.array([FAR]))
    loaded.warn_unless_near({"x": np.array([np.nan])})
    said = "Of the 60 `simulations` 40 were made in rounds near the posterior of the observation"
    assert not [w for w in recwarn if said in str(w.message)]
    with pytest.warns(UserWarning, match=said):
        again.run(jax.random.key(4), x=np.array([0.5]))
    for other in (np.array([0.5]), np.zeros(2)):
        with pytest.warns(UserWarning, match="now site 'x' has"):
            loaded.warn_unless_near({"x": other})


@pytest.mark.parametrize(
    "settings, rounds",
    [
        ({}, 5),
        (dict(num_rounds=2), 2),
        (dict(form=kme.ResidualKernelMeans()), 5),
        (dict(form=kme.KernelMeans()), 1),
        (dict(num_simulations=99), 1),
        (dict(store="somewhere"), 1),
        (dict(simulations=BANK), 1),
    ],
)
def test_how_many_rounds_the_engine_makes(settings, rounds):
    assert kme.KELFI(narrow, **settings).resolved_rounds == rounds


def test_refining_adds_simulations_where_asked():
    """From 20 to 40, whose programs the first two rounds have compiled."""
    engine = kme.KELFI(narrow, 20, standard_errors=False, progress_bar=False)
    engine.run(jax.random.key(3), x=np.array([0.5]))
    engine.refine(jax.random.key(5), {"theta": np.linspace(0.3, 0.7, 20)})
    assert len(engine.posterior.simulations) == 40
    np.testing.assert_allclose(engine.posterior.simulations.latents["theta"][20:], np.linspace(0.3, 0.7, 20), rtol=1e-6)
    with pytest.raises(ValueError, match="latents"):
        engine.refine(jax.random.key(5), {"wrong": np.zeros(3)})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The observation lies far outside all simulations")
def test_rounds_by_the_variance_of_the_surrogate():
    engine = run(num_rounds=2, form=kme.KernelMeans(), proposal=kme.FromVariance())
    assert len(engine.posterior.simulations) == 60


def test_from_variance_goes_where_the_surrogate_is_unsure():
    draws = {"theta": np.linspace(-1.0, 1.0, 400)}
    variance = lambda latents: np.square(latents["theta"]) ** 4  # noqa: E731
    chosen = kme.FromVariance(candidates=8).choose(jax.random.key(0), draws, variance, 50)["theta"]
    assert len(np.unique(chosen)) == 50 and np.mean(np.abs(chosen)) > 0.7


def test_bad_settings_are_refused():
    for settings, named in [
        (dict(num_rounds=0), "num_rounds"),
        (dict(num_rounds=40), "num_rounds"),
        (dict(proposal="posterior"), "proposal"),
        (dict(proposal=kme.FromVariance()), "needs a variance, form=KernelMeans"),
    ]:
        with pytest.raises((ValueError, TypeError), match=named):
            kme.KELFI(narrow, 60, **settings)
    with pytest.raises(ValueError, match="power"):
        kme.FromPosterior(power=0.0)
    with pytest.raises(ValueError, match="simulations of one model"):
        BANK.joined(kme.Simulations.from_table(np.zeros((5, 1)), np.zeros((5, 1)), site="other"))
