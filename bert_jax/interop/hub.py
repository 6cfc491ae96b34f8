"""Models by name on Hugging Face's hub, or on any server that ``HF_ENDPOINT`` names."""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.errors import UserError
from bert_jax.files.hub import endpoint, in_one_line, library
from bert_jax.narration import doing
from bert_jax.places import MODELS

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_FILES: Final = ("config.json", "vocab.txt", "tokenizer*.json", "special_tokens_map.json")
_WEIGHTS: Final = (("model*.safetensors*",), ("pytorch_model*.bin*",))  # the first that is there


class Snapshot(NamedTuple):
    """A model as it was at one commit, on this machine."""

    name: str  # owner/name
    revision: str  # of the commit: 40 hexadecimal digits
    directory: Path

    @property
    def pinned(self) -> str:
        """The name under which this very commit is found: ``owner/name@revision``."""
        return f"{self.name}@{self.revision}"

    @property
    def record(self) -> dict[str, str]:
        """What provenance.json says of it."""
        return {"hub": self.name, "revision": self.revision}


def is_hub_name(source: str | os.PathLike[str]) -> bool:
    """Says whether a source names a model on a hub: ``hf://owner/name``, ``owner/name@revision``.

    A path that is there is a path, and so is one in a folder that is there.
    """
    text = str(source)
    if text.startswith(MODELS):
        return True
    path = Path(text)
    here = path.exists() or path.parent.is_dir()
    return _NAME.fullmatch(text) is not None and not here


def fetch(source: str | os.PathLike[str]) -> Snapshot:
    """Downloads a model's configuration, tokenizer and weights, or finds them in the cache.

    The source is ``owner/name``, with ``@`` a branch, a tag or a commit. Raises UserError: no such
    name or revision, no access, no answer, or `huggingface_hub` is missing.
    """
    name, _, revision = str(source).removeprefix(MODELS).partition("@")
    hub = library()
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{source}: allowed: owner/name of a model, or owner/name@revision")
    with doing(f"fetching {name}"), in_one_line(name, revision):
        directory = Path()
        for weights in _WEIGHTS:
            # The second time the commit that the first one found, lest it has moved.
            found = hub.snapshot_download(
                name,
                revision=directory.name or revision or None,
                allow_patterns=[*_FILES, *weights],
                endpoint=endpoint(),
            )
            directory = Path(found)
            if any(file for pattern in weights for file in directory.glob(pattern)):
                break
    return Snapshot(name, directory.name, directory)


def push(directory: Path, name: str, *, private: bool, message: str) -> str:
    """Uploads a directory as a model, which is made if it is not there.

    Files that the model has and the directory lacks stay. A new model is `private` or not;
    `message` is that of the commit, whose address is returned. Raises UserError: no such name, no
    token, no access, no answer.
    """
    hub = library()
    name = name.removeprefix(MODELS)
    if _NAME.fullmatch(name) is None or "@" in name:
        raise UserError(f'--push: found "{name}", allowed: owner/name')
    with doing(f"pushing to {name}"), in_one_line(name, ""):
        api = hub.HfApi(endpoint=endpoint())
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=directory, commit_message=message)
    return str(commit.commit_url)
