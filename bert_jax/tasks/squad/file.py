"""Reads and checks SQuAD files."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import MAX_FILE_BYTES, read_json_object
from bert_jax.section import Section
from bert_jax.validation import validate

Version: TypeAlias = Literal["1.1", "2.0"]


_ROWS: Final = " Write rows with question, context and answers to a .jsonl or a .parquet."


class Answer(NamedTuple):
    """An answer in a file. The context at `start` may differ from `text`."""

    text: str
    start: int  # character offset in the context


class SquadQuestion(NamedTuple):
    """One question with its context."""

    id: str
    title: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None  # () if unanswerable, None if unknown


class SquadFile(NamedTuple):
    """The content of a file."""

    version: Version
    questions: Sequence[SquadQuestion]


def read_squad(
    path: epath.PathLike, *, version: Literal["auto", "1.1", "2.0"], needs_answers: bool
) -> SquadFile:
    """Reads a SQuAD file: `{"data": [{"title", "paragraphs": [{"context", "qas": [...]}]}]}`.

    "auto" selects 2.0 if the file's version begins with 2 or a question is impossible. If
    `needs_answers` is set, refuses questions with unknown answers. Raises UserError for a missing,
    malformed or empty file, a repeated id, or `is_impossible` in version 1.1.
    """
    path = epath.Path(path)
    try:
        values = read_json_object(path, limit=MAX_FILE_BYTES)
    except UserError as error:
        if error.key in ("json.invalid", "json.kind"):
            raise error.followed_by("." + _ROWS) from None
        raise
    data = values.get("data")
    if isinstance(data, list) and any(
        isinstance(each, dict) and "context" in each for each in data
    ):
        error = UserError.wrong(
            "squad.flat_rows", "questions in data", "articles with paragraphs.", place=path
        )
        raise error.followed_by(_ROWS)
    try:
        content = _File.model_validate(values)
    except pydantic.ValidationError:  # `validate` is slower, but has better error messages
        content = validate(_File, values, source=str(path))
    impossible = sum(bool(question.is_impossible) for *_, question in _walk(content))
    if version == "1.1" and impossible:
        raise UserError.wrong(
            "squad.impossible_in_1_1", f"{impossible:,} is_impossible", "in 2.0 only", place=path
        )
    if version == "auto":
        says_2 = str(content.version).lower().removeprefix("v").startswith("2")
        version = "2.0" if impossible or says_2 else "1.1"
    questions = _questions(content, path, version=version)
    return checked_file(path, version, questions, needs_answers=needs_answers)


def checked_file(
    source: object,
    version: Version,
    questions: Iterable[tuple[str, SquadQuestion]],
    *,
    needs_answers: bool,
    unique: bool = True,
) -> SquadFile:
    """Returns the content of a file from its questions and their places.

    Raises UserError if there is no question, if an id repeats although ids are `unique`, or if
    answers are unknown although `needs_answers` is set.
    """
    places: dict[str, str] = {}
    found: list[SquadQuestion] = []
    for place, question in questions:
        first = places.setdefault(question.id, place)
        if unique and first != place:
            shown = f'the id "{question.id}" twice, first in {first}'
            raise UserError.wrong("squad.repeated_id", shown, "each id once", place=place)
        if question.answers is None and needs_answers:
            raise UserError.wrong(
                "squad.no_answers", "none", "one, or is_impossible", place=f"{place}: answers"
            )
        found.append(question)
    if not found:
        raise UserError.wrong("squad.no_questions", "no question", "at least one", place=source)
    return SquadFile(version, found)


def impossible_with_answers(place: str, answers: int) -> UserError:
    """Returns the error for a question that is impossible, but has answers."""
    return UserError(
        "squad.impossible_with_answers",
        f"found is_impossible with {answers} answers, allowed: none",
        place=place,
    )


def find_answer(context: str, answer: Answer) -> tuple[int, int] | None:
    """Returns (start, exclusive end) of an answer in its context, or None if it is not there.

    The text must match at `answer.start`, or, up to white space, within the words that overlap that
    range (`read_squad_examples` of `run_squad.py`). Other occurrences of the text are ignored.
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


class _Node(Section):
    model_config = pydantic.ConfigDict(extra="ignore")


def whole_offset(value: Any) -> Any:
    """Returns a whole number of type float, as pandas writes it, as an integer: 3.0 → 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Answer(_Node):
    text: str
    answer_start: Annotated[int, pydantic.BeforeValidator(whole_offset)]


class _Question(_Node):
    id: str | int  # some programs write numbers
    question: str
    answers: list[_Answer] | None = None
    is_impossible: bool | None = None


class _Paragraph(_Node):
    context: str
    qas: list[_Question]


class _Article(_Node):
    title: str | None = None
    paragraphs: list[_Paragraph]


class _File(_Node):
    version: Any = None
    data: list[_Article]


def _walk(content: _File) -> Iterator[tuple[str, _Article, _Paragraph, _Question]]:
    for i, article in enumerate(content.data):
        for j, paragraph in enumerate(article.paragraphs):
            for k, question in enumerate(paragraph.qas):
                yield f"data.{i}.paragraphs.{j}.qas.{k}", article, paragraph, question


def _questions(
    content: _File, path: epath.Path, *, version: Version
) -> Iterator[tuple[str, SquadQuestion]]:
    """Yields each question with its place."""
    for within, article, paragraph, question in _walk(content):
        place = f"{path}: {within}"
        if question.is_impossible and any(answer.text for answer in question.answers or ()):
            raise impossible_with_answers(place, len(question.answers or ()))
        title, answers = article.title or "", _answers(question, version=version)
        name, text = str(question.id), question.question
        yield place, SquadQuestion(name, title, text, paragraph.context, answers)


def _answers(question: _Question, *, version: Version) -> tuple[Answer, ...] | None:
    if question.is_impossible:
        return ()
    given = question.answers or []
    if version == "2.0":  # some programs write an empty text for no answer
        given = [answer for answer in given if answer.text]
    if given:
        return tuple(Answer(answer.text, answer.answer_start) for answer in given)
    # As in evaluate-v2.0.py, a question without answers is unanswerable.
    told = bool(question.answers) or (
        question.answers is not None and question.is_impossible is None
    )
    return () if told and version == "2.0" else None
