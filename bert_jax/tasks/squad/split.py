"""The rows of one SQuAD file, and records from their logits.

Memory holds the questions and a few integers for each window; pieces are encoded on request.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.tasks.collector import Collector
from bert_jax.tasks.content import content_hash
from bert_jax.tasks.family import Encoded, Record
from bert_jax.tasks.squad.answers import (
    Answers,
    WindowCandidates,
    find_answers,
    find_candidates,
    to_record,
)
from bert_jax.tasks.squad.file import SquadQuestion, Version
from bert_jax.tasks.squad.offsets import OffsetEncoder
from bert_jax.tasks.squad.scores import tune
from bert_jax.tasks.squad.targets import answer_pieces, find_answer
from bert_jax.tasks.squad.windows import count_windows, has_most_context, window_bounds
from bert_jax.text.tokenizer import Tokenizer

SPECIAL_PIECES = 3  # [CLS] question [SEP] window [SEP]
_REMEMBERED = 64  # contexts and questions: a question's windows are often asked for in a row


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

        Args:
            questions: of the file. To train on, those whose answers are not in their context are
              skipped; of several answers the first that is there is the target.
            tokenizer: the model's.
            options: how to cut windows and to choose answers.
            role: "train" for rows with targets; "dev" to choose the threshold on the records.
            threshold: on the null score difference; None where none is known.
        """
        self._options, self._role, self._threshold = options, role, threshold
        self._tokenizer = tokenizer
        encode = OffsetEncoder(tokenizer).encode
        self._pieces = functools.lru_cache(_REMEMBERED)(encode)
        self._query = functools.lru_cache(_REMEMBERED)(self._encode_query)
        self.cut_questions = 0
        kept: list[SquadQuestion] = []
        sizes: list[tuple[int, int, int, int]] = []  # context, question, first and last of answer
        for question in questions:
            target = self._target(question) if role == "train" else (-1, -1)
            if target is None:
                continue
            query = len(tokenizer.encode(question.question))
            self.cut_questions += query > options.max_query_length
            query = min(query, options.max_query_length)
            kept.append(question)
            pieces = len(self._pieces(question.context).ids)
            sizes.append((pieces, query, target[0], target[1]))
        self.skipped = len(questions) - len(kept)
        self._questions = tuple(kept)
        self.fingerprint = content_hash(kept)
        table = np.array(sizes, np.int32).reshape(-1, 4)
        self._context_pieces, query_pieces, self._target_first, self._target_last = table.T
        self._rooms = (options.max_length - SPECIAL_PIECES - query_pieces).astype(np.int32)
        counts = count_windows(self._context_pieces, self._rooms, stride=options.stride)
        self._question_of = np.repeat(np.arange(len(kept), dtype=np.int32), counts)
        self._first_row = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.arange(len(self._question_of))
        self._window_of = (rows - self._first_row[self._question_of]).astype(np.int32)
        self.lengths: np.ndarray = self._row_lengths()

    @property
    def examples(self) -> int:
        """The number of questions."""
        return len(self._questions)

    def row(self, index: int) -> Encoded:
        """Returns one window: `[CLS] question [SEP] window [SEP]`.

        Args:
            index: of the window.

        Returns:
            Its pieces; to train on, also the first and last piece of the answer in the row, as
            "start" and "end", both 0 where the window does not hold all of it.
        """
        number = int(self._question_of[index])
        question = self._questions[number]
        start, end = self._bounds(index)
        query = self._query(question.question)
        context = self._pieces(question.context).ids[start:end]
        special = self._tokenizer.special
        ids = [special.cls, *query, special.sep, *context, special.sep]
        first = len(query) + 2
        if self._role != "train":
            return Encoded((ids,), (first,), {})
        answer = int(self._target_first[number]), int(self._target_last[number])
        inside = start <= answer[0] and answer[1] < end
        targets = [piece - start + first if inside else 0 for piece in answer]
        return Encoded((ids,), (first,), {"start": targets[0], "end": targets[1]})

    def question(self, index: int) -> SquadQuestion:
        """Returns the question that a window belongs to.

        Args:
            index: of the window.
        """
        return self._questions[self._question_of[index]]

    def collect(self) -> Collector:
        """Returns a collector of each window's candidates."""
        return Collector(len(self.lengths), reduce=self._candidates, finish=self._records)

    def _candidates(self, index: int, logits: np.ndarray) -> WindowCandidates:
        """Returns the spans that a window proposes; logits are [pieces, 2], of start and end."""
        if logits.shape != (self.lengths[index], 2):
            raise ValueError(f"row {index}: logits {logits.shape}, not ({self.lengths[index]}, 2)")
        number = int(self._question_of[index])
        room = int(self._rooms[number])
        most_context = has_most_context(
            int(self._window_of[index]),
            pieces=int(self._context_pieces[number]),
            room=room,
            stride=self._options.stride,
        )
        return find_candidates(
            logits,
            most_context,
            first=self._options.max_length - 1 - room,
            offset=self._bounds(index)[0],
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

    def _encode_query(self, question: str) -> list[int]:
        return self._tokenizer.encode(question)[: self._options.max_query_length]

    def _target(self, question: SquadQuestion) -> tuple[int, int] | None:
        """First and last piece of the answer, (-1, -1) for none, None if it is not there."""
        for answer in question.answers or ():
            span = find_answer(question.context, answer)
            target = span and answer_pieces(self._pieces(question.context), *span)
            if target:
                return target
        return None if question.answers else (-1, -1)

    def _bounds(self, index: int) -> tuple[int, int]:
        number = self._question_of[index]
        return window_bounds(
            int(self._window_of[index]),
            pieces=int(self._context_pieces[number]),
            room=int(self._rooms[number]),
            stride=self._options.stride,
        )

    def _row_lengths(self) -> np.ndarray:
        rooms = self._rooms[self._question_of]
        starts = self._window_of * np.minimum(rooms, self._options.stride)
        left = self._context_pieces[self._question_of] - starts
        return (self._options.max_length - rooms + np.minimum(left, rooms)).astype(np.int32)


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
