"""What is published: versions, the README as PyPI shows it, extras that hold what the docs import, and placeholders."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
DISTRIBUTIONS = {"sklearn": "scikit-learn", "ot": "pot"}
"""Names of distributions that differ from what is imported."""


def script(name):
    """A script of `.github` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".github" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check_release():
    return script("check_release")


def test_pages_of_every_version_stay_and_stable_is_the_latest(tmp_path):
    publish, pages, site = script("publish_docs").publish, tmp_path / "pages", tmp_path / "site"
    pages.mkdir(), site.mkdir()
    with pytest.raises(SystemExit, match="no pages"):
        publish(pages, site, "v0.9.0")
    for tag in ("v0.9.0", "v0.10.0", "v0.9.1"):  # the last mends an older line
        (pages / "index.html").write_text(tag)
        listed = publish(pages, site, tag)
    assert listed == ["0.10.0", "0.9.1", "0.9.0"]
    assert json.loads((site / "versions.json").read_text()) == ["stable", *listed]
    found = {name: (site / name / "index.html").read_text() for name in ["stable", *listed]}
    assert found == {"stable": "v0.10.0", "0.10.0": "v0.10.0", "0.9.1": "v0.9.1", "0.9.0": "v0.9.0"}
    assert "stable/search.html" in (site / "404.html").read_text()
    with pytest.raises(SystemExit, match="got 'main'"):
        publish(pages, site, "main")


def test_one_version_everywhere(check_release):
    assert set(check_release.versions().values()) == {PROJECT["project"]["version"]}


def test_the_first_release_mends_nothing_that_somebody_had():
    first = (ROOT / "CHANGELOG.md").read_text().partition("## [0.1.0]")[2]
    assert re.findall(r"^### (\w+)$", first, flags=re.M) == ["Added"]


def test_a_release_is_refused_under_another_tag(check_release, capsys):
    assert check_release.main("v999.0") == 1
    assert "'tag': '999.0'" in capsys.readouterr().out


