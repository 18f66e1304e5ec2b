"""The density of decorrelated residuals, with a product mixed in: widths of posteriors that are known."""

import numpy as np
import pytest
from scipy import stats

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.likelihoods.distribution import fit_likelihood
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans


def of_cauchy_draws(form):
    """The likelihood of six Cauchy draws around one location, learnt from 300 simulations."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(300, 1))
    x = theta + 0.3 * rng.standard_cauchy(size=(300, 6))
    return fit_likelihood(theta, x, form=form, measure=standard_normal(1))


@pytest.mark.parametrize("bounds", [True, False])
def test_the_posterior_of_heavy_tailed_draws_is_as_wide_as_the_exact_one(bounds):
    """Of sixteen observations of six Cauchy draws; a joint kernel alone leaves it half too wide."""
    learnt = of_cauchy_draws(ResidualKernelMeans(bounds=bounds))
    rng, grid, ratios = np.random.default_rng(1), np.linspace(-4.0, 4.0, 801), []
    for truth in rng.normal(size=16):
        y = truth + np.clip(0.3 * rng.standard_cauchy(size=6), -3.0, 3.0)
        exact = stats.norm.logpdf(grid) + stats.cauchy.logpdf(y[:, None], grid, 0.3).sum(axis=0)
        found = stats.norm.logpdf(grid) + np.asarray(learnt.surrogate.at(y).log_density(grid[:, None]))
        sds = []
        for logs in (found, exact):
            p = np.exp(logs - logs.max())
            p /= p.sum()
            sds.append(np.sqrt(p @ np.square(grid) - (p @ grid) ** 2))
        ratios.append(sds[0] / sds[1])
    assert 0.8 < np.exp(np.mean(np.log(ratios))) < 1.3


@pytest.mark.parametrize("far", [[-12.0], [30.0], [-60.0, 70.0, -80.0, 60.0, 90.0]])
def test_statistics_that_no_simulation_explains_leave_what_the_others_say(far):
    """The mean and standard deviation are those by the other statistics alone, which are normal. With a joint Student
    density the posterior is twice as wide, and up to two and a half standard deviations off."""
    rng, grid = np.random.default_rng(0), np.linspace(-4.0, 4.0, 801)
    theta = rng.normal(size=(500, 1))
    learnt = fit_likelihood(theta, theta + rng.normal(size=(500, 5 + len(far))), measure=standard_normal(1))
    others = np.array([0.4, 1.2, 0.9, -0.3, 1.6])
    with pytest.warns(UserWarning, match="far outside all simulations"):
        at = learnt.surrogate.at(np.append(others, far))
    log_p = stats.norm.logpdf(grid) + np.asarray(at.log_density(grid[:, None]))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    number = len(others) + 1  # of normal densities, with the prior's
    mean, sd, true = p @ grid, np.sqrt(p @ np.square(grid) - (p @ grid) ** 2), others.sum() / number
    assert abs(mean - true) < 0.7 / np.sqrt(number)
    assert 0.8 < sd * np.sqrt(number) < 1.5
