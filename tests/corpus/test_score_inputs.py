"""`bert-jax score` reads every row of odd files once and unchanged, or raises a clear error."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from etils import epath

from bert_jax.corpus.parts import find_parts, require_apart
from bert_jax.corpus.reading import PartReader
from bert_jax.corpus.results import PartSettings, Vectors, WindowLimits
from bert_jax.corpus.section import ScoreSection
from bert_jax.corpus.writing import open_part
from tests.corpus.files import config, rows_of, texts
from tests.project import ok, refused, refuses, says

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
            writer.write(pa.table(reader.columns))
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


def parquet(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "column",
    [
        pa.array([9 * 10**18], pa.timestamp("us")),  # beyond Python's years
        pa.array([float("nan")]),
        pa.array([b"\xff"]).view(pa.string()),
    ],
)
def test_a_value_that_json_lacks(tmp_path: Path, column: pa.Array) -> None:
    path = parquet(tmp_path / "a.parquet", text=["a"], x=column)
    with refuses("score.not_json", place="score.columns"):
        scored(path, columns="x", format="jsonl")
    assert not (tmp_path / "out" / "a.jsonl").exists()
    path = parquet(tmp_path / "b.parquet", text=column)
    with refuses("score.not_text", place=f"{path}: row 1"):
        scored(path)
    path = lines(tmp_path / "c.jsonl", {"text": "a", "x": {}})
    with refuses("score.not_parquet", place="score.columns"):
        scored(path, columns="x")


def test_a_part_without_rows_has_the_columns_of_its_file(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", id=pa.array([], pa.int64()), text=pa.array([], "str"))
    _, reader = scored(path, columns="text")
    kinds = {name: column.type for name, column in reader.columns.items()}
    assert kinds == {"id": pa.int64(), "text": pa.string()}
    path = parquet(tmp_path / "b.parquet", **{"c" * 900: pa.array([], "str")})
    pq.ParquetWriter(path, pq.read_schema(path)).close()  # no row groups
    assert len(find_parts([str(path)], part_bytes=1024)) == 1


def test_every_file_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here/a/x.jsonl", "here/b/y.jsonl", "there/z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        lines(tmp_path / name, {"text": name})
    monkeypatch.chdir(tmp_path / "here")

    def stems(*patterns: object) -> list[str]:
        return [part.stem for part in find_parts([*map(str, patterns)], part_bytes=1 << 20)]

    x = "a/x.jsonl"
    assert stems(x, f"./{x}", f"a/../{x}", tmp_path / "here" / x, "a", "a/*") == ["x"]
    assert stems("a", "../there") == ["here/a/x", "there/z"]  # below the output directory
    (tmp_path / "here" / "b" / "more").symlink_to(tmp_path / "there")
    (tmp_path / "there" / "back").symlink_to(tmp_path / "here" / "b")
    assert stems("b") == ["more/z", "y"]
    (tmp_path / "there" / "lost.jsonl").symlink_to("nowhere")
    with refuses("file.unreadable", place=tmp_path / "here" / "b" / "more" / "lost.jsonl"):
        find_parts([str(tmp_path / "here" / "b")], part_bytes=1 << 20)
    for nothing in ([], [""]):
        with refuses("input.empty", place="score.input"):
            find_parts(nothing, part_bytes=1 << 20)


def test_a_folder_leaves_no_packed_file_out(tmp_path: Path) -> None:
    path = tmp_path / "a.JSONL.GZ"
    path.write_bytes(gzip.compress(json.dumps({"text": "a"}).encode()))
    assert scored(tmp_path)[0] == [{"id": "a.JSONL.GZ:0", "text": "a"}]
    for name in ("b.csv.gz", "b.parquet.zst"):
        (tmp_path / name).write_bytes(b"")
        with refuses("score.format", place="score.input", name=name):
            find_parts([str(tmp_path)], part_bytes=1 << 20)
        (tmp_path / name).unlink()


def test_a_number_is_never_a_truth_value(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "a", "x": 1.5}, {"text": "b", "x": True})
    with refuses("score.mixed_column", place=path, column="x"):
        scored(path, columns="x")


def test_results_never_replace_the_input(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "a"})
    parts = find_parts([str(path)], part_bytes=1 << 20)
    require_apart([str(path)], parts, str(tmp_path / "out"))
    for patterns, output in (
        ([str(path)], tmp_path),
        ([f"{tmp_path}/*"], f"{tmp_path}/"),
        ([f"{tmp_path}/"], tmp_path / "out"),
    ):
        with refuses("score.output_in_input", place="score.output", output=output):
            require_apart(patterns, parts, str(output))


@pytest.mark.slow
def test_results_of_a_changed_corpus(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    rows = [{"text": text} for text in texts(20, seed=1)]
    lines(corpus / "_job.jsonl", *rows[:1])
    lines(corpus / "job.jsonl", *rows[:1])
    path = config(tmp_path, corpus, workers=1, part_bytes=2048, columns="text")
    lines(corpus / "big.jsonl", *rows[:10])
    ok("score", path)
    assert len(rows_of(out)) == 11
    lines(corpus / "big.jsonl", *rows)  # now it is cut into more parts
    ok("score", path)
    assert sorted(row["text"] for row in rows_of(out).values()) == sorted(
        row["text"] for row in [*rows, rows[0]]
    )
    first, second = rows[0]["text"], rows[0]["text"][::-1]
    lines(corpus / "job.jsonl", {"text": second})  # of equal size
    ok("score", path)
    assert second in {row["text"] for row in rows_of(out).values()}
    assert json.loads((out / "_manifest.json").read_text())["total"]["read"] == 21
    lines(corpus / "job.jsonl", {"text": first})
    ok("score", path)
    kept = (out / "job.parquet").read_bytes()
    (corpus / "job.jsonl").rename(tmp_path / "job.jsonl")
    says(refused("score", path), key="score.other_input", place=out, name="job.parquet")
    other = f"score.input=[{corpus}/big.jsonl, {tmp_path}/job.jsonl]"
    says(refused("score", path, other), key="score.other_input", place=out)
    assert (out / "job.parquet").read_bytes() == kept
    (tmp_path / "job.jsonl").rename(corpus / "job.jsonl")
    record = out / "_parts" / "job.json"
    record.write_text("{}")
    says(refused("score", path), key="score.record", place=record)
    record.unlink()
    ok("score", path)
