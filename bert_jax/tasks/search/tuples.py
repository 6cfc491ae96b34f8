"""Rows of several texts: pairs, triplets and scored pairs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.data.rows.collate import assemble, encode_ragged, fill_up, special_tokens
from bert_jax.data.tables import RowError, RowErrors, TableRow
from bert_jax.errors import UserError, counted
from bert_jax.inference.comparison import Comparison
from bert_jax.tasks.family import Encoded, Record, Split, content_hash
from bert_jax.tasks.labels import number_of
from bert_jax.tasks.table import row_id
from bert_jax.text.tokenizer import Tokenizer

# Targets of a row, and keys of a batch.
TEXTS: Final = "text_numbers"  # int32 [1, texts]; equal texts have equal numbers
SCORE: Final = "score"  # float32 []
TEACHER: Final = "teacher"  # float32 [texts - 1], or [width]


# Columns of scores or labels, in sentence-transformers and in Quora's pairs.
SCORES: Final = ("score", "scores", "label", "labels", "is_duplicate")


class TextTuple(NamedTuple):
    """One row of a table."""

    id: int | str
    texts: tuple[str, ...]  # anchor, positive, negatives; without prefixes
    score: float | None
    line: int
    teacher: np.ndarray | None = None  # scores of the passages, or a vector of the anchor; float32


class TeacherColumns(NamedTuple):
    """Columns of what a teacher found: scores of a row's passages, or a vector of its anchor."""

    setting: str
    names: Sequence[str]  # of numbers, or one of lists of numbers
    passages: int | None = None  # texts with scores; None for vectors
    margins: bool = False  # whether differences to the first score can replace the scores


class TupleColumns(NamedTuple):
    """The columns of a table, by setting."""

    texts: Sequence[tuple[str, str]]  # (setting, column)
    score: str | None  # column of the scores, if scores are read
    score_range: tuple[float, float]
    id: str | None
    score_needed: bool  # whether every row must have a score
    ignored: Sequence[str] = ()  # columns that may have scores, which the loss would ignore
    teacher: TeacherColumns | None = None

    @property
    def required(self) -> list[tuple[str, str | None]]:
        """The columns that a table must have, by setting."""
        scores = [("task.score", self.score)] if self.score_needed else []
        if self.teacher is not None:
            scores += [(self.teacher.setting, name) for name in self.teacher.names]
        return [*self.texts, ("task.id", self.id), *scores]


def read_tuples(
    table: Iterable[TableRow], columns: TupleColumns, errors: RowErrors
) -> list[TextTuple]:
    """Returns the rows of a table.

    Raises UserError for a missing column, or scores that the loss would ignore, and RowError for an
    empty text, an id of a wrong type, a score that is missing, no number or out of range, or a
    wrong number of a teacher's numbers.
    """
    found: list[TextTuple] = []
    widths: list[int] = []  # of the first row's vector
    required = columns.required
    seen: dict[str, float] = {}  # first number of each column that may have scores

    def read(row: TableRow) -> None:
        row.require(required)
        for column in columns.ignored:
            number = number_of(row.values.get(column))
            # A column that the settings do not name has scores if its numbers differ.
            if column in row.values and (
                columns.ignored != SCORES
                or (number is not None and number != seen.setdefault(column, number))
            ):
                raise UserError(
                    "embedding.score_ignored",
                    f'found "{column}" in {row.path}, but info_nce takes each pair as fitting. '
                    "Remove the column, or use cosent or cosine.",
                    place="task.score",
                )
        texts = tuple(text_of(row, name) for _, name in columns.texts)
        name = columns.id or ("id" if "id" in row.columns else None)
        row.require([("task.id", name)])
        number = len(found) + errors.count if name is None else row_id(row, name)
        teacher = columns.teacher and teacher_of(row, columns.teacher, widths)
        found.append(TextTuple(number, texts, _score(row, columns), row.line, teacher))

    errors.kept(table, read)
    return found


def text_of(row: TableRow, column: str) -> str:
    """Returns the text in a column. Raises RowError if it is empty or not a text."""
    found = row.text(column)
    if not found.strip():
        raise RowError.wrong(
            "embedding.empty_text", "an empty text", "one or more words", place=row.at(column)
        )
    return found


def _score(row: TableRow, columns: TupleColumns) -> float | None:
    if (column := columns.score) is None:
        return None
    label, (low, high) = row.values.get(column), columns.score_range
    if label in (None, "") and not columns.score_needed:
        return None
    number = number_of(label)
    if number is None or not low <= number <= high:
        raise RowError.wrong(
            "embedding.score",
            f"{label!r}",
            f"{low:g} to {high:g} (task.score_range)",
            place=row.at(column),
        )
    return scaled(number, columns.score_range)


