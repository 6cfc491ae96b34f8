import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.files.lock import LocalLock, lock_at

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from bert_jax.files.lock import LocalLock
lock = LocalLock(Path(sys.argv[1]))
assert lock.take()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Starts a process that holds ``tmp_path/lock``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_refusal_of_a_lock_names_its_holder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    for _ in range(2):  # a failed attempt does not change the file
        lock = LocalLock(tmp_path / "lock")
        assert not lock.take()
        assert lock.holder == f"{os.uname().nodename} {holder.pid}"


def test_the_lock_of_a_killed_process_is_free(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").exists()
    lock = LocalLock(tmp_path / "lock")
    assert lock.take()
    lock.give_back()


def test_a_released_lock_leaves_no_file(tmp_path: Path) -> None:
    first, second = (lock_at(tmp_path / "lock", say=print) for _ in range(2))
    for _ in range(2):
        assert first.take()
        assert not second.take()
        second.give_back()  # no effect: `second` does not hold the lock
        assert not second.take()
        first.give_back()
        assert not (tmp_path / "lock").exists()
