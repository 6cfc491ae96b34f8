"""Pretraining runs of a benchmark: each is run once, resumed after a kill, and recorded as JSON."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from etils import epath

import bert_jax
from benchmarks.equal_flops import flops_until, total_flops
from benchmarks.significance import Spread
from bert_jax.config import RunConfig, dump_config
from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import write_whole
from bert_jax.runs.evaluation import read_evaluation
from bert_jax.runs.run_directory import open_run, read_run_provenance
from bert_jax.section import Section, need
from bert_jax.train.loop import Outcome
from bert_jax.train.metrics_writer import VALIDATION, read_metrics
from bert_jax.train.time_account import read_goodput
from bert_jax.validation import read_section

LOSS: Final = "mlm_loss"


class Measured(Section):
    """One evaluation of a run on the held-out split."""

    step: int
    """Optimizer steps."""
    flops: float
    """Model FLOPs of these steps."""
    loss: float
    """MLM loss in nats per masked token."""


class RunRecord(Section):
    """The result of one pretraining run."""

    name: str
    """Name of the run and of its directory."""
    config: str
    """Hash of the configuration."""
    seed: int
    """Seed of the run."""
    learning_rate: float
    """Peak learning rate."""
    steps: int
    """Optimizer steps."""
    flops: float
    """Model FLOPs, see `benchmarks.equal_flops.total_flops`."""
    loss: float
    """MLM loss of the last checkpoint on the held-out split, by `bert-jax evaluate`."""
    hours: float
    """Hours from the start to the end of the run, without the time between restarts."""
    tokenizer: str
    """Hash of the tokenizer."""
    held_out: str
    """Fingerprint of the held-out split."""
    curve: tuple[Measured, ...]
    """Evaluations during the run."""


class RunFolder:
    """The configurations, runs and records of a benchmark, in one directory."""

    def __init__(self, root: Path) -> None:
        """`root` is created if it is missing."""
        self.root = root

    def run_dir(self, name: str) -> Path:
        """Returns the directory of a run."""
        return self.root / "runs" / name

    def config_file(self, name: str) -> Path:
        """Returns the file of a run's configuration."""
        return self.root / "configs" / f"{name}.yaml"

    def write_config(self, name: str, config: RunConfig) -> None:
        """Writes the configuration of a run. Raises UserError if the run had another one."""
        path, text = self.config_file(name), dump_config(config)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise UserError(
                "benchmark.other_config",
                "differs from the configuration of this command. Use another --into, or delete "
                "the file, the run and its result.",
                place=path,
            )
        write_whole(path, text)

    def result_file(self, name: str) -> Path:
        """Returns the file of a run's record."""
        return self.root / "results" / f"{name}.json"

    def finished(self, name: str) -> bool:
        """Returns whether a run has reached its last step, or its record exists."""
        if self.result_file(name).exists():
            return True
        account = read_goodput(self.run_dir(name)) if self.run_dir(name).exists() else None
        return account is not None and account.finished

    def pretrain(self, name: str, config: RunConfig, *, init_from: str | None = None) -> None:
        """Pretrains, unless the run is `finished`. A killed run is resumed.

        `init_from` is as in `bert_jax.pretrain`.

        Raises:
            UserError: the run had another configuration, or an error of `bert_jax.pretrain`.
            RunStopped: a bad step or a signal stopped the run.
        """
        self.write_config(name, config)
        if self.finished(name):
            return
        print(f"run {name}", flush=True)
        require_end(bert_jax.pretrain(config, init_from=init_from), self.run_dir(name))

    def pretrained(self, name: str, config: RunConfig) -> RunRecord:
        """Pretrains and evaluates, unless the result exists. Raises the errors of `pretrain`."""
        path, run_dir = self.result_file(name), self.run_dir(name)
        self.pretrain(name, config)
        if path.exists():
            return read_section(RunRecord, epath.Path(path))
        run = open_run(run_dir)
        if read_evaluation(run) is None:
            bert_jax.evaluate(str(run_dir))
        record = record_of(name, config, run_dir)
        write_whole(path, record.model_dump_json(indent=1) + "\n")
        return record


def require_end(outcome: Outcome, run_dir: Path) -> None:
    """Raises RunStopped if a signal stopped a run before its last step."""
    if outcome.interrupted:
        raise RunStopped("benchmark.interrupted", "stopped by a signal", place=run_dir)


def seconds_of(run_dir: Path) -> float:
    """Returns the wall time of a run from its start to its end, without pauses between restarts."""
    account = read_goodput(run_dir)
    assert account is not None
    return account.total - account.seconds["down"]


def record_of(name: str, config: RunConfig, run_dir: Path) -> RunRecord:
    """Returns the record of a finished and evaluated run."""
    run = open_run(run_dir)
    provenance = read_run_provenance(run.directory)
    evaluation = read_evaluation(run)
    assert evaluation is not None
    train = need(config.train, "train", "pretrain")
    curve = [
        Measured(step=line["step"], flops=flops_until(config, line["step"]), loss=line[LOSS])
        for line in read_metrics(run_dir, kind=VALIDATION)
    ]
    return RunRecord(
        name=name,
        config=hash_of(config.model_dump(mode="json", exclude={"run_dir"})),
        seed=run.seed,
        learning_rate=config.optimizer.learning_rate,
        steps=evaluation.step,
        flops=total_flops(config),
        loss=evaluation.scores[LOSS],
        hours=seconds_of(run_dir) / 3600,
        tokenizer=run.tokenizer.hash,
        held_out=provenance["validation"][train.phases[-1].dataset] or "",
        curve=tuple(curve),
    )


def mean_curve(records: Sequence[RunRecord]) -> Iterator[tuple[Measured, Spread]]:
    """Yields each evaluation of the first run, with the loss over all runs.

    The runs have equal steps and FLOPs: they differ only in their seeds.
    """
    for measured in zip(*(record.curve for record in records), strict=True):
        yield measured[0], Spread.of([each.loss for each in measured])


def read_records(root: Path) -> dict[str, RunRecord]:
    """Returns all records of a benchmark's directory, by name."""
    files = sorted((root / "results").glob("*.json"))
    return {file.stem: read_section(RunRecord, epath.Path(file)) for file in files}


def hash_of(values: Mapping[str, Any]) -> str:
    """Returns a hash of plain values, 32 hexadecimal digits."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
