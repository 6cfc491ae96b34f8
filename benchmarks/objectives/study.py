"""Runs the comparison: text, pretraining and fine-tuning. Finished runs are kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import jax
import pydantic
from etils import epath

import bert_jax
from benchmarks.equal_flops import rows_until, total_flops
from benchmarks.fine_tuned import fine_tuned
from benchmarks.finished_runs import RunFolder, seconds_of
from benchmarks.objectives.configs import Configs, run_name
from benchmarks.objectives.settings import Name, StudySection
from benchmarks.report import machine
from bert_jax.config import RunConfig
from bert_jax.files.atomic import write_whole
from bert_jax.section import Section, need
from bert_jax.train.metrics_writer import VALIDATION, read_metrics
from bert_jax.validation import read_section

RECORDS: Final = "results.jsonl"


class ObjectiveRecord(Section):
    """One pretraining run and the scores of its fine-tuned models."""

    objective: str
    """Name of the objective."""
    seed: int
    """Seed of pretraining and of fine-tuning."""
    budget: float
    """Model FLOPs that the run may have."""
    flops: float
    """Model FLOPs that the run has, by the objective's `flops_per_row`."""
    steps: int
    """Optimizer steps."""
    rows: int
    """Rows that the model has seen."""
    seconds: float
    """Wall time of pretraining."""
    validation: tuple[dict[str, float], ...]
    """Evaluations on held-out rows during the run, by metric."""
    scores: dict[str, dict[str, float]] = pydantic.Field(default_factory=dict)
    """Dev scores of the fine-tuned models, by task and metric."""
    finetune_seconds: float = 0.0
    """Wall time of all fine-tuning runs."""
    cores: int
    """Number of cores of the machine."""


class Study:
    """The comparison in one directory."""

    def __init__(
        self, study: StudySection, root: Path, *, corpus: Sequence[str], glue: Path
    ) -> None:
        """`corpus`: files or patterns of text. `glue`: directory of the GLUE tasks."""
        self._study, self._glue, self._folder = study, glue, RunFolder(root)
        self._configs = Configs(study, self._folder, corpus)

    def run(self) -> list[ObjectiveRecord]:
        """Runs all that is missing, and returns the records by seed, budget and objective.

        The order gives a first seed of every objective early. After each run, ``results.jsonl``
        has all records so far.

        Raises:
            UserError: a setting does not fit the directory or the data.
            RunStopped: a bad step or a signal stopped a run. The same command resumes.
        """
        study = self._study
        self._text()
        records: list[ObjectiveRecord] = []
        for seed in study.seeds:
            for budget in study.budgets:
                for name in study.objectives:
                    records.append(self._record(name, seed=seed, budget=budget))
                    lines = (f"{record.model_dump_json()}\n" for record in records)
                    write_whole(self._folder.root / RECORDS, "".join(lines))
        return records

    def _text(self) -> None:
        """Makes tokenizer and datasets, unless they exist."""
        if not self._configs.tokenizer.exists():
            bert_jax.vocab(self._configs.vocab())
        made: dict[Path, Name | None] = {self._configs.dataset(None): None}
        made |= {self._configs.dataset(name): name for name in self._study.objectives}
        for name in made.values():
            bert_jax.examples(self._configs.examples(name))

    def _record(self, name: Name, *, seed: int, budget: float) -> ObjectiveRecord:
        run = run_name(name, seed=seed, budget=budget)
        path = self._folder.result_file(run)
        if path.exists():
            return read_section(ObjectiveRecord, epath.Path(path))
        if name == "distilled":
            self._record("mlm", seed=seed, budget=max(self._study.budgets))  # the teacher
        config = self._configs.pretraining(name, run, seed=seed, flops=budget)
        record = self._pretrained(run, name, config, budget=budget)
        tuned = {
            task: fine_tuned(
                self._folder, f"{task}-{run}", section, origin=run, data=self._glue, seed=seed
            )
            for task, section in self._study.tasks.items()
        }
        jax.clear_caches()  # the next run compiles other programs
        scores = {task: found.scores for task, found in tuned.items()}
        seconds = sum(found.seconds for found in tuned.values())
        record = record.model_copy(update={"scores": scores, "finetune_seconds": seconds})
        write_whole(path, record.model_dump_json(indent=1) + "\n")
        return record

    def _pretrained(
        self, run: str, name: str, config: RunConfig, *, budget: float
    ) -> ObjectiveRecord:
        """Pretrains, see `RunFolder.pretrain`, and returns a record without scores."""
        self._folder.pretrain(run, config)
        run_dir = self._folder.run_dir(run)
        steps = need(config.train, "train", "pretrain").total_steps
        return ObjectiveRecord(
            objective=name,
            seed=config.seed,
            budget=budget,
            flops=total_flops(config),
            steps=steps,
            rows=sum(rows_until(config, steps)),
            seconds=seconds_of(run_dir),
            validation=tuple(_numbers(line) for line in read_metrics(run_dir, kind=VALIDATION)),
            cores=machine()["cores"],
        )


def read_study(root: Path) -> list[ObjectiveRecord]:
    """Returns the records of ``results.jsonl``."""
    lines = (root / RECORDS).read_text(encoding="utf-8").splitlines()
    return [ObjectiveRecord.model_validate_json(line) for line in lines]


def _numbers(line: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in line.items() if isinstance(value, int | float)}
