"""The tables of `benchmarks/results/` say what made them, and nothing else about it than their data do."""

import json

import pytest
import report

NAMES = sorted(path.stem for path in report.RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_first_line_is_that_of_the_data(name):
    """Command, date, machine and JAX; `python benchmarks/report.py` writes it."""
    made = json.loads((report.RESULTS / f"{name}.json").read_text())["made"]
    line = (report.RESULTS / f"{name}.md").read_text().splitlines()[2]
    assert line == report.origin(made)
    assert f"JAX {made['versions']['jax']})" in line and f"`{made['command']}`" in line
    assert (report.RESULTS.parent / made["command"].split()[1].rpartition("/")[2]).exists()


def test_tables_and_data_come_in_pairs():
    assert sorted(path.stem for path in report.RESULTS.glob("*.md")) == NAMES


def test_every_benchmark_is_listed():
    """`benchmarks/README.md` names each script that keeps a table."""
    listed = (report.RESULTS.parent / "README.md").read_text()
    commands = {json.loads((report.RESULTS / f"{n}.json").read_text())["made"]["command"].split()[1] for n in NAMES}
    assert [c for c in sorted(commands) if c.rpartition("/")[2] not in listed] == []
