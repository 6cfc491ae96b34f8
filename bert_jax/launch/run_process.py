"""The run's process, as a child of the agent, and the decision to restart it."""

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
from bert_jax.train.metrics_writer import HEARTBEAT

_ERROR_PREFIX: Final = "bert-jax: "  # prefix of the line with a verb's error
_MAX_MESSAGE: Final = 500  # characters
COORDINATOR_GONE: Final = "the JAX distributed service detected fatal errors"
"""Text that JAX logs before it aborts a process that has lost process 0."""
# Limit for reading the output of an ended process: its descendants may keep the pipe open.
_READ_SECONDS: Final = 10.0

_DONE: Final = 0
_FINAL_CODES: Final = {1: "the run stopped itself", 2: "a mistake in the configuration"}
_LONGEST_PAUSE_SECONDS: Final = 120.0

MOST_UNCAUGHT: Final = 3
"""Maximum restarts in a row after uncaught exceptions without a new checkpoint."""

MOST_MEETINGS: Final = 6
"""Maximum starts in a row that lose a peer before a step. Each start waits up to
`mesh.distributed.timeout_seconds` (300) for its peers, so together they take half an hour."""
NEVER_MET: Final = 5
"""Exit code of the agent after `MOST_MEETINGS`. On GKE it ends the job; 4 restarts its pods."""


class RunProcess:
    """A running process of the run."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        heartbeat: Path,
        log: Callable[[bytes], None],
    ) -> None:
        """Starts the process, which writes its progress to `heartbeat`.

        `log`: called with each line of output. `environment`: variables to add; the agent's own
        environment takes precedence.
        """
        heartbeat.unlink(missing_ok=True)
        self._heartbeat, self._log = heartbeat, log
        self._last = self._last_error = ""
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
        """Sends SIGTERM, so that the process saves and ends."""
        self._process.terminate()

    def wait(self) -> Ending:
        """Waits for the process and returns its ending."""
        code = self._process.wait()
        self._reader.join(_READ_SECONDS)
        # The last line of output explains a crash, but not a kill from outside.
        crashed = code > 0 or code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
        message = self._last_error or (self._last if crashed else "")
        if code == UNCAUGHT:
            message = self._last  # the traceback's last line
        if code == -signal.SIGABRT and self._coordinator_gone:
            code = PEER_LOST
            message = self._last_error or "lost process 0 of the job or its machine"
        if code < 0:
            message = f"killed by {signal.Signals(-code).name}{f': {message}' if message else ''}"
            code = 128 - code
        step = read_heartbeat(self._heartbeat).get("step")
        return Ending(
            at=time.time(),
            exit_code=code,
            step=step if isinstance(step, int) else None,
            message=message[:_MAX_MESSAGE],
        )

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._log(line)
                text = line.decode("utf-8", errors="replace").strip()
                if text.startswith(_ERROR_PREFIX):
                    self._last_error = text.removeprefix(_ERROR_PREFIX)
                self._last = text or self._last
                self._coordinator_gone |= COORDINATOR_GONE in text


def read_heartbeat(path: Path) -> dict[str, object]:
    """Reads the heartbeat of `bert_jax.train.metrics_writer`; empty before the first report."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclasses.dataclass(frozen=True)
class RestartDecision:
    """The decision after an ending of the run's process."""

    state: Literal["restarting", "stopped", "done", "failed"]  # new state of the host
    exit_code: int  # exit code of the agent, if it ends
    message: str  # reason
    pause: float | None = None  # seconds before the restart; unset without a restart


class Restarts:
    """Decides after each ending whether the run starts again.

    After a signal (3), the run always restarts. Lost peers (4) allow `MOST_MEETINGS` starts without
    a step. Uncaught exceptions (70) allow `MOST_UNCAUGHT` restarts without a new checkpoint. After
    any other crash, the run restarts unless it has already crashed at that step. Pauses double
    until the run makes progress.
    """

    def __init__(self, first_pause: float) -> None:
        """`first_pause`: seconds before the first restart."""
        self._first_pause = self._pause = first_pause
        self._highest_step = -1  # highest step reported
        self._crash_steps: set[int | None] = set()  # steps of crashes since the last progress
        self._saved = -1  # step of the newest checkpoint
        self._uncaught = 0  # uncaught exceptions since the newest checkpoint
        self._meetings = 0  # lost peers since the last reported step or the newest checkpoint

    def judge(
        self, ending: Ending, *, saved: int = -1, peers_ready: bool = True
    ) -> RestartDecision:
        """Decides after an ending.

        `saved`: step of the newest checkpoint. Default: none. `peers_ready`: whether all other
        hosts have started the run.
        """
        code, message = ending.exit_code, ending.message
        if code == _DONE:
            return RestartDecision("done", 0, message)
        if code in _FINAL_CODES:
            return RestartDecision("failed", code, message or _FINAL_CODES[code])
        if ending.step is not None and ending.step > self._highest_step:
            self._highest_step = ending.step
            self._pause = self._first_pause
            self._crash_steps.clear()
        if ending.step is not None:
            self._meetings = 0
        if saved > self._saved:
            self._saved, self._uncaught, self._meetings = saved, 0, 0
        if code == UNCAUGHT:
            self._uncaught += 1
            if self._uncaught > MOST_UNCAUGHT:
                line = f"{self._uncaught} uncaught exceptions without a new checkpoint, the last: "
                return RestartDecision("failed", 1, line + message)
        elif code == PEER_LOST:
            self._meetings += ending.step is None and peers_ready
            if self._meetings >= MOST_MEETINGS:
                line = (
                    f"{self._meetings} starts in a row ended before a step, because the hosts did "
                    "not meet. Check that the network's firewall opens "
                    "mesh.distributed.coordinator_port between hosts, and that no host is missing. "
                    f"The last: {message}"
                )
                return RestartDecision("failed", NEVER_MET, line)
        elif code != INTERRUPTED:
            if ending.step in self._crash_steps:
                step = ending.step
                where = "before its first report" if step is None else f"at step {step}"
                return RestartDecision("failed", 1, f"the run crashed twice {where}: {message}")
            self._crash_steps.add(ending.step)
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return RestartDecision("restarting", code, message, pause)
