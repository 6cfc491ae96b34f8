"""From parts of input files to tokenised parts: documents as token ids on disk, sorted by key."""

import functools
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np

from bert_jax.data.dataset.schema import token_dtype
from bert_jax.errors import UserError
from bert_jax.files.atomic import whole_directory
from bert_jax.pipelines.cleaning.duplicates import unique_documents
from bert_jax.pipelines.cleaning.rules import CorpusPart, corpus_documents
from bert_jax.pipelines.sources.documents import document_key, document_sentences, is_validation
from bert_jax.pipelines.tally import TALLY, Tally, is_made
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    key_order,
    save_array,
    split_keys,
)
from bert_jax.text import Tokenizer, load_tokenizer

SPLITS: Final = ("train", "validation")

# Text that the tokenizer gets at a time: its lists take a hundred times the memory of the text.
_BATCH_CHARACTERS: Final = 1 << 18


def tokenise_part(part: CorpusPart) -> Tally:
    """Reads, splits and encodes the documents of a part and writes them as one directory.

    It holds a file of :class:`TokenisedDocuments` per split, sorted by key, and ``counts.npy``: the
    number of occurrences of each id. It appears atomically; an existing one is left as it is.
    Raises UserError: bad input (see :func:`read_documents`), an id beyond the vocabulary, or a full
    disk.
    """
    if is_made(part.tokenised):  # made by another worker that was given the same job
        return Tally.load(part.tokenised)
    tokenizer = _tokenizer(part.section.tokenizer)
    tally = Tally()
    splits, counts = _encode_documents(part, tokenizer, tally)
    with whole_directory(part.tokenised, last=TALLY) as temporary:
        for split, held in splits.items():
            held.save(temporary / split)
            tally.held[split] = len(held)
            tally.tokens[split] = len(held.tokens)
            tally.sentences += len(held.sentence_starts) - 1
        save_array(temporary / "counts.npy", counts)
        tally.save(temporary)
    return tally


@functools.lru_cache(maxsize=1)
def _tokenizer(directory: str) -> Tokenizer:
    return load_tokenizer(directory)


def _encode_documents(
    part: CorpusPart, tokenizer: Tokenizer, tally: Tally
) -> tuple[dict[str, TokenisedDocuments], np.ndarray]:
    """Returns each split's documents, sorted by key, and how often each id occurs."""
    section = part.section
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    keys: list[int] = []
    held_out: list[bool] = []
    sentence_counts: list[int] = []  # per document
    lengths: list[int] = []  # per sentence
    tokens: list[np.ndarray] = []
    for batch in _batches(_documents(part, tally)):
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


def _documents(part: CorpusPart, tally: Tally) -> Iterator[tuple[str, list[str]]]:
    layout = part.section.layout
    if part.section.cleaning.looks_across_documents:
        documents = unique_documents(part.spill, tally)
    else:
        documents = corpus_documents(part, tally)
    for identity, document in documents:
        tally.documents["kept"] += 1
        tally.lines["kept"] += len(document.lines)
        yield identity, document_sentences(document, layout=layout, language=part.language)


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
