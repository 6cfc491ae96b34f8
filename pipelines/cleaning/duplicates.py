"""The rules that compare documents: all are spilled to disk first, then compared."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.files.atomic import whole_directory, write_whole
from bert_jax.files.remote import load_array, local_copies
from bert_jax.pipelines.cleaning.near_duplicates import Signatures, find_near_duplicates
from bert_jax.pipelines.cleaning.rules import CorpusJob, corpus_documents
from bert_jax.pipelines.cleaning.settings import CleaningSection
from bert_jax.pipelines.cleaning.spill import (
    DOCUMENTS,
    LINES,
    Spill,
    first_lines,
    hash_ranges,
    read_spill,
    save_hashes,
)
from bert_jax.pipelines.cleaning.tally import TALLY, Tally, is_made
from bert_jax.pipelines.cleaning.words import text_hash
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.tokenised.documents import array_bytes

_DROPPED_DOCUMENTS: Final = "dropped_documents.npy"
_DROPPED_LINES: Final = "dropped_lines.npy"
_RULES: Final = ("", "duplicate_documents", "near_duplicates")


class SpillJob(NamedTuple):
    """What a worker needs to spill some documents."""

    corpus: CorpusJob
    directory: str


def spill_part(job: SpillJob) -> Tally:
    """Reads and cleans the documents of some parts and spills them to disk with their hashes.

    The directory appears atomically; an existing one is left as it is. Raises UserError: bad input,
    or a full disk.
    """
    target = epath.Path(job.directory)
    if is_made(target):  # made by another worker that was given the same job
        return Tally.load(target)
    cleaning = job.corpus.section.cleaning
    tally, documents, lines = Tally(), list[int](), list[int]()
    near = cleaning.near_duplicates
    signatures = None if near is None else Signatures(near)
    with whole_directory(target, last=TALLY) as aside:
        spill = Spill(aside)
        for identity, document in corpus_documents(job.corpus, tally):
            spill.add(identity, document)
            text = "\n".join(document.lines)
            if cleaning.duplicate_documents:
                documents.append(text_hash(text))
            if cleaning.duplicate_lines == "corpus":
                lines += map(text_hash, document.lines)
            if signatures is not None:
                signatures.add(text)
        spill.close()
        save_hashes(aside, DOCUMENTS, np.array(documents, np.uint64))
        save_hashes(aside, LINES, np.array(lines, np.uint64))
        if signatures is not None:
            signatures.save(aside)
        tally.save(aside)
    return tally


def find_duplicates(spills: Sequence[epath.PathLike], section: CleaningSection) -> None:
    """Decides which documents and lines are dropped, and records that in each spill.

    Of equal documents the first in the order of the corpus stays (files by name, documents by
    place), then of nearly equal ones, then in the documents that are left of equal lines. In memory
    are a byte for every document and line, and half a million hashes.
    """
    with local_copies(spills, ("*.npy", "*/*.npy")) as held:
        documents, lines = _decide(held, section)
    for spill, rules, repeated in zip(spills, documents, lines, strict=True):
        for name, array in ((_DROPPED_LINES, repeated), (_DROPPED_DOCUMENTS, rules)):
            write_whole(epath.Path(spill) / name, array_bytes(array))


def _decide(
    spills: Sequence[pathlib.Path], section: CleaningSection
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns for each spill the rule that drops each document, and which lines are dropped."""
    starts = [first_lines(spill) for spill in spills]
    sizes = [len(start) - 1 for start in starts]
    dropped = [np.zeros(size, np.uint8) for size in sizes]
    if section.duplicate_documents:
        repeats = find_repeats(spills, DOCUMENTS, sizes=sizes, dropped=[None] * len(spills))
        for rules, repeated in zip(dropped, repeats, strict=True):
            rules[repeated] = _RULES.index("duplicate_documents")
    if section.near_duplicates is not None:
        near = find_near_duplicates(
            spills, section.near_duplicates, sizes=sizes, dropped=[rules > 0 for rules in dropped]
        )
        for rules, repeated in zip(dropped, near, strict=True):
            rules[repeated] = _RULES.index("near_duplicates")
    if section.duplicate_lines == "corpus":
        lines = find_repeats(
            spills,
            LINES,
            sizes=[int(start[-1]) for start in starts],
            dropped=[
                np.repeat(rules > 0, np.diff(start))
                for rules, start in zip(dropped, starts, strict=True)
            ],
        )
    else:
        lines = [np.zeros(int(start[-1]), bool) for start in starts]
    return dropped, lines


def find_repeats(
    spills: Sequence[pathlib.Path],
    name: str,
    *,
    sizes: Sequence[int],
    dropped: Sequence[np.ndarray | None],
) -> list[np.ndarray]:
    """Returns for each spill, of ``sizes`` things, ``[n]`` bool: what repeats something earlier.

    What is ``dropped`` (see :func:`hash_ranges`) is neither a repetition nor repeated.
    """
    repeats = [np.zeros(size, bool) for size in sizes]
    for part in hash_ranges(spills, name, dropped=dropped):
        later = np.flatnonzero(part.firsts() != np.arange(len(part.hashes)))
        # Sorted by spill, instead of a search for each spill's own.
        later = later[np.argsort(part.spills[later], kind="stable")]
        edges = np.searchsorted(part.spills[later], np.arange(len(repeats) + 1))
        for spill in np.unique(part.spills[later]).tolist():
            repeats[spill][part.places[later[edges[spill] : edges[spill + 1]]]] = True
    return repeats


def unique_documents(spill: epath.PathLike, tally: Tally) -> Iterator[tuple[str, Document]]:
    """Yields the ids and documents of a spill that :func:`find_duplicates` keeps; counts others."""
    starts = first_lines(spill)
    rules = load_array(epath.Path(spill) / _DROPPED_DOCUMENTS)
    repeated = load_array(epath.Path(spill) / _DROPPED_LINES)
    for number, (identity, document) in enumerate(read_spill(epath.Path(spill))):
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
