"""The report page of a dataset: statistics and masked examples."""

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from etils import epath

from bert_jax.data.dataset.provenance import LanguageRecord, Provenance, SplitRecord
from bert_jax.data.dataset.reader import Dataset
from bert_jax.data.loader.packing import PackingPlan, PackingSection
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.files.atomic import write_whole
from bert_jax.pipelines.preparation import Preparation, read_preparation
from bert_jax.report.charts import Chart, histogram
from bert_jax.report.dataset.sample import Sample, take_sample
from bert_jax.report.rendering import Cell, Share, render_page
from bert_jax.text import Tokenizer
from bert_jax.version import __version__

BINS: Final = 64  # maximum number of bars in the histogram

_LENGTHS: Final = 1 << 20  # number of lengths to read into memory at once
_CHANGES: Final = {
    "masked": "replaced by [MASK]",
    "random": "replaced by a random piece",
    "kept": "left unchanged",
}


def write_examples_report(
    splits: Sequence[Dataset], *, tokenizer: Tokenizer, masking: MaskingSection, seed: int
) -> Path:
    """Writes a dataset's report, and returns its path: ``data/wiki`` → ``data/wiki.report.html``.

    Does not change the dataset. `splits` begin with the training split; its examples are sampled.
    Memory use does not depend on the size of the dataset. Raises UserError if a shard is damaged or
    the report cannot be written.
    """
    train = splits[0]
    directory = Path(train.directory)
    html = render(
        train.provenance,
        lengths={split.split: _length_counts(split) for split in splits},
        sample=take_sample(train, tokenizer=tokenizer, masking=masking, seed=seed),
        masking=masking,
        preparation=read_preparation(directory),
        directory=directory,
    )
    path = directory.with_name(f"{directory.name}.report.html")
    write_whole(epath.Path(path), html.encode())
    return path


def render(
    provenance: Provenance,
    *,
    lengths: Mapping[str, np.ndarray],
    sample: Sample,
    masking: MaskingSection,
    preparation: Preparation | None,
    directory: Path,
) -> str:
    """Returns the report as one self-contained HTML document.

    `lengths` maps each split to the number of examples per length, int [longest + 1]; no split is
    empty. `sample` comes from the first split.
    """
    splits = {name: provenance.splits[name] for name in lengths}
    first, split = next(iter(splits.items()))
    capacity, packing = provenance.pairing.max_seq_length, PackingSection()
    plan = PackingPlan(lengths[first], capacity=capacity, max_examples=packing.max_examples)
    single = 1.0 - split.tokens / (split.examples * capacity)
    random_pairs = _random_pairs(provenance)
    figures = [
        ("examples", f"{split.examples:,}"),
        ("tokens", f"{split.tokens:,}"),
        ("padding", f"{single:.1%}"),
        ("padding, packed", f"{plan.padding_share:.1%}"),
        ("unknown pieces", f"{provenance.corpus.unknown_rate:.3%}"),
    ]
    if first in random_pairs:
        figures.append(("impure random pairs", f"{random_pairs[first][0]:,}"))
    most = sample.pieces[0][1] if sample.pieces else 1
    settings = masking.model_dump(exclude_none=True).items()
    checked = preparation is not None and preparation.cleaning.contamination is not None
    return render_page(
        "dataset.html",
        title=f"Dataset {directory.name}",
        about=f"Training split: {first}",
        figures=figures,
        footer=f"bert-jax {__version__}, {time.strftime('%Y-%m-%d %H:%M %Z')}",
        lengths=[_length_row(name, splits[name], lengths[name]) for name in splits],
        histograms=[_histogram(name, counts) for name, counts in lengths.items()],
        seq_length=capacity,
        max_examples=packing.max_examples,
        padding=[
            ("one example per row", Share(single, single), 1.0),
            ("packed", Share(plan.padding_share, plan.padding_share), plan.examples_per_row),
        ],
        sample=sample,
        labels=_share_rows(sample.labels),
        purity=[(name, *random_pairs[name]) for name in splits if name in random_pairs],
        masking=", ".join(f"{name} {value}" for name, value in settings),
        mask_share=f"{sample.predictions / sample.tokens:.2%}",
        masks=_share_rows({_CHANGES[name]: found for name, found in sample.changes.items()}),
        corpus=provenance.corpus,
        languages={
            name: _language_rows(each.languages)
            for name, each in provenance.splits.items()
            if each.languages
        },
        pieces=[
            (piece, Share(found / sample.tokens, found / most), found)
            for piece, found in sample.pieces
        ],
        repeated=[
            (name, each.sentences, Share(each.repeated_sentences))
            for name, each in splits.items()
            if each.sentences is not None and each.repeated_sentences is not None
        ],
        dropped=None if preparation is None else _dropped(preparation),
        overlaps=[
            (each.name, each.examples, each.found, Share(each.found / max(each.examples, 1)),
             each.documents)
            for each in preparation.contamination
        ] if preparation is not None and checked else None,
        made=_made(provenance, directory),
    )  # fmt: skip


