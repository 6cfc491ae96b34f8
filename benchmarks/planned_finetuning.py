"""Counts the cycles of a fine-tuning step compiled for a TPU, with and without our kernels.

    python -m benchmarks.planned_finetuning [--topology v5e:2x2] [--layers 12] [--rows 128 --length
    128]

The model is a classifier of width 768 in bfloat16 with dropout 0.1, for rows of one length, over
all chips. The step is compiled with ``kernels: xla``, with our kernels and scanned layers, and with
our kernels and unrolled layers. `bert_jax.planning` counts the cycles. It needs libtpu but no TPU.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.report import report
from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.encoders.kernel_choice import resolve_execution
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.optim.finetuning import make_finetune_optimizer
from bert_jax.optim.schedule import pretraining_schedule
from bert_jax.optim.sections import FinetuneOptimizerSection, ScheduleSegment
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.compiler_files import compile_exactly
from bert_jax.planning.compilation.cycles import count_cycles
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernels import schedules_alone, write_schedules
from bert_jax.planning.compilation.lowering import open_devices
from bert_jax.planning.compilation.program import Program
from bert_jax.planning.compiler import TPU_COMPILER
from bert_jax.tasks.batches import INPUTS, WEIGHTS
from bert_jax.tasks.task import FinetuneTask
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.state import abstract_state, define_model
from bert_jax.train.step import StepSpec

WAYS: dict[str, dict[str, Any]] = {
    "xla, scanned": {"attention": "xla", "norm": "xla", "ffn": "xla", "unroll": 1},
    "kernels, scanned": {"unroll": 1},
    "kernels, unrolled": {},
}


def main() -> None:
    """Prints a JSON line for each set of kernels."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--topology", type=parse_topology, default=parse_topology("v5e:2x2"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=128, help="rows of a batch over all chips")
    parser.add_argument("--length", type=int, default=128)
    asked = parser.parse_args()
    os.environ.update(TPU_COMPILER)
    architecture = BertArchitecture(
        vocab_size=30_522,
        hidden_size=768,
        num_hidden_layers=asked.layers,
        num_attention_heads=12,
        intermediate_size=3072,
    )
    accelerator = asked.topology.accelerator
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        write_schedules(Path(folder))
        mesh = make_mesh(MeshSection(), open_devices(asked.topology, slices=1))
        for way, changes in WAYS.items():
            lowered = lowered_step(
                architecture, Execution(**changes), mesh, rows=asked.rows, length=asked.length
            )
            alone = schedules_alone(lowered, mesh, accelerator=accelerator, written=Path(folder))
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as files:
                found = compile_exactly(lowered, Path(files))
            seconds = time.perf_counter() - started
            cycles = count_cycles(Program.of(parse_hlo(found.text)), alone, accelerator)
            report(
                "planned_finetuning.cycles",
                cycles.total,
                "cycles",
                packages=("jax", "libtpu"),
                way=way,
                topology=asked.topology.name,
                layers=asked.layers,
                rows=asked.rows,
                length=asked.length,
                in_kernels=cycles.in_kernels,
                temporaries=found.temporaries,
                seconds_to_compile=round(seconds, 1),
            )


def lowered_step(
    architecture: BertArchitecture,
    execution: Execution,
    mesh: Mesh,
    *,
    rows: int,
    length: int,
) -> jax.stages.Lowered:
    """Returns a classifier's step, lowered for absent devices as `finetune` lowers it."""
    heads = HeadsSection(
        mlm=False,
        next_sentence=False,
        task="sequence_classification",
        problem="single_label",
        labels=("a", "b"),
    )
    task = FinetuneTask(
        architecture=architecture,
        execution=resolve_execution(
            execution, architecture=architecture, mesh=mesh, longest=length
        ),
        heads=heads,
    )
    model, layout = define_model(task.build), batch_sharding(mesh)
    optimizer = make_finetune_optimizer(
        FinetuneOptimizerSection(),
        model.axes,
        groups=model.groups,
        depth=architecture.num_hidden_layers,
    )

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=layout)

    batch: dict[str, Any] = {name: array(jnp.int32, length) for name in INPUTS}
    batch |= {"label": array(jnp.int32), WEIGHTS: array(jnp.float32)}
    spec = StepSpec(task=task, model=model, optimizer=optimizer)
    state = abstract_state(model, optimizer, mesh)
    schedule = pretraining_schedule([ScheduleSegment(1000, 1e-4, 100)])
    with jax.set_mesh(mesh):
        return lower_train_step(spec, state, batch, schedule, {}, accumulation=1)


if __name__ == "__main__":
    main()
