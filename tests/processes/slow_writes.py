"""``python -m tests.processes.slow_writes VERB …`` runs a verb with slow writes.

If other processes do not wait for the writes, they reach the next step too early.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

from bert_jax.cli import main
from bert_jax.workflows import finetuning_scores as evaluation
from bert_jax.workflows import sweep as sweep_run

_SECONDS = 1.0


def _slowly(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(_SECONDS)
        return write(*arguments, **options)

    return slow


if __name__ == "__main__":
    evaluation.write_records = _slowly(evaluation.write_records)
    sweep_run.copy_metrics = _slowly(sweep_run.copy_metrics)
    main()
