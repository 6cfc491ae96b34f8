"""Another program's checkpoint in a local directory, named by what is in it. Needs no JAX."""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.errors import UserError, differing
from bert_jax.files.read import sha256_of_files
from bert_jax.files.remote import is_remote
from bert_jax.narration import doing

_CONFIGS: Final = ("config.json", "bert_config.json")
_TOKENIZER: Final = ("vocab.txt", "tokenizer*.json", "special_tokens_map.json", "*.model")
# Of several forms of the weights the first that is there, as the readers choose.
_WEIGHTS: Final = (("bert_model.ckpt*", "*.index"), ("model*.safetensors*",), ("pytorch_model*",))
_PINNED: Final = re.compile(r"(?P<path>.+)@(?P<sha256>[0-9a-f]{64})")


class LocalCheckpoint(NamedTuple):
    """A Hugging Face or google-research/bert directory, and what was in it."""

    path: str  # as it was given
    sha256: str  # over its files' names and contents

    @property
    def pinned(self) -> str:
        """The name of just these contents: ``models/mine@SHA256``."""
        return f"{self.path}@{self.sha256}"


def is_checkpoint(source: str | os.PathLike[str]) -> bool:
    """Says whether a path is a checkpoint of another program, or such a path pinned.

    A directory with a config.yaml is a run, whatever else lies in it.
    """
    text = str(source)
    if is_remote(text):
        return False
    directory = Path(text)
    if (match := _PINNED.fullmatch(text)) and not directory.exists():
        return not (Path(match["path"]) / "config.yaml").exists()
    has_config = any((directory / name).is_file() for name in _CONFIGS)
    return has_config and not (directory / "config.yaml").exists()


def identify(source: str, *, cached: Path) -> LocalCheckpoint:
    """Returns a checkpoint, one that `is_checkpoint` knows, by its contents.

    `cached` is the directory of what was imported before, by `cache_name`: a pinned source that is
    there is not read again, and may be gone. Raises UserError: nothing there, or other contents
    than the pinned ones.
    """
    pinned = None if Path(source).exists() else _PINNED.fullmatch(source)
    path = pinned["path"] if pinned else source
    if pinned and (cached / cache_name(found := LocalCheckpoint(path, pinned["sha256"]))).exists():
        return found
    if not Path(path).is_dir():
        raise UserError(f"{path}: no such directory; expected a checkpoint")
    with doing(f"reading {path}"):
        found = LocalCheckpoint(path, _sha256(Path(path)))
    if pinned and found.sha256 != pinned["sha256"]:
        there, asked = differing(found.sha256, pinned["sha256"])
        raise UserError(
            f"{path}: found other contents ({there}) than those after @ ({asked}), allowed: "
            f"{path} without @"
        )
    return found


def cache_name(checkpoint: LocalCheckpoint) -> str:
    """Returns the name of its run in the user's cache."""
    return f"{Path(checkpoint.path).resolve().name}@{checkpoint.sha256}"


def _sha256(directory: Path) -> str:
    """Returns a digest of the names and contents of what an import reads."""
    weights = next(
        (found for patterns in _WEIGHTS if (found := _matching(directory, patterns))), set[Path]()
    )
    read = weights | _matching(directory, (*_CONFIGS, *_TOKENIZER))
    return sha256_of_files({file.name: file for file in read})


def _matching(directory: Path, patterns: tuple[str, ...]) -> set[Path]:
    return {file for pattern in patterns for file in directory.glob(pattern) if file.is_file()}
