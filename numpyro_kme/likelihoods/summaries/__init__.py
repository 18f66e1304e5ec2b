"""Summary statistics learnt from the simulations: of series, images and sets, or chosen among many."""

from numpyro_kme.likelihoods.summaries.base import LearntStatistics, Statistics
from numpyro_kme.likelihoods.summaries.features import Features, Images, Sets, Values
from numpyro_kme.likelihoods.summaries.form import OfStatistics
from numpyro_kme.likelihoods.summaries.selection import SelectedStatistics
from numpyro_kme.likelihoods.summaries.semi_automatic import SemiAutomaticStatistics
from numpyro_kme.likelihoods.summaries.series import Series

__all__ = ["Features", "Images", "LearntStatistics", "OfStatistics", "SelectedStatistics", "SemiAutomaticStatistics"]
__all__ += ["Series", "Sets", "Statistics", "Values"]
