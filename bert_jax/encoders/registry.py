"""The registry of encoders. Needs no JAX.

An encoder `kind` is the folder ``bert_jax/encoders/<kind>/`` with these modules:

- ``section``: its settings, a subclass of `ModelSection` that is listed here,
- ``model``: its network, `MODEL`, a subclass of `bert_jax.model.encoder_model.EncoderModel`,
- ``hugging_face``: its names and settings in Hugging Face transformers, `FORMAT`.
"""

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import pydantic

from bert_jax.encoders.bert.section import BertSection
from bert_jax.encoders.modernbert.section import ModernBertSection
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection, ModelSection
from bert_jax.section import Section
from bert_jax.validation import KIND, validate

SECTIONS: Final[Mapping[str, type[ModelSection]]] = {
    "bert": BertSection,
    "modernbert": ModernBertSection,
}
DEFAULT_KIND: Final = "bert"


def _kind(model: Any) -> Any:
    if isinstance(model, Mapping):
        return model.get(KIND, DEFAULT_KIND)
    return getattr(model, KIND, None)


AnyModelSection: TypeAlias = Annotated[
    Annotated[BertSection, pydantic.Tag("bert")]
    | Annotated[ModernBertSection, pydantic.Tag("modernbert")],
    pydantic.Discriminator(_kind),
]
"""The section `model` of a configuration; `kind` selects the encoder."""


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
