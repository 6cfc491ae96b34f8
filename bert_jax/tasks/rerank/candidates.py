"""Queries with candidate documents, from tables and directories."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bert_jax.data import rng
from bert_jax.data.tables import RowError, RowErrors, TableRow
from bert_jax.errors import UserError
from bert_jax.tasks.family import Columns
from bert_jax.tasks.labels import number_of
from bert_jax.tasks.search.directory import CANDIDATES, files_of, pairs_of, read_retrieval
from bert_jax.tasks.search.tuples import TeacherColumns, teacher_of, text_of
from bert_jax.tasks.table import row_id


class Candidates(NamedTuple):
    """A query with its candidate documents."""

    id: int | str
    query: str
    documents: Mapping[str, str]  # texts by id, in the given order; in a table, a text is its id
    grades: Mapping[str, float] | None  # of all judged documents by id; None: unlabelled
    line: int
    scores: Mapping[str, float] | None = None  # a teacher's scores by id

    @property
    def labels(self) -> list[float]:
        """The label of each document. Documents that are not judged have 0."""
        return [(self.grades or {}).get(each, 0.0) for each in self.documents]


class CandidateColumns(NamedTuple):
    """The columns of a table."""

    query: str
    document: str  # texts, or lists of texts
    negatives: Sequence[str]  # with negatives, the document of every row has the label 1
    label: str | None  # numbers, or lists of numbers
    teacher: TeacherColumns | None
    id: str | None
    labelled: bool  # whether every row must have a label
    required: Columns


def read_candidates(
    table: Iterable[TableRow], columns: CandidateColumns, errors: RowErrors
) -> list[Candidates]:
    """Returns the rows of a table.

    Raises UserError for a missing column, and RowError for an empty text, an id of a wrong type,
    numbers that are missing, wrong or not as many as the documents, or a document that occurs twice
    with different numbers.
    """
    found: list[Candidates] = []

    def read(row: TableRow) -> None:
        row.require(columns.required)
        query, texts = text_of(row, columns.query), _documents(row, columns.document)
        texts += [text_of(row, name) for name in columns.negatives]
        grades, scores = _labels(row, columns, texts), None
        if columns.teacher is not None:
            of_row = columns.teacher._replace(passages=len(texts))
            scores = _by_text(row, texts, teacher_of(row, of_row, []).tolist())
        name = columns.id or ("id" if "id" in row.columns else None)
        number = len(found) + errors.count if name is None else row_id(row, name)
        documents = {text: text for text in texts}
        found.append(Candidates(number, query, documents, grades, row.line, scores))

    errors.kept(table, read)
    return found


def _documents(row: TableRow, column: str) -> list[str]:
    texts = row.values[column]
    if not isinstance(texts, list):
        return [text_of(row, column)]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise RowError.wrong(
            "rerank.documents", f"{texts!r:.60}", "a list of nonempty texts", place=row.at(column)
        )
    return list(texts)


def _labels(
    row: TableRow, columns: CandidateColumns, texts: Sequence[str]
) -> dict[str, float] | None:
    if columns.negatives:
        return _by_text(row, texts, [1.0] + [0.0] * (len(texts) - 1))
    if columns.label is None or (
        row.values.get(columns.label) in (None, "") and not columns.labelled
    ):
        return None
    return _numbers(row, columns.label, texts)


def _numbers(row: TableRow, column: str, texts: Sequence[str]) -> dict[str, float]:
    """Returns the numbers in a column by text."""
    found = row.values.get(column)
    numbers = [number_of(each) for each in (found if isinstance(found, list) else [found])]
    known = [number for number in numbers if number is not None]
    if not len(known) == len(numbers) == len(texts):
        raise RowError.wrong(
            "rerank.label", f"{found!r:.60}", f"{len(texts)} numbers", place=row.at(column)
        )
    return _by_text(row, texts, known)


def _by_text(row: TableRow, texts: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text, number in zip(texts, numbers, strict=True):
        if found.setdefault(text, number) != number:
            raise RowError(
                "rerank.document_twice",
                f"found {text!r:.60} with {found[text]:g} and with {number:g}, allowed: once",
                place=row.place,
            )
    return found


def grouped(rows: Iterable[Candidates]) -> list[Candidates]:
    """Joins the rows of equal queries, in the order of their first rows.

    If a document occurs in several rows, its last label and score count.
    """
    found: dict[str, Candidates] = {}
    for row in rows:
        before = found.setdefault(row.query, row)
        if before is not row:
            found[row.query] = before._replace(
                documents={**before.documents, **row.documents},
                grades={**(before.grades or {}), **(row.grades or {})} or None,
                scores={**(before.scores or {}), **(row.scores or {})} or None,
            )
    return list(found.values())


def conflicts(rows: Iterable[Candidates], joined: Iterable[Candidates]) -> int:
    """Returns how many documents of `rows` have another label or score in the joined rows."""
    of_query = {each.query: each for each in joined}
    found = [(row, of_query[row.query]) for row in rows]
    numbers = [(row.grades, last.grades) for row, last in found]
    numbers += [(row.scores, last.scores) for row, last in found]
    return sum(
        number != (last or {})[text]
        for own, last in numbers
        for text, number in (own or {}).items()
    )


def shortened(row: Candidates, most: int, *, seed: int) -> Candidates:
    """Returns a row with at most `most` candidates, in the given order.

    Keeps the first one, then relevant ones, then a random sample of the others.
    """
    draws = rng.stream(seed, "candidates", row.query).random(len(row.documents))
    keys = ((at > 0, label <= 0, draws[at], at) for at, label in enumerate(row.labels))
    kept = sorted(at for *_, at in sorted(keys)[:most])
    names = list(row.documents)
    return row._replace(documents={names[at]: row.documents[names[at]] for at in kept})


def single(rows: Iterable[Candidates]) -> list[Candidates]:
    """Returns a row for each candidate."""
    return [
        row._replace(documents={name: text}, grades={name: label})
        for row in rows
        for (name, text), label in zip(row.documents.items(), row.labels, strict=True)
    ]


def scaled(row: Candidates, between: tuple[float, float], *, place: str) -> Candidates:
    """Returns a row with labels from 0 to 1. Raises UserError for a label outside of the range."""
    low, high = between
    for label in row.labels:
        if not low <= label <= high:
            raise UserError(
                "rerank.label_outside",
                f"found the label {label:g}, allowed: {low:g} to {high:g} (task.label_range)",
                place=f"{place}: line {row.line}",
            )
    grades = {name: (grade - low) / (high - low) for name, grade in (row.grades or {}).items()}
    return row._replace(grades=grades)


def read_directory(directory: str, role: str) -> tuple[list[Candidates], list[str]]:
    """Reads a directory in the layout of BEIR or NanoBEIR, with candidates of a first search.

    See `read_retrieval`. The candidates have the columns `query-id` and `corpus-id`, or lists
    `corpus-ids`. Returns the queries that have candidates, and notes.
    """
    data, notes = read_retrieval(directory, role)
    (paths,) = files_of(directory, role, [CANDIDATES]).values()
    given: dict[str, dict[str, str]] = {query: {} for query in data.queries}
    for query, passage, _ in pairs_of(paths):
        if query in given and passage in data.passages:
            given[query][passage] = data.passages[passage]
    if lacking := sum(not documents for documents in given.values()):
        notes.append(
            f"{paths[0]}: {lacking:,} of {len(given):,} queries have no candidate, left out"
        )
    return [
        Candidates(query, data.queries[query], documents, data.relevance[query], line)
        for line, (query, documents) in enumerate(given.items(), start=1)
        if documents
    ], notes
