r"""Nicholson's blowflies: a stochastic population with delayed births, summarised by ten statistics.

$$N_t = P\,N_{t-\ell}\,e^{-N_{t-\ell}/N_0}\,e_t + N_{t-1}\,e^{-\delta\varepsilon_t}$$

with a lag $\ell=\max(\mathrm{round}(\tau),1)$ and gamma noise of mean 1, whose variance is $\sigma_p^2$ for
births ($e_t$) and $\sigma_d^2$ for deaths ($\varepsilon_t$). One step is two days. (Sejdinovic's slides on Park et al.
print $N_{t+1}$ on the left beside $N_{t-\tau}$ on the right, a lag of $\tau+1$.)

References: Wood (2010), Nature 466; Meeds and Welling (2014), UAI; Park et al. (2016), AISTATS; Hsu and Ramos
(2019), AISTATS, whose prior this is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("log P", "log delta", "log N_0", "log sigma_d", "log sigma_p", "log tau")
PRIOR_MEAN = np.array([2.0, -1.5, 6.0, -1.0, -1.0, np.log(15.0)])
PRIOR_SD = np.array([2.0, 0.5, 0.5, 1.0, 1.0, np.log(5.0)])
"""Of the normal prior of the logarithms, in the order of `PARAMETERS`."""

STATISTICS = (
    *(f"log mean of quarter {i} of N" for i in (1, 2, 3, 4)),
    *(f"mean of quarter {i} of diff N" for i in (1, 2, 3, 4)),
    "maxima, threshold 0.5",
    "maxima, threshold 1.5",
)
"""Names of the ten; maxima are counted between falls of more than so many standard deviations."""
OBSERVED = np.array([-0.91064, 0.12438, 1.06736, 1.70135, -1.10402, -0.22967, 0.08973, 1.28127, 10.0, 9.0])
"""Statistics of Nicholson's series of 180 counts, in thousands of flies where they have a unit."""

KEPT = 180
BURN_IN = 50
"""Steps that are recorded, and those before them."""
HISTORY = 180.0
"""Flies at every step before the first."""
MAX_POPULATION = 1e15
"""Populations are cut here, so that nothing overflows."""


def model(x=None):
    """Six log parameters, named as in `PARAMETERS`, with broad normal priors, and the ten statistics `x`."""
    priors = zip(PARAMETERS, PRIOR_MEAN, PRIOR_SD)
    log_theta = jnp.stack([numpyro.sample(name, dist.Normal(mean, sd)) for name, mean, sd in priors])
    numpyro.sample("x", Simulator(blowfly_statistics, log_theta, names=STATISTICS), obs=x)


def vector(latents):
    """Latents of `model`, `{name: (*lead,)}`, as arguments of its simulator, `(*lead, 6)`."""
    return jnp.stack([latents[name] for name in PARAMETERS], axis=-1)


def blowfly_statistics(rng_key, log_theta):
    """Ten statistics, `(10,)`, of one simulated series; `log_theta` `(6,)` in the order of `PARAMETERS`."""
    return statistics(blowfly(rng_key, log_theta))


def blowfly(rng_key, log_theta):
    """One simulated series of 180 counts, `(180,)`, after a burn-in of 50 steps."""
    keys = jax.random.split(rng_key)
    steps = BURN_IN + KEPT
    births = mean_one_gamma(keys[0], log_theta[4], steps)
    deaths = mean_one_gamma(keys[1], log_theta[3], steps)
    return population(log_theta, births, deaths)[BURN_IN:]


def mean_one_gamma(rng_key, log_sd, size):
    """Gamma draws, `(size,)`, with mean 1 and standard deviation `exp(log_sd)`."""
    concentration = jnp.exp(-2.0 * jnp.clip(log_sd, -20.0, 20.0))
    return jax.random.gamma(rng_key, concentration, (size,), log_sd.dtype) / concentration


def population(log_theta, births, deaths):
    """The recursion, given its noise `births` and `deaths`, `(steps,)` each; returns `(steps,)` counts.

    The counts before the first step are all 180. So a lag of at least `steps` always looks back at 180, and
    cutting the lag at `steps` changes nothing. Log parameters beyond +-20 and populations above
    `MAX_POPULATION` are cut there, so that nothing overflows.
    """
    steps = births.shape[0]
    log_growth, log_death, log_capacity, _, _, log_delay = jnp.clip(log_theta, -20.0, 20.0)
    lag = jnp.clip(jnp.round(jnp.exp(log_delay)), 1, steps).astype(int)
    survival = jnp.exp(-jnp.exp(log_death) * deaths)

    def step(counts, now):
        delayed = counts[now - lag]
        born = delayed * jnp.exp(log_growth - delayed / jnp.exp(log_capacity)) * births[now - steps]
        count = jnp.minimum(born + counts[now - 1] * survival[now - steps], MAX_POPULATION)
        return counts.at[now].set(count), None

    start = jnp.full(2 * steps, HISTORY, births.dtype)
    counts, _ = jax.lax.scan(step, start, jnp.arange(steps, 2 * steps))
    return counts[steps:]


def statistics(series):
    """Ten statistics, `(10,)`, of a series of counts `(n,)`, in the order of `STATISTICS`.

    Quarters of the sorted counts and of the sorted first differences (both cut at the quarters of `n`), in
    thousands; numbers of maxima of the series in units of its standard deviation.
    """
    n = series.shape[0]
    cuts = (n // 4, n // 2, 3 * n // 4)
    quarters = (jnp.split(jnp.sort(numbers), cuts) for numbers in (series, jnp.diff(series)))
    levels, changes = (jnp.stack(list(map(jnp.mean, parts))) for parts in quarters)
    spread = jnp.std(series)
    scaled = series / jnp.where(spread > 0, spread, 1.0)
    maxima = jnp.stack([count_maxima(scaled, 0.5), count_maxima(scaled, 1.5)]).astype(series.dtype)
    return jnp.concatenate([jnp.log(levels / 1000 + 1e-12), changes / 1000, maxima])


def count_maxima(series, drop):
    """Count the maxima of `series` that are set apart by falls, and rises in between, of more than `drop`."""

    def step(state, value):
        highest, lowest, falling, count = state
        highest, lowest = jnp.maximum(highest, value), jnp.minimum(lowest, value)
        is_maximum = ~falling & (value < highest - drop)
        is_minimum = falling & (value > lowest + drop)
        highest = jnp.where(is_minimum, value, highest)
        lowest = jnp.where(is_maximum, value, lowest)
        falling = jnp.where(is_maximum, True, jnp.where(is_minimum, False, falling))
        return (highest, lowest, falling, count + is_maximum), None

    (_, _, _, count), _ = jax.lax.scan(step, (series[0], series[0], False, 0), series)
    return count
