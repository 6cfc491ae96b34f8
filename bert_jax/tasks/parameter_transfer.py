"""A checkpoint's parameters under a new head."""

from collections.abc import Collection
from typing import Final

from bert_jax.model.config import HeadsSection
from bert_jax.task import Params

_SHARED: Final = ("encoder", "pooler")


def shared_parts(
    wanted: Collection[str], found: Params, *, ours: HeadsSection, theirs: HeadsSection
) -> Params:
    """Returns the parts of an origin's parameters that a model of the parts wanted takes over.

    The task's head is taken over where it is one of the same task and the same labels (SQuAD 1.1
    before 2.0, MNLI before another corpus of the same three); otherwise it starts fresh, as does a
    pooler that the origin lacks.
    """
    shared = (*_SHARED, "task") if _same_head(ours, theirs) else _SHARED
    return {part: found[part] for part in wanted if part in shared and part in found}


def describe_fresh_parts(*, ours: HeadsSection, theirs: HeadsSection) -> str:
    """Returns in words what starts fresh, ``""`` if nothing does."""
    fresh = []
    if ours.pooler and not theirs.pooler:
        fresh.append("the pooler")
    if not _same_head(ours, theirs):
        fresh.append(f"the {(ours.task or '').replace('_', '-')} head")
    return " and ".join(fresh)


def _same_head(ours: HeadsSection, theirs: HeadsSection) -> bool:
    return ours.task == theirs.task and ours.labels == theirs.labels
