"""Reads and writes the files that sentence-transformers adds to a sparse encoder.

The model has an MLM head. ``modules.json`` lists two steps: Transformer and SpladePooling.
"""

from pathlib import Path
from typing import Final, Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.interop import sentence_transformers_files as st_files
from bert_jax.interop import sentence_transformers_sections as sections
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.sources import MODULES
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.model.text_head import SparseHeadSection
from bert_jax.section import Section
from bert_jax.text import Tokenizer
from bert_jax.validation import read_section

_TYPE: Final = "SparseEncoder"
_POOLING: Final = "1_SpladePooling"
_TASK: Final = "fill-mask"


class _Settings(sections.PromptsFile):
    """``config_sentence_transformers.json``."""

    similarity_fn_name: Literal["dot"] | None = None
    max_active_dims: int | None = pydantic.Field(default=None, ge=1)


class _Pooling(Section):
    """``config.json`` of SpladePooling."""

    model_config = pydantic.ConfigDict(extra="ignore")

    pooling_strategy: Literal["max"] = "max"
    activation_function: Literal["relu", "log1p_relu"] = "relu"


def is_sparse_encoder(directory: Path) -> bool:
    """Returns whether a directory has the settings of a sparse encoder."""
    return (directory / MODULES).exists() and sections.model_type(directory) == _TYPE


def read_sparse_encoder(directory: Path, *, tokenizer: Tokenizer | None = None) -> Pretrained:
    """Reads a sparse encoder.

    Raises UserError if it has other modules, such as another model for queries, sums weights
    instead of taking their maximum, or has no MLM head; also as in `read_hf`.
    """
    modules = st_files.read_modules(directory, ("Transformer", "SpladePooling"))
    encoder, config = (directory / path for path in modules.values())
    pooling = read_section(_Pooling, epath.Path(config / CONFIG))
    settings = st_files.read_model_file(directory, _Settings)
    prefixes, notes = st_files.read_prompts(directory, settings)
    model = read_hf(encoder, tokenizer=tokenizer)
    if not model.heads.mlm:
        raise UserError.wrong(
            "import.sparse_head", "no MLM head", "a model with an MLM head", place=encoder / CONFIG
        )
    transformer = st_files.read_transformer(encoder, model, sections.TransformerModule, task=_TASK)
    head = SparseHeadSection(
        activation=pooling.activation_function,
        top_k=settings.max_active_dims,
        max_length=sections.longest_text(encoder, model, limit=transformer.longest),
        **prefixes,
    )
    own = (directory / MODULES, directory / sections.SETTINGS, config / CONFIG)
    return model._replace(
        heads=model.heads.model_copy(update={"sparse": head}),
        files=st_files.all_files(encoder, own, model),
        notes=(*model.notes, *notes, *transformer.notes),
    )


def write_sparse_encoder(directory: Path, model: Pretrained) -> None:
    """Writes the files beside a checkpoint of `write_hf`, for sentence-transformers 6.

    The model has `HeadsSection.sparse`. Raises UserError if the disk is full.
    """
    how = model.heads.sparse
    assert how is not None
    (directory / _POOLING).mkdir(exist_ok=True)
    pooling = {
        "pooling_strategy": "max",
        "activation_function": how.activation,
        "embedding_dimension": model.architecture.vocab_size,
    }
    sections.write_json(directory / _POOLING / CONFIG, pooling)
    transformer = {
        "max_seq_length": model.heads.longest_text(model.architecture.max_position_embeddings),
        "transformer_task": _TASK,
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
        "module_output_name": "token_embeddings",
    }
    sections.write_json(directory / sections.TRANSFORMER, transformer)
    settings = {"model_type": _TYPE, **st_files.written_prompts(how), "similarity_fn_name": "dot"}
    if how.top_k is not None:
        settings["max_active_dims"] = how.top_k
    sections.write_json(directory / sections.SETTINGS, settings)
    types = "base.modules.transformer.Transformer", "sparse_encoder.modules.SpladePooling"
    folders = zip(types, ("", _POOLING), strict=True)
    st_files.write_modules(directory, {sections.PACKAGE + type: folder for type, folder in folders})


_USAGE: Final = """```python
from sentence_transformers import SparseEncoder

model = SparseEncoder("{name}")
queries = model.encode_query(["a question"])
passages = model.encode_document(["an answer", "another answer"])
print(model.similarity(queries, passages))
print(model.decode(passages, top_k=10))
```"""
FORMAT: Final = sections.TextHeadFormat(
    is_sparse_encoder,
    read_sparse_encoder,
    write_sparse_encoder,
    _USAGE,
    "feature-extraction",
    "sparse-encoder, sparse, splade",
)
"""The format of sparse encoders."""
