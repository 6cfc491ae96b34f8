"""Computes answers from logits: candidate spans per window, n best texts, null score.

Source: `write_predictions` in `run_squad.py` of google-research/bert. One difference: if no pair of
the best starts and ends is a valid span, `run_squad.py` predicts "empty", and this module predicts
the best valid span.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

# Tolerance for comparing null score differences (log-odds). The tuned threshold equals the
# difference of one question, and rounding differs between batch shapes.
ROUNDING: Final = 1e-4


class WindowCandidates(NamedTuple):
    """Candidate spans of one window, in the order of google-research/bert."""

    starts: np.ndarray  # int32 [spans], index in the context of each first piece
    ends: np.ndarray  # int32 [spans], index in the context of each last piece
    logits: np.ndarray  # float32 [spans, 2], start logit and end logit
    spare: bool  # whether the best starts and ends form no valid span
    null: np.ndarray  # float32 [2], start logit and end logit of [CLS]


class RankedAnswer(NamedTuple):
    """One of the n best answers."""

    text: str  # "" for no answer
    start: int | None  # character offset in the context; None for no answer
    logits: tuple[float, float]

    @property
    def score(self) -> float:
        """Sum of the logits, which ranks answers."""
        return sum(self.logits)


class Answers(NamedTuple):
    """The n best answers to one question."""

    nbest: list[RankedAnswer]
    null_score_difference: float | None  # None in version 1.1


def find_candidates(
    logits: np.ndarray,
    most_context: np.ndarray,
    *,
    first: int,
    offset: int,
    n_best: int,
    max_answer_length: int,
) -> WindowCandidates:
    """Combines the best starts and the best ends of a window into valid spans.

    A valid span is inside the context, has at most `max_answer_length` pieces, and begins at a
    piece that has its maximum context in this window.

    Args:
        logits: start and end logits, float32 [pieces of the row, 2].
        most_context: whether each context piece may be a start in this window, bool [context
          pieces in the window].
        first: index of the first context piece in the row.
        offset: index of that piece in the whole context.
        n_best: number of starts, and of ends, to combine.
        max_answer_length: maximum number of pieces in an answer.
    """
    pieces = len(logits)
    may_end = np.zeros(pieces, np.bool_)
    may_end[first : first + len(most_context)] = True
    may_start = np.zeros(pieces, np.bool_)
    may_start[first : first + len(most_context)] = most_context
    # Indices of the largest logits. The sort is stable, so equal logits keep their order.
    starts, ends = np.argsort(-logits, axis=0, kind="stable")[:n_best].T
    length = ends[None] - starts[:, None]
    allowed = (length >= 0) & (length < max_answer_length)
    rows, columns = np.nonzero(allowed & may_start[starts][:, None] & may_end[ends][None])
    starts, ends, spare = starts[rows], ends[columns], False
    if not len(starts):
        starts, ends = _best_span(logits, may_start, may_end, max_answer_length)
        spare = True
    chosen = np.stack([logits[starts, 0], logits[ends, 1]], axis=1).astype(np.float32)
    starts, ends = ((at + offset - first).astype(np.int32) for at in (starts, ends))
    return WindowCandidates(starts, ends, chosen, spare, logits[0].astype(np.float32))


def find_answers(
    windows: Sequence[WindowCandidates],
    text_of: Callable[[int, int], tuple[str, int]],
    *,
    n_best: int,
    with_null: bool,
) -> Answers:
    """Merges the candidates of a question's windows into its `n_best` answers, best first.

    Each text occurs once. `text_of` maps the first and the last piece of a span to its text and
    character offset. If `with_null` is set (version 2.0), the answers include "no answer" and the
    best text. If there is no span, the only answer is "no answer", and the null score difference is
    the null score.
    """
    spans = _spans(windows)
    scores = [tuple(window.null.tolist()) for window in windows]
    null = min((RankedAnswer("", None, logits) for logits in scores), key=lambda e: e.score)
    best: RankedAnswer | None = None
    nbest: list[RankedAnswer] = []
    seen: set[str] = set()
    null_waits = with_null
    for start, end, logits in spans:
        # As in google-research/bert, a text precedes a null answer with an equal score.
        if null_waits and null.score > sum(logits) and len(nbest) < n_best:
            nbest.append(null)
            null_waits = False
        if len(nbest) >= n_best and best is not None:
            break
        text, place = text_of(start, end)
        key = " ".join(text.split())
        if key in seen:
            continue
        seen.add(key)
        nbest.append(RankedAnswer(text, place, logits))
        best = best or nbest[-1]
    if null_waits or not nbest:
        nbest.append(null)
    if not with_null:
        return Answers(nbest, None)
    return Answers(nbest, null.score - (best.score if best else 0.0))


def to_record(answers: Answers, *, threshold: float) -> dict[str, Any]:
    """Returns the fields of a record: prediction, start, score, nbest, null_score_difference.

    If the null score difference exceeds `threshold` by more than `ROUNDING`, the prediction is "".
    In version 1.1, there is no null score difference.
    """
    nbest, difference = answers
    chosen = nbest[0]
    if difference is not None:
        text = next((entry for entry in nbest if entry.text), None)
        none = next(entry for entry in nbest if not entry.text)
        chosen = none if text is None or difference > threshold + ROUNDING else text
    scores = np.array([entry.score for entry in nbest])
    shares = np.exp(scores - scores.max())
    ranked = [
        {"text": text, "probability": share, "start_logit": start, "end_logit": end}
        for (text, _, (start, end)), share in zip(
            nbest, (shares / shares.sum()).tolist(), strict=True
        )
    ]
    return {
        "prediction": chosen.text,
        "start": chosen.start,
        "score": chosen.score,
        **({} if difference is None else {"null_score_difference": difference}),
        "nbest": ranked,
    }


def _best_span(
    logits: np.ndarray, may_start: np.ndarray, may_end: np.ndarray, max_answer_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best valid span, as arrays of size 1; of size 0 if there is none."""
    ends = np.where(may_end, logits[:, 1], -np.inf)
    padded = np.concatenate([ends, np.full(max_answer_length - 1, -np.inf)])
    reached = np.lib.stride_tricks.sliding_window_view(padded, max_answer_length)
    score = np.where(may_start, logits[:, 0], -np.inf)[:, None] + reached
    start, length = np.unravel_index(np.argmax(score), score.shape)
    if not np.isfinite(score[start, length]):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.array([start]), np.array([start + length])


def _spans(windows: Sequence[WindowCandidates]) -> Iterator[tuple[int, int, tuple[float, float]]]:
    """Yields the candidates of all windows, best first: (first piece, last piece, logits)."""
    kept = [window for window in windows if not window.spare] or list(windows)
    logits = np.concatenate([window.logits for window in kept]).astype(np.float64)
    starts = np.concatenate([window.starts for window in kept])
    ends = np.concatenate([window.ends for window in kept])
    for index in np.argsort(-logits.sum(axis=1), kind="stable").tolist():
        yield int(starts[index]), int(ends[index]), tuple(logits[index].tolist())
