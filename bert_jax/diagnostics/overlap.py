"""Finds held-out examples that training data contain too. Does not import JAX."""

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
    opened = {
        key: _opened(own, "validation") for key, own in evaluation.by_key.items() if is_here(own)
    }
    held_out = {key: each for key, each in opened.items() if each is not None}
    findings: dict[str, list[Finding]] = {key: [] for key in held_out}
    for path in filter(is_here, paths if held_out else ()):
        if (training := _opened(path, "train")) is None:
            continue
        samples = list(held_out.values())
        with doing(f"comparing held-out examples with {path}"):
            overlaps = measure_overlaps(samples, training, special, limit=evaluation.examples)
        for key, found in zip(held_out, overlaps, strict=True):
            text = (
                f"{key}: {path} contains {found.share:.1%} of the held-out examples "
                f"(compared {found.examples:,} with {found.read:.0%} of the training examples)"
            )
            advice = ". Scores on this set are too good: use other examples"
            level, more = (warn, advice) if found.is_large else (ok, "")
            findings[key].append(level("overlap", text + more))
    for of_set in findings.values():
        yield from of_set


def _opened(path: str, split: str) -> Dataset | None:
    try:
        return open_dataset(path, split)
    except UserError:
        return None


def measure_overlaps(
    held_out: Sequence[Dataset], training: Dataset, special: SpecialIds, *, limit: int | None
) -> list[Overlap]:
    """Compares a sample of each held-out dataset with one sample of training examples.

    N-grams with special tokens do not count, because both datasets may cut a text at other places.
    `limit` is the number of examples per evaluation.
    """
    edges = [special.cls, special.sep]
    samples = [_Sample(each, edges, limit=limit) for each in held_out]
    rows = _spread(len(training), int(_MOST_TRAINING / np.mean(training.lengths)))
    for start in range(0, len(rows), _CHUNK):
        found, _ = _ngrams(training.__getitems__(rows[start : start + _CHUNK]), edges)
        for sample in samples:
            sample.see(found)
    return [sample.overlap(read=len(rows) / len(training)) for sample in samples]


class _Sample:
    """The n-grams of some held-out examples, and which of them the training data contain."""

    def __init__(self, held_out: Dataset, edges: Sequence[int], *, limit: int | None) -> None:
        total = min(len(held_out), limit or len(held_out))
        examples = held_out.__getitems__(_spread(total, _MOST_HELD_OUT))
        grams, self._owners = _ngrams(examples, edges)
        self._known, self._index = np.unique(grams, return_inverse=True)
        self._seen, self._table = np.zeros(len(self._known), bool), np.zeros(1 << _TABLE_BITS, bool)
        self._table[self._known >> _SHIFT] = True  # most training n-grams need no search

    def see(self, grams: np.ndarray) -> None:
        """Marks the n-grams that `grams` of training data contain."""
        found = grams[self._table[grams >> _SHIFT]]
        places = np.searchsorted(self._known, found).clip(max=len(self._known) - 1)
        self._seen[places[self._known[places] == found]] = True

    def overlap(self, *, read: float) -> Overlap:
        """Returns the overlap so far. `read` is the share of the training examples seen."""
        counts = np.bincount(self._owners)
        hits = np.bincount(self._owners, weights=self._seen[self._index])
        compared = counts > 0
        found = int((compared & (2 * hits >= counts)).sum())
        return Overlap(found, int(compared.sum()), read)


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
