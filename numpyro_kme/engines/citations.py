"""What to cite for an engine."""

from importlib.resources import files
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
    entries = references()
    return "\n\n".join(entries[key] for key in keys)


def references() -> dict[str, str]:
    """The entries of `references.bib`, by their keys."""
    text = files("numpyro_kme.engines").joinpath("references.bib").read_text(encoding="utf-8")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in text.strip().split("\n\n")}


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
