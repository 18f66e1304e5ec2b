"""The third-party tasks with reference posteriors (sbibm: Lueckmann et al. 2021, AISTATS), by name."""

import numpyro

import numpyro_kme as kme
from numpyro_kme.simulators import (
    bernoulli_glm,
    gaussian_linear,
    gaussian_mixture,
    predator_prey,
    sir,
    two_moons,
)


def model_of(prior, simulator):
    """A model of one vector of parameters and one simulator."""

    def model(x=None):
        theta = numpyro.sample("theta", prior)
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return model


PRIORS = {
    "gaussian_mixture": gaussian_mixture.prior(),
    "sir": sir.prior(),
    "gaussian_linear_uniform": gaussian_linear.uniform_prior(),
    "gaussian_linear": gaussian_linear.prior(),
    "two_moons": two_moons.prior(),
    "lotka_volterra": predator_prey.prior(),
    "bernoulli_glm": bernoulli_glm.prior(),
}
SIMULATORS = {
    "gaussian_mixture": gaussian_mixture.gaussian_mixture,
    "sir": sir.epidemic,
    "gaussian_linear_uniform": gaussian_linear.gaussian_linear,
    "gaussian_linear": gaussian_linear.gaussian_linear,
    "two_moons": two_moons.two_moons,
    "lotka_volterra": predator_prey.predator_prey,
    "bernoulli_glm": bernoulli_glm.spikes,
}
TASKS = {task: model_of(prior, SIMULATORS[task]) for task, prior in PRIORS.items()}
