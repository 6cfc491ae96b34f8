"""Reads and writes the files that sentence-transformers adds to a sparse encoder.

The model has an MLM head. ``modules.json`` lists two steps: Transformer and SpladePooling.
"""

from pathlib import Path
from typing import Final, Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.hf_tokenizer import tokenizer_files
from bert_jax.interop.sentence_transformers_files import (
    read_model_file,
    read_modules,
    read_prompts,
    read_transformer,
    transformer_file,
    write_modules,
    written_prompts,
)
from bert_jax.interop.sentence_transformers_sections import (
    PACKAGE,
    SETTINGS,
    TRANSFORMER,
    PromptsFile,
    TextHeadFormat,
    TransformerModule,
    longest_text,
    model_type,
    write_json,
)
from bert_jax.interop.sources import MODULES
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.model.text_head import SparseHeadSection
from bert_jax.section import Section
from bert_jax.text import Tokenizer
from bert_jax.validation import read_section

_TYPE: Final = "SparseEncoder"
_POOLING: Final = "1_SpladePooling"
_TASK: Final = "fill-mask"


class _Settings(PromptsFile):
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
    return (directory / MODULES).exists() and model_type(directory) == _TYPE


def read_sparse_encoder(directory: Path, *, tokenizer: Tokenizer | None = None) -> Pretrained:
    """Reads a sparse encoder.

    Raises UserError if it has other modules, such as another model for queries, sums weights
    instead of taking their maximum, or has no MLM head; also as in `read_hf`.
    """
    modules = read_modules(directory, ("Transformer", "SpladePooling"))
    encoder, config = (directory / path for path in modules.values())
    pooling = read_section(_Pooling, epath.Path(config / CONFIG))
    settings = read_model_file(directory, _Settings)
    prefixes, notes = read_prompts(directory, settings)
    model = read_hf(encoder, tokenizer=tokenizer)
    if not model.heads.mlm:
        raise UserError.wrong(
            "import.sparse_head", "no MLM head", "a model with an MLM head", place=encoder / CONFIG
        )
    transformer = read_transformer(encoder, model, TransformerModule, task=_TASK)
    head = SparseHeadSection(
        activation=pooling.activation_function,
        top_k=settings.max_active_dims,
        max_length=longest_text(encoder, model, limit=transformer.longest),
        **prefixes,
    )
    files = (directory / MODULES, directory / SETTINGS, config / CONFIG, transformer_file(encoder))
    return model._replace(
        heads=model.heads.model_copy(update={"sparse": head}),
        files=(
            *(path for path in files if path is not None and path.exists()),
            *model.files,
            *tokenizer_files(encoder),
        ),
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
    write_json(directory / _POOLING / CONFIG, pooling)
    transformer = {
        "max_seq_length": model.heads.longest_text(model.architecture.max_position_embeddings),
        "transformer_task": _TASK,
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
        "module_output_name": "token_embeddings",
    }
    write_json(directory / TRANSFORMER, transformer)
    settings = {"model_type": _TYPE, **written_prompts(how), "similarity_fn_name": "dot"}
    if how.top_k is not None:
        settings["max_active_dims"] = how.top_k
    write_json(directory / SETTINGS, settings)
    types = "base.modules.transformer.Transformer", "sparse_encoder.modules.SpladePooling"
    folders = zip(types, ("", _POOLING), strict=True)
    write_modules(directory, {PACKAGE + type: folder for type, folder in folders})


_USAGE: Final = """```python
from sentence_transformers import SparseEncoder

model = SparseEncoder("{name}")
queries = model.encode_query(["a question"])
passages = model.encode_document(["an answer", "another answer"])
print(model.similarity(queries, passages))
print(model.decode(passages, top_k=10))
```"""
_FRONT_MATTER: Final = """---
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags: [sentence-transformers, sparse-encoder, sparse, splade, {kind}, bert-jax]
---
"""
FORMAT: Final = TextHeadFormat(
    is_sparse_encoder, read_sparse_encoder, write_sparse_encoder, _USAGE, _FRONT_MATTER
)
"""The format of sparse encoders."""
