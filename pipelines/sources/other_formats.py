"""Refuses files that are not prose, such as JSON arrays and tables, by their first bytes."""

from typing import Final

from bert_jax.errors import UserError, commas
from bert_jax.pipelines.sources.recognition.binary import ARCHIVES, ENCODINGS, UNNAMED, binary_kind
from bert_jax.pipelines.sources.recognition.markup import markup_kind
from bert_jax.pipelines.sources.recognition.tables import (
    drawn_table_kind,
    table_kind,
    tokens_kind,
)
from bert_jax.pipelines.sources.recognition.values import (
    JSON_LINES,
    json_kind,
    python_kind,
    strings_kind,
)

START_BYTES: Final = 1 << 18
"""Number of bytes to look at: enough for the header and several rows of a table of documents."""

_TABLE_SUFFIXES: Final = {".csv": "a CSV table", ".tsv": "a TSV table"}


def refuse_other_formats(path: str, suffix: str, start: bytes, *, expected: str) -> None:
    """Raises UserError if a file begins like a format that is not read as text, or has CR lines.

    ``[{"text": "One."}, {"text": "Two."}]`` is a JSON array. ``text,label`` before rows of two
    fields is a CSV table. Prose that begins with a bracket or contains commas passes.

    Args:
        path: path of the file, for the message.
        suffix: suffix of the unpacked file, in lower case.
        start: the first `START_BYTES` of the unpacked file.
        expected: format that the file seems to have: "text" or "jsonl".
    """
    whole = len(start) < START_BYTES
    content = start.decode("utf-8-sig", "replace")
    text = content.lstrip()
    split = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    lines = [line for each in (split if whole else split[:-1]) if (line := each.strip())]
    found = json_kind(text, whole=whole) or python_kind(text, lines, whole=whole)
    if expected == "jsonl":
        if found in (None, JSON_LINES):
            return
    else:
        found = (
            found
            or binary_kind(start)
            or markup_kind(text, lines, whole=whole)
            or _TABLE_SUFFIXES.get(suffix)
            or strings_kind(lines)
            or drawn_table_kind(lines)
            or tokens_kind(lines)
            or table_kind(content, whole=whole)
        )
    if found is None and "\n" not in text and "\r" in text.strip():
        raise UserError(
            "input.line_ends",
            "found lines that end in CR. Convert them, or set format: text for one line.",
            place=path,
        )
    if found is not None:
        allowed = commas(["plain text", "JSON lines", "Parquet", "WikiExtractor", "Wikipedia XML"])
        raise UserError.wrong(
            "input.other_format", found, f"{allowed}. {_remedy(found)}", place=path
        )


def _remedy(found: str) -> str:
    if found in ARCHIVES:
        return "Unpack it and name the files inside."
    if found in ENCODINGS:
        return "Convert the text to UTF-8."
    if found in UNNAMED:
        return "Add the suffix to its name."
    return (
        "Convert the file to a .jsonl with one object per document and line, or set format: text "
        "to read its lines as prose."
    )
