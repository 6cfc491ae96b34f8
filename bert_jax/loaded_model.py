"""A model in memory that encodes texts, fills masks and predicts."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, overload

import numpy as np
import pydantic
from etils import epath

from bert_jax.arguments import checked
from bert_jax.data.memory_table import MemoryTable, Rows
from bert_jax.errors import UserError, commas
from bert_jax.feature_extraction.extractor import (
    ExtractionSettings,
    FeatureExtractor,
    Level,
    Prompt,
    TextFeatures,
    settings_for,
)
from bert_jax.feature_extraction.texts import InputText
from bert_jax.inference.bucketed import InferenceModel
from bert_jax.inference.comparison import comparison_of, sparse_rows
from bert_jax.inference.fill_mask import Filled, MaskFiller
from bert_jax.interop.open_model import open_model
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import Pool
from bert_jax.narration import announcing
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.run_directory import Run
from bert_jax.runs.settings import describe
from bert_jax.task import Params
from bert_jax.tasks.family import Record
from bert_jax.tasks.rows import RowPredictor
from bert_jax.text import Tokenizer


class Ranked(NamedTuple):
    """A document in a ranking."""

    document: int  # index among the given documents
    score: float


class LoadedModel:
    """A checkpoint in memory. Each method compiles once for each new shape of a batch.

    Rows are padded to a few lengths, and batches to a power of two rows. Not thread-safe.

    Attributes:
        tokenizer: the model's tokenizer.
        architecture: sizes of the encoder.
        heads: heads on the encoder.
        params: nested dict of float32 arrays on the devices.
        step: step of the checkpoint; 0 for an imported checkpoint.
    """

    def __init__(self, model: InferenceModel, run: Run | None) -> None:
        self._model, self._run = model, run
        self.tokenizer: Tokenizer = model.tokenizer
        self.architecture: EncoderArchitecture = model.architecture
        self.heads: HeadsSection = model.heads
        self.params: Params = model.loaded.params
        self.step: int = model.loaded.step
        self._extractors: dict[ExtractionSettings, FeatureExtractor] = {}
        self._fillers: dict[int, MaskFiller] = {}

    def __repr__(self) -> str:
        return f"LoadedModel({self._model.name!r}, step={self.step})"

    # A str is also a sequence of str: pyright must choose the first overload.
    @overload
    def fill_mask(  # pyright: ignore[reportOverlappingOverload]
        self, texts: str, *, top_k: int = 5
    ) -> Filled: ...
    @overload
    def fill_mask(self, texts: Rows, *, top_k: int = 5) -> list[Filled]: ...
    @checked
    def fill_mask(self, texts: str | Rows, *, top_k: int = 5) -> Filled | list[Filled]:
        """Returns the most probable pieces for every [MASK].

        ``model.fill_mask("paris is the [MASK] of france .").masks[0][0].piece -> "capital"``

        Args:
            texts: one text or several, each with one [MASK] or more, or a table with the column
                `text`. A str gives one result.
            top_k: number of candidates per mask, best first.

        Raises:
            UserError: The model has no MLM head, `top_k` is out of range, a row is not a text, or a
                text has no [MASK] or too many pieces.
        """
        if top_k not in self._fillers:
            self._fillers[top_k] = MaskFiller(self._model, top_k=top_k)
        filled = self._fillers[top_k]([each.text for each in _texts(texts, names=("text",))])
        return filled[0] if isinstance(texts, str) else filled

    @checked
    def encode(
        self,
        texts: str | Rows,
        *,
        layers: str | None = None,
        pool: Pool | None = None,
        prompt: Prompt | None = None,
        column: str | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> Any:
        """Returns a vector for each text.

        ``model.encode(["a text", ("one", "and its pair")]).shape -> (2, 3072)``

        Args:
            texts: one text, several texts or pairs of texts, or a table with the columns `text`
                and optionally `pair`.
            layers: see `bert_jax.features`. Default for a model of sentence embeddings: the
                vectors that it was trained to compute, with its own pooling and projection.
            pool: "mean" over all pieces, "cls" or "last". Default: "mean".
            prompt: "query" or "passage" adds the prefix that the model was trained with. Default:
                the default prefix of an imported model, or none.
            column: column of the texts in a table. Default: `text`, and `pair` if it exists.
            max_length: maximum pieces per text, special pieces included. Longer texts are
                truncated. Default: the limit of a model of sentence embeddings, or the model's
                positions, at most 512.
            batch_size: rows per batch. Does not change the vectors.

        Returns:
            float32 [texts, width], or [width] for one text. A sparse encoder returns a `csr_array`
            of scipy, [texts, pieces], also for one text. A late-interaction model returns a list of
            arrays [tokens, width], or one such array for one text.

        Raises:
            UserError: The model does not have the layers or prompts, a row is not a text, or the
                batch size is below 1.
        """
        extractor = self._extractor(
            level="sentence",
            layers=layers,
            pool=pool,
            prompt=prompt,
            max_length=max_length,
            batch_size=batch_size,
        )
        made = extractor(_texts(texts, column=column))
        if extractor.settings.sparse:
            return sparse_rows([features.sparse for features in made], width=extractor.width)
        if extractor.settings.level == "token":
            tokens = [features.vectors for features in made]
            return tokens[0] if isinstance(texts, str) else tokens
        found = [features.vectors[0] for features in made]
        vectors = np.stack(found) if found else np.empty((0, extractor.width), np.float32)
        return vectors[0] if isinstance(texts, str) else vectors

    @checked
    def features(
        self,
        texts: str | Rows,
        *,
        level: Level = "token",
        layers: str | None = None,
        column: str | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> list[TextFeatures]:
        """Returns a vector for each piece or word of each text.

        ``model.features("a text", level="word")[0].units -> ["a", "text"]``

        `level` is "token" for pieces or "word" for words. For other arguments and errors, see
        `encode`.
        """
        extractor = self._extractor(
            level=level, layers=layers, max_length=max_length, batch_size=batch_size
        )
        return list(extractor(_texts(texts, column=column)))

    @checked
    def predict(
        self,
        rows: Rows,
        *,
        column: str | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> list[Record]:
        """Predicts rows with the head of a fine-tuned model.

        ``model.predict(["what a film"])[0]["prediction"] -> "positive"``

        Args:
            rows: texts, pairs of texts, tuples (question, context) or lists of tokens, depending on
                the task. Or a table: a list of dicts, a dict of columns, a DataFrame, an Arrow
                table or a `datasets.Dataset`.
            column: column of the texts in a table. Default: the column of the training data, or
                `text`; for token classification `tokens`, `words` or `text`.
            task: settings of the task that replace the model's settings, such as
                ``{"max_query_length": 32, "n_best": 5}`` for question answering.

        Returns:
            A dict for each row, in order. It has the fields of the .jsonl files that `bert-jax
            predict` writes, such as "prediction" and "probabilities". Labels that were integers in
            the training data are integers.

        Raises:
            UserError: The model was not fine-tuned, or a row or setting is wrong for its task.
        """
        return self._predictor(rows, task or {}, column=column)

    @checked
    def rank(
        self,
        query: str,
        documents: Rows,
        *,
        top_k: Annotated[int, pydantic.Field(ge=1)] | None = None,
    ) -> list[Ranked]:
        """Ranks documents for a query, best first.

        ``model.rank("who?", ["It rains.", "It was Ann."])[0] -> Ranked(document=1, score=0.98)``

        Args:
            query: text of the query.
            documents: texts, or a table with the column `text`.
            top_k: number of documents to return. Default: all.

        Returns:
            The index of each document with its score: of a cross-encoder from its head, of other
            models as in `similarity`.

        Raises:
            UserError: The model is neither of them, or a document is not a text.
        """
        if self.heads.cross_encoder is not None:
            texts = _only_texts(documents)
            records = self.predict([(query, text) for text in texts])
            scores = np.asarray([record["prediction"] for record in records])
        else:
            scores = self.similarity([query], documents)[0]
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [Ranked(int(at), float(scores[at])) for at in best]

    @checked
    def similarity(self, queries: Rows, documents: Rows) -> np.ndarray:
        """Returns the similarity of every query with every document.

        ``model.similarity(["who?"], ["It rains.", "It was Ann."]).argmax(axis=1) -> [1]``

        Args:
            queries: texts, or a table with the column `text`.
            documents: like `queries`.

        Returns:
            float32 [queries, documents].

        Raises:
            UserError: The model was not trained to encode queries and documents, or a row is not a
                text.
        """
        if self.heads.vectors is None:
            raise UserError.wrong(
                "rank.head",
                describe(self.heads),
                "a model of search: cross-encoder, sparse encoder, late interaction or sentence "
                "embeddings",
                place=self._model.name,
            )
        comparison = comparison_of(self.heads.vectors)
        texts = _only_texts(queries), _only_texts(documents)
        if not all(texts):
            return np.zeros([len(each) for each in texts], np.float32)
        asked = self.encode(texts[0], prompt="query")
        found = self.encode(texts[1], prompt="passage")
        return comparison.scores(comparison.collect([*asked]), comparison.collect([*found]))

    @functools.cached_property
    def _predictor(self) -> RowPredictor:
        return RowPredictor(self._model, self._run)

    def _extractor(self, **options: Any) -> FeatureExtractor:
        settings = settings_for(self.architecture, self.heads, **options)
        if settings not in self._extractors:
            self._extractors[settings] = FeatureExtractor(settings, self._model, few_texts=True)
        return self._extractors[settings]


def load(
    source: epath.PathLike,
    *,
    checkpoint: str = "auto",
    ema: bool = False,
    mesh: MeshSection | None = None,
) -> LoadedModel:
    """Loads a model into memory, to encode texts, fill masks and predict.

    ``bert_jax.load("runs/base").fill_mask("the [MASK] module")``

    If this takes longer than two seconds, a line on standard error says so.

    Args:
        source: a run directory; the directory of a Hugging Face, sentence-transformers or
            google-research/bert checkpoint; or the name of a model on a hub:
            ``google-bert/bert-base-uncased``, optionally followed by ``@REVISION``.
        checkpoint: checkpoint of a run: `last`, `best`, a step or `auto`. `auto` is `best` for a
            fine-tuned run and `last` for a pretrained run.
        ema: load the moving average of the parameters (`train.ema`).
        mesh: devices to use. Default: all.

    Raises:
        UserError: The source cannot be read, or the checkpoint or its average does not exist.
    """
    with announcing(f"loading {os.fspath(source)}"):
        return LoadedModel(
            *open_model(source, checkpoint=checkpoint, ema=ema, mesh=open_mesh(mesh))
        )


def _only_texts(rows: Rows) -> list[str]:
    return [each.text for each in _texts(rows, names=("text",))]


def _texts(
    texts: Rows, *, names: Sequence[str] = ("text", "pair"), column: str | None = None
) -> list[InputText]:
    found = []
    table = MemoryTable.of(texts, name="texts")
    if column is not None:
        table.require_column(column)
        return [InputText(row.line, row.text(column)) for row in table.named(names)]
    for row in table.named(names):
        if "text" not in row.values:
            raise UserError(
                "rows.no_text",
                f"found the columns {commas(row.values)}, allowed: {commas(names)}. Rename a "
                'column to "text".',
                place=row.place,
            )
        pair = row.text("pair") if row.values.get("pair") is not None else None
        found.append(InputText(row.line, row.text("text"), pair))
    return found
