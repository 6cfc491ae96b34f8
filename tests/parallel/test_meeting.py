"""The processes of a job meet, or all raise the same error. Here each is a thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bert_jax.errors import PeerLost, UserError
from bert_jax.parallel import meeting as module
from bert_jax.parallel.channel import Member
from bert_jax.parallel.meeting import Meeting, Members, StopRequested, meet
from bert_jax.parallel.same_settings import describe, first_difference, flatten
from tests.processes.hosts import free_port

COUNT, INDEX = "mesh.distributed.process_count", "mesh.distributed.process_index"


@pytest.fixture(autouse=True)
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "getpid", threading.get_native_id)
    monkeypatch.setattr(module, "_VERDICT_SECONDS", 2.0)


def outcomes(*processes: dict[str, Any]) -> list[Members | Exception]:
    """The result of each of two processes: the members, or an error."""
    port = free_port()

    def attend(process: dict[str, Any]) -> Members | Exception:
        came = {"count": 2, "seconds": 20.0, "command": {}, "signal": lambda: "", **process}
        try:
            return meet(Meeting("127.0.0.1", port, **came))
        except (PeerLost, UserError, StopRequested) as error:
            return error

    with ThreadPoolExecutor(len(processes)) as threads:
        return list(threads.map(attend, processes))


def test_all_processes_get_all_members() -> None:
    first, *others = outcomes(*({"index": index, "count": 3} for index in (0, 1, 2)))
    assert isinstance(first, dict)
    assert sorted(member.process for member in first.values()) == [0, 1, 2]
    assert others == [first, first]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"index": 1, "count": 3}, f"{COUNT}: found 3 in process 1 ("),
        ({"index": 0}, f"{INDEX}: found 0 twice, in process 0 ("),
        ({"index": 1, "command": {"seed": "7"}}, "seed: found 7 in process 1 ("),
    ],
    ids=["count", "index", "command"],
)
def test_an_error_in_one_process_ends_all(second: dict[str, Any], said: str) -> None:
    found = outcomes({"index": 0, "command": {"seed": "3"}}, {"command": {"seed": "3"}} | second)
    assert [type(error) for error in found] == [UserError] * 2
    assert {str(error) for error in found} == {str(found[0])}
    assert str(found[0]).startswith(said)


def test_missing_processes_are_named() -> None:
    found = outcomes(*({"index": index, "count": 4, "seconds": 0.5} for index in (0, 2)))
    assert [type(error) for error in found] == [PeerLost] * 2
    for error in found:
        assert "4 processes expected at 127.0.0.1:" in str(error)
        assert ", 2 came within 0.5 s; missing: process 1, process 3; here: process 0 (" in (
            str(error)
        )


def test_the_other_processes_name_a_missing_process_0() -> None:
    (error,) = outcomes({"index": 1, "seconds": 0.5})
    assert "process 0 of 2 was not at 127.0.0.1:" in str(error)
    assert "within 0.5 s (Connection refused)" in str(error)


@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_ends_all_although_one_is_missing(signalled: int) -> None:
    found = outcomes(
        *(
            {"index": index, "count": 3, "signal": lambda at=index: "SIGTERM" * (at == signalled)}
            for index in (0, 1)
        )
    )
    assert [type(error) for error in found] == [StopRequested] * 2
    assert [str(error) for error in found] == ["SIGTERM"] * 2


def test_a_signalled_process_ignores_a_missing_process_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_VERDICT_SECONDS", 0.5)
    (error,) = outcomes({"index": 1, "signal": lambda: "SIGTERM"})
    assert isinstance(error, StopRequested)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ([{"a": {"b": [{"c": 1}]}}] * 3, None),
        ([{"z": 1, "a": 1}, {"z": 2, "a": 2}], "z: found 2 in process 1 (host, pid 71) and 1 in "),
        ([{"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": 2}]}], "a.1.b: found 2 in process 1 "),
        ([{"a": {"b": 1}}, {"a": None}], "a.b: found null in process 1 "),
        ([{"a": 1}, {"a": True}], "a: found true in process 1 "),
        ([{"a": 1}, {"a": 1}, {"a": 2}, {"a": 3}], "and 1 in process 0 (host, pid 70) (2 of 4 "),
        ([{"a": ["x" * 99] * 99}, {"a": ["x" * 99] * 98}], "a: found SHA-256 "),
        ([{"mesh": {"distributed": {"b": b}, "distribution": 1}} for b in (1, 2)], None),
        ([{"mesh": {"distribution": d}} for d in (1, 2)], "mesh.distribution: found 2 "),
    ],
)
def test_the_first_key_that_differs_is_named(
    settings: list[dict[str, Any]], line: str | None
) -> None:
    flat = [flatten(each) for each in settings]
    members = {index: Member(index, "host", 70 + index) for index in range(len(flat))}
    found = describe(
        {index: first_difference(each, flat[0]) for index, each in enumerate(flat)}, members
    )
    assert (found is None) == (line is None)
    assert line is None or line in str(found)
    assert line is None or str(found).endswith("; allowed: the same in all processes")
