"""From parts of input files to runs: tokenised documents on disk, sorted by key."""

from __future__ import annotations

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
from bert_jax.pipelines.cleaning.cleaned_documents import CorpusJob, corpus_documents
from bert_jax.pipelines.cleaning.duplicates import unique_documents
from bert_jax.pipelines.cleaning.tally import TALLY, Tally, is_made
from bert_jax.pipelines.sources.documents import LAYOUTS, document_key, is_validation
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    key_order,
    save_array,
    split_keys,
)
from bert_jax.text import Tokenizer, load_tokenizer

SPLITS: Final = ("train", "validation")

# So much text at a time goes to the tokenizer: its results take some hundred times the text's
# memory before they are arrays.
_BATCH_CHARACTERS = 1 << 18


class TokeniseJob(NamedTuple):
    """What a worker needs to make one run."""

    corpus: CorpusJob
    spill: str | None
    """Directory in which the documents are set aside; ``None``: they are read from the parts."""
    directory: str
    """Where the run goes."""
    tokenizer: str
    layout: str
    language: str
    validation_fraction: float
    seed: int


class RunSummary(NamedTuple):
    """Figures of a run."""

    language: str
    """Of all its documents."""

    documents: dict[str, int]
    """Documents per split."""
    tokens: dict[str, int]
    """Tokens per split."""
    sentences: int


def tokenise_part(job: TokeniseJob) -> RunSummary:
    """Reads, splits and encodes the documents of some parts and writes them as one run.

    A run is a directory with a file of :class:`TokenisedDocuments` per split, sorted by key, and
    ``counts.npy``, how often each id occurs. It appears whole, by renaming; one that is there
    already is left as it is.

    Raises:
        UserError: bad input (see :func:`read_documents`), an id beyond the
            vocabulary, or a full disk.
    """
    target = epath.Path(job.directory)
    if is_made(target):  # made by another worker that was given the same job
        return read_summary(target)
    tokenizer = _tokenizer(job.tokenizer)
    tally = Tally()
    runs, counts = _encode_documents(job, tokenizer, tally)
    summary = RunSummary(
        language=job.language,
        documents={split: len(run) for split, run in runs.items()},
        tokens={split: len(run.tokens) for split, run in runs.items()},
        sentences=sum(len(run.sentence_starts) - 1 for run in runs.values()),
    )
    with whole_directory(target, last=TALLY) as aside:
        for split, run in runs.items():
            run.save(aside / split)
        save_array(aside / "counts.npy", counts)
        (aside / "summary.json").write_text(json.dumps(summary._asdict()))
        tally.save(aside)
    return summary


def read_summary(directory: epath.Path) -> RunSummary:
    """Returns the figures of a run on disk."""
    return RunSummary(**json.loads((directory / "summary.json").read_text()))


@functools.lru_cache(maxsize=1)
def _tokenizer(directory: str) -> Tokenizer:
    return load_tokenizer(directory)


def _encode_documents(
    job: TokeniseJob, tokenizer: Tokenizer, tally: Tally
) -> tuple[dict[str, TokenisedDocuments], np.ndarray]:
    """Returns each split's documents, sorted by key, and how often each id occurs."""
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
                keys.append(document_key(identity, seed=job.seed))
                held_out.append(is_validation(identity, fraction=job.validation_fraction))
        lengths += map(len, kept)
        flat = np.fromiter(chain.from_iterable(kept), np.int64, count=sum(map(len, kept)))
        _check_ids(flat, tokenizer.vocab_size, job.tokenizer)
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
    """Yields each document's id and sentences."""
    layout = LAYOUTS[job.layout]
    if job.spill is None:
        documents = corpus_documents(job.corpus, tally)
    else:
        documents = unique_documents(epath.Path(job.spill), tally)
    for identity, document in documents:
        tally.documents["kept"] += 1
        tally.lines["kept"] += len(document.lines)
        yield identity, layout(document, language=job.language)


def _batches(
    documents: Iterable[tuple[str, list[str]]],
) -> Iterator[list[tuple[str, list[str]]]]:
    """Yields documents together until they hold about ``_BATCH_CHARACTERS``."""
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
