"""`bert-jax finetune`: a pretrained run and a task's data → a fine-tuned run."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig, as_config
from bert_jax.data.memory_table import MemoryTable, Rows
from bert_jax.errors import UserError
from bert_jax.model.config import ModelSection
from bert_jax.narration import speaking
from bert_jax.runs.lock import hold_run
from bert_jax.runs.settings import CONFIG, read_settings
from bert_jax.section import need
from bert_jax.tasks.choice.family import MultipleChoiceSection
from bert_jax.tasks.family import pinned
from bert_jax.tasks.section import FinetuneSettings
from bert_jax.tasks.sweep.run import SWEEP, plan, sweep
from bert_jax.tasks.table.family import TableSection
from bert_jax.tasks.training.run import run_finetuning
from bert_jax.tasks.training.setup import claim, make_predictor, prepare, tell_data
from bert_jax.train.loop import Outcome
from bert_jax.verbs.import_checkpoint import find_origin
from bert_jax.verbs.same_command import join_same_command

TABLES: Final = ("train", "dev", "test")


def finetune(
    config: RunConfig | epath.PathLike,
    *,
    data: Mapping[str, Rows] | None = None,
    seeds: int | None = None,
    allow_data_change: bool = False,
    started: float | None = None,
    console: Console | None = None,
) -> Outcome:
    """Fine-tunes as a configuration says, from the run's last checkpoint where there is one.

    When it is done, the run directory holds the best checkpoint and the last, `evaluation.json`,
    `predictions/` of the dev splits, and `report.html`.

    Args:
        config: settings or their file; needs `run_dir` and `finetune`.
        data: tables in memory in place of the task's files, by their keys: "train", "dev", "test".
            They are written to ``<run_dir>/data/``, so that the run can be resumed without them.
        seeds: how many to run and compare; None for what `finetune.sweep` says. A sweep's run
            directory is that of its best run; see `bert_jax.tasks.sweep.run`.
        allow_data_change: whether a run that resumes may have other data than it has read; a
            line says what changed and where it goes on.
        started: when this began, in seconds since 1970, for the account of where the time went;
            None if that is the call itself.
        console: where progress is shown; standard output where none is given.

    Returns:
        The step reached, whether a signal stopped the run, and the best checkpoint's figures.

    Raises:
        UserError: the configuration does not fit the data, the origin or the run directory.
        RunStopped: numbers went bad, see `bert_jax.train.recovery`.
    """
    config, console = as_config(config), console or Console()
    if data is not None:
        config = with_tables(config, data)
    settings, points = plan(finetune_settings(config), seeds=seeds)
    settings = dataclasses.replace(
        settings, allow_data_change=allow_data_change, started=started or settings.started
    )
    options = {"--allow-data-change": allow_data_change}
    join_same_command("finetune", settings.mesh, {**settings.to_config(), **options})
    with speaking(console):
        if len(points) > 1:
            return sweep(settings, points, console=console)
        return _finetune(settings, console)


def with_tables(config: RunConfig, data: Mapping[str, Rows]) -> RunConfig:
    """Returns a configuration whose task reads tables that were in memory.

    Its task is one of tables: "table" or "multiple_choice". The data, by their key in the task, are
    written to ``<run_dir>/data/KEY.jsonl``.

    Raises:
        UserError: the task takes no tables, or none of that key.
    """
    section = need(config.finetune, "finetune", "finetune")
    root = epath.Path(need(config.run_dir, "run_dir", "finetune")) / "data"
    task = section.task
    if not isinstance(task, TableSection | MultipleChoiceSection):
        raise UserError(f'data: found it with task "{task.kind}", allowed: table, multiple_choice')
    if unknown := [key for key in data if key not in TABLES]:
        raise UserError(f'data: found "{unknown[0]}", allowed: {", ".join(TABLES)}')
    if isinstance(task, TableSection):
        names = [name for name in (task.text, task.pair, task.label) if name is not None]
    else:
        names = [task.columns.text, *task.columns.choices, task.columns.label]
    for key, rows in data.items():
        root.mkdir(parents=True, exist_ok=True)
        MemoryTable.of(rows).write_jsonl(root / f"{key}.jsonl", names)
    changed = task.model_copy(update={key: str(root / f"{key}.jsonl") for key in data})
    finetuning = section.model_copy(update={"task": changed})
    return config.model_copy(update={"finetune": finetuning})


def _finetune(settings: FinetuneSettings, console: Console) -> Outcome:
    """Runs one fine-tuning."""
    prepared = prepare(settings)
    root = claim(prepared)
    with hold_run(root) as check_lock:
        if (root / SWEEP).exists():
            raise UserError(
                f"run_dir: {root} holds a sweep; allowed: its settings, or a new run_dir"
            )
        tell_data(prepared, console)
        predictor = make_predictor(prepared)
        return run_finetuning(
            prepared, root, predictor, check_lock=check_lock, console=console
        ).outcome


def _is_resolved(config: RunConfig, model: ModelSection) -> bool:
    """Whether a configuration is the run directory's own, whose model is spelled out."""
    root = epath.Path(config.run_dir or ".")
    return (root / CONFIG).exists() and read_settings(root).get("model") == model.model_dump(
        mode="json"
    )


def finetune_settings(config: RunConfig) -> FinetuneSettings:
    """Returns what `finetune` needs of a configuration, complete.

    Raises:
        UserError: a section is missing, or there is one that a fine-tuning run does not take.
    """
    if config.model is not None and not _is_resolved(config, config.model):
        raise UserError(
            "model: found settings, allowed: none beside finetune, whose model is the one of "
            "finetune.init_from (finetune.dropout and finetune.dtype change it)"
        )
    # Settings of pretraining. A resolved configuration spells out their defaults.
    replaced = {
        "optimizer": "finetune.optimizer",
        "train": "finetune",
        "objective": "finetune.task",
    }
    for name, allowed in {**replaced, "loader": "no such section beside finetune"}.items():
        if getattr(config, name) != RunConfig.model_fields[name].default:
            raise UserError(f"{name}: found settings of pretraining, allowed: {allowed}")
    section = need(config.finetune, "finetune", "finetune")
    origin = find_origin(section.init_from)
    return FinetuneSettings(
        finetune=section.model_copy(
            update={"init_from": origin.name, "task": pinned(section.task)}
        ),
        origin=origin.run_dir,
        run_dir=need(config.run_dir, "run_dir", "finetune"),
        seed=config.seed,
        mesh=config.mesh,
        config=config.model_dump(mode="json"),
    )
