"""Simulators of published experiments: `fn(rng_key, *params)`, one event a call, and a model with the published prior.

Import the one you want, `from numpyro_kme.simulators import blowfly`; `import numpyro_kme` loads none of them. Each
module has `model(x=None)`, whose simulator site is `x`; `PARAMETERS`, their names; and `OBSERVED` or `TRUTH` where the
source prints them.
"""

__all__ = ["bernoulli_glm", "blowfly", "boarding_school", "drift_diffusion", "exponential_gamma", "fluctuation"]
__all__ += ["g_and_k", "gaussian_linear", "gaussian_mixture", "lotka_volterra", "lynx_hare", "predator_prey", "sir"]
__all__ += ["slcp", "smallpox", "toggle_switch", "tuberculosis", "two_moons"]
