"""Pretraining objectives: one small file each, and the registry that names them all."""

from bert_jax.objectives.registry import ObjectiveSection, check_pairing, make_objective

__all__ = ["ObjectiveSection", "check_pairing", "make_objective"]
