"""BibTeX entries: well formed, one for every engine, and refused for strangers."""

import inspect
import re

import pytest

import numpyro_kme as kme
from numpyro_kme.engines import Engine

ENGINES = [
    name
    for name in kme.engines.__all__
    if isinstance(kind := getattr(kme.engines, name), type)
    and issubclass(kind, Engine)
    and not inspect.isabstract(kind)
]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_a_paper(name):
    entry = kme.cite(getattr(kme.engines, name))
    assert re.match(r"@(article|inproceedings)\{\w+,\n", entry)
    for part in ("title", "author", "year"):
        assert re.search(rf"^  {part} = \{{.+\}},?$", entry, re.MULTILINE)


def test_objects_cite_as_their_class_does():
    assert kme.cite(kme.KernelMeans()) == kme.cite(kme.KELFI)
    assert "Hsu" in kme.cite(kme.KELFI) and "Dellaporta" in kme.cite(kme.PosteriorBootstrap)


def test_an_engine_says_which_form_runs():
    published, default = (kme.cite(kme.KELFI(print, form=form)) for form in (kme.KernelMeans(), None))
    assert published == kme.cite(kme.KELFI)
    assert default.startswith("% ResidualKernelMeans, ") and default.endswith("\n" + published)


def test_the_package_cites_itself():
    assert re.match(r"@software\{numpyro_kme,\n", kme.cite())
    assert f"version = {{{kme.__version__}}}" in kme.cite()


def test_a_class_may_have_its_entry_with_it():
    entry = "@article{nobody2000,\n  title = {Nothing}\n}"
    assert kme.cite(type("Own", (kme.KernelABC,), {"paper": entry})) == entry


def test_classes_without_a_paper_are_refused():
    unknown = type("Unknown", (kme.KernelABC,), {"paper": "nobody2000"})
    for kind, paper in ((dict, None), (kme.MMD(), None), (Engine, None), (unknown, "nobody2000")):
        with pytest.raises(TypeError, match=f"`engine` must be a class with a paper.* is {paper}, neither"):
            kme.cite(kind)
