"""What a stage has read, dropped and found, as counts that add up."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

from etils import epath

from bert_jax.files.atomic import is_whole
from bert_jax.files.remote import each
from bert_jax.pipelines.sources.documents import MOST_LISTED, Problems

TALLY: Final = "tally.json"  # written last in the directory of a stage's part: marks it as complete


@dataclasses.dataclass
class Tally:
    """Counts of one stage for some parts of the corpus."""

    documents: Counter[str] = dataclasses.field(default_factory=Counter)
    """Documents ``read``, ``kept``, and dropped by each rule, by the rule's setting."""
    lines: Counter[str] = dataclasses.field(default_factory=Counter)
    """Lines, likewise; those of dropped documents count as neither kept nor dropped."""
    problems: int = 0  # bad files, parts and records that were skipped
    listed_problems: list[str] = dataclasses.field(default_factory=list)
    overlaps: set[int] = dataclasses.field(default_factory=set)
    """Hashes of the evaluation sets' n-grams that occur."""
    overlapping: Counter[str] = dataclasses.field(default_factory=Counter)
    """Documents with such an n-gram, per evaluation file."""
    contaminated: list[str] = dataclasses.field(default_factory=list)
    """Ids of the first of these documents."""

    def take(self, problems: Problems) -> None:
        """Adds what was wrong with the input."""
        self.add(Tally(problems=problems.count, listed_problems=problems.listed))

    def add(self, other: Tally) -> None:
        """Adds another stage's or another part's counts."""
        self.documents += other.documents
        self.lines += other.lines
        self.problems += other.problems
        self.listed_problems = [*self.listed_problems, *other.listed_problems][:MOST_LISTED]
        self.overlaps |= other.overlaps
        self.overlapping += other.overlapping
        self.contaminated = [*self.contaminated, *other.contaminated][:MOST_LISTED]

    def save(self, directory: pathlib.Path) -> None:
        """Writes :data:`TALLY`."""
        content = vars(self) | {"overlaps": sorted(self.overlaps)}
        (directory / TALLY).write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def load(cls, directory: epath.PathLike) -> Tally:
        """Reads what :meth:`save` has written."""
        content = json.loads((epath.Path(directory) / TALLY).read_text(encoding="utf-8"))
        for name in ("documents", "lines", "overlapping"):
            content[name] = Counter(content[name])
        return cls(**content | {"overlaps": set(content["overlaps"])})


def is_made(directory: epath.PathLike) -> bool:
    """Whether a stage has made the directory of a part."""
    return is_whole(directory, last=TALLY)


def sum_tallies(directories: Sequence[epath.Path]) -> Tally:
    """Adds up the tallies of several directories, in their order."""
    total = Tally()
    for tally in each(Tally.load, directories):
        total.add(tally)
    return total
