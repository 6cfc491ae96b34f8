"""Refusals of `bert-jax features`: one line, exit code 2, no output file."""

from pathlib import Path

import pytest

from tests.feature_extraction.runs import features, make_run, refusal, write_lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("features"), layers=2)[0]


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("t.csv", "sentence,label\nw1,0\n", ("--column", "sentense"), 'did you mean "sentence"?'),
        ("t.csv", "sentence,label\nw1,0\n", (), "[table.column_needed]"),
        ("t.csv", "a,b\n", ("--column", "a"), "[features.no_text]"),
        ("t.csv", "a,b\nw1,\n", ("--column", "a", "--probe", "b"), "line 2: \"b\" found ''"),
        ("t.jsonl", '{"a": "w1"}\n{"a": 3}\n', ("--column", "a"), "[table.not_text]"),
        ("t.txt", "w1\n", ("--column", "a"), '--column: found "a" with a .txt'),
        ("t.doc", "w1\n", (), "found .doc, allowed: .txt, .jsonl, .csv, .tsv"),
        ("t.txt", "w1\n", ("--layers", "lastt"), 'did you mean "last"?'),
        ("t.txt", "w1\n", ("--layers", "1,3"), "--layers: found 3, allowed: 0 (the embeddings) to"),
        ("t.txt", "w1\n", ("--layers", "mix"), "[features.mix_without_probe]"),
        ("t.txt", "w1\n", ("--level", "word", "--pool", "cls"), "[features.level]"),
        ("t.txt", "w1\n", ("--layers", "1", "--max-length", "41"), "allowed: 4 to 40"),
        ("t.txt", "w1\n", ("--layers", "1", "--batch-size", "0"), "allowed: 1 or more"),
        ("t.txt", "w1\n", ("--layers", "1", "--checkpoint", "²"), 'found "²", allowed: last, best'),
    ],
)
def test_mistakes_get_one_line_and_leave_no_file(
    run: Path, tmp_path: Path, name: str, content: str, options: tuple[str, ...], expected: str
) -> None:
    source = tmp_path / name
    source.write_text(content)
    assert expected in refusal(run, source, tmp_path / "out.npz", *options)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_replaced_only_with_force(run: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.txt", ["w1"])
    output = write_lines(tmp_path / "o.npz", ["mine"])
    assert "[output.exists]" in refusal(run, source, output, "--layers", "last")
    assert output.read_text() == "mine\n"
    assert features(run, source, output, "--layers", "last", "--force").exit_code == 0
    assert output.read_bytes()[:2] == b"PK"
    assert "found .npy, allowed: .npz, .parquet, .jsonl" in refusal(run, source, "o.npy")
    assert "found no directory" in refusal(run, source, tmp_path / "no" / "o.npz")


def test_a_mistake_in_the_last_line_leaves_no_output(run: Path, tmp_path: Path) -> None:
    lines = ["a,b", *["w1,0"] * 3000, "w1"]
    source = write_lines(tmp_path / "t.csv", lines)
    for output in ("o.npz", "o.jsonl", "o.parquet"):
        options = ("--column", "a")
        line = refusal(run, source, tmp_path / output, *options)
        assert "line 3002: found 1 field, allowed: 2" in line
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
