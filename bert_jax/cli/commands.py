"""The group with all of its verbs: importing a file of verbs is what makes them known."""

from bert_jax.cli import checkpoints, finetuning, launching, planning, pretraining
from bert_jax.cli.base import cli

__all__ = ["checkpoints", "cli", "finetuning", "launching", "planning", "pretraining"]
