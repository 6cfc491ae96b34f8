"""The objective of a run directory."""

from bert_jax.errors import UserError
from bert_jax.objectives.registry import Registered, make_objective, read_objective
from bert_jax.runs.run_directory import Run
from bert_jax.runs.settings import CONFIG, describe
from bert_jax.section import need
from bert_jax.task import Objective
from bert_jax.user_function import only_trusted


def objective_section(run: Run, *, verb: str = "evaluate") -> Registered:
    """Returns the objective section of a run, for a verb. Raises UserError if it is invalid."""
    values = need(run.settings.get("objective"), "objective", verb)
    return read_objective(values, source=str(run.directory / CONFIG))


def objective_of(run: Run) -> Objective:
    """Returns the objective of a pretrained or imported run.

    Raises UserError if the model lacks a head, or if the section names a function that is not
    trusted, because the run may have an untrusted author.
    """
    section = objective_section(run)
    segmenter = section.masking.segmenter
    only_trusted(segmenter, key="objective.masking.segmenter", source=run.directory)
    if section.heads.of_pretraining - run.heads.of_pretraining:
        raise UserError(
            "evaluate.heads_missing",
            "the model has {found}, but evaluation with objective.kind {objective} needs {needed}",
            place=run.directory,
            found=describe(run.heads),
            objective=section.kind,
            needed=describe(section.heads),
        )
    return make_objective(
        section,
        architecture=run.architecture,
        execution=run.model.execution,
        tokenizer=run.tokenizer,
    )
