"""Embeddings of distributions: means, conditional means and rules on them, squared MMD and tests, herding, measures."""

from numpyro_kme.embeddings import measures
from numpyro_kme.embeddings.filtering import KernelBayesFilter
from numpyro_kme.embeddings.hypothesis_tests import PermutationTest, hsic, hsic_test, mmd_test
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule, conditional_embedding, kernel_sum_rule
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding, MeanEmbedding, herd
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.embeddings.mmd import Fourier, LinearTime, Quadratic, squared_mmd
from numpyro_kme.embeddings.parameter_choice import (
    ChosenSettings,
    KernelBayesSettings,
    choose_by_folds,
    choose_by_holdout,
    choose_by_prediction,
    kernel_bayes_candidates,
)

__all__ = ["ConditionalMeanEmbedding", "MeanEmbedding", "Measure", "herd", "measures"]
__all__ += ["Fourier", "LinearTime", "Quadratic", "squared_mmd"]
__all__ += ["PermutationTest", "hsic", "hsic_test", "mmd_test"]
__all__ += ["KernelBayesFilter", "KernelBayesRule", "conditional_embedding", "kernel_sum_rule"]
__all__ += ["ChosenSettings", "KernelBayesSettings", "kernel_bayes_candidates"]
__all__ += ["choose_by_folds", "choose_by_holdout", "choose_by_prediction"]
