"""Times fine-tuning in examples per second, against Hugging Face's PyTorch model.

    python -m benchmarks.finetune [--checkpoint DIR --task mrpc --data glue/MRPC]

Without arguments an encoder with random weights is fine-tuned on sentences of this Python's own
documentation. Both sides alternately train a few steps, on the same examples with the same batch
size, length and optimizer. Ours groups examples of similar length and pads them to one of a few
lengths. Hugging Face's side pads a random batch to its longest example, as transformers' own script
does. Compile time is a separate metric.
"""

import argparse
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks import glibc
from benchmarks.features import python_docs, random_checkpoint
from benchmarks.hf_finetune import TABLES, Peer, Settings, read
from benchmarks.report import interleaved, median_ratio, report
from bert_jax.config import parse_config
from bert_jax.data.rows.collate import count_tokens
from bert_jax.optim.finetuning import make_schedule
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.train.compiled import StepPrograms
from bert_jax.train.prefetch import to_devices
from bert_jax.train.state import abstract_state, draw_params, initialise
from bert_jax.train.step import StepLimits, StepSpec
from bert_jax.verbs.finetune import finetune_settings
from bert_jax.verbs.import_checkpoint import import_checkpoint
from bert_jax.workflows.finetuning_setup import origin_params, prepare

PACKAGES = ("jax", "flax", "optax", "torch", "transformers")


def main() -> None:
    """Measures and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--checkpoint", type=Path, help="Hugging Face BERT with its tokenizer")
    parser.add_argument("--task", choices=TABLES, default="cola")
    parser.add_argument("--data", type=Path, help="the task's directory")
    parser.add_argument("--steps", type=int, default=12, help="steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        data = arguments.data or made_data(root / "cola")
        task = arguments.task if arguments.data else "cola"
        texts = [text for row in read(data / "train.tsv", task) for text in row[:2] if text]
        checkpoint = arguments.checkpoint or random_checkpoint(root / "hf", texts)
        run_dir = import_checkpoint(str(checkpoint), str(root / "run"))
        measure(task, data, checkpoint, run_dir, steps=arguments.steps, rounds=arguments.rounds)


def measure(
    task: str, data: Path, checkpoint: Path, run_dir: Path, *, steps: int, rounds: int
) -> None:
    """Times ours and Hugging Face's side alternately."""
    settings = Settings(epochs=1000)
    ours = Ours(
        {
            "seed": 1,
            "run_dir": str(run_dir.parent / "tuned"),
            "finetune": {
                "init_from": str(run_dir),
                "task": {"kind": "glue", "name": task, "data": str(data)},
                "epochs": settings.epochs,
                "batch_size": settings.batch_size,
                "max_length": settings.max_length,
                "optimizer": {"learning_rate": settings.learning_rate},
            },
        }
    )
    train = read(data / "train.tsv", task)
    peer = Peer(checkpoint, task, train, read(data / "dev.tsv", task), seed=1)
    theirs = peer.steps(settings)
    examples: dict[str, list[int]] = {"bert_jax": [], "hf_torch": []}

    def stretch(name: str, taken: Callable[[], int]) -> None:
        examples[name].append(sum(taken() for _ in range(steps)))

    facts = {"task": task, "batch_size": settings.batch_size, "max_length": settings.max_length}
    report(
        *("finetune.compile", ours.compile_seconds, "s"),
        packages=PACKAGES,
        programs=ours.programs,
        **facts,
    )
    seconds = interleaved(
        {
            "bert_jax": functools.partial(stretch, "bert_jax", ours.step),
            "hf_torch": functools.partial(stretch, "hf_torch", functools.partial(next, theirs)),
        },
        rounds=rounds,
    )
    per_example = {
        name: [
            taken / count for taken, count in zip(seconds[name], examples[name][1:], strict=True)
        ]
        for name in seconds
    }
    padding = {"bert_jax": ours.padding, "hf_torch": 1 - peer.pieces / peer.positions}
    for name, taken in per_example.items():
        report(
            *("finetune.rate", 1 / statistics.median(taken), "examples/s"),
            peer=None if name == "bert_jax" else name,
            packages=PACKAGES,
            padding=round(padding[name], 4),
            rounds=rounds,
            **facts,
        )
    ratio = median_ratio(per_example["hf_torch"], per_example["bert_jax"])
    report("finetune.ratio", ratio, "x", peer="hf_torch", packages=PACKAGES, **facts)


class Ours:
    """Runs the train step of `bert-jax finetune` on the batches of a real run."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Compiles all programs. `values` is a configuration of `bert-jax finetune`."""
        prepared = prepare(finetune_settings(parse_config(values, source="benchmark")))
        self.mesh = prepared.mesh
        self.batches = prepared.batches(seed=1)
        model = prepared.model
        optimizer = prepared.optimizer()
        self.schedule = make_schedule(
            prepared.section.optimizer,
            total_steps=self.batches.plan.steps * prepared.section.epochs,
        )
        abstract = abstract_state(model, optimizer, self.mesh)
        draw = functools.partial(draw_params, model, seed=1)
        params = origin_params(prepared, abstract.params, draw)
        self.state = initialise(params, optimizer, abstract, seed=1)
        spec = StepSpec(task=prepared.task, model=model, optimizer=optimizer)
        shapes = len(self.batches.plan.shapes)
        self.run = StepPrograms(spec, accumulation=1, shapes=shapes, warn=print)
        self.stream = self.batches.batches(first_step=0)
        self.pieces = self.positions = 0
        self._shapes: set[tuple[int, ...]] = set()
        self.compile_seconds = self._compile()

    @property
    def programs(self) -> int:
        """Number of compiled shapes."""
        return len(self._shapes)

    @property
    def padding(self) -> float:
        """Share of positions that are padding."""
        return 1 - self.pieces / self.positions

    def step(self) -> int:
        """Runs a step and returns its number of examples."""
        return self._take(next(self.stream))

    def _take(self, batch: Any) -> int:
        self._shapes.add(batch["segment_ids"].shape)
        self.pieces += count_tokens(batch)
        self.positions += sum(
            ids.size for name, ids in batch.items() if name.endswith("segment_ids")
        )
        on_devices = to_devices(batch, batch_sharding(self.mesh), shares=1)
        with jax.set_mesh(self.mesh):
            self.state, figures = self.run(self.state, on_devices, StepLimits(), self.schedule, {})
        jax.block_until_ready(figures)
        return int(batch[WEIGHTS].sum())

    def _compile(self) -> float:
        """Runs steps of every batch shape and returns the compile time in seconds."""
        seconds = 0.0
        for at in itertools.count():
            if self.programs == len(self.batches.plan.shapes) or at == self.batches.plan.steps:
                break
            batch = self.batches.make(at)
            known = self.programs
            started = time.perf_counter()
            self._take(batch)
            if self.programs > known:
                first = time.perf_counter() - started
                started = time.perf_counter()
                self._take(batch)
                seconds += first - (time.perf_counter() - started)
        self.pieces = self.positions = 0
        return seconds


def made_data(directory: Path) -> Path:
    """Writes sentences of the documentation as CoLA's files. Long sentences are "acceptable"."""
    directory.mkdir()
    sentences = python_docs(2000)
    for name, part in (("train", sentences[:-100]), ("dev", sentences[-100:])):
        rows = (f"docs\t{int(len(text) > 80)}\t\t{text}\n" for text in part)
        (directory / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    return directory


if __name__ == "__main__":
    glibc.with_large_pages("benchmarks.finetune")
    main()
