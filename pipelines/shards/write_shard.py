"""Pairs buckets of tokenised documents and writes them as an ArrayRecord shard."""

import array
import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from etils import epath

from bert_jax.data.dataset.provenance import PairingSection, PairsRecord, ShardRecord
from bert_jax.data.dataset.schema import ExampleEncoder
from bert_jax.data.rng import mix64
from bert_jax.files.atomic import whole_file, write_whole
from bert_jax.files.read import sha256_of
from bert_jax.files.remote import each
from bert_jax.pipelines.pairing import Pair, Single, pair_documents
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    array_bytes,
    concatenate,
    key_order,
)
from bert_jax.section import Section
from bert_jax.text import SpecialIds

# With one record per group, a random read unpacks one record. zstd at its fastest level saves an
# eighth of the size, and random reads are not measurably slower. One compression thread keeps up
# with the writer.
_WRITER_OPTIONS: Final = "group_size:1,zstd:1,max_parallelism:1"

SKETCH: Final = 1 << 14
"""Number of hashes in a sketch. Estimated counts of sentences have a standard error of 1 /
sqrt(SKETCH) = 0.8%."""

_CHUNK: Final = 4096  # sentences hashed at a time


class DocumentBucket(NamedTuple):
    """Documents of one language that are paired together: a range of sorted keys."""

    language: str
    first_key: int  # high half of the first document's key
    last_key: int  # high half of the last document's key, inclusive


class ShardJob(NamedTuple):
    """Input of one shard."""

    name: str
    target: str  # directory of the finished shard
    work: str  # directory of the shard's summary, which marks the shard as finished
    split: str
    buckets: tuple[DocumentBucket, ...]  # loaded one at a time
    parts: dict[str, tuple[str, ...]]  # directories of all tokenised parts, by language
    boosts: dict[str, float]  # `boost` of `pair_documents`, by language
    special: SpecialIds
    separators: int  # number of separators between two spans
    pairing: PairingSection
    seed: int


class ShardSummary(Section):
    """Summary of a finished shard."""

    record: ShardRecord
    documents: int
    sentences: int
    pairs: PairsRecord | None
    examples: dict[str, int]  # number of examples by language
    tokens: dict[str, int]  # number of tokens in the examples, by language


def write_shard(job: ShardJob) -> ShardSummary:
    """Pairs a shard's buckets and writes the shard, its lengths and its summary.

    If an earlier run finished the shard and its hash still matches, nothing is written. If the disk
    is full, raises UserError and leaves no file with the shard's name.
    """
    done, target = epath.Path(job.work) / f"{job.name}.json", epath.Path(job.target) / job.name
    if (finished := _read_finished(done, target)) is not None:
        return finished
    documents, sentences, pairs = 0, 0, list[PairsRecord | None]()
    lengths, smallest = array.array("H"), np.zeros(0, np.uint64)
    examples, tokens = Counter[str](), Counter[str]()
    with whole_file(target) as temporary:
        with contextlib.closing(
            array_record_module.ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
        ) as writer:
            for bucket in job.buckets:
                held = _load_bucket(job, bucket)
                documents += len(held)
                sentences += len(held.sentence_starts) - 1
                smallest = sketch(np.concatenate([smallest, sentence_hashes(held)]))
                made, counted = _write_bucket(writer, job, held, boost=job.boosts[bucket.language])
                pairs.append(counted)
                lengths += made
                examples[bucket.language] += len(made)
                tokens[bucket.language] += sum(made)
        summary = ShardSummary(
            record=ShardRecord(
                name=job.name,
                bytes=temporary.stat().st_size,
                examples=len(lengths),
                sha256=sha256_of(temporary),
            ),
            documents=documents,
            sentences=sentences,
            pairs=add_pairs(pairs),
            examples=examples,
            tokens=tokens,
        )
        for kind, figures in (("lengths", np.array(lengths, np.uint16)), ("sketch", smallest)):
            path = figures_path(job.work, job.name, kind)
            write_whole(path, array_bytes(figures), make_parent=False)
    write_whole(done, summary.model_dump_json(), make_parent=False)
    return summary


def _write_bucket(
    writer: Any, job: ShardJob, documents: TokenisedDocuments, *, boost: float
) -> "tuple[array.array[int], PairsRecord | None]":
    """Writes the examples of a bucket. Returns their lengths and the counts of their pairs."""
    lengths, pairs = array.array("H"), array.array("q")
    for record, example in _examples(documents, job, boost=boost):
        writer.write(record)
        lengths.append(example.length)
        if isinstance(example, Pair):
            pairs.extend(example)
    if not job.pairing.has_pairs:
        return lengths, None
    return lengths, count_pairs(documents, np.array(pairs).reshape(-1, len(Pair._fields)))


