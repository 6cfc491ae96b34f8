"""What a process does between a signal and its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from bert_jax.parallel.stop_signal import StopSignal

# The main thread comes to the next step while the last save is under way.
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
stop.due(5)
print("step 5 was computed", flush=True)
time.sleep(60)
"""
AGAIN = "time.sleep(1.2); os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize(
    ("seconds", "then", "code", "line"),
    [
        (0.7, "", 3, "stopped by SIGTERM at step 4: its checkpoint stands"),
        (60, AGAIN, 143, "a second SIGTERM: ended at once; the last whole checkpoint stands"),
    ],
    ids=["once", "twice"],
)
def test_no_step_begins_while_the_last_save_ends(
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
    """What process 0 of three says and hears."""

    index, count, step = 0, 3, 0

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, object]]] = []
        self.handlers: dict[str, Callable[[int, dict[str, object]], None]] = {}

    def handle(self, kind: str, handler: Callable[[int, dict[str, object]], None]) -> None:
        self.handlers[kind] = handler

    def send(self, kind: str, **message: object) -> None:
        self.said.append((kind, message))


def test_a_second_run_of_a_program_agrees_anew() -> None:
    """Three processes, as a program that trains twice by the library."""
    stop, channel = StopSignal(), FakeChannel()
    stop.agree_over(channel, lambda _: False)  # pyright: ignore[reportArgumentType]
    for run, steps in enumerate((10, 40)):
        del channel.said[:]
        with stop.listening():
            stop.saved(0, lambda: None)
            for step in range(1, 4):
                assert not stop.due(step)
            os.kill(os.getpid(), signal.SIGTERM)
            while not channel.said:
                time.sleep(0.001)
            assert channel.said == [("count", {"signal": "SIGTERM"})], run
            channel.handlers["counted"](1, {"steps": steps, "unsaved": True})
            assert not channel.said[1:]
            channel.handlers["counted"](2, {"steps": steps - 1, "unsaved": True})
            assert channel.said[1:] == [("agreed", {"stop_at": steps + 1})]


def test_processes_that_are_a_step_apart_save_once_more() -> None:
    """Each has saved what it has counted, but a save may have begun that one has not come to."""
    stop, channel = StopSignal(), FakeChannel()
    stop.agree_over(channel, lambda _: False)  # pyright: ignore[reportArgumentType]
    stop.listen(owns_process=True)
    try:
        for step in range(1, 9):
            assert not stop.due(step)
        stop.saved(8, lambda: None)
        os.kill(os.getpid(), signal.SIGTERM)
        while not channel.said:
            time.sleep(0.001)
        for process, steps in ((1, 7), (2, 8)):
            channel.handlers["counted"](process, {"steps": steps, "unsaved": False})
        assert channel.said[1:] == [("agreed", {"stop_at": 9})]
    finally:
        stop._stop_listening()
