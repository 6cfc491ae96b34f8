"""Reads and writes the files that sentence-transformers adds to a Hugging Face checkpoint.

``modules.json`` lists the steps from a text to its vector: Transformer, Pooling, Dense, Normalize.
`PoolingSection` has the same steps.
"""

from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from etils import epath

from bert_jax.encoders.hf_format import Rules, dense
from bert_jax.errors import UserError, commas
from bert_jax.files.read import read_json_object
from bert_jax.interop import tensor_conversion
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.hf_tokenizer import tokenizer_files
from bert_jax.interop.hf_weights import TORCH_WEIGHTS, TorchFile
from bert_jax.interop.safetensors_file import WEIGHTS, SafetensorsFile, write_safetensors
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
    DenseModule,
    ModelFile,
    TextHeadFormat,
    TransformerModule,
    VectorModule,
    longest_text,
    model_type,
    write_json,
)
from bert_jax.interop.sources import MODULES
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import Pool, PoolingSection
from bert_jax.text import Tokenizer
from bert_jax.train.state import ModelDefinition
from bert_jax.validation import read_section, validate

_STEPS: Final = ("Transformer", "Pooling", "Dense", "Normalize")
_OPTIONAL: Final = ("Dense", "Normalize")
_IDENTITY: Final = "torch.nn.modules.linear.Identity"
_SIMILARITY: Final[dict[bool, Literal["cosine", "dot"]]] = {True: "cosine", False: "dot"}
_HEAD: Final = "embedding"  # our module with the parameters of Dense

_POOLS: Final[dict[str, Pool]] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Keys of all modes before sentence-transformers 5.4. Later versions read them too.
_MODE_KEYS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def is_sentence_transformers(directory: Path) -> bool:
    """Returns whether a directory has the modules.json of a model of sentence embeddings."""
    others = ("CrossEncoder", "SparseEncoder")
    return (directory / MODULES).exists() and model_type(directory) not in others


def encoder_directory(directory: Path) -> Path:
    """Returns the directory of the Transformer module: the same one, or an older 0_Transformer."""
    return directory / read_modules(directory, _STEPS, optional=_OPTIONAL)["Transformer"]


def read_sentence_transformers(
    directory: Path, *, tokenizer: Tokenizer | None = None
) -> tensor_conversion.Pretrained:
    """Reads a model of sentence embeddings with its encoder.

    Args:
        directory: Hugging Face's files beside modules.json, and a directory for each module.
        tokenizer: tokenizer for a checkpoint that has none.

    Raises:
        UserError: `PoolingSection` has no such module, pooling or activation of Dense; also as in
            `read_hf`.
    """
    # First, because they are small.
    modules = read_modules(directory, _STEPS, optional=_OPTIONAL)
    encoder = directory / modules["Transformer"]
    pool = _read_pooling(directory / modules["Pooling"] / CONFIG)
    layer = _read_dense(directory / modules["Dense"]) if "Dense" in modules else None
    normalize = directory / modules["Normalize"] / CONFIG if "Normalize" in modules else None
    if normalize is not None and normalize.exists():
        read_section(VectorModule, epath.Path(normalize))
    settings = read_model_file(directory, ModelFile)
    prompts, notes = read_prompts(directory, settings)
    model = read_hf(encoder, tokenizer=tokenizer)
    transformer = read_transformer(encoder, model, TransformerModule)
    by_cosine = settings.similarity_fn_name in (None, "cosine")
    embedding = PoolingSection(
        pool=pool,
        normalize=normalize is not None,
        projection=None if layer is None else layer.width,
        dimensions=settings.truncate_dim,
        similarity=None if by_cosine == (normalize is not None) else _SIMILARITY[by_cosine],
        max_length=longest_text(encoder, model, limit=transformer.longest),
        **prompts,
    )
    heads = model.heads.model_copy(update={"embedding": embedding})
    params, files = model.params, [directory / MODULES, directory / modules["Pooling"] / CONFIG]
    if layer is not None:
        params = params | _read_projection(layer, model, heads)
        files += layer.files
    others = (directory / SETTINGS, transformer_file(encoder), normalize)
    files += [path for path in others if path is not None and path.exists()]
    notes = [*model.notes, *notes, *transformer.notes]
    if settings.truncate_dim is not None:
        notes.append(
            f"vectors have {settings.truncate_dim} numbers (truncate_dim). They are cut after "
            "normalisation, so compare them by the cosine."
        )
    return model._replace(
        heads=heads,
        params=params,
        files=(*files, *model.files, *tokenizer_files(encoder)),
        notes=tuple(notes),
    )


