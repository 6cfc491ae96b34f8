"""Reads and writes late-interaction models of sentence-transformers, and reads those of PyLate.

``modules.json`` lists Transformer, Dense, MultiVectorMask and Normalize. PyLate lists the first two
and keeps all settings in ``config_sentence_transformers.json``.
"""

import string
from pathlib import Path
from typing import Any, Final, Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.interop import dense_module
from bert_jax.interop import sentence_transformers_files as st_files
from bert_jax.interop import sentence_transformers_sections as sections
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.hf_tokenizer import with_markers
from bert_jax.interop.sources import MODULES
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.text_head import TokenVectorsSection
from bert_jax.section import Section
from bert_jax.text import Tokenizer
from bert_jax.validation import read_section, validate

_TYPE: Final = "MultiVectorEncoder"
_OF_PYLATE: Final = "ColBERT"
_STEPS: Final = {
    "Transformer": "base.modules.transformer",
    "Dense": "base.modules.dense",
    "MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask",
    "Normalize": "base.modules.normalize",
}
_QUERY: Final = "query"  # names of prompts
_PASSAGE: Final = "document"
_EXPANSIONS: Final[dict[bool, Literal["attended", "unattended"]]] = {
    True: "attended",
    False: "unattended",
}


class _Expansion(Section):
    """``query_expansion``: how the mask fills up queries."""

    strategy: Literal["fixed"]
    attend: bool = False
    token: str | None = None
    length: int = pydantic.Field(ge=4)


class _Transformer(sections.TransformerSettings):
    """Settings of Transformer, and of queries and documents."""

    query_length: int | None = pydantic.Field(default=None, ge=4)
    document_length: int | None = pydantic.Field(default=None, ge=4)
    query_expansion: _Expansion | None = None


class _Mask(Section):
    """``config.json`` of MultiVectorMask."""

    skiplist_words: tuple[str, ...] = ()
    skiplist_tasks: tuple[Literal["document"]] = ("document",)
    keep_only_token_ids: tuple[()] | None = None


class _Settings(sections.PromptsFile):
    """``config_sentence_transformers.json``. PyLate has the settings from `query_prefix` on."""

    model_type: str | None = None
    similarity_fn_name: str | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    query_length: int | None = None
    document_length: int | None = None
    do_query_expansion: bool | None = None
    attend_to_expansion_tokens: bool | None = None
    skiplist_words: tuple[str, ...] = tuple(string.punctuation)

    @property
    def markers(self) -> dict[str, str]:
        """PyLate's texts before queries and documents, by the name of the prompt."""
        return {_QUERY: self.query_prefix or "", _PASSAGE: self.document_prefix or ""}

    @property
    def lengths(self) -> dict[str, Any]:
        """PyLate's settings of queries and documents, as in Transformer."""
        found: dict[str, Any] = {"document_length": self.document_length}
        if self.do_query_expansion is False:
            return found | {"query_length": self.query_length}
        attend, length = bool(self.attend_to_expansion_tokens), self.query_length or 32
        expansion = _Expansion(strategy="fixed", attend=attend, length=length)
        return found | {"query_expansion": expansion}


def is_late_interaction(directory: Path) -> bool:
    """Returns whether a directory has the settings of a late-interaction model."""
    if not (directory / MODULES).exists() or not (directory / sections.SETTINGS).exists():
        return False
    found = read_json_object(epath.Path(directory / sections.SETTINGS))
    return found.get("model_type") in (_TYPE, _OF_PYLATE) or "query_prefix" in found


def read_late_interaction(directory: Path, *, tokenizer: Tokenizer | None = None) -> Pretrained:
    """Reads a late-interaction model with its encoder.

    Raises UserError if a module or a setting has no counterpart here; also as in `read_hf`.
    """
    settings = st_files.read_model_file(directory, _Settings)
    if settings.similarity_fn_name == "meanmaxsim":
        place = f"{directory / sections.SETTINGS}: similarity_fn_name"
        raise UserError.wrong("import.similarity", "meanmaxsim", "maxsim", place=place)
    of_pylate = settings.model_type != _TYPE
    optional = ("Dense", "MultiVectorMask", "Normalize") if of_pylate else ("Dense",)
    modules = st_files.read_modules(directory, [*_STEPS], optional=optional)
    configs = {name: directory / folder / CONFIG for name, folder in modules.items()}
    encoder = configs.pop("Transformer").parent
    layer = _read_dense(configs["Dense"]) if "Dense" in configs else None
    mask = _Mask(skiplist_words=settings.skiplist_words)
    if "MultiVectorMask" in configs:
        mask = read_section(_Mask, epath.Path(configs["MultiVectorMask"]))
    if "Normalize" in configs:
        validate(
            sections.VectorModule, dense_module.settings_of_tokens(configs["Normalize"]), source=""
        )
    model = read_hf(encoder, tokenizer=tokenizer)
    model = model._replace(tokenizer=with_markers(model.tokenizer, settings.markers.values()))
    head, notes = _head(directory, encoder, model, settings)
    skipped = model.tokenizer.ids_of(mask.skiplist_words)
    width = None if layer is None else layer.width
    head = head.model_copy(update={"skipped": skipped, "projection": width})
    heads = model.heads.model_copy(update={"late_interaction": head})
    params = model.params
    if layer is not None:
        params = params | dense_module.read_projection(layer, model, heads, bias=False)
    own = [directory / MODULES, directory / sections.SETTINGS, *configs.values()]
    own += [] if layer is None else layer.source.files
    files = st_files.all_files(encoder, own, model)
    return model._replace(heads=heads, params=params, files=files, notes=(*model.notes, *notes))


