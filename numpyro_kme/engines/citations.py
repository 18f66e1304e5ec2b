"""What to cite for an engine."""

from typing import Any

from numpyro_kme._core import checks


def cite(engine: Any) -> str:
    """BibTeX entries of the papers behind an engine, a form of the likelihood, or another public class.

    Args:
        engine: A class of the package, such as `KELFI`, or an object of one.
    Returns:
        The entries, one after the other.
    Raises:
        TypeError: If the package knows no paper for it.
    """
    cls = engine if isinstance(engine, type) else type(engine)
    keys = next((PAPERS[base.__name__] for base in cls.__mro__ if base.__name__ in PAPERS), ())
    checks.require(
        bool(keys),
        f"`engine` must be a class of this package with a paper, such as KELFI; got {cls.__name__}.",
        TypeError,
    )
    return "\n\n".join(ENTRIES[key] for key in keys)


PAPERS = {
    "KELFI": ("hsu2019bayesian",),
    "KernelMeans": ("hsu2019bayesian",),
    "ResidualKernelMeans": ("hsu2019bayesian",),
    "KernelMeansLikelihood": ("hsu2019bayesian",),
    "PosteriorBootstrap": ("dellaporta2022robust",),
    "KernelBayes": ("fukumizu2013kernel",),
    "KernelBayesRule": ("fukumizu2013kernel",),
    "KernelBayesFilter": ("fukumizu2013kernel",),
    "K2ABC": ("park2016k2abc",),
    "KernelABC": ("nakagome2013kernel",),
    "KernelRecursiveABC": ("kajihara2018kernel",),
    "DistributionRegressionABC": ("mitrovic2016drabc",),
    "DistributionRegression": ("mitrovic2016drabc",),
    "KernelBayesSettings": ("fukumizu2013kernel",),
    "BayesianKernelLearning": ("flaxman2016bayesian",),
    "LearntLengthScale": ("flaxman2016bayesian",),
    "RejectionABC": ("pritchard1999population",),
    "SyntheticLikelihood": ("wood2010statistical",),
}

ENTRIES = {
    "hsu2019bayesian": """@inproceedings{hsu2019bayesian,
  title = {Bayesian Learning of Conditional Kernel Mean Embeddings for Automatic Likelihood-Free Inference},
  author = {Hsu, Kelvin and Ramos, Fabio},
  booktitle = {Artificial Intelligence and Statistics},
  year = {2019}
}""",
    "dellaporta2022robust": """@inproceedings{dellaporta2022robust,
  title = {Robust {Bayesian} Inference for Simulator-based Models via the {MMD} Posterior Bootstrap},
  author = {Dellaporta, Charita and Knoblauch, Jeremias and Damoulas, Theodoros and Briol, Fran{\\c c}ois-Xavier},
  booktitle = {Artificial Intelligence and Statistics},
  year = {2022}
}""",
    "fukumizu2013kernel": """@article{fukumizu2013kernel,
  title = {Kernel {Bayes'} Rule: {Bayesian} Inference with Positive Definite Kernels},
  author = {Fukumizu, Kenji and Song, Le and Gretton, Arthur},
  journal = {Journal of Machine Learning Research},
  volume = {14},
  year = {2013}
}""",
    "park2016k2abc": """@inproceedings{park2016k2abc,
  title = {{K2-ABC}: Approximate {Bayesian} Computation with Kernel Embeddings},
  author = {Park, Mijung and Jitkrittum, Wittawat and Sejdinovic, Dino},
  booktitle = {Artificial Intelligence and Statistics},
  year = {2016}
}""",
    "flaxman2016bayesian": """@inproceedings{flaxman2016bayesian,
  title = {{Bayesian} Learning of Kernel Embeddings},
  author = {Flaxman, Seth and Sejdinovic, Dino and Cunningham, John P. and Filippi, Sarah},
  booktitle = {Uncertainty in Artificial Intelligence},
  year = {2016}
}""",
    "nakagome2013kernel": """@article{nakagome2013kernel,
  title = {Kernel Approximate {Bayesian} Computation in Population Genetic Inferences},
  author = {Nakagome, Shigeki and Fukumizu, Kenji and Mano, Shuhei},
  journal = {Statistical Applications in Genetics and Molecular Biology},
  volume = {12},
  year = {2013}
}""",
    "kajihara2018kernel": """@inproceedings{kajihara2018kernel,
  title = {Kernel Recursive {ABC}: Point Estimation with Intractable Likelihood},
  author = {Kajihara, Takafumi and Kanagawa, Motonobu and Yamazaki, Keisuke and Fukumizu, Kenji},
  booktitle = {International Conference on Machine Learning},
  year = {2018}
}""",
    "mitrovic2016drabc": """@inproceedings{mitrovic2016drabc,
  title = {{DR-ABC}: Approximate {Bayesian} Computation with Kernel-Based Distribution Regression},
  author = {Mitrovic, Jovana and Sejdinovic, Dino and Teh, Yee Whye},
  booktitle = {International Conference on Machine Learning},
  year = {2016}
}""",
    "pritchard1999population": """@article{pritchard1999population,
  title = {Population Growth of Human {Y} Chromosomes: A Study of {Y} Chromosome Microsatellites},
  author = {Pritchard, Jonathan K. and Seielstad, Mark T. and Perez-Lezaun, Anna and Feldman, Marcus W.},
  journal = {Molecular Biology and Evolution},
  volume = {16},
  year = {1999}
}""",
    "wood2010statistical": """@article{wood2010statistical,
  title = {Statistical Inference for Noisy Nonlinear Ecological Dynamic Systems},
  author = {Wood, Simon N.},
  journal = {Nature},
  volume = {466},
  year = {2010}
}""",
}
