"""What a process does between a signal and its end, where nothing is unsaved."""

import subprocess
import sys

import pytest

# The main thread comes to the next step while the last save, three seconds long, is under way.
RUN = """
import os, signal, sys, threading, time
from bert_jax.parallel.stop_signal import StopSignal

def save():
    saving.set()
    time.sleep(3)

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
    ("then", "code", "line"),
    [
        ("", 3, "stopped by SIGTERM at step 4: its checkpoint stands"),
        (AGAIN, 143, "a second SIGTERM: ended at once; its checkpoint stands"),
    ],
    ids=["once", "twice"],
)
def test_no_step_begins_while_the_last_save_ends(then: str, code: int, line: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUN.format(then=then)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (code, f"bert-jax: {line}\n", "")
