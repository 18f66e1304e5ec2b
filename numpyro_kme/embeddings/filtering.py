"""Kernel Bayes filtering: hidden states of a time series from one path on which states were seen, without a model."""

import numpy as np

from numpyro_kme._core import Array, checks, host, numpy_function, solves
from numpyro_kme.embeddings.kernel_bayes import posterior_weights
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.kernels import low_rank
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, register, take
from numpyro_kme.kernels.low_rank import LowRank


@register
class KernelBayesFilter:
    r"""A nonparametric filter, learnt from a path of states and observations $(X_1, Y_1), \ldots, (X_{T+1}, Y_{T+1})$.

    The distribution of the state at each time is a signed weighting $\alpha$ of the states $X_1, \ldots, X_T$:

    $$ \mu^{(t+1)} = (G_X + T \varepsilon I)^{-1} G_{X X_{+1}} (G_X + T \varepsilon I)^{-1} G_X\, \alpha^{(t)}, \qquad
       \alpha^{(t+1)} = R(\mu^{(t+1)})\, k_Y(y_{t+1}), $$

    with `R` of kernel Bayes' rule and $\alpha^{(1)} = (G_Y + T \varepsilon I)^{-1} k_Y(y_1)$. Low-rank factors make a
    step cost `T r^2`. Make one with `fit`.

    Args:
        kernel: Compares two states.
        states: `X_1, ..., X_T`.
        left: `V M`, `(T, r)`, with `M = (V'V + T eps I)^-1`.
        transition: `V_{+1}' V M`, `(r, r)`.
        features: `V`, `(T, r)`.
        following: Features of `X_2, ..., X_{T+1}`, `(T, r)`.
        observations: Features of observations.
        regularisation: `(eps, delta)`.
    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 4.3.
    """

    paper = "fukumizu2013kernel"

    kernel: Kernel
    states: PointSet
    left: Array
    transition: Array
    features: Array
    following: Array
    observations: LowRank
    regularisation: Array

    @classmethod
    @numpy_function
    def fit(
        cls,
        kernel_state: Kernel,
        kernel_observation: Kernel,
        states: PointSet,
        observations: PointSet,
        regularisation: float,
        *,
        delta: float | None = None,
        tolerance: float = low_rank.TOLERANCE,
        max_rank: int | None = None,
    ) -> "KernelBayesFilter":
        """Learn from one path of `T + 1` states and observations.

        Args:
            kernel_state, kernel_observation: Positive definite.
            states, observations: In the order of time.
            regularisation: `eps`.
            delta: `2 eps` when left out.
            tolerance, max_rank: Bounds of the low-rank factors, as in `LowRank.fit`.
        """
        n = num_points(states) - 1
        times = num_points(states), num_points(observations)
        paired = times[0] == times[1] >= 3
        checks.require(paired, f"`states` and `observations` must be one path of at least 3 times each; got {times}.")
        delta = 2.0 * regularisation if delta is None else delta
        checks.positive_number("regularisation", regularisation)
        checks.positive_number("delta", delta)
        before, last = take(states, slice(-1)), take(states, slice(-1, None))
        of_states = LowRank.fit(kernel_state, before, tolerance=tolerance, max_rank=max_rank)
        seen = take(observations, slice(-1))
        of_observations = LowRank.fit(kernel_observation, seen, tolerance=tolerance, max_rank=max_rank)
        v = of_states.values
        left = v @ np.linalg.inv(solves.inner(v, n * regularisation))
        following = np.concatenate([v[1:], of_states.features(last)])
        both = np.array([regularisation, delta])
        return cls(kernel_state, before, left, following.T @ left, v, following, of_observations, both)

    def predict(self, weights: np.ndarray) -> np.ndarray:
        """Weights of the distribution one step later, without an observation.

        For one distribution `(T,)`, or for each of many `(S, T)`. Cost: `T r` each.
        """
        weights = self._weights(weights)
        return weights @ np.asarray(self.features) @ np.asarray(self.transition).T @ np.asarray(self.left).T

    @numpy_function
    def filter(self, observations: PointSet, *, normalise: bool = True) -> np.ndarray:
        """Weights of the distribution of each state given the observations up to then, `(S, T)`. Cost: `S T r^2`.

        Args:
            observations: `S` points in the order of time.
            normalise: Divide the weights of each time by their sum before the next one. The paper (`normalise=False`)
                does not; then the weights that follow an outlying observation are small, `delta` is large beside their
                squares, and they can die out.
        Raises:
            FloatingPointError: If all weights are zero at some time, because an observation is far from all that were
                learnt from.
        """
        advice = "Leave out no time: where nothing was observed, `predict` goes on from the weights of `filter` so far."
        checks.sound("observations", observations, advice)
        features, factor = self.observations.features(observations), self.observations.values
        epsilon, delta = self.regularisation
        with host.one_blas_thread:
            found = [solves.ridge(factor, len(factor) * epsilon, factor @ features[0])]
            for phi in features[1:]:
                before = _unit(found[-1]) if normalise else found[-1]
                found.append(posterior_weights(self.predict(before), factor, delta, phi))
        return _some_weight(np.stack(found))

    @numpy_function
    def smooth(self, filtered: np.ndarray, *, normalise: bool = True) -> np.ndarray:
        """Weights of the distribution of each state given all observations, `(S, T)`, from the filtered ones.

        Backwards, kernel Bayes' rule with `(X_i, X_{i+1})` as the joint sample and the filtered distribution at `t` as
        the prior, applied to the smoothed distribution at `t + 1`. Cost: `S T r^2`.

        Args:
            filtered: Weights of `filter`, in the order of time.
            normalise: Divide the weights of each time by their sum before they are used, as in `filter`.
        """
        filtered = self._weights(filtered, several=True)
        v, delta, found = self.features, self.regularisation[1], [filtered[-1]]
        with host.one_blas_thread:
            for weights in filtered[-2::-1]:
                weights, later = (_unit(w) if normalise else w for w in (weights, found[-1]))
                prior = self.left @ (v.T @ weights)
                found.append(posterior_weights(prior, self.following, delta, v.T @ later))
        return _some_weight(np.stack(found[::-1]))

    def means(self, weights: np.ndarray) -> np.ndarray:
        """Means of the state `(S, *point)` under weights `(S, T)`, normalised to a sum of one.

        For the weights of one time `(T,)`, one mean `(*point)`.
        """
        weights = self._weights(weights)
        _some_weight(np.atleast_2d(weights))
        return np.tensordot(weights / weights.sum(axis=-1, keepdims=True), np.asarray(self.states), axes=1)

    def modes(self, weights: np.ndarray) -> np.ndarray:
        """Modes of the distribution of the state `(S, *point)` under weights `(S, T)`: `MeanEmbedding.mode` of each
        row.

        For the weights of one time `(T,)`, one mode `(*point)`. For states with a Gaussian kernel or one on rotations;
        the modes are rotations then, which `means` are not.
        """
        weights = self._weights(weights)
        return np.apply_along_axis(lambda row: MeanEmbedding(self.kernel, self.states, row).mode(), -1, weights)

    def _weights(self, weights, several: bool = False) -> np.ndarray:
        weights, size = np.asarray(weights), len(self.features)
        checks.require(
            weights.shape[-1:] == (size,) and weights.ndim in ((2,) if several else (1, 2)) and weights.size > 0,
            f"Weights must have shape {'' if several else f'({size},) or '}(times, {size}), one for each state of the "
            f"training path but the last; got {weights.shape}.",
        )
        checks.sound("weights", weights)
        return weights


def _unit(weights: np.ndarray) -> np.ndarray:
    """Weights with a sum of one, unless there is none."""
    return weights / weights.sum() if weights.any() else weights


def _some_weight(weights: np.ndarray) -> np.ndarray:
    """`weights`, checked not to vanish at any time."""
    totals = weights.sum(axis=1)
    lost = np.flatnonzero(~np.isfinite(totals) | (totals == 0.0))
    checks.require(
        not len(lost),
        f"The filter has lost the state: its weights are zero or not finite at {len(lost)} of {len(weights)} times, "
        f"first at time {lost[0] if len(lost) else 0}. An observation there may be far from all that it learnt from; "
        "widen the kernel on observations, or increase the regularisation.",
        FloatingPointError,
    )
    return weights
