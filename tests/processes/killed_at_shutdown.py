"""``python -m tests.processes.killed_at_shutdown PROCESS VERB …`` runs a verb and kills a process.

The process with index PROCESS is killed at JAX's shutdown barrier, after training.
"""

import os
import signal
import sys

import jax

from bert_jax.cli import main

_PROCESS = int(sys.argv.pop(1))
_shutdown = jax.distributed.shutdown


def _shut_down() -> None:
    if jax.process_index() == _PROCESS:
        os.kill(os.getpid(), signal.SIGKILL)
    _shutdown()


if __name__ == "__main__":
    jax.distributed.shutdown = _shut_down
    main()
