"""The row transform of objectives that predict the tokens themselves, without masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.data.rows.masking import check_vocabulary
from bert_jax.task import Row

if TYPE_CHECKING:
    from bert_jax.data.dataset.reader import Example


@dataclasses.dataclass(frozen=True)
class UnmaskedTransform:
    """A `bert_jax.task.RowTransform` that keeps all tokens. All epochs have equal rows."""

    seq_length: int  # L, tokens in a row
    vocab_size: int  # number of pieces
    pad_id: int
    max_examples: int = 1  # E, maximum number of examples in a row; if above 1, rows are packed

    def batch(
        self, records: Sequence[Sequence[Example]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Row:
        """Returns int32 arrays [B, L] with one row per record.

        The arrays are ``input_ids``, ``token_type_ids``, ``segment_ids`` and, if E is above 1,
        ``position_ids``, as in `bert_jax.data.rows.masking_transform.lay_out`.

        Args:
            records: examples of each row: 1 to E, with at most L tokens in total.
            rngs: not used.

        Raises ValueError if the examples of a row do not fit, and UserError if an id is not in the
        vocabulary.
        """
        del rngs
        names = ("input_ids", "token_type_ids", "segment_ids")
        names += ("position_ids",) if self.max_examples > 1 else ()
        batch = {name: np.zeros((len(records), self.seq_length), np.int32) for name in names}
        batch["input_ids"][:] = self.pad_id
        for at, examples in enumerate(records):
            start = 0
            for number, example in enumerate(examples, 1):
                check_vocabulary(int(example.input_ids.max()), vocab_size=self.vocab_size)
                end = start + len(example.input_ids)
                batch["input_ids"][at, start:end] = example.input_ids
                batch["token_type_ids"][at, start + example.first_length : end] = 1
                batch["segment_ids"][at, start:end] = number
                if "position_ids" in batch:
                    batch["position_ids"][at, start:end] = np.arange(end - start)
                start = end
        return batch

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that determine the rows, for the data position."""
        packing = {"packing.max_examples": self.max_examples} if self.max_examples > 1 else {}
        return {
            "seq_length": self.seq_length,
            "packing": "first_fit_decreasing" if packing else "none",
            "masking": "none",
            **packing,
        }