def teacher_of(row: TableRow, columns: TeacherColumns, widths: list[int]) -> np.ndarray:
    """Returns what a teacher found for a row, float32. Margins m become the scores 0 and −m."""
    values = [row.values[name] for name in columns.names]
    if len(values) == 1 and isinstance(values[0], list | tuple | np.ndarray):
        values = values[0]
    try:
        numbers = np.asarray(values, np.float32)
    except (ValueError, TypeError):
        numbers = np.asarray([np.nan])
    known = numbers.ndim == 1 and bool(np.isfinite(numbers).all())
    if columns.passages is None:
        widths += [len(numbers)] * (known and len(numbers) > 0 and not widths)
        allowed = widths
    else:
        if known and columns.margins and len(numbers) == columns.passages - 1:
            numbers = np.concatenate([np.zeros(1, np.float32), -numbers])
        allowed = [columns.passages]
    if not known or len(numbers) not in allowed:
        wanted = counted(allowed[0], "number") if allowed else "a list of numbers"
        if columns.margins:
            wanted += f", or {counted(allowed[0] - 1, 'difference')} to the first one"
        raise RowError.wrong(
            "embedding.teacher", f"{values!s:.60}", wanted, place=row.at(columns.names[0])
        )
    return numbers


def scaled(score: float, between: tuple[float, float]) -> float:
    """Maps a score to a cosine: ``scaled(4, (0, 5)) -> 0.8``.

    The result is from 0 to 1, or from −1 to 1 if the lowest score is negative.
    """
    low, high = between
    part = (score - low) / (high - low)
    return 2 * part - 1 if low < 0 else part


class TextSample(NamedTuple):
    """Some rows of a split, their texts, and the pairs among these texts."""

    rows: Sequence[int]
    texts: Sequence[str]  # texts of all rows, without prefixes
    pairs: Sequence[tuple[int, int, float | None]]  # indices of two texts, and their score
    total: int  # number of texts of the split


class Shown(NamedTuple):
    """A query of a report, and passages for it."""

    rows: Sequence[int]  # rows of the split with the query, then the passages
    texts: Sequence[str]  # of the query, then of the passages; without prefixes
    fits: Sequence[bool]  # whether each passage fits


