"""A slow reference implementation of SQuAD's answers and scores.

Scores follow the rules of evaluate-v1.1.py and evaluate-v2.0.py, which read a data file and a file
of predictions. Answers follow the rules of `run_squad.py` in google-research/bert.
"""

import functools
import math
import operator
import re
import string
from collections.abc import Callable, Sequence
from typing import Any


def bare(text: str) -> str:
    """Normalises an answer for comparisons."""
    letters = [character for character in text.lower() if character not in string.punctuation]
    runs = re.split(r"(\W)", "".join(letters))
    return " ".join("".join(" " if run in ("a", "an", "the") else run for run in runs).split())


def f1(gold: str, found: str) -> float:
    """Returns the word-overlap F1 of two texts. Repeated words count repeatedly."""
    ours, theirs = bare(found).split(), bare(gold).split()
    left, shared = list(theirs), 0
    for word in ours:
        if word in left:
            left.remove(word)
            shared += 1
    if shared == 0:
        return 0
    precision, recall = 1.0 * shared / len(ours), 1.0 * shared / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def questions_of(dataset: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns all questions of a file."""
    return [
        question
        for article in dataset["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def evaluate_1_1(dataset: dict[str, Any], predictions: dict[str, str]) -> dict[str, float]:
    """Returns the scores of version 1.1."""
    exact = score = total = 0
    for question in questions_of(dataset):
        total += 1
        golds, found = [a["text"] for a in question["answers"]], predictions[question["id"]]
        exact += max(bare(gold) == bare(found) for gold in golds)
        score += max(f1(gold, found) for gold in golds)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * score / total}


def evaluate_2_0(dataset: dict[str, Any], predictions: dict[str, str]) -> dict[str, float]:
    """Returns the scores of version 2.0, with the keys of `figures_2_0`."""
    exact, score = _raw_2_0(dataset, predictions)
    has = {question["id"]: bool(question["answers"]) for question in questions_of(dataset)}
    figures: dict[str, float] = {}
    for prefix, name, ids in (
        ("", "exact_match", list(has)),
        ("has_ans_", "exact", [id for id in has if has[id]]),
        ("no_ans_", "exact", [id for id in has if not has[id]]),
    ):
        if ids:
            figures[f"{prefix}{name}"] = 100.0 * sum(exact[id] for id in ids) / len(ids)
            figures[f"{prefix}f1"] = 100.0 * sum(score[id] for id in ids) / len(ids)
    return figures


def best_thresholds(
    dataset: dict[str, Any], texts: dict[str, str], odds: dict[str, float]
) -> dict[str, float]:
    """Returns the best thresholds of the script with `--na-prob-file`, by trying all of them."""
    figures: dict[str, float] = {}
    has = {question["id"]: bool(question["answers"]) for question in questions_of(dataset)}
    for name, scores in zip(("exact", "f1"), _raw_2_0(dataset, texts), strict=True):
        order = sorted(odds, key=lambda id: odds[id])
        gains = [scores[id] if has[id] else (-1 if texts[id] else 0) for id in order]
        none = sum(not value for value in has.values())
        sums = [functools.reduce(operator.add, gains[:n], none) for n in range(len(gains) + 1)]
        best = max(sums)
        at = sums.index(best)
        figures[f"best_{name}"] = 100.0 * best / len(scores)
        figures[f"best_{name}_thresh"] = odds[order[at - 1]] if at else 0.0
    return figures


def _raw_2_0(
    dataset: dict[str, Any], predictions: dict[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    exact: dict[str, float] = {}
    score: dict[str, float] = {}
    for question in questions_of(dataset):
        id, found = question["id"], predictions[question["id"]]
        golds = [a["text"] for a in question["answers"] if bare(a["text"])] or [""]
        exact[id] = max(int(bare(gold) == bare(found)) for gold in golds)
        score[id] = max(
            f1(gold, found) if bare(gold) and bare(found) else int(bare(gold) == bare(found))
            for gold in golds
        )
    return exact, score


def windows(pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each window of a context."""
    found, start = [], 0
    while True:
        end = min(start + room, pieces)
        found.append((start, end))
        if end == pieces:
            return found
        start += min(end - start, stride)


def most_context(spans: Sequence[tuple[int, int]], position: int) -> int:
    """Returns the index of the window with the most context around a piece."""
    best, best_score = -1, -math.inf
    for number, (start, end) in enumerate(spans):
        if start <= position < end:
            score = min(position - start, end - 1 - position) + 0.01 * (end - start)
            if score > best_score:
                best, best_score = number, score
    return best


def answer(
    rows: Sequence[Sequence[tuple[float, float]]],
    spans: Sequence[tuple[int, int]],
    first: int,
    text_of: Callable[[int, int], str],
    *,
    n_best: int,
    longest: int,
    version_2: bool,
) -> tuple[list[tuple[str, float, float]], float | None]:
    """Returns the n best (text, start logit, end logit), and the null score difference.

    The question must have a candidate span; `run_squad.py` predicts "empty" otherwise.
    """
    found: list[tuple[float, float, tuple[int, int] | None]] = []
    nulls = [(row[0][0] + row[0][1], *row[0]) for row in rows]
    for number, (row, (offset, end)) in enumerate(zip(rows, spans, strict=True)):
        ranked = [
            sorted(range(len(row)), key=lambda i: row[i][column], reverse=True)[:n_best]
            for column in (0, 1)
        ]
        for s in ranked[0]:
            for e in ranked[1]:
                in_context = first <= s < first + end - offset and first <= e < first + end - offset
                if not in_context or not 0 <= e - s < longest:
                    continue
                if most_context(spans, s - first + offset) == number:
                    shift = offset - first
                    found.append((row[s][0], row[e][1], (s + shift, e + shift)))
    null = min(nulls, key=lambda entry: entry[0])
    if version_2:
        found.append((null[1], null[2], None))
    found.sort(key=lambda entry: entry[0] + entry[1], reverse=True)
    nbest: list[tuple[str, float, float]] = []
    for start, end, span in found:
        text = text_of(*span) if span else ""
        if len(nbest) < n_best and text not in [known for known, *_ in nbest]:
            nbest.append((text, start, end))
    if not version_2:
        return nbest, None
    if "" not in [text for text, *_ in nbest]:
        nbest.append(("", null[1], null[2]))
    best = next(entry for entry in nbest if entry[0])
    return nbest, null[0] - best[1] - best[2]
