"""The registry of objectives."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from bert_jax.data.dataset.provenance import PairingKind
from bert_jax.data.dataset.reader import Dataset
from bert_jax.errors import UserError
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.objectives.bert import BertObjective
from bert_jax.objectives.section import ObjectiveName, ObjectiveSection
from bert_jax.runs.run_directory import Run
from bert_jax.runs.settings import describe
from bert_jax.task import Objective
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.user_function import only_trusted


class _Entry(NamedTuple):
    make: Callable[..., Objective]
    pairings: tuple[PairingKind, ...]  # allowed pairing kinds of datasets


OBJECTIVES: Final[dict[ObjectiveName, _Entry]] = {
    "bert": _Entry(partial(BertObjective, pair="nsp"), ("nsp",)),
    "sop": _Entry(partial(BertObjective, pair="sop"), ("sop",)),
    "roberta": _Entry(partial(BertObjective, pair=None), ("full_sentences", "doc_sentences")),
}


def make_objective(
    section: ObjectiveSection,
    *,
    architecture: EncoderArchitecture,
    execution: Execution,
    tokenizer: Tokenizer,
) -> Objective:
    """Returns the objective of a section."""
    return OBJECTIVES[section.name].make(
        masking=section.masking, architecture=architecture, execution=execution, tokenizer=tokenizer
    )


def objective_of(run: Run) -> Objective:
    """Returns the objective of a pretrained run. Raises UserError if the run lacks a head."""
    if not run.heads.pretraining:
        raise UserError(
            "evaluate.heads_missing",
            "the model has {found}, but evaluation of pretraining needs a pooler, an MLM head and "
            "a next-sentence head",
            place=run.directory,
            found=describe(run.heads),
        )
    return make_objective(
        objective_section(run),
        architecture=run.architecture,
        execution=run.model.execution,
        tokenizer=run.tokenizer,
    )


def objective_section(run: Run) -> ObjectiveSection:
    """Returns the objective section of a run.

    Raises UserError if the section names a function that is not trusted, because the run may have
    an untrusted author.
    """
    section = run.section("objective", ObjectiveSection, verb="evaluate")
    segmenter = section.masking.segmenter
    only_trusted(segmenter, key="objective.masking.segmenter", source=run.directory)
    return section


def check_pairing(section: ObjectiveSection, dataset: Dataset, *, key: str) -> None:
    """Raises UserError if a dataset was made for another objective. `key` is for the message."""
    kind = dataset.provenance.pairing.kind
    allowed = OBJECTIVES[section.name].pairings
    if kind not in allowed:
        fitting = next(name for name, entry in OBJECTIVES.items() if kind in entry.pairings)
        raise UserError(
            "objective.pairing",
            "{dataset} was made with pairing kind {found}, but objective.name is {objective}. Use "
            "a dataset with kind {allowed:or}, or set objective.name: {fitting}.",
            place=key,
            dataset=dataset.directory,
            found=kind,
            objective=section.name,
            allowed=allowed,
            fitting=fitting,
        )
