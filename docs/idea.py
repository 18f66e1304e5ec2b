"""The picture of the landing page: `python docs/idea.py` simulates, learns and draws `docs/_static/idea.png`.

The simulator is a curve with skewed errors: one parameter, one number.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OBSERVED = 1.2
DARK, SIMULATED, LEARNT = "#222222", "#0072b2", "#d55e00"


def simulator(rng_key, theta):
    """A curve of `theta` with gamma errors; `(1,)`."""
    return (jnp.sin(1.3 * theta) + 0.7 * theta + 0.5 * jax.random.gamma(rng_key, 2.0) - 1.0)[None]


def model(x=None):
    """A standard normal parameter, and the simulator."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def picture():
    """Simulations; the density learnt from them; the posterior of one observation."""
    kelfi = kme.KELFI(model, num_simulations=300, num_rounds=1, progress_bar=False)
    kelfi.run(jax.random.key(0), x=jnp.array([OBSERVED]))
    simulations, likelihood = kelfi.posterior.simulations, kelfi.likelihoods["x"]
    theta, x = np.linspace(-2.5, 2.5, 120, dtype=np.float32), np.linspace(-4.0, 4.0, 120, dtype=np.float32)
    grid = jnp.stack(jnp.meshgrid(jnp.asarray(theta), jnp.asarray(x)), -1).reshape(-1, 2)
    density = np.exp(kme.KernelMeansLikelihood(likelihood, grid[:, :1]).log_prob(grid[:, 1:])).reshape(120, 120)

    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", sharex=True)
    axes[0].plot(simulations.latents["theta"], simulations.x["x"][:, 0], ".", color=SIMULATED, markersize=3)
    axes[1].pcolormesh(theta, x, density, cmap="Blues", rasterized=True)
    for axis in axes[:2]:
        axis.axhline(OBSERVED, color=DARK, linewidth=1)
        axis.set(ylim=(-4, 4))
    axes[0].annotate("observed", (-2.4, OBSERVED + 0.2), color=DARK)
    at = np.exp(kme.KernelMeansLikelihood(likelihood, theta[:, None]).log_prob(jnp.full((120, 1), OBSERVED)))
    prior = np.exp(-0.5 * theta**2) / np.sqrt(2 * np.pi)
    axes[2].plot(theta, prior, color=DARK, linewidth=1, label="prior")
    axes[2].plot(theta, at, color=SIMULATED, label="likelihood")
    axes[2].fill_between(
        theta, prior * at / np.trapezoid(prior * at, theta), color=LEARNT, alpha=0.5, label="posterior"
    )
    axes[2].legend(frameon=False)
    titles = ("1  simulate at draws of the prior", "2  learn the density of the data", "3  Bayes' rule, by NumPyro")
    for axis, title in zip(axes, titles):
        axis.set(title=title, xlabel="parameter", xlim=(-2.5, 2.5), yticks=[])
    axes[0].set_ylabel("data")
    axes[1].set_ylabel("data")
    figure.savefig(Path(__file__).parent / "_static" / "idea.png", dpi=110)


if __name__ == "__main__":
    picture()
