"""Queries with candidate documents: tables, directories, and rows of pairs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.data import rng
from bert_jax.data.rows.collate import (
    Assembled,
    assemble_longest_first,
    encode_ragged,
    special_tokens,
)
from bert_jax.data.tables import RowError, RowErrors, TableRow
from bert_jax.errors import UserError
from bert_jax.files.download import local_copy
from bert_jax.model.text_head import CrossEncoderSection
from bert_jax.tasks.family import Columns, Encoded, Record, Split, content_hash
from bert_jax.tasks.labels import number_of
from bert_jax.tasks.search import retrieval
from bert_jax.tasks.search.tuples import text_of
from bert_jax.tasks.table import row_id
from bert_jax.text.tokenizer import Tokenizer

LABELS: Final = "labels"  # float32 [candidates]: target of a row, and key of a batch


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
    teacher_score: str | None  # numbers, or lists of numbers; every row must have them
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
        if columns.teacher_score is not None:
            scores = _numbers(row, columns.teacher_score, texts)
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
        raise RowError(
            "rerank.documents",
            f"found {texts!r:.60}, allowed: a list of texts that are not empty",
            place=f'{row.place}: column "{column}"',
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
        raise RowError(
            "rerank.label",
            f"found {found!r:.60}, allowed: a number for each of the {len(texts)} documents",
            place=f'{row.place}: column "{column}"',
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


def files_of(directory: str, role: str) -> list[str]:
    """Returns the files of a directory in the layout of BEIR, with candidates."""
    return [*retrieval.files_of(directory, role), f"{directory}/candidates/{role}.tsv"]


def read_directory(directory: str, role: str) -> tuple[list[Candidates], list[str]]:
    """Reads a directory in the layout of BEIR, with candidates in the order of a first search.

    ``candidates/<role>.tsv`` has the columns `query-id` and `corpus-id`. For the other files and
    the errors, see `read_retrieval`. Returns the queries that have candidates, and notes.
    """
    data, notes = retrieval.read_retrieval(directory, role)
    path = local_copy(files_of(directory, role)[-1])
    given: dict[str, dict[str, str]] = {query: {} for query in data.queries}
    for row in retrieval.rows_of(path, "query-id", "corpus-id"):
        query, passage = retrieval.id_of(row, "query-id"), retrieval.id_of(row, "corpus-id")
        if query in given and passage in data.passages:
            given[query][passage] = data.passages[passage]
    if lacking := sum(not documents for documents in given.values()):
        notes.append(f"{path}: {lacking:,} of {len(given):,} queries have no candidate, left out")
    return [
        Candidates(query, data.queries[query], documents, data.relevance[query], line)
        for line, (query, documents) in enumerate(given.items(), start=1)
        if documents
    ], notes


class PairsSplit(Split):
    """Queries with candidates. Each query with each candidate is a pair of texts."""

    def __init__(
        self,
        lists: Sequence[Candidates],
        *,
        head: CrossEncoderSection,
        tokenizer: Tokenizer,
        max_length: int,
    ) -> None:
        """Encodes all texts. Equal documents are encoded once."""
        self.lists, self._head, self._tokenizer = lists, head, tokenizer
        self._max_length, self.examples = max_length, len(lists)
        self.fingerprint = content_hash([*lists, _Prefix(head.query_prefix)])
        self._queries = encode_ragged(tokenizer, (head.query_prefix + each.query for each in lists))
        numbers: dict[str, int] = {}
        texts = [text for each in lists for text in each.documents.values()]
        self._numbers = np.asarray([numbers.setdefault(text, len(numbers)) for text in texts])
        self._documents = encode_ragged(tokenizer, numbers)
        counts = np.asarray([len(each.documents) for each in lists])
        self._ends = np.cumsum(counts)  # end of each query's pairs among all pairs
        self._of_pair = np.repeat(np.arange(len(lists)), counts)
        pieces = np.diff(self._documents.offsets)[self._numbers]
        pieces += np.diff(self._queries.offsets)[self._of_pair]
        pieces += special_tokens(tokenizer, pair=True)
        self._pair_lengths = np.minimum(pieces, max_length).astype(np.int32)
        cut = int((pieces > max_length).sum())
        of_all = f"of {len(pieces):,} pairs are longer than {max_length} pieces and truncated"
        self.findings: Mapping[str, int] = {of_all: cut}

    def _pair(self, at: int) -> Assembled:
        first = self._queries[self._of_pair[at]].tolist()
        second = self._documents[self._numbers[at]].tolist()
        return assemble_longest_first(first, second, self._tokenizer, max_length=self._max_length)


class _Prefix(NamedTuple):
    text: str


class ListSplit(PairsSplit):
    """Rows for training: a query with all of its candidates."""

    def __init__(self, lists: Sequence[Candidates], **parts: Any) -> None:
        """Encodes all texts, see `PairsSplit`."""
        super().__init__(lists, **parts)
        self.lengths = np.maximum.reduceat(self._pair_lengths, np.append(0, self._ends[:-1]))
        self.width = max(len(each.documents) for each in lists)

    def row(self, index: int) -> Encoded:
        """Returns a sequence per candidate. Sequences of missing candidates are empty."""
        labels = self.lists[index].labels
        end, missing = int(self._ends[index]), self.width - len(labels)
        pairs = [self._pair(at) for at in range(end - len(labels), end)]
        return Encoded(
            [*(pair.ids for pair in pairs), *[[]] * missing],
            [*(pair.second for pair in pairs), *[0] * missing],
            {LABELS: np.asarray(labels + [0.0] * missing, np.float32)},
        )


class RankingSplit(PairsSplit):
    """Rows for predictions: a query with one candidate each.

    The record of a query has its candidates by falling score. If every query has one candidate, the
    prediction is its score.
    """

    def __init__(self, lists: Sequence[Candidates], **parts: Any) -> None:
        """Encodes all texts, see `PairsSplit`."""
        super().__init__(lists, **parts)
        self.lengths = self._pair_lengths

    @property
    def undecided(self) -> bool:
        """Whether every model has the same score, because no query has a choice."""
        return all(len({*each.labels}) < 2 for each in self.lists)

    def row(self, index: int) -> Encoded:
        """Returns one pair, without a target."""
        pair = self._pair(index)
        return Encoded((pair.ids,), (pair.second,), {})

    def reduce(self, index: int, logits: np.ndarray) -> float:
        """Returns the score of a pair."""
        del index
        return float(self._head.score(logits)[0])

    def starts_example(self, row: int) -> bool:
        """Returns whether a row is the first pair of a query."""
        return row == 0 or self._of_pair[row] != self._of_pair[row - 1]

    def records(self, reduced: Sequence[float], *, first: int = 0) -> list[Record]:
        """Returns the records of whole queries, see the class."""
        start = int(self._of_pair[first])
        end = int(self._of_pair[first + len(reduced) - 1]) + 1
        lists, ends = self.lists[start:end], self._ends[start:end] - first
        if len(self._numbers) > len(self.lists):
            return [
                ranked(each, reduced[stop - len(each.documents) : stop])
                for each, stop in zip(lists, ends, strict=True)
            ]
        return [
            {
                "id": each.id,
                "text": each.query,
                "pair": next(iter(each.documents.values())),
                "label": each.grades and each.labels[0],
                "prediction": score,
            }
            for each, score in zip(lists, reduced, strict=True)
        ]


def ranked(candidates: Candidates, scores: Sequence[float]) -> Record:
    """Returns the record of a query, see `bert_jax.tasks.search.retrieval.rank`.

    Of documents with equal scores, the larger id comes first, as in trec_eval.
    """
    order = sorted(zip(scores, candidates.documents, strict=True), reverse=True)
    grades = candidates.grades or {}
    return {
        "id": candidates.id,
        "text": candidates.query,
        "label": candidates.grades and dict(candidates.grades),
        "prediction": [name for _, name in order],
        "scores": [score for score, _ in order],
        "ranks": {
            name: place for place, (_, name) in enumerate(order, start=1) if grades.get(name, 0) > 0
        },
    }


def rankings(records: Sequence[Record]) -> list[Record]:
    """Returns the records of queries. Joins the records of single pairs with equal queries."""
    if "ranks" in records[0]:
        return list(records)
    pairs = [(each["text"], each["pair"], each["label"], each["prediction"]) for each in records]
    scores = {(query, document): score for query, document, _, score in pairs}
    rows = (
        Candidates(query, query, {document: document}, {document: label}, at)
        for at, (query, document, label, _) in enumerate(pairs)
    )
    return [
        ranked(each, [scores[each.query, document] for document in each.documents])
        for each in grouped(rows)
    ]


def by_id(records: Sequence[Record]) -> list[Record]:
    """Returns rankings in the order of equal scores: the larger id comes first."""
    lists = rankings(records)
    orders = [sorted(each["prediction"], reverse=True) for each in lists]
    return [
        each
        | {"prediction": order, "ranks": {name: order.index(name) + 1 for name in each["ranks"]}}
        for each, order in zip(lists, orders, strict=True)
    ]
