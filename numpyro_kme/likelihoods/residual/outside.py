r"""Outside the simulated region: what residuals are taken for where no simulation says how functions go on.

Functions stay as they are at the nearest point $\tilde z$ of the region, where $r_i = t_i - \mu_i(\tilde z)$ is what an
observation differs by. By their usual slopes location and log scale may have moved, either way, by

$$ \delta_i^2 = \sum_d \overline{(\partial \mu_i / \partial z_d)^2} (z_d - \tilde z_d)^2, \qquad
   \tau_i^2 = \sum_d \overline{(\partial \log \sigma_i / \partial z_d)^2} (z_d - \tilde z_d)^2, $$

so that what differs has the variance $s_i^2 = \sigma_i^2 \exp(2 \tau_i^2 / \sqrt{1 + \tau_i^2}) + \delta_i^2$, and
densities are divided by $s_i$. But that a location may have moved either way explains no observation: only that it may
have gone on towards it, where slopes agree on the way, by the part of their mean square that their variance leaves,

$$ u_i = r_i / \sqrt{\sigma_i^2 + b_i^2}, \qquad b_i^2 = \sum_d c_{id}^2 (z_d - \tilde z_d)^2
   \text{ over those } d \text{ in which } \overline{\partial \mu_i / \partial z_d} (z_d - \tilde z_d) r_i > 0, \qquad
   c_{id}^2 = \max\big(0, \overline{\partial \mu_i / \partial z_d}^2 - \operatorname{var}\big). $$

So a density falls outwards unless the locations lead to the observation there: it has no second peak beyond an edge
that they have passed it by, and draws lie beyond an edge that they have not reached it at. As $b_i \le \delta_i$ the
density integrates to 1 in the observation inside the region, and to less outside.
"""

from typing import Any

import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register


@register
class UsualSlopes:
    """Squared slopes of `n` statistics over the simulations, by which functions may go on.

    Attributes:
        either: Mean squares of the slopes of locations and of log scales, `(2, n, D)`.
        onwards: `c^2`, of increasing and of decreasing locations, 0 for the others, `(2, n, D)`.
    """

    either: Array
    onwards: Array

    @classmethod
    def of(cls, location: np.ndarray, log_scale: np.ndarray) -> "UsualSlopes":
        """From slopes of both at points, `(m, n, D)` each."""
        mean, either = np.mean(location, axis=0), np.mean(np.square([location, log_scale]), axis=1)
        agreed = np.maximum(0.0, 2.0 * np.square(mean) - either[0])
        return cls(either, np.stack([np.where(mean > 0.0, agreed, 0.0), np.where(mean < 0.0, agreed, 0.0)]))

    @property
    def scale_information(self) -> np.ndarray:
        """Fisher information of the scales about each coordinate, of normal residuals, `(n, D)`."""
        return 2.0 * np.asarray(self.either)[1]

    def some(self, chosen: np.ndarray) -> "UsualSlopes":
        """Those of the statistics with these numbers."""
        return UsualSlopes(np.asarray(self.either)[:, chosen], np.asarray(self.onwards)[:, chosen])

    def without(self, left: np.ndarray) -> "UsualSlopes":
        """With slopes of 0 for the statistics that are `left` out, `(n,)`."""
        return UsualSlopes(*(np.where(left[:, None], 0.0, leaf) for leaf in (self.either, self.onwards)))

    def residuals(self, differences: Any, moved: Any, log_scale: Any, xp: Any) -> tuple[Any, Any]:
        """`u` and `log s`, `(..., n)`.

        Args:
            differences: `r`, `(..., n)`.
            moved: `z - z~`, `(..., D)`.
            log_scale: `log sigma` at `z~`, `(..., n)`.
        """
        if xp is np and not moved.any():
            return differences * np.exp(-log_scale), log_scale
        (location, scale), (up, down) = (xp.asarray(leaf).astype(moved.dtype) for leaf in (self.either, self.onwards))
        right, left = xp.square(xp.maximum(moved, 0.0)), xp.square(xp.maximum(-moved, 0.0))
        towards = xp.where(differences > 0.0, right @ up.T + left @ down.T, right @ down.T + left @ up.T)
        tau = xp.square(moved) @ scale.T
        size = _wider(log_scale + tau / xp.sqrt(1.0 + tau), xp.square(moved) @ location.T, xp)
        return differences * xp.exp(-_wider(log_scale, towards, xp)), size


def _wider(log_scale: Any, square: Any, xp: Any) -> Any:
    """Log standard deviation of a sum, of which the log of one and the square of the other are given."""
    own, other = 2.0 * log_scale, xp.log(square + 1e-30)  # keeps a logarithm finite
    if xp is np:  # `logaddexp` of NumPy takes nine times as long
        return 0.5 * (np.maximum(own, other) + np.log1p(np.exp(-np.abs(own - other))))
    return 0.5 * xp.logaddexp(own, other)
