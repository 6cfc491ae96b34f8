"""Named entities, parts of speech: a label for every token of a file of columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.atomic import write_whole
from bert_jax.model.config import HeadsSection
from bert_jax.section import Section
from bert_jax.tasks.family import Opening, Record
from bert_jax.tasks.tokens.conll import Columns, ConllFile, read_conll
from bert_jax.tasks.tokens.entities import entity_scores, label_scores
from bert_jax.tasks.tokens.schemes import (
    Scheme,
    complete_labels,
    detect_scheme,
    fits,
    scheme_of_names,
    spelled,
    violations,
)
from bert_jax.tasks.tokens.split import TokenSplit, Words, encode_words


class TokenClassificationSection(Section):
    """Files of columns, and how they are labelled. Negative columns count from the end.

    Where a test file lacks the last column, `label_column` should be given from the front.
    """

    kind: Literal["token_classification"] = "token_classification"
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    token_column: int = 0
    label_column: int = -1
    separator: str | None = pydantic.Field(default=None, min_length=1)  # None: spaces and tabs
    comment: str | None = pydantic.Field(default=None, min_length=1)  # how such lines begin
    # "none": labels that spell no spans, such as parts of speech. IOBES is BIOES.
    scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "IOBES", "none"] = "auto"
    # Pieces from one window of a long sentence to the next; None: half a window.
    stride: int | None = pydantic.Field(default=None, ge=1)


@dataclasses.dataclass(frozen=True)
class TokenFamily:
    """A token classification task with its data opened; satisfies `Family`."""

    heads: HeadsSection
    splits: Mapping[str, TokenSplit]
    notes: Sequence[str]
    scheme: Scheme  # where the training set was not opened, IOB2 may stand for IOB1
    separator: str
    class_weights: Sequence[float] | None = None

    @property
    def best_metric(self) -> str:
        """F1 of entities; accuracy where labels spell none."""
        return "accuracy" if self.scheme == "none" else "f1"

    def score(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns precision, recall, f1 (of entities) and token_accuracy; or accuracy and macro_f1.

        The first where the labels have a scheme of spans.
        """
        scores = label_scores if self.scheme == "none" else entity_scores
        return scores([r["label"] for r in records], [r["prediction"] for r in records])

    def write_official(
        self, split: str, records: Sequence[Record], directory: Path
    ) -> Sequence[Path]:
        """Writes ``SPLIT.conll``: token, label (if there is one), prediction; as conlleval reads.

        Columns stand apart by a space, or as in the files of the section.
        """
        blocks = []
        for record in records:
            columns = [record["tokens"], record["label"], record["prediction"]]
            lines = zip(*(column for column in columns if column is not None), strict=True)
            blocks.append("".join(f"{self.separator.join(line)}\n" for line in lines))
        path = directory / f"{split}.conll"
        write_whole(epath.Path(path), "\n".join(blocks).encode())
        return [path]


