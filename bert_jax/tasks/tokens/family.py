"""Named entities, parts of speech: a label for every token of a file of columns."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pydantic

from bert_jax.data.memory_table import MemoryTable
from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.atomic import write_whole
from bert_jax.tasks.family import (
    DataRequest,
    Family,
    FilesSection,
    Record,
    needs_labels,
    task_heads,
)
from bert_jax.tasks.tokens import entities
from bert_jax.tasks.tokens.conll import ConllFile, read_conll, sentences_in_memory
from bert_jax.tasks.tokens.split import TokenSplit


class TokenClassificationSection(FilesSection):
    """Files of columns, with an empty line between sentences. Negative columns count from the end.

    Where a test file lacks the last column, `label_column` should be given from the front.
    """

    kind: Literal["token_classification"] = "token_classification"
    token_column: int = 0
    """From 0; negative ones count from the end."""
    label_column: int = -1
    """Likewise."""
    separator: str | None = pydantic.Field(default=None, min_length=1)
    """Between columns. None: spaces and tabs."""
    comment: str | None = pydantic.Field(default=None, min_length=1)
    """How lines begin that are no tokens."""
    scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "IOBES", "none"] = "auto"
    """How labels spell spans. `none`: they spell none, such as parts of speech. IOBES is BIOES."""
    stride: int | None = pydantic.Field(default=None, ge=1)
    """Pieces from one window of a long sentence to the next. None: half a window."""

    def open(self, request: DataRequest) -> Family:
        """Opens the files.

        Without a model, the labels are those of the training set, sorted and completed by those of
        its scheme (`complete_labels`). Raises UserError: a file that `read_conll` refuses, a label
        that the scheme or the model lacks, a stride longer than a window, a role without a file.
        """
        room = request.max_length - 2
        stride = self.stride or -(-room // 2)
        if stride > room:
            raise UserError(
                f"task.stride: found {stride}, allowed: 1 to {room}, the pieces of a window "
                f"(max_length {request.max_length} without [CLS] and [SEP])"
            )
        roles = request.roles
        if request.labels is None and "train" not in roles:
            roles = ("train", *roles)
        files = {role: _read(self, request, role) for role in roles}
        notes: list[str] = []
        if request.labels is not None:
            scheme, labels = _scheme_of_model(self, request.labels), request.labels
        else:
            scheme = _scheme_of_file(self, files["train"], notes)
            labels = _labels_of(files["train"], scheme)
        # Names alone do not tell IOB1 from IOB2.
        exact = self.scheme != "auto" or request.labels is None
        splits: dict[str, TokenSplit] = {}
        for role in request.roles:
            file = files[role]
            _check_labels(file, labels)
            splits[role] = split = TokenSplit(
                file.sentences, request.tokenizer, labels=labels, room=room, stride=stride
            )
            notes += split.notes(file.path, stray=file.stray_labels)
            notes += _contradictions(file, scheme) if exact else []
        return Family(
            heads=task_heads("token_classification", labels=labels),
            best_metric="accuracy" if scheme == "none" else "f1",
            splits=splits,
            notes=tuple(notes),
            score=functools.partial(_score, scheme),
            write_official=functools.partial(_write_conll, self.separator or " "),
        )


def _score(scheme: entities.Scheme, records: Sequence[Record]) -> dict[str, float]:
    """Returns the figures of entities where the labels have a scheme of spans, else of tokens."""
    scores = entities.label_scores if scheme == "none" else entities.entity_scores
    return scores([r["label"] for r in records], [r["prediction"] for r in records])


def _write_conll(
    separator: str, split: str, records: Sequence[Record], directory: Path
) -> Sequence[Path]:
    """Writes ``SPLIT.conll``: token, label (if there is one), prediction; as conlleval reads."""
    blocks = []
    for record in records:
        columns = [record["tokens"], record["label"], record["prediction"]]
        lines = zip(*(column for column in columns if column is not None), strict=True)
        blocks.append("".join(f"{separator.join(line)}\n" for line in lines))
    path = directory / f"{split}.conll"
    write_whole(path, "\n".join(blocks))
    return [path]


def _read(section: TokenClassificationSection, request: DataRequest, role: str) -> ConllFile:
    source = request.source(section, role)
    if isinstance(source, MemoryTable):
        return sentences_in_memory(source)
    return read_conll(
        source,
        labelled=needs_labels(role),
        token=section.token_column,
        label=section.label_column,
        separator=section.separator,
        comment=section.comment,
    )


def _scheme_of_file(
    section: TokenClassificationSection, train: ConllFile, notes: list[str]
) -> entities.Scheme:
    """Returns the scheme of a training set; a note says so if it was found there."""
    scheme = _named_scheme(section)
    if scheme is None:
        scheme = entities.detect_scheme([sentence.labels or [] for sentence in train.sentences])
        notes.append(f"{train.path}: the scheme of its labels is {scheme}")
    elif wrong := {name for name in train.names if not entities.fits(name, scheme)}:
        line, name = train.first(wrong)
        raise UserError(
            f'{train.path}: line {line}: found the label "{name}", allowed under {scheme}: '
            f"{entities.spelled(scheme)}"
        )
    return scheme


def _scheme_of_model(section: TokenClassificationSection, labels: Sequence[str]) -> entities.Scheme:
    found, scheme = entities.scheme_of_names(labels), _named_scheme(section)
    if scheme is None:
        return found
    for name in labels:
        if not entities.fits(name, scheme):
            raise UserError(
                f"task.scheme: found {section.scheme}, which has no {name} as the model has, "
                f"allowed: {found}"
            )
    return scheme


def _named_scheme(section: TokenClassificationSection) -> entities.Scheme | None:
    if section.scheme == "auto":
        return None
    return "BIOES" if section.scheme == "IOBES" else section.scheme


def _contradictions(file: ConllFile, scheme: entities.Scheme) -> list[str]:
    wrong = [
        (sentence.lines[position], sentence.labels[position])
        for sentence in file.sentences
        if sentence.labels is not None
        for position in entities.violations(sentence.labels, scheme)
    ]
    if not wrong:
        return []
    line, name = wrong[0]
    return [
        f"{file.path}: {len(wrong)} labels are not as {scheme} has them, first line {line}: "
        f"{name}; spans are read as by conlleval"
    ]


def _check_labels(file: ConllFile, labels: Sequence[str]) -> None:
    unknown = file.names - set(labels)
    if unknown:
        line, name = file.first(unknown)
        raise UserError(
            f'{file.path}: line {line}: found the label "{name}", allowed: {", ".join(labels)}'
            f"{did_you_mean(name, labels)}"
        )


def _labels_of(train: ConllFile, scheme: entities.Scheme) -> tuple[str, ...]:
    found = train.names
    if len(found) < 2:
        raise UserError(
            f"{train.path}: found the label {', '.join(found)} alone, allowed: two or more"
        )
    return entities.complete_labels(found, scheme)
