"""The rules that compare documents: all are spilled to disk first, then compared."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from etils import epath

from bert_jax.files.atomic import whole_directory, write_whole
from bert_jax.files.remote import load_array, local_copies
from bert_jax.pipelines.cleaning.near_duplicates import Signatures, find_near_duplicates
from bert_jax.pipelines.cleaning.rules import CorpusPart, corpus_documents
from bert_jax.pipelines.cleaning.spill import (
    DOCUMENTS,
    LINES,
    first_lines,
    read_spill,
    repetitions,
    save_hashes,
    write_spill,
)
from bert_jax.pipelines.cleaning.words import text_hash
from bert_jax.pipelines.section import CleaningSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.tally import TALLY, Tally, is_made
from bert_jax.pipelines.tokenised.documents import array_bytes

_DROPPED_DOCUMENTS: Final = "dropped_documents.npy"
_DROPPED_LINES: Final = "dropped_lines.npy"
_RULES: Final = ("", "duplicate_documents", "near_duplicates")


def spill_part(part: CorpusPart) -> Tally:
    """Reads and cleans the documents of a part and spills them to disk with their hashes.

    The directory appears atomically; an existing one is left as it is. Raises UserError: bad input,
    or a full disk.
    """
    if is_made(part.spill):  # made by another worker that was given the same job
        return Tally.load(part.spill)
    cleaning = part.section.cleaning
    tally, documents, lines = Tally(), list[int](), list[int]()
    near = cleaning.near_duplicates
    signatures = None if near is None else Signatures(near)
    with whole_directory(part.spill, last=TALLY) as aside:
        with write_spill(aside) as write:
            for identity, document in corpus_documents(part, tally):
                write(identity, document.lines)
                text = "\n".join(document.lines)
                if cleaning.duplicate_documents:
                    documents.append(text_hash(text))
                if cleaning.duplicate_lines == "corpus":
                    lines += map(text_hash, document.lines)
                if signatures is not None:
                    signatures.add(text)
        save_hashes(aside, DOCUMENTS, np.array(documents, np.uint64))
        save_hashes(aside, LINES, np.array(lines, np.uint64))
        if signatures is not None:
            signatures.save(aside)
        tally.save(aside)
    return tally


def find_duplicates(spills: Sequence[epath.PathLike], section: CleaningSection) -> None:
    """Decides which documents and lines are dropped, and records that in each spill.

    The first of equal documents stays, in the order of the corpus (files by name, documents by
    place); then the first of nearly equal documents; then the first of equal lines in the remaining
    documents. Memory holds a byte for every document and line, and half a million hashes.
    """
    with local_copies(spills, ("*.npy", "*/*.npy")) as held:
        lengths = [np.diff(first_lines(spill)) for spill in held]
        flat = np.concatenate(lengths)
        rules = np.zeros(len(flat), np.uint8)
        lines = np.zeros(int(flat.sum()), bool)
        if section.duplicate_documents:
            repeated = find_repeats(held, DOCUMENTS, dropped=rules > 0)
            rules[repeated] = _RULES.index("duplicate_documents")
        if section.near_duplicates is not None:
            near = find_near_duplicates(held, section.near_duplicates, dropped=rules > 0)
            rules[near] = _RULES.index("near_duplicates")
        if section.duplicate_lines == "corpus":
            lines = find_repeats(held, LINES, dropped=np.repeat(rules > 0, flat))
    documents_by_spill = np.split(rules, np.cumsum([len(some) for some in lengths])[:-1])
    lines_by_spill = np.split(lines, np.cumsum([some.sum() for some in lengths])[:-1])
    for spill, rules, lines in zip(spills, documents_by_spill, lines_by_spill, strict=True):
        for name, array in ((_DROPPED_LINES, lines), (_DROPPED_DOCUMENTS, rules)):
            write_whole(epath.Path(spill) / name, array_bytes(array))


def find_repeats(spills: Sequence[pathlib.Path], name: str, *, dropped: np.ndarray) -> np.ndarray:
    """Returns ``[n]`` bool, for the things of all spills: whether each repeats something earlier.

    Dropped things, ``[n]`` bool, are left out.
    """
    repeats = np.zeros(len(dropped), bool)
    for again, _ in repetitions(spills, name, dropped=dropped):
        repeats[again] = True
    return repeats


def unique_documents(spill: epath.Path, tally: Tally) -> Iterator[tuple[str, Document]]:
    """Yields the ids and documents that :func:`find_duplicates` keeps; counts the dropped ones."""
    starts = first_lines(spill)
    rules = load_array(spill / _DROPPED_DOCUMENTS)
    repeated = load_array(spill / _DROPPED_LINES)
    for number, (identity, document) in enumerate(read_spill(spill)):
        if rules[number]:
            tally.documents[_RULES[rules[number]]] += 1
            continue
        flags = repeated[starts[number] : starts[number + 1]]
        if flags.any():
            tally.lines["duplicate_lines.corpus"] += int(flags.sum())
            lines = [line for line, gone in zip(document.lines, flags, strict=True) if not gone]
            if not lines:
                tally.documents["emptied"] += 1
                continue
            document = document._replace(lines=lines)
        yield identity, document
