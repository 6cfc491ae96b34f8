"""The row transforms of pretraining, for unmasked examples and for stored masks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bert_jax.data.rows.masking import (
    MaskedExample,
    MaskingSection,
    TokenMasker,
    check_vocabulary,
)
from bert_jax.errors import UserError
from bert_jax.task import Row

if TYPE_CHECKING:
    from bert_jax.data.dataset.reader import Example
    from bert_jax.text.tokenizer import Tokenizer


def empty_rows(
    rows: int, *, seq_length: int, predictions: int, max_examples: int, pairs: bool, pad: int
) -> Row:
    """Returns a batch of padding: B rows of L tokens, with P predictions and E examples per row.

    Arrays [B, L]: int32 ``input_ids``, ``token_type_ids``, ``segment_ids`` and, if E is above 1,
    ``position_ids``. Arrays [B, P]: int32 ``masked_lm_positions`` and ``masked_lm_ids``, float32
    ``masked_lm_weights``. With `pairs`, arrays [B, E]: int32 ``next_sentence_labels`` and
    ``cls_positions``, float32 ``next_sentence_weights``.
    """
    tokens, slots, examples = (rows, seq_length), (rows, predictions), (rows, max_examples)
    batch = {
        "input_ids": np.full(tokens, pad, np.int32),
        "token_type_ids": np.zeros(tokens, np.int32),
        "segment_ids": np.zeros(tokens, np.int32),
        "masked_lm_positions": np.zeros(slots, np.int32),
        "masked_lm_ids": np.zeros(slots, np.int32),
        "masked_lm_weights": np.zeros(slots, np.float32),
    }
    if pairs:
        batch["next_sentence_labels"] = np.zeros(examples, np.int32)
        batch["cls_positions"] = np.zeros(examples, np.int32)
        batch["next_sentence_weights"] = np.zeros(examples, np.float32)
    if max_examples > 1:
        batch["position_ids"] = np.zeros(tokens, np.int32)
    return batch


def lay_out(row: Row, examples: Sequence[Example], masked: Sequence[MaskedExample]) -> None:
    """Writes 1 to E masked examples one after the other into an empty row.

    Examples of 5 and 3 tokens in a row of 10 have ``segment_ids`` 1 1 1 1 1 2 2 2 0 0,
    ``position_ids`` 0 1 2 3 4 0 1 2 0 0 and ``cls_positions`` 0 5. ``token_type_ids`` are 0 for
    ``[CLS] A [SEP]`` and 1 for ``B [SEP]``. ``masked_lm_weights`` are 1 for predictions, and
    ``next_sentence_weights`` are 1 for examples with a second span. Raises ValueError if the row is
    too small for the tokens or predictions, or, with ``cls_positions``, for the examples.
    """
    names = [name for name in ("input_ids", "masked_lm_ids", "cls_positions") if name in row]
    room = [len(row[name]) for name in names]
    needed = [sum(len(m.input_ids) for m in masked), sum(len(m.ids) for m in masked), len(examples)]
    needed = needed[: len(room)]
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
        if "cls_positions" in row:
            row["next_sentence_labels"][k] = example.next_sentence_label
            row["cls_positions"][k] = start
            row["next_sentence_weights"][k] = example.has_pair
        start, filled = end, full


@dataclasses.dataclass(frozen=True)
class MaskingTransform:
    """A `bert_jax.task.ChangingTransform` for unmasked examples."""

    seq_length: int  # L, tokens in a row
    masker: TokenMasker  # masks each example independently of the others in its row
    _: dataclasses.KW_ONLY
    max_examples: int = 1  # E, maximum number of examples in a row; if above 1, rows are packed
    progress: float = 0.0  # share of the run's steps before these rows
    pairs: bool = True  # whether rows have the arrays of a pair task

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Tokenizer,
        *,
        seq_length: int,
        masking: MaskingSection,
        max_examples: int = 1,
        pairs: bool = True,
    ) -> MaskingTransform:
        """Returns the transform for a tokenizer.

        Raises UserError if the segmenter cannot be imported.
        """
        predictions = masking.predictions(seq_length)
        masker = TokenMasker.from_tokenizer(tokenizer, masking=masking, max_predictions=predictions)
        return cls(seq_length, masker, max_examples=max_examples, pairs=pairs)

    @property
    def max_predictions(self) -> int:
        """P, prediction slots in a row. Packing never drops a prediction for lack of a slot.

        An example of n tokens has fewer than ``n · rate + 1`` predictions. So E examples with L
        tokens in total have fewer than ``L · rate + E``. For 8 examples in 512 tokens at 15%, this
        gives 84 slots. The slots are also limited to E times the limit per example.
        """
        if self.max_examples == 1:
            return self.masker.max_predictions
        highest = self.masker.masking.highest_rate
        slots = math.ceil(highest * self.seq_length) + self.max_examples - 1
        return min(slots, self.masker.max_predictions * self.max_examples)

    def batch(
        self, records: Sequence[Sequence[Example]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Row:
        """Returns the arrays of `empty_rows`, with one row per record, filled by `lay_out`.

        Args:
            records: examples of each row: 1 to E, with at most L tokens in total.
            rngs: random stream of each example.

        Raises ValueError if the examples of a row do not fit, and UserError if an id is not in the
        vocabulary.
        """
        # Rows are written in place: stacking finished rows would take 10% longer.
        batch = empty_rows(
            len(records),
            seq_length=self.seq_length,
            predictions=self.max_predictions,
            max_examples=self.max_examples,
            pairs=self.pairs,
            pad=self.masker.special.pad,
        )
        for at, (examples, streams) in enumerate(zip(records, rngs, strict=True)):
            masked = [
                self.masker(example.input_ids, stream, progress=self.progress)
                for example, stream in zip(examples, streams, strict=True)
            ]
            lay_out({name: array[at] for name, array in batch.items()}, examples, masked)
        return batch

    def at(self, progress: float) -> MaskingTransform:
        """Returns the transform after a share of the run's steps. The shapes of rows are equal."""
        return dataclasses.replace(self, progress=progress)

    def __call__(self, record: Example, rng: np.random.Generator) -> Row:
        """Returns the row of one example, as `batch` does but without the leading axis."""
        return {name: array[0] for name, array in self.batch([[record]], [[rng]]).items()}

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that determine the rows, for the data position."""
        masking = self.masker.masking
        optional: dict[str, str | int | float] = {}
        if masking.segmenter is not None:
            optional["masking.segmenter"] = masking.segmenter
        if masking.final_rate is not None:
            optional["masking.final_rate"] = masking.final_rate
        if masking.unit != "token" and self.masker.ends_word is not None:
            optional["masking.words"] = "by characters"  # earlier versions had other words
        if masking.unit in ("ngram", "span"):
            optional["masking.chances"] = ",".join(
                f"{chance:.6g}" for chance in masking.span_chances
            )
        packing = {"packing.max_examples": self.max_examples} if self.max_examples > 1 else {}
        return {
            "seq_length": self.seq_length,
            "packing": "first_fit_decreasing" if packing else "none",
            "masking.max_predictions": self.masker.max_predictions,
            "masking.rate": masking.rate,
            "masking.unit": masking.unit,
            "masking.replace_with_mask": masking.replace_with_mask,
            "masking.replace_with_random": masking.replace_with_random,
            **optional,
            **packing,
        }


class StaticExample(NamedTuple):
    """A masked, unpadded example ``[CLS] A [SEP] B [SEP]`` of n tokens with k predictions."""

    input_ids: np.ndarray  # token ids after masking, int32 `[n]`
    token_type_ids: np.ndarray  # 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`, int32 `[n]`
    positions: np.ndarray  # positions of the predictions, int32 `[k]`
    ids: np.ndarray  # original token ids at these positions, int32 `[k]`
    weights: np.ndarray  # weights of the predictions, above 0, float32 `[k]`
    next_sentence_label: int  # 0 if B really follows A, 1 if B is random

    def original(self) -> np.ndarray:
        """Returns the tokens before masking, int32 ``[n]``."""
        restored = self.input_ids.copy()
        restored[self.positions] = self.ids
        return restored


@dataclasses.dataclass(frozen=True)
class StaticMaskTransform:
    """A `bert_jax.task.RowTransform` that pads masked examples. All epochs have equal rows."""

    seq_length: int  # L, tokens in a row
    max_predictions: int  # P, prediction slots in a row
    vocab_size: int  # size of the model's vocabulary; ids must be lower
    pad_id: int
    max_examples: int = dataclasses.field(default=1, init=False)  # examples in a row

    def batch(
        self,
        records: Sequence[Sequence[StaticExample]],
        rngs: Sequence[Sequence[np.random.Generator]],
    ) -> Row:
        """Returns the arrays of `empty_rows`, with one row per record.

        Args:
            records: one example for each row, with at most L tokens.
            rngs: not used.

        Raises UserError if an example has more than P predictions or an id is not in the
        vocabulary.
        """
        del rngs
        batch = empty_rows(
            len(records),
            seq_length=self.seq_length,
            predictions=self.max_predictions,
            max_examples=1,
            pairs=True,
            pad=self.pad_id,
        )
        batch["next_sentence_weights"][:] = 1.0
        for at, (example,) in enumerate(records):
            tokens, predictions = len(example.input_ids), len(example.positions)
            if predictions > self.max_predictions:
                raise UserError(
                    "dataset.predictions",
                    f"found {self.max_predictions}, but an example has {predictions} predictions",
                    place="max_predictions",
                )
            highest = int(max(example.input_ids.max(), example.ids.max(initial=0)))
            check_vocabulary(highest, vocab_size=self.vocab_size)
            batch["input_ids"][at, :tokens] = example.input_ids
            batch["token_type_ids"][at, :tokens] = example.token_type_ids
            batch["segment_ids"][at, :tokens] = 1
            batch["masked_lm_positions"][at, :predictions] = example.positions
            batch["masked_lm_ids"][at, :predictions] = example.ids
            batch["masked_lm_weights"][at, :predictions] = example.weights
            batch["next_sentence_labels"][at] = example.next_sentence_label
        return batch

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that determine the rows, for the data position."""
        return {
            "seq_length": self.seq_length,
            "packing": "none",
            "masking": "static, as stored",
            "masking.max_predictions": self.max_predictions,
        }
