"""Drops equal lines, equal documents and nearly equal documents across the whole corpus.

A first pass writes every document with its hashes to disk (a spill). A second pass compares the
hashes. Nearly equal documents are found by MinHash (``rensa``) with banding.
"""

import contextlib
import io
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.files.atomic import whole_directory, write_whole
from bert_jax.files.remote import load_array, local_copies
from bert_jax.pipelines.cleaning.rules import CorpusPart, corpus_documents
from bert_jax.pipelines.cleaning.words import combine, ngram_hashes, text_hash, word_hashes
from bert_jax.pipelines.section import CleaningSection, NearDuplicatesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.tally import TALLY, Tally, is_made
from bert_jax.pipelines.tokenised.documents import array_bytes, save_array, starts_of

# Two documents are compared if all hashes of one band are equal. With FineWeb's 14 bands of 8
# hashes, most pairs with a similarity of 0.75 or more are compared.
BANDS: Final = 14
ROWS: Final = 8  # hashes per band
_SEED: Final = 1

_BUFFER_BYTES: Final = 1 << 18
_HASHES_AT_A_TIME: Final = 1 << 16  # number of n-gram hashes that triggers a call of rensa
_MOST_AT_A_TIME: Final = 1 << 19  # approximate number of document or line hashes in memory

# Files of a spill.
_TEXT: Final = "documents.jsonl.zst"
_FIRST_LINES: Final = "first_lines.npy"
_SIGNATURES: Final = "signatures.npy"
_DROPPED_DOCUMENTS: Final = "dropped_documents.npy"
_DROPPED_LINES: Final = "dropped_lines.npy"

# `_DROPPED_DOCUMENTS` stores the index of a rule; 0 marks a document that stays.
_RULES: Final = ("", "duplicate_documents", "near_duplicates")


def spill_part(part: CorpusPart) -> Tally:
    """Reads and cleans the documents of a part and spills them to disk with their hashes.

    The directory appears atomically. If it exists already, nothing is written. Raises UserError if
    the input is bad or the disk is full.
    """
    if is_made(part.spill):  # Beam may run a job twice
        return Tally.load(part.spill)
    cleaning = part.section.cleaning
    tally, documents, lines = Tally(), list[int](), list[int]()
    near = cleaning.near_duplicates
    signatures = None if near is None else Signatures(near)
    with whole_directory(part.spill, last=TALLY) as aside:
        with _write_text(aside) as write:
            for identity, document in corpus_documents(part, tally):
                write(identity, document.lines)
                text = "\n".join(document.lines)
                if cleaning.duplicate_documents:
                    documents.append(text_hash(text))
                if cleaning.duplicate_lines == "corpus":
                    lines += map(text_hash, document.lines)
                if signatures is not None:
                    signatures.add(text)
        save_hashes(aside, "documents", np.array(documents, np.uint64))
        save_hashes(aside, "lines", np.array(lines, np.uint64))
        if signatures is not None:
            signatures.save(aside)
        tally.save(aside)
    return tally


@contextlib.contextmanager
def _write_text(directory: pathlib.Path) -> Iterator[Callable[[str, list[str]], None]]:
    """Yields a function that writes a document's id and lines to the spill."""
    import pyarrow as pa  # imported only where needed: it takes 50 MB

    counts = [0]
    out: Any = pa.CompressedOutputStream(str(directory / _TEXT), "zstd")
    with out, io.BufferedWriter(out, _BUFFER_BYTES) as file:

        def write(identity: str, lines: list[str]) -> None:
            file.write(json.dumps([identity, lines], ensure_ascii=True).encode("ascii") + b"\n")
            counts.append(len(lines))

        yield write
    save_array(directory / _FIRST_LINES, np.cumsum(counts, dtype=np.int64))


