"""Reads and writes the files that sentence-transformers adds to a cross-encoder.

The model is a sequence classifier of Hugging Face with one output. Version 6 has the settings in
``config_sentence_transformers.json``, older versions have them in ``config.json``.
"""

from pathlib import Path
from typing import Any, Final, Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.interop import sentence_transformers_sections as sections
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.sources import MODULES
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.model.text_head import CrossEncoderSection
from bert_jax.section import Section
from bert_jax.text import Tokenizer
from bert_jax.validation import validate

_TYPE: Final = "CrossEncoder"
_MODULE: Final = f"{sections.PACKAGE}base.modules.transformer.Transformer"
_OF_HF: Final = "sentence_transformers"  # key of config.json in versions 4 and 5
_BEFORE_4: Final = "sbert_ce_default_activation_function"
_PROMPT: Final = "query"  # our name of the prompt
_ACTIVATIONS: Final[dict[str, Literal["sigmoid", "identity"]]] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}


class _Settings(Section):
    """``config_sentence_transformers.json``, or the key of an older ``config.json``."""

    model_config = pydantic.ConfigDict(extra="ignore")

    activation_fn: str = "torch.nn.modules.activation.Sigmoid"
    prompts: dict[str, str | None] = pydantic.Field(default_factory=dict)
    default_prompt_name: str | None = None


def is_cross_encoder(directory: Path) -> bool:
    """Returns whether a directory has the settings of a cross-encoder."""
    config = directory / CONFIG
    if (directory / MODULES).exists():
        return sections.model_type(directory) == _TYPE
    return config.exists() and bool(
        {_OF_HF, _BEFORE_4} & read_json_object(epath.Path(config)).keys()
    )


def read_cross_encoder(directory: Path, *, tokenizer: Tokenizer | None = None) -> Pretrained:
    """Reads a cross-encoder.

    Raises UserError if the model has not exactly one output, or other modules, or its activation is
    neither the sigmoid nor the identity; also as in `read_hf`.
    """
    config = read_json_object(epath.Path(directory / CONFIG))
    path, values = directory / CONFIG, dict(config.get(_OF_HF) or {})
    if activation := config.get(_BEFORE_4):
        values.setdefault("activation_fn", activation)
    if (directory / sections.SETTINGS).exists():
        path = directory / sections.SETTINGS
        values |= read_json_object(epath.Path(path))
    found = validate(_Settings, values, source=str(path))
    if found.activation_fn not in _ACTIVATIONS:
        name, place = f"{found.activation_fn:.80}", f"{path}: activation_fn"
        raise UserError.unknown("import.cross_encoder_activation", name, _ACTIVATIONS, place=place)
    model = read_hf(directory, tokenizer=tokenizer)
    if model.heads.task != "sequence_classification" or len(model.heads.labels) != 1:
        number, allowed = len(model.heads.labels), "1 output of a sequence classifier"
        place = directory / CONFIG
        raise UserError.wrong("import.cross_encoder_outputs", number, allowed, place=place)
    transformer, limit = directory / sections.TRANSFORMER, None
    if transformer.exists():
        limit = read_json_object(epath.Path(transformer)).get("max_seq_length")
    prompt = found.prompts.get(found.default_prompt_name or "") or ""
    head = CrossEncoderSection(
        activation=_ACTIVATIONS[found.activation_fn],
        query_prefix=prompt,
        max_length=sections.longest_text(directory, model, limit=limit),
    )
    files = [directory / name for name in (MODULES, sections.SETTINGS, sections.TRANSFORMER)]
    return model._replace(
        heads=model.heads.model_copy(update={"cross_encoder": head}),
        files=(*filter(Path.exists, files), *model.files),
    )


def write_cross_encoder(directory: Path, model: Pretrained) -> None:
    """Writes the files beside a checkpoint of `write_hf`, for sentence-transformers 4 to 6.

    The model has `HeadsSection.cross_encoder`. Raises UserError if the disk is full.
    """
    how = model.heads.cross_encoder
    assert how is not None
    activation = next(name for name, ours in _ACTIVATIONS.items() if ours == how.activation)
    settings: dict[str, Any] = {
        "model_type": _TYPE,
        "activation_fn": activation,
        "prompts": {_PROMPT: how.query_prefix} if how.query_prefix else {},
        "default_prompt_name": _PROMPT if how.query_prefix else None,
    }
    length = model.heads.longest_text(model.architecture.max_position_embeddings)
    transformer = {
        "max_seq_length": length,
        "transformer_task": "sequence-classification",
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
        "module_output_name": "scores",
    }
    config = read_json_object(epath.Path(directory / CONFIG))
    sections.write_json(directory / CONFIG, {**config, _OF_HF: {"activation_fn": activation}})
    sections.write_json(directory / sections.SETTINGS, settings)
    sections.write_json(directory / sections.TRANSFORMER, transformer)
    sections.write_json(directory / MODULES, [{"idx": 0, "name": "0", "path": "", "type": _MODULE}])


_USAGE: Final = """```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("{name}")
print(model.rank("a question", ["an answer", "another answer"], return_documents=True))
```"""
FORMAT: Final = sections.TextHeadFormat(
    is_cross_encoder,
    read_cross_encoder,
    write_cross_encoder,
    _USAGE,
    "text-ranking",
    "cross-encoder, reranker",
)
"""The format of cross-encoders."""
