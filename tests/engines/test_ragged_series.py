"""Series of any length by their signatures, and values at irregular times by `GaussianProcessPath` in the published
form, from the model to the posterior."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_kme import KELFI, KernelABC, KernelMeans, Simulator
from numpyro_kme.kernels import Gaussian, GaussianProcessPath, SignatureRule, WithLength, pad
from numpyro_kme.likelihoods import KernelStatistics
from numpyro_kme.likelihoods.published.learning import Hyperparameters

LONGEST = 12
TIMES = np.arange(1, LONGEST + 1) / 4.0


def around_a_line(rng, slope, n):
    return slope * TIMES[:n] + rng.normal(size=n)


def line(rng, slope):
    return around_a_line(rng, slope, rng.integers(6, LONGEST + 1))


def line_model(x=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(line, slope, shape=LONGEST, dtype=float, ragged=True), obs=x)


def exact_slope(x):
    seen = ~np.isnan(x)
    times, x = TIMES[: len(x)][seen], x[seen]
    precision = 1.0 + times @ times
    return times @ x / precision, precision**-0.5


def with_gaps(n, gaps, seed=0):
    x = around_a_line(np.random.default_rng(seed), 0.8, n)
    x[list(gaps)] = np.nan
    return x


@pytest.fixture(scope="module")
def lost_weeks():
    form = KernelStatistics(SignatureRule(level=2))
    kelfi = KELFI(line_model, 250, form=form, progress_bar=False)
    kelfi.run(jax.random.key(0), x=with_gaps(11, (3, 8, 9)))
    return kelfi


def test_weeks_that_the_observation_lacks_are_left_out_of_the_simulations(lost_weeks):
    """The last two values say most: taken for those of weeks 8 and 9, they would say a slope that is far off."""
    mean, deviation = exact_slope(with_gaps(11, (3, 8, 9)))
    draws = lost_weeks.get_samples()["slope"]
    assert abs(draws.mean() - mean) < 1.2 * deviation
    assert 0.7 < draws.std() / deviation < 1.8
    info = lost_weeks.info
    assert info["rows left out"].startswith("3, 8, 9,") and info["lengths"].startswith("5 to 9")
    assert "missing" not in info


def test_the_same_weeks_may_be_missing_elsewhere_and_no_others(lost_weeks):
    other = with_gaps(9, (3, 8)[:1], seed=1)
    draws = lost_weeks.condition(jax.random.key(1), x=other).get_samples()["slope"]
    mean, deviation = exact_slope(np.where(np.isin(np.arange(9), (3, 8)), np.nan, other))
    assert abs(draws.mean() - mean) < 1.5 * deviation
    with pytest.raises(ValueError, match=r"lacks numbers of its rows \[3, 5\], .* without the rows \[3, 8, 9\]"):
        lost_weeks.condition(jax.random.key(1), x=with_gaps(11, (3, 5)))


@pytest.mark.filterwarnings("ignore:.*may be off by")
def test_many_series_and_nuts_lack_the_same_weeks(lost_weeks, tmp_path):
    x = with_gaps(11, (3, 8, 9))
    many = lost_weeks.condition_many(jax.random.key(4), {"x": np.stack([pad(x, LONGEST)] * 2)})
    one = lost_weeks.condition(jax.random.fold_in(jax.random.key(4), 1), x=x)
    np.testing.assert_array_equal(many.get_samples()["slope"][1], one.get_samples()["slope"])
    fitted = lost_weeks.likelihoods["x"]
    fitted.save(tmp_path / "kept.kme")
    again = type(fitted).load(tmp_path / "kept.kme")
    assert again.surrogate.statistics.gaps == (3, 8, 9)
    values = [float(f(0.5).log_prob(pad(x, LONGEST))) for f in (fitted, again)]
    assert values[0] == values[1] and np.isfinite(values[0])


def test_lost_weeks_that_cannot_be_left_out_are_refused():
    x = with_gaps(11, (3,))
    with pytest.raises(ValueError, match=r"1 entries that are NaN before its end .* KernelABC cannot leave out"):
        KernelABC(line_model, 60, kernel=SignatureRule(), progress_bar=False).run(jax.random.key(0), x=x)

    def several(x=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("series", 2):
            numpyro.sample("x", Simulator(line, slope, shape=LONGEST, dtype=float, ragged=True), obs=x)

    form = KernelStatistics(SignatureRule(level=2))
    with pytest.raises(ValueError, match="one likelihood for all draws along plates cannot leave out"):
        KELFI(several, 60, form=form, progress_bar=False).run(jax.random.key(0), x=np.stack([pad(x, LONGEST)] * 2))


MOST, NOISE = 10, 0.3
KERNEL = GaussianProcessPath(1.0 * Gaussian(2.0), 0.25)
LENGTHS = WithLength(KERNEL, 0.5)
BETA, RIDGE = np.array([0.3]), 0.05


def path(rng, amplitude, n):
    times = np.sort(rng.uniform(0.0, 6.0, n))
    return np.column_stack([times, amplitude * np.sin(times) + NOISE * rng.normal(size=n)])


def simulator(rng, amplitude):
    return path(rng, amplitude, rng.integers(4, MOST + 1))


def path_model(x=None):
    amplitude = numpyro.sample("amplitude", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(simulator, amplitude, shape=(MOST, 2), dtype=float, ragged=True), obs=x)


def exact_amplitude(x):
    waves = np.sin(x[:, 0])
    precision = 1.0 + waves @ waves / NOISE**2
    return waves @ x[:, 1] / NOISE**2 / precision, precision**-0.5


OBSERVED = path(np.random.default_rng(1), 0.7, 8)


@pytest.fixture(scope="module")
def kelfi():
    """Hyperparameters about as they are learnt; learning takes a minute."""
    known = Hyperparameters(Gaussian(BETA), LENGTHS, np.array(RIDGE))
    engine = KELFI(path_model, 500, form=KernelMeans(data_kernel=LENGTHS, hyperparameters=known), progress_bar=False)
    engine.run(jax.random.key(0), x=OBSERVED)
    return engine


@pytest.mark.slow
def test_posteriors_of_paths_of_several_lengths(kelfi):
    for n, amplitude in ((8, 0.7), (5, -0.6), (10, 0.1)):
        x = path(np.random.default_rng(n), amplitude, n)
        draws = kelfi.condition(jax.random.key(1), x=x).get_samples()["amplitude"]
        mean, deviation = exact_amplitude(x)
        assert abs(draws.mean() - mean) < 1.2 * deviation
        assert 0.7 < draws.std() / deviation < 2.5


def test_a_kernel_that_does_not_see_lengths_is_refused():
    with pytest.raises(ValueError, match="does not compare how long outputs are"):
        kelfi = KELFI(path_model, 60, form=KernelMeans(data_kernel=KERNEL), progress_bar=False)
        kelfi.run(jax.random.key(0), x=OBSERVED)


@pytest.mark.parametrize("kernel", [KERNEL, 2.0 * KERNEL], ids=["path", "scaled"])
def test_what_needs_a_symmetric_kernel_refuses_it(kernel):
    refused = (
        KELFI(path_model, 60, form=KernelStatistics(kernel), progress_bar=False),
        KernelABC(path_model, 60, kernel=kernel, progress_bar=False),
    )
    for engine in refused:
        with pytest.raises(ValueError, match="a density of one point given the other and not symmetric"):
            engine.run(jax.random.key(0), x=OBSERVED)
