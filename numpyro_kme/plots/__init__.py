"""Plots of posteriors, learnt likelihoods and checks. Each function returns a matplotlib figure.

All draw in one style, on the axes `ax` where they are given, else on a new figure, whose size `set_size_inches`
changes; further keywords go to the artist that each names. They need matplotlib, `pip install matplotlib`. Everything
else that ArviZ draws is drawn from `to_inference_data()`.
"""

from numpyro_kme.plots.checks import coverage, predictive, ranks, witness
from numpyro_kme.plots.learnt_statistics import informativeness, learnt, statistics
from numpyro_kme.plots.posteriors import marginals, rounds, surrogate

__all__ = ["coverage", "informativeness", "learnt", "marginals", "predictive", "ranks", "rounds", "surrogate"]
__all__ += ["statistics", "witness"]
