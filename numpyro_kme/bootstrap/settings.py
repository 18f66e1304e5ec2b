"""How a posterior bootstrap is computed."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown


@shown
@dataclass(eq=False, repr=False, kw_only=True)
class Settings:
    """How a posterior bootstrap is computed; the engine `PosteriorBootstrap` takes the same by the same names.

    Attributes:
        num_samples: Number `B` of replicates, which are the posterior draws.
        num_nodes: Quadrature nodes `M` of the noise in each minimisation. When left out 512, or as many times more, up
            to 16, as it takes for the noise to move minima by at most 0.08 posterior standard deviations; for data of
            one number whose noise is one normal 256, or as many times more as it takes for 0.01.
        method: `"newton"`; `"linear"` for one Newton step from the full-data minimum (the influence function);
            `"emulated"` for simulators whose draws jump, are noisy or slow, with `loss=MMD(...)`: the model's mean
            embedding as a function of the parameters is learnt from `num_simulations` draws, by small neural networks,
            and every replicate is minimised on that.
        restart_every: One replicate in this many is minimised again from elsewhere and compared.
        num_simulations: Draws of the simulator that an emulator learns from, about; at least 100,000. Those that
            compare what replicates found, 1,024 each, come on top.
        prior_weight: What the model's prior counts against the loss as a log-likelihood, with `method="emulated"`; 0
            (as published) or 1, as in Bayes' rule. Each replicate then draws a point `z` of the prior, and to its loss
            `prior_weight * loss_scale * sum_a ((u_a - z_a) / s_a)^2 / 2` is added, `u` unconstrained, `s` the prior's
            standard deviations there: what the data leave open spreads as the prior does. The `loss_scale` is what
            makes the loss a log-likelihood (`calibrated_loss_scale`). Exact for linear models with normal noise and
            normal priors.
        prior_draws: `z` is the best, by the replicate's loss, of so many draws of the prior. With 1 the prior counts
            in every direction; with many (the published starts are the best of 500) only where the data say nothing,
            and there as given the data, which matters where they leave a curved set open.
        progress_bar: Show a bar of the replicates, or of the rounds in which an emulator learns, except where the
            environment variable `CI` is set.
    """

    num_samples: int = 500
    num_nodes: int | None = None
    method: Literal["newton", "linear", "emulated"] = "newton"
    restart_every: int = 20
    num_simulations: int = 2_500_000
    prior_weight: float = 0.0
    prior_draws: int = 1
    progress_bar: bool = True

    def __post_init__(self):
        checks.whole("num_samples", self.num_samples, 1)
        if self.num_nodes is not None:
            checks.whole("num_nodes", self.num_nodes, 8)
        checks.require(
            self.method in ("newton", "linear", "emulated"),
            f'`method` must be "newton", "linear" or "emulated"; got {self.method!r}.',
        )
        checks.whole("restart_every", self.restart_every, 1)
        checks.whole("num_simulations", self.num_simulations, 100_000)
        checks.require(
            0.0 <= self.prior_weight < np.inf,
            f"`prior_weight` must be finite and not negative; got {self.prior_weight}. Use 0 to ignore the prior.",
        )
        checks.require(
            self.prior_weight == 0.0 or self.method == "emulated",
            f'`prior_weight` is for `method="emulated"`; got {self.prior_weight} with {self.method!r}. Change one of '
            "them.",
        )
        checks.whole("prior_draws", self.prior_draws, 1)
        checks.require(
            self.prior_draws == 1 or self.prior_weight > 0.0,
            f"`prior_draws` does nothing without a prior weight; got {self.prior_draws} with "
            f"`prior_weight={self.prior_weight}`. Set `prior_weight=1.0`, or leave `prior_draws` out.",
        )
