"""Prepares a job: opens the model, chooses the shapes of batches, and finds the open parts."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from bert_jax.corpus.keep import Condition
from bert_jax.corpus.parts import InputPart, files_below, find_parts, require_apart
from bert_jax.corpus.program import IdleClock, Program
from bert_jax.corpus.reading import PartReader
from bert_jax.corpus.results import (
    PartSettings,
    PieceWeights,
    Results,
    Tags,
    TokenVectors,
    Vectors,
    WindowLimits,
    results_of_head,
)
from bert_jax.corpus.score_part import PARTS, PartRecord, encode_window, record_path, without_rows
from bert_jax.corpus.section import EVERY_COLUMN, ScoreSection
from bert_jax.errors import SettingError, UserError, commas
from bert_jax.feature_extraction.extractor import ExtractionSettings, settings_for, vector_forward
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.files.remote import absolute, each
from bert_jax.inference.batches import BatchShape
from bert_jax.inference.comparison import piece_names
from bert_jax.inference.execution import by_layer
from bert_jax.inference.lengths import bucket_of, choose_lengths
from bert_jax.interop.open_model import OpenModel, open_model
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.model.shape_cost import inference_cost
from bert_jax.model.text_head import SparseHeadSection, TokenVectorsSection
from bert_jax.parallel.sharding_rules import batch_parts
from bert_jax.runs.settings import describe
from bert_jax.section import refuse_ignored
from bert_jax.tasks.data_of_run import section_of
from bert_jax.tasks.predictor import task_forward
from bert_jax.tasks.rows import RowTask
from bert_jax.tasks.table import TableSection
from bert_jax.version import __version__

JOB: Final = f"{PARTS}/_job"  # no record of a part has this name
_SAMPLE: Final = WindowLimits(rows=1024, characters=1 << 22)
_CPU_TOKENS: Final = 2048
_ACCELERATOR_TOKENS: Final = 1 << 14  # on v5e, the states of `base` then fit into VMEM
_WINDOW_ROWS: Final = 4096
_ROWS_OF_TOKENS: Final = 512  # of a window with a vector for each token
_WINDOW_CHARACTERS: Final = 8 << 20
_THRESHOLD: Final = 0.5  # of a multi-label head without settings
_HEADS: Final = ("sequence_classification", "token_classification")
# A file of Parquet, or a packed one, has about this number of characters of text per byte.
_CHARACTERS_PER_BYTE: Final = 2.5
# Lengths for accelerators. Between them, the kernels would compute as many positions.
_ACCELERATOR_LENGTHS: Final = (32, 64, 128, *range(256, 8193, 128))
_SETTINGS_OF_VECTORS: Final = ("prompt", "pool", "layers")
_WITHOUT_EFFECT: Final = {"input", "output", "workers", "engine", "beam", "dollars_per_hour"}


class ScoredModel(NamedTuple):
    """A model on the devices of this process, and what it computes."""

    opened: OpenModel
    mesh: Mesh
    results: Results
    forward: Callable[[Any, Any], Any]
    prefix: str
    max_length: int
    task: RowTask | None

    def program(self, clock: IdleClock) -> Program:
        """Returns a program of the model. All programs on the same devices share a clock."""
        loaded = self.opened.model.loaded
        params = by_layer(loaded.params, loaded.model, mesh=self.mesh)
        return Program(self.forward, params, self.mesh, clock=clock)


def open_scored_model(section: ScoreSection, mesh: Mesh) -> ScoredModel:
    """Loads the model of a section.

    Raises UserError if the model cannot be read, lacks the head, or a setting does not fit it.
    """
    opened = open_model(
        section.model, checkpoint=section.checkpoint, mesh=mesh, dtype=section.dtype
    )
    opened = opened._replace(model=opened.model.in_read_dtypes())
    model, run = opened
    heads, architecture = model.heads, model.architecture
    if reads_head(section, heads):
        try:
            refuse_ignored(section, *_SETTINGS_OF_VECTORS, allowed="result: vector")
        except SettingError as error:
            raise error.at(f"score.{error.place}") from None
        if heads.task not in _HEADS:
            raise UserError(
                "score.head",
                f"found {describe(heads)}, allowed: {commas(_HEADS)}, or score.result=vector",
                place="score.model",
            )
        task = RowTask.of(model, run)
        results = results_of_head(heads, threshold=_threshold(opened))
        max_length = section.max_length or task.max_length
        if max_length > task.max_length:
            raise UserError(
                "score.max_length",
                f"found {max_length}, allowed: 4 to {task.max_length}, as the model was trained",
                place="score.max_length",
            )
        if isinstance(results, Tags):
            _refuse(section, "pair", section.pair, "a head that tags words")
            _refuse(section, "max_length", section.max_length, "a head that tags words")
        forward = task_forward(model.loaded.model)
        tags = task if isinstance(results, Tags) else None
        prefix = heads.cross_encoder.query_prefix if heads.cross_encoder else ""
        return ScoredModel(opened, mesh, results, forward, prefix, max_length, tags)
    settings = vector_settings(section, architecture, heads)
    forward = vector_forward(settings, model.loaded.model)
    width, head = settings.width(architecture), settings.trained
    vectors: Results = Vectors(width)
    if isinstance(head, SparseHeadSection):
        vectors = PieceWeights(head, piece_names(model.tokenizer, width))
    if isinstance(head, TokenVectorsSection):
        vectors = TokenVectors(head, width, query=settings.query)
    if settings.size.least:
        raise UserError(
            "score.query_expansion",
            "found query, but the model fills up queries with masks, which a corpus has not. Use "
            "bert-jax features for queries.",
            place="score.prompt",
        )
    return ScoredModel(opened, mesh, vectors, forward, settings.prefix, settings.size.most, None)


def reads_head(section: ScoreSection, heads: HeadsSection) -> bool:
    """Returns whether the results are from the task head; otherwise, they are vectors."""
    return section.result == "head" or (section.result == "auto" and heads.task is not None)


def vector_settings(
    section: ScoreSection, architecture: EncoderArchitecture, heads: HeadsSection
) -> ExtractionSettings:
    """Returns the settings of a vector per text. Raises UserError as `settings_for`."""
    return settings_for(
        architecture,
        heads,
        layers=section.layers,
        level="sentence",
        pool=section.pool,
        prompt=section.prompt,
        max_length=section.max_length,
        batch_size=1,
    )


def _threshold(opened: OpenModel) -> float:
    task = section_of(opened.run).task if opened.run and opened.run.is_fine_tuned else None
    return task.threshold if isinstance(task, TableSection) else _THRESHOLD


def _refuse(section: ScoreSection, name: str, found: object, what: str) -> None:
    if found is not None:
        raise UserError(
            f"score.{name}_of_tags",
            f"found {found}, but {what} has no such setting",
            place=f"score.{name}",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The parts of a corpus, and the settings that decide their results."""

    settings: PartSettings
    parts: Sequence[InputPart]  # all parts, of all hosts
    fingerprint: Mapping[str, Any]

    @property
    def output(self) -> epath.Path:
        """The output directory."""
        return epath.Path(self.settings.section.output)

    def finished(self, known: Mapping[str, PartRecord] | None = None) -> dict[str, PartRecord]:
        """Returns the records of finished parts by stem. A changed input is not finished.

        Reads no record that is `known`.
        """
        directory = self.settings.section.output
        found = dict(known or {})
        parts = [part for part in self.parts if part.stem not in found]
        paths = [record_path(directory, part) for part in parts]
        for part, made in zip(parts, each(_record, paths), strict=True):
            if made is not None and absolute(made.input["path"]) != absolute(part.file.path):
                raise _other_input(made, self.output)
            if made is not None and made.input == part.input:
                target = self.output / made.output
                if target.exists() and target.stat().length == made.bytes:
                    found[part.stem] = made
        return found


