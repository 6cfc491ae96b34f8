"""Cycles and memory of one train step compiled for a TPU, beside Hugging Face's Flax BERT.

``python -m benchmarks.planned_step [--topology v5e:4x4] [--layers 12] [--flax-python PATH]``: BERT
of width 768, 256 × 512, bfloat16, dropout 0.1, 77 predictions, a vocabulary of 30,522, AdamW, data
parallel; by `bert_jax.planning`'s meter, the same for both. No TPU is needed, only libtpu. Hugging
Face's Flax BERT ended with transformers 4: ``--flax-python`` names a Python that has it
(``pip install 'transformers==4.56.*' flax optax libtpu``). Ours is measured for every value of
``--attention`` and ``--unroll``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.report import report
from bert_jax.config import parse_config
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.planning.compiler import TPU_COMPILER
from bert_jax.planning.cycles import Cycles, count_cycles
from bert_jax.planning.execution import Program
from bert_jax.planning.hlo import parse_hlo
from bert_jax.verbs.plan import plan

HIDDEN, ROWS, LENGTH, PREDICTIONS, VOCAB = 768, 256, 512, 77, 30_522
PEER = Path(__file__).with_name("hf_flax_program.py")


def main() -> None:
    """Compiles what is asked for and prints a line of JSON per program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--topology", type=parse_topology, default=parse_topology("v5e:4x4"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--attention", nargs="+", default=["auto"])
    parser.add_argument("--unroll", type=int, nargs="+", help="layers a trip; default: as the run")
    parser.add_argument("--quick", action="store_true", help="ours from one and two layers")
    parser.add_argument("--flax-python", help="a Python with transformers 4 and flax")
    asked = parser.parse_args()
    for attention in asked.attention:
        for unroll in asked.unroll or [None]:
            ours(asked, attention=attention, unroll=unroll)
    if asked.flax_python:
        theirs(asked)


def ours(asked: argparse.Namespace, *, attention: str, unroll: int | None) -> None:
    """Reports the step that `pretrain` would run."""
    values = {
        "model": {
            "architecture": {
                "hidden_size": asked.hidden,
                "num_hidden_layers": asked.layers,
                "num_attention_heads": asked.hidden // 64,
                "intermediate_size": 4 * asked.hidden,
            },
            "execution": {"attention": attention, "unroll": unroll},
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
                }
            ],
        },
    }
    (found,) = plan(
        parse_config(values, source="benchmark"),
        [asked.topology.name],
        vocab_size=VOCAB,
        exact=not asked.quick,
        suggest=False,
        console=Console(quiet=True),
    )
    step = found.phases[0].train
    if step.cycles is None or step.memory is None:
        raise SystemExit(f"{asked.topology.name}: the step does not fit")
    line(
        asked,
        step.cycles,
        temporaries=step.memory.temporaries,
        peak=step.memory.peak,
        seconds_to_compile=round(step.compile_seconds, 1),
        attention=attention,
        unroll=unroll,
        quick=step.extrapolated,
    )


def theirs(asked: argparse.Namespace) -> None:
    """Reports Hugging Face's step, compiled by their own Python."""
    topology: TpuTopology = asked.topology
    accelerator = topology.accelerator
    sizes = (asked.layers, asked.hidden, asked.rows, asked.length, VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "program.txt"
        done = subprocess.run(
            [
                *(asked.flax_python, str(PEER), topology.libtpu_name),
                *("megacore" if accelerator.megacore else "", ",".join(map(str, sizes)), str(text)),
            ],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, **TPU_COMPILER, "PYTHONPATH": ""},
        )
        program = Program.of(parse_hlo(text.read_text(encoding="utf-8")))
    cycles = count_cycles(program, bytes_per_cycle=accelerator.bytes_per_cycle, schedules={})
    line(asked, cycles, peer="Hugging Face Flax BERT", **json.loads(done.stdout.splitlines()[-1]))


def line(
    asked: argparse.Namespace, cycles: Cycles, *, peer: str | None = None, **figures: object
) -> None:
    """Prints one program's figures; bytes are of one device."""
    report(
        "planned_step.cycles",
        cycles.total,
        "cycles",
        peer=peer,
        packages=("jax", "libtpu"),
        topology=asked.topology.name,
        layers=asked.layers,
        rows=asked.rows,
        length=asked.length,
        in_kernels=cycles.in_kernels,
        by_bytes=cycles.by_bytes,
        **figures,
    )


if __name__ == "__main__":
    main()