class Signatures:
    """Collects the MinHash signatures of documents."""

    def __init__(self, section: NearDuplicatesSection) -> None:
        self._section = section
        self._rows = [np.empty((0, BANDS * ROWS), np.uint32)]
        self._waiting: list[np.ndarray] = []  # n-grams per document that has no signature yet
        self._waiting_hashes = 0

    def add(self, text: str) -> None:
        """Adds a document. If it is shorter than an n-gram, all its words form one n-gram."""
        hashes = word_hashes(text)
        grams = ngram_hashes(hashes, min(self._section.ngram, max(1, len(hashes))))
        # Documents without words would all have equal signatures, so their whole text is hashed.
        self._waiting.append(grams if len(grams) else np.array([text_hash(text)], np.uint64))
        self._waiting_hashes += len(self._waiting[-1])
        if self._waiting_hashes >= _HASHES_AT_A_TIME:
            self._flush()

    def save(self, directory: pathlib.Path) -> None:
        """Writes the signatures and the hashes of each band."""
        self._flush()
        signatures = np.concatenate(self._rows)
        save_array(directory / _SIGNATURES, signatures)
        (directory / _band(0)).parent.mkdir(exist_ok=True)
        for band in range(BANDS):
            columns = signatures[:, band * ROWS : (band + 1) * ROWS].astype(np.uint64)
            save_hashes(directory, _band(band), combine(list(columns.T)))

    def _flush(self) -> None:
        if not self._waiting:
            return
        matrix = _minhash().digest_matrix_from_flat_token_hashes(
            np.concatenate(self._waiting),
            starts_of(list(map(len, self._waiting))).astype(np.uint64),
            num_perm=BANDS * ROWS,
            seed=_SEED,
        )
        self._rows.append(np.array(matrix.to_rows(), np.uint32))
        self._waiting, self._waiting_hashes = [], 0


def algorithm_version() -> int:
    """Returns rensa's signature version. Signatures of two versions must not be compared."""
    return _minhash().ALGORITHM_VERSION


def _minhash() -> Any:
    import rensa  # imported here, because only the extra `data` installs it

    return rensa.RMinHash  # pyright: ignore[reportAttributeAccessIssue]


def _band(band: int) -> str:
    return f"bands/{band:03d}"


def save_hashes(directory: pathlib.Path, name: str, hashes: np.ndarray) -> None:
    """Writes ``[n]`` uint64 hashes in ascending order, and the index in the spill of each."""
    order = np.argsort(hashes, kind="stable")
    save_array(directory / f"{name}.hashes.npy", hashes[order])
    save_array(directory / f"{name}.places.npy", order.astype(np.uint32))


def find_duplicates(spills: Sequence[epath.PathLike], section: CleaningSection) -> None:
    """Decides which documents and lines are dropped, and records the decisions in each spill.

    The rules apply in this order: equal documents, nearly equal documents, equal lines of the
    remaining documents. Of equal documents or lines, the first in the corpus stays. The corpus is
    ordered by file name, then by position in the file. Memory use is one byte per document and
    line, plus half a million hashes.
    """
    with local_copies(spills, ("*.npy", "*/*.npy")) as held:
        lengths = [np.diff(load_array(epath.Path(spill) / _FIRST_LINES)) for spill in held]
        flat = np.concatenate(lengths)
        rules = np.zeros(len(flat), np.uint8)
        lines = np.zeros(int(flat.sum()), bool)
        if section.duplicate_documents:
            rules[find_repeats(held, "documents", dropped=rules > 0)] = 1
        if section.near_duplicates is not None:
            rules[find_near_duplicates(held, section.near_duplicates, dropped=rules > 0)] = 2
        if section.duplicate_lines == "corpus":
            lines = find_repeats(held, "lines", dropped=np.repeat(rules > 0, flat))
    documents_by_spill = np.split(rules, np.cumsum([len(some) for some in lengths])[:-1])
    lines_by_spill = np.split(lines, np.cumsum([some.sum() for some in lengths])[:-1])
    for spill, rules, lines in zip(spills, documents_by_spill, lines_by_spill, strict=True):
        for name, array in ((_DROPPED_LINES, lines), (_DROPPED_DOCUMENTS, rules)):
            write_whole(epath.Path(spill) / name, array_bytes(array))


