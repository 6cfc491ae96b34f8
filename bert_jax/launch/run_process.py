"""One process of the run, as a child of the agent."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bert_jax.launch.job import Ending
from bert_jax.train.heartbeat import HEARTBEAT

_OURS: Final = "bert-jax: "  # the line in which a verb says why it ends
_LONGEST_MESSAGE: Final = 500  # characters
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

        Args:
            command: with its arguments.
            environment: added to our own, which has the last word.
            heartbeat: where it writes how far it is; what an earlier one wrote is removed.
            log: called with each line that it prints.
        """
        heartbeat.unlink(missing_ok=True)
        self._heartbeat, self._log = heartbeat, log
        self._last = self._last_of_ours = ""
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


def read_heartbeat(path: Path) -> dict[str, object]:
    """Returns what `bert_jax.train.heartbeat` wrote; nothing if there is nothing yet."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
