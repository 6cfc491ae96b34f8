"""The report of a dataset: what its examples look like, and its statistics."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.report.charts import Chart, histogram
from bert_jax.report.dataset.sample import SampleExample
from bert_jax.report.rendering import Cell, Share, render_page

BINS: Final = 64  # bars of the histogram, at most


class SplitFigures(NamedTuple):
    """A split, in numbers."""

    name: str
    documents: int
    examples: int
    tokens: int
    length_counts: np.ndarray  # int [longest + 1]: examples of each length
    sentences: int | None
    repeated_sentences: float | None  # share; both None where they were not counted
    impure: tuple[int, int] | None
    """Pairs labelled random with spans of one document, and pairs labelled random; None: not
    counted, or no random pairs."""


class Padding(NamedTuple):
    """Shares of positions that are padding."""

    seq_length: int
    single: float
    packed: float
    examples_per_row: float
    max_examples: int


class MaskCounts(NamedTuple):
    """Tokens of a sample, and what masking did to them."""

    tokens: int
    masked: int
    random: int
    kept: int

    @property
    def predictions(self) -> int:
        """Tokens to predict."""
        return self.masked + self.random + self.kept


class Overlap(NamedTuple):
    """How much of an evaluation file was found in the corpus."""

    name: str
    examples: int
    found: int
    documents: int


class ExamplesInputs(NamedTuple):
    """Contents of the page."""

    title: str
    made: Mapping[str, str]  # settings and origins, by name
    splits: Sequence[SplitFigures]
    padding: Padding
    sample_size: int  # examples of the first split in which masks, labels and pieces were counted
    masking: str
    masks: MaskCounts
    labels: Mapping[str, int]
    corpus: Mapping[str, float]  # documents, sentences, tokens, unknown_rate and unigram_entropy
    pieces: Sequence[tuple[str, int]]  # the most frequent ones in the sample, with their counts
    dropped: Sequence[tuple[str, int, int]] | None
    """Rules with the documents and the lines they dropped; None: nothing was cleaned."""
    overlaps: Sequence[Overlap] | None  # None: not looked for
    sample: Sequence[SampleExample]  # the examples to show
    footer: str
    languages: Mapping[str, Mapping[str, LanguageRecord]]
    """By split and code; empty if the settings name no languages."""


def render(inputs: ExamplesInputs) -> str:
    """Returns the report as one HTML document that loads nothing.

    There is at least one split with at least one example.
    """
    first, padding = inputs.splits[0], inputs.padding
    figures = [
        ("examples", f"{first.examples:,}"),
        ("tokens", f"{first.tokens:,}"),
        ("padding", f"{padding.single:.1%}"),
        ("padding, packed", f"{padding.packed:.1%}"),
        ("unknown pieces", f"{inputs.corpus['unknown_rate']:.3%}"),
    ]
    if first.impure is not None:
        figures.append(("impure random pairs", f"{first.impure[0]:,}"))
    masks = inputs.masks
    mask_counts = {
        "replaced by [MASK]": masks.masked,
        "replaced by a random piece": masks.random,
        "left unchanged": masks.kept,
    }
    return render_page(
        "dataset.html",
        title=inputs.title,
        about=f"Training split: {first.name}",
        figures=figures,
        footer=inputs.footer,
        inputs=inputs,
        lengths=[_length_row(split) for split in inputs.splits],
        histograms=[_histogram(split) for split in inputs.splits],
        padding=[
            ("one example per row", Share(padding.single, padding.single), 1.0),
            ("packed", Share(padding.packed, padding.packed), padding.examples_per_row),
        ],
        labels=_share_rows(inputs.labels),
        purity=[(split.name, *split.impure) for split in inputs.splits if split.impure is not None],
        mask_share=f"{masks.predictions / masks.tokens:.2%}",
        masks=_share_rows(mask_counts),
        languages={name: _language_rows(found) for name, found in inputs.languages.items()},
        pieces=_piece_rows(inputs.pieces, tokens=masks.tokens),
        repeated=[
            (split.name, split.sentences, Share(split.repeated_sentences))
            for split in inputs.splits
            if split.sentences is not None and split.repeated_sentences is not None
        ],
        overlaps=[
            (each.name, each.examples, each.found, Share(each.found / max(each.examples, 1)),
             each.documents)
            for each in inputs.overlaps or ()
        ],
    )  # fmt: skip


def _length_row(split: SplitFigures) -> tuple[Cell, ...]:
    counts = split.length_counts
    return (
        split.name,
        split.documents,
        split.examples,
        split.tokens,
        split.tokens / split.examples,
        int(np.searchsorted(np.cumsum(counts), 0.5 * counts.sum())),
        int(np.flatnonzero(counts)[-1]),
    )


def _histogram(split: SplitFigures) -> Chart:
    used = np.flatnonzero(split.length_counts)
    first, last = int(used[0]), int(used[-1])
    width = -(-(last + 1 - first) // BINS)
    edges = list(range(first, last + 1 + width, width))
    counts = [int(split.length_counts[a:b].sum()) for a, b in itertools.pairwise(edges)]
    return histogram(f"Examples by length: {split.name}", counts, edges=edges, x_label="tokens")


def _share_rows(counts: Mapping[str, int]) -> list[tuple[str, Share, int]]:
    total = max(sum(counts.values()), 1)
    return [(name, Share(value / total, value / total), value) for name, value in counts.items()]


def _piece_rows(pieces: Sequence[tuple[str, int]], *, tokens: int) -> list[tuple[str, Share, int]]:
    most = pieces[0][1] if pieces else 1
    return [(piece, Share(found / tokens, found / most), found) for piece, found in pieces]


def _language_rows(languages: Mapping[str, LanguageRecord]) -> list[tuple[Cell, ...]]:
    total = sum(each.example_tokens for each in languages.values())
    return [
        (
            code,
            each.documents,
            each.tokens,
            Share(each.share),
            Share(each.mixture_share),
            each.passes,
            each.examples,
            Share(each.example_tokens / total),
        )
        for code, each in languages.items()
    ]
