"""Tests of files: names, lines and documents, for any division into parts."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import (
    Document,
    blank_line_documents,
    document_id,
    file_documents,
)
from bert_jax.pipelines.sources.files import (
    FilePart,
    TextLine,
    cut_file,
    find_files,
    read_lines,
    read_part,
)
from bert_jax.pipelines.sources.sources import iter_text
from bert_jax.pipelines.tokenised.documents import is_validation
from tests.project import refuses


def cut(path: Path, part_bytes: int) -> list[FilePart]:
    """Returns the parts of a file with blank lines between documents."""
    return cut_file(str(path), path.name, part_bytes=part_bytes, is_gap=lambda raw: not raw.strip())


def test_patterns_give_every_file_once(tmp_path: Path) -> None:
    for name in ("sub/a.txt", "sub/deep/b.txt", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = find_files([f"{tmp_path}/**/*.txt", f"{tmp_path}/sub/a.*", f"{tmp_path}/c.md"])
    names = [str(Path(path).relative_to(tmp_path)) for path in found]
    assert names == ["c.md", "sub/a.txt", "sub/deep/b.txt"]


@pytest.mark.parametrize(
    ("pattern", "key", "values"),
    [
        ("{}/corpsu.txt", "input.no_file", {"hint": '; did you mean "corpus.txt"?'}),
        ("{}/none/corpus.txt", "input.no_directory", {"missing": "{}/none"}),
        ("{}/*.md", "input.no_match", {}),
        ("gs://bucket/**/a.txt", "input.remote_glob", {}),
        ("{}", "input.directory", {}),
    ],
)
def test_patterns_without_files_are_named(
    tmp_path: Path, pattern: str, key: str, values: dict[str, Any]
) -> None:
    (tmp_path / "corpus.txt").write_text("x")
    wanted = {name: value.format(tmp_path) for name, value in values.items()}
    pattern = pattern.format(tmp_path)
    with refuses(key, place="input", found=pattern, **wanted):
        find_files([pattern])


def test_no_pattern_is_an_error() -> None:
    with refuses("input.empty", place="input"):
        find_files([])


@pytest.mark.parametrize("character", ["x", "é", "語", "🜁"])
def test_a_line_at_the_limit_is_refused_with_its_number(tmp_path: Path, character: str) -> None:
    path = tmp_path / "long.txt"
    path.write_text(f"short\n\n{character * 99}\n{character * 100}\n", encoding="utf-8")

    def lines(limit: int) -> list[str]:
        return list(iter_text(SourcesSection(input=(str(path),), max_line_length=limit)))

    with refuses("text.line_too_long", place=f"{path}: line 4", limit=100):
        lines(100)
    assert len(lines(101)) == 4


def test_an_endless_line_is_refused_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "endless.txt"
    with path.open("wb") as file:
        file.truncate(2 << 40)  # too large to read within a test
    monkeypatch.setattr("bert_jax.pipelines.sources.files._MAX_UNENDED_BYTES", 8 << 20)
    parts = cut(path, 1 << 20)
    assert [(part.start, part.stop) for part in parts] == [(0, 2 << 40)]
    with refuses("text.line_too_long", place=f"{path}: line 1", limit=1_000_000):
        list(read_part(parts[0]))


FILES = st.lists(
    st.sampled_from(["", " \t", "a", "bb ", "é", "x" * 30, "\u3000"]), max_size=40
).flatmap(lambda lines: st.sampled_from(["\n", "\r\n"]).map(lambda end: end.join(lines)))


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(FILES, st.integers(1, 60))
def test_parts_of_a_file_hold_the_same_documents(
    tmp_path: Path, text: str, part_bytes: int
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(text.encode())
    whole = list(blank_line_documents(read_lines(str(path))))
    parts = cut(path, part_bytes)
    assert [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]]
    assert (parts[0].start, parts[-1].stop) == (0, path.stat().st_size)
    assert [d for part in parts for d in blank_line_documents(read_part(part))] == whole


def test_line_numbers_count_from_the_files_start(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n" * 20 + b"x" * 50 + b"\n\n" + b"\xff\n")
    parts = cut(path, 40)
    assert len(parts) >= 3
    with refuses("text.line_too_long", place=f"{path}: line 41", limit=50):
        [list(read_part(part, max_line_length=50)) for part in parts]
    with refuses("text.not_utf8", place=path, byte=152, found=0xFF):
        [list(read_part(part)) for part in parts]


def test_blank_lines_can_separate_documents() -> None:
    texts = {0: " ", 2: " a ", 6: "b", 8: "", 9: "", 10: "c"}
    lines = [TextLine(offset, text) for offset, text in texts.items()]
    assert list(blank_line_documents(lines)) == [Document(2, ["a", "b"]), Document(10, ["c"])]
    assert list(file_documents(lines)) == [Document(0, ["a", "b", "c"])]
    for read in (blank_line_documents, file_documents):
        assert list(read([TextLine(0, ""), TextLine(1, "\t")])) == []


def test_the_held_out_share_equals_the_fraction() -> None:
    ids = [document_id("a.txt", 37 * i) for i in range(20_000)]
    held_out = [i for i in ids if is_validation(i, fraction=0.05)]
    assert abs(len(held_out) - 1000) < 4 * (20_000 * 0.05 * 0.95) ** 0.5
    # With a smaller fraction, the validation split is a subset.
    fewer = [i for i in ids if is_validation(i, fraction=0.01)]
    assert set(fewer) < set(held_out)
    assert not any(is_validation(i, fraction=0.0) for i in ids)