def prepare(section: ScoreSection, model: ScoredModel) -> Job:
    """Returns the job of a section, and records its settings in the output directory.

    Raises UserError if the input is missing, its first rows do not fit, or the output directory has
    the results of other settings.
    """
    parts = find_parts(section.input, part_bytes=section.part_bytes)
    require_apart(section.input, parts, section.output)
    if section.keep is not None:
        known = ["id", *section.columns, *model.results.schema.names]
        Condition(section.keep, columns=None if EVERY_COLUMN in section.columns else known)
    on_cpu = model.mesh.devices.flat[0].platform == "cpu"
    tokens = tokens_of_batch(section, on_cpu=on_cpu)
    devices = batch_parts(model.mesh)
    batch = tokens * devices
    has_tokens = isinstance(model.results, TokenVectors)
    settings = PartSettings(
        section=section.model_copy(update={"batch_tokens": tokens}),
        tokenizer=model.opened.model.tokenizer,
        results=model.results,
        task=model.task,
        prefix=model.prefix,
        max_length=model.max_length,
        shapes=(),
        limits=WindowLimits(
            rows=_ROWS_OF_TOKENS if has_tokens else max(_WINDOW_ROWS, batch // 4),
            characters=max(_WINDOW_CHARACTERS, 64 * batch),
        ),
    )
    fingerprint = _fingerprint(settings, model)
    path = epath.Path(section.output) / JOB
    if path.exists():
        before = read_json_object(path)
        _require_same(before, fingerprint, output=section.output)
        _check_outputs(parts, output=section.output)
        lengths = before["lengths"]
    else:
        lengths = _lengths(parts, settings, model)
        content = json.dumps({**fingerprint, "lengths": lengths}, indent=1)
        write_whole(path, content)
    shapes = [
        BatchShape(rows_of_batch(tokens, length, on_cpu=on_cpu) * devices, length)
        for length in lengths
    ]
    settings = dataclasses.replace(settings, shapes=tuple(shapes))
    return Job(settings=settings, parts=parts, fingerprint=fingerprint)


def tokens_of_batch(section: ScoreSection, *, on_cpu: bool) -> int:
    """Returns the maximum number of positions in a device's batch."""
    return section.batch_tokens or (_CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS)


def rows_of_batch(tokens: int, length: int, *, on_cpu: bool) -> int:
    """Returns the number of rows in a device's batch of a padded length."""
    rows = max(tokens // length, 1)
    return rows if on_cpu or rows < 8 else rows // 8 * 8


def _fingerprint(settings: PartSettings, model: ScoredModel) -> dict[str, Any]:
    """Returns the settings that decide the results."""
    loaded, device = model.opened.model.loaded, model.mesh.devices.flat[0]
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(loaded.params):
        digest.update(np.asarray(leaf).tobytes())
    section = settings.section.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
    return {
        "bert_jax": __version__,
        "parameters": digest.hexdigest(),
        "tokenizer": settings.tokenizer.hash,
        "platform": device.platform,
        "devices": batch_parts(model.mesh),
        **{f"score.{name}": value for name, value in section.items()},
    }


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any], *, output: str) -> None:
    for key, value in now.items():
        if before.get(key) != value and key not in ("bert_jax", "score.model"):
            raise UserError(
                "score.other_settings",
                f"found results with {key} {before.get(key)}, but now it is {value}. Delete them.",
                place=output,
            )


