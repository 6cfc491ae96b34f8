"""Masked examples for the report and the terminal, and statistics of a sample."""

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from bert_jax.data.dataset.reader import Dataset
from bert_jax.data.dataset.schema import Example
from bert_jax.data.loader.mask_share import MaskShare
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskedExample, MaskingSection, TokenMasker
from bert_jax.text import Tokenizer
from bert_jax.text.word_starts import continuations

SAMPLE: Final = 20_000  # maximum number of examples in the sample
SHOWN: Final = 20  # number of examples in the report
PIECES: Final = 30  # number of most frequent pieces in the report
CHANGES: Final = ("masked", "random", "kept")  # what masking did to a target token

_CHUNK: Final = 1024  # number of examples to read into memory at once
_LABELS: Final = {
    "nsp": ("B follows A", "B is random"),
    "sop": ("A and B in order", "A and B swapped"),
}
_CONTINUES: Final = "##"  # WordPiece
_BEGINS: Final = "\u2581"  # SentencePiece: ▁
_SPAN_STYLES: Final = ("cyan", "yellow")
_STYLES: Final = {
    "masked": "bold reverse",
    "random": "bold reverse magenta",
    "kept": "bold underline",
}


class Piece(NamedTuple):
    """A token as the model sees it."""

    text: str
    spaced: bool  # whether a space precedes it
    change: str  # one of `CHANGES`; "" if the token is not a target
    original: str  # spelling in the vocabulary before masking


class SampleExample(NamedTuple):
    """The masked spans of an example, without [CLS] and [SEP]."""

    number: int  # index of the example in its split
    label: str
    spans: tuple[tuple[Piece, ...], ...]
    tokens: int
    predictions: int


class Sample(NamedTuple):
    """Statistics of a sample, and a few of its examples."""

    size: int  # number of examples
    tokens: int
    changes: dict[str, int]  # number of target tokens by change, in the order of `CHANGES`
    labels: Counter[str]
    masks: MaskShare
    pieces: list[tuple[str, int]]  # (piece, count), most frequent first, without special pieces
    shown: list[SampleExample]

    @property
    def predictions(self) -> int:
        """Number of target tokens."""
        return sum(self.changes.values())


def take_sample(
    split: Dataset, *, tokenizer: Tokenizer, masking: MaskingSection, seed: int
) -> Sample:
    """Masks at most `SAMPLE` examples, spread evenly over a split, and counts their tokens."""
    rows, kind, special = _masker(split, tokenizer, masking), _kind(split), tokenizer.special
    indices = _spread(len(split), SAMPLE)
    shown = {indices[at] for at in _spread(len(indices), SHOWN)}
    pieces = np.zeros(tokenizer.vocab_size, np.int64)
    changes = np.zeros(len(CHANGES), np.int64)
    labels: Counter[str] = Counter()
    tokens, wanted, without, found = 0, 0, 0, []
    for start in range(0, len(indices), _CHUNK):
        chunk = indices[start : start + _CHUNK]
        for index, example in zip(chunk, split.__getitems__(chunk), strict=True):
            masked = rows(example.input_ids, stream(seed, "report", index))
            wanted += rows.wanted(len(example.input_ids), len(rows.candidates(example.input_ids)))
            without += not len(masked.ids)
            changes += np.bincount(_changes(masked, special.mask), minlength=len(CHANGES))
            tokens += len(example.input_ids)
            pieces += np.bincount(example.input_ids, minlength=len(pieces))
            labels[_label(kind, example)] += 1
            if index in shown:
                found.append(
                    sample_example(example, masked, number=index, kind=kind, tokenizer=tokenizer)
                )
    pieces[[special.cls, special.sep]] = 0
    most = np.argsort(-pieces, kind="stable")[:PIECES]
    most = most[pieces[most] > 0].tolist()
    return Sample(
        size=len(indices),
        tokens=tokens,
        changes=dict(zip(CHANGES, changes.tolist(), strict=True)),
        labels=labels,
        masks=MaskShare(masking.unit, int(changes.sum()), wanted, without, len(indices)),
        pieces=list(zip(tokenizer.texts(most), pieces[most].tolist(), strict=True)),
        shown=found,
    )


