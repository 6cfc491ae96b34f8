"""Statistics of a dataset for its report page, and examples for the terminal."""

import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from etils import epath
from rich.console import Console
from rich.text import Text

from bert_jax.data.dataset.provenance import Provenance
from bert_jax.data.dataset.reader import Dataset
from bert_jax.data.dataset.schema import Example
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskedExample, MaskingSection, TokenMasker
from bert_jax.data.rows.packing_plan import PackingPlan, PackingSection
from bert_jax.files.atomic import write_whole
from bert_jax.pipelines.preparation import Preparation, read_preparation
from bert_jax.report.dataset import page
from bert_jax.report.dataset.sample import (
    Piece,
    SampleExample,
    count_changes,
    label_name,
    sample_example,
)
from bert_jax.text import Tokenizer
from bert_jax.version import __version__

SAMPLE: Final = 20_000  # examples in which masks, labels and pieces are counted
SHOWN: Final = 20  # examples on the page
PIECES: Final = 30  # the most frequent ones on the page

_CHUNK: Final = 1024  # examples in memory at once
_LENGTHS: Final = 1 << 20  # lengths in memory at once
_STYLES: Final = ("cyan", "yellow")
_CHANGED: Final = {
    "masked": "bold reverse",
    "random": "bold reverse magenta",
    "kept": "bold underline",
}


def write_examples_report(
    splits: list[Dataset], *, tokenizer: Tokenizer, masking: MaskingSection, seed: int
) -> Path:
    """Writes a dataset's report, and returns its path: ``data/wiki`` → ``data/wiki.report.html``.

    It is beside the dataset, which inspecting does not change.

    Lengths are read in full, examples by a sample spread evenly over the first split, which is to
    be the training split; memory use does not grow with the dataset. Raises UserError if a shard is
    damaged, or the page cannot be written.
    """
    train = splits[0]
    directory, provenance = Path(train.directory), train.provenance
    pairing = provenance.pairing
    rows = TokenMasker.from_tokenizer(
        tokenizer, masking=masking, max_predictions=masking.predictions(pairing.max_seq_length)
    )
    sample = _count(train, rows, seed=seed, tokenizer=tokenizer)
    figures = [_split_figures(split) for split in splits]
    preparation = read_preparation(directory)
    html = page.render(
        page.ExamplesInputs(
            title=f"Dataset {directory.name}",
            made=_made(provenance, directory),
            splits=figures,
            padding=_padding(figures[0].length_counts, capacity=pairing.max_seq_length),
            sample_size=sample.size,
            masking=_describe(masking),
            masks=sample.masks,
            labels=dict(sample.labels),
            corpus=provenance.corpus.model_dump(),
            pieces=_most_frequent(sample.pieces, tokenizer),
            dropped=_dropped(preparation),
            overlaps=_overlaps(preparation),
            sample=sample.shown,
            languages={
                name: split.languages
                for name, split in provenance.splits.items()
                if split.languages
            },
            footer=f"bert-jax {__version__}, {time.strftime('%Y-%m-%d %H:%M %Z')}",
        )
    )
    path = directory.with_name(f"{directory.name}.report.html")
    write_whole(epath.Path(path), html.encode())
    return path


def print_examples(
    train: Dataset,
    count: int,
    *,
    tokenizer: Tokenizer,
    masking: MaskingSection,
    seed: int,
    console: Console,
) -> None:
    """Prints examples spread evenly over a split, with spans and masks in colour."""
    length = train.provenance.pairing.max_seq_length
    rows = TokenMasker.from_tokenizer(
        tokenizer, masking=masking, max_predictions=masking.predictions(length)
    )
    kind = train.provenance.pairing.kind
    for index in _spread(len(train), count):
        example = train[index]
        masked = _mask(rows, example, index, seed)
        shown = sample_example(example, masked, number=index, kind=kind, tokenizer=tokenizer)
        console.print(example_text(shown), soft_wrap=True)


def example_text(example: SampleExample) -> Text:
    """Returns an example for the terminal: model input, with the original tokens in brackets.

    It is readable without colours: ``the [MASK]⟨dog⟩ barked`` was "the dog barked", and ``⟨=⟩``
    follows a token to predict that was left unchanged.
    """
    text = Text()
    text.append(
        f"example {example.number:,}: {example.label}, {example.tokens:,} tokens, "
        f"{example.predictions:,} to predict\n",
        style="bold",
    )
    for name, span, style in zip("AB", example.spans, _STYLES, strict=False):
        text.append(f"{name}  ", style="dim")
        for piece in span:
            if piece.spaced:
                text.append(" ", style=style)
            _append(text, piece, style=style)
        text.append("\n")
    return text


def _append(text: Text, piece: Piece, *, style: str) -> None:
    if not piece.change:
        text.append(piece.text, style=style)
        return
    text.append(piece.text, style=f"{style} {_CHANGED[piece.change]}")
    text.append("⟨=⟩" if piece.change == "kept" else f"⟨{piece.original}⟩", style="green")


