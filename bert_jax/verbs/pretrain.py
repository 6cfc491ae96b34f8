"""`bert-jax pretrain`: dataset → checkpoints; resumes automatically."""

import dataclasses
from typing import Any

from rich.console import Console

from bert_jax.config import AnyConfig, as_config
from bert_jax.narration import speaking
from bert_jax.parallel.memory import advising
from bert_jax.train.loop import Outcome
from bert_jax.verbs.import_checkpoint import find_origin
from bert_jax.verbs.run_settings import pretrain_settings
from bert_jax.verbs.same_command import join_same_command
from bert_jax.verbs.teachers import with_teacher_of_settings
from bert_jax.workflows.pretraining import run_pretraining
from bert_jax.workflows.pretraining_settings import LESS_MEMORY, PretrainSettings


def pretrain(
    config: AnyConfig,
    *,
    init_from: str | None = None,
    allow_data_change: bool = False,
    started: float | None = None,
    console: Console | None = None,
    **overrides: Any,
) -> Outcome:
    """Pretrains as configured; resumes from the run's last checkpoint if there is one.

    A resumed run keeps the settings of its finished steps. Settings of later steps may change; see
    `bert_jax.workflows.resume_rules`.

    Args:
        config: a configuration, a dict of its settings or its file, with `run_dir`, `tokenizer`,
            `model` and `train`.
        init_from: a run directory or a model on a hub. A new run has its network and starts from
            its parameters, with a new optimizer, schedule and data position; missing heads are
            initialised. `tokenizer` must be the model's. A run that began with this argument
            resumes; any other run with checkpoints is refused.
        allow_data_change: whether a resumed run may use changed data.
        started: start of the process for the time account, in seconds since 1970. Default: the time
            of this call.
        console: console for the progress. Default: standard output.
        overrides: settings that replace the configuration's: ``run_dir="runs/b"``, or by dotted
            key ``**{"mesh.tensor": 2}``.

    Returns:
        The step reached, whether a signal stopped the run, the last evaluation, the run directory,
        and the history of the metrics.

    Raises:
        UserError: the configuration does not fit the data, the devices or the run directory.
        RunStopped: bad steps ended the run, see `bert_jax.train.bad_steps`.
    """
    settings = pretrain_settings(
        as_config(config, overrides),
        init_from=init_from,
        allow_data_change=allow_data_change,
        started=started,
    )
    return pretrain_with(settings, console=console or Console())


@advising(LESS_MEMORY)
def pretrain_with(settings: PretrainSettings, *, console: Console) -> Outcome:
    """Pretrains with the result of `pretrain_settings`. Raises the errors of `pretrain`."""
    init_from = settings.init_from
    options = {"--init-from": init_from, "--allow-data-change": settings.allow_data_change}
    if init_from is not None:
        found = find_origin(init_from, mesh=settings.mesh)
        options["--init-from"] = found.name
        settings = dataclasses.replace(settings, origin=found.run_dir, pinned_origin=found.name)
    settings = with_teacher_of_settings(settings)
    join_same_command("pretrain", settings.mesh, {**settings.config, **options})
    with speaking(console):
        return run_pretraining(settings, console=console)
