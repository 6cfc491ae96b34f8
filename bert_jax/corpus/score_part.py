"""Scores one part: read, encode, compute, write. The same function runs on every engine."""

import collections
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from etils import epath

from bert_jax.corpus.keep import Condition
from bert_jax.corpus.parts import InputPart
from bert_jax.corpus.program import Forward
from bert_jax.corpus.reading import PartReader, RowWindow
from bert_jax.corpus.results import PartSettings, Results, Tags
from bert_jax.corpus.summary import PartSummary
from bert_jax.corpus.windows import EncodedWindow, TagWindow, TextWindow
from bert_jax.corpus.writing import open_part
from bert_jax.errors import Diverged
from bert_jax.files.atomic import write_whole
from bert_jax.inference.batches import plan_batches

PARTS: Final = "_parts"
"""Directory of the records of finished parts, below the output directory."""
_IN_FLIGHT: Final = 64  # batches that were submitted and not collected


class Progress(NamedTuple):
    """Work since the last report."""

    rows: int
    tokens: int
    positions: int  # tokens and padding
    waited: float = 0.0  # seconds in which the devices waited


class PartRecord(NamedTuple):
    """A finished part."""

    input: dict[str, Any]  # path, size and range
    output: str  # name below the output directory
    sha256: str
    bytes: int
    read: int  # rows that were read
    written: int
    dropped: int  # rows for which the condition was not true
    skipped: int  # rows that could not be read
    damage: str | None  # why reading ended early
    notes: list[str]  # first errors of skipped rows
    cut: int  # texts that were cut
    tokens: int
    seconds: float
    summary: dict[str, Any]  # see `PartSummary`


def score_part(
    part: InputPart,
    settings: PartSettings,
    forward: Forward,
    *,
    report: Callable[[Progress], None] = lambda progress: None,
) -> PartRecord:
    """Writes the output of a part, then its record.

    Raises UserError if the input is damaged or does not fit the settings, and Diverged if an output
    is not finite.
    """
    began = time.monotonic()
    section = settings.section
    results = settings.results
    reader = PartReader(part, settings)
    name = f"{part.stem}.{section.format}"
    target = epath.Path(section.output) / name
    condition: Condition | None = None
    read = written = cut = tokens = 0
    summary: PartSummary | None = None
    with open_part(target, section.format) as writer:
        for window, encoded, columns in _computed(reader, settings, forward, report, part):
            table = pa.table(window.columns)
            for field, column in zip(results.schema, columns, strict=True):
                table = table.append_column(field, column)
            if condition is None and section.keep is not None:
                condition = Condition(section.keep, columns=table.column_names)
            summary = summary or PartSummary(condition, results=results.schema.names)
            kept = table if condition is None else condition.kept(table)
            summary.add(table, window.texts)
            writer.write(kept)
            read, written = read + table.num_rows, written + kept.num_rows
            cut, tokens = cut + encoded.cut, tokens + int(encoded.lengths.sum())
        if summary is None:  # no row could be read
            writer.write(without_rows(reader.columns, results))
    record = PartRecord(
        input=part.input,
        output=name,
        sha256=writer.sha256,
        bytes=writer.bytes,
        read=read,
        written=written,
        dropped=read - written,
        skipped=reader.errors.count,
        damage=reader.damage,
        notes=reader.errors.note(part.file.path, kept=read),
        cut=cut,
        tokens=tokens,
        seconds=round(time.monotonic() - began, 3),
        summary={} if summary is None else summary.as_json(),
    )
    write_whole(record_path(section.output, part), json.dumps(record._asdict(), indent=1))
    return record


def record_path(output: str, part: InputPart) -> epath.Path:
    """Returns the path of a part's record."""
    return epath.Path(output) / PARTS / f"{part.stem}.json"


def encode_window(window: RowWindow, settings: PartSettings) -> EncodedWindow:
    """Encodes the rows of a window."""
    if isinstance(settings.results, Tags):
        assert settings.task is not None
        return TagWindow(window.texts, task=settings.task, results=settings.results)
    return TextWindow(
        window.texts,
        window.pairs,
        tokenizer=settings.tokenizer,
        max_length=settings.max_length,
        results=settings.results,
        prefix=settings.prefix,
    )


def _computed(
    reader: PartReader,
    settings: PartSettings,
    forward: Forward,
    report: Callable[[Progress], None],
    part: InputPart,
) -> Iterator[tuple[RowWindow, EncodedWindow, list[pa.Array]]]:
    """Yields windows with the columns of their results, in order.

    While the devices compute a window, the next one is read and encoded.
    """
    submitted: collections.deque[tuple[_Open, np.ndarray]] = collections.deque()
    open_windows: collections.deque[_Open] = collections.deque()

    def collect() -> None:
        window, rows = submitted.popleft()
        found = forward.collect()[: len(rows)]
        if not np.isfinite(found).all():
            raise Diverged(
                "score.not_finite",
                "found NaN or infinity in the model's outputs. The model has diverged.",
                place=part.file.path,
            )
        for at, output in zip(rows.tolist(), found, strict=True):
            window.outputs[at] = window.encoded.kept(output)
        window.missing -= len(rows)

    def finished() -> Iterator[tuple[RowWindow, EncodedWindow, list[pa.Array]]]:
        while open_windows and not open_windows[0].missing:
            done = open_windows.popleft()
            yield done.window, done.encoded, done.encoded.columns(done.outputs)

    for window in reader.windows(settings.limits):
        if not window.texts:
            continue
        encoded = encode_window(window, settings)
        current = _Open(window, encoded, [None] * len(encoded.lengths), len(encoded.lengths))
        open_windows.append(current)
        positions = 0
        for batch in plan_batches(encoded.lengths, settings.shapes):
            forward.submit(encoded.collate(batch))
            submitted.append((current, batch.rows))
            positions += batch.shape.rows * batch.shape.length
            if len(submitted) > _IN_FLIGHT:
                collect()
                yield from finished()
        report(Progress(len(window.texts), int(encoded.lengths.sum()), positions))
    while submitted:
        collect()
        yield from finished()


@dataclasses.dataclass
class _Open:
    """A window with batches that are being computed."""

    window: RowWindow
    encoded: EncodedWindow
    outputs: list[Any]
    missing: int  # rows without outputs


def without_rows(columns: Mapping[str, pa.Array], results: Results) -> pa.Table:
    """Returns an empty table with the types of columns, then those of results."""
    kinds = [(name, column.type) for name, column in columns.items()]
    return pa.schema([*kinds, *results.schema]).empty_table()
