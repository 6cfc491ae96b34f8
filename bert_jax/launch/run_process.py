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
from bert_jax.parallel.channel import INTERRUPTED, PEER_LOST
from bert_jax.train.writer import HEARTBEAT

_OURS: Final = "bert-jax: "  # begins the line in which a verb says why it ends
_LONGEST_MESSAGE: Final = 500  # characters
COORDINATOR_GONE: Final = "the JAX distributed service detected fatal errors"
"""In the line with which JAX aborts a process if process 0 is gone."""
# Descendants of a killed process may hold its output open.
_LAST_WORDS_SECONDS: Final = 10.0

_DONE: Final = 0
_FINAL: Final = {1: "the run stopped itself", 2: "a mistake in the configuration"}
_LONGEST_PAUSE_SECONDS: Final = 120.0

MOST_UNCAUGHT: Final = 3
"""Restarts in a row after uncaught exceptions without a new checkpoint."""


class RunProcess:
    """A process of the run."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        heartbeat: Path,
        log: Callable[[bytes], None],
    ) -> None:
        """Starts the process, which writes its progress to `heartbeat`; `log` gets its output.

        Our own variables take precedence over `environment`.
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
        """Asks the process to save and end."""
        self._process.terminate()

    def wait(self) -> Ending:
        """Waits for the process and returns how it ended."""
        code = self._process.wait()
        self._reader.join(_LAST_WORDS_SECONDS)
        # The last line explains a crash, not a kill from outside.
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
    """Returns what `bert_jax.train.writer` wrote; empty before its first report."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclasses.dataclass(frozen=True)
class RestartDecision:
    """The consequence of an ending."""

    state: Literal["restarting", "stopped", "done", "failed"]  # of the host
    exit_code: int  # of the agent, if it ends
    message: str  # why
    pause: float | None = None  # seconds before the next start; None: there is none


class Restarts:
    """Decides after each ending whether the run starts again.

    A process that a signal stopped (3) or that lost another one (4) did nothing wrong. Uncaught
    exceptions (70) get `MOST_UNCAUGHT` restarts without a new checkpoint. After any other crash the
    run starts again, unless it has crashed at that step before. Pauses double until the run makes
    progress.
    """

    def __init__(self, first_pause: float) -> None:
        """Takes the first pause in seconds."""
        self._first_pause = self._pause = first_pause
        self._furthest = -1  # step
        self._died_at: set[int | None] = set()  # steps since there was progress
        self._uncaught, self._saved = 0, -1  # exceptions since the newest checkpoint, its step

    def judge(self, ending: Ending, *, saved: int = -1) -> RestartDecision:
        """Returns what follows; `saved` is the step of the newest checkpoint, -1 without one."""
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
                step = ending.step
                where = "before its first report" if step is None else f"at step {step}"
                return RestartDecision("failed", 1, f"the run died twice {where}: {said}")
            self._died_at.add(ending.step)
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return RestartDecision("restarting", code, said, pause)
