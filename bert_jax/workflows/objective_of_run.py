"""The objective of a run directory."""

from bert_jax.errors import UserError
from bert_jax.objectives.registry import (
    Registered,
    make_objective,
    masking_of,
    read_objective,
)
from bert_jax.runs.run_directory import Run
from bert_jax.runs.settings import CONFIG, describe
from bert_jax.section import need
from bert_jax.task import Objective
from bert_jax.user_function import only_trusted
from bert_jax.workflows.pretraining_settings import TrainSection


def objective_section(run: Run, *, phase: int = -1, verb: str = "evaluate") -> Registered:
    """Returns the objective section of a run's phase, for a verb.

    The default is the last phase. Raises UserError if a section is invalid.
    """
    if run.has("train"):
        phases = run.section("train", TrainSection, verb=verb).phases
        if (own := phases[min(phase, len(phases) - 1)].objective) is not None:
            return own
    return default_objective(run, verb=verb)


def default_objective(run: Run, *, verb: str) -> Registered:
    """Returns the run's objective, which a phase has unless it sets its own.

    Raises UserError if the section is invalid.
    """
    values = need(run.settings.get("objective"), "objective", verb)
    return read_objective(values, source=str(run.directory / CONFIG))


def objective_of(run: Run, *, phase: int = -1) -> Objective:
    """Returns the objective of a pretrained or imported run, in one of its phases.

    Raises UserError if the model lacks a head, or if the section names a function that is not
    trusted, because the run may have an untrusted author.
    """
    section = objective_section(run, phase=phase)
    if (masking := masking_of(section)) is not None:
        only_trusted(masking.segmenter, key="objective.masking.segmenter", source=run.directory)
    if section.heads.of_pretraining - run.heads.of_pretraining:
        raise UserError(
            "evaluate.heads_missing",
            f"has {describe(run.heads)}, but {section.kind} needs {describe(section.heads)}",
            place=run.directory,
        )
    return make_objective(
        section,
        architecture=run.architecture,
        execution=run.model.execution,
        tokenizer=run.tokenizer,
    )