def open_token_classification(section: TokenClassificationSection, opening: Opening) -> TokenFamily:
    """Opens the files.

    Labels without those of the model: the ones of the training set, sorted, and what the scheme has
    beside them (`complete_labels`).

    Args:
        section: the task.
        opening: what is wanted of it.

    Raises:
        UserError: a file that `read_conll` refuses, a label that the scheme or the model does not
            have, a stride longer than a window, a role without a file.
    """
    room = opening.max_length - 2
    stride = section.stride or -(-room // 2)
    if stride > room:
        raise UserError(
            f"task.stride: found {stride}, allowed: 1 to {room}, the pieces of a window "
            f"(max_length {opening.max_length} without [CLS] and [SEP])"
        )
    roles = opening.roles
    if opening.labels is None and "train" not in roles:
        roles = ("train", *roles)
    files = {role: _read(section, opening, role) for role in roles}
    notes: list[str] = []
    if opening.labels is not None:
        scheme, labels = _scheme_of_model(section, opening.labels), opening.labels
    else:
        scheme = _scheme_of_file(section, files["train"], notes)
        labels = _labels_of(files["train"], scheme)
    # Names alone do not tell IOB1 from IOB2.
    exact = section.scheme != "auto" or opening.labels is None
    splits = {}
    for role in opening.roles:
        file = files[role]
        _check_labels(file, labels)
        words = encode_words(opening.tokenizer, file.sentences, room=room)
        splits[role] = TokenSplit(
            file.sentences,
            words.pieces,
            labels=labels,
            special=opening.tokenizer.special,
            room=room,
            stride=stride,
        )
        notes += _notes(file, words, splits[role], room=room)
        notes += _contradictions(file, scheme) if exact else []
    heads = HeadsSection(
        task="token_classification", labels=labels, pooler=False, mlm=False, next_sentence=False
    )
    return TokenFamily(heads, splits, tuple(notes), scheme, section.separator or " ")


def _read(section: TokenClassificationSection, opening: Opening, role: str) -> ConllFile:
    paths = {"train": section.train, "dev": section.dev, "test": section.test}
    path = opening.input if role == "input" else paths[role]
    if path is None:
        raise UserError(f"task.{role}: found nothing, allowed: a file of columns")
    columns = Columns(
        token=section.token_column,
        label=section.label_column,
        separator=section.separator,
        comment=section.comment,
    )
    return read_conll(
        Path(path), columns, labels="required" if role in ("train", "dev") else "optional"
    )


def _scheme_of_file(
    section: TokenClassificationSection, train: ConllFile, notes: list[str]
) -> Scheme:
    """Returns the scheme of a training set; where it was found there, the notes say so."""
    if section.scheme == "auto":
        scheme = detect_scheme([sentence.labels or [] for sentence in train.sentences])
        notes.append(f"{train.path}: the scheme of its labels is {scheme}")
        return scheme
    scheme = _named_scheme(section)
    wrong = {name for name in _names(train) if not fits(name, scheme)}
    if wrong:
        line, name = _first(train, wrong)
        raise UserError(
            f'{train.path}: line {line}: found the label "{name}", allowed under {scheme}: '
            f"{spelled(scheme)}"
        )
    return scheme


def _scheme_of_model(section: TokenClassificationSection, labels: Sequence[str]) -> Scheme:
    if section.scheme == "auto":
        return scheme_of_names(labels)
    scheme = _named_scheme(section)
    for name in labels:
        if not fits(name, scheme):
            raise UserError(
                f"task.scheme: found {section.scheme}, which has no {name} as the model has, "
                f"allowed: {scheme_of_names(labels)}"
            )
    return scheme


def _named_scheme(section: TokenClassificationSection) -> Scheme:
    assert section.scheme != "auto"
    return "BIOES" if section.scheme == "IOBES" else section.scheme


def _contradictions(file: ConllFile, scheme: Scheme) -> list[str]:
    wrong = [
        (sentence.lines[position], sentence.labels[position])
        for sentence in file.sentences
        if sentence.labels is not None
        for position in violations(sentence.labels, scheme)
    ]
    if not wrong:
        return []
    line, name = wrong[0]
    return [
        f"{file.path}: {len(wrong)} labels are not as {scheme} has them, first line {line}: "
        f"{name}; spans are read as by conlleval"
    ]


def _check_labels(file: ConllFile, labels: Sequence[str]) -> None:
    unknown = _names(file) - set(labels)
    if unknown:
        line, name = _first(file, unknown)
        raise UserError(
            f'{file.path}: line {line}: found the label "{name}", allowed: {", ".join(labels)}'
            f"{did_you_mean(name, labels)}"
        )


def _labels_of(train: ConllFile, scheme: Scheme) -> tuple[str, ...]:
    found = _names(train)
    if len(found) < 2:
        raise UserError(
            f"{train.path}: found the label {', '.join(found)} alone, allowed: two or more"
        )
    return complete_labels(found, scheme)


def _names(file: ConllFile) -> set[str]:
    return {name for sentence in file.sentences for name in sentence.labels or ()}


def _first(file: ConllFile, names: set[str]) -> tuple[int, str]:
    return next(
        (line, name)
        for sentence in file.sentences
        for line, name in zip(sentence.lines, sentence.labels or (), strict=True)
        if name in names
    )


def _notes(file: ConllFile, words: Words, split: TokenSplit, *, room: int) -> list[str]:
    found = {
        "words have no piece and are read as [UNK]": words.without_piece,
        f"words have more than {room} pieces and are read up to there": words.cut,
        f"sentences have more than {room} pieces and are read in windows": split.long_sentences,
        "tokens have a label and others none: it is read as unlabelled": file.stray_labels,
    }
    return [f"{file.path}: {count} {what}" for what, count in found.items() if count]
