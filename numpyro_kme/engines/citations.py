"""What to cite for an engine."""

from importlib.resources import files
from typing import Any

from numpyro_kme._core import checks


def cite(engine: Any) -> str:
    """BibTeX entry of the paper behind an engine, a form of the likelihood, or another public class.

    Args:
        engine: A class of the package, such as `KELFI`, or an object of one.
    Returns:
        The entry.
    Raises:
        TypeError: If the package knows no paper for it.
    """
    cls = engine if isinstance(engine, type) else type(engine)
    key = next((key for base in cls.__mro__ for key, names in PAPERS.items() if base.__name__ in names), None)
    checks.require(
        key is not None,
        f"`engine` must be a class of this package with a paper, such as KELFI; got {cls.__name__}.",
        TypeError,
    )
    return references()[str(key)]


def references() -> dict[str, str]:
    """The entries of `references.bib`, by their keys."""
    text = files("numpyro_kme.engines").joinpath("references.bib").read_text(encoding="utf-8")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in text.strip().split("\n\n")}


PAPERS = {
    "hsu2019bayesian": ("KELFI", "KernelMeans", "ResidualKernelMeans", "KernelMeansLikelihood"),
    "dellaporta2022robust": ("PosteriorBootstrap",),
    "fukumizu2013kernel": ("KernelBayes", "KernelBayesRule", "KernelBayesFilter", "KernelBayesSettings"),
    "park2016k2abc": ("K2ABC",),
    "nakagome2013kernel": ("KernelABC",),
    "kajihara2018kernel": ("KernelRecursiveABC",),
    "mitrovic2016drabc": ("DistributionRegressionABC", "DistributionRegression"),
    "flaxman2016bayesian": ("BayesianKernelLearning", "LearntLengthScale"),
    "pritchard1999population": ("RejectionABC",),
    "wood2010statistical": ("SyntheticLikelihood",),
}
"""Which classes stand on which paper."""
