"""Reads and writes sentence-transformers' module Dense, the linear layer of a text head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.encoders.hf_format import Rules, dense
from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.interop import tensor_conversion as tensors
from bert_jax.interop.hf_checkpoint import CONFIG
from bert_jax.interop.hf_weights import TORCH_WEIGHTS, TorchFile
from bert_jax.interop.safetensors_file import WEIGHTS, SafetensorsFile, write_params
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
    source: tensors.TensorSource
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
        source: tensors.TensorSource = SafetensorsFile(weights)
    else:
        source = TorchFile(directory / TORCH_WEIGHTS)
    files = [config, *source.files]
    return Projection(found.out_features, source, _rules(bias=found.bias), files)


def _of_head(model: tensors.Pretrained, heads: HeadsSection, rules: Rules) -> ModelDefinition:
    """Returns the part of a model's definition that the rules describe."""
    whole = tensors.definition_of(model.architecture, heads)
    return tensors.part_of(whole, [rule.ours for rule in rules])


def read_projection(
    layer: Projection,
    model: tensors.Pretrained,
    heads: HeadsSection,
    *,
    bias: bool = True,
) -> tensors.Params:
    """Returns the parameters of the head. Without a bias in the file, a `bias` of the head is 0."""
    placements = tensors.expand(
        layer.rules, _of_head(model, heads, layer.rules), architecture=model.architecture
    )
    ours = _of_head(model, heads, _rules(bias=bias)).params
    return tensors.read_params(layer.source, placements, ours, ignored={})


def write_dense(
    directory: Path, model: tensors.Pretrained, *, bias: bool, **settings: object
) -> None:
    """Writes the module of the head's linear layer, with more `settings` in its config.json."""
    rules = _rules(bias=bias)
    placements = tensors.expand(
        rules, _of_head(model, model.heads, rules), architecture=model.architecture
    )
    write_params(directory / WEIGHTS, model.params, placements)
    outputs, inputs = placements[0].shape
    config = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": bias,
        "activation_function": _IDENTITY,
    }
    write_json(directory / CONFIG, config | settings)
