"""The group with all verbs: importing a module of verbs registers them."""

from bert_jax.cli import checkpoints, finetuning, launching, planning, pretraining
from bert_jax.cli.base import cli

__all__ = ["checkpoints", "cli", "finetuning", "launching", "planning", "pretraining"]
