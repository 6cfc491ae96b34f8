"""Finds evaluation examples in the corpus by shared n-grams of words."""

import atexit
import contextlib
import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Final

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import is_whole, whole_directory
from bert_jax.files.read import MAX_FILE_BYTES, parse_json, read_json_object
from bert_jax.files.remote import local_copies
from bert_jax.pipelines.cleaning.words import ngram_hashes, word_hashes
from bert_jax.pipelines.section import ContaminationSection
from bert_jax.pipelines.sources.files import bare_suffix, find_files, read_lines, relative_names
from bert_jax.pipelines.tally import MOST_LISTED, Tally
from bert_jax.pipelines.tokenised.documents import save_array
from bert_jax.section import Section

# If the first row of a `.tsv` has one of these names, it is a header. CoLA's files have none.
_COLUMNS: Final = frozenset(
    (
        *("index", "id", "label", "quality", "genre", "sentence", "sentence1", "sentence2"),
        *("question", "question1", "question2", "premise", "hypothesis", "pairid", "gold_label"),
    )
)

CONTAMINATION_FILES: Final = "examples.cleaning.contamination.files"

_INDEX: Final = "evaluation"  # directory in the work directory
_FILES: Final = "files.json"


def evaluation_texts(path: str) -> Iterator[list[str]]:
    """Yields the texts of each example of an evaluation file.

    An example is a row of a ``.tsv`` (all fields), an object of a ``.jsonl`` (all strings), a
    question or a context of a SQuAD ``.json``, or a line of any other file.

    Raises UserError if the file cannot be read, or if a ``.json`` is not in SQuAD's format.
    """
    suffix = bare_suffix(path)
    if suffix == ".json":
        yield from _squad(path)
        return
    for line in read_lines(path):
        if not line.text.strip():
            continue
        if suffix == ".jsonl":
            try:
                record = parse_json(line.text, allowed="JSON in each line")
            except UserError as error:
                raise error.located(path) from None
            values = record.values() if isinstance(record, dict) else [record]
            yield [value for value in values if isinstance(value, str)]
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
                texts = [paragraph["context"], *(held["question"] for held in paragraph["qas"])]
                if not all(isinstance(text, str) for text in texts):
                    raise TypeError("text")
                yield from ([text] for text in texts)
    except (KeyError, TypeError) as error:
        raise UserError(
            "contamination.squad",
            f"found no {error}, so it is not SQuAD's data. Use .tsv or .jsonl for other data.",
            place=path,
        ) from error


class OverlapRecord(Section):
    """Overlap of one evaluation file with the corpus."""

    name: str
    examples: int
    too_short: int  # examples shorter than an n-gram; the search cannot find them
    found: int  # examples with an n-gram that occurs in a document
    documents: int  # documents with an n-gram of the file, dropped documents included


def build_index(section: ContaminationSection, work: epath.PathLike) -> None:
    """Writes the n-grams of all evaluation files as an index that workers map into memory.

    The index is a directory below ``work`` and appears atomically. If it exists already, nothing is
    written. Raises UserError if a file is missing or unreadable, or the disk is full.
    """
    directory = epath.Path(work) / _INDEX
    if is_whole(directory, last=_FILES):
        return
    paths = find_files(section.files, key=CONTAMINATION_FILES)
    grams: list[np.ndarray] = []  # sorted n-gram hashes per example
    ends, too_short = [], []
    for path in paths:
        for texts in evaluation_texts(path):
            found = [ngram_hashes(word_hashes(text), section.ngram) for text in texts]
            grams.append(np.unique(np.concatenate([np.empty(0, np.uint64), *found])))
        too_short.append(sum(not len(held) for held in grams[ends[-1] if ends else 0 :]))
        ends.append(len(grams))
    hashes = np.concatenate([np.empty(0, np.uint64), *grams])
    owners = np.repeat(np.arange(len(grams)), np.array(list(map(len, grams)), np.int64))
    order = np.argsort(hashes, kind="stable")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with whole_directory(directory, last=_FILES) as aside:
        save_array(aside / "hashes.npy", hashes[order])
        save_array(aside / "owners.npy", owners[order])
        names = relative_names(paths, root=None)
        content = {"names": names, "ends": ends, "too_short": too_short, "ngram": section.ngram}
        (aside / _FILES).write_text(json.dumps(content), encoding="utf-8")


class OverlapIndex:
    """Looks up the n-grams of evaluation files."""

    def __init__(self, directory: pathlib.Path) -> None:
        content = json.loads((directory / _FILES).read_text(encoding="utf-8"))
        self._names: list[str] = content["names"]
        self._ends = np.array(content["ends"], np.int64)
        self._too_short: list[int] = content["too_short"]
        self._ngram: int = content["ngram"]
        self._hashes = np.load(directory / "hashes.npy", mmap_mode="r")
        self._owners = np.load(directory / "owners.npy", mmap_mode="r")

    def check(self, text: str, *, identity: str, tally: Tally) -> bool:
        """Returns whether a document shares an n-gram with an evaluation file. If so, counts it."""
        found = np.unique(ngram_hashes(word_hashes(text), self._ngram))
        places = np.searchsorted(self._hashes, found)
        inside = places < len(self._hashes)
        hit = found[inside][self._hashes[places[inside]] == found[inside]]
        if not len(hit):
            return False
        tally.overlaps.update(hit.tolist())
        files = np.unique(self._file(self._owners_of(hit)))
        tally.overlapping.update(self._names[file] for file in files.tolist())
        if len(tally.contaminated) < MOST_LISTED:
            tally.contaminated.append(identity)
        return True

    def report(self, tally: Tally) -> tuple[OverlapRecord, ...]:
        """Returns the overlap of every evaluation file. `tally` is the sum over all parts."""
        hit = np.unique(self._owners_of(np.array(sorted(tally.overlaps), np.uint64)))
        found = np.bincount(self._file(hit), minlength=len(self._names)).tolist()
        examples = np.diff(self._ends, prepend=0).tolist()
        return tuple(
            OverlapRecord(
                name=name,
                examples=examples[number],
                too_short=self._too_short[number],
                found=found[number],
                documents=tally.overlapping[name],
            )
            for number, name in enumerate(self._names)
        )

    def _owners_of(self, hashes: np.ndarray) -> np.ndarray:
        first, last = (np.searchsorted(self._hashes, hashes, side=s) for s in ("left", "right"))
        pieces = [np.asarray(self._owners[a:b]) for a, b in zip(first, last, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def _file(self, examples: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends, examples, side="right")


@functools.lru_cache(maxsize=1)
def load_index(work: str) -> OverlapIndex:
    """Opens the index of a work directory once per process. A remote index is copied first."""
    copies = contextlib.ExitStack()
    atexit.register(copies.close)
    [directory] = copies.enter_context(local_copies([epath.Path(work) / _INDEX], ["*"]))
    return OverlapIndex(directory)
