"""Times a newcomer's first commands, cold and warm, and prints one JSON line each.

    python -m benchmarks.first_hour --checkpoint MODEL --data glue/SST-2 [--only finetune]

Each command is timed from the start of its process to its end, or to a given line of output. A
*cold* run starts with an empty compilation cache. A *warm* run is the second run with that cache.
The peer does the same work with Hugging Face's Trainer (`benchmarks.hf_trainer`, which needs
`accelerate`), or with ``--peer loop`` in a PyTorch loop (`benchmarks.hf_finetune`). Time the
installation with ``time make .venv/.core``.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import report
from benchmarks.silence import Moment, listen
from bert_jax.pipelines.python_docs import write_python_docs

PACKAGES = ("jax", "flax", "torch", "transformers")
PARTS = ("commands", "pretrain", "finetune", "peer")


class Newcomer:
    """Runs commands with a separate cache directory, and reports their times."""

    def __init__(self, root: Path) -> None:
        """Sets the scratch directory, for the cache and all outputs."""
        self.root = root

    def run(
        self, command: Sequence[str], name: str, *, until: str | None = None, **facts: Any
    ) -> float:
        """Runs a command and reports seconds: in total, to the first line and to a given line.

        Args:
            command: program and arguments.
            name: name of the metric.
            until: prefix of the given line.
            **facts: facts to print with the metric.

        Returns:
            Total seconds.
        """
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache")}
        heard, code = listen(command, environment=environment)
        if code:
            sys.exit("\n".join([*(each.line for each in heard), f"{name}: exit code {code}"]))
        first, end = heard[1], heard[-1]
        self._report(name, end, first_line_s=round(first.wall, 2), **facts)
        if until is not None:
            found = next(each for each in heard if each.line.startswith(until))
            self._report(f"{name}.{until.replace(' ', '_')}", found, **facts)
        return end.wall

    def twice(self, command: Sequence[str], name: str, *, until: str | None = None) -> float:
        """Runs a command cold and warm, and deletes the directory ``run`` in between.

        Returns:
            Seconds of the warm run.
        """
        seconds = 0.0
        for state in ("cold", "warm"):
            run_dir = f"run_dir={self.root / 'runs' / f'{name}-{state}'}"
            seconds = self.run([*command, run_dir], name, until=until, state=state)
        return seconds

    def _report(self, name: str, moment: Moment, **facts: Any) -> None:
        cpu = round(moment.cpu, 2)
        report(f"first_hour.{name}", moment.wall, "s", packages=PACKAGES, cpu_s=cpu, **facts)


def main() -> None:
    """Measures the commands and prints the metrics."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face BERT")
    parser.add_argument("--data", type=Path, required=True, help="SST-2's directory")
    parser.add_argument("--rows", type=int, default=2000, help="training rows of SST-2")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="run this part; may be repeated"
    )
    parser.add_argument("--peer", choices=["trainer", "loop"], default="trainer")
    arguments = parser.parse_args()
    parts = arguments.only or PARTS
    with tempfile.TemporaryDirectory() as scratch:
        newcomer = Newcomer(Path(scratch))
        if "commands" in parts:
            newcomer.run(["bert-jax", "--help"], "help")
            newcomer.run(["bert-jax", "doctor"], "doctor")
        if "pretrain" in parts:
            pretrain(newcomer)
        if "finetune" in parts:
            finetune(newcomer, arguments)
        if "peer" in parts:
            module = "hf_trainer" if arguments.peer == "trainer" else "hf_finetune"
            task = [] if arguments.peer == "trainer" else ["sst2"]
            command = [sys.executable, "-m", f"benchmarks.{module}", str(arguments.checkpoint)]
            limits = ["--limit", str(arguments.rows), "--epochs", str(arguments.epochs)]
            newcomer.run([*command, *task, str(arguments.data), *limits], "peer", peer=module)


def pretrain(newcomer: Newcomer) -> None:
    """Times `pretrain` until its first line and its first step, on this Python's documentation."""
    root = newcomer.root
    write_python_docs(root / "text")
    config = {
        "tokenizer": str(root / "tokenizer"),
        "vocab": {"input": str(root / "text/*.txt"), "output": str(root / "tokenizer")},
        "examples": {
            "input": str(root / "text/*.txt"),
            "tokenizer": str(root / "tokenizer"),
            "output": str(root / "dataset"),
            "max_seq_length": 128,
            "dupe_factor": 1,
        },
        "model": {"size": "tiny"},
        "train": {
            "phases": [
                {
                    "dataset": str(root / "dataset"),
                    "steps": 20,
                    "seq_length": 128,
                    "batch_size": 32,
                }
            ]
        },
    }
    config["vocab"] |= {"size": 4000}
    path = root / "pretrain.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    for verb in ("vocab", "examples"):
        newcomer.run(["bert-jax", verb, str(path)], verb)
    newcomer.twice(["bert-jax", "pretrain", str(path)], "pretrain", until="step 1 of")


def finetune(newcomer: Newcomer, arguments: argparse.Namespace) -> None:
    """Times fine-tuning from the model on disk to the report."""
    origin = newcomer.root / "origin"
    newcomer.run(["bert-jax", "import", str(arguments.checkpoint), str(origin)], "import")
    config = {
        "seed": 1,
        "finetune": {
            "init_from": str(origin),
            "task": {
                "kind": "glue",
                "name": "sst2",
                "data": str(arguments.data),
                "train_limit": arguments.rows,
            },
            "epochs": arguments.epochs,
            "max_length": 128,
            "batch_size": 32,
            "optimizer": {"learning_rate": 5e-5},
        },
    }
    path = newcomer.root / "finetune.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    newcomer.twice(["bert-jax", "finetune", str(path)], "finetune", until="step 1 of")


if __name__ == "__main__":
    main()
