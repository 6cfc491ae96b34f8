"""`bert-jax finetune`: a pretrained run and a task's data → a fine-tuned run."""

from __future__ import annotations

from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.errors import UserError
from bert_jax.train.loop import Outcome
from bert_jax.verbs.finetune_run import fine_run
from bert_jax.verbs.finetune_setup import claim, make_predictor, prepare, tell_data
from bert_jax.verbs.sweep import SWEEP, plan, sweep


def finetune(
    config: RunConfig, *, seeds: int | None = None, console: Console | None = None
) -> Outcome:
    """Fine-tunes as a configuration says, from the run's last checkpoint where there is one.

    When it is done, the run directory holds the best checkpoint and the last, `evaluation.json`,
    `predictions/` of the dev splits, and `report.html`.

    Args:
        config: needs `run_dir` and `finetune`.
        seeds: how many to run and compare; None for what `finetune.sweep` says. A sweep's run
            directory is that of its best run; see `bert_jax.verbs.sweep`.
        console: where progress is shown; standard output where none is given.

    Returns:
        The step reached, whether a signal stopped the run, and the best checkpoint's figures.

    Raises:
        UserError: the configuration does not fit the data, the origin or the run directory.
        RunStopped: the loss was not finite.
    """
    console = console or Console()
    config, points = plan(config, seeds=seeds)
    if len(points) > 1:
        return sweep(config, points, console=console)
    prepared = prepare(config)
    root = claim(prepared)
    if (root / SWEEP).exists():
        raise UserError(f"run_dir: {root} holds a sweep; allowed: its settings, or a new run_dir")
    tell_data(prepared, console)
    return fine_run(prepared, root, make_predictor(prepared), console=console)
