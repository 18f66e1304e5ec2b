"""The benchmarks can be run by name, and the tables of `benchmarks/results/` are small and say what made them."""

import argparse
import re
import shlex

import pytest

from benchmarks.__main__ import described, listing, main, scripts
from benchmarks.checks import guard
from benchmarks.helpers import code, report

TABLES = sorted(report.RESULTS.iterdir())
README = (report.RESULTS.parent / "README.md").read_text()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_says_which_benchmark_made_it(path):
    """Command, date, commit, machine and versions stand in the third line; no file of a machine is named."""
    assert path.suffix == ".md"
    text = path.read_text()
    made = text.splitlines()[2]
    pattern = r"` on [\d-]{10} \((?:kept in )?commit \w+, code \w+, .*, JAX [\d.]+, NumPyro .*\)\."
    found = re.fullmatch(r"Made by `python -m benchmarks (\w+)[^`]*" + pattern, made)
    assert found and found[1] in scripts(), made
    assert path.stem.startswith(found[1])
    assert not re.search(r"(?<![\w.)])/\w+/|\\\\|[A-Z]:\\", text)


@pytest.mark.parametrize("name", scripts())
def test_a_table_is_of_the_present_code_or_named(name):
    """Code that a kept table measures does not change unless the table is made again or the change named."""
    listed = re.search(rf"^\| `{name}` \| .+ \|$", (report.ROOT / "docs" / "benchmark_tables.md").read_text(), re.M)
    of_its_day = re.search(r", code (\w+),", (report.RESULTS / f"{name}.md").read_text())[1]
    older, where = of_its_day != code.digest(name), "the table of docs/benchmark_tables.md"
    change = f"numpyro_kme/ ({code.MEASURES[name]}) changed: run `{name}` again, or name the change in {where}."
    assert bool(listed) == older, change if older else f"`{name}` is of the present code: take its row from {where}."


def test_figures_beside_the_claims_of_papers_stand_in_the_tables_named():
    """On the page of benchmarks each row has its numbers, to the digits shown, from the tables that it links to."""
    page = (report.ROOT / "docs" / "benchmarks.md").read_text()
    claims = re.findall(r"^\| .+ \| (.+) \| (\[\]\(.+\)) \|$", page, re.M)
    assert len(claims) > 15
    for ours, links in claims:
        names = re.findall(r"benchmark_tables\.md#([\w-]+)", links)
        texts = [(report.RESULTS / f"{name.replace('-', '_')}.md").read_text() for name in names]
        kept = [float(number) for text in texts for number in re.findall(r"\d+\.\d+(?:e[+-]\d+)?", text)]
        for number in re.findall(r"\d+\.\d+", ours):
            digits = len(number.partition(".")[2])
            assert number in {f"{value:.{digits}f}" for value in kept}, (number, names)


NUMBERS = """x = f"{1 + 1:.2f} {y}" + 2  # more


def doubled(a):
    return 2 * a
"""
THE_SAME = """'Module.'
from numpyro_kme._core import checks, door

x = 'other' + 2
'''What x is,
in two lines.'''


@door
def doubled(a):
    'Twice `a`.'
    checks.positive("a", a)
    for name in ("a",):
        checks.sound(name, a)
    return 2 * a
"""


def test_what_no_number_depends_on_is_no_change():
    """Comments, strings, imports and checks of arguments are not counted; numbers and warnings are."""
    assert code.numbers_alone(NUMBERS) == code.numbers_alone(THE_SAME)
    for change in (("2 * a", "3 * a"), ("checks.sound(name, a)", 'checks.warn("No.")')):
        assert code.numbers_alone(THE_SAME.replace(*change)) != code.numbers_alone(NUMBERS)


def test_results_are_small():
    """Tables only: 0.3 MB at most."""
    assert sum(path.stat().st_size for path in TABLES) < 300_000


@pytest.mark.parametrize("name", scripts())
def test_a_benchmark_is_listed_and_shows_its_options(name, capsys, monkeypatch):
    """`benchmarks/README.md` and the runner name it, and it can be imported."""
    assert f"`{name}" in README
    assert name in listing() and all(described(scripts()[name])[:2])
    monkeypatch.setattr("sys.argv", [])
    with pytest.raises(SystemExit) as ended:
        main(name, "--help")
    assert ended.value.code == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out


def shown(path):
    """The commands that a file shows, as lists of a name and its options; those with an ellipsis are left out."""
    for found in re.finditer(r"python -m benchmarks (?!NAME\b)(\w+[^`\n]*)", path.read_text()):
        command = re.split(r"  +|#|; |, ", found[1])[0]
        if "..." not in command:
            yield shlex.split(command.replace("[", "").replace("]", ""))


def commands():
    """Those of the docs and the docstrings; a table tells the command of its day."""
    texts = [report.ROOT / "README.md", *(report.ROOT / "docs").rglob("*.md"), report.RESULTS.parent / "README.md"]
    return sorted({tuple(command) for path in [*texts, *scripts().values()] for command in shown(path)})


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_a_command_that_is_shown_exists(command, monkeypatch):
    """Every name and option in the docs and the docstrings is understood."""

    def parsed(self, args=None, namespace=None):
        known(self, args, namespace)
        raise InterruptedError

    known = argparse.ArgumentParser.parse_args
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    with pytest.raises(InterruptedError):
        main(*command)


def test_an_unknown_name_is_refused():
    assert "no benchmark 'nothing'" in main("nothing")


def test_rows_go_on_where_they_were(tmp_path):
    """A stopped benchmark computes what its file lacks."""
    calls = []

    def compute(seed, name):
        calls.append(seed)
        return {"error": 0.5 * seed, "draws": [0.1] * 50}

    for seeds in ([0], [0, 1], [1]):
        rows = report.Rows(tmp_path / "rows.jsonl")
        found = rows.fill(compute, seed=seeds, name=["a"])
        assert [row["error"] for row in found] == [0.5 * seed for seed in seeds] and found[0]["draws"] == [0.1] * 50
    assert calls == [0, 1] and rows.column("error", name="a").tolist() == [0.0, 0.5] and not rows.of(seed=2)


def test_a_kept_table_is_read_back(tmp_path, monkeypatch):
    """`write` and `rows_of` are inverse; the command names the files that it was given, and not their folders."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["python -m benchmarks blowfly", "--rows", "/a/folder/rows.jsonl"])
    report.write("budgets", "A table", [("Errors", report.table(["size", "error"], [[25, 0.12345], [100, "-"]]))])
    assert report.rows_of("budgets", "Errors") == [{"size": "25", "error": "0.123"}, {"size": "100", "error": "-"}]
    assert "Made by `python -m benchmarks blowfly --rows rows.jsonl` on " in (tmp_path / "budgets.md").read_text()


def test_the_guard_keeps_what_was_before():
    """Each of its rows stands in the kept table, with a number of before and a floor."""
    kept = {row["row"]: row for row in report.rows_of("guard", guard.HEADING)}
    assert set(kept) == set(guard.rows())
    assert all(row["before"] and row["floor"] for row in kept.values())
