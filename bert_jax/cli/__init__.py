"""The verbs: ``bert-jax VERB CONFIG.yaml [key=value …]``.

Every verb imports what it needs when it runs, so that ``--help`` and a user's typing mistake
answer at once.
"""

from __future__ import annotations

# Importing a file of verbs is what makes them known.
from bert_jax.cli import checkpoints, finetuning, launching, planning, pretraining, watching
from bert_jax.cli.base import cli, main
from bert_jax.parallel.stop_signal import INTERRUPTED

__all__ = [
    "INTERRUPTED",
    "checkpoints",
    "cli",
    "finetuning",
    "launching",
    "main",
    "planning",
    "pretraining",
    "watching",
]
