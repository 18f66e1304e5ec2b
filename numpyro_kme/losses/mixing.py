r"""The squared MMD as a function of two inner products, with the model's measure normalised or not.

Everywhere in this package the **mixing proportion** is the `c` in `[0, 1]` of an unnormalised model measure `c P_u`.
Where it is fitted (`MMD(fit_proportion=True)`), the data are taken for a mixture of the model, with proportion `c`, and
of points that it does not explain, and the loss is

    min_{0 <= c <= 1} |mu_w - c mu_u|^2 = |mu_w|^2 - 2 c s + c^2 q,    c = min(max(s / q, 0), 1),

with `q = |mu_u|^2` and `s = <mu_w, mu_u>`; otherwise `c = 1`. Without the bound at one a diffuse model, whose `q` is
small and known the worst, would win by a proportion that means nothing.

Reference: Scott (2004), Partial mixture estimation and outlier detection, in Theory and Applications of Recent Robust
Methods.
"""

from typing import Any


def discrepancy(q: Any, s: Any, fit_proportion: bool) -> Any:
    """Squared MMD without the constant `|mu_w|^2`, from `q = |mu_u|^2` and `s = <mu_w, mu_u>`, of JAX or NumPy.

    `c^2 q - 2 c s`, with `c = 1`, or the fitted mixing proportion.
    """
    c = proportion(q, s) if fit_proportion else 1.0
    return c * (c * q - 2.0 * s)


def derivatives(q: Any, s: Any, fit_proportion: bool) -> tuple[Any, Any, Any]:
    """Value `(...)`, gradient `(2, ...)` and Hessian `(2, 2, ...)` of `discrepancy` in `(q, s)`, of JAX or NumPy.

    The gradient is `(c^2, -2 c)`, whether the proportion `c` is fitted or at a bound; where it is fitted inside, the
    Hessian is `-(2 / q) (c, -1) (c, -1)'`.
    """
    xp = q.__array_namespace__()
    c, curvature = xp.ones_like(q), xp.zeros_like(q)
    if fit_proportion:
        c = proportion(q, s)
        curvature = xp.where((c > 0.0) & (c < 1.0), -2.0 / xp.where(q == 0.0, 1.0, q), 0.0)
    hessian = curvature * xp.stack([xp.stack([c * c, -c]), xp.stack([-c, xp.ones_like(q)])])
    return c * (c * q - 2.0 * s), xp.stack([c * c, -2.0 * c]), hessian


def proportion(q: Any, s: Any) -> Any:
    """Mixing proportion `c = s / q` that fits best, or the nearer of 0 and 1, of JAX or NumPy; 0 where `q` is."""
    xp = q.__array_namespace__()
    return xp.clip(s / xp.where(q == 0.0, 1.0, q), 0.0, 1.0)
