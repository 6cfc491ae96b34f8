"""Reads the rows of an input part, in windows of limited size."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bert_jax.corpus.parts import DATASET, InputPart
from bert_jax.corpus.results import PartSettings, Tags, WindowLimits
from bert_jax.corpus.section import EVERY_COLUMN
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.row_errors import SKIPPED_SHOWN, RowError, RowErrors
from bert_jax.data.tables import read_table
from bert_jax.errors import UserError, first_line
from bert_jax.files.download import local_copy
from bert_jax.files.hub import is_dataset_file, temporary_copy
from bert_jax.files.parquet import open_parquet
from bert_jax.files.read import MAX_LINE, parse_json_object
from bert_jax.pipelines.sources.documents import document_id
from bert_jax.pipelines.sources.files import is_packed, line_number, open_text

_ID: Final = "id"
_ROWS_AT_ONCE: Final = 1024  # rows of a Parquet file that are decoded together
_DAMAGED: Final = (
    *("parquet.unreadable", "text.damaged", "text.not_utf8", "table.no_header"),
    *("file.unreadable", "file.not_utf8", "file.line_too_long"),
)


class RowWindow(NamedTuple):
    """Consecutive rows of a part, without those that cannot be read."""

    columns: dict[str, pa.Array]  # ids and copied columns
    texts: list[Any]
    pairs: list[Any] | None


class Asked(NamedTuple):
    """The columns to read."""

    text: str
    pair: str | None
    id: str | None  # None: file and position
    copied: tuple[str, ...]

    @property
    def needed(self) -> dict[str, str]:
        """All columns, by setting."""
        named = {"score.text": self.text, "score.pair": self.pair, "score.id": self.id}
        found = {key: name for key, name in named.items() if name is not None}
        return found | {f"score.columns: {name}": name for name in self.copied}


class PartReader:
    """Reads a part once, from its start to its end.

    Attributes:
        errors: the rows that could not be read.
        damage: why reading ended before the end of the file, or None.
        columns: ids and copied columns without rows, of a file without readable rows.
    """

    def __init__(self, part: InputPart, settings: PartSettings) -> None:
        """Opens nothing yet."""
        self._part, self._section, self._settings = part, settings.section, settings
        self._path = part.file.path  # or a local copy
        self.errors = RowErrors(settings.section.on_error, setting="score.on_error=skip")
        self.damage: str | None = None
        self.columns: dict[str, Any] = {_ID: pa.array([], pa.string())}
        self._types: dict[str, pa.DataType] = {}  # JSON lines: types of the first window

    def windows(self, limits: WindowLimits) -> Iterator[RowWindow]:
        """Yields the rows. If the file is damaged and errors are skipped, ends at the damage.

        Raises UserError if the file is damaged, a column is missing, or a row cannot be read.
        """
        read = {
            "parquet": self._parquet,
            "jsonl": self._jsonl,
            "text": self._lines,
            DATASET: self._examples,
        }
        windows = read.get(self._part.file.format, self._table)(limits)
        path = self._part.file.path
        with contextlib.ExitStack() as stack:
            if is_dataset_file(path):
                self._path = str(stack.enter_context(temporary_copy(path)))
            while True:
                try:
                    window = next(windows, None)
                except UserError as error:
                    if self._section.on_error == "stop" or error.key not in _DAMAGED:
                        raise
                    self.damage = str(error)
                    return
                if window is None:
                    return
                yield window

    def _asked(self, names: Sequence[str]) -> Asked:
        """Returns the columns to read of a file with these columns."""
        section = self._section
        named = section.id or (_ID if _ID in names else None)
        copied = names if EVERY_COLUMN in section.columns else section.columns
        copied = tuple(name for name in dict.fromkeys(copied) if (name, named) != (_ID, _ID))
        asked = Asked(section.text, section.pair, named, copied)
        for key, name in asked.needed.items():
            if name not in names:
                setting, _, _ = key.partition(": ")
                raise UserError.unknown("score.no_column", name, names, place=setting)
        for name in copied:
            if name in (*self._settings.results.schema.names, _ID):
                raise UserError(
                    "score.column_taken",
                    f'found "{name}", a column of the result. Leave it out, or rename it.',
                    place="score.columns",
                )
        return asked

    def _parquet(self, limits: WindowLimits) -> Iterator[RowWindow]:
        file = self._part.file
        with open_parquet(self._path) as opened:
            asked = self._asked(opened.schema_arrow.names)
            empty = opened.schema_arrow.empty_table()
            ids = {} if asked.id is None else {_ID: empty.column(asked.id)}
            self.columns |= ids | {name: empty.column(name) for name in asked.copied}
            before = sum(opened.metadata.row_group(at).num_rows for at in range(file.start))
            groups = range(file.start, file.stop) if file.bytes is not None else None
            batches = opened.iter_batches(
                _ROWS_AT_ONCE,
                row_groups=groups,
                columns=list(dict.fromkeys(asked.needed.values())),
            )
            held: list[pa.RecordBatch] = []
            start, rows, characters = before, 0, 0
            for batch in batches:
                held.append(batch)
                rows += batch.num_rows
                characters += batch.column(asked.text).nbytes
                if rows >= limits.rows or characters >= limits.characters:
                    yield self._of_batches(held, asked, start=start)
                    start, held, rows, characters = start + rows, [], 0, 0
            if held:
                yield self._of_batches(held, asked, start=start)

    def _of_batches(
        self, batches: Sequence[pa.RecordBatch], asked: Asked, *, start: int
    ) -> RowWindow:
        table = pa.Table.from_batches(batches).combine_chunks()
        texts = self._texts_of(table, asked.text)
        pairs = None if asked.pair is None else self._texts_of(table, asked.pair)
        places = range(start, start + table.num_rows)
        kept = self._readable(places, texts, pairs, lambda place: f"row {place + 1}")
        columns: dict[str, pa.Array] = {}
        if asked.id is None:
            name = self._part.file.name
            columns[_ID] = pa.array([document_id(name, place) for place in places])
        else:
            columns[_ID] = _whole(table.column(asked.id))
        columns |= {name: _whole(table.column(name)) for name in asked.copied}
        if kept is not None:
            columns = {name: column.take(pa.array(kept)) for name, column in columns.items()}
            texts = [texts[at] for at in kept]
            pairs = None if pairs is None else [pairs[at] for at in kept]
        return RowWindow(columns, texts, pairs)

    def _texts_of(self, table: pa.Table, name: str) -> list[Any]:
        try:
            return table.column(name).to_pylist()
        except (ValueError, OverflowError):  # find the rows
            return [_decoded(value) for value in table.column(name)]

    def _readable(
        self,
        places: Sequence[int],
        texts: Sequence[Any],
        pairs: Sequence[Any] | None,
        place_of: Callable[[int], str],
    ) -> list[int] | None:
        """Returns the indices of rows whose texts can be read, or None if all can."""
        bad: set[int] = set()
        lists = isinstance(self._settings.results, Tags)
        for column, values in ((self._section.text, texts), (self._section.pair, pairs or ())):
            for at, value in enumerate(values):
                if isinstance(value, str) or (lists and _is_words(value)) or at in bad:
                    continue
                kind = "null" if value is None else type(value).__name__
                kind = "text that is not UTF-8" if value is _NOT_UTF8 else kind
                self.errors.refuse(
                    RowError(
                        "score.not_text",
                        f'column "{column}": found {kind}, allowed: text',
                        place=f"{self._part.file.path}: {place_of(places[at])}",
                    )
                )
                bad.add(at)
        return [at for at in range(len(texts)) if at not in bad] if bad else None

    def _jsonl(self, limits: WindowLimits) -> Iterator[RowWindow]:
        lines = ((offset, raw) for offset, raw in self._raw_lines() if raw.strip())
        rows = self._parsed(lines, lambda text: parse_json_object(text, allowed="an object"))
        yield from self._of_rows(rows, limits, place_of=self._line)

    def _lines(self, limits: WindowLimits) -> Iterator[RowWindow]:
        """Yields the lines of a text file. Its only column is `text`."""
        name = self._section.text
        rows = self._parsed(self._raw_lines(), lambda text: {name: text.rstrip("\r\n")})
        yield from self._of_rows(rows, limits, place_of=self._line)

    def _parsed(
        self, lines: Iterator[tuple[int, bytes]], parse: Callable[[str], Mapping[str, Any]]
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields the offset and the values of each line. Refuses lines that cannot be read."""
        for offset, raw in lines:
            try:
                values = parse(raw.decode())
            except UnicodeDecodeError as error:
                self._refuse(offset, f"found no UTF-8 ({error.reason})")
            except UserError as error:
                self._refuse(offset, error.message)
            else:
                yield offset, values

    def _line(self, offset: int) -> str:
        """Returns the place of a line for errors. Its number takes time: it reads the file."""
        if self.errors.count >= SKIPPED_SHOWN:  # the error is only counted
            return f"byte {offset}"
        return f"line {line_number(self._path, offset)}"

    def _refuse(self, offset: int, message: str) -> None:
        place = f"{self._part.file.path}: {self._line(offset)}"
        self.errors.refuse(RowError("score.row", message, place=place))

    def _examples(self, limits: WindowLimits) -> Iterator[RowWindow]:
        """Yields the examples of a shard. Requires the tokenizer of the model."""
        file, section = self._part.file, self._section
        if section.columns or section.pair or section.id:
            raise UserError(
                "score.column_of_dataset",
                f"found {file.path}, a dataset of `bert-jax examples`, which has no columns",
                place="score.columns" if section.columns else "score.pair",
            )
        dataset = open_dataset(file.path, file.name.rpartition("/")[2])
        dataset.provenance.require_tokenizer(self._settings.tokenizer.hash, place="score.model")
        rows = min(limits.rows, max(limits.characters // max(int(dataset.lengths.max()), 1), 1))
        for start in range(file.start, file.stop, rows):
            places = range(start, min(start + rows, file.stop))
            ids = pa.array([document_id(file.name, place) for place in places], pa.string())
            yield RowWindow({_ID: ids}, dataset.__getitems__(places), None)

    def _raw_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields the lines that start in the part, with their offsets in the unpacked file."""
        file = self._part.file
        stop = None if is_packed(file.path) else file.stop
        with open_text(self._path) as opened:
            if file.start:
                opened.seek(file.start)
            offset = file.start
            while (stop is None or offset < stop) and (raw := opened.readline(MAX_LINE + 1)):
                if len(raw) <= MAX_LINE:
                    yield offset, raw.removeprefix(b"\xef\xbb\xbf") if offset == 0 else raw
                else:
                    self._refuse(offset, f"longer than the limit of {MAX_LINE:,} bytes")
                    while raw and not raw.endswith(b"\n"):
                        offset += len(raw)
                        raw = opened.readline(MAX_LINE)
                offset += len(raw)

    def _table(self, limits: WindowLimits) -> Iterator[RowWindow]:
        path = local_copy(self._path)
        rows = ((row.line, row.values) for row in read_table(Path(path), errors=self.errors))
        yield from self._of_rows(rows, limits, place_of=lambda line: f"line {line}")

    def _of_rows(
        self,
        rows: Iterator[tuple[int, Mapping[str, Any]]],
        limits: WindowLimits,
        *,
        place_of: Callable[[int], str],
    ) -> Iterator[RowWindow]:
        """Yields windows of rows, each a place in the file and the values by column."""
        asked: Asked | None = None
        first: Mapping[str, Any] = {}
        held: list[tuple[int, Mapping[str, Any]]] = []
        characters = 0
        for place, values in rows:
            if asked is None:
                asked, first = self._asked([*values]), values
            if values.keys() != first.keys() and (problem := self._differs(values, asked)):
                where = f"{self._part.file.path}: {place_of(place)}"
                self.errors.refuse(RowError("score.row_columns", problem, place=where))
                continue
            held.append((place, values))
            text = values[asked.text]
            characters += len(text) if isinstance(text, str) else 0
            if len(held) >= limits.rows or characters >= limits.characters:
                yield self._of_held(held, asked, place_of)
                held, characters = [], 0
        if held and asked is not None:
            yield self._of_held(held, asked, place_of)

    def _differs(self, values: Mapping[str, Any], asked: Asked) -> str | None:
        """Returns why a row does not fit the columns of the first row, or None if it does."""
        needed = asked.needed.values()
        if missing := [name for name in needed if name not in values]:
            return f'found no column "{missing[0]}"'
        every = EVERY_COLUMN in self._section.columns
        watched = values if every else [_ID] if self._section.id is None else []
        added = [name for name in watched if name in values and name not in needed]
        return f'found the column "{added[0]}", which the first row lacks' if added else None

    def _of_held(
        self,
        held: Sequence[tuple[int, Mapping[str, Any]]],
        asked: Asked,
        place_of: Callable[[int], str],
    ) -> RowWindow:
        texts = [values[asked.text] for _, values in held]
        pairs = None if asked.pair is None else [values[asked.pair] for _, values in held]
        kept = self._readable([place for place, _ in held], texts, pairs, place_of)
        if kept is not None:
            held = [held[at] for at in kept]
            texts = [texts[at] for at in kept]
            pairs = None if pairs is None else [pairs[at] for at in kept]
        if asked.id is None:
            name = self._part.file.name
            ids = pa.array([document_id(name, place) for place, _ in held], pa.string())
        else:
            ids = self._array(_ID, [values[asked.id] for _, values in held])
        columns = {_ID: ids}
        for name in asked.copied:
            columns[name] = self._array(name, [values[name] for _, values in held])
        return RowWindow(columns, texts, pairs)

    def _array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Returns a column of values without a schema. The first window determines its type."""
        known = self._types.get(name)
        try:
            array = pa.array(values)
            if pa.types.is_floating(array.type) and any(isinstance(each, bool) for each in values):
                raise pa.ArrowTypeError("numbers, true and false")  # Arrow makes numbers of them
            if known is not None and array.type != known:
                kinds = [pa.schema([(name, kind)]) for kind in (known, array.type)]
                # Arrow would round numbers, and omit fields of objects, to fit them to a type.
                if pa.unify_schemas(kinds, promote_options="permissive") != kinds[0]:
                    raise pa.ArrowTypeError(f"{known}, then {array.type}")
                array = pa.array(values, known)
        except (pa.ArrowException, OverflowError) as error:
            raise UserError(
                "score.mixed_column",
                f'column "{name}" has several types ({first_line(error)}). Leave the column out.',
                place=self._part.file.path,
            ) from None
        self._types.setdefault(name, array.type)
        return array


_NOT_UTF8: Final = object()


def _decoded(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return _NOT_UTF8
    except (ValueError, OverflowError):  # a time that Python cannot represent
        return value


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
