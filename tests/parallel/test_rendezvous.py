"""All processes of a job join, or all raise the same error. Here, each process is a thread."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bert_jax.errors import KeyedError, PeerLost, UserError
from bert_jax.parallel import rendezvous as module
from bert_jax.parallel.channel import Member
from bert_jax.parallel.rendezvous import Meeting, Members, StopRequested, meet
from bert_jax.parallel.same_settings import difference_error, first_difference, flatten
from tests.processes.hosts import free_port
from tests.project import says


@pytest.fixture(autouse=True)
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "getpid", threading.get_native_id)
    monkeypatch.setattr(module, "_VERDICT_SECONDS", 2.0)


def outcomes(*processes: dict[str, Any]) -> list[Members | Exception]:
    """Returns the result of two processes: the members or an error for each."""
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
    ("second", "key", "values"),
    [
        ({"index": 1, "count": 3}, "processes.counts_differ", {"found": 3, "expected": 2}),
        ({"index": 0}, "processes.index_twice", {"found": 0}),
        (
            {"index": 1, "command": {"seed": "7"}},
            "processes.settings_differ",
            {"place": "seed", "found": "7", "expected": "3"},
        ),
    ],
)
def test_an_error_in_one_process_ends_all(
    second: dict[str, Any], key: str, values: dict[str, Any]
) -> None:
    errors = outcomes({"index": 0, "command": {"seed": "3"}}, {"command": {"seed": "3"}} | second)
    for error in errors:
        assert type(error) is UserError
        assert error.key == key
        says(error, **values)
    assert len({str(error) for error in errors}) == 1


def test_missing_processes_are_named() -> None:
    found = outcomes(*({"index": index, "count": 4, "seconds": 0.5} for index in (0, 2)))
    assert [type(error) for error in found] == [PeerLost] * 2
    for error in found:
        assert isinstance(error, KeyedError)
        assert error.key == "processes.missing"
        says(error, found=2, expected=4)
        says(error, missing=["process 1", "process 3"])
        says(error, here=["process 0 ", "process 2 "])


def test_the_other_processes_name_a_missing_process_0() -> None:
    (error,) = outcomes({"index": 1, "seconds": 0.5})
    assert isinstance(error, PeerLost)
    assert error.key == "processes.first_missing"
    says(error, seconds=0.5, reason="Connection refused")


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
    ("settings", "place", "values"),
    [
        ([{"z": 1, "a": 1}, {"z": 2, "a": 2}], "z", {"found": "2", "expected": "1"}),
        ([{"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": 2}]}], "a.1.b", {"found": "2"}),
        ([{"a": {"b": 1}}, {"a": None}], "a.b", {"found": "null"}),
        ([{"a": 1}, {"a": True}], "a", {"found": "true"}),
        ([{"a": 1}, {"a": 1}, {"a": 2}, {"a": 3}], "a", {"found": "2", "expected": "1"}),
        ([{"mesh": {"distribution": d}} for d in (1, 2)], "mesh.distribution", {"found": "2"}),
    ],
)
def test_the_first_key_that_differs_is_named(
    settings: list[dict[str, Any]], place: str, values: dict[str, Any]
) -> None:
    error = compare(settings)
    assert error is not None
    says(error, first="process 0 (host, pid 70)")
    first = int(re.findall(r"process (\d)", str(error))[-1])
    says(error, process=f"process {first} (host, pid {70 + first})")
    says(error, place=place, **values)


def test_a_long_value_is_named_by_its_hash() -> None:
    error = compare([{"a": ["x" * 99] * 99}, {"a": ["x" * 99] * 98}])
    assert error is not None
    says(error, found="SHA-256 ")


@pytest.mark.parametrize(
    "settings",
    [
        [{"a": {"b": [{"c": 1}]}}] * 3,
        [{"mesh": {"distributed": {"b": b}, "distribution": 1}} for b in (1, 2)],
    ],
)
def test_settings_of_one_host_may_differ(settings: list[dict[str, Any]]) -> None:
    assert compare(settings) is None


def compare(settings: list[dict[str, Any]]) -> UserError | None:
    """Compares the settings of several processes."""
    flat = [flatten(each) for each in settings]
    members = {index: Member(index, "host", 70 + index) for index in range(len(flat))}
    differences = {index: first_difference(each, flat[0]) for index, each in enumerate(flat)}
    return difference_error(differences, members)
