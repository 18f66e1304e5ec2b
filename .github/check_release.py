"""What must hold before a release: no placeholder is left, and one version everywhere.

`python .github/check_release.py v0.1.0` prints what is wrong, and exits with 1 if anything is. Placeholders (addresses,
DOI, ORCID) are in `pyproject.toml` and `CITATION.cff`, and have the word `placeholder` in them. The drafts of the
recipe for conda-forge and of the paper have some too: they are filled in after a release, and do not stop it.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOLDERS = ("pyproject.toml", "CITATION.cff")
DRAFTS = (".github/conda/recipe.yaml", "docs/paper/paper.md")
RECIPE = ROOT / DRAFTS[0]
REFERENCES = ROOT / "numpyro_kme" / "engines" / "references.bib"


def placeholders() -> list[str]:
    """Every line of the two files that holds a placeholder, as `file:line: text`."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name in HOLDERS
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if re.search(r"placeholder(?!s)", line)
    ]


def versions() -> dict[str, str]:
    """The version as each file has it."""
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    recipe = re.search(r'^  version: "(\S+)"$', RECIPE.read_text(), flags=re.M)
    entry = re.search(r"^  version = \{(\S+)\},$", REFERENCES.read_text(), flags=re.M)
    changes = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    return {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
        "CITATION.cff": citation[1] if citation else "none",
        "numpyro_kme/engines/references.bib": entry[1] if entry else "none",
        ".github/conda/recipe.yaml": recipe[1] if recipe else "none",
        "CHANGELOG.md": changes[1] if changes else "none",
    }


def main(tag: str | None = None) -> int:
    """Print what is wrong; the exit status."""
    found = versions() | ({"tag": tag.removeprefix("v")} if tag else {})
    wrong = placeholders()
    if len(set(found.values())) > 1:
        wrong.append(f"versions differ: {found}")
    print("\n".join(wrong) or f"ready to release {found['pyproject.toml']}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
