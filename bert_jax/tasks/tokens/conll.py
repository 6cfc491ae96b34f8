"""Reads CoNLL files: one token per line, in columns, and a blank line between sentences."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.data.tables import read_lines
from bert_jax.errors import UserError, commas
from bert_jax.files.read import is_whole, require_file

_DOCUMENT_START: Final = "-DOCSTART-"
_TABLE: Final = "a CSV table"
# A first line of two such names is a header.
_COLUMN_NAME: Final = re.compile(
    r"(tokens?|words?|text|form|sentence|lemma|(pos|chunk|ner|iob)(_tags?)?|tags?|labels?|entity)",
    re.IGNORECASE,
)
# `str.split()` would also split at no-break spaces, which tokens may contain.
_WHITE_SPACE: Final = re.compile("[ \t]+")
# "#" as a token is a line with as many columns as other lines.
_COMMENT: Final = re.compile(r"#([ \t]|$)|###|#(begin|end) document")
# CoNLL-U: words that are divided into the next ones, and words that the text lacks.
_RANGE: Final = re.compile(r"\d+[-.]\d+")
_UNIVERSAL: Final = 10  # columns of CoNLL-U
# CoNLL-2012: "(PERSON*", "*", "*)" and "(12", "-", "12)".
_BRACKETS: Final = re.compile(r"[*-]|\S*\(\w\S*|[^\s(]*\)")
# WikiANN and PAN-X write the language before each token: "en:Obama".
_LANGUAGE: Final = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]+)*|simple):")


class Sentence(NamedTuple):
    """The tokens of a sentence, with labels and line numbers."""

    tokens: list[str]
    labels: list[str] | None
    lines: list[int]  # line number of each token
    whole_text: str | None = None  # text that was divided into the tokens


class ConllFile(NamedTuple):
    """The sentences of a file."""

    path: Path
    sentences: list[Sentence]  # all labelled or all unlabelled
    stray_labels: int = 0  # number of labelled tokens in an unlabelled file
    numbers: bool = False  # whether labels are numbers without names
    comments: int = 0  # number of lines that were detected as comments
    columns: tuple[int, int, int] | None = None  # token column, label column, number of columns
    ranges: int = 0  # number of lines of CoNLL-U that are no words of their own
    languages: Sequence[str] = ()  # languages that were before the tokens: "en" of "en:Obama"

    @property
    def names(self) -> set[str]:
        """The labels in the file."""
        return {name for sentence in self.sentences for name in sentence.labels or ()}

    def first(self, names: Collection[str]) -> tuple[int, str]:
        """Returns (line number, label) of the first label in `names`."""
        return next(
            (line, name)
            for sentence in self.sentences
            for line, name in zip(sentence.lines, sentence.labels or (), strict=True)
            if name in names
        )

    def place(self, line: int) -> str:
        """Returns the place of a line for errors: ``train.txt: line 7``."""
        return f"{self.path}: {'row' if self.path.suffix in ('', '.parquet') else 'line'} {line}"


def read_conll(
    path: Path,
    *,
    labelled: bool,
    token: int = 0,
    label: int = -1,
    separator: str | None = None,
    comment: str | None = None,
) -> ConllFile:
    r"""Reads a file of columns: ``"EU B-ORG\nrejects O\n\nPeter B-PER\n"`` → two sentences.

    This is the format of the CoNLL shared tasks of 2000 to 2003. Lines that begin with
    ``-DOCSTART-`` separate documents and are skipped. If any token lacks a label, all labels are
    dropped.

    Lines before a sentence that begin with ``#`` are comments if they have another number of
    columns than the sentence, or if every sentence has one. GermEval, CoNLL-U, MultiCoNER and
    JNLPBA have such comments. Lines of CoNLL-U such as ``1-2`` and ``8.1`` are skipped. If every
    token begins with a language, such as ``en:`` in PAN-X, the languages are removed.

    Args:
        path: path of the file.
        labelled: whether every token must have a label.
        token: index of the token's column. Negative indices count from the end.
        label: index of the label's column. Negative indices count from the end.
        separator: text between columns. By default, spaces and tabs.
        comment: prefix of lines to skip. If it is set, no comments are detected.

    Raises:
        UserError: The file is missing, is JSON or Parquet, is not UTF-8 or has no sentences. A line
            lacks a column, a token or a required label, or its number of columns differs from the
            line before. The column of tokens has only numbers, or that of labels has brackets.
    """
    _refuse_rows(path, separator)

    def split(line: str) -> list[str]:
        return line.split(separator) if separator else _WHITE_SPACE.split(line.strip(" \t"))

    raw: list[list[tuple[int, str]]] = [[]]  # lines of each sentence
    for number, line in read_lines(path):
        if not line.strip(" \t") or line.startswith(_DOCUMENT_START):
            raw.append([])
        elif comment is None or not line.startswith(comment):
            raw[-1].append((number, line))
    raw = [lines for lines in raw if lines]
    comments = set() if comment is not None else _comments(raw, split)
    blocks: list[list[tuple[str, str, int]]] = [[] for _ in raw]
    token_at, label_at, before, width, ranges = 0, 0, 0, 0, 0
    numbered = ((at, *each) for at, lines in enumerate(raw) for each in lines)
    for at, number, line in numbered:
        if number in comments:
            continue
        place = f"{path}: line {number}"
        fields = split(line)
        if len(fields) == _UNIVERSAL and token and _RANGE.fullmatch(fields[0]):
            ranges += 1
            continue
        if not width:
            token_at = label_at = _column(place, fields, "token_column", token)
            if labelled or -len(fields) <= label < len(fields):
                label_at = _column(place, fields, "label_column", label)
        elif len(fields) != width:
            raise UserError(
                "tokens.columns",
                f"found {len(fields)}, allowed: {width} (line {before}), one token on each line",
                place=place,
            )
        before, width = number, len(fields)
        if labelled and width == 1 and separator is None and re.search("[,;]", line):
            raise _rows(path, _TABLE)
        if labelled and label_at == token_at:
            raise UserError(
                "tokens.same_column",
                f"token_column {token} and label_column {label} are the same of {width} columns",
                place=place,
            )
        if not fields[token_at]:
            raise _empty_token(path, number)
        name = "" if label_at == token_at else fields[label_at]
        if labelled and not name:
            raise UserError.wrong("tokens.no_label", "no label", "one for every token", place=place)
        blocks[at].append((fields[token_at], name, number))
    sentences = [
        Sentence(*map(list, zip(*block, strict=True)), whole_text=None) for block in blocks if block
    ]
    if not sentences:
        raise UserError.wrong("tokens.no_sentences", "no sentence", "a token per line", place=path)
    _refuse_index(path, sentences, token_at, width)
    _refuse_header(path, sentences[0])
    languages, sentences = _without_languages(path, sentences)
    names = [name for sentence in sentences for name in sentence.labels or ()]
    stray = 0
    if not all(names):
        sentences = [sentence._replace(labels=None) for sentence in sentences]
        stray = sum(map(bool, names))
    columns = (token_at, label_at, width)
    file = ConllFile(
        path,
        sentences,
        stray,
        comments=len(comments),
        columns=columns,
        ranges=ranges,
        languages=languages,
    )
    _refuse_brackets(file)
    return file


def _refuse_brackets(file: ConllFile) -> None:
    """Raises UserError if labels are the brackets of CoNLL-2012: ``(PERSON*``, ``*``, ``*)``."""
    opening = {name for name in file.names if name[:1] == "("}
    if opening and all(map(_BRACKETS.fullmatch, file.names)):
        line, name = file.first(opening)
        raise UserError(
            "tokens.brackets", f"found {name}. Write IOB2, such as B-PER.", place=file.place(line)
        )


def _without_languages(path: Path, sentences: list[Sentence]) -> tuple[list[str], list[Sentence]]:
    """Returns the languages if one is before every token, and the sentences without them."""
    if not all(_LANGUAGE.match(token) for sentence in sentences for token in sentence.tokens):
        return [], sentences
    found: set[str] = set()
    shorter: list[Sentence] = []
    for sentence in sentences:
        languages, _, tokens = zip(
            *(token.partition(":") for token in sentence.tokens), strict=True
        )
        if "" in tokens:
            raise _empty_token(path, sentence.lines[tokens.index("")])
        found.update(languages)
        shorter.append(sentence._replace(tokens=[*tokens]))
    return sorted(found), shorter


def _empty_token(path: Path, line: int) -> UserError:
    return UserError(
        "tokens.empty_token",
        "found an empty token, allowed: a token, or an empty line between sentences",
        place=f"{path}: line {line}",
    )


def _comments(
    blocks: Sequence[Sequence[tuple[int, str]]], split: Callable[[str], list[str]]
) -> set[int]:
    """Returns the numbers of the lines that are comments. `blocks` are the lines of sentences."""
    heads: list[list[tuple[int, str]]] = []  # first lines of each block that may be comments
    for lines in blocks:
        count = next((at for at, (_, line) in enumerate(lines) if not _COMMENT.match(line)), None)
        heads.append([*lines[:count]])
    bodies = [lines[len(head) :] for lines, head in zip(blocks, heads, strict=True)]
    width = next((len(split(body[0][1])) for body in bodies if body), 0)
    if not width:
        return set()
    if len(blocks) > 1 and width > 2 and all(heads):
        return {number for head in heads for number, _ in head}
    return {number for head in heads for number, line in head if len(split(line)) != width}


def _refuse_rows(path: Path, separator: str | None) -> None:
    """Raises UserError if a file contains rows, or columns between other separators."""
    require_file(path)
    with path.open("rb") as file:
        found = "Parquet" if file.read(4) == b"PAR1" else None
    if found is None:
        lines = (line.strip() for _, line in read_lines(path))
        first = next(filter(None, lines), "")
        found = _json_kind(first, path.suffix)
        is_table = path.suffix == ".csv" and separator is None and re.search("[,;]", first)
        found = found or (_TABLE if is_table else None)
    if found is not None:
        raise _rows(path, found)


def _rows(path: Path, found: str) -> UserError:
    return UserError(
        "tokens.rows",
        f"found {found}, allowed: one token per line, in columns. Write rows with tokens and "
        "ner_tags to a .jsonl (one object per line) or a .parquet.",
        place=path,
    )


def _json_kind(line: str, suffix: str) -> str | None:
    """Returns what JSON a file is that begins with a line, or None."""
    if line in ("[", "{"):  # also tokens
        return "JSON" if suffix == ".json" else None
    if not line.startswith(("[", "{")):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return "JSON lines"
    return "a JSON list" if any(isinstance(each, dict) for each in value) else None


def _refuse_index(path: Path, sentences: Sequence[Sentence], token: int, width: int) -> None:
    """Raises UserError if all tokens are numbers: those of the tokens, or of the sentences."""
    tokens = [token for sentence in sentences for token in sentence.tokens]
    if width >= 3 and len(tokens) > 1 and all(map(is_whole, tokens)):
        raise UserError(
            "tokens.index_column",
            f"found only numbers in column {token} of {width}. Set finetune.task.token_column "
            f"(such as {(token + 1) % width}) and finetune.task.label_column.",
            place=path,
        )


def _refuse_header(path: Path, first: Sentence) -> None:
    """Raises UserError if the first line has names of columns."""
    header = [first.tokens[0], (first.labels or [""])[0]]
    if all(map(_COLUMN_NAME.fullmatch, header)):
        raise UserError(
            "tokens.header",
            f"found the header {commas(header)}. Remove it.",
            place=f"{path}: line {first.lines[0]}",
        )


def _column(place: str, fields: list[str], key: str, number: int) -> int:
    """Converts a column to a non-negative index. Raises UserError if the line lacks the column."""
    if not -len(fields) <= number < len(fields):
        raise UserError(
            "tokens.column_missing", f"{key} is {number} of {len(fields)} columns", place=place
        )
    return number % len(fields)
