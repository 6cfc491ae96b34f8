"""Extracts features of texts. Batches have few different shapes, to limit compilations."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.data.rows.collate import collate_tokens
from bert_jax.errors import UserError, commas, did_you_mean
from bert_jax.feature_extraction.texts import EncodedText, InputText, encode
from bert_jax.files.read import is_whole
from bert_jax.inference.bucketed import InferenceModel, check_batch_size
from bert_jax.inference.comparison import (
    SparseVector,
    TokenComparison,
    comparison_of,
    piece_names,
)
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.pooling import pooled_states
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import (
    Pool,
    SparseHeadSection,
    TextSize,
    TokenVectorsSection,
    VectorHeadSection,
)
from bert_jax.parallel.compiling import made_once
from bert_jax.task import Batch, Row
from bert_jax.train.state import ModelDefinition

Level = Literal["token", "word", "sentence"]
Prompt = Literal["query", "passage"]

# Texts are batched by length within a window. All features of a window are held in memory.
WINDOW_BATCHES: Final = 64
WINDOW_VALUES: Final = 1 << 26  # float32 values: 256 MiB

LAST_FOUR: Final = "concat-last-four"


class LayerSelection(NamedTuple):
    """Hidden states to combine into one vector. State 0 is the output of the embeddings."""

    name: str
    states: tuple[int, ...]
    summed: bool = False  # whether to sum the states instead of concatenating them

    def width(self, hidden_size: int) -> int:
        """Returns the width of a combined vector."""
        return hidden_size if self.summed else hidden_size * len(self.states)

    def combine(self, states: jax.Array) -> jax.Array:
        """Combines states [layers + 1, ..., D] into float32 vectors [..., width]."""
        chosen = states[jnp.asarray(self.states)].astype(jnp.float32)
        return chosen.sum(axis=0) if self.summed else jnp.concatenate(list(chosen), axis=-1)


def select_layers(text: str | None, *, depth: int) -> LayerSelection:
    """Parses `--layers`: a name, or a comma-separated list of state indices.

    ``select_layers("concat-last-four", depth=12)`` -> states 9, 10, 11 and 12, concatenated in this
    order. The names are from arXiv 1810.04805, table 7; "sum-all" is the table's "weighted sum all
    12 layers" with equal weights. ``"0,3"`` concatenates the outputs of the embeddings and the
    third layer. If `text` is empty, selects "concat-last-four", or "last" if the model has fewer
    than four layers. Raises UserError for an unknown name or layer.
    """
    text = text or (LAST_FOUR if depth >= 4 else "last")
    last_four = tuple(range(depth - 3, depth + 1))
    named = {
        "embeddings": LayerSelection(text, (0,)),
        "second-to-last": LayerSelection(text, (depth - 1,)),
        "last": LayerSelection(text, (depth,)),
        "sum-last-four": LayerSelection(text, last_four, summed=True),
        LAST_FOUR: LayerSelection(text, last_four),
        "sum-all": LayerSelection(text, tuple(range(1, depth + 1)), summed=True),
    }
    if text in named:
        if "last-four" in text and depth < 4:
            raise UserError(
                "features.too_few_layers",
                f'found "{text}", but the model has {depth} layers. Use last, sum-all, or numbers '
                f"from 0 to {depth}, separated by commas.",
                place="--layers",
            )
        return named[text]
    numbers = [part.strip() for part in text.split(",")]
    if not all(map(is_whole, numbers)):
        raise UserError(
            "features.layers",
            f'found "{text}", allowed: {commas(named)}, or numbers from 0 (the embeddings) to '
            f"{depth}, separated by commas{did_you_mean(text, list(named))}",
            place="--layers",
        )
    states = tuple(map(int, numbers))
    if len({*states}) < len(states):
        raise UserError.wrong("features.layer", f'"{text}"', "each layer once", place="--layers")
    if max(states) > depth:
        raise UserError(
            "features.layer",
            f"found {max(states)}, allowed: 0 (the embeddings) to {depth} (the last layer)",
            place="--layers",
        )
    return LayerSelection(text, states)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractionSettings:
    """Settings of an extraction."""

    layers: LayerSelection
    level: Level = "sentence"
    pool: Pool = "mean"
    trained: VectorHeadSection | None = None  # vectors as the model was trained; overrides `pool`
    prefix: str = ""  # text before every text
    query: bool = False  # whether texts are queries
    max_length: int = 512  # pieces, special ones included
    batch_size: int = 32

    def width(self, architecture: EncoderArchitecture) -> int:
        """Returns the width of a vector."""
        if self.trained is not None:
            return self.trained.width(architecture)
        return self.layers.width(architecture.hidden_size)

    @property
    def size(self) -> TextSize:
        """The number of pieces of a text."""
        if self.trained is None:
            return TextSize(0, self.max_length)
        return self.trained.size(self.max_length, query=self.query)

    @property
    def sparse(self) -> bool:
        """Whether the vectors are sparse."""
        return isinstance(self.trained, SparseHeadSection)

    @property
    def description(self) -> str:
        """The layers, or "trained pooling", for messages."""
        return f"layers {self.layers.name}" if self.trained is None else "trained pooling"


def settings_for(
    architecture: EncoderArchitecture,
    heads: HeadsSection,
    *,
    layers: str | None,
    level: Level,
    pool: Pool | None = None,
    prompt: Prompt | None = None,
    max_length: int | None,
    batch_size: int,
) -> ExtractionSettings:
    """Returns the settings for a model.

    By default, the sentence vectors of a model of sentence embeddings are as it was trained. A
    late-interaction model has the level "token" instead of "sentence". Other models have the
    pooling "mean". The default of `max_length` is `HeadsSection.longest_text`. For
    `layers`, see `select_layers`. Raises UserError for a layer that the model lacks, a length above
    its positions, a batch size out of range, or a prompt for a model without prompts.
    """
    check_batch_size(batch_size)
    depth, positions = architecture.num_hidden_layers, architecture.max_position_embeddings
    if max_length is not None and not 4 <= max_length <= positions:
        raise UserError(
            "features.max_length",
            f"found {max_length}, allowed: 4 to {positions}, the model's positions",
            place="--max-length",
        )
    trained = heads.vectors if level == "sentence" and layers is None and pool is None else None
    return ExtractionSettings(
        layers=select_layers("last" if trained else layers, depth=depth),
        level="token" if isinstance(trained, TokenVectorsSection) else level,
        pool=pool or "mean",
        trained=trained,
        prefix=_prefix(heads.vectors, trained, prompt),
        query=prompt == "query",
        max_length=max_length or heads.longest_text(positions),
        batch_size=batch_size,
    )


def _prefix(
    head: VectorHeadSection | None, trained: VectorHeadSection | None, prompt: Prompt | None
) -> str:
    if prompt is None:  # other pooling and layers are not the trained vectors
        return "" if trained is None else trained.default_prefix
    if head is None:
        raise UserError(
            "features.prompt",
            f"found {prompt}, but the model was not trained on queries and passages. Omit the "
            "prompt.",
            place="--prompt",
        )
    return head.query_prefix if prompt == "query" else head.passage_prefix


class TextFeatures(NamedTuple):
    """The features of one text."""

    source: InputText
    vectors: np.ndarray  # float32 [units, width]; 1 unit at sentence level
    units: list[str]  # pieces or words; empty at sentence level
    spans: list[int]  # 0 for units of the first text, 1 for units of the second
    sparse: SparseVector | None = None  # with the weights `vectors` [1, units], largest first


@dataclasses.dataclass
class ExtractionCounts:
    """Totals of an extraction so far."""

    texts: int = 0
    cut: int = 0  # number of truncated texts
    empty_lines: list[int] = dataclasses.field(default_factory=list)
    pieces: int = 0
    positions: int = 0  # number of positions in all batches, padding included

    @property
    def padding(self) -> float:
        """Fraction of positions that are padding."""
        return 1 - self.pieces / self.positions if self.positions else 0.0

    def add_texts(self, texts: Sequence[EncodedText]) -> None:
        """Adds the truncated and the empty texts."""
        self.cut += sum(text.cut for text in texts)
        self.empty_lines += [text.source.line for text in texts if not len(text.text_positions)]


class FeatureExtractor:
    """Computes features of texts. Except for rounding, they do not depend on other texts.

    Attributes:
        settings: settings of the extraction.
        width: width of a vector.
        counts: totals so far.
    """

    def __init__(
        self, settings: ExtractionSettings, model: InferenceModel, *, few_texts: bool = False
    ) -> None:
        """Compiles nothing: each batch shape is compiled at its first batch.

        If `few_texts` is set, calls with fewer texts than a batch use smaller batches.
        """
        loaded = model.loaded
        self.width = settings.width(model.architecture)
        self.counts = ExtractionCounts()
        self.settings, self._tokenizer, self._params = settings, model.tokenizer, loaded.params
        # Names of the pieces of sparse vectors.
        self._names = piece_names(model.tokenizer, self.width) if settings.sparse else None
        self._inference = model.batches(
            vector_forward(settings, loaded.model),
            batch_size=settings.batch_size,
            max_length=settings.max_length,
            few_rows=few_texts,
        )

    def __call__(self, texts: Iterable[InputText]) -> Iterator[TextFeatures]:
        """Yields the features of each text, in input order. Reads at most one window ahead.

        Raises UserError if a feature is not finite.
        """
        for window in self._windows(iter(texts)):
            yield from self._extract(window)
            self.counts.add_texts(window)

    def _windows(self, texts: Iterator[InputText]) -> Iterator[list[EncodedText]]:
        window: list[EncodedText] = []
        values = 0
        size, settings = self._inference.batch_size, self.settings
        while chunk := list(itertools.islice(texts, size)):
            encoded = encode(chunk, self._tokenizer, size=settings.size, prefix=settings.prefix)
            window += encoded
            sentences = settings.level == "sentence"
            values += sum(1 if sentences else len(text.ids) for text in encoded) * self.width
            if len(window) >= WINDOW_BATCHES * size or values >= WINDOW_VALUES:
                yield window
                window, values = [], 0
        if window:
            yield window

    def _extract(self, window: Sequence[EncodedText]) -> list[TextFeatures]:
        def make_batch(rows: np.ndarray, *, batch_size: int, length: int) -> Row:
            chosen = [window[row] for row in rows]
            return collate_tokens(
                [text.ids for text in chosen],
                [text.second for text in chosen],
                batch_size=batch_size,
                length=length,
                pad_id=self._tokenizer.special.pad,
            )

        features: dict[int, TextFeatures] = {}
        lengths = [len(text.ids) for text in window]
        for batch in self._inference(self._params, lengths, make_batch):
            rows = batch.rows.tolist()
            for row, vectors in zip(rows, batch.outputs, strict=True):
                features[row] = self._features(window[row], vectors)
            self.counts.texts += len(rows)
            self.counts.positions += batch.size * batch.length
            self.counts.pieces += sum(lengths[row] for row in rows)
        return [features[row] for row in range(len(window))]

    def _features(self, text: EncodedText, vectors: np.ndarray) -> TextFeatures:
        """Returns the features of a text. `vectors` is its output: [width] or [length, width]."""
        level, trained, at = self.settings.level, self.settings.trained, text.text_positions
        if isinstance(trained, TokenVectorsSection):
            at = TokenComparison(trained).positions(text.ids, query=self.settings.query)
        # Copy, because a view would keep the whole padded batch in memory.
        vectors = vectors[None].copy() if level == "sentence" else vectors[at]
        if not np.isfinite(vectors).all():
            raise UserError(
                "features.not_finite",
                "found features with NaN or infinity. Use a checkpoint with finite parameters.",
                place=f"line {text.source.line}",
            )
        if self._names is not None:
            assert trained is not None
            sparse = comparison_of(trained).kept(vectors[0], text.ids, query=False)
            order = np.argsort(-sparse.data, kind="stable")
            units = self._names[sparse.indices[order]].tolist()
            return TextFeatures(text.source, sparse.data[None, order], units, [], sparse)
        if level == "sentence" or len(at) == 0:
            return TextFeatures(text.source, vectors, [], [])
        ids = [max(text.ids[position], ~text.ids[position]) for position in at]  # see `fill_up`
        spans = (at >= text.second).astype(int)
        if level == "token":
            return TextFeatures(text.source, vectors, self._tokenizer.pieces(ids), spans.tolist())
        starts = np.flatnonzero(text.word_starts(self._tokenizer))
        ends = np.append(starts[1:], len(ids))
        sums = np.add.reduceat(vectors, starts, axis=0)
        words = [
            self._tokenizer.decode(ids[start:end]) for start, end in zip(starts, ends, strict=True)
        ]
        means = sums / (ends - starts)[:, None].astype(np.float32)
        return TextFeatures(text.source, means, words, spans[starts].tolist())


@made_once
def vector_forward(
    settings: ExtractionSettings, definition: ModelDefinition
) -> Callable[[Any, Batch], jax.Array]:
    """Returns the forward function: outputs [B, width] for sentences, otherwise [B, L, width]."""

    def forward(params: Any, batch: Batch) -> jax.Array:
        model = nnx.merge(definition.graphdef, params)
        if settings.trained is not None:
            return model.embedding.cut(model.embedded(batch, dropout_key=None))
        if settings.level != "sentence":
            return settings.layers.combine(model.encoder.every_layer(batch))
        segment_ids, pool = batch["segment_ids"], settings.pool
        read = functools.partial(pooled_states, segment_ids=segment_ids, pool=pool)
        return settings.layers.combine(model.encoder.every_layer(batch, read=read))

    return forward
