"""Another program's checkpoint, read from disk and saved as a run directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
from etils import epath
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.files.read import sha256_of
from bert_jax.inference.bucketed import InferenceModel
from bert_jax.interop.hf import is_hf, read_hf
from bert_jax.interop.hf_tokenizer import tokenizer_files
from bert_jax.interop.mapping import Params, Pretrained
from bert_jax.interop.tf_bert import is_tf, read_tf
from bert_jax.model.bert import bert_builder
from bert_jax.model.config import Execution, ModelSection
from bert_jax.optim.optimizer import MomentsState, make_optimizer, with_moments
from bert_jax.optim.sections import OptimizerSection
from bert_jax.runs.checkpoints import LoadedParams, write_checkpoints
from bert_jax.runs.directory import write_run
from bert_jax.runs.settings import describe
from bert_jax.text import Tokenizer, load_tokenizer, load_wordpiece
from bert_jax.train.progress import IMPORTED
from bert_jax.train.state import TrainState, abstract_params, define_model, run_key

# Orbax needs these bytes beside the array that it writes.
SAVE_SLACK_BYTES: Final = 1 << 20


def read_checkpoint(
    source: Path, *, tokenizer: str | None = None, lower_case: bool | None = None
) -> Pretrained:
    """Reads a Hugging Face or google-research/bert checkpoint.

    Args:
        source: its directory, or the prefix of a TensorFlow checkpoint's files.
        tokenizer: a tokenizer directory, for a checkpoint without a tokenizer.
        lower_case: casing of a vocab.txt without settings.

    Raises:
        UserError: no readable checkpoint, or a tensor that does not fit.
    """
    directory = source if source.is_dir() else source.parent
    if not directory.is_dir():
        raise UserError(f"{source}: found no such directory, allowed: a checkpoint directory")
    given: Tokenizer | None = None
    if tokenizer is not None:
        given = load_tokenizer(tokenizer)
    elif lower_case is not None:
        given = load_wordpiece(directory, lower_case=lower_case)
    if is_tf(source):
        return read_tf(source, tokenizer=given or load_tokenizer(directory))
    if is_hf(source):
        return read_hf(source, tokenizer=given)
    raise UserError(
        f"{source}: found no checkpoint, allowed: a Hugging Face directory (config.json and "
        f"model.safetensors) or a google-research/bert one (bert_model.ckpt.index and "
        f"bert_config.json)"
    )


def model_in_memory(model: Pretrained, *, mesh: Mesh, name: str) -> InferenceModel:
    """Returns another program's checkpoint on devices, in float32."""
    execution = Execution(dtype="float32")
    definition = define_model(bert_builder(model.architecture, execution, model.heads))
    layout = jax.tree.map(lambda leaf: leaf.sharding, abstract_params(definition, mesh))
    params = jax.device_put(model.params, layout)
    loaded = LoadedParams(model.step or 0, definition, params, mesh)
    return InferenceModel(name, model.tokenizer, model.architecture, model.heads, loaded)


def write_imported_run(
    root: Path,
    model: Pretrained,
    *,
    run_dir: str,
    settings: Mapping[str, Any],
    optimizer: OptimizerSection,
    seed: int,
    record: Mapping[str, str],
) -> None:
    """Writes a run directory that holds an imported model; its moments become optimizer state.

    The model's arrays are replaced by JAX's one by one.

    Args:
        root: where the directory is written.
        model: from `read_checkpoint`.
        run_dir: the directory's name in the end.
        settings: the rest of the configuration, as plain values.
        optimizer: whose state the moments become.
        seed: of the run.
        record: source of the model, for provenance.json.
    """
    directory = model.files[0].parent
    files = sorted([*model.files, *tokenizer_files(directory)])
    write_run(
        epath.Path(root),
        settings,
        run_dir=run_dir,
        model=ModelSection(execution=Execution(dtype="float32"), heads=model.heads),
        architecture=model.architecture,
        tokenizer=model.tokenizer,
        origin={
            "imported_from": {
                **record,
                "directory": str(directory),
                "sha256": {path.name: sha256_of(path) for path in files},
            },
            "tensors_ignored": dict(model.ignored),
        },
    )
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    _to_device(model.params)
    step = model.step or 0
    with write_checkpoints(root, save_bytes=largest + SAVE_SLACK_BYTES) as checkpointer:
        if model.moments is None:
            checkpointer.save_params(model.params, step=step)
        else:
            state = _train_state(model.params, model.moments, step, optimizer, seed)
            checkpointer.save(state, step=step, progress={IMPORTED: True})


def summarize(model: Pretrained) -> list[str]:
    """Returns what was imported, in lines for the user."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    moments = "" if model.moments is None else f", Adam's moments at step {model.step or 0}"
    rows, pieces = model.architecture.vocab_size, model.tokenizer.vocab_size
    lines = [f"{numbers:,} parameters, {describe(model.heads)}, {pieces:,} pieces{moments}"]
    if rows > pieces:
        lines.append(
            f"vocab_size is {rows:,}: {rows - pieces:,} rows have no piece; they are kept and "
            f"never predicted"
        )
    if model.architecture.type_vocab_size == 1:
        lines.append("type_vocab_size is 1: both spans of a pair get token type 0")
    return lines


def _train_state(
    params: Params, moments: MomentsState, step: int, section: OptimizerSection, seed: int
) -> TrainState:
    """Returns the state that a run with these settings would have saved at that step."""
    for part in moments:
        _to_device(part)
    optimizer = make_optimizer(section, axes=None)  # only LAMB's updates read the axes
    fresh = jax.eval_shape(optimizer.init, params)
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        rng=run_key(seed),
        params=params,
        opt_state=with_moments(fresh, moments, step=step),
        healthy=jnp.ones((), jnp.bool_),
    )


def _to_device(params: Params) -> None:
    """Replaces NumPy arrays by JAX's one at a time; Orbax would copy all NumPy arrays."""
    for name, value in params.items():
        if isinstance(value, dict):
            _to_device(value)
        else:
            params[name] = jax.device_put(value, jax.devices("cpu")[0])
