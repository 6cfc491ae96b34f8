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
from bert_jax.pipelines.pairing import Pair, Single, pair_documents
from bert_jax.pipelines.shards.document_buckets import KeyRange
from bert_jax.pipelines.shards.figures import add_pairs, count_pairs, sentence_hashes, sketch
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    array_bytes,
    concatenate,
    key_order,
)
from bert_jax.section import Section
from bert_jax.text import SpecialIds

# One record per group, so that a random read unpacks one record. zstd at its fastest level saves an
# eighth and costs random reads nothing measurable. One packing thread keeps up with the writer.
_WRITER_OPTIONS: Final = "group_size:1,zstd:1,max_parallelism:1"


class DocumentBucket(NamedTuple):
    """Documents that are paired together: those of one language whose keys are in a range."""

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


class _Bucket(NamedTuple):
    documents: int
    sentences: int
    lengths: np.ndarray  # uint16, of its examples
    pairs: PairsRecord | None
    sketch: np.ndarray


def write_shard(job: ShardJob) -> ShardSummary:
    """Pairs a shard's buckets and writes it, its lengths and its summary.

    A finished shard of an earlier run stays if its bytes still match. Raises UserError: the disk is
    full. Nothing is left under the shard's name.
    """
    done = epath.Path(job.work) / f"{job.name}.json"
    target = epath.Path(job.target) / job.name
    if (finished := _read_finished(done, target)) is not None:
        return finished
    with whole_file(target) as temporary:
        with contextlib.closing(
            array_record_module.ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
        ) as writer:
            buckets = [_write_bucket(writer, job, bucket) for bucket in job.buckets]
        summary = _finish(job, temporary, buckets)
    write_whole(done, summary.model_dump_json(), make_parent=False)
    return summary


def _write_bucket(writer: Any, job: ShardJob, bucket: DocumentBucket) -> _Bucket:
    documents = _load_bucket(bucket, job.split)
    lengths, pairs = array.array("H"), array.array("q")
    for record, example in _examples(documents, job, boost=bucket.boost):
        writer.write(record)
        lengths.append(example.length)
        if isinstance(example, Pair):
            pairs.extend(example)
    counted = None
    if job.pairing.has_pairs:
        counted = count_pairs(documents, np.array(pairs, np.int64).reshape(-1, len(Pair._fields)))
    return _Bucket(
        documents=len(documents),
        sentences=len(documents.sentence_starts) - 1,
        lengths=np.array(lengths, np.uint16),
        pairs=counted,
        sketch=sketch(sentence_hashes(documents)),
    )


def _finish(job: ShardJob, written: pathlib.Path, buckets: Sequence[_Bucket]) -> ShardSummary:
    """Saves the arrays for the split's figures and returns the shard's summary."""
    lengths = np.concatenate([bucket.lengths for bucket in buckets])
    smallest = sketch(np.concatenate([bucket.sketch for bucket in buckets]))
    for path, made in ((lengths_path, lengths), (sketch_path, smallest)):
        write_whole(path(job.work, job.name), array_bytes(made), make_parent=False)
    sizes: dict[str, tuple[int, int]] = {}
    for bucket, made in zip(job.buckets, buckets, strict=True):
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
        documents=sum(bucket.documents for bucket in buckets),
        tokens=int(lengths.sum(dtype=np.int64)),
        sentences=sum(bucket.sentences for bucket in buckets),
        pairs=add_pairs(bucket.pairs for bucket in buckets),
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
    """Returns the file of the lengths of a shard's examples, until the dataset is finished."""
    return epath.Path(work) / f"{name}.lengths.npy"


def sketch_path(work: epath.PathLike, name: str) -> epath.Path:
    """Returns the file of the sketch of a shard's sentences, until the dataset is finished."""
    return epath.Path(work) / f"{name}.sentences.npy"


def _examples(
    documents: TokenisedDocuments, job: ShardJob, *, boost: float
) -> Iterator[tuple[bytes, Pair | Single]]:
    """Yields every example, and its record."""
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
        yield record, example


def _read_finished(done: epath.Path, target: epath.Path) -> ShardSummary | None:
    if not (done.exists() and target.exists()):
        return None
    summary = ShardSummary.model_validate_json(done.read_bytes())
    record = summary.record
    if target.stat().length != record.bytes or sha256_of(target) != record.sha256:
        return None
    return summary
