r"""Statistics that the model may not be able to make: the likelihood of what the simulator gives plus a shift.

Statistic `i` is shifted with a probability $p_i$, by an amount with a Cauchy prior,

$$ q(y \mid \theta, u) = q(y - s \, \gamma(u) \mid \theta), \qquad u_i \sim N(0, 1), \qquad
   \gamma_i(u) = \mathrm{sign}(u_i) \cot\big( \tfrac{\pi}{2} \min(1, 2 \Phi(-|u_i|) / p_i) \big), $$

a spike at 0 and a slab, as one continuous function of a standard normal number, so that any sampler draws it. It is
learnt from the simulations of `q` alone. `s` is the robust standard deviation of a statistic over prior draws.

Without a statistic that no other replaces, some parameter is as unknown as before the data. With one probability for
all, such a shift would be as probable after the data as before, and the posterior have tails as wide as the prior. So
$p_i$ is in proportion to the precision that the other statistics leave, which makes up for that width,

$$ p_i = p \, |I + J - J_i| / |I + J|, \qquad J = \textstyle\sum_i J_i, $$

with the Fisher information $J_i$ of each about the coordinates, whose prior is standard normal, over prior draws.

A shift that explains a statistic is a narrow mode beside the spike, which no sampler finds by itself. The sampler's own
normal numbers $e$ therefore become scores $u$ one after another, given the parameters and the statistics before: $e_i$
chooses spike or slab with about their posterior odds, and in the slab a residual from Student's distribution with two
degrees of freedom, which the shift leaves. In $e$ the posterior is about that of the parameters times a normal one; the
ratio $w$ of the prior of `u` to the density with which $e$ draws it goes with the likelihood.

References: Ward et al. (2022), NeurIPS; Kelly et al. (2024), TMLR: robust neural likelihoods with other priors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy.special import log_expit, log_ndtr, ndtr, ndtri

from numpyro_kme._core import Array, checks, frozen, full_precision, numpy_function, robust_standard_deviation
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.extrapolation import Region
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.surrogate import OneStatistic, ResidualSurrogate

PROBABLE = 0.5
"""Statistics that are shifted with a larger posterior probability are named."""


@frozen
class Adjusted(Form):
    """Settings of the likelihood of statistics that may be shifted.

    Args:
        form: Of the likelihood of what the simulator gives.
        probability: `p`, largest prior probability that a statistic is shifted.
        scale: `s`, one for each statistic, `(n,)`; of the simulations when left out.
        information: `J`, `(n, D, D)`; of the simulations when left out.
    """

    most_calls = ResidualKernelMeans.most_calls

    form: Form = ResidualKernelMeans()
    probability: float = 0.1
    scale: Any = None
    information: Any = None

    def known(self, x: np.ndarray) -> "Adjusted":
        """Settings with the scale of outputs `(m, *event)` of prior draws, for all rounds."""
        spread = np.apply_along_axis(robust_standard_deviation, 0, x.reshape(len(x), -1))
        return replace(self, scale=np.where(spread > 0.0, spread, 1.0))

    def as_in(self, learnt: Any) -> "Adjusted":
        """Settings with the prior of shifts that was learnt from other simulations."""
        return replace(self, scale=learnt.scale, information=learnt.information)

    def fit(self, z, x, *, measure=None, y=None) -> "AdjustedSurrogate":
        """Implement `Form.fit`; the last coordinates are `u`."""
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        settings = self.known(x) if self.scale is None else self
        return settings._around(z, settings.form.fit(z[:, : -x.shape[1]], x))

    def again(self, learnt, z, x, rows, *, measure=None, y=None) -> "AdjustedSurrogate":
        """Implement `Form.again`."""
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        inner = self.form.again(learnt.inner, z[:, : -x.shape[1]], x, rows)
        return self.as_in(learnt)._around(z[rows], inner)

    def _around(self, z: np.ndarray, inner: Any) -> "AdjustedSurrogate":
        weights, information = np.zeros(z.shape[1]), self.information  # every shift is supported
        weights[: len(inner.region.weights)] = inner.region.weights
        if information is None:
            information = np.zeros((len(self.scale), *inner.information.shape[1:]))
            information[list(inner.transform.kept)] = inner.information
        probabilities = self.probability * left_by_others(information)
        return AdjustedSurrogate(inner, Region.of(z, weights), self.scale, information, probabilities, self.probability)


def left_by_others(information: np.ndarray) -> np.ndarray:
    """`|I + J - J_i| / |I + J|` of the information of statistics about the coordinates, `(n, D, D)`, `(n,)`."""
    total = np.eye(information.shape[1]) + information.sum(axis=0)
    return np.exp(np.linalg.slogdet(total - information)[1] - np.linalg.slogdet(total)[1])


@register
class AdjustedSurrogate(Surrogate):
    """A learnt likelihood of statistics that may be shifted.

    Attributes:
        inner: Of what the simulator gives.
        region: Which parameters were simulated.
        scale: Units of the shifts, `(n,)`.
        information: Of each statistic about the coordinates, `(n, D, D)`.
        probabilities: Prior probabilities of shifts, `(n,)`.
        probability: The largest possible (static).
    """

    inner: ResidualSurrogate
    region: Region
    scale: Array
    information: Array
    probabilities: Array
    probability: float = field(metadata=dict(static=True))

    moves = property(attrgetter("inner.moves"))
    informativeness = property(attrgetter("inner.informativeness"))
    require_density = property(attrgetter("inner.require_density"))

    @jax.numpy_rank_promotion("allow")
    def split(self, z: Any) -> tuple[Any, Any]:
        """Coordinates of the simulator `(..., D)`, and the shifts `s gamma(u)`, `(..., n)`, in units of the output."""
        xp, number = namespace(z, self), len(self.scale)
        u = z[..., -number:]
        tail = 2.0 * (ndtr(-np.abs(u)) if xp is np else norm.cdf(-xp.abs(u))) / xp.asarray(self.probabilities)
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
        probabilities = self.probability * left_by_others(self.information * seen[:, None, None])
        return replace(self, inner=self.inner.marginal(seen, last), probabilities=probabilities)

    def describe(self) -> Mapping[str, Any]:
        """Report what was learnt."""
        ends = dict.fromkeys(f"{end:.2g}" for end in (np.min(self.probabilities), np.max(self.probabilities)))
        told = f"each statistic is shifted with prior probability {' to '.join(ends)}"
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

    @numpy_function
    def guided(self, z):
        """Implement `LikelihoodAt.guided`, one statistic after another."""
        learnt, y, z = self.surrogate, np.asarray(self.rows, np.float64), z.copy()
        number, log_ratio = len(learnt.scale), np.zeros(len(z))
        own, scores, u = z[:, :-number], z[:, -number:], np.zeros((len(z), 0))
        others = learnt.inner.one_by_one(own)
        for i, k in enumerate(learnt.inner.transform.kept):
            found = _Guide(others.given(i, u), y[k], learnt.probabilities[k], learnt.scale[k])
            scores[:, k], log_one, v = found(scores[:, k])
            log_ratio, u = log_ratio + log_one, np.column_stack([u, found.statistic.residual(v)])
        return z, log_ratio


class _Guide(NamedTuple):
    """Shifts of one statistic that are probable given the parameters and the statistics before it.

    Attributes:
        statistic: It given those.
        y: Its value.
        p: Prior probability of a shift.
        s: Scale of the shifts.
    """

    statistic: OneStatistic
    y: np.ndarray
    p: np.ndarray
    s: np.ndarray

    def __call__(self, e: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores of shifts for standard normal numbers, the log ratio of prior and proposal densities, and the
        decorrelated residuals of what is shifted, `(k,)` each."""
        p, s = self.p, self.s
        v, log_slope = self.statistic.decorrelated(self.y)
        log_spike = np.log1p(-p) + _log_student(v) + log_slope
        log_odds = self._log_slab(self.statistic.value(np.zeros_like(e))) - log_spike
        log_tail = log_ndtr(-e) - log_expit(log_odds)
        shifted, tail = log_tail < 0.0, np.clip(np.exp(np.minimum(log_tail, 0.0)), 1e-30, 1.0 - 1e-15)
        drawn = (1.0 - 2.0 * tail) / np.sqrt(2.0 * tail * (1.0 - tail))
        made = self.statistic.value(drawn)
        log_drawn = log_expit(log_odds) + _log_student(drawn) + self.statistic.decorrelated(made)[1]
        log_ratio = np.where(shifted, self._log_slab(made) - log_drawn, np.log1p(-p) - log_expit(-log_odds))
        level = np.exp(np.minimum(log_ndtr(e) - log_expit(-log_odds), 0.0))
        of_shift = -np.sign(self.y - made) * ndtri(p * np.arctan2(s, np.abs(self.y - made)) / np.pi)
        return np.where(shifted, of_shift, ndtri(0.5 * p + (1.0 - p) * level)), log_ratio, np.where(shifted, drawn, v)

    def _log_slab(self, made: np.ndarray) -> np.ndarray:
        """Log of the prior density of the shifts of what is made, times the probability of a shift."""
        return np.log(self.p / (np.pi * self.s)) - np.log1p(np.square((self.y - made) / self.s))


def _log_student(u: np.ndarray) -> np.ndarray:
    """Log density of Student's distribution with two degrees of freedom."""
    return -1.5 * np.log(2.0 + np.square(u))
