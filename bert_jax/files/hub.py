"""Hugging Face's hub, or any server that ``HF_ENDPOINT`` names: the client, and files of datasets.

`huggingface_hub` has a cache, goes offline with ``HF_HUB_OFFLINE=1`` and finds a token by itself
(``HF_TOKEN``, `hf auth login`): none passes through here.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError, first_line, not_installed
from bert_jax.files.read import sha256_of
from bert_jax.narration import doing
from bert_jax.places import DATASETS

_WORD: Final = r"[A-Za-z0-9][\w.-]*"
_FILE: Final = re.compile(
    rf"{DATASETS}(?P<name>{_WORD}/{_WORD})(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?"
)
# Words in the name of a file, by its role.
_ROLES: Final = {"train": ("train",), "dev": ("dev", "validation", "valid", "val")}
_SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".parquet", ".json", ".txt", ".conll")


class HubFile(NamedTuple):
    """A local copy of a dataset's file at one commit."""

    dataset: str  # owner/name
    revision: str  # of the commit: 40 hexadecimal digits
    file: str  # in the dataset
    path: Path

    @property
    def pinned(self) -> str:
        """The name under which this very file is found."""
        return f"{DATASETS}{self.dataset}@{self.revision}/{self.file}"

    @property
    def record(self) -> dict[str, str]:
        """Its entry in provenance.json."""
        return {"hub": self.pinned, "sha256": sha256_of(self.path)}


def is_dataset_file(source: str) -> bool:
    """Says whether a path names a dataset on a hub, or a file of one."""
    return source.startswith(DATASETS)


def fetch_file(source: str, *, role: str = "train") -> HubFile:
    """Downloads ``hf://datasets/owner/name@revision/FILE``, or finds it in the cache.

    The revision is optional. Without a file it is the one table whose name has the role in it:
    "train", "dev" or "test". Raises UserError for no such dataset, revision or file, no access, no
    answer, or without `huggingface_hub`.
    """
    hub, match = library(), _FILE.fullmatch(source)
    if match is None:
        raise UserError(f"{source}: allowed: {DATASETS}OWNER/NAME, @REVISION and /FILE after it")
    name, revision, file = match["name"], match["revision"], match["file"]
    words = _ROLES.get(role, (role,))
    patterns = [file] if file else [f"*{word}*{end}" for word in words for end in _SUFFIXES]
    with doing(f"fetching {name}"), in_one_line(name, revision or "", kind="dataset"):
        directory = Path(
            hub.snapshot_download(
                name,
                repo_type="dataset",
                revision=revision,
                allow_patterns=patterns,
                endpoint=endpoint(),
            )
        )
    found = [file] if file else _tables(directory, words)
    if len(found) != 1 or not (directory / found[0]).is_file():
        several = f"found {', '.join(found)}" if len(found) > 1 else "found no such file"
        wanted = file or f"one table with {' or '.join(words)} in its name"
        raise UserError(f"{source}: {several}, allowed: {wanted}, or {DATASETS}{name}/FILE")
    return HubFile(name, directory.name, found[0], directory / found[0])


def _tables(directory: Path, words: tuple[str, ...]) -> list[str]:
    """Returns the tables below a directory that have one of the words in their names."""
    return [
        path.relative_to(directory).as_posix()
        for path in sorted(directory.rglob("*"))
        if path.suffix in _SUFFIXES and {*words} & {*re.split(r"[^a-z0-9]+", path.stem.lower())}
    ]


def library() -> Any:
    """Returns the client. Raises UserError if it is not installed."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise not_installed("huggingface_hub", "a model's name", extra="hub") from error
    return huggingface_hub


def endpoint() -> str:
    """Returns the server's address."""
    # Read now: the library reads it when it is first imported.
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


@contextlib.contextmanager
def in_one_line(name: str, revision: str, *, kind: str = "model") -> Iterator[None]:
    """Turns the library's errors into a UserError of one line, without a token.

    `name` is ``owner/name``, `revision` empty for the newest, `kind` "model" or "dataset".
    """
    from huggingface_hub import errors

    where = endpoint()
    here = "found no such directory here, and no" if kind == "model" else "found no"
    cached = "found no such directory here, nothing" if kind == "model" else "found nothing"
    try:
        yield
    except errors.GatedRepoError:
        page = f"{where}/{name}" if kind == "model" else f"{where}/{kind}s/{name}"
        raise UserError(
            f"{name}: its owner gives access on request; allowed: accepting the terms at "
            f"{page}, then `hf auth login` or HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: found no revision {revision} on {where}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name}: {here} such {kind} on {where} that may be seen without a login "
            "(`hf auth login` or HF_TOKEN)"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        why = "HF_HUB_OFFLINE is set" if offline else f"{where} does not answer"
        raise UserError(f"{name}: {cached} in the cache, and {why}") from None
    except errors.HFValidationError as error:
        raise UserError(f"{name}: {first_line(error)}") from None
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", "an error")
        hint = "; allowed: `hf auth login` or HF_TOKEN" if code in (401, 403) else ""
        raise UserError(f"{name}: {where} answered {code}{hint}") from None
    except errors.HTTPError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise UserError(f"{name}: {where} does not answer ({first_line(error)})") from None
