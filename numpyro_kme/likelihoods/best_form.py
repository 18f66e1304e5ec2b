"""The form of the likelihood that predicts held-out simulations best."""

from typing import Any

import numpy as np

from numpyro_kme._core import checks, frozen
from numpyro_kme.likelihoods.base import Form, Surrogate
from numpyro_kme.likelihoods.extrapolation import Repeats
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.surrogate import MIN_SIMULATIONS
from numpyro_kme.likelihoods.trials.form import KernelExponentialFamily, TrialsSurrogate

ENOUGH = 3000
"""Rows that forms are tried on, and as many of other parameters on which they are compared."""


@frozen
class BestForm(Form):
    r"""The residual form or the kernel exponential family, whichever has the larger mean of $\log q(x_j \mid z_j)$ on
    simulations at a fifth of the parameters, which it was not learnt from.

    Which form suits draws of several numbers depends on the simulator: the residual form where parameters move and
    stretch their distribution, the other where they change its shape, as the weights of a mixture do.
    """

    most_calls = KernelExponentialFamily.most_calls

    def fit(self, z, x, *, measure=None, y=None) -> Surrogate:
        """Implement `Form.fit`."""
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        repeats = Repeats.of(z)
        best = self._held_out(z, x, repeats) if len(repeats) >= MIN_SIMULATIONS else ResidualKernelMeans()
        rows = slice(max(best.most_calls, len(repeats)))  # one of each parameter at least, which stand first
        return best.fit(z[rows], x[rows])

    def _held_out(self, z, x, repeats) -> Form:
        held = np.random.default_rng(0).permutation(len(repeats))[repeats.kind] < len(repeats) // 5
        first, then = np.flatnonzero(~held)[:ENOUGH], np.flatnonzero(held)[:ENOUGH]
        forms = ResidualKernelMeans(), KernelExponentialFamily()
        with checks.collected_warnings():  # the one that is chosen says them again
            scores = [np.mean(f.fit(z[first], x[first]).at_rows(x[then], 1).log_density(z[then])) for f in forms]
        return forms[int(np.argmax(scores))]

    def again(self, learnt: Any, z, x, rows, *, measure=None, y=None) -> Surrogate:
        """Implement `Form.again`: by the form that was the best."""
        form = KernelExponentialFamily() if isinstance(learnt, TrialsSurrogate) else ResidualKernelMeans()
        few = rows[rows < max(form.most_calls, len(Repeats.of(z)))]
        return form.again(learnt, z, x, few)
