"""Rows of several examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.data.rows.layout import empty_rows, lay_out
from bert_jax.data.rows.masking import MaskedRow
from bert_jax.data.rows.packing_plan import PackingSection
from bert_jax.errors import UserError
from bert_jax.task import Features, Row

if TYPE_CHECKING:
    from bert_jax.data.dataset.reader import Example


@dataclasses.dataclass(frozen=True)
class PackedRow:
    """Makes rows of several masked examples, each masked as it is when it has a row of its own.

    Attributes:
        single: the maker of rows of one example.
        max_examples: E, most examples in a row.
    """

    single: MaskedRow
    max_examples: int

    @property
    def seq_length(self) -> int:
        """L, tokens in a row."""
        return self.single.seq_length

    @property
    def max_predictions(self) -> int:
        """P, slots for predictions: more than any row needs, so that no mask is ever dropped.

        An example of n tokens has at most ``max(1, round(n · rate))`` predictions, less than
        ``n · rate + 1``. So E examples of together L tokens have less than ``L · rate + E``: at
        15%, 84 slots for 8 examples in 512 tokens. The limit per example bounds the sum as well.
        """
        slots = math.ceil(self.single.masking.rate * self.seq_length) + self.max_examples - 1
        return min(slots, self.single.max_predictions * self.max_examples)

    def batch(
        self,
        records: Sequence[Sequence[Example]],
        rngs: Sequence[Sequence[np.random.Generator]],
    ) -> Row:
        """Returns a batch of rows.

        Args:
            records: of each row, 1 to E examples of together at most L tokens.
            rngs: the stream of each example in this epoch.

        Returns:
            The arrays of `empty_rows`, [B, ...], filled as `lay_out` does.

        Raises:
            ValueError: a row's examples do not fit it.
        """
        # Written in place: copying finished rows into a batch would be a tenth of the work.
        batch = empty_rows(
            len(records),
            seq_length=self.seq_length,
            predictions=self.max_predictions,
            max_examples=self.max_examples,
            pad=self.single.special.pad,
        )
        for at, (examples, streams) in enumerate(zip(records, rngs, strict=True)):
            row = {name: array[at] for name, array in batch.items()}
            masked = [
                self.single.mask(example.input_ids, stream)
                for example, stream in zip(examples, streams, strict=True)
            ]
            lay_out(row, examples, masked)
        return batch

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns what rows depend on beside the dataset and the seed, for the data position."""
        return {
            **self.single.fingerprint(),
            "packing": "first_fit_decreasing",
            "packing.max_examples": self.max_examples,
        }


def packed(features: Features, section: PackingSection) -> PackedRow:
    """Returns the maker of rows of several examples for that of rows of one.

    Raises:
        UserError: its rows hold one example by their nature.
    """
    if not isinstance(features, MaskedRow):
        raise UserError(
            f"packing: found max_examples {section.max_examples}, but rows of "
            f"{type(features).__name__} hold one example each; allowed: no packing"
        )
    return PackedRow(single=features, max_examples=section.max_examples)
