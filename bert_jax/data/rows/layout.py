"""Layout of masked examples in a row, one or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.task import Row

if TYPE_CHECKING:
    from bert_jax.data.dataset.reader import Example
    from bert_jax.data.rows.masking import MaskedExample


def empty_rows(rows: int, *, seq_length: int, predictions: int, max_examples: int, pad: int) -> Row:
    """Returns a batch of B rows of padding.

    Args:
        rows: B.
        seq_length: L, tokens in a row.
        predictions: P, slots for predictions.
        max_examples: E, slots for examples.
        pad: id of the padding token.

    Returns:
        int32 ``input_ids``, ``token_type_ids``, ``segment_ids`` and, with E above 1,
        ``position_ids``, each [B, L]; int32 ``masked_lm_positions``, ``masked_lm_ids`` and float32
        ``masked_lm_weights``, each [B, P]; int32 ``next_sentence_labels``, ``cls_positions`` and
        float32 ``next_sentence_weights``, each [B, E].
    """
    tokens, slots, examples = (rows, seq_length), (rows, predictions), (rows, max_examples)
    batch = {
        "input_ids": np.full(tokens, pad, np.int32),
        "token_type_ids": np.zeros(tokens, np.int32),
        "segment_ids": np.zeros(tokens, np.int32),
        "masked_lm_positions": np.zeros(slots, np.int32),
        "masked_lm_ids": np.zeros(slots, np.int32),
        "masked_lm_weights": np.zeros(slots, np.float32),
        "next_sentence_labels": np.zeros(examples, np.int32),
        "cls_positions": np.zeros(examples, np.int32),
        "next_sentence_weights": np.zeros(examples, np.float32),
    }
    if max_examples > 1:
        batch["position_ids"] = np.zeros(tokens, np.int32)
    return batch


def lay_out(row: Row, examples: Sequence[Example], masked: Sequence[MaskedExample]) -> None:
    """Writes examples into an empty row, one after the other.

    Examples of 5 and 3 tokens in a row of 10 have ``segment_ids`` 1 1 1 1 1 2 2 2 0 0,
    ``position_ids`` 0 1 2 3 4 0 1 2 0 0 and ``cls_positions`` 0 5.

    Args:
        row: one row of `empty_rows`. ``token_type_ids`` become 0 for ``[CLS] A [SEP]`` and 1 for
            ``B [SEP]``; ``segment_ids`` 1, 2, … by example, 0 for padding; ``masked_lm_weights`` 1
            for a prediction; ``next_sentence_weights`` 1 for an example with a second span.
        examples: 1 to E examples with at most L tokens in total.
        masked: the same examples, masked.

    Raises:
        ValueError: more tokens, predictions or examples than the row has room for.
    """
    room = [len(row[name]) for name in ("input_ids", "masked_lm_ids", "cls_positions")]
    needed = [sum(len(m.input_ids) for m in masked), sum(len(m.ids) for m in masked), len(examples)]
    if any(need > have for need, have in zip(needed, room, strict=True)):
        raise ValueError(
            f"tokens, predictions, examples: found {needed}, but the row has room for {room}"
        )
    start = filled = 0
    for k, (example, seen) in enumerate(zip(examples, masked, strict=True)):
        end, full = start + len(seen.input_ids), filled + len(seen.positions)
        row["input_ids"][start:end] = seen.input_ids
        row["token_type_ids"][start + example.first_length : end] = 1
        row["segment_ids"][start:end] = k + 1
        if "position_ids" in row:
            row["position_ids"][start:end] = np.arange(end - start, dtype=np.int32)
        row["masked_lm_positions"][filled:full] = seen.positions + start
        row["masked_lm_ids"][filled:full] = seen.ids
        row["masked_lm_weights"][filled:full] = 1.0
        row["next_sentence_labels"][k] = example.next_sentence_label
        row["cls_positions"][k] = start
        row["next_sentence_weights"][k] = example.has_pair
        start, filled = end, full
