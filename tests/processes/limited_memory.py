"""``python -m tests.processes.limited_memory PROCESSES GIB VERB …`` runs a verb with little memory.

Before the step is compiled, each process whose index is in PROCESSES, such as ``01``, limits its
address space to GIB more than it has. So the limit does not depend on the number of cores.
"""

import resource
import sys
from typing import Any

import jax
import psutil

from bert_jax.cli import main
from bert_jax.train import compiled

_PROCESSES, _GIB = sys.argv.pop(1), float(sys.argv.pop(1))
_lower = compiled.lower_train_step


def _lower_with_little_memory(*args: Any, **kwargs: Any) -> jax.stages.Lowered:
    if str(jax.process_index()) in _PROCESSES:
        limit = psutil.Process().memory_info().vms + round(_GIB * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return _lower(*args, **kwargs)


if __name__ == "__main__":
    compiled.lower_train_step = _lower_with_little_memory
    main()
