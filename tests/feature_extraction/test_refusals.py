"""User errors in `bert-jax features`: one error line, exit code 2, no output file."""

from pathlib import Path
from typing import Any

import pytest

from tests.feature_extraction.runs import features, make_run, write_lines
from tests.project import refused, says


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("features"), layers=2)[0]


@pytest.mark.parametrize(
    ("name", "content", "options", "key", "values"),
    [
        (
            *("t.csv", "sentence,label\nw1,0\n", ("--column", "sentense"), "table.column_unknown"),
            {"hint": '; did you mean "sentence"?'},
        ),
        ("t.csv", "sentence,label\nw1,0\n", (), "table.column_needed", {}),
        ("t.csv", "a,b\n", ("--column", "a"), "features.no_text", {}),
        ("t.jsonl", '{"a": "w1"}\n{"a": 3}\n', ("--column", "a"), "table.not_text", {}),
        ("t.txt", "w1\n", ("--column", "a"), "features.column_of_text", {"place": "--column"}),
        ("t.doc", "w1\n", (), "features.suffix", {"found": ".doc"}),
        (
            *("t.txt", "w1\n", ("--layers", "lastt"), "features.layers"),
            {"hint": '; did you mean "last"?', "depth": 2},
        ),
        ("t.txt", "w1\n", ("--layers", "1,3"), "features.layer", {"found": 3, "depth": 2}),
        ("t.txt", "w1\n", ("--layers", "sum-last-four"), "features.too_few_layers", {"depth": 2}),
        ("t.txt", "w1\n", ("--level", "word", "--pool", "cls"), "features.level", {}),
        ("t.txt", "w1\n", ("--max-length", "41"), "features.max_length", {"positions": 40}),
        ("t.txt", "w1\n", ("--batch-size", "0"), "batch_size.range", {"found": 0}),
        ("t.txt", "w1\n", ("--checkpoint", "²"), "checkpoint.unknown", {"found": "²"}),
    ],
)
def test_mistakes_get_one_line_and_leave_no_file(
    run: Path,
    tmp_path: Path,
    name: str,
    content: str,
    options: tuple[str, ...],
    key: str,
    values: dict[str, Any],
) -> None:
    source = tmp_path / name
    source.write_text(content)
    line = refused("features", run, source, tmp_path / "out.npz", *options)
    assert line.key == key
    says(line, **values)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_replaced_only_with_force(run: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.txt", ["w1"])
    output = write_lines(tmp_path / "o.npz", ["mine"])
    line = refused("features", run, source, output, "--layers", "last")
    assert line.key == "output.exists"
    assert output.read_text() == "mine\n"
    assert features(run, source, output, "--layers", "last", "--force").exit_code == 0
    assert output.read_bytes()[:2] == b"PK"
    line = refused("features", run, source, "o.npy")
    says(line, key="features.suffix", found=".npy")
    line = refused("features", run, source, tmp_path / "no" / "o.npz")
    says(line, key="output.no_directory", found=str(tmp_path / "no"))


def test_a_mistake_in_the_last_line_leaves_no_output(run: Path, tmp_path: Path) -> None:
    lines = ["a,b", *["w1,0"] * 3000, "w1"]
    source = write_lines(tmp_path / "t.csv", lines)
    for output in ("o.npz", "o.jsonl", "o.parquet"):
        options = ("--column", "a")
        line = refused("features", run, source, tmp_path / output, *options)
        assert line.key == "table.fields"
        says(line, place=f"{source}: line 3002")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
