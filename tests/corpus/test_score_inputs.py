"""What `bert-jax score` reads from odd files: every row once, unchanged, or a clear error."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from etils import epath

from bert_jax.corpus.parts import find_parts
from bert_jax.corpus.reading import PartReader
from bert_jax.corpus.results import Vectors
from bert_jax.corpus.section import ScoreSection
from bert_jax.corpus.settings import PartSettings, WindowLimits
from bert_jax.corpus.writing import open_part
from bert_jax.files import read as read_module
from tests.project import refuses

LIMITS = WindowLimits(rows=4, characters=1 << 20)


def scored(path: Path, **score: Any) -> tuple[list[dict[str, Any]], PartReader]:
    """Reads a file as one part, writes what a window copies, and returns the rows."""
    section = ScoreSection(model="m", input=(str(path),), output=str(path.parent / "out"), **score)
    settings = PartSettings(
        section=section,
        tokenizer=None,  # type: ignore[arg-type]
        results=Vectors(2),
        task=None,
        prefix="",
        max_length=8,
        shapes=(),
        limits=LIMITS,
    )
    (part,) = find_parts(section.input, part_bytes=section.part_bytes)
    reader = PartReader(part, settings)
    target = epath.Path(section.output) / f"{part.stem}.{section.format}"
    rows: list[dict[str, Any]] = []
    with open_part(target, section.format) as writer:
        for window in reader.windows(LIMITS):
            table = pa.table(window.columns)
            writer.write(table)
            rows += table.append_column("text", pa.array(window.texts)).to_pylist()
        if not rows:
            writer.write(pa.table({"id": pa.array([], pa.string())}))
    return rows, reader


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, 1.5),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([{"a": 1}], [{"b": 1}]),
        (1.5, True),
    ],
)
def test_a_column_never_changes_to_fit_the_first_rows(
    tmp_path: Path, first: Any, later: Any
) -> None:
    rows = [{"text": "a", "x": first}] * LIMITS.rows + [{"text": "b", "x": later}]
    path = lines(tmp_path / "a.jsonl", *rows)
    with refuses("score.mixed_column", place=path, column="x"):
        scored(path, columns="x")
    path = lines(tmp_path / "b.jsonl", *rows[: LIMITS.rows], {"text": "b", "x": None})
    assert [row["x"] for row in scored(path, columns="x")[0]] == [first] * LIMITS.rows + [None]


def test_a_later_row_has_a_column_that_the_first_row_lacks(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b", "url": 1})
    with refuses("score.row_columns", line=2, column="url"):
        scored(path, columns="*")
    assert len(scored(path)[0]) == 2  # nobody asked for it
    path = lines(tmp_path / "b.jsonl", {"text": "a"}, {"text": "b", "id": 7})
    with refuses("score.row_columns", line=2, column="id"):
        scored(path)
    rows, reader = scored(path, on_error="skip")
    assert ([row["text"] for row in rows], reader.errors.count) == (["a"], 1)


def test_the_column_of_ids_can_be_copied_too(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "a", "url": "u"})
    rows, _ = scored(path, id="url", columns="url")
    assert rows == [{"id": "u", "url": "u", "text": "a"}]


def test_many_bad_lines_take_no_longer_than_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x" * 200 + "\n")
    path.write_text(path.read_text() * 30_000)
    began = time.monotonic()
    rows, reader = scored(path, on_error="skip")
    assert (rows, reader.errors.count) == ([], 30_000)
    assert time.monotonic() - began < 10


def test_a_line_above_the_limit_is_one_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_module.MAX_LINE > 100
    monkeypatch.setattr("bert_jax.corpus.reading.MAX_LINE", 100)
    rows = [{"text": "a"}, {"text": "b" * 350}, {"text": "c"}]
    path = lines(tmp_path / "a.jsonl", *rows)
    with refuses("score.row", line=2, limit=100):
        scored(path)
    found, reader = scored(path, on_error="skip")
    assert ([row["text"] for row in found], reader.errors.count) == (["a", "c"], 1)
    offset = sum(len(json.dumps(row)) + 1 for row in rows[:2])
    assert found[1]["id"] == f"a.jsonl:{offset}"


@pytest.mark.parametrize("content", [b"text,n\n\xe9,1\n", b""])
def test_a_damaged_table_is_skipped_as_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    rows, reader = scored(path, on_error="skip")
    assert rows == []
    assert str(path) in str(reader.damage)
