"""The task family of SQuAD 1.1 and 2.0."""

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.rows.collate import assemble, special_tokens
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.tasks import family
from bert_jax.tasks.squad.answers import (
    Answers,
    WindowCandidates,
    find_answers,
    find_candidates,
    to_record,
)
from bert_jax.tasks.squad.file import SquadFile, SquadQuestion, find_answer, read_squad
from bert_jax.tasks.squad.offsets import ContextWindows, OffsetEncoder
from bert_jax.tasks.squad.question_rows import SUFFIXES, read_question_rows
from bert_jax.tasks.squad.scores import figures_1_1, figures_2_0, tune
from bert_jax.text.tokenizer import Tokenizer

TUNED_THRESHOLD = "null_threshold"  # key of the threshold in the dev scores
_REMEMBERED = 64  # number of tokenized contexts, and of questions, to cache


class SquadSection(family.FilesSection):
    """SQuAD 1.1 or 2.0, from JSON files, or from .jsonl and .parquet of `datasets`.

    The defaults match google-research/bert.
    """

    kind: Literal["squad"] = "squad"
    version: Literal["auto", "1.1", "2.0"] = "auto"
    """`auto`: 2.0 if a file has version 2.0, otherwise 1.1."""
    stride: int = pydantic.Field(default=128, ge=1)
    """Number of pieces between the starts of consecutive windows of a long context."""
    max_query_length: int = pydantic.Field(default=64, ge=1)
    """Maximum number of pieces in a question. Longer questions are truncated."""
    n_best: int = pydantic.Field(default=20, ge=1)
    """Number of answers per question in `nbest_predictions.json`."""
    max_answer_length: int = pydantic.Field(default=30, ge=1)
    """Maximum number of pieces in an answer."""
    null_threshold: float | None = pydantic.Field(default=None, allow_inf_nan=False)
    """Predict "no answer" if its score exceeds the score of the best answer by more than this
    threshold. By default, the threshold is tuned on dev."""

    @property
    def tunes_threshold(self) -> bool:
        """Whether predictions need a threshold that was tuned on dev."""
        return self.dev is not None and self.version != "1.1" and self.null_threshold is None

    def tuple_columns(self, role: str) -> Sequence[str]:
        """Returns the columns of questions."""
        del role
        return "question", "context", "answers"

    def open(self, request: family.DataRequest) -> family.Family:
        """Reads the files of the requested roles.

        Raises UserError if a role has no file, if a file is malformed, or if `max_length` leaves no
        room for a context.
        """
        others = special_tokens(request.tokenizer, pair=True)
        least = self.max_query_length + others + 1
        if request.max_length < least:
            raise UserError(
                "squad.max_length",
                f"found {request.max_length}, allowed: {least} or more (task.max_query_length)",
                place="max_length",
            )
        paths = {role: request.source(self, role) for role in request.roles}
        files = {role: self._read(path, role) for role, path in paths.items()}
        tuned = request.tuned.get(TUNED_THRESHOLD)
        found = {self.version, *(file.version for file in files.values())}
        with_null = "2.0" in found or (self.version == "auto" and tuned is not None)
        threshold = tuned if self.null_threshold is None else self.null_threshold
        notes: list[str] = []
        splits: dict[str, family.Split] = {}
        for role, file in files.items():
            splits[role] = split = SquadSplit(
                file.questions,
                request.tokenizer,
                self,
                max_length=request.max_length,
                with_null=with_null,
                role=role,
                threshold=threshold,
            )
            if split.skipped and not split.examples:
                raise UserError(
                    "squad.answers_outside",
                    f"no answer is in its context at answer_start (questions: {split.skipped:,})",
                    place=paths[role],
                )
            notes += family.count_notes(paths[role], split.findings)
        if with_null and threshold is None and "dev" not in splits:
            notes.append("task.null_threshold: not set and not tuned on a dev set; using 0")
        return family.Family(
            heads=family.task_heads("question_answering"),
            best_metric="f1",
            splits=splits,
            notes=tuple(notes),
            score=figures_2_0 if with_null else figures_1_1,
            scored=("label", "prediction", "nbest", "null_score_difference"),
            write_official=functools.partial(_write_json, with_null),
        )

    def _read(self, source: Path | MemoryTable, role: str) -> SquadFile:
        needed = family.needs_labels(role)
        if isinstance(source, MemoryTable) or source.suffix in SUFFIXES:
            return read_question_rows(source, version=self.version, needs_answers=needed)
        return read_squad(source, version=self.version, needs_answers=needed)


def _write_json(
    with_null: bool, split: str, records: Sequence[family.Record], directory: Path
) -> Sequence[Path]:
    """Writes predictions in the format of `run_squad.py`, which the official scripts read.

    The files are `predictions.json` (id → text), `nbest_predictions.json` and, in version 2.0,
    `null_odds.json` (id → null score difference). The names are the same for every split.
    """
    keys = {"predictions": "prediction", "nbest_predictions": "nbest"}
    if with_null:
        keys["null_odds"] = "null_score_difference"
    written = []
    for name, key in keys.items():
        content = json.dumps({record["id"]: record[key] for record in records}, indent=4)
        written.append(directory / f"{name}.json")
        write_whole(written[-1], f"{content}\n")
    return written


class _WindowedQuestion(NamedTuple):
    question: SquadQuestion
    windows: ContextWindows
    target: tuple[int, int]  # first and last piece of the answer; (-1, -1) for no answer


