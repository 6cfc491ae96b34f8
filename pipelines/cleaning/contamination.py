"""Which evaluation examples share an n-gram of words with the corpus, and which documents."""

import atexit
import contextlib
import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import is_whole, whole_directory
from bert_jax.files.read import MAX_FILE_BYTES, parse_json, read_json_object
from bert_jax.files.remote import local_copies
from bert_jax.pipelines.cleaning.settings import ContaminationSection
from bert_jax.pipelines.cleaning.tally import Tally
from bert_jax.pipelines.cleaning.words import ngram_hashes, word_hashes
from bert_jax.pipelines.sources.decompress import bare_suffix
from bert_jax.pipelines.sources.documents import MOST_LISTED
from bert_jax.pipelines.sources.files import find_files, read_lines, relative_names
from bert_jax.pipelines.tokenised.documents import save_array
from bert_jax.section import Section

# A first row with one of these is a header. CoLA and the like have none.
_COLUMNS: Final = frozenset(
    (
        *("index", "id", "label", "quality", "genre", "sentence", "sentence1", "sentence2"),
        *("question", "question1", "question2", "premise", "hypothesis", "pairid", "gold_label"),
    )
)

_FILES: Final = "files.json"


def evaluation_texts(path: str) -> Iterator[list[str]]:
    """Yields the texts of each example of an evaluation file.

    A ``.tsv`` gives the fields of each row; a ``.json`` of SQuAD's form each question and each
    context by itself; a ``.jsonl`` the strings of each object; any other file each line. Raises
    UserError: the file cannot be read, or is JSON of another form.
    """
    suffix = bare_suffix(path)
    if suffix == ".json":
        yield from _squad(path)
        return
    for line in read_lines(path):
        if not line.text.strip():
            continue
        if suffix == ".jsonl":
            yield _strings(path, line.text)
        elif suffix == ".tsv":
            fields = line.text.split("\t")
            if line.offset or _COLUMNS.isdisjoint(f.strip("\ufeff# ").lower() for f in fields):
                yield fields
        else:
            yield [line.text]


def _squad(path: str) -> Iterator[list[str]]:
    content = read_json_object(epath.Path(path), limit=MAX_FILE_BYTES)
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                yield [_text(paragraph, "context")]
                for question in paragraph["qas"]:
                    yield [_text(question, "question")]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: found no {error} in it, allowed: SQuAD's data, paragraphs, context, qas and "
            "question; or a .tsv, a .jsonl or plain lines"
        ) from error


def _text(node: dict[str, Any], key: str) -> str:
    if not isinstance(text := node[key], str):
        raise TypeError(f"text in {key}")
    return text


def _strings(path: str, text: str) -> list[str]:
    try:
        record = parse_json(text)
    except UserError as error:
        raise UserError(f"{path}: {error} in each line") from None
    values = record.values() if isinstance(record, dict) else [record]
    return [value for value in values if isinstance(value, str)]


class OverlapRecord(Section):
    """The overlap of one evaluation file with the corpus."""

    name: str
    examples: int
    too_short: int  # examples with fewer words than an n-gram, which cannot be found
    found: int  # examples with an n-gram that occurs in a document
    documents: int  # documents with an n-gram of the file, including those dropped for it


def build_index(section: ContaminationSection, directory: epath.PathLike) -> None:
    """Writes the n-grams of all evaluation files as an index that workers map into memory.

    The directory appears atomically; an existing one is left as it is. Raises UserError: a file is
    missing or cannot be read, or the disk is full.
    """
    if is_whole(directory, last=_FILES):
        return
    paths = find_files(section.files)
    hashes: list[np.ndarray] = [np.empty(0, np.uint64)]
    owners: list[np.ndarray] = [np.empty(0, np.int64)]
    ends, too_short, total = [], [], 0
    for path in paths:
        short = 0
        for texts in evaluation_texts(path):
            grams = [ngram_hashes(word_hashes(text), section.ngram) for text in texts]
            unique = np.unique(np.concatenate(grams)) if grams else np.empty(0, np.uint64)
            short += not len(unique)
            hashes.append(unique)
            owners.append(np.full(len(unique), total))
            total += 1
        ends.append(total)
        too_short.append(short)
    flat = np.concatenate(hashes)
    order = np.argsort(flat, kind="stable")
    epath.Path(directory).parent.mkdir(parents=True, exist_ok=True)
    with whole_directory(directory, last=_FILES) as aside:
        save_array(aside / "hashes.npy", flat[order])
        save_array(aside / "owners.npy", np.concatenate(owners)[order])
        names = relative_names(paths, root=None)
        content = {"names": names, "ends": ends, "too_short": too_short, "ngram": section.ngram}
        (aside / _FILES).write_text(json.dumps(content), encoding="utf-8")


class OverlapIndex:
    """The n-grams of evaluation files, looked up."""

    def __init__(self, directory: pathlib.Path) -> None:
        content = json.loads((directory / _FILES).read_text(encoding="utf-8"))
        self._names: list[str] = content["names"]
        self._ends = np.array(content["ends"], np.int64)
        self._too_short: list[int] = content["too_short"]
        self._ngram: int = content["ngram"]
        self._hashes = np.load(directory / "hashes.npy", mmap_mode="r")
        self._owners = np.load(directory / "owners.npy", mmap_mode="r")

    def check(self, text: str, *, identity: str, tally: Tally) -> bool:
        """Whether a document has an n-gram of an evaluation file; counted if so."""
        found = np.unique(ngram_hashes(word_hashes(text), self._ngram))
        places = np.searchsorted(self._hashes, found)
        inside = places < len(self._hashes)
        hit = found[inside][self._hashes[places[inside]] == found[inside]]
        if not len(hit):
            return False
        tally.overlaps.update(hit.tolist())
        tally.overlapping.update(
            self._names[file] for file in np.unique(self._file(self._owners_of(hit))).tolist()
        )
        if len(tally.contaminated) < MOST_LISTED:
            tally.contaminated.append(identity)
        return True

    def report(self, tally: Tally) -> tuple[OverlapRecord, ...]:
        """Returns the figures of every file, from the sum of all tallies."""
        hit = np.array(sorted(tally.overlaps), np.uint64)
        found = np.bincount(self._file(np.unique(self._owners_of(hit))), minlength=len(self._names))
        starts = np.concatenate([[0], self._ends[:-1]])
        return tuple(
            OverlapRecord(
                name=name,
                examples=int(end - start),
                too_short=short,
                found=int(count),
                documents=tally.overlapping[name],
            )
            for name, start, end, short, count in zip(
                self._names, starts, self._ends, self._too_short, found, strict=True
            )
        )

    def _owners_of(self, hashes: np.ndarray) -> np.ndarray:
        first = np.searchsorted(self._hashes, hashes, side="left")
        last = np.searchsorted(self._hashes, hashes, side="right")
        pieces = [np.asarray(self._owners[a:b]) for a, b in zip(first, last, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def _file(self, examples: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends, examples, side="right")


@functools.lru_cache(maxsize=1)
def load_index(directory: str) -> OverlapIndex:
    """Opens an index, once in each process, which keeps its copy of one that is in a bucket."""
    copies = contextlib.ExitStack()
    atexit.register(copies.close)
    [held] = copies.enter_context(local_copies([epath.Path(directory)], ["*"]))
    return OverlapIndex(held)
