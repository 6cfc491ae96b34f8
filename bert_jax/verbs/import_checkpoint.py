"""`bert-jax import`: a Hugging Face or 2018 TensorFlow checkpoint → a run directory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import optax
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.errors import UserError
from bert_jax.files.small import new_directory
from bert_jax.interop.hf import is_hf, read_hf
from bert_jax.interop.hf_tokenizer import tokenizer_files
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tf_bert import is_tf, read_tf
from bert_jax.model.config import Execution, ModelSection
from bert_jax.optim.optimizer import MomentsState, make_optimizer, with_moments
from bert_jax.runs.checkpoints import write_checkpoints
from bert_jax.runs.directory import describe, write_run
from bert_jax.text import Tokenizer, load_tokenizer, load_wordpiece
from bert_jax.train.progress import IMPORTED
from bert_jax.train.state import TrainState, run_key

# Orbax wants room for more than one array is.
SLACK: Final = 1 << 20


class _Found(NamedTuple):
    """What a checkpoint holds."""

    model: Pretrained
    moments: MomentsState | None = None
    step: int = 0


def import_checkpoint(
    source: str,
    run_dir: str,
    *,
    tokenizer: str | None = None,
    lower_case: bool | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Path:
    """Writes an ordinary run directory from a checkpoint of another program.

    fill-mask, features, fine-tuning and export work on it as on a run of our own. With Adam's
    moments in it, `pretrain` goes on from its step.

    Args:
        source: a local directory with a Hugging Face or a 2018 TensorFlow checkpoint, or the path
            of the latter without ``.index``.
        run_dir: a local directory that is not there yet.
        tokenizer: a tokenizer directory, for a checkpoint that brings none.
        lower_case: of a bare vocab.txt, which does not say it.
        force: replace `run_dir`; the old one stays until the new one is whole.
        console: where the result is shown.

    Returns:
        The run directory.

    Raises:
        UserError: nothing that can be read, a tensor that does not fit, `run_dir` is there.
    """
    for path in (source, run_dir):
        if "://" in path:
            raise UserError(
                f"import: found {path}, allowed: a local path (copy it from the bucket)"
            )
    at = Path(source)
    directory = at if at.is_dir() else at.parent
    if not directory.is_dir():
        raise UserError(f"{source}: found no such directory, allowed: a checkpoint directory")
    target = Path(run_dir)
    with new_directory(target, force=force) as aside:
        found = _read(at, _tokenizer(directory, tokenizer, lower_case))
        model = found.model
        write_run(
            epath.Path(aside),
            RunConfig().model_dump(mode="json"),
            run_dir=run_dir,
            model=_model_section(model),
            architecture=model.architecture,
            tokenizer=model.tokenizer,
            origin={
                "imported_from": _origin(directory, [*model.files, *tokenizer_files(directory)]),
                "tensors_ignored": model.ignored,
            },
        )
        _save(aside, found)
    if console is not None:
        numbers = sum(leaf.size for leaf in jax.tree.leaves(model.params))
        moments = "" if found.moments is None else f", Adam's moments at step {found.step}"
        console.print(
            f"{run_dir}: {numbers:,} parameters, {describe(model.heads)}, "
            f"{model.tokenizer.vocab_size:,} pieces{moments}",
            markup=False,
            soft_wrap=True,
        )
    return target


def _tokenizer(directory: Path, given: str | None, lower_case: bool | None) -> Tokenizer | None:
    if given is not None:
        return load_tokenizer(given)
    return None if lower_case is None else load_wordpiece(directory, lower_case=lower_case)


def _read(at: Path, tokenizer: Tokenizer | None) -> _Found:
    if is_tf(at):
        tokenizer = tokenizer or load_tokenizer(at if at.is_dir() else at.parent)
        read = read_tf(at, vocab_size=tokenizer.vocab_size)
        model = Pretrained(read.architecture, read.heads, read.params, tokenizer, {}, read.files)
        return _Found(model, read.moments, read.global_step or 0)
    if is_hf(at):
        return _Found(read_hf(at, tokenizer=tokenizer))
    raise UserError(
        f"{at}: found no checkpoint, allowed: a Hugging Face directory (config.json and "
        f"model.safetensors) or a 2018 one (bert_model.ckpt.index and bert_config.json)"
    )


def _save(run_dir: Path, found: _Found) -> None:
    """Saves a checkpoint, the model in memory once and its largest array twice."""
    params = found.model.params
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    _to_device(params)
    with write_checkpoints(run_dir, ranked=False, save_bytes=largest + SLACK) as checkpointer:
        if found.moments is None:
            checkpointer.save_params(params, step=found.step)
        else:
            state = _training_state(found.model, found.moments, step=found.step)
            checkpointer.save(state, step=found.step, progress={IMPORTED: True})


def _training_state(model: Pretrained, moments: MomentsState, *, step: int) -> TrainState:
    """Returns what a run of ours would have saved at that step."""
    config = RunConfig()
    for part in moments:
        _to_device(part)
    # LAMB alone asks for the axes, and the learning rate is no part of the state.
    optimizer = make_optimizer(config.optimizer, optax.constant_schedule(0.0), axes=None)
    fresh = jax.eval_shape(optimizer.init, model.params)
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        rng=run_key(config.seed),
        params=model.params,
        opt_state=with_moments(fresh, moments, step=step),
        healthy=jnp.ones((), jnp.bool_),
    )


def _to_device(params: dict[str, Any]) -> None:
    """Replaces NumPy's arrays by JAX's one at a time; of NumPy's Orbax would make copies."""
    for name, value in params.items():
        if isinstance(value, dict):
            _to_device(value)
        else:
            params[name] = jax.device_put(value, jax.devices("cpu")[0])


def _model_section(found: Pretrained) -> ModelSection:
    """Returns the model's settings: float32, as the numbers were written."""
    return ModelSection.of(
        found.architecture, execution=Execution(dtype="float32"), heads=found.heads
    )


def _origin(directory: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Returns where the numbers came from, so that they can be told from others' later."""
    return {
        "directory": str(directory),
        "sha256": {path.name: _sha256(path) for path in sorted(files)},
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
