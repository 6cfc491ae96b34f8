"""After a stop signal, processes agree on the last step and save it; no later step begins."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from bert_jax.parallel.stop_signal import StopSignal

# Program whose main thread reaches the next step during the last save.
RUN = """
import os, signal, sys, threading, time
from bert_jax.parallel.stop_signal import StopSignal

def save():
    saving.set()
    time.sleep({seconds})

saving, stop = threading.Event(), StopSignal()
stop.listen(owns_process=True)
stop.saved(4, save)
os.kill(os.getpid(), signal.SIGTERM)
saving.wait()
{then}
stop.due()
print("step 5 was computed", flush=True)
time.sleep(60)
"""
AGAIN = "time.sleep(1.2); os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize(
    ("seconds", "then", "code", "line"),
    [
        (0.7, "", 3, "stopped by SIGTERM at step 4, saved."),
        (60, AGAIN, 143, "ended by a second SIGTERM. The last complete checkpoint remains."),
    ],
    ids=["once", "twice"],
)
def test_no_step_begins_during_the_last_save(
    seconds: float, then: str, code: int, line: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUN.format(seconds=seconds, then=then)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (code, f"bert-jax: {line}\n", "")


class FakeChannel:
    """The channel of one of three processes. The other two give prepared answers."""

    def __init__(self, *others: list[object]) -> None:
        self.others = others
        self.noticed: dict[str, Callable[[str], None]] = {}
        self.notices: list[str] = []
        self.leaving = threading.Event()

    def handle(self, name: str, handler: Callable[[str], None]) -> None:
        self.noticed[name] = handler

    def notify(self, name: str, text: str) -> None:
        self.notices.append(name)
        self.noticed[name](text)

    def exchange(self, value: object, **_: object) -> list[object]:
        return [value] if isinstance(value, str) else [value, *self.others]


def until_agreed(stop: StopSignal, channel: FakeChannel, *, notices: int) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    while len(channel.notices) < notices or stop._stop_at is None:
        time.sleep(0.001)


def test_a_second_run_of_a_program_agrees_again() -> None:
    """A program of three processes trains twice through the library."""
    stop, channel = StopSignal(), FakeChannel()
    stop.agree_over(channel)  # pyright: ignore[reportArgumentType]
    for run, steps in enumerate((6, 15)):
        channel.others = ([steps, True], [steps - 1, True])
        with stop.listening():
            stop.saved(0, lambda: None)
            for _ in range(1, 4):
                assert not stop.due()
            until_agreed(stop, channel, notices=run + 1)
            assert [stop.due() for _ in range(4, 8)] == [False] * 3 + [True]
            stop._steps = 9  # the others' count
    assert channel.notices == ["stop.0", "stop.1"]


def test_processes_that_are_a_step_apart_save_once_more() -> None:
    """All steps are saved, but a process that is ahead may have begun a save that all must join."""
    stop, channel = StopSignal(), FakeChannel([7, False], [8, False])
    stop.agree_over(channel)  # pyright: ignore[reportArgumentType]
    stop.listen(owns_process=True)
    try:
        for _ in range(1, 9):
            assert not stop.due()
        stop.saved(8, lambda: None)
        until_agreed(stop, channel, notices=1)
        assert stop.due()
    finally:
        assert stop._pipe is not None
        stop._pipe.close()
