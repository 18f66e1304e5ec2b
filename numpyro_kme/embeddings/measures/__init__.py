"""Probability measures on `R^D` whose kernel embeddings are known: priors in coordinates.

For a Gaussian kernel `k` with `B = diag(length_scale^2)` and a normal measure `N(m, S)`

    int k(a, t) N(t | m, S) dt = |B|^(1/2) |B + S|^(-1/2) exp(-1/2 (a - m)' (B + S)^(-1) (a - m)),

a product of two Gaussian kernels is a Gaussian kernel times a constant, and a mixture is a sum. Everything else goes
by weighted points: a quasi-random set drawn from the measure stands in for it.
"""

from numpyro_kme.embeddings.measures.normal import Normal, NormalMixture, Tilted
from numpyro_kme.embeddings.measures.points import Measure, Points

__all__ = ["Measure", "Normal", "NormalMixture", "Points", "Tilted"]
