"""The third-party tasks with reference posteriors (sbibm: Lueckmann et al. 2021, AISTATS), by name."""

from benchmarks.helpers.problems import Problem
from numpyro_kme.simulators import bernoulli_glm, gaussian_linear, gaussian_mixture, predator_prey, sir, two_moons

TASKS = {
    "gaussian_mixture": Problem(gaussian_mixture.prior(), gaussian_mixture.gaussian_mixture).model,
    "sir": Problem(sir.prior(), sir.epidemic).model,
    "gaussian_linear_uniform": Problem(gaussian_linear.uniform_prior(), gaussian_linear.gaussian_linear).model,
    "gaussian_linear": Problem(gaussian_linear.prior(), gaussian_linear.gaussian_linear).model,
    "two_moons": Problem(two_moons.prior(), two_moons.two_moons).model,
    "lotka_volterra": Problem(predator_prey.prior(), predator_prey.predator_prey).model,
    "bernoulli_glm": Problem(bernoulli_glm.prior(), bernoulli_glm.spikes).model,
}
