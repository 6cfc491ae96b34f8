"""Other programs' checkpoints by name: models of a hub, and local directories. Needs no JAX.

The hub is Hugging Face's, or any server that ``HF_ENDPOINT`` names. A pinned name stands for just
these contents: ``owner/name@COMMIT``, ``models/mine@SHA256``.
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.errors import UserError, differing
from bert_jax.files.hub import endpoint, in_one_line, library
from bert_jax.files.read import sha256_of_files
from bert_jax.files.remote import is_remote
from bert_jax.narration import doing
from bert_jax.places import MODELS

_CONFIGS: Final = ("config.json", "bert_config.json")
_TOKENIZER: Final = ("vocab.txt", "tokenizer*.json", "special_tokens_map.json", "*.model")
# The readers choose the first of these forms of weights that is there.
_TF_WEIGHTS: Final = ("bert_model.ckpt*", "*.index")
_HF_WEIGHTS: Final = (("model*.safetensors*",), ("pytorch_model*",))
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_PINNED: Final = re.compile(r"(?P<path>.+)@(?P<sha256>[0-9a-f]{64})")


class Source(NamedTuple):
    """A checkpoint on this machine."""

    directory: Path
    pinned: str
    cached_as: str  # name of its run in the user's cache
    record: dict[str, str]  # what provenance.json says of a hub


def is_hub_name(source: str | os.PathLike[str]) -> bool:
    """Says whether a source names a model on a hub: ``hf://owner/name``, ``owner/name@revision``.

    An existing path is a path, and so is a path in an existing folder.
    """
    text = str(source)
    if text.startswith(MODELS):
        return True
    path = Path(text)
    here = path.exists() or path.parent.is_dir()
    return _HUB_NAME.fullmatch(text) is not None and not here


def fetch(source: str | os.PathLike[str]) -> Source:
    """Downloads a model's configuration, tokenizer and weights, or finds them in the cache.

    The source is ``owner/name``, with ``@`` a branch, a tag or a commit. Raises UserError: no such
    name or revision, no access, no answer, or `huggingface_hub` is missing.
    """
    name, _, revision = str(source).removeprefix(MODELS).partition("@")
    hub = library()
    if _HUB_NAME.fullmatch(name) is None:
        raise UserError(
            "hub.model_name", "allowed: owner/name of a model, or owner/name@revision", place=source
        )
    directory = Path()
    with doing(f"fetching {name}"), in_one_line(name, revision):
        for weights in _HF_WEIGHTS:
            found = hub.snapshot_download(
                name,
                # The second request is for the commit of the first, in case the branch has moved.
                revision=directory.name or revision or None,
                allow_patterns=[_CONFIGS[0], *_TOKENIZER, *weights],
                endpoint=endpoint(),
            )
            directory = Path(found)
            if _matching(directory, weights):
                break
    pinned = f"{name}@{directory.name}"
    record = {"hub": name, "revision": directory.name}
    return Source(directory, pinned, pinned.replace("/", "--"), record)


def push(directory: Path, name: str, *, private: bool, message: str) -> str:
    """Uploads a directory as a model and returns the address of the commit.

    A model that does not exist is made, `private` or public. Files that the model has and the
    directory lacks stay. Raises UserError: no such name, no token, no access, no answer.
    """
    hub = library()
    name = name.removeprefix(MODELS)
    if _HUB_NAME.fullmatch(name) is None or "@" in name:
        raise UserError(
            "hub.push_name", 'found "{found}", allowed: owner/name', place="--push", found=name
        )
    with doing(f"pushing to {name}"), in_one_line(name, ""):
        api = hub.HfApi(endpoint=endpoint())
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=directory, commit_message=message)
    return str(commit.commit_url)


def no_directory(directory: os.PathLike[str]) -> UserError:
    """Returns the error for a missing checkpoint directory."""
    return UserError(
        "import.no_directory", "no such directory, expected: a checkpoint", place=directory
    )


def is_checkpoint(source: str | os.PathLike[str]) -> bool:
    """Says whether a path is another program's checkpoint, or such a path pinned.

    A directory with a config.yaml is a run, whatever else is in it.
    """
    text = str(source)
    if is_remote(text):
        return False
    directory = Path(text)
    if (match := _PINNED.fullmatch(text)) and not directory.exists():
        return not (Path(match["path"]) / "config.yaml").exists()
    has_config = any((directory / name).is_file() for name in _CONFIGS)
    return has_config and not (directory / "config.yaml").exists()


def identify(source: str, *, cached: Path) -> Source:
    """Returns a checkpoint that `is_checkpoint` knows, named by its contents.

    `cached` is the directory of imported runs. If it has the run of a pinned source, the source is
    not read again and need not exist. Raises UserError: nothing there, or other contents than the
    pinned ones.
    """
    pinned = None if Path(source).exists() else _PINNED.fullmatch(source)
    directory = Path(pinned["path"] if pinned else source)

    def named(sha256: str) -> Source:
        return Source(
            directory, f"{directory}@{sha256}", f"{directory.resolve().name}@{sha256}", {}
        )

    if pinned and (cached / named(pinned["sha256"]).cached_as).exists():
        return named(pinned["sha256"])
    if not directory.is_dir():
        raise no_directory(directory)
    with doing(f"reading {directory}"):
        found = _sha256(directory)
    if pinned and found != pinned["sha256"]:
        there, asked = differing(found, pinned["sha256"])
        raise UserError(
            "import.changed",
            "its contents have the hash {found}, but {expected} is pinned after @. Omit @ and the "
            "hash to import the new contents.",
            place=directory,
            found=there,
            expected=asked,
        )
    return named(found)


def _sha256(directory: Path) -> str:
    """Returns a digest of the names and contents of what an import reads."""
    forms = (_matching(directory, patterns) for patterns in (_TF_WEIGHTS, *_HF_WEIGHTS))
    weights = next(filter(None, forms), set[Path]())
    read = weights | _matching(directory, (*_CONFIGS, *_TOKENIZER))
    return sha256_of_files({file.name: file for file in read})


def _matching(directory: Path, patterns: tuple[str, ...]) -> set[Path]:
    return {file for pattern in patterns for file in directory.glob(pattern) if file.is_file()}
