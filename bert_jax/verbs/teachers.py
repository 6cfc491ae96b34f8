"""Finds the teachers of distillations, which are named like `--init-from`."""

import dataclasses

from bert_jax.objectives.registry import Registered, teacher_of
from bert_jax.runs.run_directory import Run
from bert_jax.verbs.import_checkpoint import find_origin
from bert_jax.workflows.objective_of_run import default_objective
from bert_jax.workflows.pretraining_settings import PretrainSettings


def with_local_teacher(objective: Registered) -> Registered:
    """Returns an objective whose teacher, if it has one, is a run directory.

    Raises UserError like `find_origin`.
    """
    if (teacher := teacher_of(objective)) is None:
        return objective
    return objective.model_copy(update={"teacher": find_origin(teacher).run_dir})


def with_teacher_of_settings(settings: PretrainSettings) -> PretrainSettings:
    """Returns the settings with `with_local_teacher` of the objective.

    The configuration for the run directory gets the teacher's pinned name.
    """
    if (teacher := teacher_of(settings.objective)) is None:
        return settings
    origin = find_origin(teacher, mesh=settings.mesh)
    values = {**settings.config["objective"], "teacher": origin.name}
    return dataclasses.replace(
        settings,
        objective=settings.objective.model_copy(update={"teacher": origin.run_dir}),
        config={**settings.config, "objective": values},
    )


def with_teacher_of_run(run: Run) -> Run:
    """Returns a pretrained run with `with_local_teacher` of its objective."""
    if not run.has("objective") or run.is_fine_tuned:
        return run
    objective = with_local_teacher(default_objective(run, verb="evaluate")).model_dump(mode="json")
    return run._replace(settings={**run.settings, "objective": objective})
