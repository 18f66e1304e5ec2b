"""Learnt summary statistics: settings that are fitted to simulations, and what they give."""

from numpyro_kme.likelihoods.summaries.base import Learnt, LearntStatistics, Statistics

__all__ = ["Learnt", "LearntStatistics", "Statistics"]
