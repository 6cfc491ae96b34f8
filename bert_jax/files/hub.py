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
from bert_jax.files.read import no_such_file, sha256_of
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
        raise UserError(
            "hub.dataset_name",
            "not the name of a dataset, allowed: {allowed}",
            place=source,
            allowed=f"{DATASETS}OWNER/NAME[@REVISION][/FILE]",
        )
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
        if file:
            raise no_such_file(source)
        raise UserError(
            "hub.tables",
            "found {found}, allowed: one table with {words:or} in its name. Name a file: {form}.",
            place=source,
            found=found or "none",
            words=words,
            form=f"{DATASETS}{name}/FILE",
        )
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

    server = endpoint()
    here = ["here"] if kind == "model" else []  # a model's name may be a directory's
    try:
        yield
    except errors.GatedRepoError:
        page = f"{server}/{name}" if kind == "model" else f"{server}/{kind}s/{name}"
        raise UserError(
            "hub.gated",
            "its owner grants access on request. Accept the terms at {page}, then run `hf auth "
            "login` or set HF_TOKEN.",
            place=name,
            page=page,
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(
            "hub.revision",
            "no revision {found} on {server}",
            place=name,
            found=revision,
            server=server,
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            "hub.not_found",
            "no such {what} {searched:or}. If it is private, run `hf auth login` or set HF_TOKEN.",
            place=name,
            what=kind,
            searched=[*here, f"on {server}"],
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        searched = [*here, "in the cache"]
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UserError(
                "hub.offline",
                "no such {what} {searched:or}, and HF_HUB_OFFLINE is set",
                place=name,
                what=kind,
                searched=searched,
            ) from None
        raise UserError(
            "hub.not_cached",
            "no such {what} {searched:or}, and {server} does not answer",
            place=name,
            what=kind,
            searched=searched,
            server=server,
        ) from None
    except errors.HFValidationError as error:
        raise UserError("hub.name", "{reason}", place=name, reason=first_line(error)) from None
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", "an error")
        hint = ". Run `hf auth login` or set HF_TOKEN." if code in (401, 403) else ""
        raise UserError(
            "hub.response",
            "{server} answered {status}{hint}",
            place=name,
            server=server,
            status=code,
            hint=hint,
        ) from None
    except errors.HTTPError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise UserError(
            "hub.no_answer",
            "{server} does not answer ({reason})",
            place=name,
            server=server,
            reason=first_line(error),
        ) from None
