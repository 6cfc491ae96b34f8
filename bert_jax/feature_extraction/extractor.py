"""Texts through the model, in batches of few shapes, out again in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from flax import nnx

from bert_jax.data.rows.length_buckets import bucket_of, buckets_up_to
from bert_jax.errors import UserError
from bert_jax.feature_extraction.encode import Row, encode, pad, word_starts
from bert_jax.feature_extraction.layers import Layers, combine
from bert_jax.feature_extraction.texts import Record
from bert_jax.parallel.rules import batch_sharding, replicated
from bert_jax.section import Section
from bert_jax.text import Tokenizer

Level = Literal["token", "word", "sentence"]
Pool = Literal["cls", "mean"]

# Texts are sorted by length within a window, and a window's results lie in memory together.
WINDOW_BATCHES: Final = 64
WINDOW_VALUES: Final = 1 << 26  # float32 numbers: 256 MiB


class ExtractSection(Section):
    """What is read off a text."""

    level: Level = "sentence"
    pool: Pool = "mean"
    max_length: int = pydantic.Field(default=512, ge=4)
    batch_size: int = pydantic.Field(default=32, ge=1)


class Feature(NamedTuple):
    """The vectors of one record."""

    record: Record
    vectors: np.ndarray  # float32 [units, width]; one unit at sentence level
    units: list[str]  # the pieces or words; none at sentence level
    ids: list[int]  # of the pieces; none at the other levels
    spans: list[int]  # 0 or 1 for each unit: which text it stands in


@dataclasses.dataclass
class Counts:
    """What has been done so far."""

    texts: int = 0
    cut: int = 0  # were longer than allowed
    empty: list[int] = dataclasses.field(default_factory=list)  # the first ten's lines
    empty_total: int = 0
    pieces: int = 0
    positions: int = 0  # of all batches
    shapes: set[int] = dataclasses.field(default_factory=set)

    @property
    def padding(self) -> float:
        """Share of the positions that held no piece."""
        return 1 - self.pieces / self.positions if self.positions else 0.0


class Extractor:
    """Computes features of records.

    A text's features depend on the text alone: its bucket is set by its own length, and what
    stands beside it in a batch changes nothing but the last bits.
    """

    def __init__(
        self,
        section: ExtractSection,
        *,
        tokenizer: Tokenizer,
        layers: Layers,
        hidden_size: int,
        graphdef: Any,
        params: Any,
        mesh: jax.sharding.Mesh,
    ) -> None:
        """Sets up; programs are compiled when the first text of their length comes.

        Args:
            section: level, pooling, lengths.
            tokenizer: of the run.
            layers: from `parse_layers`.
            hidden_size: of the model.
            graphdef: the model's structure, of a `Bert`.
            params: its parameters on `mesh`.
            mesh: over which rows are split.
        """
        self.width = layers.width(hidden_size)
        self.counts = Counts()
        self._section = section
        self._tokenizer = tokenizer
        self._params = params
        self._mesh = mesh
        self._sharding = batch_sharding(mesh)
        shards = mesh.size // self._sharding.shard_shape((mesh.size,))[0]
        self._rows = -(-section.batch_size // shards) * shards
        self._buckets = buckets_up_to(section.max_length)
        level, pool = section.level, section.pool

        def compute(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
            model = nnx.merge(graphdef, params)
            if level != "sentence":
                return combine(model.every_layer(batch), layers)
            read = _first if pool == "cls" else _mean_over(batch["segment_ids"])
            return combine(model.every_layer(batch, read=read), layers)

        self._compute = jax.jit(compute, out_shardings=replicated(mesh))

    def __call__(
        self, records: Iterable[Record], *, after_batch: Callable[[], None] = lambda: None
    ) -> Iterator[Feature]:
        """Yields a feature for each record, in order.

        Args:
            records: read no further than a window's worth ahead.
            after_batch: called when `counts` has gone up.

        Raises:
            UserError: a feature is not a finite number.
        """
        for window in self._windows(records):
            yield from self._run(window, after_batch)

    def _windows(self, records: Iterable[Record]) -> Iterator[list[Row]]:
        window: list[Row] = []
        values = 0
        for chunk in _chunks(records, self._rows):
            rows = encode(chunk, self._tokenizer, max_length=self._section.max_length)
            window += rows
            sizes = [1 if self._section.level == "sentence" else len(row.ids) for row in rows]
            values += sum(sizes) * self.width
            if len(window) >= WINDOW_BATCHES * self._rows or values >= WINDOW_VALUES:
                yield window
                window, values = [], 0
        if window:
            yield window

    def _run(self, window: list[Row], after_batch: Callable[[], None]) -> Iterator[Feature]:
        features: list[Feature | None] = [None] * len(window)
        pending: tuple[int, list[int], jax.Array] | None = None
        with jax.set_mesh(self._mesh):
            for length, members in self._batches(window):
                rows = [window[at] for at in members]
                batch = pad(
                    rows, count=self._rows, length=length, pad_id=self._tokenizer.special.pad
                )
                self.counts.shapes.add(length)
                placed = jax.device_put(batch, self._sharding)
                computed = self._compute(self._params, placed)
                # The device works on this batch while the one before it is taken apart.
                if pending is not None:
                    self._collect(window, *pending, features)
                    after_batch()
                pending = (length, members, computed)
        if pending is not None:
            self._collect(window, *pending, features)
        for feature, row in zip(features, window, strict=True):
            assert feature is not None
            self._count(row)
            yield feature

    def _batches(self, window: list[Row]) -> Iterator[tuple[int, list[int]]]:
        """Yields lengths and which rows of the window go together."""
        by_bucket: dict[int, list[int]] = {}
        for at, row in enumerate(window):
            by_bucket.setdefault(bucket_of(len(row.ids), self._buckets), []).append(at)
        for bucket, members in sorted(by_bucket.items()):
            for start in range(0, len(members), self._rows):
                yield bucket, members[start : start + self._rows]

    def _collect(
        self,
        window: list[Row],
        length: int,
        members: list[int],
        computed: jax.Array,
        features: list[Feature | None],
    ) -> None:
        values = np.asarray(jax.device_get(computed))
        for at, vectors in zip(members, values, strict=False):
            features[at] = self._feature(window[at], vectors)
        self.counts.texts += len(members)
        self.counts.positions += self._rows * length
        self.counts.pieces += sum(len(window[at].ids) for at in members)

    def _feature(self, row: Row, vectors: np.ndarray) -> Feature:
        level = self._section.level
        at = row.text_positions
        # Copies: a view would keep the whole padded batch in memory.
        vectors = vectors[None].copy() if level == "sentence" else vectors[at]
        if not np.isfinite(vectors).all():
            raise UserError(
                f"line {row.record.line}: found features that are not finite, allowed: a "
                f"checkpoint whose parameters are"
            )
        if level == "sentence":
            return Feature(row.record, vectors, [], [], [])
        ids = [row.ids[position] for position in at]
        spans = (at >= row.second).astype(int)
        if level == "token":
            return Feature(row.record, vectors, self._tokenizer.pieces(ids), ids, spans.tolist())
        starts = np.flatnonzero(word_starts(row, self._tokenizer.is_continuation))
        if len(starts) == 0:
            return Feature(row.record, vectors, [], [], [])
        ends = [*starts[1:].tolist(), len(ids)]
        counts = np.diff(np.append(starts, len(ids)))
        averaged = np.add.reduceat(vectors, starts, axis=0) / counts[:, None].astype(np.float32)
        words = [
            self._tokenizer.decode(ids[start:end])
            for start, end in zip(starts.tolist(), ends, strict=True)
        ]
        return Feature(row.record, averaged, words, [], spans[starts].tolist())

    def _count(self, row: Row) -> None:
        counts = self.counts
        counts.cut += row.cut
        if len(row.text_positions) == 0:
            counts.empty_total += 1
            if len(counts.empty) < 10:
                counts.empty.append(row.record.line)


def _first(x_BLD: jax.Array) -> jax.Array:
    return x_BLD[:, 0].astype(jnp.float32)


def _mean_over(segment_ids: jax.Array) -> Any:
    real_BL1 = (segment_ids > 0).astype(jnp.float32)[..., None]
    # A row of padding alone has no pieces; nobody reads its mean.
    counts_B1 = jnp.maximum(real_BL1.sum(axis=1), 1.0)
    return lambda x_BLD: (x_BLD.astype(jnp.float32) * real_BL1).sum(axis=1) / counts_B1


def _chunks(records: Iterable[Record], size: int) -> Iterator[Sequence[Record]]:
    chunk: list[Record] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
