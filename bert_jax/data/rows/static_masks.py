"""Examples that are stored with their masks, and the row transform for them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from bert_jax.data.rows.masking import check_vocabulary
from bert_jax.data.rows.masking_transform import empty_rows
from bert_jax.errors import UserError
from bert_jax.task import Row


class StaticExample(NamedTuple):
    """``[CLS] A [SEP] B [SEP]``, masked and unpadded: n tokens, k predictions."""

    input_ids: np.ndarray  # int32 `[n]`: what the model sees
    token_type_ids: np.ndarray  # int32 `[n]`: 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`
    positions: np.ndarray  # int32 `[k]`: where it predicts
    ids: np.ndarray  # int32 `[k]`: the original tokens there
    weights: np.ndarray  # float32 `[k]`, above 0
    next_sentence_label: int  # 0 if B really follows A, 1 if B is random

    def original(self) -> np.ndarray:
        """Returns the tokens before masking, int32 ``[n]``."""
        restored = self.input_ids.copy()
        restored[self.positions] = self.ids
        return restored

    @property
    def special_positions(self) -> np.ndarray:
        """Positions of [CLS] and [SEP]: first, last, and before the second span if there is one."""
        last, second = len(self.input_ids) - 1, int(self.token_type_ids.argmax())
        return np.array([0, second - 1, last] if second else [0, last])


@dataclasses.dataclass(frozen=True)
class StaticMaskTransform:
    """A `bert_jax.task.RowTransform` over examples that are masked already: only padding.

    A row is the same in every epoch.
    """

    seq_length: int  # L, tokens in a row
    max_predictions: int  # P, slots for predictions in a row
    vocab_size: int  # of the model; an id beyond it is an error
    pad_id: int

    @property
    def max_examples(self) -> int:
        """One example per row."""
        return 1

    def packed(self, max_examples: int) -> NoReturn:
        """Refuses packing.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"packing: found max_examples {max_examples}, but examples that are stored with their "
            "masks have a row each; allowed: no packing"
        )

    def batch(
        self,
        records: Sequence[Sequence[StaticExample]],
        rngs: Sequence[Sequence[np.random.Generator]],
    ) -> Row:
        """Returns a batch with one row per element of ``records``, which has one example.

        The arrays are those of `empty_rows`. An example has at most L tokens and P predictions; the
        random streams are not used.

        Raises:
            UserError: more predictions than slots, or an id that exceeds the vocabulary.
        """
        del rngs
        batch = empty_rows(
            len(records),
            seq_length=self.seq_length,
            predictions=self.max_predictions,
            max_examples=1,
            pad=self.pad_id,
        )
        batch["next_sentence_weights"][:] = 1.0
        for at, (example,) in enumerate(records):
            self._check(example)
            tokens, predictions = len(example.input_ids), len(example.positions)
            batch["input_ids"][at, :tokens] = example.input_ids
            batch["token_type_ids"][at, :tokens] = example.token_type_ids
            batch["segment_ids"][at, :tokens] = 1
            batch["masked_lm_positions"][at, :predictions] = example.positions
            batch["masked_lm_ids"][at, :predictions] = example.ids
            batch["masked_lm_weights"][at, :predictions] = example.weights
            batch["next_sentence_labels"][at] = example.next_sentence_label
        return batch

    def _check(self, example: StaticExample) -> None:
        if (count := len(example.positions)) > self.max_predictions:
            raise UserError(
                f"max_predictions: found {self.max_predictions}, but an example of the dataset has "
                f"{count} predictions; allowed: {count} or more"
            )
        highest = int(max(example.input_ids.max(), example.ids.max(initial=0)))
        check_vocabulary(highest, vocab_size=self.vocab_size)

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that rows depend on, for the data position."""
        return {
            "seq_length": self.seq_length,
            "packing": "none",
            "masking": "static, as stored",
            "masking.max_predictions": self.max_predictions,
        }