class SquadSplit(family.Split):
    """The windows of all questions of a file. Each window is one row; `row` encodes it."""

    def __init__(
        self,
        questions: Sequence[SquadQuestion],
        tokenizer: Tokenizer,
        section: SquadSection,
        *,
        max_length: int,
        with_null: bool,
        role: str,
        threshold: float | None,
    ) -> None:
        """Tokenizes all questions and contexts to count their windows.

        Role "train": the target is the first answer that is in the context; questions without such
        an answer are skipped. Role "dev": if `threshold` is None, `records` tunes it. `with_null`
        permits "no answer" (version 2.0).
        """
        self._section, self._with_null = section, with_null
        self._role, self._threshold = role, threshold
        self._tokenizer, self._max_length = tokenizer, max_length
        special = special_tokens(tokenizer, pair=True)
        self._pieces = functools.lru_cache(_REMEMBERED)(OffsetEncoder(tokenizer).encode)
        self._query = functools.lru_cache(_REMEMBERED)(tokenizer.encode)
        asked_questions: list[_WindowedQuestion] = []
        self._rows: list[tuple[_WindowedQuestion, int]] = []  # (question, window index)
        lengths: list[int] = []
        cut = 0
        for question in questions:
            target = self._target(question) if role == "train" else (-1, -1)
            if target is None:
                continue
            query = len(self._query(question.question))
            cut += query > section.max_query_length
            others = min(query, section.max_query_length) + special
            pieces = len(self._pieces(question.context).ids)
            windows = ContextWindows(pieces, max_length - others, section.stride)
            asked = _WindowedQuestion(question, windows, target)
            asked_questions.append(asked)
            for window in range(windows.number):
                start, end = windows.bounds(window)
                self._rows.append((asked, window))
                lengths.append(others + end - start)
        self.lengths = np.array(lengths, np.int32)
        self.examples = len(asked_questions)
        self.fingerprint = family.content_hash(asked.question for asked in asked_questions)
        self.skipped = len(questions) - self.examples
        answered = sum(bool(question.answers) for question in questions)
        self.findings = {
            f"of {answered:,} answers are not in the context at answer_start and are skipped": (
                self.skipped
            ),
            f"of {len(questions):,} questions are longer than {section.max_query_length} pieces "
            "and are truncated (task.max_query_length)": cut,
        }

    def row(self, index: int) -> family.Encoded:
        """Returns one window: `[CLS] question [SEP] window [SEP]`.

        In training, the targets "start" and "end" are the indices in the row of the answer's first
        and last piece. If the window does not contain the whole answer, both are 0.
        """
        (question, windows, answer), window = self._rows[index]
        start, end = windows.bounds(window)
        query = self._query(question.question)[: self._section.max_query_length]
        context = self._pieces(question.context).ids[start:end]
        ids, first, _ = assemble(query, context, self._tokenizer, max_length=self._max_length)
        if self._role != "train":
            return family.Encoded((ids,), (first,), {})
        inside = start <= answer[0] and answer[1] < end
        targets = [piece - start + first if inside else 0 for piece in answer]
        return family.Encoded((ids,), (first,), {"start": targets[0], "end": targets[1]})

    def question(self, index: int) -> SquadQuestion:
        """Returns the question of a window."""
        return self._rows[index][0].question

    def reduce(self, index: int, logits: np.ndarray) -> WindowCandidates:
        """Returns the candidate spans of a window."""
        (_, windows, _), window = self._rows[index]
        start, end = windows.bounds(window)
        return find_candidates(
            logits,
            windows.most_context(window),
            first=len(logits) - 1 - (end - start),  # the last piece is [SEP]
            offset=start,
            n_best=self._section.n_best,
            max_answer_length=self._section.max_answer_length,
        )

    def starts_example(self, row: int) -> bool:
        """Returns whether a row is the first window of a question."""
        return self._rows[row][1] == 0

    def records(
        self, reduced: Sequence[WindowCandidates], *, first: int = 0
    ) -> list[family.Record]:
        """Returns the record of each question; see `to_record`."""
        rows = self._rows[first : first + len(reduced)]
        asked = [question for question, window in rows if window == 0]
        candidates = iter(reduced)
        found = [
            self._answers(each.question, list(itertools.islice(candidates, each.windows.number)))
            for each in asked
        ]
        threshold = self._threshold or 0.0  # google-research/bert uses 0 too
        if self._with_null and self._role == "dev" and self._threshold is None:
            threshold = tune(_records(asked, found, threshold=0.0))[1].threshold
        return _records(asked, found, threshold=threshold)

    def _answers(self, question: SquadQuestion, windows: Sequence[WindowCandidates]) -> Answers:
        def text_of(first: int, last: int) -> tuple[str, int]:
            start, end = int(pieces.starts[first]), int(pieces.ends[last])
            return question.context[start:end], start

        pieces = self._pieces(question.context)
        return find_answers(
            windows, text_of, n_best=self._section.n_best, with_null=self._with_null
        )

    def _target(self, question: SquadQuestion) -> tuple[int, int] | None:
        """Returns the first and the last piece of the training answer.

        Returns (-1, -1) if the question has no answers, and None if all are outside the context.
        """
        for answer in question.answers or ():
            span = find_answer(question.context, answer)
            target = span and self._pieces(question.context).touched(*span)
            if target:
                return target
        return None if question.answers else (-1, -1)


def _records(
    asked: Sequence[_WindowedQuestion], found: Sequence[Answers], *, threshold: float
) -> list[family.Record]:
    """Returns the records of questions with their answers."""
    records = []
    for (question, _, _), answers in zip(asked, found, strict=True):
        gold = [{"text": text, "start": start} for text, start in question.answers or ()]
        made = {
            "id": question.id,
            "title": question.title,
            "question": question.question,
            "context": question.context,
            "answers": gold,
            "label": None if question.answers is None else gold,
        }
        records.append(made | to_record(answers, threshold=threshold))
    return records
