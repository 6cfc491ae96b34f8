"""Imports all modules of verbs, which registers the verbs in the group `cli`."""

from bert_jax.cli import checkpoints, finetuning, launching, planning, pretraining
from bert_jax.cli.base import cli

__all__ = ["checkpoints", "cli", "finetuning", "launching", "planning", "pretraining"]
