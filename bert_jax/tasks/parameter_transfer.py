"""A checkpoint's parameters under a new head."""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.model.config import HeadsSection

# The parts of a model that a fine-tuned one has in common with its origin; the encoder must be.
_SHARED: Final = ("encoder", "pooler")


def graft(
    fresh: Mapping[str, Any], found: Mapping[str, Any], *, ours: HeadsSection, theirs: HeadsSection
) -> dict[str, Any]:
    """Returns fresh parameters with everything replaced that the origin has trained.

    The task's head is taken over where it is one of the same task and the same labels (SQuAD 1.1
    before 2.0, MNLI before another corpus of the same three); otherwise it starts fresh. Parameters
    are those of a model by its parts, as `encoder` and `pooler`.
    """
    shared = (*_SHARED, "task") if _same_head(ours, theirs) else _SHARED
    return {
        part: found[part] if part in shared and part in found else fresh[part] for part in fresh
    }


def describe_graft(*, ours: HeadsSection, theirs: HeadsSection) -> str:
    """Returns in words what starts fresh, ``""`` if nothing does."""
    fresh = []
    if ours.pooler and not theirs.pooler:
        fresh.append("the pooler")
    if not _same_head(ours, theirs):
        fresh.append(f"the {(ours.task or '').replace('_', '-')} head")
    return " and ".join(fresh)


def _same_head(ours: HeadsSection, theirs: HeadsSection) -> bool:
    return ours.task == theirs.task and ours.labels == theirs.labels


def check_length(max_length: int, *, positions: int) -> None:
    """Refuses rows that are longer than the model's positions.

    Raises:
        UserError: they are.
    """
    if max_length > positions:
        raise UserError(
            f"finetune.max_length: found {max_length}, allowed: up to the model's {positions} "
            f"positions"
        )
