"""What a configuration reads: is it there, and does it belong together. Needs no JAX."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME, read_provenance
from bert_jax.data.tables import read_table
from bert_jax.diagnostics.findings import Finding, ok, problem
from bert_jax.errors import UserError
from bert_jax.files.read import require_file
from bert_jax.files.remote import is_remote
from bert_jax.interop.hub import is_hub_name
from bert_jax.interop.local import is_checkpoint
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.tasks.glue.family import GlueSection
from bert_jax.tasks.glue.tfds import NAME as TFDS
from bert_jax.tasks.section import FinetuneSection
from bert_jax.tasks.table.family import TableSection
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.train.sections import TrainSection, schedule_segments

_FILES: Final = ("train", "dev", "test")

Check = tuple[str, Callable[[], str]]  # its subject; returns what is fine, or raises


def check_inputs(checks: Iterator[Check]) -> Iterator[Finding]:
    """Yields a finding for each check of `pretraining_inputs` or `finetuning_inputs`."""
    for topic, check in checks:
        try:
            yield ok(topic, check())
        except UserError as error:
            yield problem(topic, str(error))


def require_inputs(checks: Iterator[Check], mesh: MeshSection) -> None:
    """Raises the first problem that a check finds, before JAX is loaded.

    One process of several looks later, once it has joined the others: they hear of its mistake
    then, and before would wait for it. Raises UserError if there is one.
    """
    if mesh.distributed.enabled:
        return
    for _, check in checks:
        check()


def pretraining_inputs(
    *, tokenizer: str, train: TrainSection, optimizer: OptimizerSection
) -> Iterator[Check]:
    """Yields checks of what `pretrain` reads: tokenizer, schedule, datasets."""
    loaded: list[Tokenizer] = []

    def check_tokenizer() -> str:
        loaded.append(load_tokenizer(tokenizer))
        return f"{tokenizer}, {loaded[0].vocab_size:,} pieces"

    def check_schedule() -> str:
        schedule_segments(train, optimizer)
        return f"{train.total_steps:,} steps"

    yield "tokenizer", check_tokenizer
    yield "schedule", check_schedule
    for index, path in enumerate(dict.fromkeys(phase.dataset for phase in train.phases)):
        key = f"train.phases.{index}.dataset"
        yield "dataset", lambda path=path, key=key: _dataset(path, loaded, key=key)


def _dataset(path: str, tokenizers: list[Tokenizer], *, key: str) -> str:
    if is_remote(path):
        return f"{path} is opened when the run starts"
    root = epath.Path(path)
    if root.exists() and not (root / PROVENANCE_NAME).exists():
        return f"{path} is taken for TFRecords"
    if any(character in path for character in "*?["):
        return f"{path} is opened when the run starts"
    made = read_provenance(root)
    if tokenizers and made.tokenizer_hash != tokenizers[0].hash:
        raise UserError(
            f"{key}: {path} was made with another tokenizer ({made.tokenizer_hash[:12]}) than the "
            f"one given ({tokenizers[0].hash[:12]})"
        )
    counts = ", ".join(f"{split.examples:,} of {name}" for name, split in made.splits.items())
    return f"{path}, {counts} examples"


def finetuning_inputs(section: FinetuneSection) -> Iterator[Check]:
    """Yields checks of what `finetune` reads: its origin, and the task's files."""
    yield "init_from", lambda: _origin(section.init_from)
    task = section.task
    if isinstance(task, GlueSection):
        if task.data != TFDS:
            yield "task", lambda: _directory(task.data)
        return
    for role in _FILES:
        path = getattr(task, role, None)
        if path is not None and isinstance(task, TableSection):
            yield "task", lambda role=role, path=path: _table(task, role, path)
        elif path is not None:
            yield "task", lambda path=path: _file(path)


def _origin(origin: str) -> str:
    if is_remote(origin) or is_hub_name(origin):
        return f"{origin} is fetched when the run starts"
    if is_checkpoint(origin):
        return f"{origin} is imported when the run starts"
    root = epath.Path(origin)
    if not (root / "config.yaml").exists():
        what = "no config.yaml in it" if root.exists() else "no such directory"
        raise UserError(f"{root}: {what}; expected a run or a Hugging Face directory")
    return f"{origin} is a run"


def _directory(path: str) -> str:
    if not is_remote(path) and not Path(path).is_dir():
        raise UserError(f'task.data: found no directory {path}, allowed: one, or "{TFDS}"')
    return f"{path} is there"


def _table(task: TableSection, role: str, path: str) -> str:
    """Looks at a table's first row: are the columns there that the task names?"""
    told = _file(path)
    asked = [("task.text", task.text), ("task.pair", task.pair), ("task.id", task.id)]
    asked += [] if role == "test" else [("task.label", task.label)]
    if not is_remote(path):
        for row in itertools.islice(read_table(Path(path)), 1):
            row.require(asked)
    return told


def _file(path: str) -> str:
    if is_remote(path):
        return f"{path} is fetched when the run starts"
    require_file(path)
    return f"{path} is there"
