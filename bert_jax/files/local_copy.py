"""A file or a directory of files as one on this machine: remote ones are copied first."""

import functools
import re
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.download import download, find_files
from bert_jax.files.read import sha256_of_files
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import scratch_directory
from bert_jax.narration import doing

CHECKED: Final = "sha256-"
"""Before a hash, in the name of a directory: what lies in it has the hash that `sha256_of_files`
returns."""

_home = functools.cache(scratch_directory)
_HASH: Final = re.compile(rf"/{CHECKED}([0-9a-f]{{64}})/")


def local_copy(path: str) -> Path:
    """Returns a local path of the same content.

    ``"data/train.csv" -> Path("data/train.csv")``,
    ``"gs://b/data/train.csv" -> Path("/tmp/…/b/data/train.csv")``

    Args:
        path: of a file, or a directory of files, local or ``gs://``. A remote one is copied once in
            the life of this process; the copy goes with it.

    Raises:
        UserError: there is no such file, it is not what its directory's name says, or the disk is
            full.
        RunStopped: the bucket does not answer.
    """
    return _copied(path) if is_remote(path) else Path(path)


@functools.cache
def _copied(path: str) -> Path:
    try:
        files = find_files(epath.Path(path))
    except FileNotFoundError:
        files = []
    if not files:
        raise UserError(f"{path}: no such file")
    target = Path(_home(), path.partition("://")[2])
    into = target.parent if [file.path for file in files] == [path] else target
    into.mkdir(parents=True, exist_ok=True)
    with doing(f"copying {path}"):
        download(files, into, say=lambda line: None)
    wanted = _HASH.search(path)
    if wanted and sha256_of_files({file.name: into / file.name for file in files}) != wanted[1]:
        raise UserError(f"{path}: damaged: not of the SHA-256 in its name; copy it again")
    return target
