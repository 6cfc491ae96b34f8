"""The texts of evaluation sets: GLUE's tables, SQuAD's JSON, plain lines."""

from collections.abc import Iterator
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import MAX_FILE_BYTES, parse_json, read_json_object
from bert_jax.pipelines.sources.decompress import bare_suffix
from bert_jax.pipelines.sources.files import read_lines

# A first row with one of these is a header. CoLA and the like have none.
_COLUMNS: Final = frozenset(
    (
        *("index", "id", "label", "quality", "genre", "sentence", "sentence1", "sentence2"),
        *("question", "question1", "question2", "premise", "hypothesis", "pairid", "gold_label"),
    )
)


def evaluation_texts(path: str) -> Iterator[list[str]]:
    """Yields the texts of each example of an evaluation file.

    A ``.tsv`` gives the fields of each row; a ``.json`` of SQuAD's form each question and each
    context by itself; a ``.jsonl`` the strings of each object; any other file each line.

    Raises:
        UserError: the file cannot be read, or is JSON of another form.
    """
    suffix = bare_suffix(path)
    if suffix == ".json":
        yield from _squad(path)
        return
    for line in read_lines(path):
        if not line.text.strip():
            continue
        if suffix == ".jsonl":
            yield _strings(path, line.text)
        elif suffix == ".tsv":
            fields = line.text.split("\t")
            if line.offset or _COLUMNS.isdisjoint(f.strip("\ufeff# ").lower() for f in fields):
                yield fields
        else:
            yield [line.text]


def _squad(path: str) -> Iterator[list[str]]:
    content = read_json_object(epath.Path(path), limit=MAX_FILE_BYTES)
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                yield [_text(paragraph, "context")]
                for question in paragraph["qas"]:
                    yield [_text(question, "question")]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: found no {error} in it, allowed: SQuAD's data, paragraphs, context, qas and "
            "question; or a .tsv, a .jsonl or plain lines"
        ) from error


def _text(node: dict[str, Any], key: str) -> str:
    if not isinstance(text := node[key], str):
        raise TypeError(f"text in {key}")
    return text


def _strings(path: str, text: str) -> list[str]:
    try:
        record = parse_json(text)
    except UserError as error:
        raise UserError(f"{path}: {error} in each line") from None
    values = record.values() if isinstance(record, dict) else [record]
    return [value for value in values if isinstance(value, str)]
