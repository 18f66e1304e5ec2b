"""What to cite for an engine."""

from importlib.resources import files
from typing import Any

from numpyro_kme._core import checks


def cite(engine: Any) -> str:
    """BibTeX entry of the paper behind an engine, a form of the likelihood, or another public class.

    Args:
        engine: A class of the package whose attribute `paper` names one, such as `KELFI`, or an object of it.
    Returns:
        The entry.
    Raises:
        TypeError: If it names no paper.
    """
    cls = engine if isinstance(engine, type) else type(engine)
    paper, entries = str(getattr(cls, "paper", None)), references()
    checks.require(
        paper in entries,
        f"`engine` must be a class with a paper, such as KELFI; the class attribute `paper` of {cls.__name__} is "
        f"{paper}, not a key of engines/references.bib.",
        TypeError,
    )
    return entries[paper]


def references() -> dict[str, str]:
    """The entries of `references.bib`, by their keys."""
    text = files("numpyro_kme.engines").joinpath("references.bib").read_text(encoding="utf-8")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in text.strip().split("\n\n")}
