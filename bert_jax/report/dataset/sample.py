"""An example with its masks, spelled out for the report page and the terminal."""

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
    spaced: bool  # whether a space precedes it
    change: Change  # what masking did to it; "": not to be predicted
    original: str  # the token before masking, as the vocabulary spells it


class SampleExample(NamedTuple):
    """An example in the order of its spans, without [CLS] and the [SEP] that end them."""

    number: int  # index of the example in its split
    label: str
    spans: tuple[tuple[Piece, ...], ...]
    tokens: int
    predictions: int


def label_name(kind: str, label: int) -> str:
    """Returns the meaning of a label: ``("nsp", 1)`` → ``"B is random"``."""
    names = {"nsp": ("B follows A", "B is random"), "sop": ("A and B in order", "A and B swapped")}
    return names[kind][label] if kind in names else "one span, no label"


def sample_example(
    example: Example, masked: MaskedExample, *, number: int, kind: str, tokenizer: Tokenizer
) -> SampleExample:
    """Returns an example with its masks, spelled out.

    `number` is its index in the split; the `kind` of pairing gives the label its meaning.
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
    return SampleExample(
        number=number,
        label=label_name(kind, example.next_sentence_label),
        spans=tuple(spans),
        tokens=length,
        predictions=len(predicted),
    )


def spell_piece(piece: str) -> str:
    """Returns a piece without its word-boundary marker: ``"##ing"`` → ``"ing"``."""
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

    `before` are the tokens to predict, `after` what the model sees there, both int [k].
    """
    masked = int((after == mask).sum())
    kept = int(((after == before) & (after != mask)).sum())
    return masked, len(after) - masked - kept, kept
