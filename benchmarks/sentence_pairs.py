"""Pairs of sentences and texts of mixed length for benchmarks of sentence embeddings."""

import csv
import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.features import python_docs


class Pair(NamedTuple):
    """Two texts, and their similarity from 0 to 1 if it is known."""

    first: str
    second: str
    score: float | None


def read_stsb(path: Path) -> list[Pair]:
    """Returns the pairs of GLUE's file, with scores from 0 to 1."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [Pair(row[-3], row[-2], float(row[-1]) / 5) for row in rows]


def read_paragraphs(path: Path | None) -> list[list[str]]:
    """Returns the sentences of each paragraph."""
    if path is None:
        docs = python_docs(20_000)
        return [docs[at : at + 8] for at in range(0, len(docs), 8)]
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = (line.strip() for line in lines if line.strip() and not line.startswith("<"))
    return [re.split(r"(?<=[.!?]) (?=[A-Z])", line) for line in kept]


def neighbours(paragraphs: Sequence[Sequence[str]], count: int) -> list[Pair]:
    """Returns pairs of a sentence and one of the next sentences in its paragraph, nearest first."""
    found: list[Pair] = []
    for distance in itertools.count(1):
        at_distance = [
            Pair(first, second, None)
            for sentences in paragraphs
            for first, second in zip(sentences, sentences[distance:], strict=False)
        ]
        found += at_distance
        if len(found) >= count or not at_distance:
            return found[:count]
    raise AssertionError


def mixed_texts(
    pairs: Sequence[Pair], paragraphs: Sequence[Sequence[str]], count: int
) -> list[str]:
    """Returns equal parts of STS-B's sentences, other sentences and paragraphs, shuffled."""
    kinds = (
        [pair.first for pair in pairs],
        [sentence for sentences in paragraphs for sentence in sentences],
        [" ".join(sentences) for sentences in paragraphs if len(sentences) > 2],
    )
    draw = random.Random(0)
    chosen = [text for each in kinds for text in draw.sample(each, min(count // 3, len(each)))]
    draw.shuffle(chosen)
    return chosen


def write_table(path: Path, pairs: Sequence[Pair]) -> str:
    """Writes pairs as .tsv with the columns first, second and score."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerow(["first", "second", "score"])
        table.writerows([[*pair[:2], "" if pair.score is None else pair.score] for pair in pairs])
    return str(path)
