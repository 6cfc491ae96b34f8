"""Dumps of bad steps: the inputs of a step and its gradient norms.

The directory ``<run>/bad_step_<n>/`` contains:

- ``dump.json``: the reason, the step's metrics and the tensors' shapes.
- ``batch_<p>.npz``: process p's shards of the batch.
- ``state_<p>.npz``: process p's shards of parameters, optimizer and random key before the step.
- ``config.yaml``, ``tokenizer/`` and ``provenance.json`` of the run.

`docs/reliability.md` shows how to load a dump. That needs neither the run nor pickle.
"""

from typing import Annotated, Any, Final

import jax
import numpy as np
import pydantic
from etils import epath

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.files.atomic import whole_file, write_whole
from bert_jax.section import Section
from bert_jax.train.bad_steps import BadStep
from bert_jax.train.progress import TrainProgress
from bert_jax.train.spec import TrainSpec
from bert_jax.train.state import TrainState, named
from bert_jax.train.step import StepFigures

RECORD: Final = "dump.json"
BATCH: Final = "batch"
STATE: Final = "state"

# A float that is stored as text, because JSON has no NaN.
Figure = Annotated[float, pydantic.AllowInfNan(True), pydantic.PlainSerializer(repr)]


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
        pieces = {}  # by key, such as ``mlm/bias@0:32``: this process's shards of replica 0
        for name, leaf in named(tree):
            for shard in leaf.addressable_shards:
                if not shard.replica_id:
                    spans = zip(shard.index, leaf.shape, strict=True)
                    ends = (part.indices(size)[:2] for part, size in spans)
                    place = ",".join(f"{start}:{stop}" for start, stop in ends)
                    pieces[f"{name}@{place}"] = jax.device_get(shard.data)
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / f"{stem}_{process}.npz") as path, path.open("wb") as file:
            np.savez(file, allow_pickle=False, **pieces)
    norms = jax.tree.map(np.sqrt, jax.device_get(figures.gradient_squares))
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


def _shapes(tree: Any) -> dict[str, TensorShape]:
    return {
        name: TensorShape(shape=leaf.shape, dtype=str(leaf.dtype)) for name, leaf in named(tree)
    }
