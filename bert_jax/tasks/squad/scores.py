"""EM and F1 of SQuAD, bit-identical to the official scripts.

Source: evaluate-v1.1.py and evaluate-v2.0.py (rajpurkar.github.io/SQuAD-explorer). The scripts
differ in how they treat answers that are empty after normalisation, and in the order of summation.
"""

import collections
import re
import string
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


class Tuned(NamedTuple):
    """The best threshold for the null score difference, and its score."""

    best: float  # score in percent
    threshold: float  # a larger difference predicts "no answer"


def normalize_answer(text: str) -> str:
    """Normalises an answer for comparisons: `"The  U.S. Army"` → `"us army"`.

    Lower-cases, then removes ASCII punctuation, articles and repeated spaces.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def overlap_f1(answer: str, prediction: str) -> float:
    """Returns the word-overlap F1 of two texts, 0 to 1: `"the blue car", "car"` → 2/3.

    If a text has no words, the F1 is 0.
    """
    words, found = normalize_answer(answer).split(), normalize_answer(prediction).split()
    same = sum((collections.Counter(words) & collections.Counter(found)).values())
    if not same:
        return 0  # int, as in the script: from Python 3.12 on, `sum` rounds by type
    precision, recall = same / len(found), same / len(words)
    return 2 * precision * recall / (precision + recall)


def score_1_1(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """Returns the best EM and F1, 0 to 1, of a prediction over at least one answer."""
    found = normalize_answer(prediction)
    exact = max(float(normalize_answer(answer) == found) for answer in answers)
    return exact, max(overlap_f1(answer, prediction) for answer in answers)


def score_2_0(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """Returns the best EM and F1, 0 to 1, of a prediction over any number of answers.

    Ignores answers that are empty after normalisation. If no answer is left, the correct prediction
    is one that is empty after normalisation ("" means "no answer").
    """
    answers = [answer for answer in answers if normalize_answer(answer)]
    if not answers:
        right = int(not normalize_answer(prediction))  # int, as in the script
        return right, right
    return score_1_1(answers, prediction)


def best_threshold(
    scores: Sequence[float],
    differences: Sequence[float],
    *,
    answerable: Sequence[bool],
    answered: Sequence[bool],
) -> Tuned:
    """Finds the threshold for the null score difference that maximises the mean score.

    Like `find_best_thresh` in the script, starts with "no answer" to every question and adds
    answers by ascending difference. If "no answer" to every question is best, the script returns 0,
    which assumes probabilities. Our differences may be negative, so this function returns a number
    below all of them.

    Args:
        scores: EM or F1 of each question's best non-empty answer, 0 to 1.
        differences: null score minus the score of that answer.
        answerable: whether the question has an answer.
        answered: whether the question has a non-empty answer among the n best.
    """
    order = np.argsort(np.asarray(differences, np.float64), kind="stable").tolist()
    current: float = sum(not has for has in answerable)
    best, threshold = current, float(np.nextafter(differences[order[0]], -np.inf))
    for index in order:
        current += scores[index] if answerable[index] else -float(answered[index])
        if current > best:
            best, threshold = current, differences[index]
    return Tuned(100.0 * best / len(scores), threshold)


def figures_1_1(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns EM and F1 in percent, as evaluate-v1.1.py."""
    exact = f1 = 0.0
    # This is the script's loop. From Python 3.12 on, `sum` rounds differently.
    for record in records:
        one_exact, one_f1 = score_1_1(_texts(record), record["prediction"])
        exact, f1 = exact + one_exact, f1 + one_f1
    return {"exact_match": 100.0 * exact / len(records), "f1": 100.0 * f1 / len(records)}


def figures_2_0(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the scores of evaluate-v2.0.py in percent, and "null_threshold".

    "exact_match" and "f1" are scores of the predictions. The prefixes "has_ans_" and "no_ans_" mark
    scores of questions with and without answers. "best_exact" and "best_f1" are the scores at the
    best thresholds for the null score difference. "null_threshold" is the best threshold for F1.
    """
    scores = [score_2_0(_texts(record), record["prediction"]) for record in records]
    answerable = [bool(record["label"]) for record in records]
    figures = _means(scores, "exact_match", "f1")
    for name, wanted in (("has_ans", True), ("no_ans", False)):
        part = [s for s, has in zip(scores, answerable, strict=True) if has is wanted]
        if part:
            figures |= _means(part, f"{name}_exact", f"{name}_f1")
    exact, f1 = tune(records)
    return figures | {"best_exact": exact.best, "best_f1": f1.best, "null_threshold": f1.threshold}


def tune(records: Sequence[dict[str, Any]]) -> tuple[Tuned, Tuned]:
    """Returns the best threshold for EM and for F1. Does not use the records' predictions."""
    # Best non-empty answer of each record.
    texts = [next((n["text"] for n in record["nbest"] if n["text"]), "") for record in records]
    pairs = [score_2_0(_texts(record), text) for record, text in zip(records, texts, strict=True)]
    differences = [record["null_score_difference"] for record in records]
    answerable = [bool(record["label"]) for record in records]
    answered = [bool(text) for text in texts]
    exact, f1 = (
        best_threshold(scores, differences, answerable=answerable, answered=answered)
        for scores in zip(*pairs, strict=True)
    )
    return exact, f1


def _texts(record: dict[str, Any]) -> list[str]:
    return [answer["text"] for answer in record["label"]]


def _means(scores: Sequence[tuple[float, float]], *names: str) -> dict[str, float]:
    columns = zip(names, zip(*scores, strict=True), strict=True)
    return {name: 100.0 * sum(column) / len(scores) for name, column in columns}
