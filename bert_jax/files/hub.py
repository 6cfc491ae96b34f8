"""Downloads files of datasets from Hugging Face's hub or the server in ``HF_ENDPOINT``.

`huggingface_hub` has its own cache and works offline with ``HF_HUB_OFFLINE=1``. It finds the token
itself (``HF_TOKEN``, `hf auth login`); this module never reads the token.
"""

import contextlib
import fnmatch
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError, commas, first_line, not_installed, one_of
from bert_jax.files.download import local_copy
from bert_jax.files.read import no_such_file, sha256_of, sha256_of_files
from bert_jax.narration import doing
from bert_jax.places import DATASETS

_WORD: Final = r"[A-Za-z0-9][\w.-]*"
_FILE: Final = re.compile(
    rf"{DATASETS}(?P<name>{_WORD}/{_WORD})(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?"
)
# Words in file names that identify the role.
_ROLES: Final = {"train": ("train",), "dev": ("dev", "validation", "valid", "val")}
_SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".parquet", ".json", ".txt", ".conll")


class HubFile(NamedTuple):
    """A local copy of a file in a dataset, at one commit."""

    dataset: str  # owner/name
    revision: str  # commit, 40 hexadecimal digits
    file: str  # path in the dataset; of a folder or a set, see `fetch_file`
    path: Path

    @property
    def pinned(self) -> str:
        """``hf://`` path of this file with its commit."""
        return f"{DATASETS}{self.dataset}@{self.revision}/{self.file}"

    @property
    def record(self) -> dict[str, str]:
        """Entry of the file in provenance.json."""
        root = Path(str(self.path).removesuffix(self.file))
        files = {str(path.relative_to(root)): path for path in _found(root, self.file)}
        alone = files.get(self.file)
        found = sha256_of_files(files) if alone is None else sha256_of(alone)
        return {"hub": self.pinned, "sha256": found}


def is_dataset_file(source: str) -> bool:
    """Returns whether a path names a dataset on a hub, or a file in a dataset."""
    return source.startswith(DATASETS)


def local_file(path: str, *, role: str = "train") -> Path:
    """Returns a local copy of a file on a hub or in a bucket. A local path stays as it is.

    Raises as `fetch_file` and `local_copy`.
    """
    return fetch_file(path, role=role).path if is_dataset_file(path) else local_copy(path)


def fetch_file(source: str, *, role: str = "train") -> HubFile:
    """Downloads ``hf://datasets/owner/name@revision/FILE``, or finds it in the cache.

    The revision is optional. If FILE is omitted, uses the only table whose name contains the role:
    "train", "dev" or "test". FILE may also be a folder, or a set whose tables are in several
    folders: ``NanoNQ`` for ``corpus/NanoNQ-00000-of-00001.parquet`` and others. Raises UserError if
    the dataset, revision or file does not exist or is not accessible, the hub does not answer, or
    `huggingface_hub` is not installed.
    """
    hub = library()
    name, revision, file = _named(source)
    words = _ROLES.get(role, (role,))
    patterns = (
        _patterns(file) if file else [f"*{word}*{end}" for word in words for end in _SUFFIXES]
    )
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
    if len(found) != 1 or not _found(directory, found[0]):
        if file:
            raise no_such_file(source)
        raise UserError(
            "hub.tables",
            f"found {commas(found)}, allowed: one {one_of(words)}. Name it: {DATASETS}{name}/FILE.",
            place=source,
        )
    return HubFile(name, directory.name, found[0], directory / found[0])


def _patterns(file: str) -> list[str]:
    folder, _, name = f"/{file}".rpartition("/")
    return [file, f"{file}/*", f"{folder}/*/{name}-*.parquet".lstrip("/")]


def _found(root: Path, file: str) -> list[Path]:
    """Returns the local copies of a file, a folder or a set."""
    paths = (path for pattern in _patterns(file) for path in sorted(root.glob(pattern)))
    return [path for path in paths if path.is_file()]


