"""Exports a model to StableHLO: a program that JAX runs without bert_jax."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export

from bert_jax.encoders.build import encoder_builder
from bert_jax.errors import UserError, commas, did_you_mean
from bert_jax.files.atomic import write_errors
from bert_jax.interop.safetensors_file import WEIGHTS, write_safetensors
from bert_jax.interop.tensor_conversion import Params, TensorSpec, flatten, unflatten
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.train.state import ModelDefinition, define_model

PROGRAM: Final = "model.stablehlo"
SIGNATURE: Final = "signature.json"
PLATFORMS: Final = ("cpu", "cuda", "tpu")
INPUTS: Final[Mapping[str, str]] = {
    "input_ids": "token ids, [CLS] first",
    "attention_mask": "1 for a token, 0 for padding, -1 for a token that no token attends to",
    "token_type_ids": "0 in the first span, 1 in the second; ignored by a model with one or none",
}

# Example for the model card and docs/stablehlo.md; it runs in the directory of the export.
USAGE: Final = """```python
from pathlib import Path

import jax.export
import numpy as np
from safetensors.numpy import load_file

program = jax.export.deserialize(bytearray(Path("model.stablehlo").read_bytes()))
weights = jax.device_put(load_file("model.safetensors"))
run = jax.jit(program.call)  # compiles once for each shape of batch

input_ids = np.array([[2, 7, 8, 3], [2, 9, 3, 0]], np.int32)  # [batch, length]
attention_mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32)  # 0: padding
token_type_ids = np.zeros_like(input_ids)
outputs = run(weights, input_ids, attention_mask, token_type_ids)
print({name: array.shape for name, array in outputs.items()})
```"""


class _Output(NamedTuple):
    """An array that a program can return."""

    meaning: str
    part: str  # the module of the model that it needs
    compute: Callable[[EncoderModel, jax.Array, jax.Array], jax.Array]
    """From model, hidden states [b, l, D] and segment ids [b, l]."""


OUTPUTS: Final[Mapping[str, _Output]] = {
    "last_hidden_state": _Output(
        "the last layer's hidden states", "encoder", lambda model, hidden, segments: hidden
    ),
    "pooled": _Output(
        "the tanh layer over the first token, [CLS]",
        "pooler",
        lambda model, hidden, segments: model.pooled(hidden[:, :1])[:, 0],
    ),
    "mlm_logits": _Output(
        "a logit for every piece of the vocabulary, at every position",
        "mlm",
        lambda model, hidden, segments: model.mlm_logits(hidden),
    ),
    "next_sentence_logits": _Output(
        "0: the second span follows the first, 1: the second span is random",
        "next_sentence",
        lambda model, hidden, segments: model.next_sentence_logits(hidden[:, :1])[:, 0],
    ),
    "replaced_token_logits": _Output(
        "above 0 for a token that was probably replaced, at every position",
        "replaced_tokens",
        lambda model, hidden, segments: model.replaced_token_logits(hidden, segments),
    ),
    "task_logits": _Output(
        'outputs of the fine-tuned head; "task" below has its kind and labels',
        "task",
        lambda model, hidden, segments: model.task_logits(hidden, segments),
    ),
    "embedding": _Output(
        'the vector of the text, or of each token for late interaction; "embedding" below has the '
        "texts before queries and passages",
        "embedding",
        lambda model, hidden, segments: model.embedded_states(hidden, segments),
    ),
}


def default_outputs(parts: Collection[str]) -> list[str]:
    """Returns the outputs that are exported by default: usually all except `mlm_logits`.

    `parts` are the names of the model's modules, with "embedding" for a model of sentence
    embeddings. `mlm_logits` has one number per token and vocabulary piece, and needs a fifth of a
    base model's FLOPs. It is exported by default only if the model has neither a next-sentence nor
    a task head, and no sentence embeddings.
    """
    omitted = "mlm_logits" if {"next_sentence", "task", "embedding"} & set(parts) else ""
    return [name for name, each in OUTPUTS.items() if each.part in parts and name != omitted]


def export_stablehlo(
    directory: Path,
    *,
    architecture: EncoderArchitecture,
    execution: Execution,
    heads: HeadsSection,
    params: Params,
    outputs: Sequence[str] | None = None,
) -> None:
    """Writes a model as one program for CPU, CUDA and TPU, and its weights in a second file.

    ``program.call(weights, input_ids, attention_mask, token_type_ids)["last_hidden_state"]`` needs
    only JAX and safetensors, as `USAGE` shows.

    Batch and length are symbolic: the program runs with any batch size, and any length up to the
    model's positions. The weights are arguments of the program. As constants they would need
    several times their memory during the export (measured in docs/stablehlo.md), and each program
    would contain a copy.

    Args:
        directory: existing directory for ``model.stablehlo``, ``model.safetensors`` and
            ``signature.json``.
        architecture: architecture of the model.
        execution: settings of the run. Only the dtype of activations is used: weights and outputs
            are float32, kernels would run on one platform only, and there are no gradients.
        heads: heads of the checkpoint.
        params: nested dict of float32 arrays, as in a checkpoint.
        outputs: names from `OUTPUTS`. The default is `default_outputs`.

    Raises:
        UserError: if the model lacks an output, or the disk is full.
    """
    portable = execution.model_copy(
        update={"attention": "xla", "norm": "xla", "ffn": "xla", "remat": "none"}
    )
    parts: set[str] = set()
    if heads.vectors is not None:
        parts = {"embedding"}
    if heads.embedding is not None:
        # No output reads the temperature.
        fixed = heads.embedding.model_copy(update={"temperature": None})
        heads = heads.model_copy(update={"embedding": fixed})
    model = define_model(encoder_builder(architecture, portable, heads))
    chosen = _choose(outputs, parts | model.params.keys())
    arrays = flatten(params)
    longest = architecture.max_position_embeddings
    weights = _weights(model, architecture.vocab_size)
    program = _lower(model, weights, chosen, longest=longest)
    signature = _signature(program, weights, heads, longest=longest)
    serialized = program.serialize()
    write_safetensors(
        directory / WEIGHTS,
        {path: TensorSpec(tuple(each.shape), each.dtype) for path, each in weights.items()},
        # The slices omit the padding of the vocabulary.
        ((path, arrays[path][tuple(map(slice, each.shape))]) for path, each in weights.items()),
    )
    with write_errors(directory):
        (directory / PROGRAM).write_bytes(serialized)
        (directory / SIGNATURE).write_text(json.dumps(signature, indent=2) + "\n", encoding="utf-8")


def _choose(outputs: Sequence[str] | None, parts: Collection[str]) -> list[str]:
    if outputs is None:
        return default_outputs(parts)
    allowed = [name for name, output in OUTPUTS.items() if output.part in parts]
    if not outputs:
        raise UserError.wrong("export.no_outputs", "none", commas(allowed), place="outputs")
    for name in outputs:
        if name not in allowed:
            # If the name is correct but the model lacks the head, there is nothing to suggest.
            hint = "" if name in OUTPUTS else did_you_mean(name, allowed)
            known = f"{commas(allowed)}{hint}"
            raise UserError.wrong("export.output_unknown", f'"{name}"', known, place="outputs")
    return [name for name in allowed if name in outputs]


def _weights(model: ModelDefinition, vocab_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of the program's weights, without the padding of the vocabulary."""
    axes, weights = flatten(model.axes), {}
    # JAX flattens the program's dict of weights in sorted order.
    for path, param in sorted(flatten(model.params).items()):
        sizes = zip(axes[path], param.shape, strict=True)
        shape = [vocab_size if axis == "vocab" else size for axis, size in sizes]
        weights[path] = jax.ShapeDtypeStruct(shape, param.dtype)
    return weights


