"""Reads questions from rows, as `datasets` writes SQuAD: JSON lines, Parquet, or in memory."""

from pathlib import Path
from typing import Any, Final, Literal

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import TableRow, read_table
from bert_jax.errors import UserError, commas
from bert_jax.tasks.squad.file import (
    Answer,
    SquadFile,
    SquadQuestion,
    checked_file,
    impossible_with_answers,
    whole_offset,
)

SUFFIXES: Final = (".jsonl", ".parquet")


def read_question_rows(
    source: Path | MemoryTable, *, version: Literal["auto", "1.1", "2.0"], needs_answers: bool
) -> SquadFile:
    """Returns the questions of rows with `question`, `context` and optionally `answers` and `id`.

    ``{"question": "When?", "context": "In 1889.", "answers": {"text": ["1889"], "answer_start":
    [3]}}`` has one answer. A list of objects with `text` and `answer_start` is the same. In memory,
    a row may also be a tuple (question, context).

    If some questions have an empty list of answers and others do not, "auto" selects version 2.0,
    in which the former are unanswerable. If all lists are empty, the answers are unknown.

    Raises UserError if a row lacks a column, an answer is malformed, an id repeats, there are no
    rows, or answers are unknown although `needs_answers` is set.
    """
    in_memory = isinstance(source, MemoryTable)
    table = source.named(("question", "context")) if in_memory else read_table(source)
    rows: list[tuple[TableRow, tuple[Answer, ...] | None]] = []
    for row in table:
        if not {"question", "context"} <= row.values.keys():
            raise UserError.wrong(
                "squad.columns", commas(row.values), "question, context", place=row.place
            )
        rows.append((row, _answers(row, lenient=in_memory and not needs_answers)))
    some = any(answers for _, answers in rows)
    if version == "auto":
        none = any(answers == () for _, answers in rows)
        version = "2.0" if some and none else "1.1"
    questions = []
    for number, (row, answers) in enumerate(rows):
        if answers == () and not (some and version == "2.0"):
            answers = None
        title = row.values.get("title")
        question = SquadQuestion(
            id=str(row.values.get("id", number)),
            title=title if isinstance(title, str) else "",
            question=row.text("question"),
            context=row.text("context"),
            answers=answers,
        )
        questions.append((row.place, question))
    unique = not in_memory
    return checked_file(source, version, questions, needs_answers=needs_answers, unique=unique)


def _answers(row: TableRow, *, lenient: bool) -> tuple[Answer, ...] | None:
    """Returns the answers of a row, () if there are none, and None if they are unknown."""
    found = row.values.get("answers")
    pairs = _pairs(found)
    marked = row.values.get("is_impossible")
    if marked not in (None, False, True):  # also 0 and 1
        raise UserError.wrong(
            "squad.is_impossible", f"{marked!r}", "true or false", place=row.at("is_impossible")
        )
    if marked:
        if pairs and any(text for text, _ in pairs):
            raise impossible_with_answers(row.place, len(pairs))
        return ()
    if found is None:
        return None
    if pairs is None and lenient:
        return None
    if pairs is None or not all(isinstance(t, str) and _is_offset(start) for t, start in pairs):
        raise UserError(
            "squad.row_answers",
            f"found {found!r:.60}, allowed: lists text and answer_start of equal length",
            place=row.at("answers"),
        )
    # Some programs write an empty text for a question without an answer.
    return tuple(Answer(text, start) for text, start in pairs if text)


def _pairs(found: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(found, dict):
        texts, starts = found.get("text"), found.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(texts, map(whole_offset, starts), strict=True))
    elif isinstance(found, list) and all(isinstance(each, dict) for each in found):
        return [(each.get("text"), whole_offset(each.get("answer_start"))) for each in found]
    return None


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