def _read_dense(config: Path) -> dense_module.Projection:
    settings = dense_module.settings_of_tokens(config)
    if settings.get("bias", True) is not False:
        raise UserError.wrong("import.dense", "true", "false", place=f"{config}: bias")
    return dense_module.read_dense(config.parent, settings)


def _head(
    directory: Path, encoder: Path, model: Pretrained, settings: _Settings
) -> tuple[TokenVectorsSection, list[str]]:
    """Returns the prefixes and lengths of texts, and notes for the user."""
    prompts = dict(settings.prompts)
    for name, marker in settings.markers.items():  # PyLate puts it before the prompt
        prompts[name] = marker + (prompts.get(name) or "").removeprefix(marker)
    settings = settings.model_copy(update={"prompts": prompts})
    prefixes, notes = st_files.read_prompts(directory, settings)
    found = st_files.read_transformer(encoder, model, _Transformer)
    if settings.model_type != _TYPE:
        others = settings.lengths.items()
        missing = {name: each for name, each in others if name not in found.model_fields_set}
        found = found.model_copy(update=missing)
    expansion, mask = found.query_expansion, model.tokenizer.special_pieces.mask
    if expansion is not None and expansion.token not in (None, mask):
        place = f"{st_files.transformer_file(encoder)}: query_expansion.token"
        raise UserError.wrong("import.expansion_token", f"{expansion.token:.60}", mask, place=place)
    _refuse_unattended(model.architecture, expansion and _EXPANSIONS[expansion.attend], encoder)
    limit = found.document_length or found.longest
    head = TokenVectorsSection(
        query_length=found.query_length if expansion is None else expansion.length,
        query_expansion=None if expansion is None else _EXPANSIONS[expansion.attend],
        max_length=sections.longest_text(encoder, model, limit=limit),
        **prefixes,
    )
    return head, [*notes, *found.notes]


def _refuse_unattended(
    architecture: EncoderArchitecture, expansion: str | None, place: Path
) -> None:
    if architecture.kind == "deberta" and expansion == _EXPANSIONS[False]:
        raise UserError(
            "import.unattended",
            "found query_expansion unattended, allowed with DeBERTa in Hugging Face: attended",
            place=place,
        )


def write_late_interaction(directory: Path, model: Pretrained) -> None:
    """Writes the files beside a checkpoint of `write_hf`, for sentence-transformers 6.

    The model has `HeadsSection.late_interaction`. Raises UserError if the disk is full, or for
    unattended tokens of DeBERTa.
    """
    how = model.heads.late_interaction
    assert how is not None
    _refuse_unattended(model.architecture, how.query_expansion, directory)
    names = [name for name in _STEPS if name != "Dense" or how.projection is not None]
    folders = {name: f"{index}_{name}" if index else "" for index, name in enumerate(names)}
    for folder in folders.values():
        (directory / folder).mkdir(exist_ok=True)
    tokens = {"module_input_name": dense_module.TOKENS, "module_output_name": dense_module.TOKENS}
    if how.projection is not None:
        dense_module.write_dense(directory / folders["Dense"], model, bias=False, **tokens)
    words = model.tokenizer.pieces(how.skipped)
    mask = {"skiplist_words": words, "skiplist_tasks": [_PASSAGE], "keep_only_token_ids": None}
    sections.write_json(directory / folders["MultiVectorMask"] / CONFIG, mask)
    sections.write_json(directory / folders["Normalize"] / CONFIG, tokens)
    longest = model.heads.longest_text(model.architecture.max_position_embeddings)
    transformer: dict[str, Any] = {
        "max_seq_length": longest,
        "do_lower_case": False,
        "document_length": longest,
    }
    length = how.size(longest, query=True).most
    if how.query_expansion is None:
        transformer["query_length"] = length
    else:
        attend = how.query_expansion == _EXPANSIONS[True]
        expansion = {"strategy": "fixed", "attend": attend, "length": length}
        transformer["query_expansion"] = expansion
    sections.write_json(directory / sections.TRANSFORMER, transformer)
    settings = {
        "model_type": _TYPE,
        **st_files.written_prompts(how),
        "similarity_fn_name": "maxsim",
    }
    sections.write_json(directory / sections.SETTINGS, settings)
    types = {name: f"{sections.PACKAGE}{_STEPS[name]}.{name}" for name in names}
    st_files.write_modules(directory, {types[name]: folder for name, folder in folders.items()})


_USAGE: Final = """```python
from sentence_transformers import MultiVectorEncoder

model = MultiVectorEncoder("{name}")
queries = model.encode_query(["a question"])
passages = model.encode_document(["an answer", "another answer"])
print(model.similarity(queries, passages))
```"""
FORMAT: Final = sections.TextHeadFormat(
    is_late_interaction,
    read_late_interaction,
    write_late_interaction,
    _USAGE,
    "sentence-similarity",
    "multi-vector, ColBERT, late-interaction",
)
"""The format of late-interaction models."""
