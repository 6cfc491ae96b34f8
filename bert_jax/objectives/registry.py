"""The registry of objectives. Needs no JAX."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import pydantic

from bert_jax.data.dataset.provenance import PairingKind
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.errors import UserError, one_of
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives import sections
from bert_jax.section import Section, sections_of
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.validation import KIND, validate

if TYPE_CHECKING:
    from bert_jax.task import Objective

# To register an objective, add its section here.
Registered: TypeAlias = (
    sections.BertObjectiveSection
    | sections.SopObjectiveSection
    | sections.RobertaObjectiveSection
    | sections.CausalObjectiveSection
    | sections.DistillObjectiveSection
    | sections.ElectraObjectiveSection
)
DEFAULT: Final = sections.BertObjectiveSection()


def _with_kind(values: Any) -> Any:
    """Adds the default kind. Renames `name`, another spelling of `kind`."""
    if not isinstance(values, Mapping) or KIND in values:
        return values
    others = {key: value for key, value in values.items() if key != "name"}
    return {KIND: values.get("name", DEFAULT.kind), **others}


AnyObjectiveSection: TypeAlias = Annotated[
    Registered, pydantic.Field(discriminator=KIND), pydantic.BeforeValidator(_with_kind)
]
"""The section `objective` of a configuration; `kind` selects the objective."""

OBJECTIVES: Final[Mapping[str, type[sections.ObjectiveSection]]] = {
    section.model_fields[KIND].default: section
    for section in sections_of(Registered)
    if issubclass(section, sections.ObjectiveSection)
}


class _Holder(Section):
    objective: AnyObjectiveSection


def read_objective(values: Any, *, source: str) -> Registered:
    """Returns the section `objective` of a file. Raises UserError if a setting is wrong."""
    return validate(_Holder, {"objective": values}, source=source).objective


def masking_of(section: Registered) -> MaskingSection | None:
    """Returns the masking of an objective, or None if it masks no tokens."""
    return getattr(section, "masking", None)


def teacher_of(section: Registered) -> str | None:
    """Returns the name of the teacher of an objective, or None if it has none."""
    return getattr(section, "teacher", None)


def without_functions(section: Registered) -> Registered:
    """Returns an objective without functions of the user, which change no shapes."""
    if (masking := masking_of(section)) is None:
        return section
    masking = masking.model_copy(update={"segmenter": None})
    return section.model_copy(update={"masking": masking})


def kind_for(heads: HeadsSection) -> str:
    """Returns the first objective whose heads a model has, or else the first objective."""
    causal = [kind for kind, each in OBJECTIVES.items() if each.heads.causal == heads.causal]
    found = (OBJECTIVES[kind].heads.of_pretraining <= heads.of_pretraining for kind in causal)
    return next(itertools.compress(causal, found), causal[0])


def make_objective(
    section: sections.ObjectiveSection,
    *,
    architecture: EncoderArchitecture,
    execution: Execution,
    tokenizer: Tokenizer,
) -> Objective:
    """Returns the objective of a section for a model. Imports JAX.

    Raises UserError like `ObjectiveSection.check_sizes`.
    """
    section.check_sizes(architecture)
    loss = importlib.import_module(f"bert_jax.objectives.{section.loss}")
    return loss.make(section, architecture=architecture, execution=execution, tokenizer=tokenizer)


def check_pairing(
    section: sections.ObjectiveSection,
    kind: PairingKind,
    *,
    dataset: os.PathLike[str] | str,
    key: str,
    evaluation: bool,
) -> None:
    """Raises UserError if a dataset with this pairing kind was made for another objective.

    `evaluation` is whether the dataset is only evaluated. `key` and `dataset`, the dataset's
    directory, are for the message.
    """
    allowed = section.evaluated_pairings if evaluation else section.pairings
    if kind in allowed:
        return
    others = OBJECTIVES.items()
    fitting = [n for n, each in others if kind in each.pairings and not each.has_second_model]
    hint = f", or set objective.kind: {fitting[0]}" if fitting else ""
    raise UserError(
        "objective.pairing",
        f"found kind {kind} of {dataset}, allowed with {section.kind}: {one_of(allowed)}{hint}",
        place=key,
    )
