"""The rows of one SQuAD file and what becomes of their logits.

Kept in memory are the questions, and a few integers for each window; pieces are made when a row is
asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.tasks.family import Encoded, Record
from bert_jax.tasks.squad.answers import (
    Answers,
    Candidates,
    find_answers,
    find_candidates,
    to_record,
)
from bert_jax.tasks.squad.file import Answer, Question, Version
from bert_jax.tasks.squad.offsets import OffsetEncoder, Pieces
from bert_jax.tasks.squad.scores import tune
from bert_jax.tasks.squad.section import SquadSection
from bert_jax.tasks.squad.windows import count_windows, has_most_context, window_bounds
from bert_jax.text.tokenizer import Tokenizer

SPECIAL_PIECES = 3  # [CLS] question [SEP] window [SEP]
_REMEMBERED = 64  # contexts and questions: a question's windows are often asked for in a row


def find_answer(context: str, answer: Answer) -> tuple[int, int] | None:
    """Returns where an answer stands: first character and one behind the last.

    It is where the file says, or else within the words that the file's place touches, white space
    not counted (`run_squad.py`, `read_squad_examples`); never elsewhere, even where the text
    occurs.

    Args:
        context: the paragraph.
        answer: with the place the file names.

    Returns:
        None if it is not there.
    """
    start, end = answer.start, answer.start + len(answer.text)
    words = answer.text.split()
    if not words or start < 0 or end > len(context):
        return None
    if context[start:end] == answer.text:
        start += len(answer.text) - len(answer.text.lstrip())
        return start, start + len(answer.text.strip())
    while start and context[start].isspace():
        start -= 1
    while start and not context[start - 1].isspace():
        start -= 1
    while end < len(context) and not context[end - 1].isspace() and not context[end].isspace():
        end += 1
    found = re.compile(r"\s+".join(map(re.escape, words))).search(context, start, end)
    return found.span() if found else None


def answer_pieces(pieces: Pieces, start: int, end: int) -> tuple[int, int] | None:
    """Returns the first and last of the pieces that characters `start` to `end` touch.

    Args:
        pieces: of the context.
        start: first character.
        end: one behind the last.

    Returns:
        None if no piece stands there, as for characters that the tokenizer drops.
    """
    first = int(np.searchsorted(pieces.ends, start, side="right"))
    last = int(np.searchsorted(pieces.starts, end, side="left")) - 1
    return (first, last) if first <= last else None


class SquadSplit:
    """The windows of a file's questions; satisfies `Split`."""

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Tokenizer,
        section: SquadSection,
        *,
        max_length: int,
        version: Version,
        role: str,
        threshold: float | None,
    ) -> None:
        """Counts the pieces of everything once.

        Args:
            questions: of the file. Of those to train on, the ones whose answers are not in their
              context are left out; of several answers the first that is there is the target.
            tokenizer: the model's.
            section: how to cut windows and how to choose answers.
            max_length: pieces in a row, special ones included.
            version: whether "no answer" is one.
            role: "train" for rows with targets; "dev" to choose the threshold on the records.
            threshold: on the null score difference; None where none is known.
        """
        self._section, self._version, self._role = section, version, role
        self._max_length, self._threshold = max_length, threshold
        self._tokenizer = tokenizer
        encode = OffsetEncoder(tokenizer).encode
        self._pieces = functools.lru_cache(_REMEMBERED)(encode)
        self._query = functools.lru_cache(_REMEMBERED)(self._encode_query)
        self.cut_questions = 0
        kept: list[Question] = []
        sizes: list[tuple[int, int, int, int]] = []  # context, question, first and last of answer
        for question in questions:
            target = self._target(question) if role == "train" else (-1, -1)
            if target is None:
                continue
            query = len(tokenizer.encode(question.question))
            self.cut_questions += query > section.max_query_length
            query = min(query, section.max_query_length)
            kept.append(question)
            pieces = len(self._pieces(question.context).ids)
            sizes.append((pieces, query, target[0], target[1]))
        self.skipped = len(questions) - len(kept)
        self._questions = tuple(kept)
        table = np.array(sizes, np.int32).reshape(-1, 4)
        self._context_pieces, query_pieces, self._target_first, self._target_last = table.T
        self._rooms = (max_length - SPECIAL_PIECES - query_pieces).astype(np.int32)
        counts = count_windows(self._context_pieces, self._rooms, stride=section.stride)
        self._question_of = np.repeat(np.arange(len(kept), dtype=np.int32), counts)
        self._first_row = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.arange(len(self._question_of))
        self._window_of = (rows - self._first_row[self._question_of]).astype(np.int32)
        self.lengths: np.ndarray = self._row_lengths()

    @property
    def examples(self) -> int:
        """How many questions there are."""
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

    def question(self, index: int) -> Question:
        """Returns the question that a window belongs to.

        Args:
            index: of the window.
        """
        return self._questions[self._question_of[index]]

    def collect(self) -> SquadCollector:
        """Returns what gathers this split's predictions."""
        return SquadCollector(self)

    def candidates(self, index: int, logits: np.ndarray) -> Candidates:
        """Returns the spans that a window proposes.

        Args:
            index: of the window.
            logits: of start and end, float32 [pieces, 2].

        Raises:
            ValueError: not as many pieces as the row has.
        """
        if logits.shape != (self.lengths[index], 2):
            raise ValueError(f"row {index}: logits {logits.shape}, not ({self.lengths[index]}, 2)")
        number = int(self._question_of[index])
        room = int(self._rooms[number])
        most_context = has_most_context(
            int(self._window_of[index]),
            pieces=int(self._context_pieces[number]),
            room=room,
            stride=self._section.stride,
        )
        return find_candidates(
            logits,
            most_context,
            first=self._max_length - 1 - room,
            offset=self._bounds(index)[0],
            n_best=self._section.n_best,
            max_answer_length=self._section.max_answer_length,
        )

    def records(self, windows: Sequence[Candidates]) -> list[Record]:
        """Returns a record for each question.

        Args:
            windows: what each row proposes.
        """
        found = [
            self._answers(question, windows[self._first_row[number] : self._first_row[number + 1]])
            for number, question in enumerate(self._questions)
        ]
        threshold = self._threshold or 0.0  # 0: the release's
        if self._version == "2.0" and self._role == "dev" and self._threshold is None:
            threshold = tune(self._with_questions(found, threshold=0.0))[1].threshold
        return self._with_questions(found, threshold=threshold)

    def _answers(self, question: Question, windows: Sequence[Candidates]) -> Answers:
        def text_of(first: int, last: int) -> tuple[str, int]:
            start, end = int(pieces.starts[first]), int(pieces.ends[last])
            return question.context[start:end], start

        pieces = self._pieces(question.context)
        with_null = self._version == "2.0"
        return find_answers(windows, text_of, n_best=self._section.n_best, with_null=with_null)

    def _with_questions(self, found: Sequence[Answers], *, threshold: float) -> list[Record]:
        return [
            {**_question_record(question), **to_record(answers, threshold=threshold)}
            for question, answers in zip(self._questions, found, strict=True)
        ]

    def _encode_query(self, question: str) -> list[int]:
        return self._tokenizer.encode(question)[: self._section.max_query_length]

    def _target(self, question: Question) -> tuple[int, int] | None:
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
            stride=self._section.stride,
        )

    def _row_lengths(self) -> np.ndarray:
        rooms = self._rooms[self._question_of]
        starts = self._window_of * np.minimum(rooms, self._section.stride)
        left = self._context_pieces[self._question_of] - starts
        return (self._max_length - rooms + np.minimum(left, rooms)).astype(np.int32)


class SquadCollector:
    """Keeps each window's candidates until all are there; satisfies `Collector`."""

    def __init__(self, split: SquadSplit) -> None:
        """Starts empty.

        Args:
            split: whose rows will be added.
        """
        self._split = split
        self._windows: list[Candidates | None] = [None] * len(split.lengths)

    def add(self, row: int, logits: np.ndarray) -> None:
        """Takes one window's logits.

        Args:
            row: which window.
            logits: of start and end, float32 [pieces, 2].
        """
        self._windows[row] = self._split.candidates(row, logits)

    def records(self) -> list[Record]:
        """Returns a record for each question, in the order of the file.

        Raises:
            ValueError: a window has not been added.
        """
        windows = [window for window in self._windows if window is not None]
        if len(windows) != len(self._windows):
            raise ValueError(f"logits came for {len(windows)} of {len(self._windows)} rows")
        return self._split.records(windows)


def _question_record(question: Question) -> dict[str, Any]:
    answers = [{"text": text, "start": start} for text, start in question.answers or ()]
    return {
        "id": question.id,
        "title": question.title,
        "question": question.question,
        "context": question.context,
        "answers": answers,
        "label": None if question.answers is None else answers,
    }
