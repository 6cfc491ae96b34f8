"""Checks which settings of a pretraining run have changed when it resumes.

There are four kinds of settings:

- Settings that determined finished steps may not change: the objective's kind, and the settings
  of finished phases.
- Settings that determine only future steps may change until the last step: `optimizer`,
  `train.ema`, `model.execution`, and the settings of later phases and of the current phase, if
  its data position remains valid. `provenance.json` lists each change with its step.
- The seed, the masking and the contents of datasets may change only with --allow-data-change. The
  change affects future steps.
- Reports, evaluations, checkpoints, mesh, loader and paths do not affect training results and may
  always change.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console

from bert_jax.narration import narrator_of
from bert_jax.optim.sections import OptimizerSection
from bert_jax.runs.run_directory import Run, read_run_provenance
from bert_jax.runs.setting_changes import find_changes, refuse_other_settings
from bert_jax.train.checkpoint_manifest import IMPORTED
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.progress import TrainProgress
from bert_jax.workflows.objective_of_run import default_objective
from bert_jax.workflows.pretraining_settings import PhaseSection, PretrainSettings, TrainSection


class DataFingerprints(NamedTuple):
    """Fingerprints of a run's datasets by path."""

    datasets: Mapping[str, str]  # fingerprints of training splits
    validation: Mapping[str, str | None]  # fingerprints of validation splits


def check_resume(
    run: Run,
    settings: PretrainSettings,
    checkpoints: Checkpointer,
    *,
    data: DataFingerprints,
    console: Console,
) -> dict[str, Any]:
    """Checks the settings of a resumed run, logs the changes, and returns its provenance.

    The provenance includes the changes. It is empty for a run without checkpoints. Raises UserError
    if a setting has changed that may not change.
    """
    step = checkpoints.on_disk.newest()
    if step is None:
        return {}
    saved = checkpoints.progress(step)
    provenance = read_run_provenance(run.directory)
    if not saved or IMPORTED in saved or not run.has("train"):
        return provenance
    progress = TrainProgress.from_json(saved)
    if progress.phase >= len(settings.train.phases):
        return provenance  # restoring the checkpoint raises UserError
    then = dataclasses.replace(
        settings,
        seed=run.seed,
        model=run.model,
        objective=default_objective(run, verb="pretrain"),
        optimizer=run.section("optimizer", OptimizerSection, verb="pretrain"),
        train=run.section("train", TrainSection, verb="pretrain"),
    )
    made_with = DataFingerprints(
        provenance.get("datasets", {}),
        # A dataset without a stored fingerprint is new to the run and does not count as changed.
        {**data.validation, **provenance.get("validation", {})},
    )
    old, new = _decisive(then, made_with), _decisive(settings, data)
    changes = find_changes(old, new)
    keys = [change.key for change in changes]
    with_flag, free = (
        [key for key in keys if _is_free(key, progress, settings.train, data_may_change=allowed)]
        for allowed in (True, settings.allow_data_change)
    )
    steps_left = _next_phase(progress, settings.train) < len(settings.train.phases)
    refuse_other_settings(
        run.directory,
        held=old,
        asked=new,
        free=free,
        with_flag=with_flag,
        what="run" if steps_left else "finished run",
    )
    for change in changes:
        if change.was is not None:
            line = f"{change.key}: {change.was} up to step {step}, {change.now} from here on"
            narrator_of(console).say(line)
    made = [{"step": step, **change._asdict()} for change in changes]
    return {**provenance, "changes": [*provenance.get("changes", []), *made]}


def _next_phase(progress: TrainProgress, train: TrainSection) -> int:
    """Returns the index of the first phase that has steps left."""
    ended = progress.phase_step >= train.phases[progress.phase].steps
    return progress.phase + ended


def _is_free(
    key: str, progress: TrainProgress, train: TrainSection, *, data_may_change: bool
) -> bool:
    """Returns whether a setting may change; False if no steps are left.

    `data_may_change` permits changes of seed, masking and datasets.
    """
    current, ahead = progress.phase, _next_phase(progress, train)
    if ahead == len(train.phases):
        return False
    if phase := re.fullmatch(r"train\.phases\.(\d+)\.(.*)", key):
        index, name = int(phase[1]), phase[2]
        if name == "validation":
            return data_may_change or index > current or not progress.phase_step
        cut_short = progress.phase_step == train.phases[current].steps
        if index >= ahead or (cut_short and index == current and name == "steps"):
            return True
        return data_may_change and (name == "dataset" or name.startswith("objective.masking."))
    if key == "seed" or key.startswith("objective.masking."):
        return data_may_change
    return not key.startswith("objective.")


def _content(phase: PhaseSection, fingerprints: Mapping[str, str]) -> str:
    """Returns fingerprints of datasets, with their weights: ``"0.8 of 3f2a90…, 0.2 of …"``."""
    found = {path: fingerprints.get(path, path) for path in phase.paths}
    if isinstance(phase.dataset, str):
        return found[phase.dataset]
    parts, mixing = sorted(found, key=found.__getitem__), phase.mixing
    shares = dict.fromkeys(parts, "a share")
    if isinstance(phase.dataset, dict):
        until = mixing and mixing.until
        shares = {
            path: f"{weight}" + (f" to {until[path]}" if until else "")
            for path, weight in phase.dataset.items()
        }
    text = ", ".join(f"{shares[path]} of {found[path]}" for path in parts)
    return text + (f" with smoothing {mixing.smoothing}" if mixing and mixing.smoothing else "")


def _decisive(settings: PretrainSettings, data: DataFingerprints) -> dict[str, Any]:
    """Returns the settings that affect training results, with fingerprints instead of paths."""
    phases = {
        str(index): {
            **phase.model_dump(mode="json"),
            "dataset": _content(phase, data.datasets),
            "mixing": None,  # part of the content
            "validation": data.validation.get(phase.dataset_name),
        }
        for index, phase in enumerate(settings.train.phases)
    }
    return {
        "seed": settings.seed,
        # A checkpoint records the hash of the teacher, which may have moved.
        "objective": settings.objective.model_dump(mode="json", exclude={"teacher"}),
        "optimizer": settings.optimizer.model_dump(mode="json"),
        "model": {"execution": settings.model.execution.model_dump(mode="json")},
        "train": {
            "bad_steps": settings.train.bad_steps.model_dump(mode="json"),
            "ema": {"decay": settings.train.ema and settings.train.ema.decay},
            "phases": phases,
        },
    }