def dataset_files(pattern: str) -> dict[str, int]:
    """Returns the sizes in bytes of the files of a dataset that match a glob, by ``hf://`` path.

    ``dataset_files("hf://datasets/owner/name/data/*.parquet")``. Without a glob, returns all files.
    Every path has the commit. Raises UserError as `fetch_file`.
    """
    api = library().HfApi(endpoint=endpoint())
    name, revision, glob = _named(pattern)
    with doing(f"listing {name}"), in_one_line(name, revision or "", kind="dataset"):
        commit = api.dataset_info(name, revision=revision).sha
        tree = api.list_repo_tree(name, repo_type="dataset", revision=commit, recursive=True)
        sizes = {each.path: each.size for each in tree if getattr(each, "size", None) is not None}
    return {
        f"{DATASETS}{name}@{commit}/{path}": size
        for path, size in sorted(sizes.items())
        if glob is None or fnmatch.fnmatch(path, glob) or path.startswith(f"{glob.rstrip('/')}/")
    }


@contextlib.contextmanager
def temporary_copy(path: str) -> Iterator[Path]:
    """Yields a local copy of a dataset's file. Deletes it after the block.

    Raises UserError as `fetch_file`.
    """
    name, revision, file = _named(path)
    with tempfile.TemporaryDirectory(prefix="bert_jax_hub_") as directory:
        with in_one_line(name, revision or "", kind="dataset"):
            found = library().hf_hub_download(
                name,
                file,
                repo_type="dataset",
                revision=revision,
                local_dir=directory,
                endpoint=endpoint(),
            )
        yield Path(found)


def _named(source: str) -> tuple[str, str | None, str | None]:
    """Returns name, revision and file of a dataset's path."""
    match = _FILE.fullmatch(source)
    if match is None:
        raise UserError(
            "hub.dataset_name",
            f"not the name of a dataset, allowed: {DATASETS}OWNER/NAME[@REVISION][/FILE]",
            place=source,
        )
    return match["name"], match["revision"], match["file"]


def _tables(directory: Path, words: tuple[str, ...]) -> list[str]:
    """Returns the tables in a directory tree whose names contain one of the words."""
    return [
        path.relative_to(directory).as_posix()
        for path in sorted(directory.rglob("*"))
        if path.suffix in _SUFFIXES and {*words} & {*re.split(r"[^a-z0-9]+", path.stem.lower())}
    ]


def library() -> Any:
    """Returns the module `huggingface_hub`. Raises UserError if it is not installed."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise not_installed("huggingface_hub", "a model's name", extra="hub") from error
    return huggingface_hub


def endpoint() -> str:
    """Returns the URL of the hub."""
    # Read the variable here, because the library reads it only at import.
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


@contextlib.contextmanager
def in_one_line(name: str, revision: str, *, kind: str = "model") -> Iterator[None]:
    """Turns errors of the library into one-line UserErrors that contain no token.

    `name` is ``owner/name``. `revision` may be empty. `kind` is "model" or "dataset".
    """
    from huggingface_hub import errors

    server = endpoint()
    here = ["here"] if kind == "model" else []  # the user may mean a local directory
    try:
        yield
    except errors.GatedRepoError:
        page = f"{server}/{name}" if kind == "model" else f"{server}/{kind}s/{name}"
        raise UserError(
            "hub.gated",
            f"access needs a grant. Accept the terms at {page}, then run `hf auth login`.",
            place=name,
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError("hub.revision", f"no revision {revision} on {server}", place=name) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            "hub.not_found",
            f"no such {kind} {one_of([*here, f'on {server}'])}. If it is private, set HF_TOKEN.",
            place=name,
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        searched = [*here, "in the cache"]
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UserError(
                "hub.offline",
                f"no such {kind} {one_of(searched)}, and HF_HUB_OFFLINE is set",
                place=name,
            ) from None
        raise UserError(
            "hub.not_cached",
            f"no such {kind} {one_of(searched)}, and {server} does not answer",
            place=name,
        ) from None
    except errors.HFValidationError as error:
        raise UserError("hub.name", f"{first_line(error)}", place=name) from None
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", "an error")
        hint = ". Run `hf auth login` or set HF_TOKEN." if code in (401, 403) else ""
        raise UserError("hub.response", f"{server} answered {code}{hint}", place=name) from None
    except errors.HTTPError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise UserError(
            "hub.no_answer", f"{server} does not answer ({first_line(error)})", place=name
        ) from None
