"""Settings in the files of sentence-transformers. Other values are refused."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object, shown
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.section import Section
from bert_jax.text.tokenizer import CONFIG_FILE

SETTINGS: Final = "config_sentence_transformers.json"
TRANSFORMER: Final = "sentence_bert_config.json"
PACKAGE: Final = "sentence_transformers."
"""Prefix of the types in ``modules.json``."""
_PYLATE: Final = "pylate.models."
_SHORTEST: Final = 4  # tokens of a text
_FRONT_MATTER: Final = """---
library_name: sentence-transformers
pipeline_tag: {pipeline}
tags: [sentence-transformers, {tags}, {{kind}}, bert-jax]
---
"""


class TextHeadFormat(NamedTuple):
    """The files of one kind of text head, beside the files of Hugging Face."""

    fits: Callable[[Path], bool]  # whether a directory has the files
    read: Callable[..., Pretrained]  # (directory, *, tokenizer)
    write: Callable[[Path, Pretrained], None]
    usage: str  # for the model card: how to load the model `name`
    pipeline: str  # of the model card: `pipeline_tag`
    tags: str  # of the model card

    @property
    def front_matter(self) -> str:
        """The start of the model card, with a field `kind` for the encoder."""
        return _FRONT_MATTER.format(pipeline=self.pipeline, tags=self.tags)


def model_type(directory: Path) -> str | None:
    """Returns the class in sentence-transformers that a directory names, if it names one."""
    path = epath.Path(directory / SETTINGS)
    return read_json_object(path).get("model_type") if path.exists() else None


def write_json(path: Path, content: object) -> None:
    """Writes a file of settings."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_whole(epath.Path(path), text.encode())


class _Lenient(Section):
    """A section that ignores unknown keys."""

    model_config = pydantic.ConfigDict(extra="ignore")


class ModuleEntry(_Lenient):
    """One entry of ``modules.json``."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        """``Pooling``. The full name of a class of neither sentence-transformers nor PyLate."""
        known = self.type.startswith((PACKAGE, _PYLATE))
        name = self.type.rpartition(".")[2] if known else self.type
        # Version 5 had a class of its own for models with an MLM head.
        return "Transformer" if name == "MLMTransformer" else name


def longest_text(directory: Path, model: Pretrained, *, limit: int | None) -> int:
    """Returns the longest text in tokens: a module's `limit`, or the tokenizer's, or the model's.

    Raises UserError as `length_of_tokenizer`.
    """
    positions, found = model.architecture.max_position_embeddings, limit or math.inf
    path = directory / CONFIG_FILE
    if limit is None and path.exists():
        settings = read_json_object(epath.Path(path))
        found = length_of_tokenizer(settings, source=str(path)) or math.inf
    return int(min(positions, found))


def length_of_tokenizer(settings: Mapping[str, Any], *, source: str) -> float | None:
    """Returns `model_max_length` of ``tokenizer_config.json``: 10**30, also as 1e30, for no limit.

    Raises UserError if it is not a number of tokens.
    """
    found = settings.get("model_max_length")
    if found is not None and (type(found) not in (int, float) or not found >= _SHORTEST):
        allowed, place = f"{_SHORTEST} tokens or more", f"{source}: model_max_length"
        raise UserError.wrong("import.max_length", shown(found), allowed, place=place)
    return found


class VectorModule(_Lenient):
    """Settings of Dense and Normalize: the names of their input and output."""

    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = None


class DenseModule(VectorModule):
    """``config.json`` of Dense."""

    in_features: int | None = pydantic.Field(default=None, ge=1)
    out_features: int = pydantic.Field(ge=1, le=1 << 20)
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


_Output = Literal["last_hidden_state", "logits"]


class _Text(Section):
    method: Literal["forward"]
    method_output_name: _Output | tuple[_Output]


class _Modalities(Section):
    text: _Text


class _Loading(Section):
    """Arguments of `from_pretrained` that change no vector, except for rounding."""

    trust_remote_code: bool = False
    attn_implementation: str | None = None
    add_pooling_layer: bool = True
    dtype: str | None = None
    torch_dtype: str | None = None
    use_fast: bool = True
    model_max_length: int | None = pydantic.Field(default=None, ge=_SHORTEST)


class _Empty(Section):
    """Settings that must not have a key."""


class TransformerSettings(Section):
    """The module's settings. A key with a literal type or None has one allowed value.

    sentence-transformers refuses unknown keys, too.
    """

    max_seq_length: int | None = pydantic.Field(default=None, ge=_SHORTEST)
    do_lower_case: bool = False
    transformer_task: str | None = None
    module_output_name: Literal["token_embeddings"] = "token_embeddings"
    modality_config: _Modalities | None = None
    model_args: _Loading = _Loading()
    model_kwargs: _Loading = _Loading()
    tokenizer_args: _Loading = _Loading()
    processor_kwargs: _Loading = _Loading()
    config_args: _Loading = _Loading()
    config_kwargs: _Loading = _Loading()
    processing_kwargs: _Empty = _Empty()
    unpad_inputs: bool | None = None
    tokenizer_name_or_path: None = None

    @property
    def longest(self) -> int | None:
        """Longest text in tokens, or None if the tokenizer determines it."""
        loading = (self.processor_kwargs, self.tokenizer_args)
        given = next((each.model_max_length for each in loading if each.model_max_length), None)
        return given or self.max_seq_length

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know: the dtype to which sentence-transformers rounds the weights."""
        loading = (self.model_kwargs, self.model_args)
        named = {each.dtype or each.torch_dtype for each in loading}
        rounded = next((name for name in ("float16", "bfloat16") if name in named), None)
        return (f"sentence-transformers rounds the weights to {rounded}",) if rounded else ()


class TransformerModule(TransformerSettings):
    """The settings of a model that encodes queries and passages alike."""

    query_length: None = None
    document_length: None = None
    query_expansion: None = None


class PromptsFile(_Lenient):
    """``config_sentence_transformers.json`` of any model."""

    prompts: dict[str, str | None] = pydantic.Field(default_factory=dict)
    default_prompt_name: str | None = None


class ModelFile(PromptsFile):
    """``config_sentence_transformers.json`` of a model of sentence embeddings."""

    model_type: Literal["SentenceTransformer"] = "SentenceTransformer"
    similarity_fn_name: Literal["cosine", "dot"] | None = None
    truncate_dim: int | None = pydantic.Field(default=None, ge=1)
