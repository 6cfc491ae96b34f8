"""Atomic writes: a reader finds all of a file or directory, or none; local or in a bucket."""

import contextlib
import errno
import glob
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Final

from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.remote import is_remote

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNFINISHED: Final = ".tmp"


def output_exists(path: os.PathLike[str]) -> UserError:
    """Returns the error for an output that only --force may replace."""
    return UserError(
        "output.exists", "exists already. Choose another path or add --force.", place=path
    )


@contextlib.contextmanager
def disk_errors(path: epath.PathLike) -> Iterator[None]:
    """Turns a full disk, a quota or a size limit into a ``UserError`` that names ``path``.

    A C++ writer may report them as the text of a ``RuntimeError``. Other errors pass.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = full_disk(error)
        if reason is None:
            raise
        raise UserError(
            "disk.full",
            "{reason} while writing. Make room and run the command again: finished parts are kept.",
            place=path,
            reason=reason.lower(),
        ) from error


@contextlib.contextmanager
def write_errors(path: epath.PathLike) -> Iterator[None]:
    """Turns any OSError of a block that only writes into a UserError that names ``path``."""
    try:
        with disk_errors(path):
            yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: epath.PathLike, error: OSError) -> UserError:
    """Returns the error for a place that refuses to be written to."""
    reason = error.strerror or str(error)
    return UserError("file.unwritable", "cannot be written ({reason})", place=path, reason=reason)


def full_disk(error: Exception) -> str | None:
    """Returns what an error says of a full disk: ``No space left on device``; None of another."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in _FULL else None
    return next((text for text in map(os.strerror, _FULL) if text in str(error)), None)


def why_not_written(error: Exception) -> str:
    """Returns in a few words why writing has failed: a full disk, or the error's first line."""
    return full_disk(error) or first_line(error)


def refusal_of(write: Callable[[], object]) -> str | None:
    """Writes something; returns in a few words why that failed, or None.

    Any error is a refusal: every storage has its own. An error of a library is named by its kind.
    """
    try:
        write()
    except Exception as error:
        ours = isinstance(error, OSError | UserError | RunStopped)
        return ("" if ours else f"{type(error).__name__}: ") + why_not_written(error)
    return None


class Attempts:
    """Attempts to write to one place, with one line for each time that it begins to refuse."""

    def __init__(self, place: object, *, say: Callable[[str], None]) -> None:
        """`say` gets a line when the place begins to refuse, and no other until it has taken it."""
        self._place, self._say = place, say
        self._refused = False

    def succeeds(self, write: Callable[[], object], *, otherwise: str) -> bool:
        """Writes, and returns whether that succeeded; a line says why not, and what follows."""
        reason = refusal_of(write)
        if reason is not None and not self._refused:
            self._say(f"{self._place}: {reason}; {otherwise}")
        self._refused = reason is not None
        return not self._refused

    def worked(self) -> None:
        """Says that the place has taken something outside of `succeeds`."""
        self._refused = False


def write_whole(path: epath.PathLike, content: str | bytes, *, make_parent: bool = True) -> None:
    """Writes a file atomically, local or ``gs://``; a failure leaves nothing behind.

    Text is encoded as UTF-8. Missing parent directories are made, which a worker that may outlive
    its run must not do. Raises UserError if the disk is full, or the place cannot be written to.
    """
    target = epath.Path(path)
    raw = content.encode() if isinstance(content, str) else content
    with write_errors(target):
        if make_parent:
            target.parent.mkdir(parents=True, exist_ok=True)
        if is_remote(target):  # an object is visible only once it is complete
            target.write_bytes(raw)
            return
        with whole_file(target) as temporary:
            temporary.write_bytes(raw)


@contextlib.contextmanager
def whole_file(target: epath.PathLike) -> Iterator[pathlib.Path]:
    """Gives a local path that becomes ``target`` after the block; UserError if the disk is full."""
    target = epath.Path(target)
    with _temporary(target) as temporary:
        yield temporary
        if is_remote(target):
            epath.Path(temporary).copy(target, overwrite=True)
        else:
            temporary.replace(target)


@contextlib.contextmanager
def whole_directory(target: epath.PathLike, *, last: str) -> Iterator[pathlib.Path]:
    """Gives a local directory to fill; moves it to ``target`` when the block succeeds.

    If ``target`` exists by then, another worker has done the same job and this result is dropped.
    The file `last` marks the target as complete (:func:`is_whole`): to a bucket, which cannot
    rename a directory, it is uploaded after all others. Raises UserError if the disk is full.
    """
    target = epath.Path(target)
    with _temporary(target) as temporary:
        temporary.mkdir()
        yield temporary
        if is_remote(target):
            files = sorted(path for path in temporary.rglob("*") if path.is_file())
            for path in sorted(files, key=lambda path: path == temporary / last):
                name = path.relative_to(temporary).as_posix()
                epath.Path(path).copy(target / name, overwrite=True)
            return
        try:
            temporary.rename(target)
        except OSError:
            if not is_whole(target, last=last):
                raise


def is_whole(directory: epath.PathLike, *, last: str) -> bool:
    """Whether :func:`whole_directory` has completed a directory."""
    return (epath.Path(directory) / last).exists()


@contextlib.contextmanager
def new_directory(path: pathlib.Path, *, force: bool) -> Iterator[pathlib.Path]:
    """Gives a directory to fill; moves it to the local ``path`` when the block succeeds.

    With ``force`` an existing directory is replaced once the new one is complete. Raises UserError
    if ``path`` has files and ``force`` is False, or the place cannot be written to.
    """
    if path.exists() and not force and not (path.is_dir() and not any(path.iterdir())):
        raise output_exists(path)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(epath.Path(path)) as temporary:
            temporary.mkdir()
            yield temporary
            replaced = unfinished(path)
            if path.exists():
                path.replace(replaced)
            temporary.replace(path)
            _remove(replaced)


def unfinished(path: pathlib.Path) -> pathlib.Path:
    """Returns a temporary name beside ``path`` that no other worker has."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")


def remove_unfinished(directory: pathlib.Path, *, of: str | None = None) -> None:
    """Removes what killed runs have left in a local directory: the names of `unfinished` alone.

    The caller is the only writer of the directory, or of the name `of` in it.
    """
    name = "*" if of is None else glob.escape(of)
    for path in directory.glob(f"{name}.{'[0-9a-f]' * 32}{_UNFINISHED}"):
        _remove(path)


@contextlib.contextmanager
def _temporary(target: epath.Path) -> Iterator[pathlib.Path]:
    """Gives a local path that is removed after the block: beside ``target`` if that is local."""
    with disk_errors(target), contextlib.ExitStack() as stack:
        if is_remote(target):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            yield pathlib.Path(directory) / target.name
            return
        temporary = unfinished(pathlib.Path(target))
        stack.callback(_remove, temporary)
        yield temporary


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
