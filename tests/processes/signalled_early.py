"""``python -m tests.processes.signalled_early INDEX VERB …`` runs a verb.

Process INDEX gets SIGTERM before it has read the address where its job's processes meet.
"""

import os
import signal
import sys
from typing import Any

from bert_jax.cli import base, main

if __name__ == "__main__":
    _read_config = base.read_config

    def _signalled(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return _read_config(*arguments)

    if f"mesh.distributed.process_index={sys.argv.pop(1)}" in sys.argv:
        base.read_config = _signalled
    main()
