"""Token classification, such as named entity recognition, on CoNLL files and lists of labels."""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.rows.collate import Ragged
from bert_jax.errors import UserError, commas
from bert_jax.files.atomic import write_whole
from bert_jax.section import Strings
from bert_jax.tasks import family
from bert_jax.tasks.labels import too_few_labels, unknown_label
from bert_jax.tasks.tokens import entities
from bert_jax.tasks.tokens.conll import ConllFile, Sentence, read_conll
from bert_jax.tasks.tokens.sentence_rows import LABELS, SUFFIXES, read_sentence_rows
from bert_jax.tasks.tokens.text_words import place_tokens, splits_punctuation
from bert_jax.tasks.tokens.windows import Window, cut_windows
from bert_jax.text.tokenizer import Tokenizer


class TokenClassificationSection(family.FilesSection):
    """CoNLL files: columns, with an empty line between sentences.

    If a test file has no label column, `label_column` should not be negative. Files named .jsonl
    and .parquet have a sentence per row: a list `tokens` and a list `ner_tags` or `labels`.
    """

    text_column = "token_column"

    kind: Literal["token_classification"] = "token_classification"
    token_column: int | str = 0
    """Column of the token, from 0. Negative numbers count from the end. In .jsonl and .parquet, the
    name of a column; by default, `tokens`, `words` or `text`."""
    label_column: int | str = -1
    """Column of the label, from 0. Negative numbers count from the end. In .jsonl and .parquet, the
    name of a column; by default, `ner_tags`, `ner`, `labels`, `tags` or `label`."""
    label_names: Strings = ()
    """Names of the labels if a .jsonl or .parquet has numbers without names."""
    separator: str | None = pydantic.Field(default=None, min_length=1)
    """Separator of columns. By default, spaces and tabs."""
    comment: str | None = pydantic.Field(default=None, min_length=1)
    """Prefix of comment lines, which are skipped. By default, lines before a sentence that begin
    with # and do not look like tokens."""
    scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "IOBES", "none"] = "auto"
    """Tagging scheme. `none`: labels without spans, such as parts of speech. `IOBES` is an alias of
    `BIOES`."""
    stride: int | None = pydantic.Field(default=None, ge=1)
    """Number of pieces between the starts of consecutive windows of a long sentence. By default,
    half a window."""

    @property
    def named_scheme(self) -> entities.Scheme | None:
        """The scheme, or None if it is to be detected."""
        if self.scheme == "auto":
            return None
        return "BIOES" if self.scheme == "IOBES" else self.scheme

    @property
    def class_columns(self) -> Sequence[str]:
        """The possible columns of the labels."""
        return [self.label_column] if isinstance(self.label_column, str) else LABELS

    def tuple_columns(self, role: str) -> Sequence[str]:
        """Returns the columns of tokens and labels."""
        del role
        return "tokens", self.class_columns[0]

    def open(self, request: family.DataRequest) -> family.Family:
        """Opens the files.

        If the request has no labels, `complete_labels` derives them from the training set. Raises
        UserError for a label that the scheme or the model lacks, a stride longer than a window, a
        role without a file, or as `read_conll`.
        """
        room = request.max_length - 2
        stride = self.stride or -(-room // 2)
        if stride > room:
            raise UserError.wrong(
                "tokens.stride", stride, f"1 to {room} (max_length - 2)", place="task.stride"
            )
        roles = request.roles
        if request.labels is None and "train" not in roles:
            roles = ("train", *roles)
        files = {role: _read(self, request, role) for role in roles}
        notes: list[str] = []
        if request.labels is not None:
            scheme, labels, facts = _scheme_of_model(self, request.labels), request.labels, {}
        else:
            train = files["train"]
            notes += _how_read(train)
            scheme = _scheme_of_file(self, train, notes)
            if len(train.names) < 2:
                raise too_few_labels(train.names, train.path)
            labels = entities.complete_labels(train.names, scheme)
            facts = {
                "integer_labels": train.numbers and all(map(str.isdecimal, labels)),
                "split_punctuation": splits_punctuation(train.sentences),
            }
        # A model's labels do not determine whether the scheme is IOB1 or IOB2.
        exact = self.scheme != "auto" or request.labels is None
        splits: dict[str, TokenSplit] = {}
        for role in request.roles:
            file = files[role]
            _check_labels(file, labels)
            splits[role] = split = TokenSplit(
                file.sentences,
                request.tokenizer,
                labels=labels,
                room=room,
                stride=stride,
                spans=scheme != "none",
            )
            stray = "tokens have a label, but others have none: all labels are ignored"
            comments = "lines begin with # and are read as comments"
            ranges = "lines of divided or missing words, such as 1-2 and 8.1, are skipped"
            found = {**split.findings, stray: file.stray_labels, comments: file.comments}
            found |= {ranges: file.ranges}
            notes += family.count_notes(file.path, found)
            if file.languages:
                shown = ", ".join(file.languages)
                notes.append(f"{file.path}: the language before each token is removed: {shown}")
            notes += _contradictions(file, scheme) if exact else []
        return family.Family(
            heads=family.task_heads("token_classification", labels=labels, **facts),
            best_metric="accuracy" if scheme == "none" else "f1",
            splits=splits,
            notes=tuple(notes),
            score=functools.partial(_score, scheme),
            write_official=functools.partial(_write_conll, self.separator or " "),
        )


def _score(scheme: entities.Scheme, records: Sequence[family.Record]) -> dict[str, float]:
    """Scores entities if the scheme has spans, otherwise tokens."""
    scores = entities.label_scores if scheme == "none" else entities.entity_scores
    return scores([r["label"] for r in records], [r["prediction"] for r in records])


def _write_conll(
    separator: str, split: str, records: Sequence[family.Record], directory: Path
) -> Sequence[Path]:
    """Writes ``SPLIT.conll`` for conlleval, with columns token, label (if known), prediction."""
    blocks = []
    for record in records:
        columns = [record["tokens"], record["label"], record["prediction"]]
        lines = zip(*(column for column in columns if column is not None), strict=True)
        blocks.append("".join(f"{separator.join(line)}\n" for line in lines))
    path = directory / f"{split}.conll"
    write_whole(path, "\n".join(blocks))
    return [path]


def _read(section: TokenClassificationSection, request: family.DataRequest, role: str) -> ConllFile:
    source = request.source(section, role)
    labelled, columns = family.needs_labels(role), (section.token_column, section.label_column)
    if isinstance(source, MemoryTable) or source.suffix in SUFFIXES:
        token, label = columns
        return read_sentence_rows(
            source,
            labelled=labelled,
            token=token,
            label=label,
            names=section.label_names,
            punctuation=request.split_punctuation,
        )
    token, label = (
        _number(source, f"task.{key}", column)
        for key, column in zip(("token_column", "label_column"), columns, strict=True)
    )
    return read_conll(
        source,
        labelled=labelled,
        token=token,
        label=label,
        separator=section.separator,
        comment=section.comment,
    )


def _how_read(train: ConllFile) -> list[str]:
    """Returns notes on a training set that may not be read as meant."""
    if train.numbers:
        return [f"{train.path}: labels are numbers. Set finetune.task.label_names to their names."]
    if train.columns is None or train.columns[-1] < 3:
        return []
    token, label, width = train.columns
    return [f"{train.path}: of {width} columns, tokens are in column {token}, labels in {label}"]


def _number(path: Path, key: str, column: int | str) -> int:
    if isinstance(column, str):
        raise UserError(
            "tokens.column_name", f'found "{column}", allowed for {path}: a number', place=key
        )
    return column


def _scheme_of_file(
    section: TokenClassificationSection, train: ConllFile, notes: list[str]
) -> entities.Scheme:
    """Returns the scheme of a training set. If it was detected, adds a note."""
    scheme = section.named_scheme
    if scheme is None:
        scheme = entities.detect_scheme([sentence.labels or [] for sentence in train.sentences])
        how = "none: each token is scored by itself" if scheme == "none" else scheme
        notes.append(f"{train.path}: the scheme of its labels is {how}")
    elif wrong := {name for name in train.names if not entities.fits(name, scheme)}:
        line, name = train.first(wrong)
        allowed = commas(entities.labels_of(scheme))
        raise UserError.wrong(
            "tokens.label_outside_scheme", f"{name} in {scheme}", allowed, place=train.place(line)
        )
    return scheme


def _scheme_of_model(section: TokenClassificationSection, labels: Sequence[str]) -> entities.Scheme:
    found, scheme = entities.scheme_of_names(labels), section.named_scheme
    for name in labels:
        if scheme is not None and not entities.fits(name, scheme):
            raise UserError(
                "tokens.scheme", f"{section.scheme} lacks {name}. Set {found}.", place="task.scheme"
            )
    return scheme or found


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
    line = file.place(line).removeprefix(f"{file.path}: ")
    return [
        f"{file.path}: {len(wrong)} labels contradict {scheme}, first {name} in {line}. "
        "Spans are read as in conlleval."
    ]


def _check_labels(file: ConllFile, labels: Sequence[str]) -> None:
    if unknown := file.names - set(labels):
        line, name = file.first(unknown)
        raise unknown_label(name, labels, place=file.place(line))


class _Row(NamedTuple):
    sentence: int
    offset: int  # index in the file of the sentence's first word
    window: Window


class TokenSplit(family.Split):
    """The sentences of a file. A long sentence has several rows, its windows."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        room: int,
        stride: int,
        spans: bool,
    ) -> None:
        """Encodes each token with the space before it, and cuts sentences into windows.

        `labels` are the model's; `spans` says whether they have a span scheme. A row has at most
        `room` pieces besides [CLS] and [SEP]. For `stride`, see `cut_windows`. A token without
        pieces, such as a control character, becomes [UNK].
        """
        self._sentences, self._special = sentences, tokenizer.special
        self.examples, self.fingerprint = len(sentences), family.content_hash(sentences)
        self._names, self._spans = labels, spans
        self._ids = {name: index for index, name in enumerate(labels)}
        encoded = tokenizer.encode_parts([sentence.tokens for sentence in sentences])
        words = Ragged(itertools.chain.from_iterable(encoded))
        sizes = np.diff(words.offsets)
        unknown = np.asarray([tokenizer.special.unk], np.int32)
        self._pieces = Ragged(
            words[index][:room] if size else unknown for index, size in enumerate(sizes.tolist())
        )
        self._rows: list[_Row] = []
        lengths = np.diff(self._pieces.offsets)
        offset = 0
        for number, sentence in enumerate(sentences):
            end = offset + len(sentence.tokens)
            windows = cut_windows(lengths[offset:end], room=room, stride=stride)
            self._rows += [_Row(number, offset, window) for window in windows]
            offset = end
        bounds = np.asarray(
            [(row.offset + row.window.first, row.offset + row.window.end) for row in self._rows]
        )
        starts, ends = self._pieces.offsets[bounds].T
        self.lengths = (ends - starts + 2).astype(np.int32)
        rows = Counter(row.sentence for row in self._rows)
        self.findings = {
            "words have no piece and are read as [UNK]": int(np.sum(sizes == 0)),
            f"words have more than {room} pieces and are truncated": int(np.sum(sizes > room)),
            f"sentences have more than {room} pieces and are split into windows": (
                sum(count > 1 for count in rows.values())
            ),
        }

    def row(self, index: int) -> family.Encoded:
        """Returns a window. Its labels are at the first pieces of the words that it predicts.

        A word in two windows therefore counts once in the loss and the scores.
        """
        row = self._rows[index]
        window = row.window
        pieces = self._pieces.between(row.offset + window.first, row.offset + window.end)
        ids = [self._special.cls, *pieces.tolist(), self._special.sep]
        labels = self._sentences[row.sentence].labels
        targets = {}
        if labels is not None:
            target = np.full(len(ids), family.NO_LABEL, np.int32)
            read = labels[window.read : window.read_end]
            target[self._first_pieces(row)] = [self._ids[name] for name in read]
            targets = {"labels": target}
        return family.Encoded([ids], [len(ids)], targets)

    def reduce(self, index: int, logits: np.ndarray) -> np.ndarray:
        """Returns (label id, probability) of the words that a row predicts, [words, 2]."""
        logits = logits[self._first_pieces(self._rows[index])].astype(np.float64)
        best = logits.max(axis=-1)
        chances = 1 / np.exp(logits - best[:, None]).sum(axis=-1)
        return np.stack([np.argmax(logits, axis=-1), chances], axis=-1)

    def starts_example(self, row: int) -> bool:
        """Returns whether a row is the first window of a sentence."""
        return row == 0 or self._rows[row].sentence > self._rows[row - 1].sentence

    def records(self, reduced: Sequence[np.ndarray], *, first: int = 0) -> list[family.Record]:
        """Returns records with a predicted label for every token, and with whole entities."""
        # Each word is predicted in exactly one row, and rows are in word order.
        words = iter(np.concatenate(reduced).tolist())
        records = []
        end = first + len(reduced)
        start = self._rows[first].sentence if first else 0
        stop = self._rows[end].sentence if end < len(self._rows) else len(self._sentences)
        for number in range(start, stop):
            sentence = self._sentences[number]
            found = list(itertools.islice(words, len(sentence.tokens)))
            predicted = [self._names[int(label)] for label, _ in found]
            chances = [chance for _, chance in found]
            text, offsets = place_tokens(sentence)
            record: family.Record = {
                "id": number,
                "text": text,
                "tokens": list(sentence.tokens),
                "offsets": offsets,
                "label": None if sentence.labels is None else list(sentence.labels),
                "prediction": predicted,
                "probabilities": chances,
            }
            if self._spans:
                record["entities"] = entities.entity_records(predicted, chances, text, offsets)
            records.append(record)
        return records

    def _first_pieces(self, row: _Row) -> np.ndarray:
        offsets = self._pieces.offsets[row.offset :]
        window = row.window
        # Add 1 for [CLS].
        return 1 + offsets[window.read : window.read_end] - offsets[window.first]
