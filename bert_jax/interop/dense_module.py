"""Reads and writes sentence-transformers' module Dense, the linear layer of a text head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.encoders.hf_format import Rules, dense
from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.interop import tensor_conversion
from bert_jax.interop.hf_checkpoint import CONFIG
from bert_jax.interop.hf_weights import TORCH_WEIGHTS, TorchFile
from bert_jax.interop.safetensors_file import WEIGHTS, SafetensorsFile, write_safetensors
from bert_jax.interop.sentence_transformers_sections import DenseModule, write_json
from bert_jax.model.section import HeadsSection
from bert_jax.train.state import ModelDefinition
from bert_jax.validation import validate

_IDENTITY: Final = "torch.nn.modules.linear.Identity"
_HEAD: Final = "embedding"  # our module with the parameters of Dense
TOKENS: Final = "token_embeddings"
"""Name of the states and vectors of tokens in sentence-transformers."""


class Projection(NamedTuple):
    """A Dense module, opened."""

    width: int
    source: tensor_conversion.TensorSource
    rules: Rules
    files: list[Path]


def _rules(*, bias: bool) -> Rules:
    return dense(f"{_HEAD}/dense", "linear", bias=bias)


def settings_of_tokens(path: Path) -> dict[str, Any]:
    """Returns the settings of a module of token vectors, without the names of its features.

    Raises UserError for a module of other features.
    """
    settings = read_json_object(epath.Path(path))
    for key in ("module_input_name", "module_output_name"):
        if (found := settings.pop(key, None)) not in (None, TOKENS):
            raise UserError.wrong("import.token_module", found, TOKENS, place=f"{path}: {key}")
    return settings


def read_dense(directory: Path, settings: Mapping[str, Any]) -> Projection:
    """Opens a Dense module with the `settings` of its config.json.

    Raises UserError if it has an activation function or a residual connection.
    """
    config = directory / CONFIG
    found = validate(DenseModule, settings, source=str(config))
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
    return Projection(found.out_features, source, _rules(bias=found.bias), files)


def _of_head(
    model: tensor_conversion.Pretrained, heads: HeadsSection, rules: Rules
) -> ModelDefinition:
    """Returns the part of a model's definition that the rules describe."""
    whole = tensor_conversion.definition_of(model.architecture, heads)
    return tensor_conversion.part_of(whole, [rule.ours for rule in rules])


def read_projection(
    layer: Projection,
    model: tensor_conversion.Pretrained,
    heads: HeadsSection,
    *,
    bias: bool = True,
) -> tensor_conversion.Params:
    """Returns the parameters of the head. Without a bias in the file, a `bias` of the head is 0."""
    placements = tensor_conversion.expand(
        layer.rules, _of_head(model, heads, layer.rules), architecture=model.architecture
    )
    ours = _of_head(model, heads, _rules(bias=bias)).params
    return tensor_conversion.read_params(layer.source, placements, ours, ignored={})


def write_dense(
    directory: Path, model: tensor_conversion.Pretrained, *, bias: bool, **settings: object
) -> None:
    """Writes the module of the head's linear layer, with more `settings` in its config.json."""
    rules = _rules(bias=bias)
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
    config = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": bias,
        "activation_function": _IDENTITY,
    }
    write_json(directory / CONFIG, config | settings)
