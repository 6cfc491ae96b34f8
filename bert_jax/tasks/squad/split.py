"""The rows of one SQuAD file, windows of their contexts, and records from their logits.

Memory holds the questions and a few integers for each window; pieces are encoded on request. The
rules of windows are those of google-research/bert `run_squad.py`: `convert_examples_to_features`
and `_check_is_max_context`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.tasks.family import Collector, Encoded, Record, content_hash
from bert_jax.tasks.squad.answers import (
    Answers,
    WindowCandidates,
    find_answers,
    find_candidates,
    to_record,
)
from bert_jax.tasks.squad.file import SquadQuestion, Version, find_answer
from bert_jax.tasks.squad.offsets import OffsetEncoder
from bert_jax.tasks.squad.scores import tune
from bert_jax.text.tokenizer import Tokenizer

SPECIAL_PIECES = 3  # [CLS] question [SEP] window [SEP]
_REMEMBERED = 64  # contexts and questions: a question's windows are often asked for in a row


def count_windows(pieces: np.ndarray, room: np.ndarray, *, stride: int) -> np.ndarray:
    """Returns how many windows contexts are cut into: 500 pieces, room 300, stride 128 → 3.

    An empty context has one window, so that each question is asked (google-research/bert drops it).
    Of the pieces of each context, at least one has room in a window; the stride is pieces from the
    start of a window to that of the next. All int [n]; returns int32 [n].
    """
    over = np.maximum(pieces - room, 0)
    return (1 + -(-over // np.minimum(room, stride))).astype(np.int32)


class ContextWindows(NamedTuple):
    """The windows of one context, numbered from 0."""

    pieces: int  # of the context
    room: int  # pieces that fit in a window
    stride: int  # as for `count_windows`

    def bounds(self, window: int) -> tuple[int, int]:
        """Returns the first piece of a window and one behind its last."""
        start = window * min(self.room, self.stride)
        return start, min(start + self.room, self.pieces)

    def most_context(self, window: int) -> np.ndarray:
        """Returns for each piece of a window whether no other window sees more around it.

        What a window sees around a piece is the lesser of the pieces before and behind it, plus a
        hundredth of the window's length; of equals the first counts. Each piece of a context has
        just one such window. Returns bool [pieces in the window].
        """
        pieces, room, stride = self
        start, end = self.bounds(window)
        step = min(room, stride)
        last = int(count_windows(np.array(pieces), np.array(room), stride=stride)) - 1
        reach = (room - 1) // step  # windows further off share no piece with this one
        others = np.arange(max(window - reach, 0), min(window + reach, last) + 1)
        starts = (others * step)[:, None]
        ends = np.minimum(starts + room, pieces)
        position = np.arange(start, end)[None]
        seen = np.minimum(position - starts, ends - 1 - position) + 0.01 * (ends - starts)
        inside = (position >= starts) & (position < ends)
        best = others[np.argmax(np.where(inside, seen, -np.inf), axis=0)]
        return best == window


class SquadOptions(NamedTuple):
    """How rows are cut and answers chosen."""

    version: Version
    max_length: int  # pieces of a row, special ones included
    stride: int  # pieces from window to window
    max_query_length: int
    max_answer_length: int
    n_best: int


class SquadSplit:
    """The windows of a file's questions; satisfies `Split`."""

    def __init__(
        self,
        questions: Sequence[SquadQuestion],
        tokenizer: Tokenizer,
        options: SquadOptions,
        *,
        role: str,
        threshold: float | None,
    ) -> None:
        """Counts the pieces of everything once.

        Of questions to train on (role "train"), those whose answers are not in their context are
        skipped, and of several answers the first that is there is the target. Role "dev" chooses
        the threshold on the records; `threshold` is None where none is known.
        """
        self._options, self._role, self._threshold = options, role, threshold
        self._special = tokenizer.special
        self._pieces = functools.lru_cache(_REMEMBERED)(OffsetEncoder(tokenizer).encode)
        self._query = functools.lru_cache(_REMEMBERED)(tokenizer.encode)
        self.cut_questions = 0
        kept: list[SquadQuestion] = []
        sizes: list[tuple[int, int, int, int]] = []  # context, question, first and last of answer
        for question in questions:
            target = self._target(question) if role == "train" else (-1, -1)
            if target is None:
                continue
            query = len(self._query(question.question))
            self.cut_questions += query > options.max_query_length
            query = min(query, options.max_query_length)
            kept.append(question)
            pieces = len(self._pieces(question.context).ids)
            sizes.append((pieces, query, target[0], target[1]))
        self.skipped = len(questions) - len(kept)
        self._questions = tuple(kept)
        self.examples, self.fingerprint = len(kept), content_hash(kept)
        table = np.array(sizes, np.int32).reshape(-1, 4)
        self._context_pieces, query_pieces, self._target_first, self._target_last = table.T
        self._rooms = (options.max_length - SPECIAL_PIECES - query_pieces).astype(np.int32)
        counts = count_windows(self._context_pieces, self._rooms, stride=options.stride)
        self._question_of = np.repeat(np.arange(len(kept), dtype=np.int32), counts)
        self._first_row = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.arange(len(self._question_of))
        self._window_of = (rows - self._first_row[self._question_of]).astype(np.int32)
        rooms = self._rooms[self._question_of]
        starts = self._window_of * np.minimum(rooms, options.stride)
        left = self._context_pieces[self._question_of] - starts
        lengths = options.max_length - rooms + np.minimum(left, rooms)
        self.lengths: np.ndarray = lengths.astype(np.int32)

    def row(self, index: int) -> Encoded:
        """Returns one window: `[CLS] question [SEP] window [SEP]`.

        To train on, also the first and last piece of the answer in the row, as "start" and "end",
        both 0 where the window does not hold all of it.
        """
        number = int(self._question_of[index])
        question = self._questions[number]
        start, end = self._windows(number).bounds(int(self._window_of[index]))
        query = self._query(question.question)[: self._options.max_query_length]
        context = self._pieces(question.context).ids[start:end]
        ids = [self._special.cls, *query, self._special.sep, *context, self._special.sep]
        first = len(query) + 2
        if self._role != "train":
            return Encoded((ids,), (first,), {})
        answer = int(self._target_first[number]), int(self._target_last[number])
        inside = start <= answer[0] and answer[1] < end
        targets = [piece - start + first if inside else 0 for piece in answer]
        return Encoded((ids,), (first,), {"start": targets[0], "end": targets[1]})

    def question(self, index: int) -> SquadQuestion:
        """Returns the question that a window belongs to."""
        return self._questions[self._question_of[index]]

    def collect(self) -> Collector:
        """Returns a collector of each window's candidates."""
        return Collector(len(self.lengths), reduce=self._candidates, finish=self._records)

    def _candidates(self, index: int, logits: np.ndarray) -> WindowCandidates:
        """Returns the spans that a window proposes; logits are [pieces, 2], of start and end."""
        if logits.shape != (self.lengths[index], 2):
            raise ValueError(f"row {index}: logits {logits.shape}, not ({self.lengths[index]}, 2)")
        windows, window = self._windows(self._question_of[index]), int(self._window_of[index])
        return find_candidates(
            logits,
            windows.most_context(window),
            first=self._options.max_length - 1 - windows.room,
            offset=windows.bounds(window)[0],
            n_best=self._options.n_best,
            max_answer_length=self._options.max_answer_length,
        )

    def _records(self, windows: Sequence[WindowCandidates]) -> list[Record]:
        found = [
            self._answers(question, windows[self._first_row[number] : self._first_row[number + 1]])
            for number, question in enumerate(self._questions)
        ]
        threshold = self._threshold or 0.0  # 0: as in google-research/bert
        if self._options.version == "2.0" and self._role == "dev" and self._threshold is None:
            threshold = tune(self._with_questions(found, threshold=0.0))[1].threshold
        return self._with_questions(found, threshold=threshold)

    def _answers(self, question: SquadQuestion, windows: Sequence[WindowCandidates]) -> Answers:
        def text_of(first: int, last: int) -> tuple[str, int]:
            start, end = int(pieces.starts[first]), int(pieces.ends[last])
            return question.context[start:end], start

        pieces = self._pieces(question.context)
        with_null = self._options.version == "2.0"
        return find_answers(windows, text_of, n_best=self._options.n_best, with_null=with_null)

    def _with_questions(self, found: Sequence[Answers], *, threshold: float) -> list[Record]:
        return [
            {**_question_record(question), **to_record(answers, threshold=threshold)}
            for question, answers in zip(self._questions, found, strict=True)
        ]

    def _target(self, question: SquadQuestion) -> tuple[int, int] | None:
        """First and last piece of the answer, (-1, -1) for none, None if it is not there."""
        for answer in question.answers or ():
            span = find_answer(question.context, answer)
            target = span and self._pieces(question.context).touched(*span)
            if target:
                return target
        return None if question.answers else (-1, -1)

    def _windows(self, question: int) -> ContextWindows:
        pieces, room = self._context_pieces[question], self._rooms[question]
        return ContextWindows(int(pieces), int(room), self._options.stride)


def _question_record(question: SquadQuestion) -> dict[str, Any]:
    answers = [{"text": text, "start": start} for text, start in question.answers or ()]
    return {
        "id": question.id,
        "title": question.title,
        "question": question.question,
        "context": question.context,
        "answers": answers,
        "label": None if question.answers is None else answers,
    }
