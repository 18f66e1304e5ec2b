"""The third-party tasks with reference posteriors (sbibm: Lueckmann et al. 2021, AISTATS), by name."""

import numpyro

import numpyro_kme as kme
from numpyro_kme.simulators import bernoulli_glm, gaussian_linear, gaussian_mixture, predator_prey, sir, two_moons


def model_of(prior, simulator):
    """A model of one vector of parameters and one simulator."""

    def model(x=None):
        theta = numpyro.sample("theta", prior)
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return model


TASKS = {
    "gaussian_mixture": model_of(gaussian_mixture.prior(), gaussian_mixture.gaussian_mixture),
    "sir": model_of(sir.prior(), sir.epidemic),
    "gaussian_linear_uniform": model_of(gaussian_linear.uniform_prior(), gaussian_linear.gaussian_linear),
    "gaussian_linear": model_of(gaussian_linear.prior(), gaussian_linear.gaussian_linear),
    "two_moons": model_of(two_moons.prior(), two_moons.two_moons),
    "lotka_volterra": model_of(predator_prey.prior(), predator_prey.predator_prey),
    "bernoulli_glm": model_of(bernoulli_glm.prior(), bernoulli_glm.spikes),
}