def find_repeats(spills: Sequence[pathlib.Path], name: str, *, dropped: np.ndarray) -> np.ndarray:
    """Returns ``[n]`` bool: which items (documents or lines) of all spills repeat an earlier item.

    Items marked in ``dropped``, ``[n]`` bool, are ignored.
    """
    repeats = np.zeros(len(dropped), bool)
    for again, _ in _repetitions(spills, name, dropped=dropped):
        repeats[again] = True
    return repeats


def find_near_duplicates(
    spills: Sequence[pathlib.Path], section: NearDuplicatesSection, *, dropped: np.ndarray
) -> np.ndarray:
    """Returns ``[n]`` bool: which documents nearly equal an earlier document.

    In each band, compares a document with the first document that has the same hashes. Documents
    marked in ``dropped``, ``[n]`` bool, are ignored.
    """
    near = np.zeros(len(dropped), bool)
    signatures = [np.load(spill / _SIGNATURES, mmap_mode="r") for spill in spills]
    before = starts_of(list(map(len, signatures)))

    def signature(document: int) -> np.ndarray:
        spill = int(np.searchsorted(before, document, side="right")) - 1
        return signatures[spill][document - before[spill]]

    for band in range(BANDS):
        for again, firsts in _repetitions(spills, _band(band), dropped=dropped):
            for document, first in zip(again.tolist(), firsts.tolist(), strict=True):
                if not near[document]:
                    equal = np.mean(signature(document) == signature(first))
                    near[document] = equal >= section.threshold
    return near


def _repetitions(
    spills: Sequence[pathlib.Path], name: str, *, dropped: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields pairs of arrays: indices of repeated items, and of their first occurrences.

    Indices run through all spills, in the order of the corpus. Hashes are sorted on disk, so each
    spill stores a range of hash values contiguously. Reads one range at a time: about half a
    million hashes, or more if one hash value occurs more often.
    """
    hashes, places = (
        [np.load(spill / f"{name}.{kind}.npy", mmap_mode="r") for spill in spills]
        for kind in ("hashes", "places")
    )
    before = starts_of(list(map(len, hashes)))
    count = max(1, -(-int(before[-1]) // _MOST_AT_A_TIME))
    starts = [0] * len(spills)
    for number in range(1, count + 1):
        limit = np.uint64((2**64 * number // count) - 1)
        stops = [int(np.searchsorted(own, limit, side="right")) for own in hashes]
        found = np.concatenate([h[a:b] for h, a, b in zip(hashes, starts, stops, strict=True)])
        numbers = np.concatenate(
            [p[a:b] + at for p, a, b, at in zip(places, starts, stops, before, strict=False)]
        )
        starts = stops
        kept = ~dropped[numbers]
        found, numbers = found[kept], numbers[kept]
        order = np.argsort(found, kind="stable")  # equal hashes stay in the order of the corpus
        found, numbers = found[order], numbers[order]
        again = np.zeros(len(found), bool)
        again[1:] = found[1:] == found[:-1]
        firsts = np.maximum.accumulate(np.where(again, 0, np.arange(len(found))))
        yield numbers[again], numbers[firsts[again]]


def unique_documents(spill: epath.Path, tally: Tally) -> Iterator[tuple[str, Document]]:
    """Yields ``(id, document)`` for every document that stays. Counts what is dropped."""
    import pyarrow as pa

    starts, rules, repeated = (
        load_array(spill / name) for name in (_FIRST_LINES, _DROPPED_DOCUMENTS, _DROPPED_LINES)
    )
    with (
        (spill / _TEXT).open("rb") as file,
        pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream,
    ):
        for number, line in enumerate(io.BufferedReader(stream, buffer_size=_BUFFER_BYTES)):
            identity, lines = json.loads(line)
            if rules[number]:
                tally.documents[_RULES[rules[number]]] += 1
                continue
            flags = repeated[starts[number] : starts[number + 1]]
            if flags.any():
                tally.lines["duplicate_lines.corpus"] += int(flags.sum())
                lines = [line for line, gone in zip(lines, flags, strict=True) if not gone]
                if not lines:
                    tally.documents["emptied"] += 1
                    continue
            yield identity, Document(0, lines)
