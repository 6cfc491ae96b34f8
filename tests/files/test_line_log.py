"""Logs of JSON lines survive kills and damaged lines. For full disks, see tests/train."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.files.line_log import Entry, LineLog, open_log, parse_lines, read_log

HALF = b'{"n": 4'


def check(entry: Entry) -> bool:
    return isinstance(entry.get("n"), int)


def numbers(path: Path) -> list[int]:
    return [entry["n"] for entry in read_log(path, check)]


def reopen(path: Path, up_to: int) -> tuple[LineLog, list[str]]:
    said: list[str] = []
    log = open_log(path, check=check, keep=lambda e: e["n"] <= up_to, say=said.append)
    return log, said


def test_log_resumes_after_a_kill_and_drops_a_half_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.jsonl"
    log, said = reopen(path, 0)
    for n in (1, 2, 3):
        log.append({"n": n})
    path.write_bytes(path.read_bytes() + HALF)
    assert numbers(path) == [1, 2, 3]
    log, said = reopen(path, 2)
    log.append({"n": 3})
    log.close()
    assert numbers(path) == [1, 2, 3]
    assert said == []
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe not UTF-8",
        b'{"n": 1, "cut',
        b'{"n": "two"}',
        b"[1, 2]",
        b"[" * 100_000,
    ],
)
def test_only_damaged_and_foreign_lines_are_set_aside(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"n": 1}\n' + line + b'\n{"n": 2}\n{"n": 3}\n')
    assert numbers(path) == [1, 2, 3]
    log, said = reopen(path, 2)
    log.append({"n": 3})
    assert numbers(path) == [1, 2, 3]
    aside = tmp_path / "log.damaged"
    assert aside.read_bytes() == line + b"\n"
    assert said == [f"{path}: moved 1 damaged or foreign line to {aside}"]
    assert reopen(path, 2)[1] == []  # reported only once


@given(
    st.lists(st.one_of(st.integers(0, 9), st.binary(max_size=12).filter(lambda b: b"\n" not in b)))
)
def test_whole_lines_are_found_between_garbage(parts: list[int | bytes]) -> None:
    raw = b"".join(
        (part if isinstance(part, bytes) else b'{"n": %d}' % part) + b"\n" for part in parts
    )
    found = [line.entry["n"] for line in parse_lines(raw, check).good]
    assert found == [part for part in parts if isinstance(part, int)]
