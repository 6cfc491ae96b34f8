"""Dumps of bad steps: everything that `bert-jax replay` needs to repeat a step.

The directory ``<run>/bad_step_<n>/`` contains:

- ``dump.json``: the reason, the step's metrics and the tensors' shapes.
- ``batch_<p>.npz``: process p's shards of the batch.
- ``state_<p>.npz``: process p's shards of parameters, optimizer and random key before the step.
- ``config.yaml``, ``tokenizer/`` and ``provenance.json`` of the run.

Reading a dump does not require the run, and never unpickles.
"""

import math
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import jax
import numpy as np
import pydantic
from etils import epath

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.errors import UserError
from bert_jax.files.atomic import whole_file, write_whole
from bert_jax.section import Section
from bert_jax.train.bad_steps import BadStep
from bert_jax.train.progress import TrainProgress
from bert_jax.train.spec import TrainSpec
from bert_jax.train.state import TrainState, named
from bert_jax.train.step import StepFigures
from bert_jax.validation import read_section

RECORD: Final = "dump.json"
BATCH: Final = "batch"
STATE: Final = "state"

# A float that is stored as text, because JSON has no NaN.
Figure = Annotated[
    float,
    pydantic.AllowInfNan(True),
    pydantic.BeforeValidator(lambda value: float(value) if isinstance(value, str) else value),
    pydantic.PlainSerializer(repr),
]


class TensorShape(Section):
    """Shape and dtype of a tensor in the .npz files."""

    shape: tuple[int, ...]
    dtype: str


class DumpRecord(Section):
    """Content of ``dump.json``."""

    step: int = pydantic.Field(ge=1)  # the bad step
    phase: int = pydantic.Field(ge=0)  # phase of the step, counted from 0
    reason: str  # description of the problem
    figures: dict[str, Figure]  # loss, gradient norm, and their limits
    # Gradient norms by parameter; a stacked parameter has one norm per layer
    gradient_norms: dict[str, tuple[Figure, ...]]
    accumulation: int = pydantic.Field(ge=1)  # microbatches of the step
    task: dict[str, Any]  # facts about the task that config.yaml lacks
    frozen: dict[str, str] = pydantic.Field(default_factory=dict)  # hashes of frozen models
    # Settings of the architecture in which the phase differs from config.yaml
    architecture: dict[str, float] = pydantic.Field(default_factory=dict)
    platform: str  # platform of the devices
    processes: int = pydantic.Field(ge=1)  # number of processes that wrote .npz files
    checkpoint: int | None  # step of the last checkpoint
    position: DataPosition | None  # data position after the step
    batch: dict[str, TensorShape]
    state: dict[str, TensorShape]  # state before the step


def write_dump(
    spec: TrainSpec,
    bad: BadStep,
    state: TrainState,
    batch: Any,
    figures: StepFigures,
    progress: TrainProgress,
) -> epath.Path:
    """Writes the dump of a bad step and returns its folder; every process must call it.

    `state` is the frozen state before the step; `progress` is the progress after it.
    """
    folder = spec.run_dir / f"bad_step_{bad.step}"
    process = jax.process_index()
    for stem, tree in ((BATCH, batch), (STATE, state)):
        pieces = {key: piece for name, leaf in named(tree) for key, piece in _pieces(name, leaf)}
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / f"{stem}_{process}.npz") as path, path.open("wb") as file:
            np.savez(file, allow_pickle=False, **pieces)
    norms = jax.device_get(figures.gradient_norms)
    record = DumpRecord(
        step=bad.step,
        phase=progress.phase,
        reason=bad.reason,
        figures=dict(bad.figures),
        gradient_norms={
            name: tuple(np.ravel(norm).astype(float).tolist()) for name, norm in named(norms)
        },
        accumulation=spec.phases[progress.phase].accumulation,
        task=dict(spec.task_facts),
        frozen=dict(spec.frozen.hashes),
        architecture=progress.architecture,
        platform=jax.default_backend(),
        processes=jax.process_count(),
        checkpoint=spec.checkpoints.on_disk.newest(),
        position=progress.position,
        batch=_shapes(batch),
        state=_shapes(state),
    )
    if process == 0:
        spec.write_config(folder)
        write_whole(folder / RECORD, record.model_dump_json(indent=1))
    return folder


def read_record(folder: epath.Path) -> DumpRecord:
    """Returns a dump's record; raises UserError if the dump is missing or damaged."""
    if not (folder / RECORD).exists():
        raise UserError(
            "dump.missing",
            "found no dump.json, allowed: a folder bad_step_<n> of a run directory",
            place=folder,
        )
    return read_section(DumpRecord, folder / RECORD)


def read_tensors(
    folder: epath.Path,
    stem: str,
    record: DumpRecord,
    *,
    only: Callable[[str], bool] = lambda name: True,
) -> dict[str, np.ndarray]:
    """Returns tensors by name, joined from the shards of all processes.

    Args:
        folder: dump.
        stem: `BATCH` or `STATE`.
        record: record of the dump.
        only: returns whether to read the tensor of a given name.

    Raises:
        UserError: a file is missing or damaged, or a tensor is incomplete.
    """
    pieces: defaultdict[str, list[tuple[str, np.ndarray]]] = defaultdict(list)
    for process in range(record.processes):
        for name, index, piece in _read_pieces(folder / f"{stem}_{process}.npz", only):
            pieces[name].append((index, piece))
    shapes = record.batch if stem == BATCH else record.state
    return {
        name: _joined(f"{folder}: {name}", tensor, pieces[name])
        for name, tensor in shapes.items()
        if only(name)
    }


def _joined(what: str, tensor: TensorShape, pieces: list[tuple[str, np.ndarray]]) -> np.ndarray:
    size = math.prod(tensor.shape)
    if missing := size - sum(piece.size for _, piece in pieces):
        raise UserError(
            "dump.incomplete",
            "{missing} of {expected} values are missing",
            place=what,
            missing=missing,
            expected=size,
        )
    try:
        whole = np.empty(tensor.shape, np.dtype(tensor.dtype))
        for index, piece in pieces:
            whole[tuple(slice(*map(int, part.split(":"))) for part in index.split(",") if part)] = (
                piece
            )
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(
            "dump.pieces",
            "the shards do not fit into {expected}",
            place=what,
            expected=f"{tensor.dtype}{list(tensor.shape)}",
        ) from error
    return whole


def _read_pieces(
    path: epath.Path, only: Callable[[str], bool]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields (tensor name, index of the shard as text, shard)."""
    if not path.exists():
        raise UserError(
            "dump.file_missing", "missing, but the run wrote a file per process", place=path
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as pieces:
            for key in pieces.files:
                name, _, index = key.rpartition("@")
                if only(name):
                    yield name, index, pieces[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            "dump.damaged", "damaged, or not .npz ({reason})", place=path, reason=str(error)
        ) from error


def _shapes(tree: Any) -> dict[str, TensorShape]:
    return {
        name: TensorShape(shape=leaf.shape, dtype=str(leaf.dtype)) for name, leaf in named(tree)
    }


def _pieces(name: str, array: jax.Array) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (key such as ``mlm/bias@0:32``, shard) of this process's shards of replica 0."""
    for shard in array.addressable_shards:
        if not shard.replica_id:
            spans = (p.indices(size) for p, size in zip(shard.index, array.shape, strict=True))
            place = ",".join(f"{start}:{stop}" for start, stop, _ in spans)
            yield f"{name}@{place}", jax.device_get(shard.data)