def _lower(
    definition: ModelDefinition,
    weights: Mapping[str, jax.ShapeDtypeStruct],
    outputs: Sequence[str],
    *,
    longest: int,
) -> export.Exported:
    def run(
        weights: dict[str, jax.Array],
        input_ids: jax.Array,
        attention_mask: jax.Array,
        token_type_ids: jax.Array,
    ) -> dict[str, jax.Array]:
        model = nnx.merge(definition.graphdef, unflatten(weights))
        batch = {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "segment_ids": jnp.sign(attention_mask).astype(jnp.int32),
        }
        hidden = model.hidden(batch, dropout_key=None)
        segments = batch["segment_ids"]
        return {
            name: OUTPUTS[name].compute(model, hidden, segments).astype(jnp.float32)
            for name in outputs
        }

    size = export.symbolic_shape("b, l", constraints=[f"l <= {longest}"])
    ids = jax.ShapeDtypeStruct(size, jnp.int32)
    return export.export(jax.jit(run), platforms=PLATFORMS)(dict(weights), *(ids for _ in INPUTS))


def _signature(
    program: export.Exported,
    weights: Mapping[str, jax.ShapeDtypeStruct],
    heads: HeadsSection,
    *,
    longest: int,
) -> dict[str, Any]:
    """Returns the content of signature.json: the program's arguments and results, in order."""

    def arrays(names: Sequence[str], avals: Sequence[Any], meanings: Sequence[str]) -> list[Any]:
        return [
            {
                "name": name,
                "dtype": str(aval.dtype),
                "shape": [size if isinstance(size, int) else str(size) for size in aval.shape],
                "meaning": meaning,
            }
            for name, aval, meaning in zip(names, avals, meanings, strict=True)
        ]

    outputs = sorted(jax.tree.unflatten(program.out_tree, program.out_avals))
    return {
        "program": PROGRAM,
        "weights_file": WEIGHTS,
        "platforms": list(program.platforms),
        "symbols": {"b": "batch", "l": f"length, up to {longest}"},
        "inputs": arrays([*INPUTS], program.in_avals[len(weights) :], [*INPUTS.values()]),
        "outputs": arrays(outputs, program.out_avals, [OUTPUTS[each].meaning for each in outputs]),
        "weights": [
            {"name": path, "dtype": str(spec.dtype), "shape": list(spec.shape)}
            for path, spec in weights.items()
        ],
        "task": None
        if heads.task is None
        else {"name": heads.task, "labels": list(heads.labels), "problem": heads.problem},
        "embedding": None if heads.vectors is None else _embedding(heads, longest=longest),
        "calling_convention_version": program.calling_convention_version,
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib")},
    }


def _embedding(heads: HeadsSection, *, longest: int) -> dict[str, Any]:
    """Returns how to prepare the texts of a model that encodes queries and passages."""
    assert heads.vectors is not None
    names = {"default_prefix", "query_prefix", "passage_prefix"}
    names |= {"query_length", "query_expansion", "skipped"}  # of late interaction
    prefixes = heads.vectors.model_dump(include=names)
    return {**prefixes, "max_length": heads.longest_text(longest)}