def _length_counts(split: Dataset) -> np.ndarray:
    counts = np.zeros(split.provenance.pairing.max_seq_length + 1, np.int64)
    for start in range(0, len(split), _LENGTHS):
        counts += np.bincount(split.lengths[start : start + _LENGTHS], minlength=len(counts))
    return counts


def _length_row(name: str, split: SplitRecord, counts: np.ndarray) -> tuple[Cell, ...]:
    median = int(np.searchsorted(np.cumsum(counts), 0.5 * counts.sum()))
    longest = int(np.flatnonzero(counts)[-1])
    mean = split.tokens / split.examples
    return name, split.documents, split.examples, split.tokens, mean, median, longest


def _random_pairs(provenance: Provenance) -> dict[str, tuple[int, int]]:
    """Returns (impure random pairs, all random pairs) by split.

    A random pair is impure if both spans come from one document.
    """
    if provenance.pairing.kind != "nsp":
        return {}
    pairs = {name: split.pairs for name, split in provenance.splits.items()}
    return {
        name: (found.same_document[1], found.same_document[1] + found.other_document[1])
        for name, found in pairs.items()
        if found is not None
    }


def _histogram(name: str, length_counts: np.ndarray) -> Chart:
    used = np.flatnonzero(length_counts)
    first, last = int(used[0]), int(used[-1])
    width = -(-(last + 1 - first) // BINS)
    edges = list(range(first, last + 1 + width, width))
    counts = [int(length_counts[a:b].sum()) for a, b in itertools.pairwise(edges)]
    return histogram(f"Examples by length: {name}", counts, edges=edges, x_label="tokens")


def _share_rows(counts: Mapping[str, int]) -> list[tuple[str, Share, int]]:
    total = max(sum(counts.values()), 1)
    return [(name, Share(value / total, value / total), value) for name, value in counts.items()]


def _language_rows(languages: Mapping[str, LanguageRecord]) -> list[tuple[Cell, ...]]:
    total = sum(each.example_tokens for each in languages.values())
    return [
        (code, each.documents, each.tokens, Share(each.share), Share(each.mixture_share),
         each.passes, each.examples, Share(each.example_tokens / total))
        for code, each in languages.items()
    ]  # fmt: skip


def _dropped(preparation: Preparation) -> list[tuple[str, int, int]]:
    """Returns rows (name, documents, lines): read, dropped by each rule, and kept."""
    documents, lines, places = preparation.documents, preparation.lines, {"read": 0, "kept": 2}
    names = sorted({*documents, *lines}, key=lambda name: (places.get(name, 1), name))
    return [(name, documents.get(name, 0), lines.get(name, 0)) for name in names]


def _made(provenance: Provenance, directory: Path) -> dict[str, str]:
    files = provenance.text.files
    return {
        "directory": str(directory),
        "pairing": ", ".join(f"{k} {v}" for k, v in provenance.pairing.model_dump().items()),
        "seed": str(provenance.seed),
        "validation_fraction": str(provenance.validation_fraction),
        "vocabulary": f"{provenance.vocab_size:,} pieces",
        "tokenizer": provenance.tokenizer_hash[:16],
        "layout": provenance.text.layout,
        "sources": f"{len(files):,}, {sum(file.bytes for file in files):,} bytes",
    }