def write_sentence_transformers(directory: Path, model: tensor_conversion.Pretrained) -> None:
    """Writes the files beside a checkpoint of `write_hf`, for sentence-transformers 5 and 6.

    The model has `HeadsSection.embedding`. A learned temperature is not written. Raises UserError
    if the disk is full.
    """
    how = model.heads.embedding
    assert how is not None
    used = {"Transformer", "Pooling"}
    used |= {"Dense"} if how.projection is not None else set()
    used |= {"Normalize"} if how.normalize else set()
    names = [name for name in _STEPS if name in used]
    folders = {name: f"{index}_{name}" if index else "" for index, name in enumerate(names)}
    for folder in folders.values():
        (directory / folder).mkdir(exist_ok=True)
    width = model.architecture.hidden_size
    modes = {key: _POOLS.get(mode) == how.pool for key, mode in _MODE_KEYS.items()}
    pooling = {"word_embedding_dimension": width, **modes, "include_prompt": True}
    write_json(directory / folders["Pooling"] / CONFIG, pooling)
    if "Dense" in folders:
        _write_dense(directory / folders["Dense"], model)
    length = model.heads.longest_text(model.architecture.max_position_embeddings)
    write_json(directory / TRANSFORMER, {"max_seq_length": length, "do_lower_case": False})
    settings = {
        "model_type": "SentenceTransformer",
        **written_prompts(how),
        "similarity_fn_name": _SIMILARITY[how.by_cosine],
    }
    if how.dimensions is not None:
        settings["truncate_dim"] = how.dimensions
    write_json(directory / SETTINGS, settings)
    write_modules(directory, {f"{PACKAGE}models.{name}": folders[name] for name in names})


def _read_pooling(path: Path) -> Pool:
    values = read_json_object(epath.Path(path))
    found = values.get("pooling_mode")
    if found is None:
        found = [mode for key, mode in _MODE_KEYS.items() if values.get(key) is True] or ["mean"]
    modes = found if isinstance(found, list) else [found]
    if len(modes) != 1 or modes[0] not in tuple(_POOLS):
        raise UserError(
            "import.pooling",
            f"found the pooling {commas([f'{mode!s:.60}' for mode in modes])}, allowed: one of "
            f"{commas(_POOLS)}",
            place=path,
        )
    if values.get("include_prompt", True) is not True:
        raise UserError(
            "import.prompt_left_out",
            "found false, allowed: true. Our poolings include the tokens of a prefix.",
            place=f"{path}: include_prompt",
        )
    return _POOLS[modes[0]]


class _Projection(NamedTuple):
    """A Dense module, opened."""

    width: int
    source: tensor_conversion.TensorSource
    rules: Rules
    files: list[Path]


def _rules(*, bias: bool) -> Rules:
    return dense(f"{_HEAD}/dense", "linear", bias=bias)


def _read_dense(directory: Path) -> _Projection:
    config = directory / CONFIG
    found = validate(DenseModule, read_json_object(epath.Path(config)), source=str(config))
    for key, value, allowed in (
        ("activation_function", found.activation_function, _IDENTITY),
        ("use_residual", found.use_residual, False),
    ):
        if value != allowed:
            raise UserError.wrong("import.dense", value, allowed, place=f"{config}: {key}")
    weights = directory / WEIGHTS
    if weights.exists() or not (directory / TORCH_WEIGHTS).exists():
        source: tensor_conversion.TensorSource = SafetensorsFile(weights)
    else:
        source = TorchFile(directory / TORCH_WEIGHTS)
    files = [config, *source.files]
    return _Projection(found.out_features, source, _rules(bias=found.bias), files)


def _of_head(
    model: tensor_conversion.Pretrained, heads: HeadsSection, rules: Rules
) -> ModelDefinition:
    """Returns the part of a model's definition that the rules describe."""
    whole = tensor_conversion.definition_of(model.architecture, heads)
    return tensor_conversion.part_of(whole, [rule.ours for rule in rules])


def _read_projection(
    layer: _Projection, model: tensor_conversion.Pretrained, heads: HeadsSection
) -> tensor_conversion.Params:
    """Returns the parameters of the head. Without a bias in the file, the bias is 0."""
    placements = tensor_conversion.expand(
        layer.rules, _of_head(model, heads, layer.rules), architecture=model.architecture
    )
    ours = _of_head(model, heads, _rules(bias=True)).params
    return tensor_conversion.read_params(layer.source, placements, ours, ignored={})


def _write_dense(directory: Path, model: tensor_conversion.Pretrained) -> None:
    rules = _rules(bias=True)
    placements = tensor_conversion.expand(
        rules, _of_head(model, model.heads, rules), architecture=model.architecture
    )
    specs = {
        each.name: tensor_conversion.TensorSpec(each.shape, np.dtype(np.float32))
        for each in placements
    }
    write_safetensors(
        directory / WEIGHTS, specs, tensor_conversion.their_tensors(model.params, placements)
    )
    outputs, inputs = specs["linear.weight"].shape
    settings = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": True,
        "activation_function": _IDENTITY,
    }
    write_json(directory / CONFIG, settings)


_USAGE: Final = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
queries = model.encode_query(["a question"])
passages = model.encode_document(["an answer", "another answer"])
print(model.similarity(queries, passages))
```"""
_FRONT_MATTER: Final = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, sentence-similarity, feature-extraction, {kind}, bert-jax]
---
"""
FORMAT: Final = TextHeadFormat(
    is_sentence_transformers,
    read_sentence_transformers,
    write_sentence_transformers,
    _USAGE,
    _FRONT_MATTER,
)
"""The format of sentence embeddings."""
