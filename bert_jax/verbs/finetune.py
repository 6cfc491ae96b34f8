"""`bert-jax finetune`: a pretrained run and a task's data → a fine-tuned run."""

from collections.abc import Mapping
from typing import Any

from etils import epath
from rich.console import Console

from bert_jax.config import AnyConfig, RunConfig, as_config
from bert_jax.data.memory_table import MemoryTable, Rows
from bert_jax.errors import UserError, commas
from bert_jax.narration import speaking
from bert_jax.parallel.memory import advising
from bert_jax.runs.lock import hold_run
from bert_jax.section import need
from bert_jax.tasks.family import ROLES, FilesSection
from bert_jax.tasks.section import FinetuneSettings, require_base
from bert_jax.train.loop import Outcome
from bert_jax.verbs.run_settings import finetune_settings
from bert_jax.verbs.same_command import join_same_command
from bert_jax.workflows.finetuning import run_finetuning
from bert_jax.workflows.finetuning_setup import claim, prepare, show_data
from bert_jax.workflows.sweep import SWEEP, plan, sweep


def finetune(
    config: AnyConfig,
    *,
    data: Mapping[str, Rows] | None = None,
    seeds: int | None = None,
    allow_data_change: bool = False,
    started: float | None = None,
    console: Console | None = None,
    **overrides: Any,
) -> Outcome:
    """Fine-tunes as configured; resumes from the run's last checkpoint if there is one.

    At the end the run directory contains the best and the last checkpoint, `evaluation.json`,
    `predictions/` of the dev splits, and `report.html`.

    Args:
        config: a configuration, a dict of its settings or its file, with `run_dir` and `finetune`.
        data: tables in memory that replace the task's files, by key: "train", "dev", "test". They
            are written to ``<run_dir>/data/``, so that the run can resume without this argument.
        seeds: number of seeds to run and compare. Default: the setting `finetune.sweep`. The run
            directory of a sweep contains its best run; see `bert_jax.workflows.sweep`.
        allow_data_change: whether a resumed run may use changed data. If the data changed, the run
            prints the change and the position at which it continues.
        started: start of the run for its time account, in seconds since 1970. Default: the time of
            this call.
        console: console for the progress. Default: standard output.
        overrides: settings that replace the configuration's: ``run_dir="runs/b"``, or by dotted
            key ``**{"finetune.epochs": 2}``.

    Returns:
        The step reached, whether a signal stopped the run, the best checkpoint's scores, the run
        directory, and the history of the metrics.

    Raises:
        UserError: the configuration does not fit the data, `init_from` or the run directory.
        RunStopped: bad steps ended the run, see `bert_jax.train.bad_steps`.
    """
    config = as_config(config, overrides)
    if data is not None:
        config = with_tables(config, data)
    settings = finetune_settings(config, allow_data_change=allow_data_change, started=started)
    return finetune_with(settings, seeds=seeds, console=console or Console())


@advising(
    "Use a larger finetune.accumulation, a smaller finetune.batch_size or finetune.max_length, or "
    "more devices with mesh.fsdp."
)
def finetune_with(settings: FinetuneSettings, *, seeds: int | None, console: Console) -> Outcome:
    """Fine-tunes with the result of `finetune_settings`. Raises the errors of `finetune`."""
    settings, points = plan(settings, seeds=seeds)
    options = {"--allow-data-change": settings.allow_data_change}
    join_same_command("finetune", settings.mesh, {**settings.to_config(), **options})
    with speaking(console):
        if len(points) > 1:
            return sweep(settings, points, console=console)
        prepared = prepare(settings)
        root = claim(prepared)
        with hold_run(root) as check_lock:
            if (root / SWEEP).exists():
                raise UserError(
                    "run_dir.sweep",
                    f"found {root}, a sweep. Use the settings of the sweep, or a new directory.",
                    place="run_dir",
                )
            show_data(prepared, console)
            return run_finetuning(
                prepared, root, prepared.predictor(), check_lock=check_lock, console=console
            ).outcome


def with_tables(config: RunConfig, data: Mapping[str, Rows]) -> RunConfig:
    """Writes tables to ``<run_dir>/data/KEY.jsonl``, and sets these files in the task.

    Returns the changed configuration. Raises UserError if the task is GLUE, whose files have fixed
    columns, or if a key is unknown.
    """
    section = need(config.finetune, "finetune", "finetune")
    root = epath.Path(need(config.run_dir, "run_dir", "finetune")) / "data"
    task = require_base(section.task, FilesSection, place="data")
    if unknown := [key for key in data if key not in ROLES]:
        raise UserError.wrong(
            "finetune.table_unknown", f'"{unknown[0]}"', commas(ROLES), place="data"
        )
    for key, rows in data.items():
        root.mkdir(parents=True, exist_ok=True)
        names, file = task.tuple_columns(key), root / f"{key}.jsonl"
        MemoryTable.of(rows).write_jsonl(file, names, labels=task.class_columns)
    changed = task.model_copy(update={key: str(root / f"{key}.jsonl") for key in data})
    finetuning = section.model_copy(update={"task": changed})
    return config.model_copy(update={"finetune": finetuning})
