"""The command that makes the tables of docs/results/planning.md: their rows and their place."""

from pathlib import Path

import pytest

from benchmarks.plan_table import BEGINS, CONFIGS, ENDS, Row, insert
from bert_jax.config import load_config
from bert_jax.parallel.topology import parse_topology
from tests.project import ROOT


def test_a_chip_has_the_same_rows_of_a_large_batch_at_a_time_on_16_chips_and_on_64() -> None:
    rows = set()
    for topology, slices in (("v5e:4x4", 1), ("v5e:8x8", 1), ("v5e:4x4", 2)):
        row = Row("large, LAMB", topology, slices)
        config = load_config(f"configs/{CONFIGS[row.name][0]}", row.overrides())
        chips = parse_topology(topology).chips * slices
        assert config.train is not None
        rows.add(
            tuple(phase.batch_size // (phase.accumulation * chips) for phase in config.train.phases)
        )
    assert rows == {(256, 64)}


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
