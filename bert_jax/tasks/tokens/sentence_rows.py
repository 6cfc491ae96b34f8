"""Reads sentences from rows with lists of tokens and labels: JSON lines, Parquet, or in memory."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import TableRow, read_table
from bert_jax.errors import UserError, commas
from bert_jax.tasks.family import no_rows
from bert_jax.tasks.label_values import is_list_text
from bert_jax.tasks.tokens.conll import ConllFile, Sentence
from bert_jax.tasks.tokens.text_words import split_text

SUFFIXES: Final = (".jsonl", ".parquet")
TOKENS: Final = ("tokens", "words", "text")
LABELS: Final = ("ner_tags", "ner", "labels", "tags", "label")
_LISTS: Final = TOKENS[:2]  # columns with lists of tokens rather than texts
_ENTITIES: Final = ("ner_tags", "ner")  # columns that surely have labels of entities
# `str.split()` would also split at no-break spaces, which labelled tokens may contain.
_WHITE_SPACE: Final = re.compile("[ \t]+")


def read_sentence_rows(
    source: Path | MemoryTable,
    *,
    labelled: bool,
    token: int | str = 0,
    label: int | str = -1,
    names: Sequence[str] = (),
    punctuation: bool = True,
) -> ConllFile:
    """Returns the sentences of rows.

    ``{"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}`` is a sentence of two tokens. In
    memory, a row may also be a list of tokens. A text with labels has spaces between its tokens;
    without labels, `split_text` divides it.

    Args:
        source: a .jsonl, a .parquet or a table in memory.
        labelled: whether every token must have a label.
        token: column of the tokens. A number selects the first of `TOKENS` that exists.
        label: column of the labels. A number selects the first of `LABELS` that exists. Labels are
            texts, or numbers of classes that `datasets` named. Beside a column of parts of speech,
            only `ner_tags` or `ner` need no name.
        names: names of numbered labels that have no names in the source.
        punctuation: whether to split texts without labels at punctuation.

    Raises:
        UserError: A row lacks tokens or required labels, does not have as many labels as tokens, or
            has an unknown number as a label. Several columns may be the labels. The tokens are a
            list written as text. There is no sentence.
    """
    table = read_table(source) if isinstance(source, Path) else _in_memory(source)
    sentences: list[Sentence] = []
    numbered = 0
    for row in table:
        of_tokens = _column(row, token, TOKENS, "task.token_column") or ""
        column = _column(row, label, LABELS, "task.label_column", labelled)
        if isinstance(label, int) and column is not None and column not in _ENTITIES:
            _require_one(row)
        found = None if column is None else row.labels(column)
        whole = row.values[of_tokens]
        if found is not None or of_tokens in _LISTS:
            _refuse_list_text(row, of_tokens, whole)
        text = whole if isinstance(whole, str) and found is None and not labelled else None
        tokens = split_text(text, punctuation=punctuation) if text else _blank_split(whole)
        _require_tokens(row, of_tokens, tokens)
        labels = None
        if column is not None:
            labels, numbers = _labels(row, column, found, len(tokens), names, labelled)
            numbered += numbers
        if tokens or isinstance(source, MemoryTable):
            sentences.append(Sentence(list(tokens), labels, [row.line] * len(tokens), text))
    if not sentences:
        raise no_rows(source)
    if any(sentence.labels is None for sentence in sentences):
        sentences = [sentence._replace(labels=None) for sentence in sentences]
    return ConllFile(Path(str(source)), sentences, numbers=numbered > 0)


def _in_memory(table: MemoryTable) -> Iterable[TableRow]:
    for number, row in enumerate(table.rows, start=1):
        values = row if isinstance(row, dict) else {"tokens": row}
        yield TableRow(Path(str(table)), number, values, values, classes=table.classes)


def _column(
    row: TableRow, asked: int | str, usual: Sequence[str], key: str, required: bool = True
) -> str | None:
    """Returns the column that the setting `key` names, or the first usual one."""
    usual = usual if isinstance(asked, int) else (asked,)
    found = next((name for name in usual if name in row.values), None)
    if found is None and required:
        raise UserError.wrong(
            "tokens.row_column", commas(row.values), f"{commas(usual)} or {key}", place=row.place
        )
    return found


def _require_one(row: TableRow) -> None:
    """Raises UserError if several columns have lists, because one may have parts of speech."""
    lists = [name for name in LABELS if isinstance(row.values.get(name), list | tuple)]
    if len(lists) > 1:
        raise UserError.wrong(
            "tokens.label_columns", commas(lists), "one in task.label_column", place=row.place
        )


def _refuse_list_text(row: TableRow, column: str, tokens: Any) -> None:
    """Raises UserError for tokens as pandas writes them to a CSV: ``"['EU', 'rejects']"``."""
    if isinstance(tokens, str) and is_list_text(tokens.strip()):
        raise UserError.wrong(
            "tokens.list_text", f"{tokens!r:.60}", "a list (.jsonl, .parquet)", place=row.at(column)
        )


def _blank_split(found: Any) -> Any:
    return _WHITE_SPACE.split(found.strip()) if isinstance(found, str) else found


def _require_tokens(row: TableRow, column: str, tokens: Any) -> None:
    in_memory = not row.path.suffix
    texts = isinstance(tokens, list | tuple) and all(isinstance(t, str) and t for t in tokens)
    # In memory, each row needs a prediction.
    if not texts or (in_memory and not tokens):
        raise UserError.wrong(
            "tokens.row", "no tokens", "a list of texts, or a text", place=row.at(column)
        )


def _labels(
    row: TableRow, column: str, found: Any, count: int, names: Sequence[str], labelled: bool
) -> tuple[list[str] | None, bool]:
    """Returns the labels of a row, and whether they are numbers without names."""
    if found is None and not labelled:
        return None, False
    number = len(found) if isinstance(found, list | tuple) else "no list of"
    if found is None or number != count:
        raise UserError.wrong(
            "tokens.row_labels", f"{number} labels", f"a list of {count}", place=row.at(column)
        )
    labels: list[str] = []
    numbers = 0
    for each in found:
        if each is None and not labelled:
            return None, False
        if isinstance(each, str) and each:
            labels.append(each)
        elif isinstance(each, int) and not isinstance(each, bool) and each >= 0 and not names:
            labels.append(str(each))
            numbers += 1
        elif isinstance(each, int) and not isinstance(each, bool) and 0 <= each < len(names):
            labels.append(names[each])
        else:
            raise UserError.wrong(
                "tokens.row_label", f"{each!r}", "names, or task.label_names", place=row.at(column)
            )
    return labels, numbers > 0
