"""Compiles a fine-tuning step for a TPU: its memory, cycles and estimated time.

    python -m benchmarks.planned_finetuning [--topology v5e:2x2] [--rows 128]
    python -m benchmarks.planned_finetuning --task embedding --topology v5e:4x4 --rows 16384 \
        --chunks 16 --quick

The model has width 768, in bfloat16 with dropout 0.1. All rows have one length. With ``--task
embedding`` it trains sentence embeddings on pairs, which are encoded in ``--chunks``; otherwise it
is a classifier. The step is compiled for all chips with ``kernels: xla``, with our kernels and
scanned layers, and with our kernels and unrolled layers, which is the default on TPUs. ``--quick``
compiles only the last, without machine code (docs/planning.md). It needs libtpu but no TPU.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.report import report
from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.encoders.kernel_choice import resolve_execution
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.model.text_head import PoolingSection
from bert_jax.optim.finetuning import make_finetune_optimizer
from bert_jax.optim.schedule import pretraining_schedule
from bert_jax.optim.sections import FinetuneOptimizerSection, ScheduleSegment
from bert_jax.parallel.accelerators import GIB
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.planning.compilation.kernels import write_schedules
from bert_jax.planning.compilation.lowering import LoweredStep, device_bytes, open_devices
from bert_jax.planning.compilation.step import CompiledStep, compile_lowered
from bert_jax.planning.compiler import TPU_COMPILER
from bert_jax.planning.estimate import Plan
from bert_jax.planning.request import installed_versions
from bert_jax.tasks.batches import INPUTS, WEIGHTS
from bert_jax.tasks.embedding.section import EmbeddingLossSection
from bert_jax.tasks.embedding.task import EmbeddingTask
from bert_jax.tasks.search.tuples import TEXTS
from bert_jax.tasks.task import FinetuneTask
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.state import abstract_state, define_model
from bert_jax.train.step import StepSpec

DEFAULT = "kernels, unrolled"
WAYS: dict[str, dict[str, Any]] = {
    "xla, scanned": {"attention": "xla", "norm": "xla", "ffn": "xla", "unroll": 1},
    "kernels, scanned": {"unroll": 1},
    DEFAULT: {},
}


def main() -> None:
    """Prints a JSON line for each set of kernels."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--topology", type=parse_topology, default=parse_topology("v5e:2x2"))
    parser.add_argument("--task", choices=("classifier", "embedding"), default="classifier")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=128, help="rows of a batch over all chips")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--chunks", type=int, default=1, help="only for --task embedding")
    parser.add_argument("--quick", action="store_true", help="estimate in seconds")
    asked = parser.parse_args()
    os.environ.update(TPU_COMPILER)
    architecture = base_architecture(asked.layers)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        schedules, folder = Path(root, "schedules"), Path(root, "programs")
        schedules.mkdir()
        folder.mkdir()
        write_schedules(schedules)
        mesh = make_mesh(MeshSection(), open_devices(asked.topology, slices=1))
        for way, changes in WAYS.items():
            if asked.quick and way != DEFAULT:
                continue
            task = task_of(asked.task, architecture, Execution(**changes), mesh, asked.length)
            if isinstance(task, EmbeddingTask):
                task = dataclasses.replace(task, chunks=asked.chunks)
            step = lowered_step(task, mesh, rows=asked.rows, length=asked.length)
            found = compile_lowered(
                step,
                mesh,
                topology=asked.topology,
                schedules=schedules,
                quick=asked.quick,
                folder=folder,
            )
            _report(found, asked, way=way)
        sys.stdout.flush()
    if asked.quick:
        os._exit(0)  # a normal exit would wait for the compiler, which still generates code


def _report(step: CompiledStep, asked: argparse.Namespace, *, way: str) -> None:
    facts: dict[str, Any] = {
        "task": asked.task,
        "way": way,
        "topology": asked.topology.name,
        "layers": asked.layers,
        "rows": asked.rows,
        "length": asked.length,
        "chunks": asked.chunks,
        "quick": asked.quick,
        "seconds_to_compile": round(step.compile_seconds, 1),
    }
    packages = ("jax", "libtpu")
    if step.memory is None or step.cycles is None:
        report("planned_finetuning.missing", step.peak / GIB, "GiB", packages=packages, **facts)
        return
    topology: TpuTopology = asked.topology
    versions = installed_versions()
    plan = Plan(topology=topology, slices=1, phases=(), learning_rate=(), versions=versions)
    time = plan.estimate(step)
    facts |= {
        "cycles": step.cycles.total,
        "in_kernels": step.cycles.in_kernels,
        "parameters": step.memory.parameters,
        "optimizer": step.memory.optimizer,
        "temporaries": step.memory.temporaries,
        "peak": step.memory.peak,
        "ms": {name: round(1000 * seconds, 1) for name, seconds in time.parts.items()},
        "mfu": round(time.mfu, 3),
    }
    report("planned_finetuning.step", 1000 * time.seconds, "ms", packages=packages, **facts)


def base_architecture(layers: int) -> BertArchitecture:
    """Returns a BERT of width 768."""
    return BertArchitecture(
        vocab_size=30_522,
        hidden_size=768,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=3072,
    )


def task_of(
    kind: str, architecture: BertArchitecture, execution: Execution, mesh: Mesh, length: int
) -> FinetuneTask:
    """Returns the task of a classifier, or of sentence embeddings, with kernels for a mesh."""
    parts: dict[str, Any] = {
        "architecture": architecture,
        "execution": resolve_execution(
            execution, architecture=architecture, mesh=mesh, longest=length
        ),
    }
    if kind == "embedding":
        heads = HeadsSection(
            pooler=False, mlm=False, next_sentence=False, embedding=PoolingSection()
        )
        return EmbeddingTask(heads=heads, training=EmbeddingLossSection(), **parts)
    heads = HeadsSection(
        mlm=False,
        next_sentence=False,
        task="sequence_classification",
        problem="single_label",
        labels=("a", "b"),
    )
    return FinetuneTask(heads=heads, **parts)


def lowered_step(task: FinetuneTask, mesh: Mesh, *, rows: int, length: int) -> LoweredStep:
    """Returns a task's step, lowered for absent devices as `finetune` lowers it."""
    model, layout = define_model(task.build), batch_sharding(mesh)
    optimizer = make_finetune_optimizer(
        FinetuneOptimizerSection(),
        model.axes,
        groups=model.groups,
        depth=task.architecture.num_hidden_layers,
    )

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=layout)

    texts = (2,) if isinstance(task, EmbeddingTask) else ()
    batch: dict[str, Any] = {name: array(jnp.int32, *texts, length) for name in INPUTS}
    batch[WEIGHTS] = array(jnp.float32)
    batch |= {TEXTS: array(jnp.int32, 1, 2)} if texts else {"label": array(jnp.int32)}
    spec = StepSpec(task=task, model=model, optimizer=optimizer)
    state = abstract_state(model, optimizer, mesh)
    schedule = pretraining_schedule([ScheduleSegment(1000, 1e-4, 100)])
    with jax.set_mesh(mesh):
        lowered = lower_train_step(spec, state, batch, schedule, {}, accumulation=1)
    return LoweredStep(
        lowered=lowered,
        rows=rows,
        flops=rows * (2 if texts else 1) * task.flops_per_row(seq_length=length),
        parameter_bytes=device_bytes(state.params),
        optimizer_bytes=device_bytes(state._replace(params={})),
        beside_bytes=0,
        copy_bytes=0,
    )


if __name__ == "__main__":
    main()
