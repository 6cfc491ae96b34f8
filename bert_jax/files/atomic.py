"""Writes files and directories atomically, on a disk or in a bucket."""

import contextlib
import errno
import fnmatch
import glob
import itertools
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.lock import LOCK
from bert_jax.files.remote import is_remote

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNFINISHED: Final = ".tmp"
_REPLACED: Final = ".old"  # a directory while another one takes its place
_ANY_HEX: Final = "[0-9a-f]" * 32


def output_exists(path: os.PathLike[str]) -> UserError:
    """Returns the error for an output that exists, if --force is not set."""
    return UserError(
        "output.exists", "exists already. Choose another path or add --force.", place=path
    )


def require_other_file(output: epath.PathLike, inputs: Iterable[object]) -> None:
    """Raises UserError if an output would replace one of the inputs of the same command.

    Ignores inputs that are not the path of a local file.
    """
    paths = [path for path in inputs if isinstance(path, str | os.PathLike)]
    files = [path for path in paths if os.path.isfile(path)]
    if os.path.exists(output) and any(os.path.samefile(path, output) for path in files):
        raise UserError(
            "output.is_input",
            "also an input of this command, which --force does not replace. Choose another path.",
            place=output,
        )


@contextlib.contextmanager
def disk_errors(path: epath.PathLike) -> Iterator[None]:
    """Raises a UserError that names ``path`` if a disk is full, or a quota or size limit exceeded.

    Searches the text of a RuntimeError, which C++ writers raise. Other errors pass unchanged.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = full_disk(error)
        if reason is None:
            raise
        raise UserError(
            "disk.full",
            f"{reason.lower()} while writing. Make room and run the command again.",
            place=path,
        ) from error


@contextlib.contextmanager
def write_errors(path: epath.PathLike) -> Iterator[None]:
    """Turns every OSError into a UserError about ``path``. The block must only write to it."""
    try:
        with disk_errors(path):
            yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: epath.PathLike, error: OSError) -> UserError:
    """Returns the error for a file or directory that cannot be written."""
    reason = error.strerror or str(error)
    return UserError("file.unwritable", f"cannot be written ({reason})", place=path)


def full_disk(error: Exception) -> str | None:
    """Returns the system's text for a full disk, or None if the error has another cause."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in _FULL else None
    return next((text for text in map(os.strerror, _FULL) if text in str(error)), None)


def why_not_written(error: Exception) -> str:
    """Returns a short reason why writing failed: a full disk, or the first line of the error."""
    return full_disk(error) or first_line(error)


def refusal_of(write: Callable[[], object]) -> str | None:
    """Calls `write`. Returns a short reason if it failed, or None if it succeeded.

    Catches every exception, because each storage library raises its own. The reason names the class
    of an exception that is not ours.
    """
    try:
        write()
    except Exception as error:
        ours = isinstance(error, OSError | UserError | RunStopped)
        return ("" if ours else f"{type(error).__name__}: ") + why_not_written(error)
    return None


class WriteAttempts:
    """Repeated writes to one file. Prints only the first of consecutive failures."""

    def __init__(self, place: object, *, say: Callable[[str], None]) -> None:
        """`place` names the file in messages, which `say` prints."""
        self._place, self._say = place, say
        self._refused = False

    def succeeds(self, write: Callable[[], object], *, otherwise: str) -> bool:
        """Calls `write` and returns whether it succeeded.

        At the first failure after a success, prints the reason and `otherwise`, the consequence.
        """
        reason = refusal_of(write)
        if reason is not None and not self._refused:
            self._say(f"{self._place}: {reason}; {otherwise}")
        self._refused = reason is not None
        return not self._refused

    def worked(self) -> None:
        """Records a successful write outside of `succeeds`."""
        self._refused = False


def write_whole(path: epath.PathLike, content: str | bytes, *, make_parent: bool = True) -> None:
    """Writes a file atomically, local or ``gs://``. A failure leaves no partial file.

    Encodes text as UTF-8. Creates missing parent directories. A worker that may outlive its run
    sets `make_parent` to False, so that it does not create the run's directory again. Raises
    UserError if the disk is full or the file cannot be written.
    """
    target = epath.Path(path)
    raw = content.encode() if isinstance(content, str) else content
    with write_errors(target):
        if make_parent:
            target.parent.mkdir(parents=True, exist_ok=True)
        if is_remote(target):  # uploads are atomic
            target.write_bytes(raw)
            return
        with whole_file(target) as temporary:
            temporary.write_bytes(raw)


