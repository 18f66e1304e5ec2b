"""Documentation that cannot rot: the README's code runs, every public name is explained and listed."""

import ast
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from operator import attrgetter
from pathlib import Path
from urllib.parse import unquote

import jax
import numpy as np
import numpyro
import pytest

import numpyro_kme
from numpyro_kme import simulators
from numpyro_kme.simulations import SavedFileError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(text, language):
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def public_objects():
    """What the package's `__all__` lists, and what the modules listed there define or list themselves."""
    found = {}
    for name in numpyro_kme.__all__:
        value = getattr(numpyro_kme, name)
        if not inspect.ismodule(value):
            found[f"numpyro_kme.{name}"] = value
            continue
        defined = [n for n, v in vars(value).items() if getattr(v, "__module__", "") == value.__name__ and n[0] != "_"]
        found |= {f"{value.__name__}.{n}": getattr(value, n) for n in getattr(value, "__all__", defined)}
    return found


PUBLIC = public_objects()


def script(name):
    """A script of `docs` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_as_a_user(*command, timeout=300):
    """A fresh interpreter with JAX's own defaults."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_readme_is_short_and_has_two_commands():
    assert len(README.splitlines()) <= 105
    commands = [line for block in blocks(README, "bash") for line in block.splitlines()]
    assert len(commands) == 2, commands
    assert "examples/blowfly.py" in commands[0] and "pytest" in commands[1]