def _load_bucket(job: ShardJob, bucket: DocumentBucket) -> TokenisedDocuments:
    """Returns the documents of a bucket from all tokenised parts, sorted by key."""
    load = functools.partial(
        TokenisedDocuments.load, first_key=bucket.first_key, last_key=bucket.last_key
    )
    paths = [epath.Path(part) / job.split for part in job.parts[bucket.language]]
    found = concatenate(list(each(load, paths)))
    return found.select(key_order(found.keys))


def figures_path(work: epath.PathLike, name: str, kind: str) -> epath.Path:
    """Returns the work file of a shard's ``lengths`` or ``sketch``."""
    return epath.Path(work) / f"{name}.{kind}.npy"


def _examples(
    documents: TokenisedDocuments, job: ShardJob, *, boost: float
) -> Iterator[tuple[bytes, Pair | Single]]:
    """Yields ``(encoded record, example)``."""
    dtype = documents.tokens.dtype
    tokens, width = documents.tokens.data.cast("B"), dtype.itemsize
    cls, sep = (np.array(i, dtype).tobytes() for i in (job.special.cls, job.special.sep))
    encode = ExampleEncoder().encode
    for example in pair_documents(
        documents, job.pairing, seed=job.seed, boost=boost, separators=job.separators
    ):
        spans = [tokens[start * width : stop * width] for start, stop in example.token_ranges]
        between = sep * example.separators if isinstance(example, Pair) else sep
        record = encode(
            cls + between.join(spans) + sep,
            first_length=example.first_length,
            next_sentence_label=example.next_sentence_label,
        )
        yield record, example


def _read_finished(done: epath.Path, target: epath.Path) -> ShardSummary | None:
    if not (done.exists() and target.exists()):
        return None
    summary = ShardSummary.model_validate_json(done.read_bytes())
    record = summary.record
    same = target.stat().length == record.bytes and sha256_of(target) == record.sha256
    return summary if same else None


def count_pairs(documents: TokenisedDocuments, pairs: np.ndarray) -> PairsRecord:
    """Counts pairs by label, and by whether their spans come from one document.

    ``pairs`` is ``[n, 5]`` int64, with the fields of :class:`Pair` as columns.
    """
    starts = documents.sentence_starts[documents.document_starts]
    first, second = (np.searchsorted(starts, pairs[:, at], side="right") for at in (0, 2))
    same, label = first == second, pairs[:, 4] == 1
    return PairsRecord(
        same_document=(int((same & ~label).sum()), int((same & label).sum())),
        other_document=(int((~same & ~label).sum()), int((~same & label).sum())),
    )


def add_pairs(records: Iterable[PairsRecord | None]) -> PairsRecord | None:
    """Adds up the counts that are not None. Returns None if all are None."""
    counts = [(*r.same_document, *r.other_document) for r in records if r is not None]
    if not counts:
        return None
    same_0, same_1, other_0, other_1 = map(sum, zip(*counts, strict=True))
    return PairsRecord(same_document=(same_0, same_1), other_document=(other_0, other_1))


def sentence_hashes(documents: TokenisedDocuments) -> np.ndarray:
    """Returns a hash of each sentence's tokens in order: ``[s]`` uint64."""
    starts, total = documents.sentence_starts, len(documents.sentence_starts) - 1
    parts = [np.zeros(0, np.uint64)]
    for first in range(0, total, _CHUNK):
        held = starts[first : first + _CHUNK + 1]
        places = np.arange(held[0], held[-1])
        places -= np.repeat(held[:-1], np.diff(held))
        spelled = (places.astype(np.uint64) << np.uint64(32)) + documents.tokens[held[0] : held[-1]]
        parts.append(mix64(np.add.reduceat(mix64(spelled), held[:-1] - held[0])))
    return np.concatenate(parts)


def sketch(hashes: np.ndarray) -> np.ndarray:
    """Returns the smallest distinct hashes in ascending order.

    A sketch of concatenated sketches equals the sketch of all their hashes. Source:
    Bar-Yossef et al., "Counting distinct elements in a data stream" (2002).
    """
    return np.unique(hashes)[:SKETCH]


def count_distinct(smallest: np.ndarray) -> float:
    """Returns the number of distinct hashes: exact below `SKETCH`, otherwise an estimate."""
    if len(smallest) < SKETCH:
        return float(len(smallest))
    return (SKETCH - 1) / (float(smallest[-1]) / 2.0**64)
