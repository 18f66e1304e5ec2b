"""Models of the third-party tasks with reference posteriors (sbibm: Lueckmann et al. 2021, AISTATS)."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy

import numpyro_kme as kme

POPULATION = 1e6


def mixture(rng_key, theta):
    """A normal around `theta` of standard deviation 1 or 0.1, with equal odds."""
    coin_key, noise_key = jax.random.split(rng_key)
    scale = jnp.where(jax.random.bernoulli(coin_key), 1.0, 0.1)
    return theta + scale * jax.random.normal(noise_key, theta.shape)


def linear(rng_key, theta):
    """A normal around `theta` of variance 0.1."""
    return theta + jnp.sqrt(0.1) * jax.random.normal(rng_key, theta.shape)


def rk4(slope, start, steps, size):
    """States after each of `steps` Runge-Kutta steps, the start included."""

    def step(state, _):
        a = slope(state)
        b = slope(state + 0.5 * size * a)
        c = slope(state + 0.5 * size * b)
        d = slope(state + size * c)
        return state + size / 6.0 * (a + 2.0 * b + 2.0 * c + d), state

    return jax.lax.scan(step, start, None, length=steps)[1]


def epidemic(rng_key, theta):
    """Counts of infected among 1,000, at ten times, in an epidemic of rates `theta` in a million people."""
    fraction = infected_fractions(theta)
    return dist.Binomial(1000, fraction).sample(rng_key).astype(fraction.dtype)


def infected_fractions(theta):
    """Fractions that are infected at the ten times."""

    def slope(state):
        susceptible, infected = state
        new = theta[0] * susceptible * infected / POPULATION
        return jnp.stack([-new, new - theta[1] * infected])

    infected = rk4(slope, jnp.array([POPULATION - 1.0, 1.0]), 613, 0.25)[:, 1]
    return jnp.clip(infected[::68] / POPULATION, 0.0, 1.0)


def predators(rng_key, theta):
    """Prey and predators at ten times, with log-normal errors of 0.1; rates `theta` in the order of the reference."""

    def slope(state):
        prey, hunters = state
        return jnp.stack([prey * (theta[0] - theta[1] * hunters), hunters * (theta[3] * prey - theta[2])])

    states = rk4(slope, jnp.array([30.0, 1.0]), 379, 0.05)[::42].T.reshape(-1)
    return jnp.exp(jnp.log(jnp.clip(states, 1e-10, 1e4)) + 0.1 * jax.random.normal(rng_key, states.shape))


STIMULUS = np.random.RandomState(42).randn(100)
"""White noise; the reference fixes it by this seed."""
DESIGN = np.column_stack([np.ones(100), *(np.r_[np.zeros(lag), STIMULUS[: 100 - lag]] for lag in range(9))])


def spikes(rng_key, theta):
    """Sums of the design where a neuron fires, in 100 bins with log odds `design @ theta`."""
    return jax.random.bernoulli(rng_key, jax.nn.sigmoid(DESIGN @ theta)).astype(theta.dtype) @ DESIGN


def smooth_filter():
    """Prior of the offset and of nine filter weights whose second differences are small."""
    difference = np.eye(9) - np.eye(9, k=-1)
    root = difference @ difference + np.diag(np.sqrt(np.arange(9) / 9.0))
    precision = scipy.linalg.block_diag([[0.5]], root.T @ root)
    return dist.MultivariateNormal(jnp.zeros(10), covariance_matrix=np.linalg.inv(precision))


def moons(rng_key, theta):
    """A point of a crescent that `theta` shifts; `theta` and its mirror image shift alike."""
    angle_key, radius_key = jax.random.split(rng_key)
    angle = jax.random.uniform(angle_key, minval=-0.5 * jnp.pi, maxval=0.5 * jnp.pi)
    radius = 0.1 + 0.01 * jax.random.normal(radius_key)
    crescent = jnp.stack([radius * jnp.cos(angle) + 0.25, radius * jnp.sin(angle)])
    return crescent + jnp.stack([-jnp.abs(theta[0] + theta[1]), theta[1] - theta[0]]) / jnp.sqrt(2.0)


def model_of(prior, simulator):
    """A model of one vector of parameters and one simulator."""

    def model(x=None):
        theta = numpyro.sample("theta", prior)
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return model


def box(dim, half_width):
    return dist.Uniform(-half_width, half_width).expand([dim]).to_event(1)


PRIORS = {
    "gaussian_mixture": box(2, 10.0),
    "sir": dist.LogNormal(jnp.log(jnp.array([0.4, 0.125])), jnp.array([0.5, 0.2])).to_event(1),
    "gaussian_linear_uniform": box(10, 1.0),
    "gaussian_linear": dist.Normal(0.0, np.sqrt(0.1)).expand([10]).to_event(1),
    "two_moons": box(2, 1.0),
    "lotka_volterra": dist.LogNormal(jnp.array([-0.125, -3.0, -0.125, -3.0]), 0.5).to_event(1),
    "bernoulli_glm": smooth_filter(),
}
SIMULATORS = {
    "gaussian_mixture": mixture,
    "sir": epidemic,
    "gaussian_linear_uniform": linear,
    "gaussian_linear": linear,
    "two_moons": moons,
    "lotka_volterra": predators,
    "bernoulli_glm": spikes,
}
TASKS = {task: model_of(prior, SIMULATORS[task]) for task, prior in PRIORS.items()}