def test_the_readme_prints_a_posterior_and_writes_its_likelihood_out(capsys):
    first, second = blocks(README, "python")
    assert len(first.splitlines()) <= 20
    names = {"__name__": "__main__"}
    exec(compile(first + second, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert of_words(printed) == of_words(blocks(README, "text")[0])
    trace = numpyro.handlers.trace(numpyro.handlers.seed(names["written_out"], 0)).get_trace(np.array([21.0, 28.0]))
    assert np.isfinite(trace["x"]["fn"].log_prob(trace["x"]["value"]))


def of_words(text):
    """A text without its numbers and the widths of its columns."""
    return re.sub(r"-?[\d.,]+(?=\s)", "0", text).split()


def test_the_first_page_prints_what_the_readme_prints():
    assert blocks(README, "text")[0] in (ROOT / "docs" / "index.md").read_text()


@pytest.mark.parametrize("page", ["quickstart", "index"])
def test_first_pages_have_the_code_of_the_readme(page):
    assert blocks(README, "python")[0] in (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_explained(name):
    value = PUBLIC[name]
    if not callable(value):
        return
    own = inspect.getdoc(value) or ""
    inherited = {inspect.getdoc(base) for base in getattr(value, "__mro__", ())[1:]}
    assert own and own not in inherited, f"{name} has no docstring of its own"
    assert not own.startswith(f"{value.__name__}("), f"{name} has only the docstring that dataclasses make"
    for member, function in vars(value).items() if inspect.isclass(value) else ():
        function = function.fget if isinstance(function, property) else function
        if member[0] != "_" and inspect.isfunction(function):
            assert inspect.getdoc(getattr(value, member)), f"{name}.{member} has no docstring"


def test_every_public_name_has_one_page_of_the_api():
    listed = script("api_lists").listed((ROOT / "docs" / "api.md").read_text())
    objects = [id(attrgetter(name)(numpyro_kme)) for name in listed]
    twice = {name for name, found in zip(listed, objects) if objects.count(found) > 1}
    alias = {"kernels.Laplace", "kernels.Matern12"}
    assert twice == alias, f"docs/api.md lists {sorted(twice)} more than once"
    missing = [name for name, value in PUBLIC.items() if id(value) not in objects and name not in HOLDERS]
    assert not missing, f"docs/api.md does not list {missing}"


HOLDERS = ["numpyro_kme.mcmc.handlers"]
"""Modules whose names are listed one by one."""


def test_a_new_name_needs_no_edit_of_the_page_of_the_api(monkeypatch):
    """The `__all__` of its folder lists it, once: without the folder, where the package itself has it."""
    page, lists = (ROOT / "docs" / "api.md").read_text(), script("api_lists")
    folders = [name for name in numpyro_kme.__all__ if inspect.ismodule(getattr(numpyro_kme, name))]
    assert sorted({*lists.REST.findall(page)}) == sorted({*folders, "mcmc.handlers"} - {"handlers"})
    before = lists.listed(page)
    for name in folders:
        if name == "handlers":
            continue
        folder = getattr(numpyro_kme, name)
        monkeypatch.setattr(folder, "Newest", type("Newest", (), {"__module__": folder.__name__}), raising=False)
        monkeypatch.setattr(folder, "__all__", [*lists.public(folder), "Newest"], raising=False)
    monkeypatch.setattr(numpyro_kme, "Newest", numpyro_kme.losses.Newest, raising=False)
    monkeypatch.setattr(numpyro_kme, "__all__", [*numpyro_kme.__all__, "Newest"])
    found = lists.listed(page)
    new = ["Newest", *(f"{name}.Newest" for name in folders if name not in ("handlers", "losses"))]
    assert sorted(found) == sorted(before + new)


def simulator_rows():
    """`(module, number of parameters, shape of x)` from the tables of docs/simulators.md."""
    page = (ROOT / "docs" / "simulators.md").read_text()
    rows = re.findall(r"^\| `simulators\.(\w+)` \|[^|]+\| (\d+) \| `\(([\d,]*)\)` \|", page, flags=re.M)
    return [(name, int(number), tuple(map(int, filter(None, shape.split(","))))) for name, number, shape in rows]


@pytest.mark.parametrize("name, number, shape", simulator_rows())
def test_the_page_of_simulators_says_what_they_take_and_give(name, number, shape):
    module = importlib.import_module(f"numpyro_kme.simulators.{name}")
    assert len(module.PARAMETERS) == number
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
        jax.eval_shape(lambda: module.model(np.zeros(shape)))
    site = trace["x"]["fn"]
    assert site.batch_shape + site.event_shape == shape


def test_every_simulator_has_a_page():
    page = (ROOT / "docs" / "simulators.md").read_text()
    listed = re.findall(r"^   simulators\.(\w+)$", page, flags=re.M)
    assert sorted(listed) == sorted(row[0] for row in simulator_rows()) == sorted(simulators.__all__)


def lines_of_summaries():
    """Names of the lines of `KELFI.print_summary`, from the functions that write them."""
    rooms = [*(ROOT / "numpyro_kme" / "likelihoods").rglob("*.py"), *(ROOT / "numpyro_kme" / "engines").glob("*.py")]
    written = ("describe", "describe_observation", "reported", "missing_entries", "draw_in_model", "as_drawn")
    functions = [f for path in rooms for f in ast.walk(ast.parse(path.read_text())) if isinstance(f, ast.FunctionDef)]
    for node in [node for f in functions if f.name in written for node in ast.walk(f)]:
        keys = node.keys if isinstance(node, ast.Dict) else [node.slice] if isinstance(node, ast.Subscript) else []
        for key in [key.values[0] if isinstance(key, ast.JoinedStr) else key for key in keys]:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value.strip()


def test_every_line_of_a_summary_is_explained():
    page = (ROOT / "docs" / "howto" / "summary.md").read_text().partition("(what-the-summary-says)=")[2]
    cells = re.findall(r"^\| ([^|]+) \|", page, flags=re.M)
    explained = {part for cell in cells for part in (cell, *cell.split(", "))}
    lines = set(lines_of_summaries()) - {"lp"}  # a field of draws
    assert {"simulations", "form", "missing", "sampler", "rounds", "log marginal likelihood", "prior sd of"} <= lines
    assert lines <= explained, f"docs/howto/summary.md does not explain {sorted(lines - explained)}"


PLAIN = {
    r"\blaws?\b": "distribution",
    r"\bpictures?\b": "figure or plot",
    r"\bbanks?\b": "simulations, training set",
    r"\bsays? (?:it )?in words\b|\bsentences?\b": "error, warning, message",
    r"(?<![\w.)\]])\.\d": "a zero before the point",
    r"\bspreads\b(?! (?:its|ties))": "standard deviations",
}
"""Words of the project's own that a reader would not search for, and what to write (a list of terms)."""


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda path: path.stem,
)
def test_pages_use_the_terms_of_the_field(path):
    text = re.sub(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|power law", "", path.read_text(), flags=re.M | re.S)
    found = [(match.group(), term) for words, term in PLAIN.items() for match in re.finditer(words, text)]
    assert not found, found


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_lines_of_code_fit_the_built_page(path):
    """88 characters: longer lines scroll sideways."""
    code = re.findall(r"^ *```(?:python|bash|r|\{code-cell\})\n(.*?)^ *```", path.read_text(), flags=re.M | re.S)
    wide = [line for block in code for line in block.splitlines() if len(line) > 88]
    assert not wide, wide


def test_every_class_and_function_of_the_package_itself_has_an_example():
    scripts = (ROOT / "docs" / "api" / "examples").glob("*.py")
    shown = [name for script in scripts for name in re.findall(r"^# %% (.*)$", script.read_text(), flags=re.M)]
    wanted = [name for name in numpyro_kme.__all__ if not inspect.ismodule(getattr(numpyro_kme, name))]
    wanted += [f"mcmc.handlers.{name}" for name in numpyro_kme.handlers.__all__]
    assert sorted(shown) == sorted(wanted)


@pytest.mark.slow
def test_the_examples_of_the_api_run_without_a_warning():
    printed = json.loads(run_as_a_user(sys.executable, "-W", "error::UserWarning", "docs/api_examples.py"))
    assert all(printed.values()), [name for name, text in printed.items() if not text]


def test_properties_keep_their_words_before_a_colon():
    docstring = pytest.importorskip("sphinx.ext.napoleon", reason="needs the docs extra").GoogleDocstring
    found = {}
    for what in ("property", "function"):
        script("docstrings").process(None, what, "", None, None, lines := ["Most rounds: those asked for"])
        found[what] = str(docstring(lines, what=what, name="rounds")).strip(".\n")
    assert found == dict.fromkeys(found, "Most rounds: those asked for")


def test_the_page_of_errors_explains_messages_that_exist():
    printed = run_as_a_user(sys.executable, "docs/messages.py")
    page = (ROOT / "docs" / "errors.md").read_text()
    quoted = [words.replace("\\<", "<") for words in re.findall(r"^> (.+)$", page, flags=re.M)]
    entries = page.count("\n### ")
    assert entries >= 40 and page.count("**Cause**") == page.count("**Remedy**") == entries <= len(quoted)
    assert not [words for words in quoted if words not in printed]
    messages = [line.strip() for line in printed.splitlines() if line.startswith("   ")]
    assert len(messages) > 400 and "<value>" in printed
    alone = [text for text in messages if not any(words in text for words in quoted)]
    assert not [
        text
        for text in alone
        if text.startswith("warning") or not {*ADVICE.split()} & {*re.findall(r"<?\w+>?", text.lower())}
    ]


ADVICE = """
must need needs should use give pass leave make change simulate raise increase reduce remove repair read restore install
define declare draw write widen narrow check call put add turn let fit look choose correct run compare start observe
name divide return wait learn belongs <advice> <why> <note> <made> <further>
"""
"""Words of messages that say themselves what to do; the others, and all warnings, have cause and remedy on the page."""


@pytest.mark.parametrize(
    "error, message, raises",
    [
        (ValueError, "`times` must be at least 1; got 0.", lambda: numpyro_kme.Retry(times=0)),
        (RuntimeError, r"run\(rng_key, ...\) should be called first", lambda: numpyro_kme.KELFI(print).posterior),
        (SavedFileError, "There is no file", lambda: numpyro_kme.Simulations.load("never.kme")),
    ],
)
def test_errors_give_their_page(error, message, raises):
    with pytest.raises(error, match=message) as caught:
        raises()
    assert caught.value.__notes__ == ["Causes and remedies: docs/errors.md"] and (ROOT / "docs/errors.md").exists()


def test_every_error_gives_the_page():
    """No `raise` of the package makes its error by hand, but for those that the package catches itself."""
    messages = script("messages")
    by_hand = {
        (path.name, kind)
        for path in (ROOT / "numpyro_kme").rglob("*.py")
        for kind in messages.raised_by_hand(ast.parse(path.read_text()))
    }
    assert by_hand == MADE_BY_HAND


MADE_BY_HAND = {("tuberculosis.py", "RuntimeError"), ("compat.py", "NotImplementedError")}
"""A simulator's, which `SimulationError` quotes, and one whose message is another module's."""


def test_the_page_of_benchmarks_asks_for_tables_that_exist():
    results, page = script("results"), (ROOT / "docs" / "benchmarks.md").read_text()
    asked = results.ASKED.findall(page)
    assert len(asked) == page.count("\n% table ") >= 7
    assert all(results.table(*one).count("\n") >= 3 for one in asked)


def test_names_in_the_notation_table_exist():
    rows = [
        line.split("|")[2] for line in (ROOT / "docs" / "notation.md").read_text().splitlines() if line.count("|") > 3
    ]
    names = [name for row in rows for name in re.findall(r"`(numpyro_kme[\w.]*)", row)]
    assert len(names) >= 8
    for name in names:
        resolve(name)


def resolve(dotted):
    """Import the longest module in `a.b.c` and follow the rest as attributes, dataclass fields included."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            fields = getattr(value, "__dataclass_fields__", {})
            assert hasattr(value, part) or part in fields, f"{dotted} does not exist"
            value = getattr(value, part, None)
        return value
    raise AssertionError(f"{dotted} does not exist")


ENGINES = """
KELFI PosteriorBootstrap K2ABC KernelABC KernelBayes KernelRecursiveABC RejectionABC DistributionRegressionABC
SyntheticLikelihood PseudoMarginal MMD Wasserstein NegativeLogLikelihood handlers.surrogate handlers.generalized_bayes
"""


def test_every_engine_runs_in_the_gallery_or_inside_mcmc():
    """On data or a simulator of science; `KernelBayesFilter` runs through `settings.filter`."""
    pages = [*sorted((ROOT / "docs" / "gallery").glob("*.md")), ROOT / "docs" / "mcmc.md"]
    cells = "".join(code for page in pages for code in blocks(page.read_text(), "{code-cell}"))
    missing = [name for name in ENGINES.split() if f"kme.{name}(" not in cells]
    assert not missing and ".settings.filter(" in cells, missing


GALLERY = sorted({*(ROOT / "docs" / "gallery").glob("*.md")} - {ROOT / "docs" / "gallery" / "index.md"})


@pytest.mark.parametrize("page", GALLERY, ids=lambda path: path.stem)
def test_a_page_of_the_gallery_asserts_its_result(page):
    """Beside a reference: a closed form, the truth, another engine, a published estimate."""
    cells = "".join(blocks(page.read_text(), "{code-cell}"))
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(cells)))


def test_the_gallery_shows_every_page_of_it():
    index = (ROOT / "docs" / "gallery" / "index.md").read_text()
    pages = {page.stem for page in GALLERY}
    assert pages == {*re.findall(r"^:target: (\w+)\.html$", index, flags=re.M)}
    assert pages == {*re.findall(r"^(\w+)$", index.rpartition("{toctree}")[2], flags=re.M)}


@pytest.mark.slow
def test_docs_build_without_warnings(tmp_path):
    pytest.importorskip("myst_nb", reason="needs the docs extra")
    run_as_a_user(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(tmp_path), timeout=1500)
    assert (tmp_path / "kelfi.html").exists() and (tmp_path / "api" / "numpyro_kme.KELFI.html").exists()
    assert not broken_links(tmp_path)


class Page(HTMLParser):
    """The names that a page can be entered at, and where its links and pictures lead."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = {""}, set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id") or "")
        self.links |= {unquote(found[name]) for name in ("href", "src") if found.get(name)}


def broken_links(folder):
    """Links within a built site that lead nowhere, as `page -> link`; those to other sites are not tried, nor those
    that pages of source code have back to the API, which Sphinx makes by the defining module."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in sorted(link for link in page.links if not re.match(r"[a-z]+:|//", link)):
            target, _, anchor = link.partition("#")
            to = (path.parent / target.partition("?")[0]).resolve() if target else path
            to = to / "index.html" if to.is_dir() else to
            source = "_modules" in path.relative_to(folder).parts
            if not to.exists() or (to in pages and anchor not in pages[to].anchors and not source):
                broken.append(f"{path.relative_to(folder)} -> {link}")
    return broken


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<p id="here"></p><a href="#here"></a><a href="b.html#x"></a><img src="c.png">')
    (tmp_path / "b.html").write_text(
        '<a href="a.html#here"></a><a href="https://num.pyro.ai/nowhere"></a><a href="d/">'
    )
    assert broken_links(tmp_path) == ["a.html -> b.html#x", "a.html -> c.png", "b.html -> d/"]
