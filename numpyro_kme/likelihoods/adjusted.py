r"""Statistics that the model may not be able to make: the likelihood of what the simulator gives plus a shift.

Each statistic is shifted with a probability `p`, by an amount with a Cauchy prior,

$$ q(y \mid \theta, u) = q(y - s \, \gamma(u) \mid \theta), \qquad u_i \sim N(0, 1), \qquad
   \gamma(u) = \mathrm{sign}(u) \cot\big( \tfrac{\pi}{2} \min(1, 2 \Phi(-|u|) / p) \big), $$

a spike at 0 and a slab, as one continuous function of a standard normal number, so that any sampler draws it. It is
learnt from the simulations of `q` alone. `s` is the robust standard deviation of a statistic over prior draws.

References: Ward et al. (2022), NeurIPS; Kelly et al. (2024), TMLR: robust neural likelihoods with other priors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy.special import ndtr

from numpyro_kme._core import Array, checks, frozen, full_precision, robust_standard_deviation
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.extrapolation import Region
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans

PROBABLE = 0.5
"""Statistics that are shifted with a larger posterior probability are named."""


@frozen
class Adjusted(Form):
    """Settings of the likelihood of statistics that may be shifted.

    Args:
        form: Of the likelihood of what the simulator gives.
        probability: `p`, prior probability that a statistic is shifted.
        scale: `s`, one for each statistic; of the simulations when left out.
    """

    most_calls = ResidualKernelMeans.most_calls

    form: Form = ResidualKernelMeans()
    probability: float = 0.1
    scale: tuple[float, ...] | None = None

    def known(self, x: np.ndarray) -> "Adjusted":
        """Settings with the scale of outputs `(m, *event)` of prior draws, for all rounds."""
        spread = np.apply_along_axis(robust_standard_deviation, 0, x.reshape(len(x), -1))
        return replace(self, scale=tuple(np.where(spread > 0.0, spread, 1.0).tolist()))

    def fit(self, z, x, *, measure=None, y=None) -> "AdjustedSurrogate":
        """Implement `Form.fit`; the last coordinates are `u`."""
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        settings = self if self.scale else self.known(x)
        return settings._around(z, settings.form.fit(z[:, : -x.shape[1]], x))

    def again(self, learnt, z, x, rows, *, measure=None, y=None) -> "AdjustedSurrogate":
        """Implement `Form.again`."""
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        inner = self.form.again(learnt.inner, z[:, : -x.shape[1]], x, rows)
        return replace(self, scale=tuple(learnt.scale.tolist()))._around(z[rows], inner)

    def _around(self, z: np.ndarray, inner: Surrogate) -> "AdjustedSurrogate":
        own = inner.region.weights
        weights = np.append(np.asarray(own), np.zeros(z.shape[1] - len(own)))  # every shift is supported
        return AdjustedSurrogate(inner, Region.of(z, weights), np.array(self.scale), self.probability)


@register
class AdjustedSurrogate(Surrogate):
    """A learnt likelihood of statistics that may be shifted.

    Attributes:
        inner: Of what the simulator gives.
        region: Which parameters were simulated.
        scale: Units of the shifts, `(n,)`.
        probability: Prior probability of a shift (static).
    """

    inner: Surrogate
    region: Region
    scale: Array
    probability: float = field(metadata=dict(static=True))

    moves = property(attrgetter("inner.moves"))
    informativeness = property(attrgetter("inner.informativeness"))
    require_density = property(attrgetter("inner.require_density"))

    @jax.numpy_rank_promotion("allow")
    def split(self, z: Any) -> tuple[Any, Any]:
        """Coordinates of the simulator `(..., D)`, and the shifts `s gamma(u)`, `(..., n)`, in units of the output."""
        xp, number = namespace(z, self), len(self.scale)
        u = z[..., -number:]
        tail = 2.0 * (ndtr(-np.abs(u)) if xp is np else norm.cdf(-xp.abs(u))) / self.probability
        size = 1.0 / xp.tan(0.5 * np.pi * xp.clip(tail, 1e-30, 1.0))
        return z[..., :-number], xp.where(tail < 1.0, xp.sign(u) * size, 0.0) * self.scale

    def at(self, y: Any) -> "AdjustedAt":
        """The likelihood at one observation `(*event)`."""
        if checks.is_concrete((y, self)):
            self.inner.at(y)  # which checks it
            return AdjustedAt(self, np.asarray(y, np.float64).reshape(-1))
        return AdjustedAt(self, jnp.ravel(y))

    def at_rows(self, rows: Any, axes: int = 1) -> "AdjustedAt":
        """Implement `Surrogate.at_rows`."""
        return AdjustedAt(self, rows.reshape(*rows.shape[:axes], -1))

    def outside_support(self, y, z):
        """Implement `Surrogate.outside_support`."""
        z, shift = self.split(z)
        return self.inner.outside_support(y - shift, z)

    def named(self, names: Sequence[str]) -> "AdjustedSurrogate":
        """Implement `Surrogate.named`."""
        return replace(self, inner=self.inner.named(names))

    def _marginal(self, seen, last):
        return replace(self, inner=self.inner.marginal(seen, last))

    def describe(self) -> Mapping[str, Any]:
        """Report what was learnt."""
        told = f"each statistic is shifted with prior probability {self.probability:g}"
        return {**self.inner.describe(), "adjusted": told}

    def describe_observation(self, y: Any, z: np.ndarray) -> Mapping[str, str]:
        """Implement `Surrogate.describe_observation`: which statistics are shifted, too."""
        own, shift = self.split(z)
        shares, label = np.mean(shift != 0.0, axis=0), getattr(getattr(self.inner, "transform", None), "label", str)
        order = np.argsort(-shares)
        told = [
            f"{label(int(i))} by {np.median(shift[shift[:, i] != 0.0, i]):.3g}, probability {shares[i]:.2f}"
            for i in order
            if shares[i] > PROBABLE
        ]
        none = f"none, most probably {label(int(order[0]))}, with {shares[order[0]]:.2f}"
        return {**self.inner.describe_observation(y, own), "shifted": ", ".join(told) or none}


@register
class AdjustedAt(LikelihoodAt):
    """The likelihood at outputs.

    Attributes:
        surrogate: What was learnt.
        rows: The outputs, `(*lead, n)`.
    """

    surrogate: AdjustedSurrogate
    rows: Any

    @full_precision
    def log_density(self, z):
        """`log q(y | z)` at points `(..., D + n)`."""
        z, shift = self.surrogate.split(z)
        rows = namespace(self, z).asarray(self.rows) - shift
        return self.surrogate.inner.at_rows(rows, rows.ndim - 1).log_density(z)
