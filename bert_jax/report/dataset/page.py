"""The report of a dataset: what its examples look like, and what is in them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.report.charts import bar, histogram
from bert_jax.report.dataset.languages import language_table
from bert_jax.report.dataset.sample import DrawnExample, Piece
from bert_jax.report.dataset.sample_html import example_item, mark
from bert_jax.report.html import Element, Node, count, element, number, percent
from bert_jax.report.page import examples, facts, page, quiet, section, table

BINS: Final = 64  # bars of the histogram, at most


class SplitFigures(NamedTuple):
    """A split, in numbers."""

    name: str
    documents: int
    examples: int
    tokens: int
    length_counts: np.ndarray
    """int [longest + 1]: examples of each length."""
    sentences: int | None
    repeated_sentences: float | None
    """Share; both None where they were not counted."""
    impure: tuple[int, int] | None
    """Pairs labelled random with spans of one document, and pairs labelled random; None: not
    counted, or no random pairs."""


class Padding(NamedTuple):
    """How much of a row's positions hold no token."""

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
        """All that are to be predicted."""
        return self.masked + self.random + self.kept


class Overlap(NamedTuple):
    """What of an evaluation file stands in the corpus."""

    name: str
    examples: int
    found: int
    documents: int


class ExamplesInputs(NamedTuple):
    """All that the page shows."""

    title: str
    made: Mapping[str, str]
    """Settings and origins, by name."""
    splits: Sequence[SplitFigures]
    padding: Padding
    sample: int
    """Examples of the first split that masks, labels and pieces were counted in."""
    masking: str
    masks: MaskCounts
    labels: Mapping[str, int]
    corpus: Mapping[str, float]
    """Documents, sentences, tokens, unknown_rate and unigram_entropy."""
    pieces: Sequence[tuple[str, int]]
    """The most frequent ones in the sample, with their counts."""
    dropped: Sequence[tuple[str, int, int]] | None
    """Rules with the documents and the lines they dropped; None: nothing was cleaned."""
    overlaps: Sequence[Overlap] | None
    """None: not looked for."""
    drawn: Sequence[DrawnExample]
    footer: str
    languages: Mapping[str, Mapping[str, LanguageRecord]]
    """By split and code; none, where the settings tell no languages apart."""


def render(inputs: ExamplesInputs) -> str:
    """Returns the report as a whole HTML page that loads nothing.

    Args:
        inputs: what to show; at least one split with at least one example.
    """
    sections = [
        section("Lengths", *_lengths(inputs)),
        section("Pairs", *_pairs(inputs)),
        section("Masks", *_masks(inputs)),
        section("Text", *_text(inputs)),
        section("Left out and found again", *_cleaning(inputs)),
        section("Examples", *_drawn(inputs)),
        section("How it was made", facts((name, text) for name, text in inputs.made.items())),
    ]
    first = inputs.splits[0]
    figures: list[tuple[str, Node]] = [
        ("examples", f"{first.examples:,}"),
        ("tokens", f"{first.tokens:,}"),
        ("padding", f"{inputs.padding.single:.1%}"),
        ("padding, packed", f"{inputs.padding.packed:.1%}"),
        ("unknown pieces", f"{inputs.corpus['unknown_rate']:.3%}"),
    ]
    if first.impure is not None:
        figures.append(("impure random pairs", f"{first.impure[0]:,}"))
    return page(
        title=inputs.title,
        header=[
            element("p", f"The dataset's split {first.name}, in short:", class_="quiet"),
            facts(figures, class_="figures"),
        ],
        sections=sections,
        footer=inputs.footer,
        script="",
    )


def _lengths(inputs: ExamplesInputs) -> list[Node]:
    rows = [
        (
            split.name,
            split.documents,
            split.examples,
            split.tokens,
            split.tokens / split.examples,
            _quantile(split.length_counts, 0.5),
            int(np.flatnonzero(split.length_counts)[-1]),
        )
        for split in inputs.splits
    ]
    columns = ("split", "documents", "examples", "tokens", "mean length", "median", "longest")
    padding = inputs.padding
    shares = [
        ("an example in a row", padding.single, 1.0),
        ("packed", padding.packed, padding.examples_per_row),
    ]
    return [
        table(columns, rows, caption="Tokens of an example count [CLS] and [SEP]"),
        element(
            "div",
            *(_histogram(split) for split in inputs.splits),
            class_="charts",
        ),
        table(
            ("rows", "padding", "examples per row"),
            [
                (name, element("span", bar(share), f"{share:.2%}"), per_row)
                for name, share, per_row in shares
            ],
            caption=f"Share of the positions that hold no token, in rows of {padding.seq_length}; "
            f"packed: as planned, with at most {padding.max_examples} examples in a row",
        ),
    ]


