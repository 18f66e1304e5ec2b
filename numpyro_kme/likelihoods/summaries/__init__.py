"""What summary statistics are learnt from: features of series, images and sets; and what learnt statistics are."""

from numpyro_kme.likelihoods.summaries.base import Learnt, LearntStatistics, Statistics
from numpyro_kme.likelihoods.summaries.features import Features, Images, Series, Sets, Values

__all__ = ["Features", "Images", "Learnt", "LearntStatistics", "Series", "Sets", "Statistics", "Values"]
