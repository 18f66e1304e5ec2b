"""BibTeX of the papers behind engines and other public classes."""

from importlib.resources import files
from typing import Any

from numpyro_kme._core import checks


def cite(engine: Any = None) -> str:
    """BibTeX of the paper behind an engine, a form of the likelihood, or another public class; or of this package.

    Args:
        engine: A class of the package or of yours with an attribute `paper`, such as `KELFI`, or an object of it; the
            package itself when left out.
    Returns:
        The entry; of a `KELFI` with another form than the published one behind a line that says so.
    Raises:
        TypeError: If it names no paper.
    """
    entries = references()
    if engine is None:
        return entries["numpyro_kme"]
    cls = engine if isinstance(engine, type) else type(engine)
    paper = str(getattr(cls, "paper", None))
    checks.require(
        paper in entries or paper.startswith("@"),
        f"`engine` must be a class with a paper, such as KELFI; the class attribute `paper` of {cls.__name__} is "
        f"{paper}, neither BibTeX nor a key of engines/references.bib.",
        TypeError,
    )
    note = "" if isinstance(engine, type) else getattr(engine, "citation_note", "")
    return f"{note}\n{entries.get(paper, paper)}" if note else entries.get(paper, paper)


def references() -> dict[str, str]:
    """The entries of `references.bib`, by their keys: papers, and the package."""
    text = files("numpyro_kme.engines").joinpath("references.bib").read_text(encoding="utf-8")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in text.strip().split("\n\n")}
