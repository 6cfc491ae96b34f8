"""``python -m tests.train.tpu_program v5e:4x4 2 base FOLDER``: compiles a train step.

Up to code generation, most of a compilation, which changes nothing that is looked at. Prints one
JSON line; a process of its own for test_tpu_compile.py.
"""

import collections
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.model.config import ModelSection, resolve_architecture
from bert_jax.objectives.bert import BertObjective
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import linear_schedule
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.rules import batch_sharding
from bert_jax.parallel.section import MeshSection
from bert_jax.planning.compilation.compiler_files import compile_quickly
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.state import abstract_state, define_model
from bert_jax.train.step import StepSpec

# Pieces, and the rows, positions and predictions of the global batch, for each size of model.
SHAPES: Final = {"base": (30_522, 256, 512, 77), "tiny": (2_048, 64, 128, 20)}
KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
COLLECTIVE = re.compile(rf" ({'|'.join(KINDS)})(?:-start)?\(")
SUM = re.compile(r" (?:all-reduce|reduce-scatter)(?:-start)?\(.*?replica_groups=(.*)")


def lower(
    topology: str, *, tensor: int, size: Literal["base", "tiny"]
) -> tuple[jax.stages.Lowered, int]:
    """The train step that pretraining runs, for shapes alone."""
    vocab_size, rows, length, predictions = SHAPES[size]
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    mesh = make_mesh(MeshSection(tensor=tensor), devices)
    section = ModelSection(size=size)
    task = BertObjective(
        architecture=resolve_architecture(section, vocab_size=vocab_size),
        execution=section.execution,
        masking=MaskingSection(),
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
    )
    model = define_model(task.build)
    schedule = linear_schedule([ScheduleSegment(1_000_000, 1e-4, 10_000)])
    optimizer = make_optimizer(OptimizerSection(), model.axes)
    layout = batch_sharding(mesh)

    def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=layout)

    batch = {
        **{name: of(jnp.int32, length) for name in ("input_ids", "token_type_ids", "segment_ids")},
        "masked_lm_positions": of(jnp.int32, predictions),
        "masked_lm_ids": of(jnp.int32, predictions),
        "masked_lm_weights": of(jnp.float32, predictions),
        "cls_positions": of(jnp.int32, 1),
        "next_sentence_labels": of(jnp.int32, 1),
        "next_sentence_weights": of(jnp.float32, 1),
    }
    state = abstract_state(model, optimizer, mesh)
    with jax.set_mesh(mesh):
        spec = StepSpec(task=task, model=model, optimizer=optimizer)
        lowered = lower_train_step(spec, state, batch, schedule, accumulation=1)
    return lowered, len(devices)


def group_size(groups: str, *, devices: int) -> int:
    """How many devices take part in one sum, from any way in which XLA writes its groups.

    ``mesh['a'=8,'b'=2] {'a'}`` → 8, ``[2,8]<=[16]`` → 8, ``{{0,2},{1,3}}`` → 2, ``{}`` → all.
    """
    if groups.startswith("mesh["):
        sizes = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", groups)}
        summed = groups.partition("] {")[2].partition("}")[0]
        return math.prod(sizes[name] for name in re.findall(r"'\w+'", summed))
    if short := re.match(r"\[\d+,(\d+)\]", groups):
        return int(short[1])
    if groups.startswith("{}"):
        return devices
    return groups.lstrip("{").partition("}")[0].count(",") + 1


def describe(
    topology: str, *, tensor: int, size: Literal["base", "tiny"], folder: Path
) -> dict[str, Any]:
    """What the compiled program needs and how its devices talk."""
    lowered, devices = lower(topology, tensor=tensor, size=size)
    found = compile_quickly(lowered, folder)
    text = found.text
    counts = collections.Counter(COLLECTIVE.findall(text))
    return {
        "devices": devices,
        "peak_bytes": found.total,
        "temporary_bytes": found.temporaries,
        "collectives": {kind: counts[kind] for kind in KINDS},
        "copied_gathers": text.count(" copy(%all-gather"),
        "sum_groups": [group_size(groups, devices=devices) for groups in SUM.findall(text)],
    }


if __name__ == "__main__":
    topology, tensor, size, folder = sys.argv[1:]
    wanted: Any = size
    found = describe(topology, tensor=int(tensor), size=wanted, folder=Path(folder))
    print(json.dumps(found), flush=True)
    os._exit(0)  # the compiler would go on
