"""Counts of the documents and lines that a stage has read, dropped and found."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import is_whole

TALLY: Final = "tally.json"  # written last in the directory of a stage's part: marks it as complete
MOST_LISTED: Final = 100


class Tally(pydantic.BaseModel):
    """Counts of one stage for some parts of the corpus; counts of several parts add up."""

    documents: Counter[str] = Counter()
    """Documents ``read`` and ``kept``, and documents dropped, by the setting of the rule."""
    lines: Counter[str] = Counter()
    """Lines likewise. Lines of dropped documents count as neither kept nor dropped."""
    problems: int = 0  # files, parts and records that could not be read
    listed_problems: list[str] = []  # a line for each of the first problems
    overlaps: set[int] = set()  # hashes of the evaluation files' n-grams that occur in the corpus
    overlapping: Counter[str] = Counter()  # documents with such an n-gram, by evaluation file
    contaminated: list[str] = []  # ids of the first of these documents
    held: Counter[str] = Counter()  # tokenised documents by split
    tokens: Counter[str] = Counter()  # their tokens by split
    sentences: int = 0  # their sentences

    def skip(self, error: UserError, *, on_error: str) -> None:
        """Counts and lists input that cannot be read; raises ``error`` with ``on_error: fail``."""
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
        """Reads the file of :meth:`save`."""
        return cls.model_validate_json((epath.Path(directory) / TALLY).read_bytes())


def total(tallies: Iterable[Tally]) -> Tally:
    """Adds up tallies in their order."""
    found = Tally()
    for tally in tallies:
        found.add(tally)
    return found


def is_made(directory: epath.PathLike) -> bool:
    """Whether a stage has completed the directory of a part."""
    return is_whole(directory, last=TALLY)
