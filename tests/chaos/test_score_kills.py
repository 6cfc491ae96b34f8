"""A corpus that is scored despite many kills has the same results, byte for byte."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.corpus.files import config, results, write_corpus
from tests.project import environment

KILLS: Final = int(os.environ.get("CHAOS_KILLS", "50"))


def start(path: Path, output: Path) -> subprocess.Popen[bytes]:
    """Starts a job in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "bert_jax.cli", "score", str(path), f"score.output={output}"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()] if path.exists() else []


@pytest.mark.chaos
def test_kills_change_nothing(tmp_path: Path) -> None:
    """Kills the whole job or one worker, at any time. Finished outputs restart from nothing."""
    corpus = write_corpus(tmp_path / "corpus", parts=18, rows=120)
    path = config(tmp_path, corpus, workers=2, columns="*")
    began = time.monotonic()
    assert start(path, tmp_path / "whole").wait() == 0
    seconds = time.monotonic() - began
    whole = results(tmp_path / "whole")
    random_, kills, jobs = random.Random(5), 0, 0
    while kills < KILLS:
        output = tmp_path / f"killed{jobs}"
        for _ in range(12):
            process = start(path, output)
            time.sleep(random_.uniform(0.2, 1.2) * seconds * 0.8)
            workers = children(process.pid)
            if process.poll() is None and workers and random_.random() < 0.3:
                os.kill(random_.choice(workers), signal.SIGKILL)
                kills += 1
                process.wait()
            elif process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
            if process.wait() == 0:
                break
        assert start(path, output).wait() == 0
        assert results(output) == whole
        jobs += 1
