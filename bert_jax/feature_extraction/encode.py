"""Texts to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.rows.assemble import assemble
from bert_jax.feature_extraction.texts import InputText
from bert_jax.text import Tokenizer


class EncodedText(NamedTuple):
    """``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``, unpadded."""

    source: InputText
    ids: list[int]
    second: int  # where B begins; the length without one
    cut: bool  # whether pieces were left out

    @property
    def text_positions(self) -> np.ndarray:
        """Positions of the pieces that are not special, int [pieces]."""
        special = {0, self.second - 1, len(self.ids) - 1}
        return np.asarray([at for at in range(len(self.ids)) if at not in special], np.intp)

    def word_starts(self, is_continuation: np.ndarray) -> np.ndarray:
        """Returns which of `text_positions` begin a word: bool [pieces].

        Args:
            is_continuation: of the tokenizer, bool [vocabulary]. The first piece of a span begins
                a word all the same.
        """
        at = self.text_positions
        starts = ~is_continuation[np.asarray(self.ids)[at]]
        return starts | (at == 1) | (at == self.second)


def encode(
    texts: Sequence[InputText], tokenizer: Tokenizer, *, max_length: int
) -> list[EncodedText]:
    """Returns each text's ids; the longer of a pair loses its last piece until both fit.

    Args:
        texts: one or two spans each.
        tokenizer: of the run.
        max_length: pieces in a row, special ones included.
    """
    firsts = tokenizer.encode_batch([source.text for source in texts])
    seconds = tokenizer.encode_batch([source.pair or "" for source in texts])
    return [
        EncodedText(
            source,
            *assemble(
                first,
                None if source.pair is None else second,
                tokenizer.special,
                max_length=max_length,
            ),
        )
        for source, first, second in zip(texts, firsts, seconds, strict=True)
    ]
