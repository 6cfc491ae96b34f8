"""The registry of encoders. Needs no JAX.

An encoder `kind` is the folder ``bert_jax/encoders/<kind>/`` with these modules:

- ``section``: its settings, a subclass of `ModelSection` that is listed here,
- ``model``: its network, `MODEL`, a subclass of `bert_jax.model.encoder_model.EncoderModel`,
- ``hugging_face``: its files in Hugging Face's format, `FORMAT`, a
  `bert_jax.encoders.hf_format.HfFormat`.
"""

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import pydantic

from bert_jax.encoders.albert.section import AlbertSection
from bert_jax.encoders.bert.section import BertSection
from bert_jax.encoders.deberta.section import DebertaSection
from bert_jax.encoders.distilbert.section import DistilBertSection
from bert_jax.encoders.electra.section import ElectraSection
from bert_jax.encoders.eurobert.section import EuroBertSection
from bert_jax.encoders.modernbert.section import ModernBertSection
from bert_jax.encoders.neobert.section import NeoBertSection
from bert_jax.encoders.roberta.section import RobertaSection
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection, ModelSection
from bert_jax.section import Section, sections_of
from bert_jax.validation import KIND, validate

# To register an encoder, add its section here.
Registered: TypeAlias = (
    Annotated[BertSection, pydantic.Tag("bert")]
    | Annotated[AlbertSection, pydantic.Tag("albert")]
    | Annotated[DebertaSection, pydantic.Tag("deberta")]
    | Annotated[DistilBertSection, pydantic.Tag("distilbert")]
    | Annotated[ElectraSection, pydantic.Tag("electra")]
    | Annotated[EuroBertSection, pydantic.Tag("eurobert")]
    | Annotated[ModernBertSection, pydantic.Tag("modernbert")]
    | Annotated[NeoBertSection, pydantic.Tag("neobert")]
    | Annotated[RobertaSection, pydantic.Tag("roberta")]
)


def _kind(model: Any) -> Any:
    if isinstance(model, Mapping):
        return model.get(KIND, "bert")
    return getattr(model, KIND, None)


# Not a validator that adds the kind: pydantic would then refuse JSON's lists for tuples.
AnyModelSection: TypeAlias = Annotated[Registered, pydantic.Discriminator(_kind)]
"""The section `model` of a configuration; `kind` selects the encoder."""

SECTIONS: Final[Mapping[str, type[ModelSection]]] = {
    section.model_fields[KIND].default: section
    for section in sections_of(Registered)
    if issubclass(section, ModelSection)
}


class _Holder(Section):
    model: AnyModelSection


def read_model_section(values: Any, *, source: str) -> ModelSection:
    """Returns the section `model` of a file. Raises UserError if a setting is wrong."""
    return validate(_Holder, {"model": values}, source=source).model


def model_section(
    architecture: EncoderArchitecture, *, pieces: int, execution: Execution, heads: HeadsSection
) -> ModelSection:
    """Returns the section of an architecture, see `ModelSection.of`."""
    of = SECTIONS[architecture.kind].of
    return of(architecture, pieces=pieces, execution=execution, heads=heads)


def encoder_module(kind: str, name: str) -> Any:
    """Returns a module of an encoder's folder: ``("bert", "model")``."""
    return importlib.import_module(f"bert_jax.encoders.{kind}.{name}")