def _histogram(split: SplitFigures) -> Element:
    used = np.flatnonzero(split.length_counts)
    first, last = int(used[0]), int(used[-1])
    width = -(-(last + 1 - first) // BINS)
    edges = list(range(first, last + 1 + width, width))
    counts = [int(split.length_counts[a:b].sum()) for a, b in itertools.pairwise(edges)]
    return histogram(f"Examples by length: {split.name}", counts, edges=edges, x_label="tokens")


def _quantile(counts: np.ndarray, share: float) -> int:
    return int(np.searchsorted(np.cumsum(counts), share * counts.sum()))


def _pairs(inputs: ExamplesInputs) -> list[Node]:
    made: list[Node] = [
        _shares(inputs.labels, heading="label", noun="example", sample=inputs.sample)
    ]
    counted = [split for split in inputs.splits if split.impure is not None]
    if counted:
        rows = [(split.name, *(split.impure or ())) for split in counted]
        made.append(
            table(
                ("split", "of one document", "random pairs"),
                rows,
                caption="Purity of random next: pairs labelled random whose spans are of one "
                "document, which must be 0; counted over all pairs as they were made",
            )
        )
        if any(row[1] for row in rows):
            made.append(element("p", element("strong", "Some random pairs are of one document.")))
    elif "B is random" in inputs.labels:
        made.append(
            quiet("The release that made this dataset did not count how pure its pairs are.")
        )
    return made


def _masks(inputs: ExamplesInputs) -> list[Node]:
    masks = inputs.masks
    share = masks.predictions / masks.tokens
    counts = {
        "replaced by [MASK]": masks.masked,
        "replaced by a random piece": masks.random,
        "left as they are": masks.kept,
    }
    return [
        element(
            "p",
            f"Masks are drawn while training; these were drawn for the report: {inputs.masking}.",
        ),
        facts(
            [
                ("tokens to predict", f"{share:.2%}"),
                ("per example", number(masks.predictions / inputs.sample)),
            ]
        ),
        _shares(counts, heading="tokens to predict", noun="token", sample=inputs.sample),
    ]


def _shares(counts: Mapping[str, int], *, heading: str, noun: str, sample: int) -> Element:
    total = max(sum(counts.values()), 1)
    rows = [
        (name, element("span", bar(value / total), f"{value / total:.2%}"), value)
        for name, value in counts.items()
    ]
    return table(
        (heading, "share", "count"),
        rows,
        caption=f"{count(total, noun).capitalize()} of a sample of {count(sample, 'example')}",
    )


def _text(inputs: ExamplesInputs) -> list[Node]:
    corpus = inputs.corpus
    most = inputs.pieces[0][1] if inputs.pieces else 1
    made: list[Node] = [
        facts(
            [
                ("documents", f"{int(corpus['documents']):,}"),
                ("sentences", f"{int(corpus['sentences']):,}"),
                ("tokens", f"{int(corpus['tokens']):,}"),
                ("unknown pieces", f"{corpus['unknown_rate']:.3%}"),
                ("unigram entropy", f"{corpus['unigram_entropy']:.3f} nats per token"),
            ]
        ),
        quiet(
            "Of the text before pairing, each document once. The entropy is the masked-token loss "
            "of a model that knows how frequent each piece is, and nothing else."
        ),
    ]
    made += [language_table(split, figures) for split, figures in inputs.languages.items()]
    tokens = inputs.masks.tokens
    made.append(
        table(
            ("piece", "share of tokens", "count"),
            [
                (
                    element("span", piece),
                    element("span", bar(found / most), f"{found / tokens:.2%}"),
                    found,
                )
                for piece, found in inputs.pieces
            ],
            caption=f"The {len(inputs.pieces)} most frequent pieces of the sample",
        )
    )
    return made


def _cleaning(inputs: ExamplesInputs) -> list[Node]:
    rows = [
        (split.name, split.sentences, percent(split.repeated_sentences))
        for split in inputs.splits
        if split.sentences is not None and split.repeated_sentences is not None
    ]
    made: list[Node] = []
    if rows:
        made.append(
            table(
                ("split", "sentences", "repeated"),
                rows,
                caption="Duplicate lines: sentences that stand elsewhere in the split, token for "
                "token; beyond 16,384 different ones an estimate, good to about 1%",
            )
        )
    else:
        made.append(quiet("The release that made this dataset did not count duplicate lines."))
    if inputs.dropped is None:
        made.append(quiet("Nothing was left out of the text: no cleaning was asked for."))
    else:
        made.append(
            table(
                ("rule", "documents", "lines"),
                inputs.dropped,
                caption="What cleaning read, kept and left out, by rule",
            )
        )
    if inputs.overlaps is None:
        made.append(quiet("Contamination: not looked for (cleaning.contamination is not set)."))
        return made
    made.append(
        table(
            ("evaluation file", "examples", "found", "share", "in documents"),
            [
                (
                    each.name,
                    each.examples,
                    each.found,
                    percent(each.found / max(each.examples, 1)),
                    each.documents,
                )
                for each in inputs.overlaps
            ],
            caption="Contamination: evaluation examples that share a run of words with the corpus",
        )
    )
    return made


def _drawn(inputs: ExamplesInputs) -> list[Node]:
    legend = (
        mark(Piece("[MASK]", False, "masked", "original")),
        " is hidden, ",
        mark(Piece("seen", False, "random", "original")),
        " is replaced by a random piece, ",
        mark(Piece("seen", False, "kept", "seen")),
        " is left as it is; all of them are to be predicted.",
    )
    return [
        element("p", *legend),
        examples(example_item(each) for each in inputs.drawn),
    ]
