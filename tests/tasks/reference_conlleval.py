"""Transcription of conlleval (Erik Tjong Kim Sang, Sabine Buchholz; CoNLL-2000 to 2003).

Like the Perl script, applies two predicates to neighbouring tags and counts lines, without building
spans. Omits the rules for "[" and "]". Rules marked "later", for S and for E before B, come from
later versions.
"""

from collections.abc import Sequence
from typing import NamedTuple

_STARTS = {
    *(("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")),
    *(("E", "E"), ("E", "I"), ("O", "E")),
    *(("E", "B"), ("S", "B"), ("S", "E"), ("S", "I")),  # later
    *((before, "S") for before in "BIESO"),  # later
}
_ENDS = {
    *(("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")),
    *(("E", "E"), ("E", "I"), ("E", "O")),
    *(("E", "B"), ("E", "S"), ("B", "S"), ("I", "S")),  # later
    *(("S", after) for after in "BIESO"),  # later
}


class Counts(NamedTuple):
    """Numbers of chunks and tokens."""

    correct: int
    gold: int
    guessed: int
    correct_tags: int
    tokens: int

    @property
    def precision(self) -> float:
        return self.correct / self.guessed if self.guessed else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    @property
    def accuracy(self) -> float:
        return self.correct_tags / self.tokens


def start_of_chunk(before: tuple[str, str], here: tuple[str, str]) -> bool:
    start = (before[0], here[0]) in _STARTS
    return start or (here[0] != "O" and before[1] != here[1])


def end_of_chunk(before: tuple[str, str], here: tuple[str, str]) -> bool:
    end = (before[0], here[0]) in _ENDS
    return end or (before[0] != "O" and before[1] != here[1])


def split_tag(label: str) -> tuple[str, str]:
    if "-" in label:
        at = label.index("-")
        return label[:at], label[at + 1 :]
    return label, ""


def conlleval(
    gold: Sequence[Sequence[str]], guessed: Sequence[Sequence[str]], *, only: str | None = None
) -> Counts:
    """Counts chunks; `only` selects one type."""
    correct = found_gold = found_guessed = correct_tags = tokens = 0
    inside = False  # whether the open chunk is correct so far
    inside_type = ""
    last_g = last_p = ("O", "")
    for sentence_g, sentence_p in zip(gold, guessed, strict=True):
        lines = [*zip(sentence_g, sentence_p, strict=True), ("O", "O")]
        for number, (label_g, label_p) in enumerate(lines):
            g, p = split_tag(label_g), split_tag(label_p)
            if inside:
                end_g, end_p = end_of_chunk(last_g, g), end_of_chunk(last_p, p)
                if end_g and end_p and last_g[1] == last_p[1]:
                    inside = False
                    correct += only is None or inside_type == only
                elif end_g != end_p or g[1] != p[1]:
                    inside = False
            start_g, start_p = start_of_chunk(last_g, g), start_of_chunk(last_p, p)
            if start_g and start_p and g[1] == p[1]:
                inside, inside_type = True, g[1]
            found_gold += start_g and (only is None or g[1] == only)
            found_guessed += start_p and (only is None or p[1] == only)
            if number < len(lines) - 1:
                correct_tags += g == p
                tokens += 1
            last_g, last_p = g, p
    return Counts(correct, found_gold, found_guessed, correct_tags, tokens)