class _Sample(NamedTuple):
    size: int
    masks: page.MaskCounts
    labels: Counter[str]
    pieces: np.ndarray  # int64 [vocab_size], special tokens left out
    shown: list[SampleExample]


def _count(train: Dataset, rows: TokenMasker, *, seed: int, tokenizer: Tokenizer) -> _Sample:
    kind = train.provenance.pairing.kind
    special = rows.special
    indices = _spread(len(train), SAMPLE)
    shown = {indices[at] for at in _spread(len(indices), SHOWN)}
    pieces = np.zeros(rows.vocab_size, np.int64)
    labels: Counter[str] = Counter()
    changes = np.zeros(3, np.int64)
    tokens, found = 0, []
    for start in range(0, len(indices), _CHUNK):
        chunk = indices[start : start + _CHUNK]
        for index, example in zip(chunk, train.__getitems__(chunk), strict=True):
            masked = _mask(rows, example, index, seed)
            after = masked.input_ids[masked.positions]
            changes += count_changes(masked.ids, after, mask=special.mask)
            tokens += len(example.input_ids)
            pieces += np.bincount(example.input_ids, minlength=rows.vocab_size)
            labels[label_name(kind, example.next_sentence_label)] += 1
            if index in shown:
                found.append(
                    sample_example(example, masked, number=index, kind=kind, tokenizer=tokenizer)
                )
    pieces[[special.cls, special.sep]] = 0
    masked, random, kept = changes.tolist()
    counts = page.MaskCounts(tokens=tokens, masked=masked, random=random, kept=kept)
    return _Sample(len(indices), counts, labels, pieces, found)


def _mask(rows: TokenMasker, example: Example, index: int, seed: int) -> MaskedExample:
    return rows(example.input_ids, stream(seed, "report", index))


def _spread(total: int, most: int) -> list[int]:
    """Returns at most `most` indices spread evenly over ``range(total)``."""
    count = min(total, most)
    return [at * total // count for at in range(count)]


def _split_figures(split: Dataset) -> page.SplitFigures:
    record = split.provenance.splits[split.split]
    impure = None
    if record.pairs is not None and split.provenance.pairing.kind == "nsp":
        same, other = record.pairs.same_document[1], record.pairs.other_document[1]
        impure = (same, same + other)
    counts = np.zeros(split.provenance.pairing.max_seq_length + 1, np.int64)
    for start in range(0, len(split), _LENGTHS):
        counts += np.bincount(split.lengths[start : start + _LENGTHS], minlength=len(counts))
    return page.SplitFigures(
        name=split.split,
        documents=record.documents,
        examples=record.examples,
        tokens=record.tokens,
        length_counts=counts,
        sentences=record.sentences,
        repeated_sentences=record.repeated_sentences,
        impure=impure,
    )


def _padding(counts: np.ndarray, *, capacity: int) -> page.Padding:
    most = PackingSection().max_examples
    plan = PackingPlan(counts, capacity=capacity, max_examples=most)
    tokens = int((counts * np.arange(len(counts))).sum())
    return page.Padding(
        seq_length=capacity,
        single=1.0 - tokens / (int(counts.sum()) * capacity),
        packed=plan.padding_share,
        examples_per_row=plan.examples_per_row,
        max_examples=most,
    )


def _most_frequent(counts: np.ndarray, tokenizer: Tokenizer) -> list[tuple[str, int]]:
    order = np.argsort(-counts, kind="stable")[:PIECES]
    order = order[counts[order] > 0].tolist()
    return list(zip(tokenizer.pieces(order), counts[order].tolist(), strict=True))


def _dropped(preparation: Preparation | None) -> list[tuple[str, int, int]] | None:
    if preparation is None:
        return None
    documents, lines, places = preparation.documents, preparation.lines, {"read": 0, "kept": 2}
    names = sorted({*documents, *lines}, key=lambda name: (places.get(name, 1), name))
    return [(name, documents.get(name, 0), lines.get(name, 0)) for name in names]


def _overlaps(preparation: Preparation | None) -> list[page.Overlap] | None:
    if preparation is None or preparation.cleaning.contamination is None:
        return None
    return [
        page.Overlap(each.name, each.examples, each.found, each.documents)
        for each in preparation.contamination
    ]


def _describe(masking: MaskingSection) -> str:
    """Returns the settings that are set: ``rate 0.15, unit token, …``."""
    settings = masking.model_dump(exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _made(provenance: Provenance, directory: Path) -> dict[str, str]:
    pairing = ", ".join(f"{k} {v}" for k, v in provenance.pairing.model_dump().items())
    files = provenance.text.files
    return {
        "directory": str(directory),
        "pairing": pairing,
        "seed": str(provenance.seed),
        "validation_fraction": str(provenance.validation_fraction),
        "vocabulary": f"{provenance.vocab_size:,} pieces",
        "tokenizer": provenance.tokenizer_hash[:16],
        "layout": provenance.text.layout,
        "sources": f"{len(files):,}, {sum(file.bytes for file in files):,} bytes",
    }