def print_examples(
    split: Dataset,
    count: int,
    *,
    tokenizer: Tokenizer,
    masking: MaskingSection,
    seed: int,
    console: Console,
) -> None:
    """Prints `count` masked examples, spread evenly over a split."""
    rows, kind = _masker(split, tokenizer, masking), _kind(split)
    for index in _spread(len(split), count):
        example = split[index]
        masked = rows(example.input_ids, stream(seed, "report", index))
        shown = sample_example(example, masked, number=index, kind=kind, tokenizer=tokenizer)
        console.print(example_text(shown), soft_wrap=True)
    legend = "⟨…⟩: the original of a masked or replaced token; ⟨=⟩: predicted, but unchanged"
    console.print(legend, style="dim", soft_wrap=True)


def sample_example(
    example: Example, masked: MaskedExample, *, number: int, kind: str, tokenizer: Tokenizer
) -> SampleExample:
    """Returns a masked example as text.

    `number` is the example's index in the split. `kind` is the pairing, which determines the
    description of the label.
    """
    originals = tokenizer.texts(example.input_ids.tolist())
    seen = tokenizer.texts(masked.input_ids.tolist())
    tables = tokenizer.is_continuation, tokenizer.ends_word
    continues = continuations(example.input_ids, *tables).tolist()
    codes = _changes(masked, tokenizer.special.mask).tolist()
    changes = dict(zip(masked.positions.tolist(), (CHANGES[code] for code in codes), strict=True))
    between = tokenizer.separators if example.has_pair else 1
    bounds = [(1, example.first_length - between)]
    if example.has_pair:
        bounds.append((example.first_length, len(originals) - 1))
    spans = tuple(
        tuple(
            Piece(
                spell_piece(seen[at]),
                spaced=at > start and not continues[at],
                change=changes.get(at, ""),
                original=originals[at].strip(),
            )
            for at in range(start, stop)
        )
        for start, stop in bounds
    )
    return SampleExample(number, _label(kind, example), spans, len(originals), len(changes))


def example_text(example: SampleExample) -> Text:
    """Returns an example for the terminal: masked tokens, then their originals in brackets.

    "the dog barked" becomes ``the [MASK]⟨dog⟩ barked``. ``⟨=⟩`` marks a target that masking left
    unchanged.
    """
    text = Text()
    text.append(
        f"example {example.number:,}: {example.label}, {example.tokens:,} tokens, "
        f"{example.predictions:,} to predict\n",
        style="bold",
    )
    for name, span, style in zip("AB", example.spans, _SPAN_STYLES, strict=False):
        text.append(f"{name}  ", style="dim")
        for piece in span:
            text.append(" " * piece.spaced, style=style)
            text.append(piece.text, style=f"{style} {_STYLES.get(piece.change, '')}")
            if piece.change:
                original = "=" if piece.change == "kept" else piece.original
                text.append(f"⟨{original}⟩", style="green")
        text.append("\n")
    return text


def spell_piece(piece: str) -> str:
    """Returns a piece without its word-boundary mark: ``"##ing"`` → ``"ing"``."""
    if piece.startswith(_CONTINUES) and len(piece) > len(_CONTINUES):
        return piece[len(_CONTINUES) :]
    return piece.removeprefix(_BEGINS).strip() or piece


def _changes(masked: MaskedExample, mask: int) -> np.ndarray:
    """Returns the index in `CHANGES` of each target token, int [k]."""
    after = masked.input_ids[masked.positions]
    return np.where(after == mask, 0, np.where(after == masked.ids, 2, 1))


def _label(kind: str, example: Example) -> str:
    return _LABELS[kind][example.next_sentence_label] if kind in _LABELS else "one span, no label"


def _kind(split: Dataset) -> str:
    return split.provenance.pairing.kind


def _masker(split: Dataset, tokenizer: Tokenizer, masking: MaskingSection) -> TokenMasker:
    most = masking.predictions(split.provenance.pairing.max_seq_length)
    return TokenMasker.from_tokenizer(tokenizer, masking=masking, max_predictions=most)


def _spread(total: int, most: int) -> list[int]:
    """Returns at most `most` indices, spread evenly over ``range(total)``."""
    count = min(total, most)
    return [at * total // count for at in range(count)]
