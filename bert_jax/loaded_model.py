"""A model in memory: texts in; vectors, words or predictions out."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from etils import epath

from bert_jax.data.memory_table import MemoryTable, Rows
from bert_jax.errors import UserError
from bert_jax.feature_extraction.extractor import (
    ExtractionSettings,
    FeatureExtractor,
    Level,
    Pool,
    TextFeatures,
    settings_for,
)
from bert_jax.feature_extraction.texts import InputText
from bert_jax.files.remote import require_place
from bert_jax.inference.bucketed import InferenceModel, model_of_run
from bert_jax.inference.fill_mask import Filled, MaskFiller
from bert_jax.interop.importing import model_in_memory, read_checkpoint
from bert_jax.interop.sources import fetch, is_hub_name
from bert_jax.interop.tf_bert import is_tf
from bert_jax.model.config import Architecture, HeadsSection
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.places import MODELS
from bert_jax.runs.directory import Run, open_run
from bert_jax.runs.settings import CONFIG, RUN_OR_CHECKPOINT, missing_run
from bert_jax.task import Params
from bert_jax.tasks.family import Record
from bert_jax.tasks.rows import RowPredictor
from bert_jax.text import Tokenizer


class LoadedModel:
    """A checkpoint in memory. Each method compiles once for each shape of batch that it meets.

    Rows are padded to a few lengths and to powers of two. One thread at a time may call it.

    Attributes:
        tokenizer: the model's tokenizer.
        architecture: sizes of the encoder.
        heads: heads on the encoder.
        params: nested dict of float32 arrays on the devices.
        step: step of the checkpoint; 0 if another program made it.
    """

    def __init__(self, model: InferenceModel, run: Run | None) -> None:
        self._model, self._run = model, run
        self.tokenizer: Tokenizer = model.tokenizer
        self.architecture: Architecture = model.architecture
        self.heads: HeadsSection = model.heads
        self.params: Params = model.loaded.params
        self.step: int = model.loaded.step
        self._extractors: dict[ExtractionSettings, FeatureExtractor] = {}
        self._fillers: dict[int, MaskFiller] = {}

    def __repr__(self) -> str:
        return f"LoadedModel({self._model.name!r}, step={self.step})"

    # A str is a sequence of str too; the first overload is the one that is meant.
    @overload
    def fill_mask(  # pyright: ignore[reportOverlappingOverload]
        self, texts: str, *, top_k: int = 5
    ) -> Filled: ...
    @overload
    def fill_mask(self, texts: Sequence[str], *, top_k: int = 5) -> list[Filled]: ...
    def fill_mask(self, texts: str | Sequence[str], *, top_k: int = 5) -> Filled | list[Filled]:
        """Returns the most probable pieces for every [MASK].

        ``model.fill_mask("paris is the [MASK] of france .").masks[0][0].piece -> "capital"``

        Args:
            texts: one text, which gives one result, or several; each with one [MASK] or more.
            top_k: candidates per mask, best first.

        Raises:
            UserError: no MLM head, a text without [MASK] or longer than the model's positions.
        """
        if top_k not in self._fillers:
            self._fillers[top_k] = MaskFiller(self._model, top_k=top_k)
        filled = self._fillers[top_k]([texts] if isinstance(texts, str) else list(texts))
        return filled[0] if isinstance(texts, str) else filled

    def encode(
        self,
        texts: str | Rows,
        *,
        layers: str | None = None,
        pool: Pool | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> np.ndarray:
        """Returns a vector for each text.

        ``model.encode(["a text", ("one", "and its pair")]).shape -> (2, 3072)``

        Args:
            texts: a text; or several texts or pairs, or a table with the column `text` and perhaps
                `pair`.
            layers: see `bert_jax.features`.
            pool: "mean" (None) over all pieces, or "cls".
            max_length: pieces, special ones included; longer texts are cut. None for the model's
                positions, at most 512.
            batch_size: rows at a time; does not change the vectors.

        Returns:
            float32 [texts, width], or [width] of one text.

        Raises:
            UserError: layers that the model lacks; a row that is no text; a batch size below 1.
        """
        extractor = self._extractor(
            level="sentence",
            layers=layers,
            pool=pool,
            max_length=max_length,
            batch_size=batch_size,
        )
        found = [features.vectors[0] for features in extractor(_texts(texts))]
        vectors = np.stack(found) if found else np.empty((0, extractor.width), np.float32)
        return vectors[0] if isinstance(texts, str) else vectors

    def features(
        self,
        texts: str | Rows,
        *,
        level: Level = "token",
        layers: str | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> list[TextFeatures]:
        """Returns a vector for each piece or word of each text.

        ``model.features("a text", level="word")[0].units -> ["a", "text"]``

        Args and errors are as for `encode`; `level` is "token" for pieces, "word" for words.
        """
        extractor = self._extractor(
            level=level, layers=layers, max_length=max_length, batch_size=batch_size
        )
        return list(extractor(_texts(texts)))

    def predict(self, rows: Rows, *, task: Mapping[str, Any] | None = None) -> list[Record]:
        """Predicts rows with the head of a fine-tuned model.

        ``model.predict(["what a film"])[0]["prediction"] -> "positive"``

        Args:
            rows: texts, pairs of texts, tuples (question, context) or lists of tokens, as the task
                takes them; or values by column, in dicts, a dict of columns, a DataFrame, an Arrow
                table or a `datasets.Dataset`.
            task: settings of the task that replace the model's by key, such as
                ``{"max_query_length": 32, "n_best": 5}`` for question answering.

        Returns:
            A dict for each row, in order, with the fields that `bert-jax predict` writes to a
            .jsonl: "prediction", "probabilities" and so on.

        Raises:
            UserError: the model was not fine-tuned; a row or a setting that its task cannot read.
        """
        return self._predictor(rows, task or {})

    @functools.cached_property
    def _predictor(self) -> RowPredictor:
        return RowPredictor(self._model, self._run)

    def _extractor(self, **options: Any) -> FeatureExtractor:
        settings = settings_for(self.architecture, **options)
        if settings not in self._extractors:
            self._extractors[settings] = FeatureExtractor(settings, self._model, few_texts=True)
        return self._extractors[settings]


def load(
    source: epath.PathLike, *, checkpoint: str = "auto", mesh: MeshSection | None = None
) -> LoadedModel:
    """Returns a model in memory, to encode texts, fill masks and predict with.

    ``bert_jax.load("runs/base").fill_mask("the [MASK] module")``

    Args:
        source: a run directory; or the directory of a Hugging Face or google-research/bert
            checkpoint; or the name of a model on a hub, ``google-bert/bert-base-uncased``, with
            ``@`` a revision.
        checkpoint: of a run: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else
            the last.
        mesh: devices to use; by default all.

    Raises:
        UserError: the source cannot be read, or has no such checkpoint.
    """
    require_place(source, hub=MODELS)
    directory, devices = epath.Path(source), open_mesh(mesh)
    on_hub = is_hub_name(source)
    if not on_hub and (directory / CONFIG).exists():
        run = open_run(directory)
        return LoadedModel(model_of_run(run, checkpoint=checkpoint, mesh=devices), run)
    if checkpoint != "auto":
        raise UserError(
            "checkpoint.without_run",
            "found {found}, but {source} is not a run directory",
            place="checkpoint",
            found=checkpoint,
            source=source,
        )
    path, name = Path(directory), str(source)
    if not on_hub and not directory.is_dir() and not is_tf(directory):
        raise missing_run(directory, allowed=RUN_OR_CHECKPOINT)
    if on_hub:
        path, name, *_ = fetch(source)
    return LoadedModel(model_in_memory(read_checkpoint(path), mesh=devices, name=name), None)


def _texts(texts: str | Rows) -> list[InputText]:
    rows = MemoryTable.of([texts] if isinstance(texts, str) else texts).named(("text", "pair"))
    found = []
    for row in rows:
        if "text" not in row.values:
            raise UserError(
                "rows.no_text",
                'found the columns {found}, allowed: text, pair. Rename a column to "text".',
                place=row.place,
                found=list(row.values),
            )
        pair = row.text("pair") if row.values.get("pair") is not None else None
        found.append(InputText(row.line, row.text("text"), pair, None))
    return found
