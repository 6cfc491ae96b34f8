"""From tokenised parts to shards: buckets of documents paired and written as an ArrayRecord."""

import array
import contextlib
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from etils import epath

from bert_jax.data.dataset.provenance import PairsRecord, ShardRecord
from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.data.dataset.schema import ExampleEncoder
from bert_jax.files.atomic import whole_file, write_whole
from bert_jax.files.read import sha256_of
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

# One record per group, so that a random read unpacks one record; zstd at its fastest level saves an
# eighth and costs random reads nothing measurable. One packing thread keeps up and needs little
# memory; more would change no byte.
_WRITER_OPTIONS: Final = "group_size:1,zstd:1,max_parallelism:1"


class DocumentBucket(NamedTuple):
    """Documents that are paired together: those of one language whose keys lie in a range."""

    keys: KeyRange
    parts: tuple[str, ...]  # directories of all tokenised parts of the language
    boost: float  # of the documents' passes: see `pair_documents`


class ShardJob(NamedTuple):
    """What a worker needs to make one shard."""

    name: str
    target: str  # directory of the finished shard
    work: str  # directory of the shard's summary, which says that it is finished
    split: str
    buckets: tuple[DocumentBucket, ...]  # in memory one at a time
    special: SpecialIds
    pairing: PairingSection
    seed: int


class ShardSummary(Section):
    """A finished shard."""

    record: ShardRecord
    documents: int
    tokens: int
    sentences: int
    pairs: PairsRecord | None
    languages: dict[str, tuple[int, int]]  # by language: examples and their tokens


class _BucketFigures(NamedTuple):
    documents: int
    sentences: int
    lengths: np.ndarray  # uint16, of its examples
    pairs: PairsRecord | None
    sketch: np.ndarray


def write_shard(job: ShardJob) -> ShardSummary:
    """Pairs a shard's buckets and writes it, its lengths and its summary.

    A shard that an earlier run has finished, and whose bytes still match, is left as it is. Raises
    UserError: the disk is full. Nothing is left under the shard's name.
    """
    done = epath.Path(job.work) / f"{job.name}.json"
    target = epath.Path(job.target) / job.name
    if (finished := _read_finished(done, target)) is not None:
        return finished
    with whole_file(target) as temporary:
        with contextlib.closing(
            array_record_module.ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
        ) as writer:
            figures = [_write_bucket(writer, job, bucket) for bucket in job.buckets]
        summary = _finish(job, temporary, figures)
    write_whole(done, summary.model_dump_json(), make_parent=False)
    return summary


def _write_bucket(writer: Any, job: ShardJob, bucket: DocumentBucket) -> _BucketFigures:
    documents = _load_bucket(bucket, job.split)
    tally = PairTally(documents) if job.pairing.has_pairs else None
    lengths = array.array("H")
    for record, length in _examples(documents, job, tally, boost=bucket.boost):
        writer.write(record)
        lengths.append(length)
    return _BucketFigures(
        documents=len(documents),
        sentences=len(documents.sentence_starts) - 1,
        lengths=np.array(lengths, np.uint16),
        pairs=None if tally is None else tally.record(),
        sketch=sketch(sentence_hashes(documents)),
    )


def _finish(
    job: ShardJob, written: pathlib.Path, figures: Sequence[_BucketFigures]
) -> ShardSummary:
    """Saves what the split's figures need and returns the shard's summary."""
    lengths = np.concatenate([bucket.lengths for bucket in figures])
    write_whole(lengths_path(job.work, job.name), array_bytes(lengths), make_parent=False)
    smallest = sketch(np.concatenate([bucket.sketch for bucket in figures]))
    write_whole(sketch_path(job.work, job.name), array_bytes(smallest), make_parent=False)
    sizes: dict[str, tuple[int, int]] = {}
    for bucket, made in zip(job.buckets, figures, strict=True):
        examples, tokens = sizes.get(bucket.keys.language, (0, 0))
        tokens += int(made.lengths.sum(dtype=np.int64))
        sizes[bucket.keys.language] = examples + len(made.lengths), tokens
    return ShardSummary(
        record=ShardRecord(
            name=job.name,
            bytes=written.stat().st_size,
            examples=len(lengths),
            sha256=sha256_of(written),
        ),
        documents=sum(bucket.documents for bucket in figures),
        tokens=int(lengths.sum(dtype=np.int64)),
        sentences=sum(bucket.sentences for bucket in figures),
        pairs=add_pairs(bucket.pairs for bucket in figures),
        languages=sizes,
    )


def _load_bucket(bucket: DocumentBucket, split: str) -> TokenisedDocuments:
    """Gathers the documents of a bucket from all tokenised parts, in the order of their keys."""
    load = functools.partial(
        TokenisedDocuments.load, first_key=bucket.keys.first_key, last_key=bucket.keys.last_key
    )
    found = concatenate(list(each(load, [epath.Path(part) / split for part in bucket.parts])))
    return found.select(key_order(found.keys))


def lengths_path(work: epath.PathLike, name: str) -> epath.Path:
    """Returns where the lengths of a shard's examples are until the dataset is finished."""
    return epath.Path(work) / f"{name}.lengths.npy"


def sketch_path(work: epath.PathLike, name: str) -> epath.Path:
    """Returns where the sketch of a shard's sentences is until the dataset is finished."""
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
        spans = [tokens[start * width : stop * width] for start, stop in example.token_ranges]
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
    summary = ShardSummary.model_validate_json(done.read_bytes())
    record = summary.record
    if target.stat().length != record.bytes or sha256_of(target) != record.sha256:
        return None
    return summary
