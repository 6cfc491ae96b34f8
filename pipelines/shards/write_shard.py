"""From runs to shards: one bucket of documents is paired and written as one ArrayRecord file."""

from __future__ import annotations

import array
import contextlib
import functools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from etils import epath

from bert_jax.data.dataset.provenance import PairsRecord, ShardRecord
from bert_jax.data.dataset.reader import sha256_of
from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.data.dataset.schema import ExampleEncoder
from bert_jax.files.atomic import whole_file, write_aside
from bert_jax.files.remote import each
from bert_jax.pipelines.pairing.pair_documents import pair_documents
from bert_jax.pipelines.pairing.spans import Pair
from bert_jax.pipelines.shards.document_buckets import KeyRange
from bert_jax.pipelines.shards.figures import PairTally, add_pairs, sentence_hashes, sketch
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    array_bytes,
    concatenate,
    key_order,
)
from bert_jax.section import Section
from bert_jax.text import SpecialIds

# One record per group, so that a random read unpacks one record; zstd at its fastest level takes an
# eighth off and costs random reads nothing that could be measured. Packed by one thread at a time,
# which keeps up and holds little; more would change no byte.
_WRITER_OPTIONS: Final = "group_size:1,zstd:1,max_parallelism:1"


class Bucket(NamedTuple):
    """Documents that are paired together: those of one language whose keys lie in a range."""

    keys: KeyRange
    runs: tuple[str, ...]
    """All runs of the language."""
    boost: float
    """Of the documents' passes: see :func:`pair_documents`."""


class ShardJob(NamedTuple):
    """What a worker needs to make one shard."""

    name: str
    target: str
    """Directory of the finished shard."""
    work: str
    """Directory of the record that the shard is finished, and of the shard until then."""
    split: str
    buckets: tuple[Bucket, ...]
    """In memory one at a time."""
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
    languages: dict[str, list[int]]
    """By language: examples and their tokens."""


class BucketFigures(NamedTuple):
    """What a bucket has become."""

    documents: int
    sentences: int
    lengths: np.ndarray
    """uint16, of its examples."""
    pairs: PairsRecord | None
    sketch: np.ndarray


def write_shard(job: ShardJob) -> ShardSummary:
    """Pairs a shard's buckets and writes it, its lengths and the record that it is finished.

    A shard that an earlier run has finished, and whose bytes are still those, is left as it is.

    Raises:
        UserError: the disk is full. Nothing is left under the shard's name.
    """
    done = epath.Path(job.work) / f"{job.name}.json"
    target = epath.Path(job.target) / job.name
    if (finished := _read_finished(done, target)) is not None:
        return finished
    with whole_file(target) as aside:
        with contextlib.closing(
            array_record_module.ArrayRecordWriter(str(aside), _WRITER_OPTIONS)
        ) as writer:
            figures = [_write_bucket(writer, job, bucket) for bucket in job.buckets]
        summary = _finish(job, aside, figures)
    write_aside(done, _spell(summary))
    return summary


def _write_bucket(writer: Any, job: ShardJob, bucket: Bucket) -> BucketFigures:
    """Pairs a bucket and adds its examples to the shard."""
    documents = load_bucket(
        bucket.runs, job.split, first_key=bucket.keys.first_key, last_key=bucket.keys.last_key
    )
    tally = PairTally(documents) if job.pairing.has_pairs else None
    lengths = array.array("H")
    for record, length in _examples(documents, job, tally, boost=bucket.boost):
        writer.write(record)
        lengths.append(length)
    return BucketFigures(
        documents=len(documents),
        sentences=len(documents.sentence_starts) - 1,
        lengths=np.array(lengths, np.uint16),
        pairs=None if tally is None else tally.record(),
        sketch=sketch(sentence_hashes(documents)),
    )


def _finish(job: ShardJob, written: pathlib.Path, figures: Sequence[BucketFigures]) -> ShardSummary:
    """Saves what the split's figures need and returns the shard's."""
    lengths = np.concatenate([bucket.lengths for bucket in figures])
    write_aside(lengths_path(job.work, job.name), array_bytes(lengths))
    sketches = np.concatenate([bucket.sketch for bucket in figures])
    write_aside(sketch_path(job.work, job.name), array_bytes(sketch(sketches)))
    pairs = [bucket.pairs for bucket in figures if bucket.pairs is not None]
    return ShardSummary(
        ShardRecord(
            name=job.name,
            bytes=written.stat().st_size,
            examples=len(lengths),
            sha256=sha256_of(written),
        ),
        documents=sum(bucket.documents for bucket in figures),
        tokens=int(lengths.sum(dtype=np.int64)),
        sentences=sum(bucket.sentences for bucket in figures),
        pairs=add_pairs(pairs) if pairs else None,
        languages=_sizes(job.buckets, figures),
    )


def _sizes(buckets: Sequence[Bucket], figures: Sequence[BucketFigures]) -> dict[str, list[int]]:
    """Returns the examples and the tokens of each language."""
    sizes: dict[str, list[int]] = {}
    for bucket, made in zip(buckets, figures, strict=True):
        held = sizes.setdefault(bucket.keys.language, [0, 0])
        held[0] += len(made.lengths)
        held[1] += int(made.lengths.sum(dtype=np.int64))
    return sizes


def load_bucket(
    runs: Sequence[str], split: str, *, first_key: int, last_key: int
) -> TokenisedDocuments:
    """Gathers the documents of a bucket from all runs, in the order of their keys."""
    load = functools.partial(TokenisedDocuments.load, first_key=first_key, last_key=last_key)
    bucket = concatenate(list(each(load, [epath.Path(run) / split for run in runs])))
    return bucket.select(key_order(bucket.keys))


def lengths_path(work: epath.PathLike, name: str) -> epath.Path:
    """Returns where the lengths of a shard's examples lie until the dataset is finished."""
    return epath.Path(work) / f"{name}.lengths.npy"


def sketch_path(work: epath.PathLike, name: str) -> epath.Path:
    """Returns where the sketch of a shard's sentences lies until the dataset is finished."""
    return epath.Path(work) / f"{name}.sentences.npy"


def _examples(
    documents: TokenisedDocuments, job: ShardJob, tally: PairTally | None, *, boost: float
) -> Iterator[tuple[bytes, int]]:
    """Yields every example as its record, and its number of tokens; counts pairs."""
    dtype = documents.tokens.dtype
    tokens, width = documents.tokens.data.cast("B"), dtype.itemsize
    cls, sep = (np.array(i, dtype).tobytes() for i in (job.special.cls, job.special.sep))
    encode = ExampleEncoder().encode
    for example in pair_documents(documents, job.pairing, seed=job.seed, boost=boost):
        spans = [tokens[start * width : stop * width] for start, stop in example.stretches]
        record = encode(
            cls + sep.join(spans) + sep,
            first_length=example.first_length,
            next_sentence_label=example.next_sentence_label,
        )
        if tally is not None and isinstance(example, Pair):
            tally.add(example)
        yield record, example.length


def _read_finished(done: epath.Path, target: epath.Path) -> ShardSummary | None:
    if not (done.exists() and target.exists()):
        return None
    content = json.loads(done.read_text())
    record = ShardRecord(**content.pop("record"))
    if target.stat().length != record.bytes or sha256_of(target) != record.sha256:
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
