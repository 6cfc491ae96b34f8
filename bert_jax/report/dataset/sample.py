"""An example with its masks, for a person to read: on a page or in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from bert_jax.data.dataset.schema import Example
from bert_jax.data.rows.masking import MaskedExample
from bert_jax.text import Tokenizer

Change = Literal["", "masked", "random", "kept"]

_CONTINUES: Final = "##"  # WordPiece
_BEGINS: Final = "\u2581"  # SentencePiece: ▁


class Piece(NamedTuple):
    """A token as the model sees it."""

    text: str
    spaced: bool
    """Whether a space stands before it."""
    change: Change
    """What masking has done to it; "": it is not to be predicted."""
    original: str
    """What stood there, spelled as the vocabulary has it."""


class DrawnExample(NamedTuple):
    """An example in the order of its spans, without [CLS] and the [SEP] that end them."""

    number: int
    """Of the example in its dataset, from 0."""
    label: str
    spans: tuple[tuple[Piece, ...], ...]
    tokens: int
    predictions: int


def label_name(kind: str, label: int) -> str:
    """Returns what a label of a dataset says: ``("nsp", 1)`` → ``"B is random"``."""
    names = {
        "nsp": ("B follows A", "B is random"),
        "sop": ("A and B in order", "A and B swapped"),
    }
    return names[kind][label] if kind in names else "one span, no label"


def draw_example(
    example: Example, masked: MaskedExample, *, number: int, kind: str, tokenizer: Tokenizer
) -> DrawnExample:
    """Returns an example with its masks, spelled.

    Args:
        example: unmasked.
        masked: the same with masks.
        number: of the example in its dataset.
        kind: of pairing, which says what the label stands for.
        tokenizer: of the dataset.
    """
    originals = tokenizer.pieces(example.input_ids.tolist())
    seen = tokenizer.pieces(masked.input_ids.tolist())
    predicted = set(masked.positions.tolist())
    mask = tokenizer.special.mask
    length = len(originals)
    bounds = [(1, example.first_length - 1)]
    if example.has_pair:
        bounds.append((example.first_length, length - 1))
    spans = []
    for start, stop in bounds:
        ids = example.input_ids[start:stop]
        continues = np.asarray(tokenizer.is_continuation)[ids].tolist()
        spans.append(
            tuple(
                Piece(
                    spell_piece(seen[at]),
                    spaced=not continues[at - start] and at > start,
                    change=_change(
                        at in predicted,
                        before=int(example.input_ids[at]),
                        after=int(masked.input_ids[at]),
                        mask=mask,
                    ),
                    original=originals[at],
                )
                for at in range(start, stop)
            )
        )
    return DrawnExample(
        number=number,
        label=label_name(kind, example.next_sentence_label),
        spans=tuple(spans),
        tokens=length,
        predictions=len(predicted),
    )


def spell_piece(piece: str) -> str:
    """Returns a piece without the mark of its place in a word: ``"##ing"`` → ``"ing"``."""
    if piece.startswith(_CONTINUES) and len(piece) > len(_CONTINUES):
        return piece[len(_CONTINUES) :]
    return piece.removeprefix(_BEGINS) or piece


def _change(is_predicted: bool, *, before: int, after: int, mask: int) -> Change:
    if not is_predicted:
        return ""
    if after == mask:
        return "masked"
    return "kept" if after == before else "random"


def count_changes(before: np.ndarray, after: np.ndarray, *, mask: int) -> Sequence[int]:
    """Returns how many predicted tokens are masked, random and kept.

    Args:
        before: int [k], the tokens to predict.
        after: int [k], what the model sees there.
        mask: id of [MASK].
    """
    masked = int((after == mask).sum())
    kept = int(((after == before) & (after != mask)).sum())
    return masked, len(after) - masked - kept, kept