def spread(count: int, limit: int) -> list[int]:
    """Returns at most `limit` of `count` indices at equal distances: (7, 3) → [0, 3, 6]."""
    return list(range(0, count, max(1, -(-count // max(limit, 1)))))


class TextsSplit(Split):
    """Rows of several texts, all of the same number. Each text is a sequence of its own."""

    def __init__(
        self,
        rows: Sequence[Sequence[str]],
        *,
        tokenizer: Tokenizer,
        max_length: int,
        comparison: Comparison[Any],
    ) -> None:
        """Encodes all texts, prefixes included. Longer texts are truncated."""
        self.comparison = comparison
        self.tokenizer, self._max_length, self._texts = tokenizer, max_length, len(rows[0])
        self._ids = encode_ragged(tokenizer, (text for row in rows for text in row))
        lengths = np.diff(self._ids.offsets) + special_tokens(tokenizer, pair=False)
        sizes = [comparison.head.size(max_length, query=query) for query in (False, True)]
        of_text = [self.is_query(*divmod(at, self._texts)) for at in range(len(lengths))]
        least, most = ([sizes[query][at] for query in of_text] for at in (0, 1))
        filled = np.clip(lengths, least, most).reshape(len(rows), self._texts)
        self.lengths = filled.max(axis=1).astype(np.int32)
        if self._texts > 1:
            self.lengths_of_each = filled.astype(np.int32)
        self.examples, self._sizes = len(rows), sizes
        self.findings: Mapping[str, int] = {
            f"of {most.count(limit):,} texts are longer than {limit} pieces and truncated": int(
                ((lengths > limit) & (np.array(most) == limit)).sum()
            )
            for limit in dict.fromkeys(most)
        }

    def row(self, index: int) -> Encoded:
        """Returns one row, with the targets of `targets`."""
        made = [self._sequence(index, text) for text in range(self._texts)]
        return Encoded(made, [len(ids) for ids in made], self.targets(index))

    def _sequence(self, index: int, text: int) -> list[int]:
        size = self._sizes[self.is_query(index, text)]
        ids = self._ids[index * self._texts + text].tolist()
        ids = assemble(ids, None, self.tokenizer, max_length=size.most).ids
        return fill_up(ids, size.least, mask=self.tokenizer.special.mask, seen=size.seen)

    def targets(self, index: int) -> dict[str, Any]:
        """Returns the targets of a row, see `Encoded`."""
        del index
        return {}

    def is_query(self, index: int, text: int) -> bool:
        """Returns whether a text of a row is a query."""
        raise NotImplementedError

    def reduce(self, index: int, logits: np.ndarray) -> Any:
        """Returns what `Comparison.kept` keeps of the outputs of a row's texts."""
        logits = logits[None] if self._texts == 1 else logits
        return [
            self.comparison.kept(output, ids, query=self.is_query(index, text))
            for text, (output, ids) in enumerate(
                zip(logits, self.row(index).sequences, strict=True)
            )
        ]

    @property
    def undecided(self) -> str | None:
        """Reason why every model has the same score on the split. None if models can differ."""
        return None

    def sample(self, limit: int) -> TextSample:
        """Returns rows with about `limit` texts, spread over the split."""
        raise NotImplementedError

    def shown(self, records: Sequence[Record], *, queries: int, passages: int) -> list[Shown]:
        """Returns at most some queries with their best passages, from the records of all rows."""
        raise NotImplementedError


class TupleSplit(TextsSplit):
    """Pairs, triplets or scored pairs. A prediction is the similarity of the first two texts."""

    def __init__(
        self,
        rows: Sequence[TextTuple],
        *,
        prefixes: Sequence[str],
        tokenizer: Tokenizer,
        max_length: int,
        comparison: Comparison[Any],
    ) -> None:
        """Encodes all texts. `prefixes` has the prefix of each text of a row."""
        texts = [
            [prefix + text for prefix, text in zip(prefixes, row.texts, strict=True)]
            for row in rows
        ]
        super().__init__(texts, tokenizer=tokenizer, max_length=max_length, comparison=comparison)
        self._rows, self.fingerprint = rows, content_hash([*rows, _Prefixes(tuple(prefixes))])
        numbers: dict[str, int] = {}
        self._numbers = np.asarray(
            [[numbers.setdefault(text, len(numbers)) for text in row.texts] for row in rows],
            np.int32,
        )

    @property
    def undecided(self) -> str | None:
        """Rows with equal scores, see `TextsSplit`: they have no rank correlation."""
        equal = len({row.score for row in self._rows}) == 1
        return f"equal scores in all rows ({len(self._rows):,})" if equal else None

    def targets(self, index: int) -> dict[str, Any]:
        """Returns the numbers of a row's texts, and its score and the teacher's if it has them."""
        row = self._rows[index]
        # A leading axis, because batches pad an integer vector like the pieces of a text.
        found = {TEXTS: self._numbers[index][None], SCORE: row.score, TEACHER: row.teacher}
        return {name: value for name, value in found.items() if value is not None}

    def is_query(self, index: int, text: int) -> bool:
        """Returns whether a text is the first of its row."""
        del index
        return text == 0

    def reduce(self, index: int, logits: np.ndarray) -> float:
        """Returns the similarity of the first two texts. `logits` are the outputs of all texts."""
        first, second, *_ = super().reduce(index, logits)
        return self.comparison.of_pair(first, second)

    def sample(self, limit: int) -> TextSample:
        """Returns rows, see `TextsSplit`. The first two texts of each row are a pair."""
        rows = spread(len(self._rows), limit // self._texts)
        chosen = [self._rows[row] for row in rows]
        texts = [text for row in chosen for text in row.texts]
        pairs = [
            (at * self._texts, at * self._texts + 1, row.score) for at, row in enumerate(chosen)
        ]
        return TextSample(rows, texts, pairs, len(self._rows) * self._texts)

    def shown(self, records: Sequence[Record], *, queries: int, passages: int) -> list[Shown]:
        """Returns at most some pairs. Pairs with a score in the upper half fit."""
        del records, passages
        chosen = ((at, self._rows[at]) for at in spread(len(self._rows), queries))
        return [Shown([at], row.texts[:2], [(row.score or 0) >= 0.5]) for at, row in chosen]

    def records(self, reduced: Sequence[float], *, first: int = 0) -> list[Record]:
        """Returns records with the scaled score as label, and the similarity as prediction."""
        return [
            {
                "id": row.id,
                "text": row.texts[0],
                "pair": row.texts[1],
                "label": row.score,
                "prediction": similarity,
            }
            for row, similarity in zip(
                self._rows[first : first + len(reduced)], reduced, strict=True
            )
        ]


class _Prefixes(NamedTuple):
    prefixes: tuple[str, ...]