@contextlib.contextmanager
def whole_file(target: epath.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary local path, and moves its file to ``target`` after the block.

    Raises UserError if the disk is full.
    """
    target = epath.Path(target)
    with _temporary(target) as temporary:
        yield temporary
        if is_remote(target):
            epath.Path(temporary).copy(target, overwrite=True)
        else:
            temporary.replace(target)


def write_together(directory: epath.PathLike, contents: dict[str, bytes]) -> None:
    """Writes files to a directory, local or ``gs://``, by name and in this order.

    If the disk is full, writes none of them, and creates no directory. Raises UserError like
    `write_whole`.
    """
    root = epath.Path(directory)
    above = [] if is_remote(root) else [root, *root.parents]
    missing = list(itertools.takewhile(lambda path: not path.exists(), above))
    try:
        with write_errors(root), contextlib.ExitStack() as moves:
            if above:
                root.mkdir(parents=True, exist_ok=True)
            for name in reversed(contents):  # the last to enter is the first to be moved
                moves.enter_context(whole_file(root / name)).write_bytes(contents[name])
    except UserError:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


@contextlib.contextmanager
def whole_directory(target: epath.PathLike, *, last: str) -> Iterator[pathlib.Path]:
    """Yields a temporary local directory, and moves it to ``target`` after the block.

    If another worker has completed ``target`` meanwhile, discards this result. A bucket cannot
    rename a directory. So the file `last` is uploaded last, and `is_whole` checks that it exists.
    Raises UserError if the disk is full.
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
    """Returns whether a directory written by `whole_directory` is complete."""
    return (epath.Path(directory) / last).exists()


@contextlib.contextmanager
def new_directory(
    path: pathlib.Path,
    *,
    force: bool = False,
    ours: Callable[[pathlib.Path], Sequence[str]] | None = None,
) -> Iterator[pathlib.Path]:
    """Yields a temporary directory, and moves it to the local ``path`` after the block.

    With ``force``, replaces an existing directory when the new one is complete. If this program has
    written a directory, `ours` returns the patterns of its own names in it; otherwise none. A verb
    without --force passes None. Raises UserError if ``path`` contains files and ``force`` is False
    or a name matches no pattern, or if ``path`` cannot be written.
    """
    restore_replaced(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        if ours is None:
            raise UserError(
                "output.exists", "exists already. Choose another path, or delete it.", place=path
            )
        _require_ours(path, ours)  # first: the other message suggests --force
        if not force:
            raise output_exists(path)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(epath.Path(path)) as temporary:
            temporary.mkdir()
            yield temporary
            replaced = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_REPLACED}")
            if path.exists():
                path.replace(replaced)
            try:
                temporary.replace(path)
            finally:
                restore_replaced(path)
            _remove(replaced)


def _require_ours(path: pathlib.Path, ours: Callable[[pathlib.Path], Sequence[str]]) -> None:
    """Raises UserError if --force would delete files that this program has not written.

    Hidden files, such as those of git, are never ours.
    """
    foreign = ["other files"]
    if path.is_dir() and (own := ours(path)):
        names = {each.name for each in path.iterdir()} - {LOCK}
        foreign = sorted(
            name
            for name in names
            if name.startswith(".") or not any(fnmatch.fnmatch(name, each) for each in own)
        )
    if foreign:
        raise UserError(
            "output.foreign",
            f"found {foreign[0]}. --force replaces only outputs of the same verb. Delete it.",
            place=path,
        )


def restore_replaced(path: epath.PathLike) -> None:
    """Restores a local directory if a process was killed while it replaced the directory."""
    if is_remote(path) or os.path.exists(path):
        return
    local = pathlib.Path(path)
    for aside in local.parent.glob(f"{glob.escape(local.name)}.{_ANY_HEX}{_REPLACED}"):
        with contextlib.suppress(OSError):  # another process restores it
            aside.rename(local)


def unfinished(path: pathlib.Path) -> pathlib.Path:
    """Returns a unique temporary path in the directory of ``path``."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")


def remove_unfinished(directory: pathlib.Path, *, of: str | None = None) -> None:
    """Removes the temporary files of killed processes from a local directory.

    If `of` is given, removes only temporary files of the file name `of`. No other process may be
    writing these files.
    """
    names = [f"*.{_ANY_HEX}{_UNFINISHED}"]
    if of is not None:
        restore_replaced(directory / of)
        names = [f"{glob.escape(of)}.{_ANY_HEX}{kind}" for kind in (_UNFINISHED, _REPLACED)]
    for path in (found for name in names for found in directory.glob(name)):
        _remove(path)


@contextlib.contextmanager
def _temporary(target: epath.Path) -> Iterator[pathlib.Path]:
    """Yields a temporary local path, which is removed after the block.

    If ``target`` is local, uses its directory, so that the file can be renamed.
    """
    with disk_errors(target), contextlib.ExitStack() as stack:
        if is_remote(target):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            yield pathlib.Path(directory) / target.name
            return
        temporary = unfinished(pathlib.Path(target))
        stack.callback(_remove, temporary)
        yield temporary


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
