"""From parts of input files to tokenised parts: documents as token ids on disk, sorted by key."""

import functools
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.data.dataset.schema import token_dtype
from bert_jax.errors import UserError
from bert_jax.files.atomic import whole_directory
from bert_jax.pipelines.cleaning.duplicates import unique_documents
from bert_jax.pipelines.cleaning.rules import CorpusJob, corpus_documents
from bert_jax.pipelines.cleaning.tally import TALLY, Tally, is_made
from bert_jax.pipelines.sources.documents import document_key, document_sentences, is_validation
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    key_order,
    save_array,
    split_keys,
)
from bert_jax.text import Tokenizer, load_tokenizer

SPLITS: Final = ("train", "validation")

# Text that the tokenizer gets at a time: until they are arrays, its results take some hundred times
# the memory of the text.
_BATCH_CHARACTERS = 1 << 18


class TokeniseJob(NamedTuple):
    """What a worker needs to make one tokenised part."""

    corpus: CorpusJob
    spill: str | None
    """Directory to which the cleaned documents were spilled; ``None``: they are read from files."""
    directory: str  # of the tokenised part
    language: str


class PartSummary(NamedTuple):
    """Figures of a tokenised part."""

    language: str  # of all its documents
    documents: dict[str, int]  # documents per split
    tokens: dict[str, int]  # tokens per split
    sentences: int


def tokenise_part(job: TokeniseJob) -> PartSummary:
    """Reads, splits and encodes the documents of some parts and writes them as one directory.

    It holds a file of :class:`TokenisedDocuments` per split, sorted by key, and ``counts.npy``, how
    often each id occurs. It appears atomically; an existing one is left as it is. Raises UserError:
    bad input (see :func:`read_documents`), an id beyond the vocabulary, or a full disk.
    """
    target = epath.Path(job.directory)
    if is_made(target):  # made by another worker that was given the same job
        return read_summary(target)
    tokenizer = _tokenizer(job.corpus.section.tokenizer)
    tally = Tally()
    splits, counts = _encode_documents(job, tokenizer, tally)
    summary = PartSummary(
        language=job.language,
        documents={split: len(held) for split, held in splits.items()},
        tokens={split: len(held.tokens) for split, held in splits.items()},
        sentences=sum(len(held.sentence_starts) - 1 for held in splits.values()),
    )
    with whole_directory(target, last=TALLY) as temporary:
        for split, held in splits.items():
            held.save(temporary / split)
        save_array(temporary / "counts.npy", counts)
        (temporary / "summary.json").write_text(json.dumps(summary._asdict()))
        tally.save(temporary)
    return summary


def read_summary(directory: epath.Path) -> PartSummary:
    """Returns the figures of a tokenised part on disk."""
    return PartSummary(**json.loads((directory / "summary.json").read_text()))


@functools.lru_cache(maxsize=1)
def _tokenizer(directory: str) -> Tokenizer:
    return load_tokenizer(directory)


def _encode_documents(
    job: TokeniseJob, tokenizer: Tokenizer, tally: Tally
) -> tuple[dict[str, TokenisedDocuments], np.ndarray]:
    """Returns each split's documents, sorted by key, and how often each id occurs."""
    section = job.corpus.section
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    keys: list[int] = []
    held_out: list[bool] = []
    sentence_counts: list[int] = []  # per document
    lengths: list[int] = []  # per sentence
    tokens: list[np.ndarray] = []
    for batch in _batches(_documents(job, tally)):
        encoded = iter(tokenizer.encode_batch([s for _, sentences in batch for s in sentences]))
        kept: list[list[int]] = []
        for identity, sentences in batch:
            # A line of control characters, say, has no tokens.
            ids = [sentence for _ in sentences if (sentence := next(encoded))]
            if ids:
                kept += ids
                sentence_counts.append(len(ids))
                keys.append(document_key(identity, seed=section.seed))
                held_out.append(is_validation(identity, fraction=section.validation_fraction))
        lengths += map(len, kept)
        flat = np.fromiter(chain.from_iterable(kept), np.int64, count=sum(map(len, kept)))
        _check_ids(flat, tokenizer.vocab_size, section.tokenizer)
        counts += np.bincount(flat, minlength=len(counts))
        tokens.append(flat.astype(token_dtype(tokenizer.vocab_size)))
    empty = np.empty(0, token_dtype(tokenizer.vocab_size))
    everything = TokenisedDocuments(
        keys=split_keys(keys),
        document_starts=np.cumsum([0, *sentence_counts], dtype=np.int64),
        sentence_starts=np.cumsum([0, *lengths], dtype=np.int64),
        tokens=np.concatenate([empty, *tokens]),
    )
    order = key_order(everything.keys)
    is_held_out = np.array(held_out, bool)[order]
    chosen = {"train": order[~is_held_out], "validation": order[is_held_out]}
    return {split: everything.select(chosen[split]) for split in SPLITS}, counts


def _documents(job: TokeniseJob, tally: Tally) -> Iterator[tuple[str, list[str]]]:
    layout = job.corpus.section.layout
    if job.spill is None:
        documents = corpus_documents(job.corpus, tally)
    else:
        documents = unique_documents(epath.Path(job.spill), tally)
    for identity, document in documents:
        tally.documents["kept"] += 1
        tally.lines["kept"] += len(document.lines)
        yield identity, document_sentences(document, layout=layout, language=job.language)


def _batches(documents: Iterable[tuple[str, list[str]]]) -> Iterator[list[tuple[str, list[str]]]]:
    batch, size = [], 0
    for identity, sentences in documents:
        batch.append((identity, sentences))
        size += sum(map(len, sentences))
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_ids(ids: np.ndarray, vocab_size: int, tokenizer: str) -> None:
    if len(ids) and not (ids.min() >= 0 and ids.max() < vocab_size):
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise UserError(
            f"{tokenizer}: gives token id {wrong}, allowed: 0 to {vocab_size - 1} (vocabulary size)"
        )
