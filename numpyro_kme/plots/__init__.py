"""Plots of posteriors, learnt likelihoods and checks. Each function returns a matplotlib figure.

They need matplotlib, `pip install "numpyro-kme[plots]"`. Everything else that ArviZ draws is drawn from
`to_inference_data()`.
"""

from numpyro_kme.plots.checks import coverage, ranks, witness
from numpyro_kme.plots.posteriors import informativeness, marginals, pair, surrogate

__all__ = ["coverage", "informativeness", "marginals", "pair", "ranks", "surrogate", "witness"]
