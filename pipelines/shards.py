"""From runs to shards: one bucket of documents is paired and written as one ArrayRecord file."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

from bert_jax.data.pairing import Pair, PairingSection, pair_documents
from bert_jax.data.provenance import PairsRecord, ShardRecord
from bert_jax.data.records import sha256_of
from bert_jax.data.schema import ExampleEncoder
from bert_jax.data.tokenised import TokenisedDocuments, concatenate, key_order, save_array
from bert_jax.section import Section
from bert_jax.text import SpecialIds
from pipelines.disk import disk_errors, unfinished, write_aside
from pipelines.figures import PairTally, sentence_hashes, sketch

# One record per group, so that a random read unpacks one record; zstd at its fastest level takes an
# eighth off and costs random reads nothing that could be measured.
_WRITER_OPTIONS: Final = "group_size:1,zstd:1"

_TOKENS_PER_SHARD: Final = 1_000_000
_MAX_DEFAULT_SHARDS: Final = 1024
_MIN_DOCUMENTS_PER_SHARD: Final = 16


class ShardJob(NamedTuple):
    """What a worker needs to make one shard: the documents whose keys lie in a range."""

    name: str
    target: str
    """Directory of the finished shard."""
    work: str
    """Directory of the record that the shard is finished, and of the shard until then."""
    runs: tuple[str, ...]
    split: str
    first_key: int
    last_key: int
    special: SpecialIds
    pairing: PairingSection
    seed: int


class ShardSummary(NamedTuple):
    """A finished shard."""

    record: ShardRecord
    documents: int
    tokens: int
    sentences: int
    pairs: PairsRecord | None


def default_shards(*, documents: int, tokens: int) -> int:
    """Returns the number of shards for a split: a function of its size alone, not of the machine.

    A shard for every million tokens of text, since a shard is what a worker makes in one piece and
    holds in memory, and at most 1024, since a random read opens one of them; but never so many that
    the random next sentences of a shard come from fewer than 16 documents.
    """
    wanted = min(-(-tokens // _TOKENS_PER_SHARD), _MAX_DEFAULT_SHARDS)
    return max(1, min(wanted, documents // _MIN_DOCUMENTS_PER_SHARD))


def bucket_ranges(keys: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Cuts documents into buckets of equal number by their place in the order of keys.

    Ranges of the sorted order, not remainders, so that no bucket is left with a single document by
    bad luck.

    Args:
        keys: ``[d]`` uint64, the high halves of all keys of a split, sorted.
        count: buckets, at most ``d // 2``.

    Returns:
        The first and the last key of each bucket, both inclusive.
    """
    cuts = [len(keys) * bucket // count for bucket in range(count + 1)]
    return [(int(keys[a]), int(keys[b - 1])) for a, b in itertools.pairwise(cuts)]


def write_shard(job: ShardJob) -> ShardSummary:
    """Pairs one bucket and writes its shard, its lengths and the record that it is finished.

    A shard that an earlier run has finished, and whose bytes are still those, is left as it is.

    Raises:
        UserError: the disk is full. Nothing is left under the shard's name.
    """
    done = pathlib.Path(job.work) / f"{job.name}.json"
    target = pathlib.Path(job.target) / job.name
    if (finished := _read_finished(done, target)) is not None:
        return finished
    documents = load_bucket(job.runs, job.split, first_key=job.first_key, last_key=job.last_key)
    tally = PairTally(documents) if job.pairing.has_pairs else None
    aside = unfinished(pathlib.Path(job.work) / job.name)
    with disk_errors(target):
        try:
            lengths = _write_examples(aside, _examples(documents, job, tally))
            save_array(lengths_path(job.work, job.name), lengths)
            save_array(sketch_path(job.work, job.name), sketch(sentence_hashes(documents)))
            record = ShardRecord(
                name=job.name,
                bytes=aside.stat().st_size,
                examples=len(lengths),
                sha256=sha256_of(aside),
            )
            aside.rename(target)
            summary = ShardSummary(
                record,
                documents=len(documents),
                tokens=int(lengths.sum(dtype=np.int64)),
                sentences=len(documents.sentence_starts) - 1,
                pairs=None if tally is None else tally.record(),
            )
            write_aside(done, _spell(summary))
        finally:
            aside.unlink(missing_ok=True)
    return summary


def load_bucket(
    runs: Sequence[str], split: str, *, first_key: int, last_key: int
) -> TokenisedDocuments:
    """Gathers the documents of a bucket from all runs, in the order of their keys."""
    bucket = concatenate(
        [
            TokenisedDocuments.load(
                pathlib.Path(run) / split, first_key=first_key, last_key=last_key
            )
            for run in runs
        ]
    )
    return bucket.select(key_order(bucket.keys))


def lengths_path(work: str, name: str) -> pathlib.Path:
    """Returns where the lengths of a shard's examples lie until the dataset is finished."""
    return pathlib.Path(work) / f"{name}.lengths.npy"


def sketch_path(work: str, name: str) -> pathlib.Path:
    """Returns where the sketch of a shard's sentences lies until the dataset is finished."""
    return pathlib.Path(work) / f"{name}.sentences.npy"


def _examples(
    documents: TokenisedDocuments, job: ShardJob, tally: PairTally | None
) -> Iterator[tuple[bytes, int]]:
    """Yields every example as its record, and its number of tokens; counts pairs."""
    dtype = documents.tokens.dtype
    tokens, width = documents.tokens.tobytes(), dtype.itemsize
    cls, sep = (np.array(i, dtype).tobytes() for i in (job.special.cls, job.special.sep))
    encode = ExampleEncoder().encode
    for example in pair_documents(documents, job.pairing, seed=job.seed):
        spans = [tokens[start * width : stop * width] for start, stop in example.stretches]
        record = encode(
            cls + sep.join(spans) + sep,
            first_length=example.first_length,
            next_sentence_label=example.next_sentence_label,
        )
        if tally is not None and isinstance(example, Pair):
            tally.add(example)
        yield record, example.length


def _write_examples(path: pathlib.Path, examples: Iterator[tuple[bytes, int]]) -> np.ndarray:
    """Writes an ArrayRecord file and returns the examples' lengths, uint16."""
    lengths = []
    writer = array_record_module.ArrayRecordWriter(str(path), _WRITER_OPTIONS)
    try:
        for record, length in examples:
            writer.write(record)
            lengths.append(length)
    finally:
        writer.close()
    return np.array(lengths, np.uint16)


def _read_finished(done: pathlib.Path, target: pathlib.Path) -> ShardSummary | None:
    if not (done.exists() and target.exists()):
        return None
    content = json.loads(done.read_text())
    record = ShardRecord(**content.pop("record"))
    if target.stat().st_size != record.bytes or sha256_of(target) != record.sha256:
        return None
    if "pairs" not in content:  # a release that did not count them; the shard is made again
        return None
    pairs = content.pop("pairs")
    if pairs is not None:
        pairs = PairsRecord.model_validate_json(json.dumps(pairs))
    return ShardSummary(record, **content, pairs=pairs)


def _spell(summary: ShardSummary) -> str:
    spelled = {
        name: value.model_dump() if isinstance(value, Section) else value
        for name, value in summary._asdict().items()
    }
    return json.dumps(spelled)
