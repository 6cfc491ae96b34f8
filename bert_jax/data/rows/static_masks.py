"""Examples whose masks were drawn when they were written, and the rows made of them."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.task import Row

NONE: Final = np.zeros(0, np.int32)


class StaticExample(NamedTuple):
    """``[CLS] A [SEP] B [SEP]`` with masks in it, unpadded: n tokens, k predictions."""

    input_ids: np.ndarray
    """int32 ``[n]``: what the model sees."""
    token_type_ids: np.ndarray
    """int32 ``[n]``: 0 for ``[CLS] A [SEP]``, 1 for ``B [SEP]``."""
    positions: np.ndarray
    """int32 ``[k]``: where it has to predict."""
    ids: np.ndarray
    """int32 ``[k]``: what stood there."""
    weights: np.ndarray
    """float32 ``[k]``, above 0."""
    next_sentence_label: int
    """0 if B really follows A, 1 if B is random."""

    def original(self) -> np.ndarray:
        """Returns the tokens as they were before they were masked, int32 ``[n]``."""
        restored = self.input_ids.copy()
        restored[self.positions] = self.ids
        return restored

    @property
    def special_places(self) -> np.ndarray:
        """Where [CLS] and [SEP] stand: first, last, and before the second span if there is one."""
        last, second = len(self.input_ids) - 1, int(self.token_type_ids.argmax())
        return np.array([0, second - 1, last] if second else [0, last])


@dataclasses.dataclass(frozen=True)
class StaticRow:
    """Makes rows of examples that are masked already: the same row in every epoch.

    Meets `bert_jax.task.Features`, with the names, shapes and dtypes of
    `bert_jax.data.rows.masking.MaskedRow`.

    Attributes:
        seq_length: L, tokens in a row.
        max_predictions: P, slots for predictions in a row.
        vocab_size: of the model; an id beyond it is an error.
        pad_id: what stands behind the example.
    """

    seq_length: int
    max_predictions: int
    vocab_size: int
    pad_id: int

    def __call__(self, record: StaticExample, rng: np.random.Generator) -> Row:
        """Returns one row of an example of at most L tokens and P predictions.

        Args:
            record: n tokens, k predictions.
            rng: not looked at: nothing is left to draw.

        Raises:
            UserError: more predictions than slots, or an id that the vocabulary does not have.
        """
        del rng
        length, count = len(record.input_ids), len(record.positions)
        if count > self.max_predictions:
            raise UserError(
                f"max_predictions: found {self.max_predictions}, but an example of the dataset has "
                f"{count} predictions; allowed: {count} or more"
            )
        highest = int(max(record.input_ids.max(), record.ids.max(initial=0)))
        if highest >= self.vocab_size:
            raise UserError(
                f"dataset: found token id {highest}, allowed: 0 to {self.vocab_size - 1}; it was "
                "made with another vocabulary than the run's"
            )
        return {
            "input_ids": _padded(record.input_ids, self.seq_length, self.pad_id),
            "token_type_ids": _padded(record.token_type_ids, self.seq_length),
            "segment_ids": _padded(np.ones(length, np.int32), self.seq_length),
            "masked_lm_positions": _padded(record.positions, self.max_predictions),
            "masked_lm_ids": _padded(record.ids, self.max_predictions),
            "masked_lm_weights": _padded(record.weights, self.max_predictions),
            "next_sentence_labels": np.array([record.next_sentence_label], np.int32),
            "cls_positions": np.zeros(1, np.int32),
            "next_sentence_weights": np.ones(1, np.float32),
        }

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns what rows depend on beside the dataset, for the data position."""
        return {
            "seq_length": self.seq_length,
            "packing": "none",
            "masking": "static, as stored",
            "masking.max_predictions": self.max_predictions,
        }


def _padded(values: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    padded = np.full(size, fill, values.dtype)
    padded[: len(values)] = values
    return padded
