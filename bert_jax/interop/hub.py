"""Models by name on Hugging Face's hub, or on any server that ``HF_ENDPOINT`` names.

`huggingface_hub` keeps what it fetches in its cache, goes offline with ``HF_HUB_OFFLINE=1`` and
finds a token by itself (``HF_TOKEN``, `hf auth login`): none passes through here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError, first_line
from bert_jax.narration import doing

SCHEME: Final = "hf://"
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
    if text.startswith(SCHEME):
        return True
    path = Path(text)
    here = path.exists() or path.parent.is_dir()
    return _NAME.fullmatch(text) is not None and not here


def fetch(source: str | os.PathLike[str]) -> Snapshot:
    """Downloads a model's configuration, tokenizer and weights, or finds them in the cache.

    Args:
        source: ``owner/name``, with ``@`` a branch, a tag or a commit.

    Raises:
        UserError: no such name or revision, no access, no answer, or `huggingface_hub` is missing.
    """
    name, _, revision = str(source).removeprefix(SCHEME).partition("@")
    hub = _library()
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{source}: allowed: owner/name of a model, or owner/name@revision")
    with doing(f"fetching {name}"), _in_one_line(name, revision):
        directory = Path()
        for weights in _WEIGHTS:
            # The second time the commit that the first one found, lest it has moved.
            found = hub.snapshot_download(
                name,
                revision=directory.name or revision or None,
                allow_patterns=[*_FILES, *weights],
                endpoint=_endpoint(),
            )
            directory = Path(found)
            if any(file for pattern in weights for file in directory.glob(pattern)):
                break
    return Snapshot(name, directory.name, directory)


def push(directory: Path, name: str, *, private: bool, message: str) -> str:
    """Uploads a directory as a model, which is made if it is not there.

    Args:
        directory: its files become those of the model; files it lacks stay.
        name: ``owner/name``.
        private: whether a new one is.
        message: of the commit.

    Returns:
        The commit's address.

    Raises:
        UserError: no such name, no token, no access, no answer.
    """
    hub = _library()
    name = name.removeprefix(SCHEME)
    if _NAME.fullmatch(name) is None or "@" in name:
        raise UserError(f'--push: found "{name}", allowed: owner/name')
    with doing(f"pushing to {name}"), _in_one_line(name, ""):
        api = hub.HfApi(endpoint=_endpoint())
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=directory, commit_message=message)
    return str(commit.commit_url)


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(
            "huggingface_hub: not installed, and models are found by name with it; allowed: "
            "pip install 'bert-jax[hub]'"
        ) from error
    return huggingface_hub


def _endpoint() -> str:
    # Read now: the library reads it when it is first imported.
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


@contextlib.contextmanager
def _in_one_line(name: str, revision: str) -> Iterator[None]:
    """Turns the library's errors into one line; none of them holds a token."""
    from huggingface_hub import errors

    where = _endpoint()
    try:
        yield
    except errors.GatedRepoError:
        raise UserError(
            f"{name}: its owner gives access on request; allowed: accepting the terms at "
            f"{where}/{name}, then `hf auth login` or HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: found no revision {revision} on {where}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name}: found no such directory here, and no such model on {where} that may be seen "
            f"without a login (`hf auth login` or HF_TOKEN)"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        why = "HF_HUB_OFFLINE is set" if offline else f"{where} does not answer"
        raise UserError(
            f"{name}: found no such directory here, nothing in the cache, and {why}"
        ) from None
    except errors.HFValidationError as error:
        raise UserError(f"{name}: {first_line(error)}") from None
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", "an error")
        hint = "; allowed: `hf auth login` or HF_TOKEN" if code in (401, 403) else ""
        raise UserError(f"{name}: {where} answered {code}{hint}") from None
    except errors.HTTPError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise UserError(f"{name}: {where} does not answer ({first_line(error)})") from None