def _record(path: epath.Path) -> PartRecord | None:
    if not path.exists():
        return None
    try:
        return PartRecord(**read_json_object(path))
    except TypeError:
        raise UserError(
            "score.record", "found no record of a part. Delete it to compute the part.", place=path
        ) from None


def _check_outputs(parts: Sequence[InputPart], *, output: str) -> None:
    """Removes results of parts that a changed file no longer has.

    Raises UserError if the output directory has results of other files.
    """
    known = {str(record_path(output, part)) for part in parts}
    inputs = {absolute(part.file.path) for part in parts}
    for name in files_below(str(epath.Path(output) / PARTS)):
        made = None if name in known or not name.endswith(".json") else _record(epath.Path(name))
        if made is None:
            continue
        if absolute(made.input["path"]) not in inputs:
            raise _other_input(made, epath.Path(output))
        for path in (epath.Path(output) / made.output, epath.Path(name)):
            path.unlink(missing_ok=True)


def _other_input(record: PartRecord, output: epath.Path) -> UserError:
    return UserError(
        "score.other_input",
        f"found results of {record.input['path']}, which is not in score.input. Choose "
        f"another output than {record.output}.",
        place=str(output),
    )


def _lengths(parts: Sequence[InputPart], settings: PartSettings, model: ScoredModel) -> list[int]:
    """Returns padded lengths that suit the first rows of the corpus, and the maximum length."""
    sample = np.zeros(0, np.int64)
    characters, rows = 1, 1
    for part in parts[:3]:  # a first part may be empty
        reader = PartReader(part, settings)
        window = next(reader.windows(_SAMPLE), None)
        if window is not None and window.texts:
            sample = encode_window(window, settings).lengths
            if settings.section.keep is not None:  # does it fit the columns of the first rows?
                table = without_rows(window.columns, settings.results)
                Condition(settings.section.keep, columns=table.column_names).kept(table)
            characters, rows = sum(map(len, window.texts)), len(window.texts)
            break
    architecture, longest = model.opened.model.architecture, settings.max_length
    cost = inference_cost(architecture, model.mesh, max_length=longest)
    size = sum(part.file.size for part in parts) * _CHARACTERS_PER_BYTE
    corpus_rows = max(size * rows / characters, rows)
    chosen = choose_lengths(sample, max_length=longest, program=cost.program * rows / corpus_rows)
    if model.mesh.devices.flat[0].platform != "cpu":
        chosen = [bucket_of(length, _ACCELERATOR_LENGTHS) for length in chosen]
        longest = bucket_of(longest, _ACCELERATOR_LENGTHS)
        longest = min(longest, architecture.max_position_embeddings)
        chosen = [min(length, longest) for length in chosen]
    return sorted({*chosen, longest})
