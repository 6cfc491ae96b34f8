"""`bert-jax pretrain`: dataset → checkpoints, resuming by itself."""

import dataclasses

from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig, as_config
from bert_jax.narration import speaking
from bert_jax.objectives.pretraining import run_pretraining
from bert_jax.objectives.section import PretrainSettings
from bert_jax.train.loop import Outcome
from bert_jax.verbs.import_checkpoint import find_origin
from bert_jax.verbs.run_settings import pretrain_settings
from bert_jax.verbs.same_command import join_same_command


def pretrain(
    config: RunConfig | epath.PathLike,
    *,
    init_from: str | None = None,
    allow_data_change: bool = False,
    started: float | None = None,
    console: Console | None = None,
) -> Outcome:
    """Pretrains as a configuration says, from the run's last checkpoint if there is one.

    A run that resumes keeps the settings of the steps it has done; settings of steps to come may
    change, see `bert_jax.objectives.resume`.

    Args:
        config: settings or their file; needs `run_dir`, `tokenizer`, `model` and `train`.
        init_from: a run directory, or a model on a hub, whose parameters a fresh run starts from,
            with a fresh optimizer, schedule and data position; missing heads start fresh. A run
            that has checkpoints ignores it.
        allow_data_change: whether the data may differ from the data that the run has read.
        started: start of the process in seconds since 1970, for the account of time; by default
            the time of the call.
        console: shows the progress; by default standard output.

    Returns:
        The step reached, whether a signal stopped the run, and the last evaluation.

    Raises:
        UserError: the configuration does not fit the data, the devices or the run directory.
        RunStopped: numbers went bad, see `bert_jax.train.bad_steps`.
    """
    settings = pretrain_settings(
        as_config(config),
        init_from=init_from,
        allow_data_change=allow_data_change,
        started=started,
    )
    return pretrain_with(settings, console=console or Console())


def pretrain_with(settings: PretrainSettings, *, console: Console) -> Outcome:
    """Pretrains with the result of `pretrain_settings`; raises as `pretrain`."""
    init_from = settings.init_from
    options = {"--init-from": init_from, "--allow-data-change": settings.allow_data_change}
    if init_from is not None:
        settings = dataclasses.replace(settings, init_from=find_origin(init_from).run_dir)
    join_same_command("pretrain", settings.mesh, {**settings.config, **options})
    with speaking(console):
        return run_pretraining(settings, console=console)
