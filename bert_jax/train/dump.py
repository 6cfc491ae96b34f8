"""A bad step written out: all that `bert-jax replay` needs to run it again, and no more.

``<run>/bad_step_<n>/`` holds ``dump.json`` (what was found, and the shapes), ``batch_<p>.npz`` and
``state_<p>.npz`` (each process's pieces of the batch, and of parameters, optimizer and random key
before the step), and the run's ``config.yaml``, ``tokenizer/`` and ``provenance.json``. It is read
without unpickling, and without the run.
"""

import contextlib
import math
import zipfile
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
from bert_jax.train.state import TrainState, named, piece_name
from bert_jax.train.step import StepFigures
from bert_jax.validation import read_section

RECORD: Final = "dump.json"
BATCH: Final = "batch"
STATE: Final = "state"

# JSON has no NaN: figures are texts.
Figure = Annotated[
    float,
    pydantic.AllowInfNan(True),
    pydantic.BeforeValidator(lambda value: float(value) if isinstance(value, str) else value),
    pydantic.PlainSerializer(repr),
]


class TensorShape(Section):
    """What the pieces of a tensor make up."""

    shape: tuple[int, ...]
    dtype: str


class DumpRecord(Section):
    """``dump.json``: the step and what was found."""

    step: int = pydantic.Field(ge=1)  # the one that went bad
    phase: int = pydantic.Field(ge=0)  # it is in, counted from 0
    reason: str  # what was wrong with it
    figures: dict[str, Figure]  # loss, gradient norm, and the limits that they were judged by
    gradient_norms: dict[str, tuple[Figure, ...]]  # of each parameter; of a stacked one, by layer
    accumulation: int = pydantic.Field(ge=1)  # microbatches of the step
    task: dict[str, Any]  # what of the task config.yaml does not say
    platform: str  # of the devices
    processes: int = pydantic.Field(ge=1)  # each has written its pieces
    checkpoint: int | None  # the last one before the step
    position: DataPosition | None  # the data position after the step
    batch: dict[str, TensorShape]  # the tensors of the batch
    state: dict[str, TensorShape]  # those of the state before the step


def write_dump(
    spec: TrainSpec,
    bad: BadStep,
    state: TrainState,
    batch: Any,
    figures: StepFigures,
    progress: TrainProgress,
) -> epath.Path:
    """Writes a bad step out, every process its pieces, and returns the folder.

    The state is from before the step, frozen; the progress from after it.
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
        platform=jax.default_backend(),
        processes=jax.process_count(),
        checkpoint=spec.checkpoints.latest_step(),
        position=progress.position,
        batch=_shapes(batch),
        state=_shapes(state),
    )
    if process == 0:
        spec.write_config(folder)
        write_whole(folder / RECORD, record.model_dump_json(indent=1))
    return folder


def read_record(folder: epath.Path) -> DumpRecord:
    """Returns what a dump says of its step; UserError: no dump, or a damaged one."""
    if not (folder / RECORD).exists():
        raise UserError(f"{folder}: no {RECORD} in it; expected a bad_step_<n> of a run directory")
    return read_section(DumpRecord, folder / RECORD)


def read_tensors(
    folder: epath.Path,
    stem: str,
    record: DumpRecord,
    *,
    only: Callable[[str], bool] = lambda name: True,
) -> dict[str, np.ndarray]:
    """Returns whole tensors by name, put together from all processes' pieces.

    `stem` is `BATCH` or `STATE`; `only` says which names to read. Raises UserError: a file is
    missing or damaged, or not all of a tensor is there.
    """
    shapes = record.batch if stem == BATCH else record.state
    shapes = {name: shape for name, shape in shapes.items() if only(name)}
    paths = [folder / f"{stem}_{process}.npz" for process in range(record.processes)]
    stored = sum(map(_stored_bytes, paths))
    needed = sum(_dtype(t, folder).itemsize * math.prod(t.shape) for t in shapes.values())
    if needed > stored:
        raise UserError(f"{folder}: {stem} needs {needed:,} bytes, its files hold {stored:,}")
    whole = {name: np.empty(t.shape, _dtype(t, folder)) for name, t in shapes.items()}
    missing = {name: array.size for name, array in whole.items()}
    for path in paths:
        for name, index, piece in _read_pieces(path, only):
            try:
                at = tuple(slice(*map(int, part.split(":"))) for part in index.split(",") if part)
                whole[name][at] = piece
                missing[name] -= piece.size
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise UserError(
                    f"{path}: found {name} {list(piece.shape)}, allowed: pieces of its tensors"
                ) from error
    for name, left in missing.items():
        if left:
            raise UserError(f"{folder}: {left} of {whole[name].size} numbers of {name} are missing")
    return whole


def _stored_bytes(path: epath.Path) -> int:
    """Returns how much a file of pieces holds, which is not compressed."""
    if not path.exists():
        raise UserError(f"{path}: no such file; every process of the run has written one")
    with _damaged(path), path.open("rb") as file, zipfile.ZipFile(file) as members:
        found = members.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in found):
        raise UserError(f"{path}: found compressed arrays, allowed: as `bert-jax` writes them")
    return sum(member.file_size for member in found)


def _read_pieces(
    path: epath.Path, only: Callable[[str], bool]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields (name of the tensor, place of the piece, piece)."""
    with _damaged(path), path.open("rb") as file, np.load(file, allow_pickle=False) as pieces:
        for key in pieces.files:
            name, _, index = key.rpartition("@")
            if only(name):
                yield name, index, pieces[key]


@contextlib.contextmanager
def _damaged(path: epath.Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: damaged, or no .npz ({error})") from error


def _shapes(tree: Any) -> dict[str, TensorShape]:
    return {
        name: TensorShape(shape=leaf.shape, dtype=str(leaf.dtype)) for name, leaf in named(tree)
    }


def _pieces(name: str, array: jax.Array) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what this process holds of an array, of several replicas the first, with its place."""
    for shard in array.addressable_shards:
        if not shard.replica_id:
            yield piece_name(name, shard.index, array.shape), jax.device_get(shard.data)


def _dtype(tensor: TensorShape, folder: epath.Path) -> np.dtype[Any]:
    try:
        return np.dtype(tensor.dtype)
    except TypeError as error:
        raise UserError(f"{folder / RECORD}: found dtype {tensor.dtype}") from error
