"""Finds other programs' checkpoints by name: on a hub or in a local directory. Needs no JAX.

The hub is Hugging Face, or the server at ``HF_ENDPOINT``. A pinned name identifies the contents:
``owner/name@COMMIT``, ``models/mine@SHA256``.
"""

import glob
import json
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.errors import UserError, differing
from bert_jax.files.atomic import restore_replaced
from bert_jax.files.hub import endpoint, in_one_line, library
from bert_jax.files.read import sha256_of_files
from bert_jax.files.remote import is_remote
from bert_jax.narration import doing
from bert_jax.places import MODELS

CONFIGS: Final = ("config.json", "bert_config.json")
"""Configurations of other programs' checkpoints."""
MODULES: Final = "modules.json"
"""The list of modules of sentence-transformers."""
ADAPTER: Final = "adapter_config.json"
"""The configuration of a PEFT adapter, which an import refuses."""
GENERATOR_CONFIG: Final = "generator_config.json"
"""The configuration of the generator of pretraining, beside the model's: as of DeBERTaV3."""
_TOKENIZER: Final = (
    *("vocab.txt", "vocab.json", "merges.txt", "*.model"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json"),
)
# Files of sentence-transformers: the list of modules, and the modules beside the encoder.
_MODULES: Final = (
    *(MODULES, "config_sentence_transformers.json", "sentence_*_config.json"),
    *("*_Pooling/config.json", "*_Dense/config.json", "*_Normalize/config.json"),
    "*_MultiVectorMask/config.json",
    *("*_Dense/model.safetensors", "*_Dense/pytorch_model.bin"),
)
_BESIDE: Final = (GENERATOR_CONFIG, ADAPTER, *_TOKENIZER, *_MODULES)
_USUAL: Final = (
    "_Pooling",
    "_Dense",
    "_Normalize",
    "_MultiVectorMask",
)  # ends of folders that `_MODULES` has
# Patterns of weight files, in the order in which the readers look for them.
_TF_WEIGHTS: Final = ("*.index", "*.data-*-of-*")
_HF_WEIGHTS: Final = (
    ("model*.safetensors*",),
    ("pytorch_model*",),
    ("flax_model*.msgpack*",),
)
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_PINNED: Final = re.compile(r"(?P<path>.+)@(?P<sha256>[0-9a-f]{64})")


class Source(NamedTuple):
    """A checkpoint on this machine."""

    directory: Path
    pinned: str  # name with the commit or the hash of the contents
    cached_as: str  # name of the imported run in the user's cache
    record: dict[str, str]  # entries for provenance.json: hub name and revision


def is_hub_name(source: str | os.PathLike[str]) -> bool:
    """Returns whether a source is a model on a hub: ``hf://owner/name``, ``owner/name@revision``.

    A path that exists, or whose parent directory exists, is not a hub name.
    """
    text = str(source)
    if text.startswith(MODELS):
        return True
    path = Path(text)
    here = path.exists() or path.parent.is_dir()
    return _HUB_NAME.fullmatch(text) is not None and not here


def fetch(source: str | os.PathLike[str]) -> Source:
    """Downloads a model's configuration, tokenizer and weights, or finds them in the cache.

    The source is ``owner/name`` or ``owner/name@revision``; a revision is a branch, tag or commit.
    Raises UserError if the name or revision does not exist, access is denied, the hub does not
    answer, or `huggingface_hub` is not installed.
    """
    name, _, revision = str(source).removeprefix(MODELS).partition("@")
    hub = library()
    if _HUB_NAME.fullmatch(name) is None:
        raise UserError(
            "hub.model_name", "allowed: owner/name or owner/name@revision", place=source
        )
    directory = Path()
    with doing(f"fetching {name}"), in_one_line(name, revision):
        for weights in _HF_WEIGHTS:
            found = hub.snapshot_download(
                name,
                # The second request uses the commit of the first: the branch may have moved.
                revision=directory.name or revision or None,
                allow_patterns=[CONFIGS[0], *_BESIDE, *weights],
                endpoint=endpoint(),
            )
            directory = Path(found)
            if _matching(directory, weights):
                break
        if folders := _other_folders(directory):
            hub.snapshot_download(
                name, revision=directory.name, allow_patterns=folders, endpoint=endpoint()
            )
    pinned = f"{name}@{directory.name}"
    record = {"hub": name, "revision": directory.name}
    return Source(directory, pinned, pinned.replace("/", "--"), record)


def push_name(name: str) -> str:
    """Returns the name of a model to upload. Raises UserError if it is not ``owner/name``."""
    name = name.removeprefix(MODELS)
    if _HUB_NAME.fullmatch(name) is None or "@" in name:
        raise UserError.wrong("hub.push_name", f'"{name}"', "owner/name", place="--push")
    return name


def push(directory: Path, name: str, *, private: bool, message: str) -> str:
    """Uploads a directory as a model and returns the URL of the commit.

    If the model does not exist, creates it; `private` has no effect on an existing model. Other
    files of the model are not deleted. Raises UserError if the name is invalid, there is no token,
    access is denied, or the hub does not answer.
    """
    hub, name = library(), push_name(name)
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
    """Returns whether a path, pinned or not, is another program's checkpoint.

    A directory with a config.yaml is always a bert_jax run.
    """
    text = str(source)
    if is_remote(text):
        return False
    restore_replaced(text)
    directory = Path(text)
    if (match := _PINNED.fullmatch(text)) and not directory.exists():
        return not (Path(match["path"]) / "config.yaml").exists()
    names = (*CONFIGS, MODULES, ADAPTER)
    has_files = any((directory / name).is_file() for name in names) or _is_tf(directory)
    return has_files and not (directory / "config.yaml").exists()


def _is_tf(directory: Path) -> bool:
    # If the configuration is missing, the import says so.
    return bool(_matching(directory, _TF_WEIGHTS[:1]))


def identify(source: str, *, cached: Path) -> Source:
    """Returns the checkpoint at a path, pinned by a hash of its contents.

    `cached` is the directory of imported runs. If `cached` has the run of a pinned source, the
    source is not read and need not exist. Raises UserError if there is no directory, or its
    contents differ from the pinned contents.
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
            f"its contents have the hash {there}. Omit @{asked} to import them.",
            place=directory,
        )
    return named(found)


def _sha256(directory: Path) -> str:
    """Returns a hash of the names and contents of the files that an import reads."""
    forms = (_matching(directory, patterns) for patterns in (_TF_WEIGHTS, *_HF_WEIGHTS))
    weights = next(filter(None, forms), set[Path]())
    others = (*CONFIGS, *_BESIDE, *_other_folders(directory))
    read = weights | _matching(directory, others)
    return sha256_of_files({file.relative_to(directory).as_posix(): file for file in read})


def is_folder_name(text: str) -> bool:
    """Returns whether a text names a folder beside a file, or nothing: ``1_Pooling``."""
    return text not in (".", "..") and not {"/", "\\"} & set(text)


def _other_folders(directory: Path) -> list[str]:
    """Returns patterns for the files of modules in folders that `_MODULES` lacks: an encoder's.

    If modules.json is damaged, an import reports it.
    """
    try:
        listed = json.loads((directory / MODULES).read_bytes())
        paths = {str(module["path"]) for module in listed}
    except (OSError, ValueError, TypeError, KeyError):
        return []
    chosen = (path for path in paths if path and is_folder_name(path))
    return sorted(f"{glob.escape(path)}/*" for path in chosen if not path.endswith(_USUAL))


def _matching(directory: Path, patterns: tuple[str, ...]) -> set[Path]:
    return {file for pattern in patterns for file in directory.glob(pattern) if file.is_file()}
