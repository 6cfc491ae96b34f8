"""``python -m tests.processes.lost_lock PATH VERB …`` runs a verb whose run loses its lock.

The run loses its lock as soon as a file exists at PATH.
"""

import sys
from pathlib import Path

from bert_jax.cli import main
from bert_jax.errors import RunStopped
from bert_jax.files.lock import LocalLock

_PATH = Path(sys.argv.pop(1))


def _check(lock: LocalLock) -> None:
    if _PATH.exists():
        raise RunStopped("lock.lost", "lost by this test")


if __name__ == "__main__":
    LocalLock.check = _check
    main()
