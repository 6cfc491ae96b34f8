"""Finds held-out examples that training data contain too. Does not import JAX."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data.dataset.reader import Dataset, Example, open_dataset
from bert_jax.diagnostics.findings import Finding, ok, warn
from bert_jax.errors import UserError
from bert_jax.narration import doing
from bert_jax.pipelines.cleaning.words import ngram_hashes
from bert_jax.text import load_tokenizer
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.train.evaluation_section import EvaluationSection
from bert_jax.workflows.epochs import is_here
from bert_jax.workflows.pretraining_settings import TrainSection

NGRAM: Final = 13  # as in `examples.cleaning.contamination`, but tokens instead of words
_MOST_HELD_OUT: Final = 1000  # examples
_MOST_TRAINING: Final = 20_000_000  # tokens; reading them takes seconds
_CHUNK: Final = 4096  # examples
_TABLE_BITS: Final = 24
_SHIFT: Final = np.uint64(64 - _TABLE_BITS)
_ALLOWED: Final = 0.01  # larger shares are a warning


class Overlap(NamedTuple):
    """Number of held-out examples with at least half of their n-grams in the training data."""

    found: int
    examples: int  # number of held-out examples that were compared
    read: float  # share of the training examples that was read

    @property
    def share(self) -> float:
        """Estimated share of the held-out examples that all training data contain."""
        return min(1.0, self.found / max(self.examples, 1) / self.read)

    @property
    def is_large(self) -> bool:
        """Whether more than 1% of the examples overlap. One or two examples may be chance."""
        return self.found > 2 and self.share > _ALLOWED


def check_overlap(train: TrainSection, *, tokenizer: str) -> Iterator[Finding]:
    """Yields a finding for each held-out dataset and each training dataset on this machine.

    Skips TFRecords, and inputs that other checks refuse.
    """
    evaluation = train.evaluation or EvaluationSection()
    paths = dict.fromkeys(path for phase in train.phases for path in phase.paths)
    if not evaluation.by_key:
        return
    try:
        special = load_tokenizer(tokenizer).special
    except UserError:
        return
    for (key, own), path in itertools.product(evaluation.by_key.items(), paths):
        if not (is_here(own) and is_here(path)):
            continue
        try:
            held_out, training = open_dataset(own, "validation"), open_dataset(path, "train")
            with doing(f"comparing {own} with {path}"):
                found = measure_overlap(held_out, training, special, limit=evaluation.examples)
        except UserError:
            continue
        text = (
            f"{key}: {path} contains {found.share:.1%} of the held-out examples "
            f"(compared {found.examples:,} with {found.read:.0%} of the training examples)"
        )
        if found.is_large:
            yield warn("overlap", f"{text}. Scores on this set are too good: use other examples")
        else:
            yield ok("overlap", text)


def measure_overlap(
    held_out: Dataset, training: Dataset, special: SpecialIds, *, limit: int | None
) -> Overlap:
    """Compares a sample of held-out examples with a sample of training examples.

    N-grams with special tokens do not count, because both datasets may cut a text at other places.
    `limit` is the number of examples per evaluation.
    """
    edges = [special.cls, special.sep]
    total = min(len(held_out), limit or len(held_out))
    sample = held_out.__getitems__(_spread(total, _MOST_HELD_OUT))
    grams, owners = _ngrams(sample, edges)
    known, index = np.unique(grams, return_inverse=True)
    seen, table = np.zeros(len(known), bool), np.zeros(1 << _TABLE_BITS, bool)
    table[known >> _SHIFT] = True  # most n-grams of the training data need no search
    rows = _spread(len(training), int(_MOST_TRAINING / np.mean(training.lengths)))
    for start in range(0, len(rows), _CHUNK):
        found, _ = _ngrams(training.__getitems__(rows[start : start + _CHUNK]), edges)
        found = found[table[found >> _SHIFT]]
        places = np.searchsorted(known, found).clip(max=len(known) - 1)
        seen[places[known[places] == found]] = True
    counts, hits = np.bincount(owners), np.bincount(owners, weights=seen[index])
    compared = counts > 0
    overlapping = int((compared & (2 * hits >= counts)).sum())
    return Overlap(overlapping, int(compared.sum()), len(rows) / len(training))


def _spread(total: int, most: int) -> list[int]:
    """Returns at most `most` indices, spread evenly over a range."""
    count = min(total, most)
    return [at * total // count for at in range(count)]


def _ngrams(examples: Sequence[Example], special: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hashes of all n-grams within an example, and the indices of their examples."""
    lengths = [len(each.input_ids) for each in examples]
    ids = np.concatenate([np.empty(0, np.uint16), *(each.input_ids for each in examples)])
    owners = np.repeat(np.arange(len(lengths)), lengths)
    hashes = ngram_hashes(ids.astype(np.uint64), NGRAM)
    before = np.concatenate([[0], np.cumsum(np.isin(ids, special))])
    last = NGRAM - 1
    inside = (owners[: len(hashes)] == owners[last:]) & (before[NGRAM:] == before[: len(hashes)])
    return hashes[inside], owners[: len(hashes)][inside]