def test_placeholders_are_in_the_files_that_the_check_reads(check_release):
    listed = subprocess.run(["git", "grep", "-lE", "placeholder[./]"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode > 1:
        pytest.skip("not a git checkout")
    beside = set(listed.stdout.split()) - {*check_release.HOLDERS, *check_release.DRAFTS}
    assert not beside, f"placeholders belong into {check_release.HOLDERS}, and are in {beside} too"


def test_the_recipe_for_conda_asks_for_what_the_package_asks_for(check_release):
    yaml = pytest.importorskip("yaml", reason="reads the recipe")
    recipe = yaml.safe_load(check_release.RECIPE.read_text())
    project = PROJECT["project"]

    def spaceless(lines):
        return {line.replace(" ", "") for line in lines}

    assert recipe["package"]["name"] == project["name"] and recipe["about"]["license"] == project["license"]
    assert f">={recipe['context']['python_min']}" == project["requires-python"]
    python, *run = recipe["requirements"]["run"]
    assert python == "python >=${{ python_min }}" and spaceless(run) == spaceless(project["dependencies"])
    assert spaceless(PROJECT["build-system"]["requires"]) <= spaceless(recipe["requirements"]["host"])


def test_the_paper_cites_what_its_bibliography_has():
    paper, bibliography = ((ROOT / "docs" / "paper" / f"paper.{kind}").read_text() for kind in ("md", "bib"))
    entries = re.findall(r"^@\w+\{(\w+),$", bibliography, flags=re.M)
    assert len(entries) == len(set(entries)) and set(re.findall(r"@(\w+)", paper)) == set(entries)
    assert 250 <= len(paper.split()) <= 1750  # what the journal takes


def published_readme():
    """The README after the substitutions of pyproject.toml."""
    text = README
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    return text


def test_links_of_the_readme_are_files_here_and_absolute_on_pypi():
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", README)
    local = [(image, target) for image, target in links if not target.startswith("http")]
    assert local and all((ROOT / target).exists() for _, target in local), local
    published = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", published_readme())
    base = PROJECT["project"]["urls"]["Repository"]
    assert [target.startswith("https://") for _, target in published] == [True] * len(links)
    for image, target in local:
        assert (image, f"{base}/{'raw' if image else 'blob'}/main/{target}") in published


def required(extra=None):
    """Names of what is installed: by default, and with an extra and the extras in it."""
    project = PROJECT["project"]
    names = set()
    for line in project["optional-dependencies"][extra] if extra else project["dependencies"]:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", line).groups()
        names |= {name.lower()} if name != project["name"] else set().union(*map(required, extras.split(",")))
    return names


def imported(text):
    """Top-level names that Python code imports, also inside functions."""
    return set(re.findall(r"^\s*(?:import|from) (\w+)[\w.]*(?: as | import |\s*#|\s*$)", text, flags=re.M))


def test_the_extra_all_holds_what_readme_docs_and_examples_import():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    pages = [page for page in pages if page.parent.name != "coming_from"]  # programs of other packages
    cells = r"^```(?:python|\{code-cell\})\n([\s\S]*?)^```"
    code = ["\n".join(re.findall(cells, page.read_text(), flags=re.M)) for page in pages]
    scripts = {path.stem for path in (ROOT / "examples").rglob("*")}
    code += [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    names = (
        set().union(*map(imported, code)) - set(sys.stdlib_module_names) - scripts - {"numpyro_kme", "dask"}
    )  # a cluster brings its Dask
    names = {DISTRIBUTIONS.get(name, name) for name in names}
    assert {"jax", "scikit-learn", "matplotlib"} <= names
    assert names <= required() | required("all"), names - required() - required("all")


def test_the_page_of_the_installation_lists_every_extra_and_the_versions_asked_for():
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, flags=re.M)
    assert sorted(re.findall(r"\w+", " ".join(rows))) == sorted(PROJECT["project"]["optional-dependencies"])
    for name, asked in (("NumPyro", "numpyro>="), ("ArviZ", "arviz>="), ("JAX", "jax>=")):
        line = next(line for line in PROJECT["project"]["dependencies"] if line.startswith(asked))
        assert f"| {name} | {re.search(r'[0-9.]+[0-9]', line)[0]} and later" in page
    assert f"| Python | {PROJECT['project']['requires-python'].removeprefix('>=')} and later" in page


def test_all_holds_every_extra_of_users_and_the_default_only_what_the_package_imports():
    extras = PROJECT["project"]["optional-dependencies"]
    assert set().union(*map(required, extras.keys() - {"test", "docs", "dev"})) == required("all")
    used = set().union(*(imported(path.read_text()) for path in (ROOT / "numpyro_kme").rglob("*.py")))
    assert required() <= used, required() - used


def pinned():
    """The pins of `.github/constraints.txt`, `{name: [(version, marker)]}`."""
    found = {}
    for line in (ROOT / ".github" / "constraints.txt").read_text().splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            name, version, marker = re.fullmatch(r"([\w.-]+)==([^ ;]+)(?: ; (.+))?", line).groups()
            found.setdefault(name.lower(), []).append((version, marker or ""))
    return found


def test_the_constraints_pin_what_every_extra_asks_for_to_versions_that_it_takes():
    requirements = pytest.importorskip("packaging.requirements", reason="reads requirements")
    project, pins = PROJECT["project"], pinned()
    asked = [line for lines in project["optional-dependencies"].values() for line in lines] + project["dependencies"]
    for one in map(requirements.Requirement, asked):
        if one.name != project["name"]:
            versions = [version for version, _ in pins[one.name.lower()]]
            assert versions and all(one.specifier.contains(version) for version in versions), (str(one), versions)
    first = (ROOT / ".github" / "constraints.txt").read_text().splitlines()[1]
    assert f"--python-version {project['requires-python'].removeprefix('>=')} " in first and "--all-extras" in first


def workflows():
    """The workflows, and the settings of the robot that watches versions, by name."""
    yaml = pytest.importorskip("yaml", reason="reads workflows")
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".github" / "dependabot.yml"]
    return {path.stem: yaml.safe_load(path.read_text()) for path in files}


def test_workflows_have_no_more_rights_than_they_need_and_versions_are_watched():
    found = workflows()
    watched = {one["package-ecosystem"] for one in found.pop("dependabot")["updates"]}
    assert watched == {"github-actions", "pip"} and {"tests", "nightly", "release", "codeql"} <= found.keys()
    for name, workflow in found.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        for job in workflow["jobs"].values():
            assert set(job.get("permissions", {})) <= {"contents", "security-events", "id-token"}, name


def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path):
    run = next(step["run"] for step in workflows()["release"]["jobs"]["announce"]["steps"] if "run" in step)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n## [0.2.0] - later\nnew\n## [0.1.0] - now\nthis\n### Added\n")
    for tag, notes in (("v0.1.0", "this\n### Added\n"), ("v0.2.0", "new\n")):
        program = run.splitlines()[0].replace("${GITHUB_REF_NAME#v}", tag.removeprefix("v"))
        subprocess.run(["bash", "-c", program], cwd=tmp_path, check=True)
        assert (tmp_path / "notes.md").read_text() == notes


@pytest.mark.parametrize("name", ["CODE_OF_CONDUCT", "GOVERNANCE", "SECURITY"])
def test_pages_of_the_community_link_to_files_that_exist(name):
    page = ROOT / ".github" / f"{name}.md"
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    assert links and all((page.parent / link).exists() for link in links if not link.startswith("https:")), links


def counts(rng, rate):
    return rng.poisson(np.exp(rate), size=1)


def black_box(x=None):
    rate = numpyro.sample("rate", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(counts, rate, shape=(1,), dtype=int), obs=x)


THREAD = ThreadPoolExecutor(1)


@pytest.mark.parametrize(
    "missing, extra, use",
    [
        ("cloudpickle", "executor", lambda: kme.simulate(jax.random.key(0), black_box, 2, executor=THREAD)),
        ("ot", "transport", lambda: kme.Wasserstein().value(*[np.ones((2, 2)), np.full(2, 0.5)] * 2)),
    ],
)
def test_what_is_not_installed_is_named_and_an_extra_has_it(missing, extra, use, monkeypatch):
    assert DISTRIBUTIONS.get(missing, missing) in required(extra)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"(?i)pip install {DISTRIBUTIONS.get(missing, missing)}\."):
        use()
