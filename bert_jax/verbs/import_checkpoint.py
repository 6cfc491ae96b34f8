"""`bert-jax import`: a Hugging Face or 2018 TensorFlow checkpoint → a run directory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import jax
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.errors import UserError
from bert_jax.files import new_directory
from bert_jax.interop.hf import is_hf, read_hf
from bert_jax.interop.pretrained import Pretrained
from bert_jax.model.config import ModelSection
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.sections import CheckpointSection
from bert_jax.verbs.run_dir import CHECKPOINTS, describe, write_run

# Orbax wants room for more than one array is.
SLACK: Final = 1 << 20


def import_checkpoint(
    source: str,
    run_dir: str,
    *,
    tokenizer: str | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Path:
    """Writes an ordinary run directory from a checkpoint of another program.

    fill-mask, features, fine-tuning and export work on it as on a run of our own.

    Args:
        source: a local directory with a Hugging Face checkpoint.
        run_dir: a local directory that is not there yet.
        tokenizer: a tokenizer directory, for a checkpoint that brings none.
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
    directory = Path(source)
    if not directory.is_dir():
        raise UserError(f"{source}: found no such directory, allowed: a checkpoint directory")
    target = Path(run_dir)
    given = load_tokenizer(tokenizer) if tokenizer is not None else None
    with new_directory(target, force=force) as aside:
        found = _read(directory, given)
        step = 0
        write_run(
            epath.Path(aside),
            _config(found),
            run_dir=run_dir,
            architecture=found.architecture,
            tokenizer=found.tokenizer,
            origin={"imported_from": _origin(directory), "tensors_ignored": found.ignored},
        )
        save(aside / CHECKPOINTS, found.params, step=step)
    if console is not None:
        numbers = sum(leaf.size for leaf in jax.tree.leaves(found.params))
        console.print(
            f"{run_dir}: {numbers:,} parameters, {describe(found.heads)}, "
            f"{found.tokenizer.vocab_size:,} pieces",
            markup=False,
            soft_wrap=True,
        )
    return target


def save(directory: Path, params: dict[str, Any], *, step: int) -> None:
    """Saves parameters as a checkpoint, the model in memory once and its largest array twice.

    Args:
        directory: of the checkpoints.
        params: nested dict of arrays, replaced in place by JAX arrays.
        step: of the checkpoint.
    """
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    _to_device(params)
    with Checkpointer(
        directory, CheckpointSection(), best_metric=None, save_bytes=largest + SLACK
    ) as checkpointer:
        checkpointer.save_params(params, step=step)


def _to_device(params: dict[str, Any]) -> None:
    for name, value in params.items():
        if isinstance(value, dict):
            _to_device(value)
        else:
            params[name] = jax.device_put(value, jax.devices("cpu")[0])


def _read(directory: Path, tokenizer: Tokenizer | None) -> Pretrained:
    if is_hf(directory):
        return read_hf(directory, tokenizer=tokenizer)
    raise UserError(
        f"{directory}: found no checkpoint, allowed: a Hugging Face directory (config.json and "
        f"model.safetensors)"
    )


def _config(found: Pretrained) -> RunConfig:
    """A run's configuration: float32, as the numbers were written; `dtype` may be changed."""
    sizes = found.architecture.model_dump(exclude={"vocab_size"})
    return RunConfig(model=ModelSection(**sizes, dtype="float32", heads=found.heads))


def _origin(directory: Path) -> dict[str, Any]:
    """Returns where the numbers came from, so that they can be told from others' later."""
    return {
        "directory": str(directory),
        "sha256": {
            path.name: _sha256(path)
            for path in sorted(directory.iterdir())
            if path.is_file() and not path.name.startswith(".")
        },
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
