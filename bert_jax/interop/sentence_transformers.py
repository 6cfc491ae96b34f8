"""Reads and writes the files that sentence-transformers adds to a Hugging Face checkpoint.

``modules.json`` lists the steps from a text to its vector: Transformer, Pooling, Dense, Normalize.
`PoolingSection` has the same steps.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.encoders.hf_format import Rules, dense
from bert_jax.errors import UserError, commas, one_of
from bert_jax.files.read import parse_json, read_json_object, read_text
from bert_jax.interop import tensor_conversion
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.hf_tokenizer import tokenizer_files
from bert_jax.interop.hf_weights import TORCH_WEIGHTS, TorchFile
from bert_jax.interop.safetensors_file import WEIGHTS, SafetensorsFile, write_safetensors
from bert_jax.interop.sentence_transformers_sections import (
    PACKAGE,
    SETTINGS,
    TRANSFORMER,
    DenseModule,
    ModelFile,
    ModuleEntry,
    TextHeadFormat,
    TransformerModule,
    VectorModule,
    longest_text,
    model_type,
    write_json,
)
from bert_jax.interop.sources import MODULES, is_folder_name
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import Pool, PoolingSection
from bert_jax.text import Tokenizer
from bert_jax.train.state import ModelDefinition
from bert_jax.validation import read_section, validate

# Old files have the name of another encoder. The first file with content counts.
_OLD_TRANSFORMERS: Final = tuple(
    f"sentence_{name}_config.json"
    for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_STEPS: Final = ("Transformer", "Pooling", "Dense", "Normalize")
_OPTIONAL: Final = ("Dense", "Normalize")
_IDENTITY: Final = "torch.nn.modules.linear.Identity"
# The prompts of `encode_query` and `encode_document`. Every model has both, empty by default, so
# `encode_document` never uses the other names that it lists.
_QUERY: Final = "query"
_PASSAGE: Final = "document"
_UNREACHED: Final = ("passage", "corpus")
_DEFAULT: Final = "default"  # our name of a prompt without a role
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
    return (directory / MODULES).exists() and model_type(directory) != "CrossEncoder"


def encoder_directory(directory: Path) -> Path:
    """Returns the directory of the Transformer module: the same one, or an older 0_Transformer."""
    return directory / _read_modules(directory)["Transformer"]


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
    modules = _read_modules(directory)  # first, because they are small
    encoder = directory / modules["Transformer"]
    pool = _read_pooling(directory / modules["Pooling"] / CONFIG)
    layer = _read_dense(directory / modules["Dense"]) if "Dense" in modules else None
    normalize = directory / modules["Normalize"] / CONFIG if "Normalize" in modules else None
    if normalize is not None and normalize.exists():
        read_section(VectorModule, epath.Path(normalize))
    settings = _read_settings(directory / SETTINGS, normalize=normalize is not None)
    model = read_hf(encoder, tokenizer=tokenizer)
    transformer = _read_transformer(encoder, model)
    embedding = PoolingSection(
        pool=pool,
        normalize=normalize is not None,
        projection=None if layer is None else layer.width,
        max_length=longest_text(encoder, model, limit=transformer.longest),
        **settings.embedding,
    )
    heads = model.heads.model_copy(update={"embedding": embedding})
    params, files = model.params, [directory / MODULES, directory / modules["Pooling"] / CONFIG]
    if layer is not None:
        params = params | _read_projection(layer, model, heads)
        files += layer.files
    others = (directory / SETTINGS, _transformer_file(encoder), normalize)
    files += [path for path in others if path is not None and path.exists()]
    notes = [*model.notes, *settings.notes]
    if transformer.half:
        notes.append(f"sentence-transformers rounds the weights to {transformer.half}")
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
    prompts = {_QUERY: how.query_prefix, _PASSAGE: how.passage_prefix}
    if how.default_prefix and how.default_prefix not in prompts.values():
        prompts[_DEFAULT] = how.default_prefix
    default = next((name for name, text in prompts.items() if text == how.default_prefix), None)
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": prompts,
        "default_prompt_name": default if how.default_prefix else None,
        "similarity_fn_name": "cosine" if how.by_cosine else "dot",
    }
    if how.dimensions is not None:
        settings["truncate_dim"] = how.dimensions
    write_json(directory / SETTINGS, settings)
    listed = [
        {"idx": index, "name": str(index), "path": folder, "type": f"{PACKAGE}models.{name}"}
        for index, (name, folder) in enumerate(folders.items())
    ]
    write_json(directory / MODULES, listed)


def _read_modules(directory: Path) -> dict[str, str]:
    """Returns the directories of the modules by name, in order."""
    path = directory / MODULES
    try:
        listed = parse_json(read_text(epath.Path(path)))
    except UserError as error:
        raise error if error.place else error.with_place(str(path)) from None
    modules = [
        validate(ModuleEntry, each, source=f"{path}: module {number}")
        for number, each in enumerate(listed if isinstance(listed, list) else [listed])
    ]
    found = [module.name for module in modules]
    if found != [name for name in _STEPS if name not in _OPTIONAL or name in found]:
        raise UserError(
            "import.modules",
            f"found the modules {commas([f'{name:.60}' for name in found])}, allowed: "
            f"{commas(_STEPS)}, in this order, with or without {one_of(_OPTIONAL)}",
            place=path,
        )
    inside = {each.name for each in directory.iterdir() if each.is_dir()}
    for module in modules:
        # Old versions wrote no directory for Normalize.
        known = inside | {"Transformer": {""}, "Normalize": {module.path}}.get(module.name, set())
        if module.path not in known or not is_folder_name(module.path):
            raise UserError(
                "import.module_path",
                f'found "{module.path:.60}" for {module.name}, allowed: a directory beside the '
                "file",
                place=path,
            )
    return {module.name: module.path for module in modules}


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


class _ModelSettings(NamedTuple):
    """The settings of config_sentence_transformers.json."""

    embedding: dict[str, Any]  # settings of `PoolingSection`
    notes: tuple[str, ...]


def _read_settings(path: Path, *, normalize: bool) -> _ModelSettings:
    found = read_section(ModelFile, epath.Path(path)) if path.exists() else ModelFile()
    prompts = {_QUERY: "", _PASSAGE: ""} | {key: text or "" for key, text in found.prompts.items()}
    query, passage = prompts[_QUERY], prompts[_PASSAGE]
    name = found.default_prompt_name
    if name is not None and name not in prompts:
        raise UserError(
            "import.default_prompt",
            f'found "{name:.60}", allowed: a name in prompts: {commas(prompts)}',
            place=f"{path}: default_prompt_name",
        )
    default = "" if name is None else prompts[name]
    notes, used = [], ("", query, passage, default)
    if others := sorted(name for name, text in prompts.items() if text not in used):
        notes.append(f"prompts not imported: {', '.join(others)}")
    for name in _UNREACHED:
        if name in others:
            notes.append(
                f'the prompt "{name}" is not used for passages, as in encode_document of '
                f'sentence-transformers. Put "{prompts[name]}" before the texts, or name it '
                f'"{_PASSAGE}" in {path.name}.'
            )
    if default:
        notes.append(f'encode adds "{default}" to texts without a prompt (default_prompt_name)')
    if found.truncate_dim is not None:
        notes.append(
            f"vectors have {found.truncate_dim} numbers (truncate_dim). They are cut after "
            "normalisation, so compare them by the cosine."
        )
    by_cosine = found.similarity_fn_name in (None, "cosine")
    return _ModelSettings(
        {
            "dimensions": found.truncate_dim,
            "similarity": None if by_cosine == normalize else "cosine" if by_cosine else "dot",
            "default_prefix": default,
            "query_prefix": query,
            "passage_prefix": passage,
        },
        tuple(notes),
    )


def _transformer_file(directory: Path) -> Path | None:
    """Returns the file with the settings of Transformer. Like their library, skips empty ones."""
    paths = (directory / name for name in (TRANSFORMER, *_OLD_TRANSFORMERS))
    return next(
        (path for path in paths if path.exists() and read_json_object(epath.Path(path))), None
    )


def _read_transformer(directory: Path, model: tensor_conversion.Pretrained) -> TransformerModule:
    path = _transformer_file(directory)
    found = (
        TransformerModule() if path is None else read_section(TransformerModule, epath.Path(path))
    )
    if found.do_lower_case and getattr(model.tokenizer, "lower_case", False) is not True:
        raise UserError(
            "import.lower_case",
            "found true, allowed: false, because the tokenizer does not lower-case texts",
            place=f"{path}: do_lower_case",
        )
    return found


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
