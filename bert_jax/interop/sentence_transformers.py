"""Reads and writes the files that sentence-transformers adds to a Hugging Face checkpoint.

``modules.json`` lists the steps from a text to its vector: Transformer, Pooling, Dense, Normalize.
`PoolingSection` has the same steps.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pydantic
from etils import epath

from bert_jax.encoders.hf_format import Rules, dense
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import parse_json, read_json_object, read_text
from bert_jax.interop import tensor_conversion
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.hf_weights import TORCH_WEIGHTS, TorchFile
from bert_jax.interop.safetensors_file import WEIGHTS, SafetensorsFile, write_safetensors
from bert_jax.model.section import HeadsSection, Pool, PoolingSection
from bert_jax.section import Section
from bert_jax.text import Tokenizer
from bert_jax.text.tokenizer import CONFIG_FILE
from bert_jax.train.state import ModelDefinition
from bert_jax.validation import validate

MODULES: Final = "modules.json"
_PROMPTS: Final = "config_sentence_transformers.json"
_TRANSFORMER: Final = "sentence_bert_config.json"
_TRANSFORMERS: Final = "sentence_*_config.json"  # old files have the name of another encoder
_PACKAGE: Final = "sentence_transformers."
_STEPS: Final = ("Transformer", "Pooling", "Dense", "Normalize")
_OPTIONAL: Final = ("Dense", "Normalize")
_IDENTITY: Final = "torch.nn.modules.linear.Identity"
# Names of a prompt, in the order of `encode_document`. An empty "document" is a default.
_QUERY: Final = ("query",)
_PASSAGE: Final = ("document", "passage", "corpus")
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


class _Lenient(Section):
    """A section that ignores unknown keys."""

    model_config = pydantic.ConfigDict(extra="ignore")


class _Module(_Lenient):
    type: str
    path: str = ""

    @property
    def name(self) -> str:
        """``Pooling``. The full name of a class that sentence-transformers does not have."""
        return self.type.rpartition(".")[2] if self.type.startswith(_PACKAGE) else self.type


class _Dense(_Lenient):
    out_features: int = pydantic.Field(ge=1)
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


class _Transformer(_Lenient):
    max_seq_length: int | None = pydantic.Field(default=None, ge=4)
    do_lower_case: bool = False


class _Prompts(_Lenient):
    prompts: dict[str, str | None] = pydantic.Field(default_factory=dict)
    default_prompt_name: str | None = None


def is_sentence_transformers(directory: Path) -> bool:
    """Returns whether a directory has the modules.json of sentence-transformers."""
    return (directory / MODULES).exists()


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
    pool = _read_pooling(directory / modules["Pooling"] / CONFIG)
    layer = _read_dense(directory / modules["Dense"]) if "Dense" in modules else None
    prompts = _read_prompts(directory / _PROMPTS)
    model = read_hf(directory, tokenizer=tokenizer)
    embedding = PoolingSection(
        pool=pool,
        normalize="Normalize" in modules,
        projection=None if layer is None else layer.width,
        query_prefix=prompts.query,
        passage_prefix=prompts.passage,
        max_length=_read_length(directory, model),
    )
    heads = model.heads.model_copy(update={"embedding": embedding})
    params, files = model.params, [directory / MODULES, directory / modules["Pooling"] / CONFIG]
    if layer is not None:
        params = params | _read_projection(layer, model, heads)
        files += layer.files
    files += [path for path in (directory / _PROMPTS, _length_file(directory)) if path.exists()]
    return model._replace(
        heads=heads, params=params, files=(*model.files, *files), notes=prompts.notes
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
    _write(directory / folders["Pooling"] / CONFIG, pooling)
    if "Dense" in folders:
        _write_dense(directory / folders["Dense"], model)
    length = model.heads.longest_text(model.architecture.max_position_embeddings)
    _write(directory / _TRANSFORMER, {"max_seq_length": length, "do_lower_case": False})
    prompts = {_QUERY[0]: how.query_prefix, _PASSAGE[0]: how.passage_prefix}
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": prompts,
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if how.normalize else "dot",
    }
    _write(directory / _PROMPTS, settings)
    listed = [
        {"idx": index, "name": str(index), "path": folder, "type": f"{_PACKAGE}models.{name}"}
        for index, (name, folder) in enumerate(folders.items())
    ]
    _write(directory / MODULES, listed)


def _write(path: Path, content: object) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_whole(epath.Path(path), text.encode())


def _read_modules(directory: Path) -> dict[str, str]:
    """Returns the directories of the modules by name, in order."""
    path = directory / MODULES
    try:
        listed = parse_json(read_text(epath.Path(path)))
    except UserError as error:
        raise error if error.values.get("place") else error.with_place(str(path)) from None
    modules = [
        validate(_Module, each, source=f"{path}: module {number}")
        for number, each in enumerate(listed if isinstance(listed, list) else [listed])
    ]
    found = [module.name for module in modules]
    if found != [name for name in _STEPS if name not in _OPTIONAL or name in found]:
        raise UserError(
            "import.modules",
            "found the modules {found}, allowed: {allowed}, in this order, with or without "
            "{optional:or}",
            place=path,
            found=[f"{name:.60}" for name in found],
            allowed=_STEPS,
            optional=_OPTIONAL,
        )
    inside = {each.name for each in directory.iterdir() if each.is_dir()}
    for module in modules:
        expected = {""} if module.name == "Transformer" else inside
        if module.path not in expected and module.name != "Normalize":
            raise UserError(
                "import.module_path",
                'found "{found}" for {module}, allowed: {allowed}',
                place=path,
                found=f"{module.path:.60}",
                module=module.name,
                allowed='""' if module.name == "Transformer" else "a directory beside the file",
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
            "found the pooling {found}, allowed: one of {allowed}",
            place=path,
            found=[f"{mode!s:.60}" for mode in modes],
            allowed=list(_POOLS),
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
    found = validate(_Dense, read_json_object(epath.Path(config)), source=str(config))
    for key, value, allowed in (
        ("activation_function", found.activation_function, _IDENTITY),
        ("use_residual", found.use_residual, False),
    ):
        if value != allowed:
            raise UserError(
                "import.dense",
                "found {found}, allowed: {allowed}",
                place=f"{config}: {key}",
                found=value,
                allowed=allowed,
            )
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
        layer.rules, _of_head(model, heads, layer.rules), vocab_size=model.architecture.vocab_size
    )
    ours = _of_head(model, heads, _rules(bias=True)).params
    return tensor_conversion.read_params(layer.source, placements, ours, ignored={})


def _write_dense(directory: Path, model: tensor_conversion.Pretrained) -> None:
    rules = _rules(bias=True)
    placements = tensor_conversion.expand(
        rules, _of_head(model, model.heads, rules), vocab_size=model.architecture.vocab_size
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
    _write(directory / CONFIG, settings)


class _Prefixes(NamedTuple):
    query: str
    passage: str
    notes: tuple[str, ...]


def _read_prompts(path: Path) -> _Prefixes:
    values = read_json_object(epath.Path(path)) if path.exists() else {}
    found = validate(_Prompts, values, source=str(path))
    prompts = {name: text or "" for name, text in found.prompts.items()}
    roles = (_QUERY, _PASSAGE)
    query, passage = (next(filter(None, map(prompts.get, names)), "") for names in roles)
    notes = []
    if others := sorted(name for name, text in prompts.items() if text not in ("", query, passage)):
        notes.append(f"prompts not imported: {', '.join(others)}")
    if default := prompts.get(found.default_prompt_name or ""):
        notes.append(f'sentence-transformers adds "{default}" by default, encode adds no prefix')
    return _Prefixes(query, passage, tuple(notes))


def _length_file(directory: Path) -> Path:
    found = sorted(set(directory.glob(_TRANSFORMERS)) - {directory / _TRANSFORMER})
    return next((path for path in (directory / _TRANSFORMER, *found) if path.exists()), Path(""))


def _read_length(directory: Path, model: tensor_conversion.Pretrained) -> int:
    """Returns the longest text in tokens: the module's, else the tokenizer's, else the model's."""
    positions, path = model.architecture.max_position_embeddings, _length_file(directory)
    values: dict[str, Any] = read_json_object(epath.Path(path)) if path.is_file() else {}
    found = validate(_Transformer, values, source=str(path))
    if found.do_lower_case and getattr(model.tokenizer, "lower_case", False) is not True:
        raise UserError(
            "import.lower_case",
            "found true, allowed: false, because the tokenizer does not lower-case texts",
            place=f"{path}: do_lower_case",
        )
    limit = found.max_seq_length
    if limit is None and (directory / CONFIG_FILE).exists():
        limit = read_json_object(epath.Path(directory / CONFIG_FILE)).get("model_max_length")
    return min(positions, limit) if isinstance(limit, int) and limit >= 4 else positions
