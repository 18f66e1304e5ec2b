"""BibTeX entries: well formed, one for every engine, and refused for strangers."""

import re

import pytest

import numpyro_kme as kme
from numpyro_kme.engines import Engine, citations

ENGINES = [
    name
    for name in kme.__all__
    if isinstance(kind := getattr(kme, name), type) and issubclass(kind, Engine) and kind is not Engine
]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_a_paper(name):
    entry = kme.cite(getattr(kme, name))
    assert re.match(r"@(article|inproceedings)\{\w+,\n", entry)
    for part in ("title", "author", "year"):
        assert re.search(rf"^  {part} = \{{.+\}},?$", entry, re.MULTILINE)


def test_papers_name_public_classes_and_entries_are_balanced():
    public = {name for part in kme.__all__ for name in (part, *getattr(getattr(kme, part), "__all__", ()))}
    assert {name for names in citations.PAPERS.values() for name in names} <= public
    assert set(citations.PAPERS) == set(citations.references())
    for key, entry in citations.references().items():
        assert entry.count("{") == entry.count("}") and entry.split("{")[1].startswith(key)


def test_objects_cite_as_their_class_does():
    assert kme.cite(kme.KernelMeans()) == kme.cite(kme.KELFI)
    assert "Hsu" in kme.cite(kme.KELFI) and "Dellaporta" in kme.cite(kme.PosteriorBootstrap)


def test_strangers_are_refused():
    with pytest.raises(TypeError, match="`engine` must be"):
        kme.cite(dict)
