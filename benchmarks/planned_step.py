"""Counts cycles and memory of one train step compiled for a TPU: ours and Hugging Face's Flax BERT.

    python -m benchmarks.planned_step [--topology v5e:4x4 …] [--layers 12] [--flax-python PATH]

The model is a BERT of width 768 in bfloat16 with dropout 0.1 and a vocabulary of 30,522. A batch
has 256 rows of 512 tokens, of which 15% are predicted. The step is data parallel, with AdamW.
`bert_jax.planning` analyses both compiled programs. It needs libtpu but no TPU.

Transformers 5 has no Flax BERT, so ``--flax-python`` is a Python with transformers 4 (``pip install
'transformers==4.56.*' flax optax libtpu``). Prints a line for every topology and every value of
``--dropout``, ``--attention`` and ``--unroll``. With ``--quick`` our step is not compiled to
machine code (docs/planning.md), and Hugging Face's cost is extrapolated from one and two layers.
"""

import argparse
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import report
from bert_jax.config import parse_config
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.planning.compilation.compiler_files import read_coded
from bert_jax.planning.compilation.cycles import Cycles, by_schedule, count_cycles
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernels import read_schedules, write_schedules
from bert_jax.planning.compilation.program import Program
from bert_jax.planning.compiler import TPU_COMPILER
from bert_jax.verbs.plan import plan

HIDDEN, ROWS, LENGTH, VOCAB = 768, 256, 512, 30_522
PEER = Path(__file__).with_name("hf_flax_program.py")


def main() -> None:
    """Compiles the requested programs and prints a JSON line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    default = [parse_topology("v5e:4x4")]
    parser.add_argument("--topology", nargs="+", type=parse_topology, default=default)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.1])
    parser.add_argument("--packed", type=int, help="maximum examples per packed row (ours only)")
    parser.add_argument("--attention", nargs="+", default=["auto"])
    parser.add_argument(
        "--unroll", type=int, nargs="+", help="layers per scan iteration; default: as in a run"
    )
    parser.add_argument("--quick", action="store_true", help="estimate in seconds")
    parser.add_argument("--flax-python", help="Python with transformers 4 and flax")
    asked = parser.parse_args()
    for topology, rate in itertools.product(asked.topology, asked.dropout):
        facts = {"topology": topology.name, "dropout": rate}
        for attention, unroll in itertools.product(asked.attention, asked.unroll or [None]):
            how = {"attention": attention, "unroll": unroll}
            line(asked, facts | how | ours(asked, topology, rate=rate, execution=how))
        if asked.flax_python:
            line(asked, facts | theirs(asked, topology, rate=rate), peer="Hugging Face Flax BERT")


def ours(
    asked: argparse.Namespace, topology: TpuTopology, *, rate: float, execution: dict[str, Any]
) -> dict[str, Any]:
    """Returns the metrics of `pretrain`'s step."""
    values = {
        "model": {
            "architecture": {
                "hidden_size": asked.hidden,
                "num_hidden_layers": asked.layers,
                "num_attention_heads": asked.hidden // 64,
                "intermediate_size": 4 * asked.hidden,
                "max_position_embeddings": max(asked.length, 512),
                "hidden_dropout_prob": rate,
                "attention_probs_dropout_prob": rate,
            },
            "execution": execution,
        },
        "train": {
            "evaluation": None,
            "phases": [
                {
                    "dataset": "none",
                    "steps": 1,
                    "seq_length": asked.length,
                    "batch_size": asked.rows,
                    "max_predictions": round(0.15 * asked.length),
                    "packing": {"max_examples": asked.packed} if asked.packed else None,
                }
            ],
        },
    }
    (found,) = plan(
        parse_config(values, source="benchmark"),
        [topology.name],
        vocab_size=VOCAB,
        exact=not asked.quick,
        suggest=False,
        console=Console(quiet=True),
    )
    step = found.phases[0].train
    if step.cycles is None or step.memory is None:
        raise SystemExit(f"{topology.name}: the step does not fit")
    kernels = [
        f"{one.calls} × {one.name}: {one.bundles} bundles, {one.busiest} {one.busiest_bundles}"
        for one in step.cycles.kernels
    ]
    return counted(step.cycles) | {
        "by_kind": step.cycles.by_kind,
        "kernels": kernels,
        "packed": asked.packed,
        "temporaries": step.memory.temporaries,
        "peak": step.memory.peak,
        "seconds_to_compile": round(step.compile_seconds, 1),
    }


def theirs(asked: argparse.Namespace, topology: TpuTopology, *, rate: float) -> dict[str, Any]:
    """Returns the metrics of Hugging Face's step, compiled under ``--flax-python``."""
    if not asked.quick:
        return their_step(asked, topology, rate=rate, layers=asked.layers)
    shallow, deep = (their_step(asked, topology, rate=rate, layers=layers) for layers in (1, 2))
    more = asked.layers - 1  # layers after the first; each costs as much as the second

    def of_all(few: Mapping[str, int], many: Mapping[str, int]) -> dict[str, int]:
        return {key: few.get(key, 0) + more * (many[key] - few.get(key, 0)) for key in many}

    kinds = of_all(shallow.pop("by_kind"), deep.pop("by_kind"))
    whole = of_all(shallow, deep)
    seconds = shallow["seconds_to_compile"] + deep["seconds_to_compile"]
    return whole | {"by_kind": kinds, "seconds_to_compile": seconds}


def their_step(
    asked: argparse.Namespace, topology: TpuTopology, *, rate: float, layers: int
) -> dict[str, Any]:
    """Returns the metrics of Hugging Face's step with a given number of layers."""
    accelerator = topology.accelerator
    sizes = ",".join(map(str, (layers, asked.hidden, asked.rows, asked.length, VOCAB)))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as written:
        write_schedules(Path(written))
        megacore = "megacore" if accelerator.megacore else ""
        done = subprocess.run(
            [
                *(asked.flax_python, str(PEER), topology.libtpu_name),
                *(megacore, sizes, str(rate), folder),
            ],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, **TPU_COMPILER, "PYTHONPATH": ""},
        )
        module = parse_hlo(read_coded(Path(folder)))
        program = Program.of(module)
        if accelerator.judged_by_schedule:
            schedules = read_schedules(Path(written), program)
            program = Program.of(module, by_schedule(schedules, accelerator))
    cycles = count_cycles(program, {}, accelerator)
    memory = json.loads(done.stdout.splitlines()[-1])
    return counted(cycles) | {"by_kind": dict(cycles.by_kind)} | memory


def counted(cycles: Cycles) -> dict[str, int]:
    """Returns the sums of a program's cycles."""
    return {"cycles": cycles.total, "in_kernels": cycles.in_kernels, "by_bytes": cycles.by_bytes}


def line(asked: argparse.Namespace, figures: dict[str, Any], *, peer: str | None = None) -> None:
    """Prints the metrics of one program. Bytes are per device."""
    report(
        "planned_step.cycles",
        figures.pop("cycles"),
        "cycles",
        peer=peer,
        packages=("jax", "libtpu"),
        layers=asked.layers,
        rows=asked.rows,
        length=asked.length,
        quick=asked.quick,
        **figures,
    )


if __name__ == "__main__":
    main()
