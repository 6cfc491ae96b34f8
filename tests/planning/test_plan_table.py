"""The command that makes the tables of docs/results/planning.md: their rows and their place."""

from pathlib import Path

import pytest

from benchmarks.plan_table import BEGINS, ENDS, insert
from tests.project import ROOT


def test_a_table_is_written_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "planning.md"
    text = (ROOT / "docs/results/planning.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    for mark in ("1", "2"):
        insert(page, mark, [f"table {mark}", "| a |"])
    found = page.read_text(encoding="utf-8")
    assert found.count("table 1\n| a |\n") == found.count("table 2\n| a |\n") == 1
    outside = [text.partition(BEGINS.format("1"))[0], text.rpartition(ENDS)[2]]
    assert found.startswith(outside[0])
    assert found.endswith(outside[1])
    with pytest.raises(ValueError, match="plan_table 3"):
        insert(page, "3", [])
