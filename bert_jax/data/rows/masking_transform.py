"""The row transform of pretraining: masks examples and lays them out, one or several per row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.data.rows.layout import empty_rows, lay_out
from bert_jax.data.rows.masking import MaskingSection, TokenMasker
from bert_jax.task import Row

if TYPE_CHECKING:
    from bert_jax.data.dataset.reader import Example
    from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class MaskingTransform:
    """A `bert_jax.task.RowTransform` over unmasked examples."""

    seq_length: int  # L, tokens in a row
    masker: TokenMasker  # masks an example, independent of the other examples in its row
    max_examples: int = 1  # E, most examples in a row; more than 1 is packing

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, *, seq_length: int, masking: MaskingSection
    ) -> MaskingTransform:
        """Returns the transform without packing, ``masking.predictions(seq_length)`` slots a row.

        Raises:
            UserError: the segmenter cannot be imported.
        """
        predictions = masking.predictions(seq_length)
        masker = TokenMasker.from_tokenizer(tokenizer, masking=masking, max_predictions=predictions)
        return cls(seq_length, masker)

    def packed(self, max_examples: int) -> MaskingTransform:
        """Returns the same transform with up to ``max_examples`` examples per row."""
        return dataclasses.replace(self, max_examples=max_examples)

    @property
    def max_predictions(self) -> int:
        """P, slots for predictions in a row: enough that packing never drops a mask.

        An example of n tokens has at most ``max(1, round(n · rate))`` predictions, fewer than
        ``n · rate + 1``. So E examples with L tokens in total have fewer than ``L · rate + E``: at
        15%, 84 slots for 8 examples in 512 tokens. The limit per example bounds the sum as well.
        """
        if self.max_examples == 1:
            return self.masker.max_predictions
        slots = math.ceil(self.masker.masking.rate * self.seq_length) + self.max_examples - 1
        return min(slots, self.masker.max_predictions * self.max_examples)

    @property
    def static_copies(self) -> int | None:
        """Epochs after which masks repeat; None: never."""
        return self.masker.masking.static_copies

    def batch(
        self,
        records: Sequence[Sequence[Example]],
        rngs: Sequence[Sequence[np.random.Generator]],
    ) -> Row:
        """Returns a batch with one row per element of ``records``.

        A record's examples, 1 to E with at most L tokens in total, have a random stream each.
        Returns the arrays of `empty_rows`, filled as `lay_out` does.

        Raises:
            ValueError: the examples of a row do not fit in it.
            UserError: an id exceeds the vocabulary.
        """
        # Rows are written in place: copying finished rows into a batch takes a tenth of the time.
        batch = empty_rows(
            len(records),
            seq_length=self.seq_length,
            predictions=self.max_predictions,
            max_examples=self.max_examples,
            pad=self.masker.special.pad,
        )
        for at, (examples, streams) in enumerate(zip(records, rngs, strict=True)):
            masked = [
                self.masker(example.input_ids, stream)
                for example, stream in zip(examples, streams, strict=True)
            ]
            lay_out({name: array[at] for name, array in batch.items()}, examples, masked)
        return batch

    def __call__(self, record: Example, rng: np.random.Generator) -> Row:
        """Returns the row of one example: `batch` without its leading axis."""
        return {name: array[0] for name, array in self.batch([[record]], [[rng]]).items()}

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that rows depend on, for the data position."""
        masking = self.masker.masking
        optional = {name: getattr(masking, name) for name in ("segmenter", "static_copies")}
        if masking.unit in ("ngram", "span"):
            optional["chances"] = ",".join(f"{chance:.6g}" for chance in masking.span_chances)
        packing = {"packing.max_examples": self.max_examples} if self.max_examples > 1 else {}
        return {
            "seq_length": self.seq_length,
            "packing": "first_fit_decreasing" if packing else "none",
            "masking.max_predictions": self.masker.max_predictions,
            "masking.rate": masking.rate,
            "masking.unit": masking.unit,
            "masking.replace_with_mask": masking.replace_with_mask,
            "masking.replace_with_random": masking.replace_with_random,
            **{f"masking.{name}": value for name, value in optional.items() if value is not None},
            **packing,
        }
