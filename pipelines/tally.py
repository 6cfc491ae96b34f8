"""Counts of the documents and lines that a stage reads, drops and finds."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import is_whole

TALLY: Final = "tally.json"  # written last: marks the directory of a stage's part as complete
MOST_LISTED: Final = 100


class Tally(pydantic.BaseModel):
    """Counts of one stage for one or more parts of the corpus."""

    documents: Counter[str] = Counter()
    """Numbers of documents: ``read``, ``kept``, and dropped by each rule (named by its setting)."""
    lines: Counter[str] = Counter()
    """Numbers of lines, by the keys of ``documents``. Lines of dropped documents count only as
    ``read``."""
    problems: int = 0  # number of unreadable files, parts and records
    listed_problems: list[str] = []  # messages of the first problems
    overlaps: set[int] = set()  # hashes of evaluation n-grams that occur in the corpus
    overlapping: Counter[str] = Counter()  # number of overlapping documents, by evaluation file
    contaminated: list[str] = []  # ids of the first overlapping documents
    held: Counter[str] = Counter()  # number of tokenised documents, by split
    tokens: Counter[str] = Counter()  # number of tokens, by split
    sentences: int = 0  # number of tokenised sentences

    def skip(self, error: UserError, *, on_error: str) -> None:
        """Counts and lists unreadable input. If ``on_error`` is ``fail``, raises ``error``."""
        if on_error == "fail":
            raise error
        self.problems += 1
        if self.lists_more:
            self.listed_problems.append(str(error))

    @property
    def lists_more(self) -> bool:
        """Whether the next problem will be listed."""
        return len(self.listed_problems) < MOST_LISTED

    def add(self, other: Tally) -> None:
        """Adds the counts of another part."""
        for name in type(self).model_fields:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, list):
                setattr(self, name, [*mine, *more][:MOST_LISTED])
            else:
                setattr(self, name, mine | more if isinstance(mine, set) else mine + more)

    def save(self, directory: pathlib.Path) -> None:
        """Writes the file :data:`TALLY`."""
        (directory / TALLY).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def load(cls, directory: epath.PathLike) -> Tally:
        """Reads the file that :meth:`save` writes."""
        return cls.model_validate_json((epath.Path(directory) / TALLY).read_bytes())


def total(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of tallies."""
    found = Tally()
    for tally in tallies:
        found.add(tally)
    return found


def is_made(directory: epath.PathLike) -> bool:
    """Returns whether a stage has completed the directory of a part."""
    return is_whole(directory, last=TALLY)
