"""The facts of a pretraining run that the log of MLPerf Training's BERT benchmark needs."""

from collections.abc import Callable
from typing import Any, Final

import jax
from etils import epath

from bert_jax.errors import UserError
from bert_jax.train.mlperf_log import ACCURACY, MlperfLog, require_mlperf_logging
from bert_jax.train.schedule_segments import schedule_segments
from bert_jax.train.spec import Milestones
from bert_jax.workflows.pretraining_settings import MlperfSection, PretrainSettings

_KEY: Final = "train.mlperf"


def check_mlperf(settings: PretrainSettings) -> None:
    """Raises UserError if a run with an MLPerf log has settings that the log cannot describe."""
    train, optimizer = settings.train, settings.optimizer
    if train.mlperf is None:
        return
    require_mlperf_logging(key=_KEY)
    stop_at = train.evaluation and train.evaluation.stop_at
    rules = (
        ("train.phases", len(train.phases), 1, "one phase"),
        ("train.phases.0.batch_ramp", len(train.phases[0].batch_ramp), 0, "no ramp"),
        (
            "train.evaluation.sets",
            len(train.evaluation.sets) if train.evaluation else 0,
            0,
            "no sets",
        ),
        ("train.evaluation.stop_at.metric", stop_at and stop_at.metric, ACCURACY, ACCURACY),
        ("optimizer.name", optimizer.name, "lamb", "lamb"),
        ("optimizer.decay_fraction", optimizer.decay_fraction, None, "null"),
        ("train.phases.0.decay_fraction", train.phases[0].decay_fraction, None, "null"),
    )
    for key, found, wanted, allowed in rules:
        if found != wanted:
            raise UserError(
                "mlperf.setting", f"found {found}, allowed with {_KEY}: {allowed}", place=key
            )


def open_mlperf_log(
    run_dir: epath.Path,
    section: MlperfSection,
    settings: PretrainSettings,
    *,
    eval_samples: int,
    say: Callable[[str], None],
) -> Milestones:
    """Returns the log of a run. Only the first process writes it.

    `eval_samples` is the number of examples per evaluation. `say` prints a warning if the log
    cannot be written.
    """
    if jax.process_index() != 0:
        return Milestones()
    return MlperfLog(
        run_dir,
        facts={
            "submission_benchmark": "bert",
            "submission_org": section.organization,
            "submission_division": section.division,
            "submission_status": section.status,
            "submission_platform": section.platform,
            **_hyperparameters(settings),
            "eval_samples": eval_samples,
        },
        batch_size=settings.train.phases[0].batch_size,
        caches_cleared=section.caches_cleared,
        started=settings.started,
        say=say,
    )


def _hyperparameters(settings: PretrainSettings) -> dict[str, Any]:
    """Returns the hyperparameters by the keys of the log."""
    phase, optimizer = settings.train.phases[0], settings.optimizer
    (schedule,) = schedule_segments(settings.train, optimizer)
    return {
        "seed": settings.seed,
        "global_batch_size": phase.batch_size,
        "gradient_accumulation_steps": phase.accumulation,
        "max_sequence_length": phase.seq_length,
        "opt_name": optimizer.name,
        "opt_base_learning_rate": schedule.peak,
        "opt_learning_rate_training_steps": schedule.steps,
        "opt_learning_rate_warmup_steps": schedule.warmup_steps,
        "num_warmup_steps": schedule.warmup_steps,
        "start_warmup_step": schedule.warmup_start,
        "opt_lamb_learning_rate_decay_poly_power": 1.0,
        "opt_lamb_epsilon": optimizer.eps,
        "opt_lamb_beta_1": optimizer.beta1,
        "opt_lamb_beta_2": optimizer.beta2,
        "opt_lamb_weight_decay_rate": optimizer.weight_decay,
        "opt_gradient_clip_norm": optimizer.clip_norm,
    }
