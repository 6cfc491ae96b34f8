"""One process of the run, as a child of the agent; whether it is started again, and when."""

import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from bert_jax.errors import UNCAUGHT
from bert_jax.launch.job import Ending
from bert_jax.parallel.channel import PEER_LOST
from bert_jax.parallel.stop_signal import INTERRUPTED
from bert_jax.train.heartbeat import HEARTBEAT

_OURS: Final = "bert-jax: "  # the line in which a verb says why it ends
_LONGEST_MESSAGE: Final = 500  # characters
COORDINATOR_GONE: Final = "the JAX distributed service detected fatal errors"
"""In the line in which JAX aborts a process of several whose process 0 is gone."""
# What a killed process leaves behind may hold its output open.
_LAST_WORDS_SECONDS: Final = 10.0


class RunProcess:
    """Starts with its construction."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        heartbeat: Path,
        log: Callable[[bytes], None],
    ) -> None:
        """Starts it.

        `environment` is added to our own, which has the last word. It writes to `heartbeat` how far
        it is; what an earlier one wrote is removed. `log` gets each line that it prints.
        """
        heartbeat.unlink(missing_ok=True)
        self._heartbeat, self._log = heartbeat, log
        self._last = self._last_of_ours = ""
        self._coordinator_gone = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, **os.environ, HEARTBEAT: str(heartbeat)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True, name="run")
        self._reader.start()

    def terminate(self) -> None:
        """Asks it to save and end."""
        self._process.terminate()

    def wait(self) -> Ending:
        """Returns how it ended, once it has."""
        code = self._process.wait()
        self._reader.join(_LAST_WORDS_SECONDS)
        # What was printed last tells of a crash, not of a kill from outside.
        crashed = code > 0 or code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
        said = self._last_of_ours or (self._last if crashed else "")
        if code == UNCAUGHT:
            said = self._last  # the traceback's last line
        if code == -signal.SIGABRT and self._coordinator_gone:
            code = PEER_LOST
            said = self._last_of_ours or "process 0 of the job is gone, or its machine"
        if code < 0:
            said = f"killed by {signal.Signals(-code).name}{f': {said}' if said else ''}"
            code = 128 - code
        step = read_heartbeat(self._heartbeat).get("step")
        return Ending(
            at=time.time(),
            exit_code=code,
            step=step if isinstance(step, int) else None,
            message=said[:_LONGEST_MESSAGE],
        )

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._log(line)
                text = line.decode("utf-8", errors="replace").strip()
                if text.startswith(_OURS):
                    self._last_of_ours = text.removeprefix(_OURS)
                self._last = text or self._last
                self._coordinator_gone |= COORDINATOR_GONE in text


def read_heartbeat(path: Path) -> dict[str, object]:
    """Returns what `bert_jax.train.heartbeat` wrote; nothing if there is nothing yet."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


_DONE: Final = 0
_FINAL: Final = {1: "the run stopped itself", 2: "a mistake in the configuration"}

_LONGEST_PAUSE_SECONDS: Final = 120.0

MOST_UNCAUGHT: Final = 3
"""Restarts in a row after uncaught exceptions that no new checkpoint interrupts."""


@dataclasses.dataclass(frozen=True)
class RestartDecision:
    """What follows from an ending."""

    state: Literal["restarting", "stopped", "done", "failed"]  # of the host
    exit_code: int  # of the agent, where this is the end
    message: str  # why
    pause: float | None = None  # seconds before the next start; None: there is none


class Restarts:
    """Judges endings, one after the other.

    A process that a signal stopped (3) or that has lost another (4) did nothing wrong. Uncaught
    exceptions (70) get `MOST_UNCAUGHT` restarts without a new checkpoint. A process that died in
    any other way is started again too, unless it died at the same step before. Pauses double until
    the run has made progress.
    """

    def __init__(self, first_pause: float) -> None:
        """Nothing has ended yet; `first_pause` is in seconds."""
        self._first_pause = self._pause = first_pause
        self._furthest = -1  # step
        self._died_at: set[int | None] = set()  # since there was progress; None: before a report
        self._uncaught, self._saved = 0, -1  # exceptions since the newest checkpoint, its step

    def judge(self, ending: Ending, *, saved: int = -1) -> RestartDecision:
        """Returns what follows. `saved` is the step of the newest checkpoint; -1: there is none."""
        code, said = ending.exit_code, ending.message
        if code == _DONE:
            return RestartDecision("done", 0, said)
        if code in _FINAL:
            return RestartDecision("failed", code, said or _FINAL[code])
        if ending.step is not None and ending.step > self._furthest:
            self._furthest = ending.step
            self._pause = self._first_pause
            self._died_at.clear()
        if code == UNCAUGHT:
            self._uncaught = 1 if saved > self._saved else self._uncaught + 1
            self._saved = max(self._saved, saved)
            if self._uncaught > MOST_UNCAUGHT:
                line = f"{self._uncaught} uncaught exceptions without a new checkpoint, the last: "
                return RestartDecision("failed", 1, line + said)
        elif code not in (INTERRUPTED, PEER_LOST):
            if ending.step in self._died_at:
                where = (
                    "before its first report" if ending.step is None else f"at step {ending.step}"
                )
                return RestartDecision("failed", 1, f"the run died twice {where}: {said}")
            self._died_at.add(ending.step)
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return RestartDecision("restarting", code, said, pause)
